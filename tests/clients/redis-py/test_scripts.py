"""Scripts as programs use them: locks that only their owner gives back, rate limiters, and what pub/sub tells."""

import hashlib
import socket
import threading
import time
import uuid

import redis
from redis.exceptions import LockError, LockNotOwnedError, NoScriptError, ResponseError

from crowd import Gauge, in_threads
from server import ServerTest

COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""

# KEYS: the window's sorted set. ARGV: now and window in milliseconds, limit, the request's name.
SLIDING_WINDOW = """
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local used = redis.call('ZCARD', KEYS[1])
if used >= limit then
    local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    return {0, tonumber(oldest[2]) + window - now}
end
redis.call('ZADD', KEYS[1], now, ARGV[4])
redis.call('PEXPIRE', KEYS[1], window)
return {1, limit - used - 1}
"""

# A bucket of tokens in a hash; fractions of tokens are kept. ARGV: now in milliseconds, tokens a second, capacity, wanted.
TOKEN_BUCKET = """
local now, rate, capacity, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1] or capacity)
local at = tonumber(bucket[2] or now)
tokens = math.min(capacity, tokens + (now - at) * rate / 1000)
local granted = tokens >= wanted
if granted then
    tokens = tokens - wanted
end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000))
return {granted, tostring(tokens)}
"""


class Locks(ServerTest):
    def test_fifty_contenders_own_it_one_at_a_time(self):
        gauge = Gauge()
        self.redis.set("unguarded", 0)

        def work(_):
            with self.connect() as client:
                give_back = client.register_script(COMPARE_AND_DELETE)
                for _ in range(3):
                    token = str(uuid.uuid4())
                    while not client.set("lock", token, nx=True, px=60_000):
                        time.sleep(0.002)
                    with gauge:
                        # Read and write apart: a second owner would make an addition disappear.
                        client.set("unguarded", int(client.get("unguarded")) + 1)
                    self.assertEqual(give_back(keys=["lock"], args=[token]), 1)

        in_threads(50, work)
        self.assertEqual((gauge.entered, gauge.most), (150, 1))
        self.assertEqual(self.redis.get("unguarded"), "150")
        self.assertEqual(self.redis.exists("lock"), 0)

    def test_a_late_owner_does_not_give_back_what_is_anothers(self):
        give_back = self.redis.register_script(COMPARE_AND_DELETE)
        self.assertTrue(self.redis.set("lock", "first", nx=True, px=10))
        deadline = time.monotonic() + 20
        while not self.redis.set("lock", "second", nx=True, px=60_000):
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(give_back(["lock"], ["first"]), 0)
        self.assertEqual(self.redis.get("lock"), "second")
        self.assertEqual(give_back(["lock"], ["second"]), 1)

    def test_the_librarys_lock_is_taken_extended_and_given_back(self):
        lock, other = self.redis.lock("lock", timeout=20), self.connect().lock("lock", timeout=20)
        self.assertTrue(lock.acquire(blocking=False))
        self.assertTrue(lock.owned() and lock.locked())
        self.assertFalse(other.acquire(blocking=False))
        self.assertFalse(other.owned())
        self.assertTrue(lock.extend(100, replace_ttl=True))
        self.assertGreater(self.redis.pttl("lock"), 90_000)
        self.assertTrue(lock.extend(100))
        self.assertGreater(self.redis.pttl("lock"), 190_000)
        self.assertTrue(lock.reacquire())
        self.assertLessEqual(self.redis.pttl("lock"), 20_000)
        lock.release()
        self.assertEqual(self.redis.exists("lock"), 0)
        with self.assertRaises(LockError):
            lock.release()

    def test_the_librarys_lock_is_lost_when_its_lease_ends(self):
        lock, other = self.redis.lock("lock", timeout=0.02), self.connect().lock("lock", timeout=20, sleep=0.005)
        self.assertTrue(lock.acquire(blocking=False))
        self.assertTrue(other.acquire(blocking_timeout=20))
        with self.assertRaises(LockNotOwnedError):
            lock.extend(10)
        with self.assertRaises(LockNotOwnedError):
            lock.release()
        self.assertTrue(other.owned())
        other.release()

    def test_the_librarys_lock_excludes_threads(self):
        gauge = Gauge()

        def work(_):
            with self.connect() as client:
                for _ in range(3):
                    with client.lock("lock", timeout=60, sleep=0.002):
                        with gauge:
                            time.sleep(0.0005)

        in_threads(10, work)
        self.assertEqual((gauge.entered, gauge.most), (30, 1))


