// Runs jobs by asynq: `asynq PORT JOBS CONCURRENCY`. Every tenth job fails once.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	jobs, _ := strconv.Atoi(os.Args[2])
	concurrency, _ := strconv.Atoi(os.Args[3])
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[1]}
	client := asynq.NewClient(redis)
	var adding sync.WaitGroup
	for part := range concurrency {
		adding.Add(1)
		go func() {
			defer adding.Done()
			for number := part; number < jobs; number += concurrency {
				task := asynq.NewTask("work", []byte(strconv.Itoa(number)), asynq.MaxRetry(5))
				if _, err := client.Enqueue(task); err != nil {
					panic(err)
				}
			}
		}()
	}
	adding.Wait()
	var done atomic.Int64
	finished := make(chan struct{})
	handler := func(ctx context.Context, task *asynq.Task) error {
		number, _ := strconv.Atoi(string(task.Payload()))
		if tries, _ := asynq.GetRetryCount(ctx); tries == 0 && number%10 == 0 {
			return errors.New("once")
		}
		if done.Add(1) == int64(jobs) {
			close(finished)
		}
		return nil
	}
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              concurrency,
		LogLevel:                 asynq.FatalLevel,
		DelayedTaskCheckInterval: time.Second,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	if err := server.Start(asynq.HandlerFunc(handler)); err != nil {
		panic(err)
	}
	<-finished
	server.Shutdown()
	fmt.Println(done.Load())
}
