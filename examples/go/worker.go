package latchkeyworker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Worker takes jobs of a queue of a Latchkey server (docs/queues.md), one at a time, and renews the lease while Handle works; its
// context ends when the lease is lost. A job whose handler fails comes again after a pause, which doubles each time; after
// Attempts it is a dead letter. Name must differ for each thing that works at a time: it fences.
type Worker struct {
	Client             *redis.Client
	Queue, Group, Name string
	Lease, Pause       time.Duration
	Attempts           int
	Handle             func(ctx context.Context, fields map[string]string) error
}

// Run works until the context ends.
func (w *Worker) Run(ctx context.Context) error {
	err := w.Client.XGroupCreateMkStream(ctx, w.Queue, w.Group, "0").Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return err
	}
	defer w.Client.Do(context.Background(), "XGROUP", "DELCONSUMER", w.Queue, w.Group, w.Name, "RELEASE")
	for ctx.Err() == nil {
		if _, err := w.WorkOnce(ctx, time.Second); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			time.Sleep(w.Pause)
		}
	}
	return nil
}

// WorkOnce takes one job; false if there is none.
func (w *Worker) WorkOnce(ctx context.Context, block time.Duration) (bool, error) {
	reply, err := w.Client.Do(ctx, "XREADGROUP", "GROUP", w.Group, w.Name, "COUNT", 1, "BLOCK", block.Milliseconds(),
		"CLAIM", w.Lease.Milliseconds(), "DUE", w.Queue+":later", "UNIT", "MS", "MAXDELIVERIES", w.Attempts,
		"DEADLETTER", w.Queue+":dead", "STREAMS", w.Queue, ">").Result()
	if err == redis.Nil {
		return false, nil
	} else if err != nil {
		return false, err
	}
	var entries any // RESP3's map, or RESP2's pairs.
	if streams, ok := reply.(map[any]any); ok {
		entries = streams[w.Queue]
	} else {
		entries = reply.([]any)[0].([]any)[1]
	}
	entry := entries.([]any)[0].([]any)
	id, flat, deliveries := entry[0].(string), entry[1].([]any), entry[3].(int64)
	fields := map[string]string{}
	for at := 0; at+1 < len(flat); at += 2 {
		fields[flat[at].(string)] = flat[at+1].(string)
	}
	leased, lose := context.WithCancel(ctx)
	defer lose()
	go func() {
		for leased.Err() == nil {
			time.Sleep(w.Lease / 3)
			renewed, err := w.Client.Do(leased, "XCLAIM", w.Queue, w.Group, w.Name, 0, id, "JUSTID", "OWNER", w.Name).Slice()
			if err == nil && len(renewed) == 0 {
				lose()
			}
		}
	}()
	if w.Handle(leased, fields) == nil {
		return true, w.Client.Do(ctx, "XACKDEL", w.Queue, w.Group, "ACKED", "OWNER", w.Name, "IDS", 1, id).Err()
	}
	pause := w.Pause.Milliseconds() << min(deliveries, 20)
	return true, w.Client.Do(ctx, "XNACK", w.Queue, w.Group, "FAIL", "IDS", 1, id, "OWNER", w.Name, "DELAY", pause).Err()
}
