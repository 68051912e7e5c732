// Package latchkeylock takes locks of a Latchkey server through go-redis. See ../README.md for its traps.
//
//	lock, err := latchkeylock.Acquire(ctx, client, "jobs", latchkeylock.Options{})
//	if err != nil { ... }
//	defer lock.Release(context.Background())
//	resource.Write(value, lock.Fence)
package latchkeylock

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrHeld: another owner holds the lock.
	ErrHeld = errors.New("latchkeylock: another owner holds the lock")
	// ErrLost: the grant has ended, by its lease, its session, or somebody's hand.
	ErrLost = errors.New("latchkeylock: the lock is no longer held")
)

// longestWait bounds one request. A longer wait is made of several, each at the end of the queue.
const longestWait = 30 * time.Second

// Options of an acquisition.
type Options struct {
	// Lease ends the lock of a holder that is not heard of. Zero: 30 seconds.
	Lease time.Duration
	// SessionGrace ends the lock so long after its connection has closed. The lease counts from the connection's last sign of
	// life then. Zero: no session.
	SessionGrace time.Duration
	// Owner is who asks. Empty: a random one. Whoever asks with the same name gets the same grant.
	Owner string
}

// Lock is one grant. It keeps a connection of the client's pool until it is released: so a release does not stand in line with
// those who wait, and a session has a connection of its own.
type Lock struct {
	Key, Owner string
	// Fence numbers the grant. Hand it to whatever the lock protects.
	Fence int64

	client  *redis.Client
	options Options
	one     sync.Mutex
	conn    *redis.Conn
}

// TryAcquire takes a lock that is free. Errors: ErrHeld, and those of the connection, after which the lock may be held until
// its lease ends: asking again with the same Owner gets it.
func TryAcquire(ctx context.Context, client *redis.Client, key string, options Options) (*Lock, error) {
	l := prepare(client, key, options)
	err := l.ask(ctx)
	if err != nil {
		l.conn.Close()
		return nil, err
	}
	return l, nil
}

// Acquire takes a lock, or waits for it until the context ends. Errors: the context's, and those of the connection.
func Acquire(ctx context.Context, client *redis.Client, key string, options Options) (*Lock, error) {
	l := prepare(client, key, options)
	err := l.ask(ctx)
	for errors.Is(err, ErrHeld) && ctx.Err() == nil {
		var id int64
		if id, err = l.conn.ClientID(ctx).Result(); err != nil {
			break
		}
		outcome := make(chan error, 1)
		go func() { outcome <- l.ask(context.Background(), "BLOCK", longestWait.Milliseconds()) }()
		select {
		case err = <-outcome:
		case <-ctx.Done():
			go l.abandon(id, outcome)
			return nil, ctx.Err()
		}
	}
	if err == nil {
		return l, nil
	}
	l.conn.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}

// Release gives the lock back. Errors: ErrLost, and those of the connection.
func (l *Lock) Release(ctx context.Context) error {
	left, err := l.do(ctx, "LOCK.RELEASE", l.Key, l.Owner, "FENCE", l.Fence).Int64()
	if err == nil && left < 0 {
		err = ErrLost
	}
	l.conn.Close()
	return err
}

// Renew lets the lease last so long from now on, at least. Errors: ErrLost, and those of the connection.
func (l *Lock) Renew(ctx context.Context, lease time.Duration) error {
	fences, err := l.do(ctx, "LOCK.RENEW", 1, l.Key, l.Owner, "PX", lease.Milliseconds()).Int64Slice()
	if err == nil && fences[0] != l.Fence {
		err = ErrLost
	}
	return err
}

// Guard adds a guard to a transaction of TxPipeline: unless this grant is still held, nothing of it is done and Exec gives
// redis.TxFailedErr.
func (l *Lock) Guard(ctx context.Context, pipe redis.Pipeliner) *redis.Cmd {
	return pipe.Do(ctx, "LOCK.GUARD", l.Key, l.Owner, "FENCE", l.Fence)
}

func prepare(client *redis.Client, key string, options Options) *Lock {
	if options.Lease == 0 {
		options.Lease = 30 * time.Second
	}
	if options.Owner == "" {
		options.Owner = rand.Text()
	}
	// The client must not give up a reply before the server does.
	client = client.WithTimeout(longestWait + 5*time.Second)
	return &Lock{Key: key, Owner: options.Owner, client: client, options: options, conn: client.Conn()}
}

// ask sends one LOCK.ACQUIRE. Errors: ErrHeld, and those of the connection.
func (l *Lock) ask(ctx context.Context, wait ...any) error {
	request := []any{"LOCK.ACQUIRE", l.Key, l.Owner, "PX", l.options.Lease.Milliseconds()}
	if l.options.SessionGrace > 0 {
		request = append(request, "SESSION", "GRACE", l.options.SessionGrace.Milliseconds())
	}
	reply, err := l.do(ctx, append(request, wait...)...).Slice()
	if err != nil {
		return err
	}
	if l.Fence = reply[0].(int64); l.Fence == 0 {
		return ErrHeld
	}
	return nil
}

// do runs a command on the lock's connection, and once more on another if that has failed: each of them may be repeated.
func (l *Lock) do(ctx context.Context, request ...any) *redis.Cmd {
	l.one.Lock()
	defer l.one.Unlock()
	reply := l.conn.Do(ctx, request...)
	var answered redis.Error
	if err := reply.Err(); err == nil || errors.As(err, &answered) || ctx.Err() != nil {
		return reply
	}
	l.conn.Close()
	l.conn = l.client.Conn()
	return l.conn.Do(ctx, request...)
}

// abandon ends a wait that nobody is interested in any more, and gives back what it may have been granted.
func (l *Lock) abandon(id int64, outcome <-chan error) {
	ctx := context.Background()
	// Those who wait may have all connections of the pool.
	options := *l.client.Options()
	options.PoolSize, options.MinIdleConns = 1, 0
	other := redis.NewClient(&options)
	defer other.Close()
	for {
		// Again and again: the wait may not have begun.
		other.ClientUnblock(ctx, id)
		select {
		case err := <-outcome:
			if !errors.Is(err, ErrHeld) {
				// Without a fence: the reply that named it may be lost.
				l.do(ctx, "LOCK.RELEASE", l.Key, l.Owner)
			}
			l.conn.Close()
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
