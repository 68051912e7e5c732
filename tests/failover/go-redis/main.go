// Writes numbered keys through go-redis's Sentinel support, one after the other: its standard output has each acknowledged number with
// its time (Unix, in microseconds), its standard error each error. It ends with its standard input.
//
//	go-redis SENTINEL_PORT ...
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable()
	var sentinels []string
	for _, port := range os.Args[1:] {
		sentinels = append(sentinels, "127.0.0.1:"+port)
	}
	// All else is default: DialTimeout, ReadTimeout and WriteTimeout 5 s, MaxRetries 3, MinRetryBackoff 10 ms, MaxRetryBackoff 1 s.
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: sentinels})
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	ctx := context.Background()
	for number := 0; ; {
		err := client.Set(ctx, fmt.Sprintf("go-redis:%d", number), number, 0).Err()
		now := time.Now().UnixMicro()
		pause := time.Millisecond
		if err == nil {
			fmt.Println(number, now)
			number++
		} else {
			fmt.Fprintln(os.Stderr, number, now, err)
			pause = 20 * time.Millisecond
		}
		select {
		case <-ended:
			return
		case <-time.After(pause):
		}
	}
}
