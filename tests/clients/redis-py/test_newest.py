"""Commands of the newest Redis, by the client's methods where it has them."""

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
