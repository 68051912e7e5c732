package latchkeylocks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// kind is what locks and permits differ in: their requests, and what the replies mean.
type kind interface {
	question() []any
	read(reply []any) time.Duration
	holder(reply []any) string
	renewals(lease time.Duration) (requests [][]any, expected string)
	releases(keep time.Duration) (requests [][]any, least int64)
}

// grant is what locks and permits have in common.
type grant struct {
	Owner string
	// Fence numbers the grant. Hand it to whatever is protected.
	Fence int64

	kind    kind
	client  redis.UniversalClient
	key     string
	options Options
	ended   chan struct{}
	once    sync.Once
	// one guards what follows.
	one   sync.Mutex
	until time.Time
	own   *redis.Client
}

// Left is for how long this is held at least. It counts from before the request, by a clock that nobody sets.
func (g *grant) Left() time.Duration {
	g.one.Lock()
	defer g.one.Unlock()
	return max(0, time.Until(g.until))
}

// Renew lets the lease last so long from now on, at least; zero: as long as at first. Errors: ErrLost, and go-redis's.
func (g *grant) Renew(ctx context.Context, lease time.Duration) error {
	if lease == 0 {
		lease = g.options.Lease
	}
	began := time.Now()
	requests, expected := g.kind.renewals(lease)
	for _, request := range requests {
		reply, _, err := g.twice(ctx, request)
		if err != nil {
			return err
		}
		if fmt.Sprint(reply) != expected {
			g.setUntil(time.Time{})
			return ErrLost
		}
	}
	if until := began.Add(lease); g.Left() < time.Until(until) {
		g.setUntil(until)
	}
	return nil
}

// Release gives it back. Errors: ErrLost if it had ended before, and go-redis's, after which it ends with its lease.
func (g *grant) Release(ctx context.Context) error { return g.ReleaseKeeping(ctx, 0) }

// ReleaseKeeping gives a lock back that nobody gets for so long.
func (g *grant) ReleaseKeeping(ctx context.Context, keep time.Duration) (err error) {
	g.once.Do(func() { close(g.ended) })
	defer g.setUntil(time.Time{})
	defer g.close()
	requests, least := g.kind.releases(keep)
	for _, request := range requests {
		// Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
		left, isRepeated, failed := g.twice(ctx, request)
		if failed != nil {
			err = errors.Join(err, failed)
		} else if !isRepeated && left.(int64) < least {
			err = ErrLost
		}
	}
	return err
}

// Attach binds the session to its connection, a new one if that broke; whether there was something to bind.
func (g *grant) Attach(ctx context.Context) (bool, error) {
	// Whoever asks over a new connection has attached it already.
	count, _, err := g.twice(ctx, []any{"LOCK.ATTACH", g.Owner})
	return err == nil && count.(int64) > 0, err
}

// Watch renews three times in a lease until the release. The context that it gives ends with ErrLost as its cause when this is lost, or
// when nothing was heard of the server until the lease was over.
func (g *grant) Watch(ctx context.Context) context.Context {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-time.After(min(g.options.Lease/3, max(time.Millisecond, g.Left()))):
			case <-g.ended:
				cancel(context.Canceled)
				return
			case <-ctx.Done():
				return
			}
			if err := g.Renew(ctx, 0); err != nil && ctx.Err() == nil && (errors.Is(err, ErrLost) || g.Left() == 0) {
				cancel(ErrLost)
				return
			}
		}
	}()
	return watched
}

func (g *grant) take(ctx context.Context) error {
	err := g.acquire(ctx)
	if err == nil && g.options.Grace != 0 {
		return nil
	}
	g.close()
	var refused *NotGrantedError
	if err != nil && !errors.As(err, &refused) && !isReply(err) {
		// The context ended, or the connection broke: nobody will release what may have been granted. Else it ends with its lease.
		g.abandon(context.WithoutCancel(ctx))
		g.close()
	}
	return err
}

func (g *grant) acquire(ctx context.Context) error {
	request := g.kind.question()
	if g.options.Grace > 0 {
		request = append(request, "SESSION", "GRACE", milliseconds(g.options.Grace))
	}
	started := time.Now()
	block, broken := time.Duration(0), 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		asked := request
		if block > 0 {
			asked = append(request[:len(request):len(request)], "BLOCK", milliseconds(block))
		}
		began := time.Now()
		answer, err := g.ask(ctx, asked, block > 0 || broken > 0)
		if ctx.Err() != nil {
			// Its connection may be closed already. A grant is given back.
			return ctx.Err()
		}
		if err != nil {
			// It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
			if broken++; isReply(err) || broken == tries {
				return err
			}
			block = 0
			continue
		}
		broken = 0
		reply := answer.([]any)
		isGranted := reply[0] != int64(0)
		if isGranted && time.Since(began) <= g.options.Lease/10 {
			g.setUntil(began.Add(g.kind.read(reply)))
			return nil
		}
		// A lease that began in a long wait is measured by asking again, which gets the same grant.
		block = 0
		if !isGranted {
			block = longestWait
			if g.options.Wait != 0 {
				block = min(block, g.options.Wait-time.Since(started))
			}
			if block <= 0 {
				return &NotGrantedError{g.key, g.kind.holder(reply)}
			}
		}
	}
}

