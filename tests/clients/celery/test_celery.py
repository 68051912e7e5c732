"""Celery with the server as its broker and its store of results: one worker in a process of its own, and this program's calls."""

import os
import subprocess
import sys
import time

from celery import chain, chord, group

from server import ServerTest


class Celery(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ["SOCKET"] = cls.socket
        import tasks

        cls.tasks = tasks
        cls.worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "threads", "--concurrency", "3", "--loglevel", "CRITICAL"],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 40
        while not tasks.app.control.ping(timeout=0.2):
            if time.monotonic() > deadline or cls.worker.poll() is not None:
                cls.tearDownClass()
                raise AssertionError("the worker does not answer")

    @classmethod
    def tearDownClass(cls):
        cls.worker.terminate()
        cls.worker.wait(20)
        cls.tasks.app.close()
        super().tearDownClass()

    def setUp(self):
        """The worker's own keys stay: nothing is flushed between the tests."""
        self.redis = self.connect()

    def test_tasks_give_their_results(self):
        results = [self.tasks.add.delay(number, 1) for number in range(30)]
        self.assertEqual([result.get(timeout=40) for result in results], list(range(1, 31)))
        self.assertEqual(results[0].state, "SUCCESS")
        self.assertTrue(self.redis.exists("celery-task-meta-" + results[0].id))
        results[0].forget()
        self.assertFalse(self.redis.exists("celery-task-meta-" + results[0].id))

    def test_a_countdown_is_waited_for(self):
        begin = time.time()
        self.assertGreaterEqual(self.tasks.when.apply_async(countdown=0.5).get(timeout=40), begin + 0.5)

    def test_failures_are_told_and_retries_made(self):
        with self.assertRaisesRegex(ValueError, "no use"):
            self.tasks.fail.delay().get(timeout=40)
        self.assertEqual(self.tasks.third_time_lucky.delay().get(timeout=40), 2)

    def test_chains_groups_and_chords(self):
        add, total = self.tasks.add, self.tasks.total
        self.assertEqual(chain(add.s(1, 2), add.s(10))().get(timeout=40), 13)
        self.assertEqual(group(add.s(n, n) for n in range(5))().get(timeout=40), [0, 2, 4, 6, 8])
        self.assertEqual(chord((add.s(n, 1) for n in range(10)), total.s())().get(timeout=40), 55)

    def test_nothing_is_left_unacknowledged(self):
        self.tasks.add.apply_async((1, 2), priority=9).get(timeout=40)
        deadline = time.monotonic() + 40
        while self.redis.exists("unacked", "unacked_index", "celery"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
