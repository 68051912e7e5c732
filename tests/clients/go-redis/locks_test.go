package clients

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	redsyncdriver "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var compareAndDelete = redis.NewScript(`
if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("DEL", KEYS[1])
end
return 0`)

func takeLock(ctx context.Context, client *redis.Client, token string) error {
	for {
		taken, err := client.SetNX(ctx, "lock", token, within).Result()
		if taken || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFiftyContendersOwnALockOneAtATime(t *testing.T) {
	ctx, _, client := begin(t)
	var inside gauge
	sideBySide(t, 50, func(number int) error {
		for round := range 4 {
			token := fmt.Sprintf("%d:%d", number, round)
			if err := takeLock(ctx, client, token); err != nil {
				return err
			}
			inside.enter()
			// Read and write apart: a second owner would make an addition disappear.
			total, err := client.Get(ctx, "total").Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			if err := client.Set(ctx, "total", total+1, 0).Err(); err != nil {
				return err
			}
			inside.leave()
			if deleted, err := compareAndDelete.Run(ctx, client, []string{"lock"}, token).Int(); err != nil || deleted != 1 {
				return fmt.Errorf("released %d, %v", deleted, err)
			}
		}
		return nil
	})
	expect(t, []int{inside.entered, inside.most}, []int{200, 1})
	expect(t, must(client.Get(ctx, "total").Int())(t), 200)
	expect(t, must(client.Exists(ctx, "lock").Result())(t), 0)
}

var errNotOwner = errors.New("not the owner")

// releaseWatched deletes the lock if it is the token's, by WATCH instead of a script.
func releaseWatched(ctx context.Context, client *redis.Client, token string, between func()) error {
	return client.Watch(ctx, func(tx *redis.Tx) error {
		owner, err := tx.Get(ctx, "lock").Result()
		if errors.Is(err, redis.Nil) || err == nil && owner != token {
			return errNotOwner
		}
		if err != nil {
			return err
		}
		between()
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Del(ctx, "lock")
			return nil
		})
		return err
	}, "lock")
}

func TestALockIsReleasedUnderWatch(t *testing.T) {
	ctx, s, client := begin(t)
	nothing := func() {}
	var inside gauge
	sideBySide(t, 20, func(number int) error {
		token := fmt.Sprint(number)
		if err := takeLock(ctx, client, token); err != nil {
			return err
		}
		inside.enter()
		inside.leave()
		return releaseWatched(ctx, client, token, nothing)
	})
	expect(t, []int{inside.entered, inside.most}, []int{20, 1})

	expect(t, releaseWatched(ctx, client, "mine", nothing), errNotOwner)
	client.Set(ctx, "lock", "mine", within)
	other := s.connect(t, nil)
	// The lease ends and another takes the lock between the look and the deletion.
	expect(t, releaseWatched(ctx, client, "mine", func() { other.Set(ctx, "lock", "another's", within) }), redis.TxFailedErr)
	expect(t, must(client.Get(ctx, "lock").Result())(t), "another's")
	// Expiry is a change as well.
	client.Set(ctx, "lock", "mine", 200*time.Millisecond) // Longer than a busy machine takes to look.
	expired := func() {
		for other.Exists(ctx, "lock").Val() == 1 {
		}
	}
	expect(t, releaseWatched(ctx, client, "mine", expired), redis.TxFailedErr)
}

// silent keeps the library from telling of servers that were stopped on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestRedlockHoldsWithTwoOfFiveServersStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	redis.SetLogger(silent{})
	var servers []*server
	var pools []redsyncdriver.Pool
	for range 5 {
		s := startServer(t)
		servers = append(servers, s)
		client := s.connect(t, func(options *redis.Options) {
			options.MaxRetries = -1
			options.DialerRetries = 1
		})
		pools = append(pools, goredis.NewPool(client))
	}
	locks := redsync.New(pools...)

	before := locks.NewMutex("redlock", redsync.WithTries(1))
	if err := before.LockContext(ctx); err != nil {
		t.Fatal(err)
	}
	servers[1].stop()
	servers[4].stop()
	// Three of five still know it, and nobody else gets it.
	if locks.NewMutex("redlock", redsync.WithTries(1)).LockContext(ctx) == nil {
		t.Fatal("a second owner")
	}
	extended, _ := before.ExtendContext(ctx)
	expect(t, extended, true)
	released, _ := before.UnlockContext(ctx)
	expect(t, released, true)

	var inside gauge
	sideBySide(t, 8, func(int) error {
		for range 2 {
			mutex := locks.NewMutex("redlock", redsync.WithTries(2000), redsync.WithExpiry(30*time.Second),
				redsync.WithRetryDelayFunc(func(tries int) time.Duration { return time.Duration(1+tries*7%11) * time.Millisecond }))
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			inside.enter()
			time.Sleep(time.Millisecond)
			inside.leave()
			if released, err := mutex.UnlockContext(ctx); !released {
				return fmt.Errorf("not released: %v", err)
			}
		}
		return nil
	})
	expect(t, []int{inside.entered, inside.most}, []int{16, 1})

	// With a third one gone there is no majority.
	servers[0].stop()
	if locks.NewMutex("redlock", redsync.WithTries(1)).LockContext(ctx) == nil {
		t.Fatal("an owner without a majority")
	}
}

// The clock is the caller's, so that the replies are certain.
var tokenBucket = redis.NewScript(`
local capacity, period, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call("HMGET", KEYS[1], "tokens", "at")
local tokens = tonumber(state[1]) or capacity
local refilled = math.floor((now - (tonumber(state[2]) or now)) / period)
tokens = math.min(capacity, tokens + refilled)
if tokens == 0 then
	return {0, 0}
end
redis.call("HSET", KEYS[1], "tokens", tokens - 1, "at", now)
redis.call("PEXPIRE", KEYS[1], capacity * period)
return {1, tokens - 1}`)

func TestRateLimitersByScript(t *testing.T) {
	ctx, _, client := begin(t)
	ask := func(now int) []int64 {
		return must(tokenBucket.Run(ctx, client, []string{"bucket"}, 3, 100, now).Int64Slice())(t)
	}
	for _, step := range []struct {
		now    int
		answer []int64
	}{{0, []int64{1, 2}}, {10, []int64{1, 1}}, {20, []int64{1, 0}}, {30, []int64{0, 0}}, {120, []int64{1, 0}}, {500, []int64{1, 2}}} {
		expect(t, ask(step.now), step.answer)
	}

	var allowed atomic.Int64
	sideBySide(t, 50, func(int) error {
		reply, err := tokenBucket.Run(ctx, client, []string{"shared"}, 20, 60_000, 0).Int64Slice()
		if err == nil {
			allowed.Add(reply[0])
		}
		return err
	})
	expect(t, allowed.Load(), 20)

	// The library's limiter reads the server's TIME; within the test nothing of an hour's rate comes back.
	allowed.Store(0)
	limiter := redis_rate.NewLimiter(client)
	sideBySide(t, 50, func(int) error {
		result, err := limiter.Allow(ctx, "library", redis_rate.Limit{Rate: 1, Burst: 10, Period: time.Hour})
		if err == nil {
			allowed.Add(int64(result.Allowed))
		}
		return err
	})
	expect(t, allowed.Load(), 10)
}
