#!/usr/bin/env python3
"""Three primaries and three replicas of the built server, for the programs that use a cluster.

Prints `ready` and the six ports once all agree: the primaries first, in the order of their slots, then a replica of each. Then
takes lines: `kill PORT` ends a node by SIGKILL, `stop PORT` by SIGTERM, `start PORT` starts it again with its files; each is
answered by `ok`. When its input ends, so do the nodes.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_port  # noqa: E402

# Suites that end no node say more, so that no stall of a busy machine makes a node seem dead.
NODE_TIMEOUT_MS = int(os.environ.get("CLUSTER_NODE_TIMEOUT_MS", "1500"))
SLOTS = [(0, 5460), (5461, 10922), (10923, 16383)]


class Failed(Exception):
    """An error reply."""


def call(port, *words):
    """The reply to a request by a connection of its own, which may be a simple string, a number or a bulk string."""
    words = [str(word).encode() for word in words]
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(request)
        reply = connection.makefile("rb")
        line = reply.readline().decode().rstrip()
        if not line:
            raise ConnectionError("no reply")
        if line.startswith("-"):
            raise Failed(f"{words}: {line}")
        return reply.read(int(line[1:])).decode() if line.startswith("$") else line[1:]


def until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            sys.exit("the nodes do not agree")
        time.sleep(0.02)


class Node:
    def __init__(self, folder, port, bus_port):
        self.folder = os.path.join(folder, str(port))
        self.port = port
        self.bus_port = bus_port
        os.mkdir(self.folder)
        self.start()

    def start(self):
        options = {
            "port": self.port,
            "cluster-port": self.bus_port,
            "bind": "127.0.0.1",
            "save": "",
            "logfile": "log",
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "repl-diskless-sync-delay": 0,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            [os.environ["LATCHKEY"], *words], cwd=self.folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        until(self.answers)

    def answers(self):
        if self.process.poll() is not None:
            sys.exit(f"a node has ended: see {self.folder}/log")
        try:
            return call(self.port, "PING") == "PONG"
        except OSError:
            return False
        except Failed:
            return True

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(30)

    def agrees(self):
        """Whether this node knows all others in their roles, and has its primary's data."""
        lines = [line.split() for line in call(self.port, "CLUSTER", "NODES").splitlines()]
        replicas = [line for line in lines if "slave" in line[2]]
        known = len(lines) == 6 and len(replicas) == 3 and not any("handshake" in line[2] for line in lines)
        served = "cluster_state:ok" in call(self.port, "CLUSTER", "INFO")
        return known and served and "master_link_status:down" not in call(self.port, "INFO", "replication")


def join(nodes):
    for number, node in enumerate(nodes):
        call(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        call(node.port, "CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
    for node, slots in zip(nodes, SLOTS):
        call(node.port, "CLUSTER", "ADDSLOTSRANGE", *slots)
    for primary, replica in zip(nodes, nodes[3:]):
        name = call(primary.port, "CLUSTER", "MYID")
        until(lambda: name in call(replica.port, "CLUSTER", "NODES"))
        call(replica.port, "CLUSTER", "REPLICATE", name)
    for node in nodes:
        until(node.agrees)


def main():
    with tempfile.TemporaryDirectory(prefix="latchkey") as folder:
        nodes = []
        try:
            for _ in range(6):
                nodes.append(Node(folder, free_port(), free_port()))
            join(nodes)
            print("ready", *(node.port for node in nodes), flush=True)
            for line in sys.stdin:
                verb, port = line.split()
                node = next(node for node in nodes if node.port == int(port))
                if verb == "start":
                    node.start()
                else:
                    node.end(signal.SIGKILL if verb == "kill" else signal.SIGTERM)
                print("ok", flush=True)
        finally:
            for node in nodes:
                if node.process.poll() is None:
                    node.end(signal.SIGKILL)


if __name__ == "__main__":
    # Whoever runs this ends it by its input: Ctrl-C, sent to all of a terminal's programs, should not come first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
