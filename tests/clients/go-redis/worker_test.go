package clients

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"latchkey.test/worker"
)

func TestAJobThatFailsComesAgainAndEndsAsADeadLetter(t *testing.T) {
	beginLocks(t, func(t *testing.T, ctx context.Context, s *server, client *redis.Client) {
		tries := 0
		worker := &latchkeyworker.Worker{
			Client: client, Queue: "{jobs}", Group: "workers", Name: "w1", Lease: 30 * time.Second, Pause: 10 * time.Millisecond,
			Attempts: 3,
			Handle: func(_ context.Context, fields map[string]string) error {
				tries++
				if fields["data"] == "bad" {
					return errors.New("bad")
				}
				return nil
			},
		}
		expect(t, client.XGroupCreateMkStream(ctx, "{jobs}", "workers", "0").Err(), nil)
		client.XAdd(ctx, &redis.XAddArgs{Stream: "{jobs}", Values: []string{"data", "bad"}})
		later := float64(time.Now().Add(50 * time.Millisecond).UnixMilli())
		client.ZAdd(ctx, "{jobs}:later", redis.Z{Score: later, Member: "good"})
		for {
			worked, err := worker.WorkOnce(ctx, 500*time.Millisecond)
			expect(t, err, nil)
			if !worked {
				break
			}
		}
		expect(t, tries, 4)
		expect(t, client.XLen(ctx, "{jobs}").Val(), 0)
		letters := client.XRange(ctx, "{jobs}:dead", "-", "+").Val()
		expect(t, len(letters), 1)
		expect(t, fmt.Sprint(letters[0].Values[":reason"]), "deliveries")
	})
}
