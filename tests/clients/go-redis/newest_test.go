package clients

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What the client's newest methods send and make of the replies, in both protocols.
func TestTheNewestMethods(t *testing.T) {
	ctx, s, _ := begin(t)
	for _, protocol := range []int{2, 3} {
		client := s.connect(t, func(options *redis.Options) { options.Protocol = protocol })
		client.FlushAll(ctx)

		// Strings.
		client.Set(ctx, "k", "v", 0)
		digest := must(client.Digest(ctx, "k").Result())(t)
		expect(t, client.SetIFEQ(ctx, "k", "w", "other", 0).Err(), "redis: nil")
		expect(t, client.SetIFDEQ(ctx, "k", "w", digest, 0).Val(), "OK")
		expect(t, client.DelExArgs(ctx, "k", redis.DelExArgs{Mode: "IFNE", MatchValue: "w"}).Val(), 0)
		expect(t, client.DelExArgs(ctx, "k", redis.DelExArgs{Mode: "IFDNE", MatchDigest: digest}).Val(), 1)
		inAnHour := &redis.ExpirationOption{Mode: redis.EX, Value: 3600}
		expect(t, client.MSetEX(ctx, redis.MSetEXArgs{Expiration: inAnHour}, "a", 1, "b", 2).Val(), 1)
		expect(t, client.TTL(ctx, "b").Val() > time.Minute, true)
		bounded := redis.IncrEXIntArgs{By: 3, HasBy: true, UBound: 5, HasUBound: true, Expiration: inAnHour, ENX: true}
		expect(t, must(client.IncrEXInt(ctx, "n", bounded).Result())(t), "{3 3}")
		expect(t, must(client.IncrEXInt(ctx, "n", bounded).Result())(t), "{3 0}")
		bounded.Saturate = true
		expect(t, must(client.IncrEXInt(ctx, "n", bounded).Result())(t), "{5 2}")
		expect(t, must(client.IncrEXFloat(ctx, "n", redis.IncrEXFloatArgs{By: 0.5}).Result())(t), "{5.5 0.5}")

		// Lists and sets.
		client.RPush(ctx, "l", 1, 2, 3)
		two := redis.LMoveMArgs{Mode: redis.LMoveMExactly, Count: 2, Order: redis.LMoveMBulk}
		expect(t, must(client.LMoveM(ctx, "l", "m", "LEFT", "RIGHT", two).Result())(t), []string{"1", "2"})
		expect(t, client.LMoveM(ctx, "l", "m", "LEFT", "RIGHT", two).Err(), "redis: nil")
		expect(t, must(client.BLMoveM(ctx, "l", "m", "LEFT", "LEFT", time.Second, redis.LMoveMArgs{}).Result())(t), []string{"3"})
		client.SAdd(ctx, "s", "a", "b")
		client.SAdd(ctx, "t", "b", "c")
		expect(t, client.SUnionCard(ctx, &redis.SUnionCardOptions{Limit: 9}, "s", "t").Val(), 3)
		expect(t, client.SDiffCard(ctx, &redis.SDiffCardOptions{}, "s", "t").Val(), 1)

		// Sorted sets.
		client.ZAdd(ctx, "y", redis.Z{Score: 5, Member: "a"}, redis.Z{Score: 7, Member: "b"})
		client.ZAdd(ctx, "z", redis.Z{Score: 9, Member: "b"})
		counted := must(client.ZUnionWithScores(ctx, redis.ZStore{Keys: []string{"y", "z"}, Aggregate: "COUNT"}).Result())(t)
		expect(t, counted, "[{1 a} {2 b}]")
		expect(t, client.Do(ctx, "ZMOVE", "y", "z", "MIN").Val(), map[int]string{2: "[a 5]", 3: "[a 5]"}[protocol])
		expect(t, client.Do(ctx, "ZMOVEMEMBER", "y", "z", "b").Val(), 1)

		// Hashes.
		expect(t, must(client.HSetEXWithArgs(ctx, "h", &redis.HSetEXOptions{ExpirationType: redis.HSetEXExpirationEX, ExpirationVal: 100}, "f", "v", "g", "w").Result())(t), 1)
		expect(t, must(client.HGetEXWithArgs(ctx, "h", &redis.HGetEXOptions{ExpirationType: redis.HGetEXExpirationPERSIST}, "f").Result())(t), []string{"v"})
		expect(t, must(client.HGetDel(ctx, "h", "f", "g").Result())(t), []string{"v", "w"})

		// Streams.
		add := &redis.XAddArgs{Stream: "x", Values: []string{"f", "v"}, ProducerID: "p", IdempotentID: "1"}
		first := must(client.XAdd(ctx, add).Result())(t)
		expect(t, client.XAdd(ctx, add).Val(), first)
		add.IdempotentID, add.IdempotentAuto = "", true
		second := must(client.XAdd(ctx, add).Result())(t)
		expect(t, client.XAdd(ctx, add).Val(), second)
		expect(t, client.XCfgSet(ctx, &redis.XCfgSetArgs{Stream: "x", Duration: 10, MaxSize: 5}).Val(), "OK")
		client.XGroupCreate(ctx, "x", "g", "0")
		read := redis.XReadGroupArgs{Group: "g", Consumer: "dead", Streams: []string{"x", ">"}, MaxCount: 1, Block: -1}
		expect(t, len(must(client.XReadGroup(ctx, &read).Result())(t)[0].Messages), 1)
		nack := &redis.XNackArgs{Stream: "x", Group: "g", Mode: redis.XNackModeFail, IDs: []string{first}}
		expect(t, must(client.XNack(ctx, nack).Result())(t), 1)
		read.Consumer, read.Claim = "heir", time.Minute
		taken := must(client.XReadGroup(ctx, &read).Result())(t)[0].Messages[0]
		expect(t, fmt.Sprint(taken.ID, " ", taken.DeliveredCount), first+" 1")
		expect(t, must(client.XAckDel(ctx, "x", "g", "DELREF", first, "7-7").Result())(t), "[1 -1]")
		expect(t, must(client.XDelEx(ctx, "x", "ACKED", second).Result())(t), "[2]")
		expect(t, must(client.XTrimMaxLenMode(ctx, "x", 0, "KEEPREF").Result())(t), 1)

		// Hot keys.
		metrics := []redis.HotKeysMetric{redis.HotKeysMetricCPU}
		expect(t, client.HotKeysStart(ctx, &redis.HotKeysStartArgs{Metrics: metrics}).Err(), nil)
		client.Incr(ctx, "hot")
		expect(t, client.HotKeysStop(ctx).Err(), nil)
		expect(t, must(client.HotKeysGet(ctx).Result())(t).ByCPUTime[0].Key, "hot")
		expect(t, client.HotKeysReset(ctx).Err(), nil)

		// Imports of hashes belong to a connection.
		one := client.Conn()
		expect(t, one.HImportPrepare(ctx, "user", "name", "age").Err(), nil)
		expect(t, one.HImportSet(ctx, "user:1", "user", "ann", 30).Err(), nil)
		expect(t, client.HGetAll(ctx, "user:1").Val(), map[string]string{"name": "ann", "age": "30"})
		expect(t, one.HImportDiscardAll(ctx).Val(), 1)
		one.Close()
	}
}
