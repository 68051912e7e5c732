"""examples/python/latchkey_worker.py."""

import threading
import time

from latchkey_worker import Worker
from server import ServerTest


class WorkerTest(ServerTest):
    def setUp(self):
        super().setUp()
        self.needs_own_commands()

    def worker(self, handle, **options):
        worker = Worker(self.connect(), "{jobs}", handle, **options)
        worker.create()
        return worker

    def test_a_job_is_done_once(self):
        seen = []
        worker = self.worker(seen.append)
        self.redis.xadd("{jobs}", {"data": "now"})
        self.redis.zadd("{jobs}:later", {"later": time.time() * 1000 + 100})
        for _ in range(2):
            self.assertTrue(worker.work_once())
        self.assertFalse(worker.work_once(10))
        self.assertEqual(seen, [{"data": "now"}, {"data": "later"}])
        self.assertEqual(self.redis.xlen("{jobs}"), 0)

    def test_one_that_fails_comes_again_and_ends_as_a_dead_letter(self):
        tries = []

        def fail(job):
            tries.append(time.monotonic())
            raise ValueError(job)

        worker = self.worker(fail, attempts=3, pause_ms=50)
        self.redis.xadd("{jobs}", {"data": "bad"})
        while worker.work_once(1000):
            pass
        self.assertEqual(len(tries), 3)
        self.assertGreaterEqual(tries[1] - tries[0], 0.05)
        self.assertGreaterEqual(tries[2] - tries[1], 0.1)
        [(_, letter)] = self.redis.xrange("{jobs}:dead")
        self.assertEqual((letter["data"], letter[":deliveries"], letter[":reason"]), ("bad", "3", "deliveries"))
        self.assertEqual(self.redis.execute_command("XREDRIVE", "{jobs}:dead", "{jobs}"), 1)

    def test_a_lease_is_renewed_while_its_worker_lives_and_ends_when_it_dies(self):
        begun, done = threading.Event(), []

        def slowly(_):
            begun.set()
            time.sleep(0.6)
            done.append("slow")

        slow = self.worker(slowly, lease_ms=200)
        quick = self.worker(lambda _: done.append("quick"), lease_ms=200)
        self.redis.xadd("{jobs}", {"data": "job"})
        thread = threading.Thread(target=slow.work_once)
        thread.start()
        begun.wait(10)
        self.assertFalse(quick.work_once(400))
        thread.join()
        self.redis.xadd("{jobs}", {"data": "job"})
        # A worker that takes it and dies.
        self.redis.execute_command("XREADGROUP", "GROUP", "workers", "dead", "STREAMS", "{jobs}", ">")
        self.assertTrue(quick.work_once(2000))
        self.assertEqual(done, ["slow", "quick"])

    def test_a_worker_that_leaves_gives_its_jobs_to_others(self):
        stop = threading.Event()
        worker = self.worker(lambda _: stop.set())
        self.redis.xadd("{jobs}", {"data": "job"})
        worker.run(stop, block_ms=10)
        self.assertEqual(self.redis.xinfo_consumers("{jobs}", "workers"), [])
