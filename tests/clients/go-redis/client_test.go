package clients

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestPipelinesKeepTheirOrderAndTheirErrors(t *testing.T) {
	ctx, s, _ := begin(t)
	for _, protocol := range []int{2, 3} {
		client := s.connect(t, func(options *redis.Options) { options.Protocol = protocol })
		client.FlushAll(ctx)
		sideBySide(t, 8, func(number int) error {
			replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for n := range 500 {
					pipe.Set(ctx, fmt.Sprintf("k:%d:%d", number, n), n, 0)
					pipe.Get(ctx, fmt.Sprintf("k:%d:%d", number, n))
				}
				return nil
			})
			if err != nil {
				return err
			}
			for n := range 500 {
				if got := replies[2*n+1].(*redis.StringCmd).Val(); got != fmt.Sprint(n) {
					return fmt.Errorf("%d got %s", n, got)
				}
			}
			return nil
		})
		expect(t, client.DBSize(ctx).Val(), 4000)

		replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.RPush(ctx, "list", "a", "b")
			pipe.Incr(ctx, "list")
			pipe.LRange(ctx, "list", 0, -1)
			return nil
		})
		expect(t, err, "WRONGTYPE Operation against a key holding the wrong kind of value")
		expect(t, replies[2].(*redis.StringSliceCmd).Val(), []string{"a", "b"})

		replies, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, "n")
			pipe.HSet(ctx, "h", "f", "v")
			pipe.HGetAll(ctx, "h")
			pipe.ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "m"})
			pipe.ZRangeWithScores(ctx, "z", 0, -1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, replies[2].(*redis.MapStringStringCmd).Val(), map[string]string{"f": "v"})
		expect(t, replies[4].(*redis.ZSliceCmd).Val(), []redis.Z{{Score: 1.5, Member: "m"}})
	}
}

func TestATransactionIsRetriedWhereAnotherCameBetween(t *testing.T) {
	ctx, _, client := begin(t)
	sideBySide(t, 10, func(int) error {
		for added := 0; added < 10; {
			err := client.Watch(ctx, func(tx *redis.Tx) error {
				n, err := tx.Get(ctx, "n").Int()
				if err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
				_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
					pipe.Set(ctx, "n", n+1, 0)
					return nil
				})
				return err
			}, "n")
			if err == nil {
				added++
			} else if !errors.Is(err, redis.TxFailedErr) {
				return err
			}
		}
		return nil
	})
	expect(t, client.Get(ctx, "n").Val(), 100)
}

func TestScriptsFallBackToTheirText(t *testing.T) {
	ctx, _, client := begin(t)
	script := redis.NewScript(`return {KEYS[1], ARGV[1], redis.call("PING").ok, 3.7, false}`)
	client.ScriptFlush(ctx)
	expect(t, client.EvalSha(ctx, script.Hash(), []string{"k"}, "v").Err(), "NOSCRIPT No matching script. Please use EVAL.")
	for range 2 {
		expect(t, must(script.Run(ctx, client, []string{"k"}, "v").Result())(t), "[k v PONG 3 <nil>]")
	}
	expect(t, must(script.Exists(ctx, client).Result())(t), "[true]")
	expect(t, must(script.RunRO(ctx, client, []string{"k"}, "v").Result())(t), "[k v PONG 3 <nil>]")
	err := client.EvalRO(ctx, `return redis.call("SET", KEYS[1], 1)`, []string{"k"}).Err()
	if err == nil || !strings.HasPrefix(err.Error(), "ERR Write commands are not allowed from read-only scripts.") {
		t.Fatal(err)
	}
}

