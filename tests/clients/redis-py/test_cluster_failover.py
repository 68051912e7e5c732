"""Primaries of a cluster that hand over or die under load: redis-py's cluster client goes on, and loses nothing confirmed."""

import threading
import time
import unittest

import redis

from cluster import ClusterTest, Load, until


class Failover(ClusterTest):
    def replica_of(self, port):
        """The port of a primary's replica that is there."""
        replicas = self.node(port).execute_command("CLUSTER REPLICAS", self.identity(port))
        return next(int(name.split(":")[1]) for name, told in replicas.items() if "fail" not in told["flags"])

    def healed(self):
        """Whether each node is linked, in its role, and known to all in it: others do not vote for one that was a primary to them."""
        for port in self.ports:
            flags = [told["flags"] for told in self.node(port).execute_command("CLUSTER NODES").values()]
            if any("fail" in each for each in flags) or sum("slave" in each for each in flags) != 3:
                return False
            if self.node(port).info("replication").get("master_link_status", "up") != "up":
                return False
        return True

    def die_and_return(self, port):
        """Kills a node; once another serves its slots, it comes back as a replica."""
        successor = self.replica_of(port)
        self.tell("kill", port)
        until(lambda: self.node(successor).role()[0] == "master")
        return successor

    def come_back(self, port):
        self.tell("start", port)
        until(self.healed)

    def test_a_manual_failover_under_load_loses_nothing(self):
        keys = [f"key:{number}" for number in range(30)]
        with Load(self.connect(), keys) as load:
            for port in {self.owner(key)[0] for key in keys}:
                replica = self.replica_of(port)
                self.node(replica).execute_command("CLUSTER FAILOVER")
                until(lambda: self.node(replica).role()[0] == "master" and self.node(port).role()[0] == "slave")
                load.rounds(3)
        # The client repeats what got no answer, so some may have been counted twice.
        for key, count in load.counts.items():
            self.assertGreaterEqual(int(self.redis.get(key)), count)
        until(self.healed)

    def test_a_killed_primary_loses_nothing_that_was_confirmed(self):
        port, _ = self.owner("{kept}")
        confirmed, gaps, ended = 0, [], threading.Event()

        def write():
            nonlocal confirmed
            client, last = self.connect(), time.monotonic()
            number = 0
            while not ended.is_set():
                number += 1
                try:
                    # SET and WAIT by one connection: what a pool gives for WAIT alone may be another.
                    node = client.get_redis_connection(client.get_node_from_key("{kept}"))
                    with node.pipeline(transaction=False) as pipeline:
                        done = pipeline.set("{kept}", number).execute_command("WAIT", 1, 1000).execute()
                except redis.exceptions.RedisError:
                    client.nodes_manager.initialize()
                    time.sleep(0.02)
                    continue
                if done[0] and done[1] >= 1:
                    confirmed = number
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

        writer = threading.Thread(target=write)
        writer.start()
        until(lambda: confirmed > 10)
        before = confirmed
        successor = self.die_and_return(port)
        self.assertGreaterEqual(int(until(lambda: self.node(successor).get("{kept}"))), before)
        self.come_back(port)
        until(lambda: confirmed > before + 10)
        ended.set()
        writer.join(30)
        self.assertGreaterEqual(int(self.redis.get("{kept}")), confirmed)
        self.assertLess(max(gaps), 20)

    def test_a_killed_primary_keeps_locks_that_a_replica_has(self):
        self.needs_own_commands()
        port, _ = self.owner("{lock}")
        call = self.redis.execute_command
        fence = call("LOCK.ACQUIRE", "{lock}own", "me", "PX", 60000, "REPLICAS", 1, 5000)[0]
        self.assertGreater(fence, 0)
        lock = self.redis.lock("{lock}redis-py", timeout=60)
        self.assertTrue(lock.acquire(blocking=False))
        self.assertEqual(self.redis.wait(1, 5000, target_nodes=self.redis.get_node("127.0.0.1", port)), 1)
        waiter, granted = self.connect(), []

        def wait():
            while not granted:
                try:
                    granted.append(waiter.execute_command("LOCK.ACQUIRE", "{lock}own", "you", "PX", 60000, "BLOCK", 30000))
                except redis.exceptions.RedisError:
                    # Asking again is safe: the owner has one hold at most.
                    time.sleep(0.02)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: len(self.node(port).execute_command("LOCK.WAITERS", "{lock}own")) == 1)
        successor = self.die_and_return(port)
        # The waiting client asks again at the new primary, and waits there.
        until(lambda: len(self.node(successor).execute_command("LOCK.WAITERS", "{lock}own")) == 1)
        self.assertEqual(granted, [])
        self.assertFalse(self.connect().lock("{lock}redis-py", timeout=60).acquire(blocking=False))
        self.assertEqual(call("LOCK.GUARD", "{lock}own", "me", "FENCE", fence), 1)
        self.assertEqual(call("LOCK.RELEASE", "{lock}own", "me", "FENCE", fence), 0)
        waiting.join(30)
        self.assertGreater(granted[0][0], fence)
        lock.release()
        self.come_back(port)


if __name__ == "__main__":
    unittest.main()
