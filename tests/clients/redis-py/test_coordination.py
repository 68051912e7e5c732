"""Semaphores, locks and queues as programs write them on top of hashes, lists and sorted sets."""

import json
import threading
import time
import uuid

import redis

from crowd import Gauge, in_threads
from server import ServerTest


def acquire_semaphore(client, name, limit, timeout=10):
    """Takes one of `limit` places; holders that were not heard of for `timeout` seconds lose theirs."""
    identifier = str(uuid.uuid4())
    now = time.time()
    pipe = client.pipeline(transaction=True)
    pipe.zremrangebyscore(name, "-inf", now - timeout)
    pipe.zadd(name, {identifier: now})
    pipe.zrank(name, identifier)
    if pipe.execute()[-1] < limit:
        return identifier
    client.zrem(name, identifier)
    return None


def acquire_fair_semaphore(client, name, limit, timeout=10):
    """The same in the order of a counter, so that no clock decides who comes first.

    Counting and entering are two steps: an early number that is entered late would push a holder out unseen, so that
    callers who contend hold a lock around this.
    """
    identifier = str(uuid.uuid4())
    owners, counter = name + ":owner", name + ":counter"
    now = time.time()
    pipe = client.pipeline(transaction=True)
    pipe.zremrangebyscore(name, "-inf", now - timeout)
    pipe.zinterstore(owners, {owners: 1, name: 0})
    pipe.incr(counter)
    count = pipe.execute()[-1]
    pipe.zadd(name, {identifier: now})
    pipe.zadd(owners, {identifier: count})
    pipe.zrank(owners, identifier)
    if pipe.execute()[-1] < limit:
        return identifier
    release_fair_semaphore(client, name, identifier)
    return None


def release_fair_semaphore(client, name, identifier):
    pipe = client.pipeline(transaction=True)
    pipe.zrem(name, identifier)
    pipe.zrem(name + ":owner", identifier)
    return pipe.execute()[0] == 1


class Semaphores(ServerTest):
    def test_a_semaphore_counts_its_holders_by_rank(self):
        held = [acquire_semaphore(self.redis, "sem", 3) for _ in range(3)]
        self.assertTrue(all(held))
        self.assertIsNone(acquire_semaphore(self.redis, "sem", 3))
        self.assertEqual(self.redis.zrem("sem", held[0]), 1)
        self.assertTrue(acquire_semaphore(self.redis, "sem", 3))
        self.assertEqual(self.redis.zcard("sem"), 3)

    def test_places_of_silent_holders_are_given_away(self):
        self.redis.zadd("sem", {"dead": time.time() - 11, "alive": time.time()})
        self.assertTrue(acquire_semaphore(self.redis, "sem", 2))
        self.assertIsNone(self.redis.zscore("sem", "dead"))

    def test_a_fair_semaphore_never_lets_in_more_than_its_limit(self):
        gauge = Gauge()

        def work(_):
            client = self.connect()
            for _ in range(5):
                while True:
                    with client.lock("fair:lock", timeout=60, sleep=0.001):
                        identifier = acquire_fair_semaphore(client, "fair", 3)
                    if identifier:
                        break
                    time.sleep(0.001)
                with gauge:
                    time.sleep(0.001)
                self.assertTrue(release_fair_semaphore(client, "fair", identifier))

        in_threads(8, work)
        self.assertEqual(gauge.entered, 40)
        self.assertLessEqual(gauge.most, 3)
        self.assertEqual(self.redis.exists("fair", "fair:owner"), 0)


def reentrant_lock(client, name, owner, lease_ms):
    """Takes the lock or takes it once more; None or the times it is held. A hash of one field: owner, holds."""

    def take(pipe):
        holder = pipe.hkeys(name)
        pipe.multi()
        if holder and holder != [owner]:
            return
        pipe.hincrby(name, owner, 1)
        pipe.pexpire(name, lease_ms)

    result = client.transaction(take, name)
    return result[0] if result else None


def reentrant_unlock(client, name, owner):
    """Gives the lock back once; the holds that are left, None if it is not the owner's."""

    def give(pipe):
        holds = pipe.hget(name, owner)
        pipe.multi()
        if holds is None:
            return
        if int(holds) > 1:
            pipe.hincrby(name, owner, -1)
        else:
            pipe.hdel(name, owner)
            pipe.publish(name + ":unlocked", owner)

    result = client.transaction(give, name)
    if not result:
        return None
    return result[0] if len(result) == 1 else 0


