// The table of cases by latchkey-locks for Go: each case over each kind of client.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"latchkey.test/locks"
)

type step struct {
	Do, As, Of, Key, Value, Holder, Above, Same, Owner, Error, Besides string
	Keys, Words                                                        []string
	Lease, Wait, Grace, Keep, MS                                       *int
	Limit, Count, Period, Burst, Quantity, Free, Item, Remaining       *int
	Least, Below                                                       *int
	Is, Allowed, Shared, Until, Raise, HasHolder                       bool
	Reply                                                              any
	Step                                                               *step
	Inside                                                             []step

	ctx context.Context // of one that has begun
}

func (s step) context() context.Context {
	if s.ctx == nil {
		return ctx
	}
	return s.ctx
}

// UnmarshalJSON: `above` names a grant, or is a number; a holder that is null is none.
func (s *step) UnmarshalJSON(data []byte) error {
	type plain step
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	if above, has := fields["above"]; has && above[0] != '"' {
		fields["least"] = above
		delete(fields, "above")
	}
	if _, has := fields["holder"]; has {
		fields["hasHolder"] = json.RawMessage("true")
	}
	data, _ = json.Marshal(fields)
	return json.Unmarshal(data, (*plain)(s))
}

type testCase struct {
	Name  string
	Over  []string
	Steps []step
}

// held is what the steps use of a Lock and of Permits.
type held interface {
	Renew(context.Context, time.Duration) error
	ReleaseKeeping(context.Context, time.Duration) error
	Attach(context.Context) (bool, error)
	Watch(context.Context) context.Context
	Left() time.Duration
}

type running struct {
	tag     string
	client  redis.UniversalClient
	locks   *latchkeylocks.Locks
	grants  map[string]held
	begun   map[string]chan error
	cancels map[string]context.CancelFunc
	watched map[string]context.Context
}

var (
	errOwn = errors.New("own")
	ctx    = context.Background()
)

func duration(ms *int) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms) * time.Millisecond
}

func number(given *int, otherwise int) int {
	if given == nil {
		return otherwise
	}
	return *given
}

func (r *running) options(s step) latchkeylocks.Options {
	options := latchkeylocks.Options{Lease: duration(s.Lease), Wait: duration(s.Wait), Grace: duration(s.Grace), Shared: s.Shared,
		Count: number(s.Count, 0)}
	if s.Wait != nil && *s.Wait == 0 {
		options.Wait = latchkeylocks.NoWait
	}
	if s.Owner != "" {
		options.Owner = r.grants[s.Owner].(*latchkeylocks.Lock).Owner
	}
	return options
}

func (r *running) keys(s step) (keys []string) {
	for _, key := range s.Keys {
		keys = append(keys, r.tag+key)
	}
	return keys
}

func fence(of held) int64 {
	if lock, is := of.(*latchkeylocks.Lock); is {
		return lock.Fence
	}
	return of.(*latchkeylocks.Permits).Fence
}

func wrong(s step, told ...any) error {
	text, _ := json.Marshal(s.Words)
	return fmt.Errorf("wrong: %s as=%s of=%s %s: %v", s.Do, s.As, s.Of, text, told)
}

func (r *running) run(s step) error {
	got, err := r.do(s)
	var refused *latchkeylocks.NotGrantedError
	is := ""
	switch {
	case err == nil:
	case strings.HasPrefix(err.Error(), "wrong:"):
		return err
	case errors.Is(err, errOwn):
		is = "own"
	case errors.As(err, &refused):
		is = "not granted"
	case err == context.Canceled: // It alone.
		is = "cancelled"
	case errors.Is(err, latchkeylocks.ErrLost):
		is = "lost"
	default:
		is = "server"
	}
	if is != s.Error {
		return wrong(s, is, err)
	}
	if s.Besides != "" && !errors.Is(err, latchkeylocks.ErrLost) {
		return wrong(s, err)
	}
	if s.HasHolder {
		holder := ""
		if s.Holder != "" {
			holder = r.grants[s.Holder].(*latchkeylocks.Lock).Owner
		}
		if refused.Holder != holder {
			return wrong(s, refused.Holder)
		}
	}
	if got == nil {
		return nil
	}
	if s.Above != "" && fence(got) <= fence(r.grants[s.Above]) || s.Same != "" && fence(got) != fence(r.grants[s.Same]) {
		return wrong(s, fence(got))
	}
	if permits, is := got.(*latchkeylocks.Permits); is && s.Free != nil {
		if permits.Free != int64(*s.Free) || len(permits.Permits) != number(s.Count, 1) {
			return wrong(s, permits)
		}
	}
	r.grants[s.As] = got
	return nil
}

