// Registers, locks, semaphores, queues and streams of real servers under kills, pauses, cut connections, partitions and changes of
// the primary. The histories of clients are judged by porcupine, which others wrote and use: is there an order of all requests, each
// between its beginning and its end, in which one server without faults would have answered so?
//
//	go run . -server PATH [-only lock,kills] [-rounds N] [-seed N] [-write FOLDER]   runs and judges
//	go run . -server PATH -plants                                                    runs faults that must be found
//	go run . -judge FILE                                                             judges a history that was written
package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	clients = 8
	keys    = 8
	// Of a semaphore.
	permits = 2
	// A part of a history that takes longer to judge is reported as not judged.
	judging = time.Minute
	// The servers' clocks end no lock of a run.
	lease = "PX 3600000"
)

var models = map[string]porcupine.Model{"register": register, "lock": lock, "semaphore": semaphore, "queue": queue, "stream": queue}

// Errors by which a server says that it has not run a request.
var refusals = []string{"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"}

// client makes requests until the round ends, and keeps what it saw.
type client struct {
	number int
	world  *world
	random *rand.Rand
	begun  time.Time
	round  int
	ended  *atomic.Bool
	// Whether replies count only once a replica has the effect and all that came before it.
	confirmed bool
	plant     string
	conn      *conn
	asked     int32
	seen      []op
	names     int
}

func (c *client) key() string { return fmt.Sprintf("r%d.%d", c.round, c.random.IntN(keys)) }

func (c *client) name() string {
	c.names++
	return fmt.Sprintf("c%d.%d.%d", c.round, c.number, c.names)
}

// try sends a request, and puts its reply into `o` by `read`. It returns whether the reply is known.
func (c *client) try(o op, request string, read func(any, *op)) (op, bool) {
	if asks := c.world.primaryFor(c.number); c.conn == nil || c.asked != asks {
		c.drop()
		c.asked = asks
		conn, err := dial(c.world.nodes[c.asked].socket)
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			return o, false
		}
		c.conn = conn
	}
	requests := []string{request}
	if c.confirmed {
		requests = append(requests, "INCR tick", "WAIT 1 1000")
	}
	o.Client, o.Call = c.number, time.Since(c.begun).Nanoseconds()
	replies, err := c.conn.do(requests...)
	o.Return = time.Since(c.begun).Nanoseconds()
	if err != nil {
		c.drop()
	} else if text, is := replies[0].(refusal); is && strings.HasPrefix(string(text), "NOGROUP") {
		// The stream is gone, or was: nothing can be read.
		replies[0] = nil
	} else if is {
		for _, word := range refusals {
			if strings.HasPrefix(string(text), word) {
				c.drop()
				time.Sleep(5 * time.Millisecond)
				return o, false
			}
		}
		panic(fmt.Sprintf("%s: %s", request, text))
	}
	confirms := func() bool { count, _ := replies[2].(int64); return count >= 1 }
	if err != nil || c.confirmed && !confirms() {
		o.Unknown = true
		if o.Kind != "get" {
			c.seen = append(c.seen, o)
		}
		if o.Kind == "acquire" {
			// It may have been granted, and taken back when the connection closed.
			c.seen = append(c.seen, op{Client: o.Client, Key: o.Key, Kind: "release", Value: o.Value, Call: o.Call, Unknown: true})
		}
		return o, false
	}
	read(replies[0], &o)
	c.seen = append(c.seen, o)
	return o, true
}

func (c *client) drop() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

func text(reply any, o *op)   { o.Text, _ = reply.(string) }
func number(reply any, o *op) { o.Number, _ = reply.(int64) }

// Each does a few requests.
var subjects = map[string]func(*client){
	"register": func(c *client) {
		key := c.key()
		// A read that is a write: a replica refuses it.
		seen, known := c.try(op{Key: key, Kind: "get"}, "GETEX "+key+" PERSIST", text)
		switch value := c.name(); {
		case c.random.IntN(2) == 0:
			c.try(op{Key: key, Kind: "set", Value: value}, "SET "+key+" "+value, text)
		case known && seen.Text != "":
			c.try(op{Key: key, Kind: "cas", Value: value, Old: seen.Text}, "SET "+key+" "+value+" IFEQ "+seen.Text, text)
		}
	},
	"lock": func(c *client) {
		read := func(reply any, o *op) {
			list := reply.([]any)
			number(list[0], o)
			if o.Number == 0 {
				text(list[3], o)
			}
		}
		c.holdFor("LOCK.ACQUIRE %s %s "+lease, read, func(got op) string {
			return fmt.Sprintf("LOCK.RELEASE %s %s FENCE %d", got.Key, got.Value, got.Number)
		})
	},
	"semaphore": func(c *client) {
		read := func(reply any, o *op) {
			list := reply.([]any)
			if permits, granted := list[0].([]any); granted {
				text(permits[0], o)
				number(list[1], o)
			}
		}
		c.holdFor(fmt.Sprintf("SEM.ACQUIRE %%s %%s LIMIT %d %s", permits, lease), read, func(got op) string {
			return "SEM.RELEASE " + got.Key + " " + got.Text
		})
	},
	"queue":  func(c *client) { c.pushOrPop("queue", "RPUSH %s %s", number) },
	"stream": func(c *client) { c.pushOrPop("stream", "XADD %s * v %s", text) },
}

