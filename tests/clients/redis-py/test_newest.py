"""Commands of the newest Redis, by the client's methods where it has them."""

import unittest

import redis

from server import ServerTest


class Newest(ServerTest):
    def test_hashes_are_imported_by_one_connection(self):
        client = self.redis.client()
        self.addCleanup(client.close)
        call = client.execute_command
        self.assertIn(call("HIMPORT", "PREPARE", "user", "name", "age"), (True, "OK", b"OK"))
        for number in range(3):
            call("HIMPORT", "SET", f"user:{number}", "user", f"name {number}", number)
        self.assertEqual(self.redis.hlen("user:2"), 2)
        self.assertEqual(self.redis.hmget("user:2", "name", "age"), ["name 2", "2"])
        with self.assertRaisesRegex(redis.ResponseError, "value count does not match"):
            call("HIMPORT", "SET", "user:3", "user", "alone")
        self.assertEqual(call("HIMPORT", "DISCARD", "user"), 1)
        with self.assertRaisesRegex(redis.ResponseError, "no such fieldset"):
            call("HIMPORT", "SET", "user:3", "user", "a", "b")
        self.assertEqual(call("HIMPORT", "DISCARDALL"), 0)

    def test_hashes_are_imported_by_the_methods_of_the_client(self):
        if not hasattr(self.redis, "himport_set"):
            self.skipTest("this version of redis-py has no such methods")
        self.redis.himport_prepare("user", ["name", "age"])
        self.redis.himport_set("user:1", "user", ["ann", 30])
        self.assertEqual(self.redis.hgetall("user:1"), {"name": "ann", "age": "30"})
        self.redis.himport_discard("user")
        self.redis.himport_discard_all()

    def test_blessed_keys_are_not_evicted(self):
        call = self.redis.execute_command
        self.redis.mset({"kept": "v", "other": "v"})
        self.assertEqual(call("BLESS", "SET", "kept", "NO-EVICT"), 1)
        self.assertEqual(call("BLESS", "SET", "kept", "NO-EVICT"), 0)
        self.assertEqual(call("BLESS", "GET", "kept"), ["NO-EVICT"])
        cursor, keys = call("BLESS", "SCAN", 0, "NO-EVICT")
        self.assertEqual((int(cursor), keys), (0, ["kept"]))
        self.redis.config_set("maxmemory-policy", "allkeys-lru")
        self.redis.config_set("maxmemory", 1)
        self.addCleanup(self.redis.config_set, "maxmemory-policy", "noeviction")
        self.addCleanup(self.redis.config_set, "maxmemory", 0)
        self.assertEqual(self.redis.exists("kept", "other"), 1)
        with self.assertRaises(redis.exceptions.OutOfMemoryError):
            self.redis.set("new", "v")
        self.assertEqual(call("BLESS", "CLEAR", "kept", "NO-EVICT"), 1)
        with self.assertRaises(redis.exceptions.OutOfMemoryError):
            self.redis.set("new", "v")
        self.assertEqual(self.redis.dbsize(), 0)


