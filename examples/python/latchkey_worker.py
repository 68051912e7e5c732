"""A worker for a queue of a Latchkey server through redis-py: docs/queues.md.

    worker = Worker(redis.Redis(), "{jobs}", lambda job: print(job[b"data"]))
    worker.run(stop=threading.Event())
"""

import os
import socket
import threading
import uuid


class Worker:
    """Hands jobs to `handle`, one at a time, and renews the lease while it works.

    A job whose handler raises comes again after a pause, which doubles each time; after `attempts` it is a dead letter.
    """

    def __init__(self, redis, queue, handle, group="workers", lease_ms=30_000, attempts=5, pause_ms=1000):
        self.redis, self.queue, self.handle, self.group = redis, queue, handle, group
        self.lease_ms, self.attempts, self.pause_ms = lease_ms, attempts, pause_ms
        # One name for each thing that works at a time: it fences.
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def create(self):
        try:
            self.redis.xgroup_create(self.queue, self.group, "0", mkstream=True)
        except Exception as error:
            if "BUSYGROUP" not in str(error):
                raise

    def run(self, stop, block_ms=1000):
        self.create()
        try:
            while not stop.is_set():
                self.work_once(block_ms)
        finally:
            self.redis.execute_command("XGROUP DELCONSUMER", self.queue, self.group, self.name, "RELEASE")

    def work_once(self, block_ms=1000):
        """Takes one job; False if there is none."""
        reply = self.redis.execute_command(
            "XREADGROUP", "GROUP", self.group, self.name, "COUNT", 1, "BLOCK", block_ms, "CLAIM", self.lease_ms,
            "DUE", self.queue + ":later", "UNIT", "MS",
            "MAXDELIVERIES", self.attempts, "DEADLETTER", self.queue + ":dead", "STREAMS", self.queue, ">",
            # Keeps idle time and deliveries in redis-py's reply.
            claim_min_idle_time=self.lease_ms)
        if not reply:
            return False
        entries = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))
        job, fields, *more = entries[0]
        deliveries = int(more[1]) if len(more) > 1 else 0
        done, lost = threading.Event(), threading.Event()
        heartbeat = threading.Thread(target=self._renew, args=(job, done, lost), daemon=True)
        heartbeat.start()
        try:
            self.handle(fields)
        except Exception:
            pause_ms = self.pause_ms * 2 ** min(deliveries, 20)
            self.redis.execute_command("XNACK", self.queue, self.group, "FAIL", "IDS", 1, job, "OWNER", self.name,
                                       "DELAY", pause_ms)
        else:
            self.redis.execute_command("XACKDEL", self.queue, self.group, "ACKED", "OWNER", self.name, "IDS", 1, job)
        finally:
            done.set()
            heartbeat.join()
        return True

    def _renew(self, job, done, lost):
        while not done.wait(self.lease_ms / 3000):
            if not self.redis.execute_command("XCLAIM", self.queue, self.group, self.name, 0, job, "JUSTID",
                                              "OWNER", self.name, parse_justid=True):
                lost.set()
                return