// holdFor asks until the reply is known, and gives back what it was granted. `acquire` has places for the key and the owner; `read`
// puts the fence into the operation, 0 if it was refused; `release` makes the request that gives a grant back.
func (c *client) holdFor(acquire string, read func(any, *op), release func(op) string) {
	key, owner := c.key(), c.name()
	if c.plant == "stolen" && c.random.IntN(10) == 0 {
		ask(c.world.nodes[0].socket, "DEL "+key)
	}
	var got op
	for known := false; !known; {
		if c.ended.Load() {
			return
		}
		got, known = c.try(op{Key: key, Kind: "acquire", Value: owner}, fmt.Sprintf(acquire, key, owner), read)
	}
	if got.Number == 0 {
		return
	}
	time.Sleep(time.Duration(c.random.IntN(2000)) * time.Microsecond)
	for known := false; !known && !c.ended.Load(); {
		_, known = c.try(op{Key: key, Kind: "release", Value: owner, Fence: got.Number}, release(got), number)
	}
}

// pushOrPop adds a value by `push`, which has places for the key and the value, or takes one.
func (c *client) pushOrPop(subject, push string, read func(any, *op)) {
	key := c.key()
	if c.random.IntN(2) == 0 {
		value := c.name()
		c.try(op{Key: key, Kind: "push", Value: value}, fmt.Sprintf(push, key, value), read)
	} else {
		c.pop(subject, key)
	}
}

// pop takes the first element, or the first entry that the group has not seen.
func (c *client) pop(subject, key string) (op, bool) {
	if subject == "queue" {
		return c.try(op{Key: key, Kind: "pop"}, "LPOP "+key, text)
	}
	return c.try(op{Key: key, Kind: "pop"}, "XREADGROUP GROUP all me COUNT 1 NOACK STREAMS "+key+" >", func(reply any, o *op) {
		if streams, is := reply.([]any); is {
			entry := streams[0].([]any)[1].([]any)[0].([]any)
			text(entry[1].([]any)[1], o)
		}
	})
}

// history runs one round on new keys.
func (w *world) history(subject, disturbance, plant string, round int) []op {
	if subject == "stream" {
		w.createGroups(round)
	}
	var ended atomic.Bool
	var all []*client
	var group sync.WaitGroup
	begun := time.Now()
	for number := range clients {
		c := &client{number: number, world: w, random: rand.New(rand.NewPCG(w.random.Uint64(), 1)), begun: begun, round: round, ended: &ended,
			confirmed: (disturbance == "promotions" || disturbance == "partitions") && plant != "unconfirmed", plant: plant}
		all = append(all, c)
		group.Go(func() {
			for !ended.Load() {
				subjects[subject](c)
				time.Sleep(time.Duration(c.random.IntN(4000)) * time.Microsecond)
			}
		})
	}
	for range 2 {
		w.pause(100, 300)
		disturbances[disturbance](w)
	}
	w.pause(100, 200)
	ended.Store(true)
	group.Wait()
	// What is there at the end is looked at by one client.
	ended.Store(false)
	last := all[0]
	for key := range keys {
		key := fmt.Sprintf("r%d.%d", round, key)
		pops := subject == "queue" || subject == "stream"
		for more := pops || subject == "register"; more; {
			if pops {
				o, known := last.pop(subject, key)
				more = !known || o.Text != ""
			} else {
				_, known := last.try(op{Key: key, Kind: "get"}, "GETEX "+key+" PERSIST", text)
				more = !known
			}
		}
	}
	var seen []op
	for _, c := range all {
		c.drop()
		seen = append(seen, c.seen...)
	}
	return seen
}

// createGroups makes the streams of a round, with a group that has seen nothing.
func (w *world) createGroups(round int) {
	c, err := dial(w.nodes[w.primary.Load()].socket)
	check(err)
	defer c.Close()
	var requests []string
	for key := range keys {
		requests = append(requests, fmt.Sprintf("XGROUP CREATE r%d.%d all 0 MKSTREAM", round, key))
	}
	_, err = c.do(append(requests, fmt.Sprintf("WAIT %d 1000", len(w.nodes)-1))...)
	check(err)
}

