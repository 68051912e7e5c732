// Package latchkeylocks takes locks, permits of semaphores and rate limits of a Latchkey server through go-redis.
//
//	locks := latchkeylocks.New(client)
//	lock, err := locks.Acquire(ctx, "jobs", latchkeylocks.Options{Lease: 30 * time.Second})
//	if err != nil { ... }
//	defer lock.Release(context.WithoutCancel(ctx))
//	resource.Write(value, lock.Fence)
package latchkeylocks

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrLost: the grant has ended, by its lease, its session, or somebody's hand.
var ErrLost = errors.New("latchkeylocks: no longer held")

// NotGrantedError: others hold it, and the time to wait is over.
type NotGrantedError struct {
	Key string
	// Holder is empty where others only stand in line before, and for permits.
	Holder string
}

func (e *NotGrantedError) Error() string {
	if e.Holder == "" {
		return e.Key + " is not free"
	}
	return e.Key + " is held by " + e.Holder
}

// NoWait as Options.Wait: ask once.
const NoWait = time.Duration(-1)

// Look as Rate.Quantity: count nothing.
const Look = -1

const (
	// longestWait bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue.
	longestWait = time.Minute
	// patience is how much longer than the server a client waits for the reply.
	patience = 5 * time.Second
	// tries is how many connections may break one after the other, before an acquisition gives up.
	tries = 3
	// redirections is how often a request follows its key to another node.
	redirections = 200
)

// Options of an acquisition.
type Options struct {
	// Lease ends a grant that is not renewed. Zero: 30 seconds.
	Lease time.Duration
	// Wait is how long to wait in the server's queue. Zero: until the context ends.
	Wait time.Duration
	// Shared is for reading, beside other readers.
	Shared bool
	// Grace makes a session: it ends so long after its connection has closed, and the lease counts from the last request over that
	// connection. Zero: none.
	Grace time.Duration
	// Owner is who asks. Whoever asks with the same name gets the same grant. Empty: a random name.
	Owner string
	// Count is how many permits are taken together. Zero: one.
	Count int
}

// Rate is Count actions in Period, and Burst more at once. Quantity are asked for; zero: one.
type Rate struct {
	Count, Burst, Quantity int
	Period                 time.Duration
}

// Limit is the answer to a Rate. RetryAfter is negative if it was allowed, or never will be.
type Limit struct {
	Allowed                bool
	Limit, Remaining       int64
	RetryAfter, ResetAfter time.Duration
}

// Locks takes locks through a client. It may be used by several goroutines, as what it gives.
type Locks struct{ client redis.UniversalClient }

// New gives Locks of a *redis.Client (also one of NewFailoverClient) or a *redis.ClusterClient.
func New(client redis.UniversalClient) *Locks { return &Locks{client} }

// Acquire takes a lock. Errors: *NotGrantedError, the context's alone, which leaves nothing held and nobody waiting, and
// go-redis's.
func (l *Locks) Acquire(ctx context.Context, key string, options Options) (*Lock, error) {
	return l.AcquireAll(ctx, []string{key}, options)
}

// AcquireAll takes several locks at once, or none. In a cluster their keys need one slot.
func (l *Locks) AcquireAll(ctx context.Context, keys []string, options Options) (*Lock, error) {
	lock := &Lock{Keys: keys}
	lock.grant = newGrant(l.client, keys[0], options, lock)
	if err := lock.take(ctx); err != nil {
		return nil, err
	}
	return lock, nil
}

// Permits takes permits of a semaphore of which limit are held at most. Errors: as of Acquire.
func (l *Locks) Permits(ctx context.Context, key string, limit int, options Options) (*Permits, error) {
	permits := &Permits{limit: limit, count: max(1, options.Count)}
	permits.grant = newGrant(l.client, key, options, permits)
	if err := permits.take(ctx); err != nil {
		return nil, err
	}
	return permits, nil
}

// With runs work under a lock, which is renewed. The work's context ends when the lock is lost. Errors: those of the work, and joined
// to them those of the release.
func (l *Locks) With(ctx context.Context, key string, options Options, work func(context.Context, *Lock) error) error {
	lock, err := l.Acquire(ctx, key, options)
	if err != nil {
		return err
	}
	defer func() {
		if lock != nil { // The work has panicked.
			lock.Release(context.WithoutCancel(ctx))
		}
	}()
	err = work(lock.Watch(ctx), lock)
	released := lock.Release(context.WithoutCancel(ctx))
	lock = nil
	return errors.Join(err, released)
}

