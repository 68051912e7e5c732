package suites

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	// So that it is in go.mod with what its tests need.
	_ "github.com/redis/go-redis/v9"
)

// notApplicable are tests of go-redis that are not run, by a part of their names, with the reason.
var notApplicable = map[string]string{
	"connect to failover servers":    "needs three sentinels",
	"ClusterClient should RANDOMKEY": "fails with Redis 7.0.15 too, in the same way",
}

// TestGoRedisCluster runs go-redis's tests of its cluster client, the universal one among them, whose servers have fixed ports: a
// copy is built with those of three primaries and three replicas, of three servers without a cluster, and of one more.
func TestGoRedisCluster(t *testing.T) {
	words := []string{}
	for number, port := range startNodes(t) {
		words = append(words, fmt.Sprint(16600+number), port)
	}
	port := func() string {
		_, port, _ := strings.Cut(startServer(t), ":")
		return `"` + port + `"`
	}
	for number := range 3 {
		words = append(words, fmt.Sprintf(`"%d"`, 6390+number), port())
	}
	words = append(words, `redisStackPort = "6379"`, "redisStackPort = "+port())
	// Before all tests it looks for sentinels, and has each node meet the first one: so the first one knows itself twice until the
	// node timeout is over, which a test of CLUSTER INFO would see.
	const sentinels, topology, tls = "\t\tsentinelMaster, err =", "\t\t// populate cluster node", "\t\t// Initialize TLS"
	words = append(words, sentinels, "\t}\n\tif false {\n"+sentinels, topology, "\t}\n\tif true {\n"+topology)
	words = append(words, tls, "\t\ttime.Sleep(6 * time.Second)\n"+tls)
	program := build(t, "github.com/redis/go-redis/v9", words...)

	skipped := []string{}
	for name, reason := range notApplicable {
		t.Logf("not applicable: %s: %s", name, reason)
		skipped = append(skipped, regexp.QuoteMeta(name))
	}
	// The suite itself ends by telling the nodes to forget each other.
	execute(t, program, "-test.run", "Cluster")
	execute(t, program, "-test.run", "TestGinkgoSuite", "-ginkgo.v", "-ginkgo.no-color",
		"-ginkgo.focus", "(^| )(ClusterClient|cluster races|UniversalClient)", "-ginkgo.skip", strings.Join(skipped, "|"))
}

// startNodes starts three primaries and three replicas as one cluster until the test's end; their ports.
func startNodes(t *testing.T) []string {
	process := exec.Command("python3", os.Getenv("CLUSTER_NODES"))
	process.Env = append(os.Environ(), "CLUSTER_NODE_TIMEOUT_MS=5000")
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		process.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 7 {
		t.Fatal("the nodes have not started: ", line, err)
	}
	return words[1:]
}

// build builds the tests of a module in a copy, with pairs of words replaced in them; the program.
func build(t *testing.T, module string, words ...string) string {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(copied, os.DirFS(strings.TrimSpace(string(folder)))); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(copied, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for word := 0; word < len(words); word += 2 {
			found[words[word]] = found[words[word]] || strings.Contains(string(text), words[word])
		}
		if err := os.WriteFile(name, []byte(strings.NewReplacer(words...).Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for word, is := range found {
		if !is {
			t.Fatalf("no test of %s has %q", module, word)
		}
	}
	program := filepath.Join(copied, "suite.test")
	if output, err := exec.Command("go", "test", "-C", copied, "-c", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s%s", output, err)
	}
	return program
}

// execute runs tests of a program, and says how many there were.
func execute(t *testing.T, program string, arguments ...string) {
	process := exec.Command(program, append([]string{"-test.v", "-test.timeout", within}, arguments...)...)
	process.Dir = filepath.Dir(program)
	process.Env = append(os.Environ(), "REDIS_VERSION=7.0")
	output, err := process.CombinedOutput()
	if err != nil {
		t.Errorf("%s%s", output, err)
	}
	count := func(pattern string) int {
		return len(regexp.MustCompile("(?m)"+pattern).FindAll(output, -1))
	}
	passed := count(`^ *--- PASS: Test[^G]`) + count(`^• \[\d`)
	failed := count(`^ *--- FAIL: Test[^G]`) + count(`^• \[FAILED\]`)
	t.Logf("%s: %d passed, %d failed, %d skipped", arguments[1], passed, failed, count(`^ *--- SKIP|^S \[SKIPPED\]`))
	for _, reason := range regexp.MustCompile(`(?m)^ +[a-z_]+\.go:\d+: Skipping .*|^ +\[SKIPPED\] [^i].*`).FindAllString(string(output), -1) {
		t.Log(strings.TrimSpace(reason))
	}
}
