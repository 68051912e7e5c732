"""examples/python/latchkey_lock.py, and redis-py's own lock beside it on one key."""

import random
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.exceptions import LockError, LockNotOwnedError, WatchError
from redis.retry import Retry

from crowd import Gauge, in_threads
from latchkey_lock import LatchkeyLock
from server import ServerTest


class Resource:
    """What a lock protects: it refuses a fence below the highest that it has seen."""

    def __init__(self):
        self.highest, self.values = 0, []

    def write(self, value, fence):
        if fence < self.highest:
            raise ValueError("a stale fence")
        self.highest = fence
        self.values.append(value)


class LosesReplies(redis.connection.UnixDomainSocketConnection):
    """A connection that breaks after the server has answered, once, when it is told to."""

    replies_to_lose = 0
    lost = []

    def read_response(self, *args, **options):
        reply = super().read_response(*args, **options)
        if LosesReplies.replies_to_lose:
            LosesReplies.replies_to_lose -= 1
            LosesReplies.lost.append(reply)
            self.disconnect()
            raise redis.exceptions.ConnectionError("the reply is lost")
        return reply


class Locks(ServerTest):
    protocol = 2

    def setUp(self):
        super().setUp()
        self.needs_own_commands()
        self.client = self.connect(protocol=self.protocol)

    def lock(self, client=None, **options):
        return LatchkeyLock(client or self.client, "lock", **options)

    def waiters(self):
        return len(self.redis.execute_command("LOCK.WAITERS", "lock"))

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.002)

    def test_it_is_one_owners_at_a_time_and_its_fence_grows(self):
        first, second = self.lock(), self.lock()
        with first:
            fence = first.fence
            self.assertTrue(first.owned() and first.locked())
            self.assertFalse(second.acquire(blocking=False))
            self.assertFalse(second.acquire(blocking_timeout=0.05))
            self.assertFalse(second.owned())
            with self.assertRaises(LockError):
                first.acquire()
            with self.assertRaises(LockError):
                second.release()
        self.assertIsNone(first.fence)
        self.assertFalse(first.locked())
        self.assertTrue(second.acquire())
        self.assertGreater(second.fence, fence)
        second.release()

    def test_a_wait_lasts_longer_than_the_sockets_timeout(self):
        impatient = self.connect(protocol=self.protocol, socket_timeout=0.1, retry=None)
        held, waiting = self.lock(), self.lock(impatient)
        held.acquire()
        taken = []
        waiter = threading.Thread(target=lambda: taken.append((waiting.acquire(), waiting.release())))
        waiter.start()
        self.until(lambda: self.redis.info("locks")["lock_timeouts_total"] >= 3)
        self.until(lambda: self.waiters() == 1)
        held.release()
        waiter.join(20)
        self.assertEqual(taken, [(True, None)])

    def test_waiters_are_served_in_the_order_in_which_they_came(self):
        held, order = self.lock(), []
        held.acquire()

        def wait(number):
            with self.lock(self.connect(protocol=self.protocol)):
                order.append(number)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
        for number, thread in enumerate(threads):
            thread.start()
            self.until(lambda: self.waiters() == number + 1)
        held.release()
        for thread in threads:
            thread.join(20)
        self.assertEqual(order, [0, 1, 2, 3, 4])

    def test_a_session_ends_with_its_connection(self):
        pool = self.connect(protocol=self.protocol)
        held = self.lock(pool, timeout=60, session_grace=0.02)
        held.acquire()
        self.assertEqual(self.redis.hget("lock", ":session"), "20 60000")
        # Other requests of the process say nothing about the life of the lock's connection.
        info = self.connect(protocol=3).execute_command("LOCK.INFO", "lock")
        self.assertNotEqual(info["owners"][0]["client"]["id"], pool.client_id())
        # The process dies.
        pool.connection_pool.disconnect()
        following = self.lock(blocking_timeout=20)
        self.assertTrue(following.acquire())
        with self.assertRaises(LockNotOwnedError):
            held.renew()
        with self.assertRaises(LockNotOwnedError):
            held.release()
        following.release()

    def test_a_session_is_taken_up_by_a_renewal_after_a_reconnect(self):
        pool = self.connect(protocol=self.protocol)
        held = self.lock(pool, timeout=60, session_grace=20)
        held.acquire()
        pool.connection_pool.disconnect()
        self.until(lambda: self.redis.pttl("lock") <= 20_000)
        held.renew()
        self.assertGreater(self.redis.pttl("lock"), 50_000)
        held.release()
        self.assertFalse(held.locked())

    def test_a_renewal_makes_the_lease_longer_and_never_shorter(self):
        with self.lock(timeout=1) as lock:
            lock.renew(60)
            self.assertGreater(self.redis.pttl("lock"), 50_000)
            lock.renew()
            self.assertGreater(self.redis.pttl("lock"), 50_000)

    def test_the_resource_refuses_an_owner_whose_lease_has_ended(self):
        resource, late, following = Resource(), self.lock(timeout=0.03), self.lock()
        late.acquire()
        stale = late.fence
        # The holder sleeps longer than its lease; neither the lock nor the server can stop it.
        self.assertTrue(following.acquire(blocking_timeout=20))
        resource.write("new", following.fence)
        with self.assertRaises(ValueError):
            resource.write("old", stale)
        self.assertFalse(late.owned())
        with self.assertRaises(LockNotOwnedError):
            late.release()
        self.assertTrue(following.owned())
        following.release()
        self.assertEqual(resource.values, ["new"])

    def test_a_retry_after_a_lost_reply_gets_the_same_grant(self):
        for retries in 3, 0:
            client = redis.Redis(
                connection_pool=redis.ConnectionPool(
                    connection_class=LosesReplies,
                    path=self.socket,
                    protocol=self.protocol,
                    retry=Retry(NoBackoff(), retries),
                )
            )
            client.ping()
            lock = self.lock(client)
            LosesReplies.lost, LosesReplies.replies_to_lose = [], 1
            if retries:
                lock.acquire()
            else:
                # Where the library does not ask again, the caller may.
                with self.assertRaises(redis.exceptions.ConnectionError):
                    lock.acquire()
                self.assertTrue(lock.acquire(blocking=False))
            self.assertEqual(LosesReplies.lost[0][0], lock.fence)
            lock.release()
            self.assertFalse(lock.locked())
            client.close()

    def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired(self):
        lock = self.lock(reentrant=True)
        with lock:
            fence = lock.fence
            with lock:
                self.assertEqual(lock.fence, fence)
                # Threads are owners of their own.
                in_threads(1, lambda _: self.assertFalse(lock.acquire(blocking=False)))
            self.assertTrue(lock.owned())
        self.assertFalse(lock.locked())
        # Lost in between: the inner one is refused, though the lock is free.
        lock.acquire()
        self.redis.delete("lock")
        with self.assertRaises(LockNotOwnedError):
            lock.acquire()
        self.assertFalse(lock.locked())

    def test_a_transaction_does_nothing_when_the_lock_is_lost(self):
        lock = self.lock()
        lock.acquire()
        for value in "held", "lost":
            pipe = self.client.pipeline(transaction=True)
            lock.guard(pipe)
            pipe.set("data", value)
            if value == "held":
                self.assertEqual(pipe.execute()[0], 1)
                self.redis.execute_command("LOCK.BREAK", "lock")
            else:
                with self.assertRaises(WatchError):
                    pipe.execute()
        self.assertEqual(self.redis.get("data"), "held")

    def test_a_client_that_has_lost_a_lock_goes_on(self):
        # By RESP3 it is told by a message that it did not ask for.
        for session_grace in None, 20:
            lock = self.lock(session_grace=session_grace)
            lock.acquire()
            self.redis.delete("lock")
            for number in range(5):
                self.client.set("k", number)
                self.assertEqual(self.client.get("k"), str(number))
            with self.assertRaises(LockNotOwnedError):
                lock.release()
            self.assertTrue(lock.acquire())
            lock.release()

    def test_redis_pys_lock_and_this_one_exclude_each_other(self):
        gauge, total, order = Gauge(), [0], []

        def work(number):
            client = self.connect(protocol=self.protocol)
            kind = "native" if number % 2 else "redis-py"
            for _ in range(40):
                if kind == "native":
                    lock = LatchkeyLock(client, "lock")
                else:
                    lock = client.lock("lock", timeout=30, sleep=0.0005)
                with lock, gauge:
                    # Read and write apart: a second owner would make an addition disappear.
                    seen = total[0]
                    order.append(kind)
                    time.sleep(0)
                    total[0] = seen + 1
                # Whoever polls gets a lock only while nobody is queued.
                time.sleep(random.uniform(0, 0.004))

        in_threads(6, work)
        self.assertEqual((total[0], gauge.entered, gauge.most), (240, 240, 1))
        self.assertEqual(self.redis.exists("lock"), 0)
        changes = sum(before != after for before, after in zip(order, order[1:]))
        self.assertGreater(changes, 2, "they took turns")

    def test_each_waits_for_the_other(self):
        native, foreign = self.lock(), self.client.lock("lock", timeout=30, sleep=0.001)
        native.acquire()
        self.assertFalse(foreign.acquire(blocking=False))
        native.release()
        self.assertTrue(foreign.acquire(blocking=False))
        self.assertFalse(native.acquire(blocking=False))
        waiter = threading.Thread(target=in_threads, args=(1, lambda _: self.assertTrue(self.lock().acquire(blocking_timeout=20))))
        waiter.start()
        self.until(lambda: self.waiters() == 1)
        foreign.release()
        waiter.join(20)
        self.assertTrue(native.locked())


    def test_redis_pys_lock_finds_another_owner_where_this_one_holds(self):
        native, foreign = self.lock(), self.client.lock("lock", timeout=0.03, blocking=False)
        self.assertTrue(foreign.acquire())
        # It is late: the other took the lock when its time was over.
        self.assertTrue(native.acquire(blocking_timeout=20))
        self.assertTrue(foreign.locked())
        self.assertFalse(foreign.owned())
        for call in lambda: foreign.extend(10), foreign.reacquire, foreign.release:
            with self.assertRaises(LockNotOwnedError):
                call()
        self.assertFalse(self.client.lock("lock", timeout=1, blocking=False).acquire())
        self.assertTrue(native.owned())
        native.release()


class LocksByResp3(Locks):
    protocol = 3
