package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	latchkeylock "latchkey.test/lock"
)

// resource is what a lock protects: it refuses a fence below the highest that it has seen.
type resource struct {
	highest int64
	values  []string
}

var errStale = errors.New("a stale fence")

func (r *resource) write(value string, fence int64) error {
	if fence < r.highest {
		return errStale
	}
	r.highest = fence
	r.values = append(r.values, value)
	return nil
}

// beginLocks is begin, for each protocol; skipped where the server is another one.
func beginLocks(t *testing.T, test func(t *testing.T, ctx context.Context, s *server, client *redis.Client)) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			s := startServer(t)
			client := s.connect(t, func(options *redis.Options) { options.Protocol = protocol })
			if len(client.ConfigGet(ctx, "redis-version").Val()) == 0 {
				t.Skip("the server is another one")
			}
			test(t, ctx, s, client)
		})
	}
}

func take(t *testing.T, ctx context.Context, client *redis.Client, options latchkeylock.Options) *latchkeylock.Lock {
	t.Helper()
	return must(latchkeylock.Acquire(ctx, client, "lock", options))(t)
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within / 2); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func waiters(ctx context.Context, client *redis.Client) int {
	queue, _ := client.Do(ctx, "LOCK.WAITERS", "lock").Slice()
	return len(queue)
}

func TestALockIsOneOwnersAtATime(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		first := take(t, ctx, client, latchkeylock.Options{})
		_, err := latchkeylock.TryAcquire(ctx, client, "lock", latchkeylock.Options{})
		expect(t, err, latchkeylock.ErrHeld)
		expect(t, first.Renew(ctx, time.Hour), nil)
		if left := client.PTTL(ctx, "lock").Val(); left < 50*time.Minute {
			t.Fatal("not renewed", left)
		}

		// A waiter is served by the release.
		following := make(chan *latchkeylock.Lock, 1)
		go func() {
			lock, _ := latchkeylock.Acquire(ctx, client, "lock", latchkeylock.Options{})
			following <- lock
		}()
		until(t, func() bool { return waiters(ctx, client) == 1 })
		expect(t, first.Release(ctx), nil)
		second := <-following
		if second == nil || second.Fence <= first.Fence {
			t.Fatal("no greater fence", second)
		}
		expect(t, first.Release(ctx), latchkeylock.ErrLost)
		expect(t, first.Renew(ctx, time.Hour), latchkeylock.ErrLost)
		expect(t, second.Release(ctx), nil)
		expect(t, client.Exists(ctx, "lock").Val(), 0)
	})
}

func TestCancellingTheContextEndsTheWait(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		held := take(t, ctx, client, latchkeylock.Options{})
		cancelled, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := latchkeylock.Acquire(cancelled, client, "lock", latchkeylock.Options{})
			ended <- err
		}()
		until(t, func() bool { return waiters(ctx, client) == 1 })
		cancel()
		expect(t, <-ended, context.Canceled)
		until(t, func() bool { return waiters(ctx, client) == 0 })

		// A cancellation at any moment leaves nothing held and nobody waiting.
		expect(t, held.Release(ctx), nil)
		sideBySide(t, 8, func(int) error {
			for range 20 {
				short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				lock, err := latchkeylock.Acquire(short, client, "lock", latchkeylock.Options{})
				if err == nil {
					runtime.Gosched()
					err = lock.Release(ctx)
				} else if errors.Is(err, context.DeadlineExceeded) {
					err = nil
				}
				cancel()
				if err != nil {
					return err
				}
			}
			return nil
		})
		until(t, func() bool { return client.Exists(ctx, "lock").Val() == 0 && waiters(ctx, client) == 0 })
	})
}

func TestASessionEndsWithItsConnection(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, s *server, client *redis.Client) {
		process := s.connect(t, nil)
		held := take(t, ctx, process, latchkeylock.Options{Lease: time.Hour, SessionGrace: 20 * time.Millisecond})
		expect(t, client.HGet(ctx, "lock", ":session").Val(), "20 3600000")
		process.Close()
		following := take(t, ctx, client, latchkeylock.Options{})
		if following.Fence <= held.Fence {
			t.Fatal("no greater fence")
		}
		expect(t, following.Release(ctx), nil)
	})
}

