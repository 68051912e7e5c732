package clients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// nodes are six servers of a cluster (see ../nodes.py): the ports of the primaries, then of a replica of each.
type nodes struct {
	ports []string
	input io.Writer
	lines *bufio.Scanner
}

// startNodes starts them and stops them at the test's end.
func startNodes(t *testing.T) *nodes {
	t.Helper()
	process := exec.Command("python3", os.Getenv("CLUSTER_NODES"))
	process.Stderr = os.Stderr
	input := must(process.StdinPipe())(t)
	output := must(process.StdoutPipe())(t)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		process.Wait()
	})
	lines := bufio.NewScanner(output)
	lines.Scan()
	words := strings.Fields(lines.Text())
	if len(words) != 7 {
		t.Fatal("the nodes do not start")
	}
	return &nodes{words[1:], input, lines}
}

// tell kills or starts a node.
func (n *nodes) tell(t *testing.T, verb, port string) {
	t.Helper()
	fmt.Fprintln(n.input, verb, port)
	n.lines.Scan()
	expect(t, n.lines.Text(), "ok")
}

func (n *nodes) node(t *testing.T, port string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	t.Cleanup(func() { client.Close() })
	return client
}

func (n *nodes) connect(t *testing.T, change func(*redis.ClusterOptions)) *redis.ClusterClient {
	// A node that refuses connections is not asked again and again.
	options := &redis.ClusterOptions{DialerRetries: 1, ClusterStateReloadInterval: time.Second}
	for _, port := range n.ports {
		options.Addrs = append(options.Addrs, "127.0.0.1:"+port)
	}
	if change != nil {
		change(options)
	}
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// owner gives the port of a slot's primary, as told by a node.
func (n *nodes) owner(t *testing.T, told string, slot int) string {
	for _, each := range must(n.node(t, told).ClusterSlots(context.Background()).Result())(t) {
		if each.Start <= slot && slot <= each.End {
			return strings.TrimPrefix(each.Nodes[0].Addr, "127.0.0.1:")
		}
	}
	return ""
}

// agreed waits until all nodes name this owner.
func (n *nodes) agreed(t *testing.T, slot int, owner string) {
	t.Helper()
	until(t, func() bool {
		return !slices.ContainsFunc(n.ports, func(port string) bool { return n.owner(t, port, slot) != owner })
	})
}

// load counts up keys until it is ended; counts is what was acknowledged. A patient one tries again when there is an error.
type load struct {
	lock   sync.Mutex
	counts map[string]int64
	err    error
	cancel context.CancelFunc
	ended  chan struct{}
}

func startLoad(t *testing.T, client *redis.ClusterClient, patient bool, keys []string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{counts: map[string]int64{}, cancel: cancel, ended: make(chan struct{})}
	for _, key := range keys {
		l.counts[key] = 0
	}
	go func() {
		defer close(l.ended)
		for ctx.Err() == nil {
			for _, key := range keys {
				count, err := client.Incr(context.Background(), key).Result()
				for ; err != nil && patient && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					count, err = client.Incr(context.Background(), key).Result()
				}
				l.lock.Lock()
				l.counts[key] = count
				l.err = err
				l.lock.Unlock()
				if err != nil {
					return
				}
			}
		}
	}()
	t.Cleanup(cancel)
	l.rounds(t)
	return l
}

func (l *load) least() int64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return slices.Min(slices.Collect(maps.Values(l.counts)))
}

func (l *load) failed() error {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.err
}

// rounds waits until each key was counted up some times from now on.
func (l *load) rounds(t *testing.T) {
	t.Helper()
	wanted := l.least() + 3
	until(t, func() bool { return l.failed() != nil || l.least() >= wanted })
	if err := l.failed(); err != nil {
		t.Fatal(err)
	}
}

func (l *load) end(t *testing.T) map[string]int64 {
	t.Helper()
	l.rounds(t)
	l.cancel()
	<-l.ended
	return l.counts
}

func numbered(pattern string, count int) []string {
	names := make([]string, count)
	for number := range names {
		names[number] = fmt.Sprintf(pattern, number)
	}
	return names
}

