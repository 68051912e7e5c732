package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// The network of namespaces in which a node can be cut off: see there.
const network = "../network"

var namespaces int

func hasNetwork() bool { return os.Getenv("TEST_NETWORK") != "" }

// enterNetwork starts this program again in a network of its own.
func enterNetwork() error {
	if hasNetwork() {
		return nil
	}
	if err := exec.Command(network, "enter", "true").Run(); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(network, append([]string{network, "enter", program}, os.Args[1:]...), os.Environ())
}

// addNamespace makes one for a node. It returns its number and the node's address.
func addNamespace() (int, string) {
	namespaces++
	host, err := exec.Command(network, "add", fmt.Sprint(namespaces)).Output()
	check(err)
	return namespaces, strings.TrimSpace(string(host)) + ":7000"
}

// setLink cuts a node off ("down"), or ends that ("up").
func setLink(state string, number int) { check(exec.Command(network, state, fmt.Sprint(number)).Run()) }