func TestSubscribersHearChannelsAndPatterns(t *testing.T) {
	ctx, s, publisher := begin(t)
	for _, protocol := range []int{2, 3} {
		client := s.connect(t, func(options *redis.Options) { options.Protocol = protocol })
		subscriber := client.Subscribe(ctx, "news")
		expect(t, must(subscriber.Receive(ctx))(t), "subscribe: news")
		if err := subscriber.PSubscribe(ctx, "n*"); err != nil {
			t.Fatal(err)
		}
		confirmed := must(subscriber.Receive(ctx))(t).(*redis.Subscription)
		expect(t, *confirmed, "{psubscribe n* 2}")
		expect(t, publisher.Publish(ctx, "news", "hello").Val(), 2)
		expect(t, publisher.Publish(ctx, "night", "dark").Val(), 1)
		expect(t, publisher.Publish(ctx, "day", "light").Val(), 0)
		for _, wanted := range []redis.Message{
			{Channel: "news", Payload: "hello"},
			{Channel: "news", Pattern: "n*", Payload: "hello"},
			{Channel: "night", Pattern: "n*", Payload: "dark"},
		} {
			expect(t, *must(subscriber.Receive(ctx))(t).(*redis.Message), wanted)
		}
		if err := subscriber.Ping(ctx, "still there"); err != nil {
			t.Fatal(err)
		}
		expect(t, must(subscriber.Receive(ctx))(t), "Pong<still there>")
		expect(t, publisher.PubSubNumSub(ctx, "news").Val(), map[string]int64{"news": 1})
		expect(t, publisher.PubSubNumPat(ctx).Val(), 1)
		subscriber.Unsubscribe(ctx)
		expect(t, *must(subscriber.Receive(ctx))(t).(*redis.Subscription), "{unsubscribe news 1}")
		subscriber.Close()
		for publisher.PubSubNumPat(ctx).Val() != 0 {
			time.Sleep(time.Millisecond)
		}
	}

	// Through the library's channel, with many publishers: each publisher's messages arrive in its order.
	subscriber := publisher.Subscribe(ctx, "busy")
	defer subscriber.Close()
	must(subscriber.Receive(ctx))(t)
	messages := subscriber.Channel(redis.WithChannelSize(1000))
	sideBySide(t, 4, func(number int) error {
		for n := range 100 {
			if err := publisher.Publish(ctx, "busy", fmt.Sprintf("%d:%03d", number, n)).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	heard := map[byte][]string{}
	for range 400 {
		message := <-messages
		heard[message.Payload[0]] = append(heard[message.Payload[0]], message.Payload)
	}
	for _, one := range heard {
		expect(t, len(one), 100)
		expect(t, slices.IsSorted(one), true)
	}
}

func TestAGroupSharesAStream(t *testing.T) {
	ctx, _, client := begin(t)
	if err := client.XGroupCreateMkStream(ctx, "events", "workers", "$").Err(); err != nil {
		t.Fatal(err)
	}
	expect(t, client.XGroupCreate(ctx, "events", "workers", "$").Err(), "BUSYGROUP Consumer Group name already exists")

	var lock sync.Mutex
	seen := map[string]int{}
	done := make(chan error, 1)
	go func() {
		for n := range 200 {
			if err := client.XAdd(ctx, &redis.XAddArgs{Stream: "events", Values: []any{"n", n}}).Err(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	sideBySide(t, 4, func(number int) error {
		for {
			streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: "workers", Consumer: fmt.Sprint("c", number), Streams: []string{"events", ">"}, Count: 7, Block: 20 * time.Millisecond,
			}).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			lock.Lock()
			for _, stream := range streams {
				for _, message := range stream.Messages {
					seen[message.Values["n"].(string)]++
					client.XAck(ctx, "events", "workers", message.ID)
				}
			}
			complete := len(seen) == 200
			lock.Unlock()
			if complete {
				return nil
			}
		}
	})
	expect(t, <-done, nil)
	for n, times := range seen {
		expect(t, fmt.Sprint(n, " ", times), fmt.Sprint(n, " ", 1))
	}
	groups := must(client.XInfoGroups(ctx, "events").Result())(t)
	expect(t, []any{groups[0].Name, groups[0].Consumers, groups[0].Pending, groups[0].EntriesRead, groups[0].Lag}, "[workers 4 0 200 0]")

	// One dies with entries in hand; another claims them.
	client.XTrimMaxLen(ctx, "events", 0)
	for n := range 3 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: "events", ID: fmt.Sprintf("9999999999999-%d", n), Values: map[string]any{"n": n}})
	}
	read := must(client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "dead", Streams: []string{"events", ">"}, Block: -1}).Result())(t)
	expect(t, len(read[0].Messages), 3)
	pending := must(client.XPending(ctx, "events", "workers").Result())(t)
	expect(t, *pending, "{3 9999999999999-0 9999999999999-2 map[dead:3]}")
	claimed, next, err := client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: "events", Group: "workers", Consumer: "heir", Start: "0", Count: 2,
	}).Result()
	expect(t, []any{len(claimed), next, err}, "[2 9999999999999-2 <nil>]")
	detail := must(client.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: "events", Group: "workers", Start: "-", End: "+", Count: 10, Consumer: "heir",
	}).Result())(t)
	expect(t, []any{len(detail), detail[0].ID, detail[0].RetryCount}, "[2 9999999999999-0 2]")
	expect(t, client.XAck(ctx, "events", "workers", "9999999999999-0", "9999999999999-1", "9999999999999-2").Val(), 3)
	expect(t, client.XPending(ctx, "events", "workers").Val().Count, 0)
}

func TestBlockedClientsAreServedAndGivenUp(t *testing.T) {
	ctx, _, client := begin(t)
	var lock sync.Mutex
	var taken []string
	done := make(chan error, 1)
	go func() {
		for n := range 100 {
			client.LPush(ctx, "queue", n)
		}
		done <- client.LPush(ctx, "queue", "stop", "stop", "stop").Err()
	}()
	sideBySide(t, 3, func(int) error {
		for {
			reply, err := client.BRPop(ctx, 20*time.Second, "queue").Result()
			if err != nil || reply[1] == "stop" {
				return err
			}
			lock.Lock()
			taken = append(taken, reply[1])
			lock.Unlock()
		}
	})
	expect(t, <-done, nil)
	slices.Sort(taken)
	expect(t, len(slices.Compact(taken)), 100)
	expect(t, client.BLPop(ctx, time.Second, "nothing").Err(), redis.Nil)
}