func judge(subject string, history []op) porcupine.CheckResult {
	var operations []porcupine.Operation
	for _, o := range history {
		end := o.Return
		if o.Unknown {
			end = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: end})
	}
	return porcupine.CheckOperationsTimeout(models[subject], operations, judging)
}

func write(folder, name string, history []op) string {
	path := filepath.Join(folder, name+".jsonl.gz")
	file, err := os.Create(path)
	check(err)
	packed := gzip.NewWriter(file)
	lines := json.NewEncoder(packed)
	for _, o := range history {
		check(lines.Encode(o))
	}
	check(packed.Close())
	check(file.Close())
	return path
}

func read(path string) (history []op) {
	file, err := os.Open(path)
	check(err)
	defer file.Close()
	packed, err := gzip.NewReader(file)
	check(err)
	for lines := json.NewDecoder(bufio.NewReader(packed)); lines.More(); {
		var o op
		check(lines.Decode(&o))
		history = append(history, o)
	}
	return history
}

// run returns Illegal if a history of a scenario is, Unknown if none could be judged in time, and Ok.
func run(program, subject, disturbance, plant, folder string, rounds int, seed uint64) porcupine.CheckResult {
	w := newWorld(program, disturbance, plant, seed)
	defer w.end()
	result, judged, total, unknown := porcupine.Unknown, 0, 0, 0
	for round := range rounds {
		history := w.history(subject, disturbance, plant, round)
		for _, o := range history {
			if o.Unknown {
				unknown++
			}
		}
		total += len(history)
		verdict := judge(subject, history)
		name := fmt.Sprintf("%s-%s-%d", subject, disturbance, round)
		if folder != "" {
			write(folder, name, history)
		}
		if verdict == porcupine.Illegal {
			result = verdict
			if plant == "" && folder == "" {
				fmt.Println("the history is in", write(os.TempDir(), name, history))
			}
			break
		}
		if verdict == porcupine.Ok {
			result = verdict
			judged++
		}
	}
	fmt.Printf("%-9s %-10s %-11s %5d %6d %8d %8d  %s\n", subject, disturbance, plant, rounds, judged, total, unknown, result)
	return result
}

func main() {
	program := flag.String("server", "", "the server's program")
	only := flag.String("only", "", "subjects and disturbances, with commas between")
	rounds := flag.Int("rounds", 5, "histories of each scenario")
	seed := flag.Uint64("seed", rand.Uint64(), "of the disturbances")
	folder := flag.String("write", "", "the folder for histories")
	plants := flag.Bool("plants", false, "runs faults that must be found")
	judged := flag.String("judge", "", "a history that was written; its name begins with its subject")
	flag.Parse()
	if *judged != "" {
		subject, _, _ := strings.Cut(filepath.Base(*judged), "-")
		history := read(*judged)
		fmt.Println(len(history), "operations:", judge(subject, history))
		return
	}
	if enterNetwork() != nil {
		fmt.Println("SKIPPED partitions: they need root, unshare and ip")
	}
	isPossible := func(disturbance string) bool { return disturbance != "partitions" || hasNetwork() }
	fmt.Printf("seed %d\n%-9s %-10s %-11s %5s %6s %8s %8s  verdict\n", *seed, "", "", "planted", "runs", "judged", "requests", "unknown")
	failed := false
	if *plants {
		for _, scenario := range [][3]string{{"register", "kills", "no-log"}, {"lock", "kills", "no-log"}, {"queue", "kills", "no-log"},
			{"register", "promotions", "unconfirmed"}, {"lock", "promotions", "unconfirmed"}, {"queue", "promotions", "unconfirmed"}, {"lock", "cuts", "stolen"},
			{"semaphore", "cuts", "stolen"}, {"semaphore", "promotions", "unconfirmed"}, {"stream", "kills", "no-log"}, {"stream", "partitions", "unconfirmed"},
			{"register", "partitions", "unconfirmed"}} {
			if isPossible(scenario[1]) {
				failed = run(*program, scenario[0], scenario[1], scenario[2], "", *rounds, *seed) != porcupine.Illegal || failed
			}
		}
	} else {
		wanted := func(name string, all []string) bool {
			named := func(all []string) bool {
				for _, other := range all {
					if strings.Contains(","+*only+",", ","+other+",") {
						return true
					}
				}
				return false
			}
			return !named(all) || named([]string{name})
		}
		kinds := []string{"register", "lock", "semaphore", "queue", "stream"}
		events := []string{"kills", "pauses", "cuts", "handovers", "promotions", "partitions"}
		for _, subject := range kinds {
			for _, disturbance := range events {
				if wanted(subject, kinds) && wanted(disturbance, events) && isPossible(disturbance) {
					failed = run(*program, subject, disturbance, "", *folder, *rounds, *seed) != porcupine.Ok || failed
				}
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}