// Throttle tells whether actions are allowed, and counts them if they are.
func (l *Locks) Throttle(ctx context.Context, key string, rate Rate) (Limit, error) {
	quantity := max(1, rate.Quantity)
	if rate.Quantity == Look {
		quantity = 0
	}
	request := []any{"CL.THROTTLE", key, rate.Burst, rate.Count, int64(rate.Period / time.Second), quantity}
	reply, err := l.client.Do(ctx, request...).Int64Slice()
	if err != nil {
		return Limit{}, err
	}
	seconds := func(count int64) time.Duration { return time.Duration(count) * time.Second }
	return Limit{reply[0] == 0, reply[1], reply[2], seconds(reply[3]), seconds(reply[4])}, nil
}

// Lock is a lock that is held, several of them, or a reader's part of one.
type Lock struct {
	*grant
	Keys []string
}

// Held tells whether the server still says so.
func (l *Lock) Held(ctx context.Context) (bool, error) {
	for _, request := range l.guards() {
		held, _, err := l.twice(ctx, request)
		if err != nil || held.(int64) == 0 {
			return false, err
		}
	}
	return true, nil
}

// Guard adds guards to a transaction of TxPipeline: unless this grant is held then, it does nothing, and Exec gives
// redis.TxFailedErr, that of a cluster redis.Nil.
func (l *Lock) Guard(ctx context.Context, pipe redis.Pipeliner) {
	for _, request := range l.guards() {
		pipe.Do(ctx, request...)
	}
}

func (l *Lock) guards() (requests [][]any) {
	for _, key := range l.Keys {
		requests = append(requests, []any{"LOCK.GUARD", key, l.Owner, "FENCE", l.Fence})
	}
	return requests
}

func (l *Lock) keysAfter(words ...any) []any {
	for _, key := range l.Keys {
		words = append(words, key)
	}
	return append(words, l.Owner)
}

func (l *Lock) question() []any {
	request := []any{"LOCK.ACQUIRE", l.key, l.Owner}
	if len(l.Keys) > 1 {
		request = l.keysAfter("LOCK.MACQUIRE", len(l.Keys))
	}
	request = append(request, "PX", milliseconds(l.options.Lease))
	if l.options.Shared {
		request = append(request, "SHARED")
	}
	return request
}

func (l *Lock) read(reply []any) time.Duration {
	l.Fence = reply[0].(int64)
	return time.Duration(reply[len(reply)-1].(int64)) * time.Millisecond
}

func (l *Lock) holder(reply []any) string { return fmt.Sprint(reply[3]) }

func (l *Lock) renewals(lease time.Duration) ([][]any, string) {
	fences := make([]int64, len(l.Keys))
	for at := range fences {
		fences[at] = l.Fence
	}
	return [][]any{append(l.keysAfter("LOCK.RENEW", len(l.Keys)), "PX", milliseconds(lease))}, fmt.Sprint(fences)
}

func (l *Lock) releases(keep time.Duration) (requests [][]any, least int64) {
	for _, key := range l.Keys {
		request := []any{"LOCK.RELEASE", key, l.Owner}
		if l.Fence != 0 {
			request = append(request, "FENCE", l.Fence)
		}
		if keep > 0 {
			request = append(request, "KEEP", milliseconds(keep))
		}
		requests = append(requests, request)
	}
	return requests, 0
}

// Permits of one request that are held.
type Permits struct {
	*grant
	Permits []string
	// Free is how many were free after the grant.
	Free         int64
	limit, count int
}

func (p *Permits) question() []any {
	return []any{"SEM.ACQUIRE", p.key, p.Owner, "LIMIT", p.limit, "PX", milliseconds(p.options.Lease), "COUNT", p.count}
}

func (p *Permits) read(reply []any) time.Duration {
	p.Permits = nil
	for _, permit := range reply[0].([]any) {
		p.Permits = append(p.Permits, permit.(string))
	}
	p.Fence, p.Free = reply[1].(int64), reply[2].(int64)
	return p.options.Lease
}

func (p *Permits) holder([]any) string { return "" }

func (p *Permits) renewals(lease time.Duration) (requests [][]any, expected string) {
	for _, permit := range p.Permits {
		requests = append(requests, []any{"SEM.RENEW", p.key, permit, "PX", milliseconds(lease)})
	}
	return requests, "1"
}

func (p *Permits) releases(time.Duration) ([][]any, int64) {
	request := []any{"SEM.RELEASE", p.key}
	for _, permit := range p.Permits {
		request = append(request, permit)
	}
	return [][]any{request}, int64(len(p.Permits))
}

func milliseconds(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}

func newGrant(client redis.UniversalClient, key string, options Options, kind kind) *grant {
	if options.Lease == 0 {
		options.Lease = 30 * time.Second
	}
	if options.Owner == "" {
		options.Owner = rand.Text()
	}
	return &grant{client: client, key: key, Owner: options.Owner, options: options, kind: kind, ended: make(chan struct{})}
}
