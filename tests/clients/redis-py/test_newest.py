"""Commands of the newest Redis, as a program calls them whose client has no method for them."""

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