class Scripts(ServerTest):
    def test_a_registered_script_is_sent_anew_where_it_is_unknown(self):
        script = self.redis.register_script("return {KEYS[1], ARGV[1], #KEYS, #ARGV}")
        digest = hashlib.sha1(script.script.encode()).hexdigest()
        self.assertEqual(script.sha, digest)
        self.assertTrue(self.redis.script_flush())
        self.assertEqual(self.redis.script_exists(digest), [False])
        with self.assertRaisesRegex(NoScriptError, "^No matching script. Please use EVAL.$"):
            self.redis.evalsha(digest, 1, "k", "v")
        for _ in range(2):
            self.assertEqual(script(keys=["k"], args=["v"]), ["k", "v", 1, 1])
        self.assertEqual(self.redis.script_exists(digest, "0" * 40), [True, False])
        self.assertEqual(self.redis.evalsha(digest.upper(), 1, "k", "v"), ["k", "v", 1, 1])

    def test_a_pipeline_loads_the_scripts_that_it_calls(self):
        add = self.redis.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
        self.redis.script_flush()
        pipe = self.redis.pipeline()
        pipe.set("n", 40)
        add(keys=["n"], args=[2], client=pipe)
        pipe.get("n")
        self.assertEqual(pipe.execute(), [True, 42, "42"])

    def test_values_of_each_kind_come_out(self):
        for text, reply in (
            ("return 3.99", 3),
            ("return true", 1),
            ("return false", None),
            ("return {1, 'two', {3, false}, nil, 5}", [1, "two", [3, None]]),
            ("return {ok = 'FINE'}", "FINE"),
            ("return redis.status_reply('FINE')", "FINE"),
            ("return redis.call('SET', KEYS[1], 1).ok", "OK"),
            ("return redis.call('GET', 'none')", None),
            ("return cjson.encode({a = {1, 2}})", '{"a":[1,2]}'),
            ("return cmsgpack.unpack(cmsgpack.pack({7, 'x'}))", [7, "x"]),
            ("return redis.sha1hex('')", hashlib.sha1(b"").hexdigest()),
        ):
            with self.subTest(text):
                self.assertEqual(self.redis.eval(text, 1, "key"), reply)

    def test_errors_come_out_as_the_command_gave_them(self):
        self.redis.rpush("list", "x")
        with self.assertRaisesRegex(ResponseError, "^WRONGTYPE Operation against a key holding the wrong kind of value"):
            self.redis.eval("return redis.call('INCR', KEYS[1])", 1, "list")
        # pcall gives the error to the script, which goes on.
        caught = "local reply = redis.pcall('INCR', KEYS[1]) return {redis.call('LLEN', KEYS[1]), reply.err ~= nil}"
        self.assertEqual(self.redis.eval(caught, 1, "list"), [1, 1])
        with self.assertRaisesRegex(ResponseError, "^my own words$"):
            self.redis.eval("return redis.error_reply('my own words')", 0)
        with self.assertRaisesRegex(ResponseError, "^Error compiling script"):
            self.redis.eval("return (", 0)
        with self.assertRaisesRegex(ResponseError, "Script attempted to access nonexistent global variable 'nothing'"):
            self.redis.eval("return nothing", 0)

    def test_a_transaction_and_a_script_work_together(self):
        add = self.redis.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")

        def both(pipe):
            before = int(pipe.get("n") or 0)
            pipe.multi()
            add(keys=["n"], args=[before + 1], client=pipe)
            pipe.incr("n")

        self.assertEqual(self.redis.transaction(both, "n"), [1, 2])
        self.assertEqual(self.redis.transaction(both, "n"), [5, 6])


class RateLimiters(ServerTest):
    def test_a_window_of_many_clients_lets_in_its_limit(self):
        let_in = []

        def work(number):
            with self.connect() as client:
                limiter = client.register_script(SLIDING_WINDOW)
                for request in range(5):
                    allowed, _ = limiter(keys=["window"], args=[1_000_000, 60_000, 30, f"{number}:{request}"])
                    if allowed:
                        let_in.append(number)

        in_threads(20, work)
        self.assertEqual(len(let_in), 30)
        self.assertEqual(self.redis.zcard("window"), 30)

    def test_a_window_slides_with_the_callers_clock(self):
        limiter = self.redis.register_script(SLIDING_WINDOW)
        replies = [
            limiter(keys=["window"], args=[now, 100, 2, f"at {now}"]) for now in (1000, 1040, 1050, 1100, 1120, 1140)
        ]
        self.assertEqual(replies, [[1, 1], [1, 0], [0, 50], [1, 0], [0, 20], [1, 0]])

    def test_a_bucket_fills_with_its_rate(self):
        limiter = self.redis.register_script(TOKEN_BUCKET)
        replies = [
            limiter(keys=["bucket"], args=[now, 10, 5, wanted]) for now, wanted in ((0, 5), (50, 1), (100, 1), (1000, 6), (1000, 5))
        ]
        self.assertEqual(replies, [[1, "0"], [None, "0.5"], [1, "0"], [None, "5"], [1, "0"]])

    def test_a_counter_gets_its_deadline_with_its_first_request(self):
        text = """
        local count = redis.call('INCR', KEYS[1])
        if count == 1 then
            redis.call('PEXPIRE', KEYS[1], ARGV[1])
        end
        return {count, redis.call('PTTL', KEYS[1]) > 0}
        """
        limiter = self.redis.register_script(text)
        self.assertEqual([limiter(keys=["hits"], args=[60_000]) for _ in range(3)], [[1, 1], [2, 1], [3, 1]])


def receive(messages, count):
    """The next `count` messages."""
    received = []
    deadline = time.monotonic() + 20
    while len(received) < count and time.monotonic() < deadline:
        if message := messages.get_message(timeout=1):
            received.append(message)
    return received


