// Package suites runs the test suites that Go modules bring with them against the built server: redigo, a client, which starts
// servers itself; the Redis side of asynq, a queue whose work is scripts; and go-redis's tests of clusters.
package suites

import (
	"math/rand"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	// So that both are in go.mod with what their tests need.
	_ "github.com/gomodule/redigo/redis"
	_ "github.com/hibiken/asynq"
)

// within bounds a suite: what hangs fails.
const within = "120s"

// freePort gives one below those that the system gives to clients and to listeners on any port.
func freePort() string {
	for {
		port := strconv.Itoa(12_000 + rand.Intn(10_000))
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			listener.Close()
			return port
		}
	}
}

// startServer starts one and stops it at the test's end; its address.
func startServer(t *testing.T) string {
	port := freePort()
	process := exec.Command(os.Getenv("LATCHKEY"), "--port", port, "--bind", "127.0.0.1", "--save", "")
	process.Dir = t.TempDir()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Signal(os.Interrupt)
		process.Wait()
	})
	address := "127.0.0.1:" + port
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not answer")
		}
	}
}

// run runs the tests of a package with flags of theirs.
func run(t *testing.T, name string, flags ...string) {
	arguments := append([]string{"test", "-count=1", "-timeout", within, name, "-args"}, flags...)
	output, err := exec.Command("go", arguments...).CombinedOutput()
	t.Logf("%s", output)
	if err != nil {
		t.Fatal(err)
	}
}

func TestRedigo(t *testing.T) {
	run(t, "github.com/gomodule/redigo/redis", "-redis-server", os.Getenv("LATCHKEY"), "-redis-port", freePort())
}

func TestAsynqOnRedis(t *testing.T) {
	run(t, "github.com/hibiken/asynq/internal/rdb", "-redis_addr", startServer(t))
}
