// Package clients runs programs written with go-redis against the built server.
package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// within bounds every test: what hangs fails.
const within = 60 * time.Second

// server is a process of the built binary that listens on a Unix socket in a folder of its own.
type server struct {
	socket  string
	process *exec.Cmd
	stop    func()
}

// startServer starts one and stops it at the test's end.
func startServer(t *testing.T) *server {
	t.Helper()
	// The test's own folder would make the socket's path too long.
	folder, err := os.MkdirTemp("", "latchkey")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "server.sock")
	process := exec.Command(os.Getenv("LATCHKEY"), "--port", "0", "--unixsocket", socket, "--save", "")
	process.Dir = folder
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		process.Process.Signal(os.Interrupt)
		process.Wait()
	})
	t.Cleanup(func() {
		stop()
		os.RemoveAll(folder)
	})
	s := &server{socket, process, stop}
	client := s.connect(t, nil)
	for deadline := time.Now().Add(20 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the server does not answer")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s
}

// connect gives a client of the server, closed at the test's end.
func (s *server) connect(t *testing.T, change func(*redis.Options)) *redis.Client {
	options := &redis.Options{Network: "unix", Addr: s.socket, PoolSize: 20, PoolTimeout: within}
	if change != nil {
		change(options)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// begin gives what most tests start with: a context that ends, a server, and a client of it.
func begin(t *testing.T) (context.Context, *server, *redis.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	s := startServer(t)
	return ctx, s, s.connect(t, nil)
}

// sideBySide runs work(0) ... work(count-1) in goroutines and fails with the first error.
func sideBySide(t *testing.T, count int, work func(number int) error) {
	t.Helper()
	errors := make(chan error, count)
	for number := range count {
		go func() { errors <- work(number) }()
	}
	for range count {
		if err := <-errors; err != nil {
			t.Fatal(err)
		}
	}
}

// gauge counts who is inside at once, and the most there ever were.
type gauge struct {
	lock                  sync.Mutex
	inside, most, entered int
}

func (g *gauge) enter() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.inside++
	g.entered++
	g.most = max(g.most, g.inside)
}

func (g *gauge) leave() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.inside--
}

// expect fails unless the two print alike: good enough for replies, and the difference is readable.
func expect(t *testing.T, got, wanted any) {
	t.Helper()
	if a, b := fmt.Sprintf("%v", got), fmt.Sprintf("%v", wanted); a != b {
		t.Fatalf("got %s, expected %s", a, b)
	}
}

// must gives the value of a call that may not fail.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within / 2); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}
