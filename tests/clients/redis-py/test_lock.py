"""redis-py's own lock beside the package of locks (clients/python) on one key."""

import random
import threading
import time

from redis.exceptions import LockNotOwnedError

from crowd import Gauge, in_threads
from latchkey_locks import LockLost, Locks as Native, NotGranted
from server import ServerTest


class Locks(ServerTest):
    protocol = 2

    def setUp(self):
        super().setUp()
        self.needs_own_commands()
        self.client = self.connect(protocol=self.protocol)
        self.native = Native(self.client)

    def waiters(self):
        return len(self.redis.execute_command("LOCK.WAITERS", "lock"))

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.002)

    def test_a_client_that_has_lost_a_lock_goes_on(self):
        # By RESP3 it is told by a message that it did not ask for.
        for grace in None, 20:
            lock = self.native.acquire("lock", grace=grace)
            self.redis.delete("lock")
            for number in range(5):
                self.client.set("k", number)
                self.assertEqual(self.client.get("k"), str(number))
            with self.assertRaises(LockLost):
                lock.release()

    def test_redis_pys_lock_and_this_one_exclude_each_other(self):
        gauge, total, order = Gauge(), [0], []

        def work(number):
            client = self.connect(protocol=self.protocol)
            kind = "native" if number % 2 else "redis-py"
            for _ in range(40):
                if kind == "native":
                    lock = Native(client).acquire("lock")
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
        foreign = self.client.lock("lock", timeout=30, sleep=0.001)
        native = self.native.acquire("lock")
        self.assertFalse(foreign.acquire(blocking=False))
        native.release()
        self.assertTrue(foreign.acquire(blocking=False))
        with self.assertRaises(NotGranted):
            self.native.acquire("lock", wait=0)
        waiter = threading.Thread(target=in_threads, args=(1, lambda _: self.native.acquire("lock", wait=20)))
        waiter.start()
        self.until(lambda: self.waiters() == 1)
        foreign.release()
        waiter.join(20)
        self.assertFalse(waiter.is_alive())
        self.assertEqual(self.redis.exists("lock"), 1)

    def test_redis_pys_lock_finds_another_owner_where_this_one_holds(self):
        foreign = self.client.lock("lock", timeout=0.03, blocking=False)
        self.assertTrue(foreign.acquire())
        # It is late: the other took the lock when its time was over.
        native = self.native.acquire("lock", wait=20)
        self.assertTrue(foreign.locked())
        self.assertFalse(foreign.owned())
        for call in lambda: foreign.extend(10), foreign.reacquire, foreign.release:
            with self.assertRaises(LockNotOwnedError):
                call()
        self.assertFalse(self.client.lock("lock", timeout=1, blocking=False).acquire())
        self.assertTrue(native.held())
        native.release()


class LocksByResp3(Locks):
    protocol = 3
