package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Set in a process that has a network of its own, in which each node has a namespace that can be cut off.
const networkMark = "LINEARIZABLE_NETWORK"

var namespaces int

func hasNetwork() bool { return os.Getenv(networkMark) != "" }

// enterNetwork starts this program again in namespaces of its own, with a bridge as the network. It is gone with the process.
func enterNetwork() error {
	if hasNetwork() {
		// `ip netns` keeps its names in /run.
		return sh("mount -t tmpfs none /run", "ip link set lo up", "ip link add bridge type bridge",
			"ip address add 10.11.0.1/24 dev bridge", "ip link set bridge up")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	if err := sh("ip -V", "unshare --net --mount true"); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"unshare", "--net", "--mount", "--fork", "--kill-child", program}, os.Args[1:]...)
	return syscall.Exec(unshare, args, append(os.Environ(), networkMark+"=yes"))
}

// addNamespace makes one for a node. It returns its name and the node's address.
func addNamespace() (string, string) {
	namespaces++
	name, host := fmt.Sprintf("node%d", namespaces), fmt.Sprintf("10.11.0.%d", namespaces+1)
	inside := "ip netns exec " + name + " "
	check(sh("ip netns add "+name, "ip link add "+name+" type veth peer name inner netns "+name, "ip link set "+name+" master bridge up",
		inside+"ip link set lo up", inside+"ip address add "+host+"/24 dev inner", inside+"ip link set inner up"))
	return name, host + ":7000"
}

// setLink cuts a node off ("down"), or ends that ("up").
func setLink(name, state string) { check(sh("ip link set " + name + " " + state)) }

func sh(lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}