@unittest.skipUnless(hasattr(redis.Redis, "lmovem"), "this version of redis-py has no such methods")
class NewestMethods(ServerTest):
    """What the client's newest methods send and make of the replies, in both protocols."""

    def clients(self):
        for protocol in (2, 3):
            client = self.connect(protocol=protocol)
            self.addCleanup(client.close)
            client.flushall()
            yield client

    def test_strings_are_compared_and_counted(self):
        for client in self.clients():
            self.assertEqual(client.set("k", "v"), True)
            digest = client.digest("k")
            self.assertEqual(len(digest), 16)
            self.assertIsNone(client.set("k", "w", ifne="v"))
            self.assertEqual(client.set("k", "w", ifdeq=digest), True)
            self.assertEqual((client.delex("k", ifeq="v"), client.delex("k", ifdne=digest)), (0, 1))
            self.assertEqual(client.msetex({"a": 1, "b": 2}, ex=100), 1)
            self.assertEqual(client.msetex({"a": 1, "c": 2}, data_persist_option=redis.commands.core.DataPersistOptions.NX), 0)
            self.assertGreater(client.ttl("a"), 90)
            self.assertEqual(client.increx("n", byint=3, ubound=5, ex=100, enx=True), [3, 3])
            self.assertEqual(client.increx("n", byint=3, ubound=5), [3, 0])
            self.assertEqual(client.increx("n", byint=3, ubound=5, saturate=True), [5, 2])
            self.assertEqual([float(n) for n in client.increx("n", byfloat=0.5, persist=True)], [5.5, 0.5])
            self.assertEqual(client.ttl("n"), -1)

    def test_elements_move_in_batches_and_sets_are_counted(self):
        for client in self.clients():
            client.rpush("l", 1, 2, 3, 4)
            self.assertEqual(client.lmovem("l", "m", "LEFT", "RIGHT"), ["1"])
            self.assertEqual(client.lmovem("l", "m", "LEFT", "LEFT", count=2, mode="COUNT", ordering="BULK"), ["2", "3"])
            self.assertIsNone(client.lmovem("l", "m", "LEFT", "LEFT", count=2, mode="EXACTLY", ordering="OBO"))
            self.assertEqual(client.blmovem("l", "m", 1, "LEFT", "RIGHT", count=9, mode="COUNT", ordering="OBO"), ["4"])
            self.assertEqual(client.lrange("m", 0, -1), ["2", "3", "1", "4"])
            client.sadd("s", "a", "b")
            client.sadd("t", "b", "c")
            self.assertEqual((client.sunioncard(2, ["s", "t"]), client.sunioncard(2, ["s", "t"], limit=2)), (3, 2))
            self.assertEqual(client.sdiffcard(2, ["s", "t"]), 1)
            client.zadd("y", {"a": 5, "b": 7})
            client.zadd("z", {"b": 9})
            self.assertEqual([member for member, _ in client.zunion(["y", "z"], aggregate="COUNT", withscores=True)], ["a", "b"])
            self.assertEqual(client.zinterstore("d", {"y": 2, "z": 3}, aggregate="COUNT"), 1)
            self.assertEqual(client.zscore("d", "b"), 5)

    def test_streams_serve_as_queues(self):
        for client in self.clients():
            first = client.xadd("x", {"n": 1}, idmp=("p", b"1"))
            self.assertEqual(client.xadd("x", {"n": 1}, idmp=("p", b"1")), first)
            second = client.xadd("x", {"n": 2}, idmpauto="p")
            self.assertEqual(client.xadd("x", {"n": 2}, idmpauto="p"), second)
            self.assertTrue(client.xcfgset("x", idmp_duration=10, idmp_maxsize=5))
            client.xgroup_create("x", "g", 0)
            client.xreadgroup("g", "dead", {"x": ">"}, max_count=1)
            self.assertEqual(client.xnack("x", "g", "FAIL", first, retrycount=4), 1)
            taken = client.xreadgroup("g", "heir", {"x": ">"}, claim_min_idle_time=60_000, count=1)
            entries = dict(taken)["x"] if isinstance(taken, list) else taken["x"]
            self.assertIn(first, repr(entries))
            self.assertEqual(client.xpending("x", "g")["consumers"], [{"name": "heir", "pending": 1}])
            self.assertEqual(client.xackdel("x", "g", first, "7-7", ref_policy="DELREF"), [1, -1])
            self.assertEqual(client.xdelex("x", second, ref_policy="ACKED"), [2])
            self.assertEqual(client.xtrim("x", maxlen=0, approximate=False, ref_policy="KEEPREF"), 1)

    def test_fields_have_deadlines(self):
        for client in self.clients():
            self.assertEqual(client.hsetex("h", mapping={"a": 1, "b": 2}, ex=100), 1)
            self.assertEqual(client.hgetex("h", "a", "none", persist=True), ["1", None])
            self.assertEqual(client.httl("h", "a", "b")[0], -1)
            self.assertEqual(client.hgetdel("h", "a", "b"), ["1", "2"])
            self.assertEqual(client.exists("h"), 0)

    def test_members_move_between_sorted_sets(self):
        for client in self.clients():
            client.zadd("y", {"a": 1, "b": 2, "c": 3})
            call = client.execute_command
            self.assertEqual(call("ZMOVE", "y", "z", "MIN")[0], "a")
            self.assertEqual(call("BZMOVE", "y", "z", "MAX", 1)[0], "c")
            self.assertEqual((call("ZMOVEMEMBER", "y", "z", "b"), client.zcard("z")), (1, 3))

    def test_hot_keys_are_found(self):
        for client in self.clients():
            client.execute_command("HOTKEYS", "RESET")
            client.hotkeys_start([redis.commands.core.HotkeysMetricsTypes.CPU], count=5)
            for _ in range(10):
                client.incr("hot")
            client.hotkeys_stop()
            self.assertIn("hot", repr(client.hotkeys_get()))
            client.hotkeys_reset()
