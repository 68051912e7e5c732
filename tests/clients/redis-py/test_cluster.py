"""redis-py's cluster client, threaded and asynchronous: routing, scripts, messages, locks, and slots that move meanwhile."""

import asyncio
import threading
import unittest

import redis
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.cluster import LoadBalancingStrategy

from cluster import ClusterTest, Load, until

PRIMARIES = redis.RedisCluster.PRIMARIES


class Cluster(ClusterTest):
    def test_keys_go_to_the_owners_of_their_slots(self):
        for number in range(300):
            self.redis.set(f"key:{number}", number)
        self.assertEqual(self.redis.dbsize(target_nodes=PRIMARIES), 300)
        sizes = [self.node(port).dbsize() for port in self.ports[:3]]
        self.assertTrue(min(sizes) > 50, sizes)
        self.assertEqual(set(self.redis.scan_iter(count=7)), {f"key:{number}" for number in range(300)})
        self.assertEqual(len(self.redis.keys("key:1*", target_nodes=PRIMARIES)), 111)
        self.redis.mset_nonatomic({f"many:{number}": number for number in range(50)})
        self.assertEqual(self.redis.mget_nonatomic([f"many:{number}" for number in range(50)]), [str(n) for n in range(50)])
        self.assertEqual(self.redis.delete(*(f"many:{number}" for number in range(50))), 50)

    def test_keys_of_one_slot_are_used_together(self):
        self.redis.mset({"{tag}a": 1, "{tag}b": 2})
        self.assertEqual(self.redis.mget("{tag}a", "{tag}b"), ["1", "2"])
        with self.redis.pipeline(transaction=True) as transaction:
            transaction.incr("{tag}a").incr("{tag}b")
            self.assertEqual(transaction.execute(), [2, 3])
        with self.redis.pipeline(transaction=True) as transaction:
            transaction.watch("{tag}a")
            self.redis.incr("{tag}a")
            transaction.multi()
            transaction.set("{tag}b", 10)
            with self.assertRaises(redis.WatchError):
                transaction.execute()
        with self.assertRaises(redis.exceptions.ResponseError) as refused:
            owner, _ = self.owner("a")
            self.node(owner).mget("a", "b")
        self.assertIn("CROSSSLOT Keys in request don't hash to the same slot", f"CROSSSLOT {refused.exception}")

    def test_pipelines_over_all_nodes_give_replies_in_order(self):
        pipeline = self.redis.pipeline()
        for number in range(500):
            pipeline.set(f"key:{number}", number)
            pipeline.get(f"key:{number}")
        self.assertEqual(pipeline.execute(), [reply for number in range(500) for reply in (True, str(number))])

    def test_scripts_and_functions(self):
        script = self.redis.register_script("return {KEYS[1], redis.call('incr', KEYS[1])}")
        for number in range(20):
            self.assertEqual(self.redis.eval("return redis.call('incr', KEYS[1])", 1, f"key:{number}"), 1)
            self.assertEqual(script(keys=[f"key:{number}"]), [f"key:{number}", 2])
        code = "#!lua name=lib\nredis.register_function('up', function(keys) return redis.call('incr', keys[1]) end)"
        for port in self.ports[:3]:
            self.node(port).function_load(code, replace=True)
        for number in range(20):
            self.assertEqual(self.redis.fcall("up", 1, f"key:{number}"), 3)
        with self.assertRaisesRegex(redis.exceptions.ResponseError, "non local key"):
            self.redis.eval("return redis.call('get', 'another')", 1, "{tag}key")

    def test_messages(self):
        everywhere = self.redis.pubsub(ignore_subscribe_messages=True)
        everywhere.subscribe("news")
        sharded = self.redis.pubsub(ignore_subscribe_messages=True)
        channels = [f"shard:{number}" for number in range(6)]
        for channel in channels:
            sharded.ssubscribe(channel)
        until(lambda: sum(self.subscribers(port, channels) for port in self.ports[:3]) == 6)
        # From any node.
        for number, port in enumerate(self.ports):
            self.node(port).publish("news", number)
        heard = [until(lambda: everywhere.get_message(timeout=1))["data"] for _ in self.ports]
        self.assertEqual(sorted(heard), list("012345"))
        for channel in channels:
            self.assertEqual(self.redis.spublish(channel, f"to {channel}"), 1)
        heard = [until(sharded.get_sharded_message)["data"] for _ in channels]
        self.assertEqual(sorted(heard), [f"to {channel}" for channel in channels])
        everywhere.close()
        sharded.close()

    def subscribers(self, port, channels):
        return sum(count for _, count in self.node(port).pubsub_shardnumsub(*channels))

    def test_replicas_are_read(self):
        reader = self.connect(load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN)
        for number in range(30):
            self.redis.set(f"key:{number}", number)
        for port in self.ports[:3]:
            self.assertEqual(self.redis.wait(1, 5000, target_nodes=self.redis.get_node("127.0.0.1", port)), 1)
        asked = sum(self.node(port).info("stats")["total_commands_processed"] for port in self.ports[3:])
        for number in range(30):
            until(lambda: reader.get(f"key:{number}") == str(number))
            self.assertEqual(reader.get(f"key:{number}"), str(number))
        self.assertGreater(sum(self.node(port).info("stats")["total_commands_processed"] for port in self.ports[3:]), asked + 20)
        with self.assertRaises(redis.exceptions.MovedError):
            self.node(self.ports[3]).get("key:1")

    def test_locks_of_the_client(self):
        with self.redis.lock("job", timeout=30):
            self.assertFalse(self.connect().lock("job", timeout=30).acquire(blocking=False))
        counted = []

        def work():
            client = self.connect()
            for _ in range(5):
                with client.lock("counter", timeout=30, sleep=0.005):
                    value = int(client.get("total") or 0)
                    client.set("total", value + 1)
                    counted.append(value)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(sorted(counted), list(range(20)))

    def test_own_locks_are_routed(self):
        self.needs_own_commands()
        call = self.redis.execute_command
        for number in range(20):
            lock = f"lock:{number}"
            fence, holds, left = call("LOCK.ACQUIRE", lock, "me", "PX", 30000)
            self.assertTrue(fence > 0 and holds == 1 and left > 29000)
            self.assertEqual(call("LOCK.ACQUIRE", lock, "you", "PX", 30000)[0], 0)
            self.assertEqual(call("LOCK.GUARD", lock, "me", "FENCE", fence), 1)
            self.assertEqual(call("LOCK.RENEW", 1, lock, "me", "PX", 60000), [fence])
            self.assertEqual(call("LOCK.WAITERS", lock), [])
            self.assertEqual(call("LOCK.INFO", lock)["mode"], "exclusive")
            self.assertEqual(call("LOCK.RELEASE", lock, "me"), 0)
            semaphore = f"semaphore:{number}"
            [permit], left = call("SEM.ACQUIRE", semaphore, "me", "LIMIT", 2, "PX", 30000)[:2]
            self.assertGreater(left, 29000)
            self.assertEqual(call("SEM.RENEW", semaphore, permit, "PX", 40000), 1)
            self.assertTrue(call("SEM.INFO", semaphore))
            self.assertEqual(call("SEM.RELEASE", semaphore, permit), 1)
        self.assertGreater(call("LOCK.MACQUIRE", 2, "{pair}a", "{pair}b", "me", "PX", 30000)[0], 0)
        self.assertEqual(call("LOCK.BREAK", "{pair}a"), 1)
        with self.assertRaisesRegex(redis.exceptions.RedisClusterException, "same key slot"):
            call("LOCK.MACQUIRE", 2, "a", "b", "me", "PX", 30000)

    def test_a_slot_moves_key_by_key_under_load_and_back(self):
        keys = [f"{{moving}}{number}" for number in range(20)]
        source, slot = self.owner("{moving}")
        target = next(port for port in self.ports[:3] if port != source)
        with Load(self.connect(), keys) as load:
            for here, there in [(source, target), (target, source)]:
                old, new = self.node(here), self.node(there)
                new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.identity(here))
                old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.identity(there))
                # Not there yet, so created at the target: the client is told ASK.
                self.assertTrue(self.redis.set(f"{{moving}}new:{there}", "asked"))
                while found := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 4):
                    old.execute_command("MIGRATE", "127.0.0.1", there, "", 0, 5000, "KEYS", *found)
                    load.rounds(1)
                for port in [there, here]:
                    self.node(port).execute_command("CLUSTER SETSLOT", slot, "NODE", self.identity(there))
                until(lambda: all(self.owner_told_by(port, slot) == there for port in self.ports))
                load.rounds(3)
                self.assertEqual(new.get(f"{{moving}}new:{there}"), "asked")
        self.assertEqual({key: int(self.redis.get(key)) for key in keys}, load.counts)

    def owner_told_by(self, port, slot):
        ranges = self.node(port).execute_command("CLUSTER SLOTS")
        return next((primary[1] for first, last, primary, *_ in ranges if first <= slot <= last), None)

    def test_slots_move_at_once_under_load_and_back(self):
        self.needs_own_commands()
        keys = [f"{{moving}}{number}" for number in range(20)]
        source, slot = self.owner("{moving}")
        target = next(port for port in self.ports[:3] if port != source)
        with Load(self.connect(), keys) as load:
            for here, there in [(source, target), (target, source)]:
                request = ["CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.identity(there)]
                self.node(here).execute_command(*request)
                until(lambda: all(self.owner_told_by(port, slot) == there for port in self.ports))
                load.rounds(3)
        self.assertEqual({key: int(self.redis.get(key)) for key in keys}, load.counts)

    def test_a_blocked_client_follows_its_slot(self):
        self.needs_own_commands()
        source, slot = self.owner("{queue}")
        target = next(port for port in self.ports[:3] if port != source)
        popped = []
        client = self.connect()
        thread = threading.Thread(target=lambda: popped.append(client.blpop(["{queue}a", "{queue}b"], 20)))
        thread.start()
        until(lambda: self.node(source).info("clients")["blocked_clients"] == 1)
        self.node(source).execute_command("CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.identity(target))
        until(lambda: self.node(target).info("clients")["blocked_clients"] == 1)
        self.redis.rpush("{queue}b", "job")
        thread.join(30)
        self.assertEqual(popped, [("{queue}b", "job")])
        self.node(target).execute_command("CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.identity(source))
        until(lambda: all(self.owner_told_by(port, slot) == source for port in self.ports))

    def test_the_asynchronous_client(self):
        async def program():
            async with AsyncCluster(host="127.0.0.1", port=self.ports[0], decode_responses=True) as client:
                await asyncio.gather(*(client.set(f"key:{number}", number) for number in range(200)))
                found = await asyncio.gather(*(client.get(f"key:{number}") for number in range(200)))
                self.assertEqual(found, [str(number) for number in range(200)])
                async with client.pipeline() as pipeline:
                    for number in range(200):
                        pipeline.incr(f"key:{number}")
                    self.assertEqual(await pipeline.execute(), list(range(1, 201)))
                async with client.pipeline(transaction=True) as transaction:
                    transaction.set("{tag}a", 1).incr("{tag}a")
                    self.assertEqual(await transaction.execute(), [True, 2])
                self.assertEqual(len([key async for key in client.scan_iter(match="key:*")]), 200)
                self.assertEqual(await client.eval("return redis.call('incr', KEYS[1])", 1, "{tag}a"), 3)
                popped = asyncio.create_task(client.blpop(["queue"], 20))
                await asyncio.sleep(0)
                await client.rpush("queue", "job")
                self.assertEqual(tuple(await popped), ("queue", "job"))
                async with client.lock("lock", timeout=30):
                    self.assertFalse(await client.lock("lock", timeout=30).acquire(blocking=False))

        asyncio.run(program())


if __name__ == "__main__":
    unittest.main()