func TestTheResourceRefusesAnOwnerWhoseLeaseHasEnded(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		var protected resource
		late := take(t, ctx, client, latchkeylock.Options{Lease: 20 * time.Millisecond})
		// The holder sleeps longer than its lease; neither the lock nor the server can stop it.
		following := take(t, ctx, client, latchkeylock.Options{})
		expect(t, protected.write("new", following.Fence), nil)
		expect(t, protected.write("old", late.Fence), errStale)
		expect(t, protected.values, []string{"new"})

		// The server itself compares fences where its own data is protected.
		guarded := func(lock *latchkeylock.Lock, value string) error {
			_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				lock.Guard(ctx, pipe)
				pipe.Set(ctx, "data", value, 0)
				return nil
			})
			return err
		}
		expect(t, guarded(following, "new"), nil)
		expect(t, guarded(late, "old"), redis.TxFailedErr)
		expect(t, client.Get(ctx, "data").Val(), "new")
		expect(t, late.Release(ctx), latchkeylock.ErrLost)
		expect(t, following.Release(ctx), nil)
	})
}

// losesReplies is a connection that breaks after the server has answered, when it is told to.
type losesReplies struct {
	net.Conn
	lose *atomic.Int32
}

func (c losesReplies) Read(into []byte) (int, error) {
	count, err := c.Conn.Read(into)
	if c.lose.Add(-1) >= 0 {
		c.Close()
		return 0, io.EOF
	}
	return count, err
}

func TestARetryAfterALostReplyGetsTheSameGrant(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, s *server, client *redis.Client) {
		var lose atomic.Int32
		unlucky := s.connect(t, func(options *redis.Options) {
			options.MaxRetries = -1
			options.Dialer = func(context.Context, string, string) (net.Conn, error) {
				conn, err := net.Dial("unix", s.socket)
				return losesReplies{conn, &lose}, err
			}
		})
		unlucky.Ping(ctx)
		lose.Store(1)
		lock := take(t, ctx, unlucky, latchkeylock.Options{})
		info := must(client.Info(ctx, "locks").Result())(t)
		expect(t, lose.Load() < 1, true)
		expect(t, must(client.HGet(ctx, "lock", ":fence").Int64())(t), lock.Fence)
		// One grant was made, and found again.
		if !strings.Contains(info, "lock_grants_total:1") {
			t.Fatal(info)
		}
		// A release whose reply is lost has been done all the same.
		lose.Store(1)
		expect(t, lock.Release(ctx), latchkeylock.ErrLost)
		expect(t, client.Exists(ctx, "lock").Val(), 0)
	})
}

func TestAClientThatHasLostALockGoesOn(t *testing.T) {
	// By RESP3 it is told by a message that it did not ask for.
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		for range 3 {
			lock := take(t, ctx, client, latchkeylock.Options{})
			client.Del(ctx, "lock")
			for number := range 5 {
				client.Set(ctx, "k", number, 0)
				expect(t, must(client.Get(ctx, "k").Int())(t), number)
			}
			expect(t, lock.Release(ctx), latchkeylock.ErrLost)
		}
	})
}

func TestRedsyncAndTheNativeLockExcludeEachOther(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		locks := redsync.New(goredis.NewPool(client))
		var inside gauge
		var order []bool
		total := 0
		sideBySide(t, 6, func(number int) error {
			isNative := number%2 == 0
			for range 40 {
				var release func() error
				if isNative {
					lock, err := latchkeylock.Acquire(ctx, client, "lock", latchkeylock.Options{})
					if err != nil {
						return err
					}
					release = func() error { return lock.Release(ctx) }
				} else {
					mutex := locks.NewMutex("lock", redsync.WithTries(100_000), redsync.WithExpiry(30*time.Second),
						redsync.WithRetryDelay(500*time.Microsecond))
					if err := mutex.LockContext(ctx); err != nil {
						return err
					}
					release = func() error {
						_, err := mutex.UnlockContext(ctx)
						return err
					}
				}
				inside.enter()
				// Read and write apart: a second owner would make an addition disappear.
				seen := total
				order = append(order, isNative)
				runtime.Gosched()
				total = seen + 1
				inside.leave()
				if err := release(); err != nil {
					return err
				}
				// Whoever polls gets a lock only while nobody is queued.
				time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
			}
			return nil
		})
		expect(t, []int{total, inside.entered, inside.most}, []int{240, 240, 1})
		expect(t, client.Exists(ctx, "lock").Val(), 0)
		turns := 0
		for at := 1; at < len(order); at++ {
			if order[at] != order[at-1] {
				turns++
			}
		}
		if turns <= 2 {
			t.Fatal("they took few turns:", turns)
		}
	})
}
