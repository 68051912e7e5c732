package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// node is a server with a folder and an address, which it keeps when it is started again. Nodes reach each other by the address,
// clients by the socket, which no partition concerns.
type node struct {
	program, folder, address, socket string
	// The number of its namespace; 0: it has none.
	namespace int
	lines     []string
	process   *exec.Cmd
}

func newNode(program string, isAlone bool, lines ...string) *node {
	folder, err := os.MkdirTemp("", "linearizable")
	check(err)
	n := &node{program: program, folder: folder, socket: folder + "/socket", lines: lines}
	if isAlone {
		n.namespace, n.address = addNamespace()
		n.lines = append(n.lines, "--protected-mode", "no")
		return n
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer free.Close()
	n.address = free.Addr().String()
	return n
}

func (n *node) start(more ...string) {
	host, port, err := net.SplitHostPort(n.address)
	check(err)
	args := append([]string{"--port", port, "--bind", host, "--unixsocket", n.socket, "--dir", n.folder, "--save", "", "--logfile", n.folder + "/log",
		"--repl-diskless-sync-delay", "0", "--repl-timeout", "60"}, n.lines...)
	command := append(append([]string{n.program}, args...), more...)
	if n.namespace > 0 {
		command = append([]string{"ip", "netns", "exec", fmt.Sprintf("node%d", n.namespace)}, command...)
	}
	n.process = exec.Command(command[0], command[1:]...)
	check(n.process.Start())
	until("a server answers", func() bool {
		reply, err := ask(n.socket, "PING")
		return err == nil && reply == "PONG"
	})
}

func (n *node) kill() {
	n.process.Process.Kill()
	n.process.Wait()
}

func (n *node) signal(s syscall.Signal) { n.process.Process.Signal(s) }

func (n *node) ask(request string) any {
	reply, err := ask(n.socket, request)
	check(err)
	return reply
}

// follow waits until the node has what its primary has sent so far.
func (n *node) follow(primary *node) {
	n.ask("REPLICAOF " + strings.Replace(primary.address, ":", " ", 1))
	until("a replica is in step", func() bool {
		info, _ := n.ask("INFO replication").(string)
		return strings.Contains(info, "master_link_status:up") && strings.Contains(info, "role:slave")
	})
}

// world is the servers of a scenario. Clients ask `primary`, which they learn late.
type world struct {
	nodes   []*node
	primary atomic.Int32
	// The node that is cut off; -1: none.
	cut    atomic.Int32
	random *rand.Rand
}

// primaryFor is the node that a client takes for the primary: each has a side, which is that of a node.
func (w *world) primaryFor(client int) int32 {
	if cut := w.cut.Load(); cut >= 0 && client%len(w.nodes) == int(cut) {
		return cut
	}
	return w.primary.Load()
}

func (w *world) pause(least, most int) {
	time.Sleep(time.Duration(least+w.random.IntN(most-least)) * time.Millisecond)
}

// Each returns when the servers answer again.
var disturbances = map[string]func(*world){
	"kills": func(w *world) {
		w.nodes[0].kill()
		w.nodes[0].start()
	},
	"pauses": func(w *world) {
		w.nodes[0].signal(syscall.SIGSTOP)
		w.pause(50, 400)
		w.nodes[0].signal(syscall.SIGCONT)
	},
	"cuts": func(w *world) { w.nodes[0].ask("CLIENT KILL TYPE normal SKIPME yes") },
	"handovers": func(w *world) {
		from, to := w.nodes[w.primary.Load()], w.nodes[1-w.primary.Load()]
		from.ask("FAILOVER TO " + strings.Replace(to.address, ":", " ", 1))
		until("the roles have changed", func() bool {
			is := func(n *node, role string) bool {
				info, _ := n.ask("INFO replication").(string)
				return strings.Contains(info, "role:"+role)
			}
			return is(to, "master") && is(from, "slave")
		})
		w.primary.Store(1 - w.primary.Load())
		from.follow(to)
	},
	// A primary is killed, or stands still and goes on beside its successor for a while.
	"promotions": func(w *world) {
		from, to := w.nodes[w.primary.Load()], w.nodes[1-w.primary.Load()]
		stops := w.random.IntN(2) == 0
		if stops {
			from.signal(syscall.SIGSTOP)
		} else {
			from.kill()
		}
		to.ask("REPLICAOF NO ONE")
		w.primary.Store(1 - w.primary.Load())
		if stops {
			from.signal(syscall.SIGCONT)
			w.pause(10, 200)
		} else {
			from.start("--replicaof", strings.Replace(to.address, ":", " ", 1))
		}
		from.follow(to)
	},
	// A primary is cut off, and goes on beside its successor, each with clients of its side.
	"partitions": func(w *world) {
		from, to := w.nodes[w.primary.Load()], w.nodes[1-w.primary.Load()]
		w.cut.Store(w.primary.Load())
		setLink("down", from.namespace)
		w.pause(10, 300)
		to.ask("REPLICAOF NO ONE")
		w.primary.Store(1 - w.primary.Load())
		w.pause(100, 600)
		setLink("up", from.namespace)
		w.cut.Store(-1)
		from.follow(to)
	},
}

func newWorld(program, disturbance string, plant string, seed uint64) *world {
	w := &world{random: rand.New(rand.NewPCG(seed, 0))}
	count := 1
	w.cut.Store(-1)
	isParted := disturbance == "partitions"
	if disturbance == "handovers" || disturbance == "promotions" || isParted {
		count = 2
	}
	log := []string{"--appendonly", "yes", "--appendfsync", "always"}
	if plant == "no-log" {
		log = nil
	}
	for range count {
		n := newNode(program, isParted, log...)
		n.start()
		w.nodes = append(w.nodes, n)
	}
	if count == 2 {
		w.nodes[1].follow(w.nodes[0])
	}
	return w
}

func (w *world) end() {
	for _, n := range w.nodes {
		n.kill()
		os.RemoveAll(n.folder)
	}
}

func until(what string, is func() bool) {
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			check(fmt.Errorf("not in a minute: %s", what))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