class ReentrantLock(ServerTest):
    def test_its_owner_takes_it_again_and_nobody_else_does(self):
        self.assertEqual(reentrant_lock(self.redis, "lock", "a", 30_000), 1)
        self.assertEqual(reentrant_lock(self.redis, "lock", "a", 30_000), 2)
        self.assertIsNone(reentrant_lock(self.redis, "lock", "b", 30_000))
        self.assertIsNone(reentrant_unlock(self.redis, "lock", "b"))
        self.assertEqual(reentrant_unlock(self.redis, "lock", "a"), 1)
        self.assertIsNone(reentrant_lock(self.redis, "lock", "b", 30_000))
        self.assertEqual(reentrant_unlock(self.redis, "lock", "a"), 0)
        self.assertEqual(self.redis.exists("lock"), 0)
        self.assertEqual(reentrant_lock(self.redis, "lock", "b", 30_000), 1)

    def test_a_lease_that_ends_frees_it(self):
        self.assertEqual(reentrant_lock(self.redis, "lock", "a", 20), 1)
        waited_until = time.monotonic() + 20
        while reentrant_lock(self.redis, "lock", "b", 30_000) is None:
            self.assertLess(time.monotonic(), waited_until)
        self.assertIsNone(reentrant_unlock(self.redis, "lock", "a"))

    def test_contenders_hold_it_one_at_a_time_and_are_told_when_it_is_free(self):
        gauge = Gauge()

        def work(number):
            client = self.connect()
            messages = client.pubsub(ignore_subscribe_messages=True)
            messages.subscribe("lock:unlocked")
            owner = f"owner {number}"
            for _ in range(5):
                while reentrant_lock(client, "lock", owner, 30_000) is None:
                    messages.get_message(timeout=0.05)
                with gauge:
                    reentrant_lock(client, "lock", owner, 30_000)
                    reentrant_unlock(client, "lock", owner)
                self.assertEqual(reentrant_unlock(client, "lock", owner), 0)
            messages.close()

        in_threads(6, work)
        self.assertEqual((gauge.entered, gauge.most), (30, 1))


class Queues(ServerTest):
    def test_a_fifo_queue_hands_each_job_to_one_worker_in_order(self):
        taken = [[] for _ in range(4)]

        def work(number):
            client = self.connect()
            while (job := client.blpop("queue", 20)[1]) != "stop":
                taken[number].append(int(job))

        workers = threading.Thread(target=in_threads, args=(4, work))
        workers.start()
        for job in range(500):
            self.redis.rpush("queue", job)
        self.redis.rpush("queue", *["stop"] * 4)
        workers.join(60)
        self.assertEqual(sorted(sum(taken, [])), list(range(500)))
        for jobs in taken:
            self.assertEqual(jobs, sorted(jobs))

    def test_of_several_queues_the_first_named_comes_first(self):
        self.redis.rpush("low", "l1", "l2")
        self.redis.rpush("high", "h1")
        order = [self.redis.blpop(["high", "normal", "low"], 20) for _ in range(3)]
        self.assertEqual(order, [("high", "h1"), ("low", "l1"), ("low", "l2")])
        self.assertEqual(self.redis.exists("high", "low"), 0)

    def test_a_priority_queue_gives_the_least_score_first(self):
        self.redis.zadd("jobs", {"later": 5, "now": 1, "soon": 3})
        order = [self.redis.bzpopmin("jobs", 20)[1] for _ in range(3)]
        self.assertEqual(order, ["now", "soon", "later"])

        def producer(_):
            self.connect().zadd("jobs", {"woken": 7})

        waiting = threading.Thread(target=in_threads, args=(1, producer))
        waiting.start()
        self.assertEqual(self.redis.bzpopmin("jobs", 20), ("jobs", "woken", 7.0))
        waiting.join()

    def test_a_reliable_queue_keeps_a_job_until_it_is_done(self):
        self.redis.rpush("queue", "a", "b", "c")
        job = self.redis.blmove("queue", "working:1", 20, "LEFT", "RIGHT")
        self.assertEqual(job, "a")
        self.assertEqual(self.redis.lrem("working:1", 1, job), 1)
        # The worker dies with the next one in hand; another puts it back in front.
        self.assertEqual(self.redis.blmove("queue", "working:1", 20), "b")
        self.assertEqual(self.redis.lmove("working:1", "queue", "RIGHT", "LEFT"), "b")
        self.assertEqual(self.redis.lrange("queue", 0, -1), ["b", "c"])
        self.assertEqual(self.redis.exists("working:1"), 0)

    def test_a_wait_that_is_in_vain_ends_in_time(self):
        started = time.monotonic()
        self.assertIsNone(self.redis.blpop("nothing", 0.05))
        self.assertGreaterEqual(time.monotonic() - started, 0.05)