func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	n := startNodes(t)
	client := n.connect(t, nil)
	isOurs := len(must(n.node(t, n.ports[0]).ConfigGet(ctx, "redis-version").Result())(t)) > 0
	run := func(name string, test func(t *testing.T)) {
		if !t.Run(name, test) {
			t.FailNow()
		}
		err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.FlushAll(ctx).Err() })
		if err != nil {
			t.Fatal(err)
		}
	}

	run("keys", func(t *testing.T) {
		keys := numbered("key:%d", 300)
		for _, key := range keys {
			expect(t, must(client.Set(ctx, key, key, 0).Result())(t), "OK")
		}
		expect(t, must(client.DBSize(ctx).Result())(t), 300)
		var lock sync.Mutex
		found := map[string]bool{}
		err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			scan := node.Scan(ctx, 0, "", 7).Iterator()
			for scan.Next(ctx) {
				lock.Lock()
				found[scan.Val()] = true
				lock.Unlock()
			}
			return scan.Err()
		})
		expect(t, err, nil)
		expect(t, len(found), 300)
		expect(t, client.MGet(ctx, "a", "b").Err(), "CROSSSLOT Keys in request don't hash to the same slot")
		expect(t, client.MSet(ctx, "{tag}a", 1, "{tag}b", 2).Err(), nil)
		expect(t, must(client.MGet(ctx, "{tag}a", "{tag}b").Result())(t), "[1 2]")
	})

	run("pipelines and transactions", func(t *testing.T) {
		replies := must(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for number, key := range numbered("key:%d", 300) {
				pipe.IncrBy(ctx, key, int64(number))
			}
			return nil
		}))(t)
		for number, reply := range replies {
			expect(t, reply.(*redis.IntCmd).Val(), number)
		}
		must(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, "{tag}a")
			pipe.Incr(ctx, "{tag}b")
			return nil
		}))(t)
		err := client.Watch(ctx, func(tx *redis.Tx) error {
			client.Incr(ctx, "{tag}a")
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Set(ctx, "{tag}b", 10, 0).Err() })
			return err
		}, "{tag}a")
		expect(t, err, redis.TxFailedErr)
		expect(t, must(client.MGet(ctx, "{tag}a", "{tag}b").Result())(t), "[2 1]")
	})

	run("scripts", func(t *testing.T) {
		script := redis.NewScript("return {KEYS[1], redis.call('incr', KEYS[1])}")
		code := "#!lua name=lib\nredis.register_function('up', function(keys) return redis.call('incr', keys[1]) end)"
		err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return node.FunctionLoadReplace(ctx, code).Err()
		})
		expect(t, err, nil)
		for _, key := range numbered("key:%d", 20) {
			expect(t, must(script.Run(ctx, client, []string{key}).Result())(t), fmt.Sprintf("[%s 1]", key))
			expect(t, must(client.FCall(ctx, "up", []string{key}).Result())(t), 2)
		}
	})

	run("messages", func(t *testing.T) {
		everywhere := client.Subscribe(ctx, "news")
		defer everywhere.Close()
		must(everywhere.Receive(ctx))(t)
		for _, port := range n.ports {
			n.node(t, port).Publish(ctx, "news", port)
		}
		heard := []string{}
		for range n.ports {
			heard = append(heard, must(everywhere.ReceiveMessage(ctx))(t).Payload)
		}
		slices.Sort(heard)
		expect(t, heard, slices.Sorted(slices.Values(n.ports)))
		for _, channel := range numbered("shard:%d", 4) {
			sharded := client.SSubscribe(ctx, channel)
			must(sharded.Receive(ctx))(t)
			expect(t, must(client.SPublish(ctx, channel, "hello").Result())(t), 1)
			expect(t, must(sharded.ReceiveMessage(ctx))(t).Payload, "hello")
			sharded.Close()
		}
	})

	run("replicas are read", func(t *testing.T) {
		reader := n.connect(t, func(options *redis.ClusterOptions) { options.ReadOnly, options.RouteRandomly = true, true })
		for _, key := range numbered("key:%d", 30) {
			client.Set(ctx, key, key, 0)
			for range 4 {
				until(t, func() bool { return reader.Get(ctx, key).Val() == key })
			}
		}
		err := n.node(t, n.ports[3]).Get(ctx, "key:1").Err()
		expect(t, strings.HasPrefix(err.Error(), "MOVED "), true)
	})

	run("locks", func(t *testing.T) {
		locks := redsync.New(goredis.NewPool(client))
		total := 0
		sideBySide(t, 4, func(int) error {
			for range 5 {
				mutex := locks.NewMutex("mutex", redsync.WithTries(1000), redsync.WithRetryDelay(5*time.Millisecond))
				if err := mutex.Lock(); err != nil {
					return err
				}
				total++
				if _, err := mutex.Unlock(); err != nil {
					return err
				}
			}
			return nil
		})
		expect(t, total, 20)
		if !isOurs {
			return
		}
		for _, key := range numbered("lock:%d", 20) {
			granted := must(client.Do(ctx, "LOCK.ACQUIRE", key, "me", "PX", 30000).Slice())(t)
			expect(t, must(client.Do(ctx, "LOCK.ACQUIRE", key, "you", "PX", 30000).Slice())(t)[0], 0)
			expect(t, must(client.Do(ctx, "LOCK.RENEW", 1, key, "me", "PX", 60000).Slice())(t)[0], granted[0])
			expect(t, must(client.Do(ctx, "LOCK.RELEASE", key, "me").Result())(t), 0)
		}
		must(client.Do(ctx, "LOCK.MACQUIRE", 2, "{pair}a", "{pair}b", "me", "PX", 30000).Slice())(t)
	})

	run("slots move under load", func(t *testing.T) {
		slot := int(must(client.ClusterKeySlot(ctx, "{moving}").Result())(t))
		source := n.owner(t, n.ports[0], slot)
		target := n.ports[0]
		if target == source {
			target = n.ports[1]
		}
		l := startLoad(t, n.connect(t, nil), false, numbered("{moving}%d", 20))
		id := func(port string) string { return must(n.node(t, port).Do(ctx, "CLUSTER", "MYID").Text())(t) }
		for _, way := range [][2]string{{source, target}, {target, source}} {
			here, there := n.node(t, way[0]), n.node(t, way[1])
			must(there.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(way[0])).Result())(t)
			must(here.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(way[1])).Result())(t)
			expect(t, must(client.Set(ctx, "{moving}new:"+way[1], "asked", 0).Result())(t), "OK")
			for {
				keys := must(here.ClusterGetKeysInSlot(ctx, slot, 4).Result())(t)
				if len(keys) == 0 {
					break
				}
				request := []any{"MIGRATE", "127.0.0.1", way[1], "", 0, 5000, "KEYS"}
				for _, key := range keys {
					request = append(request, key)
				}
				must(here.Do(ctx, request...).Result())(t)
				l.rounds(t)
			}
			for _, node := range []*redis.Client{there, here} {
				must(node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id(way[1])).Result())(t)
			}
			n.agreed(t, slot, way[1])
			l.rounds(t)
			if !isOurs {
				continue
			}
			for _, back := range [][2]string{{way[1], way[0]}, {way[0], way[1]}} {
				must(n.node(t, back[0]).Do(ctx, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", id(back[1])).Result())(t)
				n.agreed(t, slot, back[1])
				l.rounds(t)
			}
		}
		for key, count := range l.end(t) {
			expect(t, must(client.Get(ctx, key).Result())(t), strconv.FormatInt(count, 10))
		}
	})

	run("primaries hand over and die under load", func(t *testing.T) {
		first, second, replica, successor := n.ports[0], n.ports[1], n.ports[3], n.ports[4]
		isPrimary := func(port string) bool {
			return strings.Contains(n.node(t, port).Info(ctx, "replication").Val(), "role:master")
		}
		l := startLoad(t, n.connect(t, nil), true, numbered("key:%d", 20))
		must(n.node(t, replica).ClusterFailover(ctx).Result())(t)
		until(t, func() bool { return isPrimary(replica) && !isPrimary(first) })
		l.rounds(t)
		// What a replica has confirmed outlives the primary.
		lock := ""
		for number := 0; lock == ""; number++ {
			key := fmt.Sprintf("{%d}lock", number)
			if n.owner(t, second, int(client.ClusterKeySlot(ctx, key).Val())) == second {
				lock = key
			}
		}
		confirmed := must(n.node(t, second).Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.SetNX(ctx, lock, "mine", 0)
			pipe.Do(ctx, "WAIT", 1, 5000)
			return nil
		}))(t)
		expect(t, confirmed[1].(*redis.Cmd).Val(), 1)
		n.tell(t, "kill", second)
		until(t, func() bool { return isPrimary(successor) })
		l.rounds(t)
		until(t, func() bool { return client.Get(ctx, lock).Err() == nil })
		expect(t, must(client.SetNX(ctx, lock, "theirs", 0).Result())(t), false)
		expect(t, must(client.Get(ctx, lock).Result())(t), "mine")
		n.tell(t, "start", second)
		until(t, func() bool { return !isPrimary(second) })
		for key, count := range l.end(t) {
			if value := must(client.Get(ctx, key).Int64())(t); value < count {
				t.Fatal(key, value, count)
			}
		}
	})
}
