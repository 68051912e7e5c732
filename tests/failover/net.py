"""A network of namespaces, in which a node can be cut off from all others and goes on beside the clients of its own side.

It needs root and `ip` of iproute2, and is gone when the process ends.
"""

import ctypes
import os
import subprocess
import sys

MARK = "FAILOVER_NET"
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def enter():
    """Starts this program again in namespaces of its own, with a bridge as the network."""
    if os.environ.get(MARK) is None:
        os.environ[MARK] = "yes"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--fork", "--kill-child", sys.executable, *sys.argv])
    run = lambda *words: subprocess.run(words, check=True)
    # `ip netns` keeps its names there.
    run("mount", "-t", "tmpfs", "none", "/run")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge", "type", "bridge")
    run("ip", "address", "add", "10.11.0.1/24", "dev", "bridge")
    run("ip", "link", "set", "bridge", "up")


def add(number):
    """A namespace for a node. Returns its address and what a command is started with in it."""
    name = f"node{number}"
    inside = ["ip", "netns", "exec", name]
    for line in (
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name inner netns {name}",
        f"ip link set {name} master bridge up",
    ):
        subprocess.run(line.split(), check=True)
    address = f"10.11.0.{number + 1}"
    for line in ("ip link set lo up", f"ip address add {address}/24 dev inner", "ip link set inner up"):
        subprocess.run(inside + line.split(), check=True)
    return address, inside


def cut(number, is_cut):
    subprocess.run(["ip", "link", "set", f"node{number}", "down" if is_cut else "up"], check=True)


def go_in(number):
    """The calling thread's next sockets are on the side of that node."""
    with open(f"/run/netns/node{number}") as file:
        if LIBC.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
