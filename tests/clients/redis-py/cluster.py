"""Six nodes of the built binary for each test program (see ../nodes.py), and what the programs do to them."""

import os
import subprocess
import sys
import threading
import time
import unittest

import redis
from redis.backoff import ExponentialBackoff
from redis.crc import key_slot
from redis.retry import Retry

NODES = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "nodes.py")


def until(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class ClusterTest(unittest.TestCase):
    """Starts the nodes for the class; `self.connect()` gives clients of the cluster, `self.node(port)` one of a node."""

    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen(
            [sys.executable, NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        cls.addClassCleanup(cls.end)
        cls.ports = [int(word) for word in cls.process.stdout.readline().split()[1:]]
        assert len(cls.ports) == 6, "the nodes have not started"

    @classmethod
    def end(cls):
        cls.process.stdin.close()
        cls.process.wait(30)
        cls.process.stdout.close()

    @classmethod
    def tell(cls, verb, port):
        """Kills or starts a node."""
        print(verb, port, file=cls.process.stdin, flush=True)
        assert cls.process.stdout.readline() == "ok\n"

    def connect(self, **options):
        # As patient as a failover is long; any node may be the one that has just been killed.
        retry = Retry(ExponentialBackoff(cap=0.2, base=0.01), 200)
        nodes = [redis.cluster.ClusterNode("127.0.0.1", port) for port in self.ports]
        client = redis.RedisCluster(startup_nodes=nodes, decode_responses=True, retry=retry, **options)
        self.addCleanup(client.close)
        return client

    def node(self, port):
        client = redis.Redis(port=port, decode_responses=True, protocol=2)
        self.addCleanup(client.close)
        return client

    def setUp(self):
        self.redis = self.connect()
        self.redis.flushall(target_nodes=redis.RedisCluster.PRIMARIES)

    def needs_own_commands(self):
        """Skips a test of what no other server has, told by a parameter that none has: so a peer runs the others."""
        if not self.node(self.ports[0]).config_get("redis-version"):
            self.skipTest("the server is another one")

    def owner(self, key):
        """The port of the node that serves a key, and the slot."""
        slot = key_slot(key.encode())
        for port in self.ports:
            try:
                for first, last, primary, *_ in self.node(port).execute_command("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return primary[1], slot
            except redis.exceptions.ConnectionError:
                pass
        raise AssertionError("no node serves the slot")

    def identity(self, port):
        return self.node(port).execute_command("CLUSTER MYID")


class Load:
    """A thread that counts up keys through a cluster client until it is told to end; `counts` is what was acknowledged."""

    def __init__(self, client, keys):
        self.counts = dict.fromkeys(keys, 0)
        self.client = client
        self.error = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.ended.is_set():
                for key in self.counts:
                    self.counts[key] = self.client.incr(key)
        except Exception as error:
            self.error = error

    def rounds(self, count):
        """Waits until each key was counted up this often from now on."""
        wanted = {key: value + count for key, value in self.counts.items()}
        until(lambda: self.error or all(self.counts[key] >= value for key, value in wanted.items()))

    def __enter__(self):
        self.thread.start()
        self.rounds(3)
        return self

    def __exit__(self, *_):
        if self.error is None:
            self.rounds(3)
        self.ended.set()
        self.thread.join(30)
        if self.error:
            raise self.error
