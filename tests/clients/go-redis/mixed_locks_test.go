package clients

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"latchkey.test/locks"
)

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

func TestAClientThatHasLostALockGoesOn(t *testing.T) {
	// By RESP3 it is told by a message that it did not ask for.
	beginLocks(t, func(t *testing.T, ctx context.Context, _ *server, client *redis.Client) {
		for range 3 {
			lock := must(latchkeylocks.New(client).Acquire(ctx, "lock", latchkeylocks.Options{}))(t)
			client.Del(ctx, "lock")
			for number := range 5 {
				client.Set(ctx, "k", number, 0)
				expect(t, must(client.Get(ctx, "k").Int())(t), number)
			}
			expect(t, lock.Release(ctx), latchkeylocks.ErrLost)
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
					lock, err := latchkeylocks.New(client).Acquire(ctx, "lock", latchkeylocks.Options{})
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