// abandon gives back what may have been granted although nobody got to know.
func (g *grant) abandon(ctx context.Context) {
	if _, isLock := g.kind.(*Lock); !isLock {
		// The permits' names are known by asking again.
		answer, _, err := g.twice(ctx, g.kind.question())
		if err != nil || answer.([]any)[0] == int64(0) {
			return
		}
		g.kind.read(answer.([]any))
	}
	requests, _ := g.kind.releases(0)
	for _, request := range requests {
		g.twice(ctx, request)
	}
}

// twice asks again if the connection breaks: requests of locks may be repeated. It gives the reply, and whether it is the second.
func (g *grant) twice(ctx context.Context, request []any) (reply any, isRepeated bool, err error) {
	reply, err = g.ask(ctx, request, false)
	if err == nil || isReply(err) || ctx.Err() != nil {
		return reply, false, err
	}
	// Those of the pool may all have broken.
	reply, err = g.ask(ctx, request, true)
	if g.options.Grace == 0 {
		g.close()
	}
	return reply, true, err
}

// ask sends one request, which nothing repeats unseen, and follows its key to another node of a cluster.
func (g *grant) ask(ctx context.Context, request []any, isAlone bool) (reply any, err error) {
	for range redirections {
		var node *redis.Client
		if node, err = g.node(ctx); err != nil {
			return nil, err
		}
		if !isAlone && g.options.Grace == 0 {
			once := node.WithTimeout(patience)
			once.Options().MaxRetries = 0
			reply, err = once.Do(ctx, request...).Result()
		} else {
			reply, err = g.askAlone(ctx, node, request)
		}
		cluster, isCluster := g.client.(*redis.ClusterClient)
		if err == nil || !isCluster || !strings.HasPrefix(err.Error(), "MOVED ") {
			break
		}
		g.close()
		// It learns the new place in the background.
		cluster.ReloadState(ctx)
		time.Sleep(10 * time.Millisecond)
	}
	return reply, err
}

// askAlone uses a connection outside of the pool, for a wait, a session, or after a break. The request ends with the context.
func (g *grant) askAlone(ctx context.Context, node *redis.Client, request []any) (any, error) {
	g.one.Lock()
	own := g.own
	if own == nil {
		options := *node.Options()
		options.MaxRetries, options.PoolSize, options.MinIdleConns = -1, 1, 0
		options.ReadTimeout = longestWait + patience
		// Its own, in which it registers its own handlers.
		options.PushNotificationProcessor = nil
		connected := options.OnConnect
		options.OnConnect = func(ctx context.Context, connection *redis.Conn) error {
			if connected != nil {
				if err := connected(ctx, connection); err != nil {
					return err
				}
			}
			// Also when go-redis, unseen, puts a new connection in the place of one that broke.
			if g.options.Grace > 0 && g.Fence != 0 {
				connection.Process(ctx, redis.NewCmd(ctx, "LOCK.ATTACH", g.Owner))
			}
			return nil
		}
		own = redis.NewClient(&options)
		g.own = own
	}
	g.one.Unlock()
	stop := context.AfterFunc(ctx, func() { own.Close() })
	reply, err := own.Do(context.WithoutCancel(ctx), request...).Result()
	stop()
	if err != nil && !isReply(err) {
		g.close()
	}
	return reply, err
}

func (g *grant) node(ctx context.Context) (*redis.Client, error) {
	switch client := g.client.(type) {
	case *redis.Client:
		return client, nil
	case interface {
		MasterForKey(context.Context, string) (*redis.Client, error)
	}:
		return client.MasterForKey(ctx, g.key)
	}
	return nil, fmt.Errorf("latchkeylocks: a %T has no node for a key", g.client)
}

func (g *grant) close() {
	g.one.Lock()
	defer g.one.Unlock()
	if g.own != nil {
		g.own.Close()
		g.own = nil
	}
}

func (g *grant) setUntil(until time.Time) {
	g.one.Lock()
	defer g.one.Unlock()
	g.until = until
}

// isReply: the server has answered, and did nothing.
func isReply(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered)
}