func (r *running) do(s step) (held, error) {
	switch s.Do {
	case "acquire":
		lock, err := r.locks.AcquireAll(s.context(), r.keys(s), r.options(s))
		if err != nil {
			return nil, err
		}
		return lock, nil
	case "permits":
		permits, err := r.locks.Permits(s.context(), r.tag+s.Key, *s.Limit, r.options(s))
		if err != nil {
			return nil, err
		}
		return permits, nil
	case "begin":
		outcome := make(chan error, 1)
		r.begun[s.Step.As] = outcome
		begun := *s.Step
		begun.ctx, r.cancels[begun.As] = context.WithCancel(ctx)
		go func() { outcome <- r.run(begun) }()
	case "cancel":
		r.cancels[s.Of]()
	case "end":
		select {
		case err := <-r.begun[s.Of]:
			return nil, err
		case <-time.After(20 * time.Second):
			return nil, wrong(s, "it waits")
		}
	case "renew":
		return nil, r.grants[s.Of].Renew(ctx, duration(s.Lease))
	case "release":
		return nil, r.grants[s.Of].ReleaseKeeping(ctx, duration(s.Keep))
	case "held":
		is, err := r.grants[s.Of].(*latchkeylocks.Lock).Held(ctx)
		if err == nil && is != s.Is {
			err = wrong(s, is)
		}
		return nil, err
	case "attach":
		is, err := r.grants[s.Of].Attach(ctx)
		if err == nil && is != s.Is {
			err = wrong(s, is)
		}
		return nil, err
	case "left":
		left := r.grants[s.Of].Left()
		if left <= time.Duration(number(s.Least, -1))*time.Millisecond || left >= time.Duration(number(s.Below, 1e9))*time.Millisecond {
			return nil, wrong(s, left)
		}
	case "guarded":
		_, err := r.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			r.grants[s.Of].(*latchkeylocks.Lock).Guard(ctx, pipe)
			pipe.Set(ctx, r.tag+s.Key, s.Value, 0)
			return nil
		})
		if (err == nil) != s.Is || err != nil && !errors.Is(err, redis.TxFailedErr) && !errors.Is(err, redis.Nil) {
			return nil, wrong(s, err)
		}
	case "watch":
		r.watched[s.Of] = r.grants[s.Of].Watch(ctx)
	case "told":
		if s.Is {
			select {
			case <-r.watched[s.Of].Done():
			case <-time.After(20 * time.Second):
			}
		}
		if is := errors.Is(context.Cause(r.watched[s.Of]), latchkeylocks.ErrLost); is != s.Is {
			return nil, wrong(s, is)
		}
	case "scope":
		return nil, r.locks.With(ctx, r.keys(s)[0], r.options(s), func(_ context.Context, lock *latchkeylocks.Lock) error {
			r.grants[s.As] = lock
			for _, one := range s.Inside {
				if err := r.run(one); err != nil {
					return err
				}
			}
			if s.Raise {
				return errOwn
			}
			return nil
		})
	case "throttle":
		rate := latchkeylocks.Rate{Count: *s.Count, Period: time.Duration(*s.Period) * time.Second, Burst: *s.Burst, Quantity: number(s.Quantity, 1)}
		if rate.Quantity == 0 {
			rate.Quantity = latchkeylocks.Look
		}
		limit, err := r.locks.Throttle(ctx, r.tag+s.Key, rate)
		if err == nil && (limit.Allowed != s.Allowed || limit.Remaining != int64(*s.Remaining)) {
			err = wrong(s, limit)
		}
		return nil, err
	case "kill":
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT")})
		defer client.Close()
		return nil, client.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err()
	case "pause":
		time.Sleep(duration(s.MS))
	case "command":
		return nil, r.command(s)
	default:
		return nil, wrong(s, "unknown")
	}
	return nil, nil
}

func (r *running) command(s step) error {
	var words []any
	for _, word := range s.Words {
		words = append(words, strings.Replace(word, "$", r.tag, 1))
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		reply, err := r.client.Do(ctx, words...).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if s.Item != nil {
			reply = reply.([]any)[*s.Item]
		}
		expected := s.Reply
		if s.Count != nil {
			reply, expected = len(reply.([]any)), *s.Count
		}
		isRight := fmt.Sprint(reply) == fmt.Sprint(expected)
		if s.Least != nil {
			isRight = reply.(int64) > int64(*s.Least)
		}
		if isRight {
			return nil
		}
		if !s.Until || time.Now().After(end) {
			return wrong(s, reply)
		}
	}
}

func clientOf(over string, protocol int) redis.UniversalClient {
	address := "127.0.0.1:" + os.Getenv("PORT")
	switch over {
	case "cluster":
		first := "127.0.0.1:" + strings.Fields(os.Getenv("CLUSTER"))[0]
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{first}, Protocol: protocol})
	case "sentinel":
		sentinel := "127.0.0.1:" + os.Getenv("SENTINEL")
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "primary", SentinelAddrs: []string{sentinel}, Protocol: protocol})
	case "relay":
		address = "127.0.0.1:" + os.Getenv("RELAY")
	case "impatient":
		return redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ReadTimeout: 200 * time.Millisecond})
	}
	return redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
}

// quiet drops what go-redis tells of connections that break here on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(quiet{})
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		panic(err)
	}
	passed, failed, skipped := 0, 0, 0
	for at, one := range cases {
		if one.Over == nil {
			one.Over = []string{"server", "cluster", "sentinel"}
		}
		for _, over := range one.Over {
			for _, protocol := range []int{2, 3} {
				if over == "sentinel" && os.Getenv("SENTINEL") == "" {
					skipped++
					continue
				}
				client := clientOf(over, protocol)
				tag := fmt.Sprintf("{%d %s %d %d}", at, over, protocol, time.Now().UnixNano())
				r := running{tag, client, latchkeylocks.New(client), map[string]held{}, map[string]chan error{}, map[string]context.CancelFunc{}, map[string]context.Context{}}
				var err error
				for _, s := range one.Steps {
					if err = r.run(s); err != nil {
						break
					}
				}
				if err == nil {
					passed++
				} else {
					failed++
					fmt.Printf("FAILED %s, over %s, RESP%d: %v\n", one.Name, over, protocol, err)
				}
				client.Close()
			}
		}
	}
	fmt.Printf("go: %d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		os.Exit(1)
	}
}