class DelayQueues(ServerTest):
    def poll(self, client, name):
        """The due job of the least score, if this client was the one to take it."""
        jobs = client.zrangebyscore(name, "-inf", time.time(), start=0, num=1)
        return jobs[0] if jobs and client.zrem(name, jobs[0]) else None

    def test_polling_takes_each_due_job_once_and_none_early(self):
        begin = time.time()
        jobs = {json.dumps({"job": number}): begin + number / 100 for number in range(20)}
        self.redis.zadd("delayed", jobs)
        taken = []

        def work(_):
            client = self.connect()
            while client.exists("delayed"):
                if job := self.poll(client, "delayed"):
                    taken.append((job, time.time()))

        in_threads(3, work)
        self.assertEqual(sorted(job for job, _ in taken), sorted(jobs))
        for job, at in taken:
            self.assertGreaterEqual(at, jobs[job])

    def test_bzpopdue_sleeps_until_the_head_is_due(self):
        begin = time.time()
        jobs = {f"job {number}": begin + number / 50 for number in range(10)}
        self.redis.zadd("delayed", jobs)
        for number in range(10):
            key, job, score = self.redis.execute_command("BZPOPDUE", "delayed", 20)
            self.assertEqual((key, job), ("delayed", f"job {number}"))
            self.assertAlmostEqual(float(score), jobs[job], places=5)
            self.assertGreaterEqual(time.time(), jobs[job] - 0.001)
        self.assertEqual(self.redis.exists("delayed"), 0)

    def test_a_worker_that_waits_is_woken_by_an_earlier_job(self):
        self.redis.zadd("delayed", {"tomorrow": time.time() + 86_400})
        result = []

        def work(_):
            result.append(self.connect().execute_command("BZPOPDUE", "delayed", 20))

        waiting = threading.Thread(target=in_threads, args=(1, work))
        waiting.start()
        while waiting.is_alive() and self.redis.info("clients")["blocked_clients"] == 0:
            time.sleep(0.001)
        self.redis.zadd("delayed", {"now": time.time()})
        waiting.join(20)
        self.assertEqual(result[0][1], "now")

    def test_a_mover_brings_due_jobs_to_the_workers_queue(self):
        now_ms = time.time() * 1000
        self.redis.zadd("delayed", {"a": now_ms - 2, "b": now_ms - 1, "later": now_ms + 60_000})
        moved = self.redis.execute_command("BZMOVEDUE", "delayed", "queue", 20, "COUNT", 10, "UNIT", "MS")
        self.assertEqual(moved, 2)
        self.assertEqual(self.redis.lrange("queue", 0, -1), ["a", "b"])
        self.assertEqual(self.redis.zcard("delayed"), 1)


class Clients(ServerTest):
    def test_both_protocols_give_the_same_values(self):
        old, new = self.connect(protocol=2), self.connect(protocol=3)
        old.hset("h", mapping={"a": 1, "b": 2})
        old.zadd("z", {"m": 1.5})
        old.sadd("s", "x", "y")
        self.assertEqual(old.hgetall("h"), new.hgetall("h"))
        self.assertEqual(set(old.smembers("s")), set(new.smembers("s")))
        self.assertEqual(old.zscore("z", "m"), new.zscore("z", "m"))
        with self.assertRaises(redis.exceptions.ResponseError):
            new.lpush("h", "x")

    def test_a_stream_is_shared_by_a_group(self):
        for number in range(10):
            self.redis.xadd("events", {"n": number})
        self.redis.xgroup_create("events", "workers", id="0")
        seen = []
        for consumer in ("one", "two"):
            for _, entries in self.redis.xreadgroup("workers", consumer, {"events": ">"}, count=5):
                for identifier, fields in entries:
                    seen.append(int(fields["n"]))
                    self.redis.xack("events", "workers", identifier)
        self.assertEqual(seen, list(range(10)))
        self.assertEqual(self.redis.xpending("events", "workers")["pending"], 0)