def message(kind, pattern, channel, data):
    return {"type": kind, "pattern": pattern, "channel": channel, "data": data}


class PubSub(ServerTest):
    def test_messages_have_their_exact_structure(self):
        for protocol in (2, 3):
            with self.subTest(protocol=protocol), self.connect(protocol=protocol).pubsub() as messages:
                messages.subscribe("news")
                self.assertEqual(receive(messages, 1), [message("subscribe", None, "news", 1)])
                messages.psubscribe("n?ws", "[a-m]*")
                self.assertEqual(
                    receive(messages, 2), [message("psubscribe", None, "n?ws", 2), message("psubscribe", None, "[a-m]*", 3)]
                )
                self.assertEqual(self.redis.publish("news", "hello"), 2)
                self.assertEqual(self.redis.publish("mail", ""), 1)
                self.assertEqual(self.redis.publish("zoo", "nobody"), 0)
                self.assertEqual(
                    receive(messages, 3),
                    [
                        message("message", None, "news", "hello"),
                        message("pmessage", "n?ws", "news", "hello"),
                        message("pmessage", "[a-m]*", "mail", ""),
                    ],
                )
                messages.unsubscribe("news")
                messages.punsubscribe()
                received = receive(messages, 3)
                self.assertEqual(received[0], message("unsubscribe", None, "news", 2))
                self.assertEqual({one["channel"] for one in received[1:]}, {"n?ws", "[a-m]*"})
                self.assertEqual([one["data"] for one in received[1:]], [1, 0])

    def test_the_wire_carries_what_the_protocol_says(self):
        for greeting, kind in ((b"", b"*"), (b"HELLO 3\r\n", b">")):
            with self.subTest(kind), socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(20)
                raw.connect(self.socket)
                raw.sendall(greeting + b"PSUBSCRIBE c*\r\n")
                wire = b""
                while not wire.endswith(b":1\r\n"):
                    wire += raw.recv(4096)
                self.assertTrue(wire.endswith(kind + b"3\r\n$10\r\npsubscribe\r\n$2\r\nc*\r\n:1\r\n"), wire)
                self.redis.publish("chan", "payload")
                expected = kind + b"4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n$4\r\nchan\r\n$7\r\npayload\r\n"
                wire = b""
                while len(wire) < len(expected):
                    wire += raw.recv(4096)
                self.assertEqual(wire, expected)

    def test_a_script_publishes_and_a_listener_hears_it_in_order(self):
        with self.redis.pubsub(ignore_subscribe_messages=True) as messages:
            messages.subscribe("done")
            receive_nothing = messages.get_message(timeout=1)
            self.assertIsNone(receive_nothing)
            text = "for n = 1, 3 do redis.call('PUBLISH', KEYS[1], n) end return redis.call('PUBLISH', KEYS[1], 'end')"
            self.assertEqual(self.connect().eval(text, 1, "done"), 1)
            self.assertEqual([one["data"] for one in receive(messages, 4)], ["1", "2", "3", "end"])

    def test_handlers_in_a_thread_get_what_is_theirs(self):
        heard, complete = [], threading.Event()

        def hear(message):
            heard.append((message["pattern"], message["channel"], message["data"]))
            if len(heard) == 2:
                complete.set()

        messages = self.redis.pubsub(ignore_subscribe_messages=True)
        messages.subscribe(orders=hear)
        messages.psubscribe(**{"user:*": hear})
        thread = messages.run_in_thread(sleep_time=0.01)
        sender = self.connect()
        while sender.pubsub_numpat() == 0:
            time.sleep(0.001)
        self.assertEqual(sender.pubsub_numsub("orders", "none"), [("orders", 1), ("none", 0)])
        self.assertEqual(sender.pubsub_channels(), ["orders"])
        sender.publish("orders", "1")
        sender.publish("user:7", "in")
        self.assertTrue(complete.wait(20))
        thread.stop()
        thread.join(20)
        self.assertEqual(heard, [(None, "orders", "1"), ("user:*", "user:7", "in")])

    def test_changes_of_keys_are_told_where_they_are_asked_for(self):
        self.redis.config_set("notify-keyspace-events", "KEA")
        try:
            with self.redis.pubsub(ignore_subscribe_messages=True) as messages:
                messages.psubscribe("__key*@0__:*")
                self.assertIsNone(messages.get_message(timeout=1))
                self.connect().eval("redis.call('SET', KEYS[1], 'v', 'PX', 60000) redis.call('DEL', KEYS[1])", 1, "k")
                self.assertEqual(
                    [(one["channel"], one["data"]) for one in receive(messages, 6)],
                    [
                        ("__keyspace@0__:k", "set"),
                        ("__keyevent@0__:set", "k"),
                        ("__keyspace@0__:k", "expire"),
                        ("__keyevent@0__:expire", "k"),
                        ("__keyspace@0__:k", "del"),
                        ("__keyevent@0__:del", "k"),
                    ],
                )
        finally:
            self.redis.config_set("notify-keyspace-events", "")
