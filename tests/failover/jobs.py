"""Jobs in a queue of docs/queues.md while the primary changes: producers, workers, and what the history shows.

A job is confirmed when its producer was told by WAIT that all replicas have it. A producer that does not know whether its job was
added tries again with the same IDMP identifier, or by NX. WAIT speaks of what its connection has written, and a repetition writes
nothing: a counter is written before it. One of four jobs is delayed; its time is the last part of its name. Workers read with CLAIM,
DUE, MAXDELIVERIES and a lease of LEASE_MS, end jobs by XACKDEL ... OWNER, and stand still for longer than the lease now and then, or
forget the job.
"""

import collections
import random
import threading
import time

QUEUE, LATER, DEAD, GROUP = "{jobs}", "{jobs}:later", "{jobs}:dead", "workers"
LEASE_MS = 1000
# Deliveries that a failover loses count too.
DELIVERIES_MAX = 50
# Two clocks are read, one after the other.
EARLY_MS = 2

READ = (
    f"XREADGROUP GROUP {GROUP} NAME COUNT 1 BLOCK 200 CLAIM {LEASE_MS} DUE {LATER} UNIT MS "
    f"MAXDELIVERIES {DELIVERIES_MAX} DEADLETTER {DEAD} STREAMS {QUEUE} >"
)


class History:
    """What clients were told. Times are those of `seconds`."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.lock = threading.Lock()
        # Of each job, when its producer last began to add it.
        self.tried = {}
        # Of each acknowledged job whether it was confirmed.
        self.added = {}
        # Of each job, when it began, and when its end was acknowledged, each with whether that was confirmed.
        self.begun = collections.defaultdict(list)
        self.ended = collections.defaultdict(list)
        # Ends that were refused, since another worker had the job.
        self.late = 0
        # Jobs that began before their time.
        self.early = 0

    def report(self, dead):
        """Prints the counts. Returns whether something happened that must not."""
        lost = {confirmed: 0 for confirmed in (False, True)}
        for job, confirmed in self.added.items():
            lost[confirmed] += job not in self.begun and job not in dead
        confirmed = sum(self.added.values())
        doubled = sum(len(times) > 1 for times in self.begun.values())
        ended_twice = sum(len(times) > 1 for times in self.ended.values())
        # A job whose end all copies had is not handed out again, unless its producer, who had not heard of it, added it once more.
        undone = 0
        for job, ends in self.ended.items():
            sure = [when for when, is_sure in ends if is_sure]
            undone += bool(sure) and max(self.begun[job]) > min(sure) > self.tried[job]
        print(
            f"jobs: {len(self.added)} added, {confirmed} of them confirmed by WAIT; {len(self.ended)} done, {doubled} begun more than once, "
            f"{ended_twice} ended more than once, {len(dead)} dead letters; lost: {lost[True]} confirmed, {lost[False]} others; "
            f"begun again after a confirmed end: {undone}; begun too early: {self.early}; ends of late workers refused: {self.late}"
        )
        return bool(lost[True] or undone or self.early or not self.ended)


class JobClient:
    """A part of a client, which the class of clients follows in the list of bases."""

    def __init__(self, cluster, name, waits, history, side=None):
        super().__init__(cluster, name, waits, side)
        self.history = history

    def is_confirmed(self, connection):
        if not self.waits:
            return False
        connection.call("INCR", "{jobs}:tick")
        return self.has_all(connection)


class Producer(JobClient):
    """Adds jobs."""

    tried = None

    def act(self, port, connection):
        if self.tried is None:
            self.count += 1
            due = time.time_ns() // 1_000_000 + random.randrange(3000) if self.count % 4 == 0 else 0
            self.tried = f"{self.name}:{self.count}:{due}", due
        job, due = self.tried
        with self.history.lock:
            self.history.tried[job] = self.history.seconds()
        if due:
            connection.call("ZADD", LATER, "NX", due, job)
        else:
            connection.call("XADD", QUEUE, "IDMP", "producers", job, "*", "data", job)
        # An error before leaves the job to be tried again.
        self.tried = None
        confirmed = self.is_confirmed(connection)
        with self.history.lock:
            self.history.added[job] = confirmed
        time.sleep(0.004)


class Worker(JobClient):
    """Takes jobs and ends them."""

    def act(self, port, connection):
        reply = connection.call(*READ.replace("NAME", self.name).split())
        if reply is None:
            return
        identifier, fields = reply[0][1][0][:2]
        job = dict(zip(fields[::2], fields[1::2]))["data"]
        now_ms = time.time_ns() // 1_000_000
        with self.history.lock:
            self.history.begun[job].append(self.history.seconds())
            self.history.early += int(job.rpartition(":")[2]) > now_ms + EARLY_MS
        chance = random.random()
        if chance < 0.01:
            return
        time.sleep(LEASE_MS * 1.2 / 1000 if chance < 0.02 else random.random() * 0.004)
        result = connection.call("XACKDEL", QUEUE, GROUP, "ACKED", "OWNER", self.name, "IDS", 1, identifier)
        if result == [1]:
            sure = self.is_confirmed(connection)
            with self.history.lock:
                self.history.ended[job].append((self.history.seconds(), sure))
        else:
            with self.history.lock:
                self.history.late += 1


def begin(connection):
    connection.call("XGROUP", "CREATE", QUEUE, GROUP, "0", "MKSTREAM")
    connection.call("XCFGSET", QUEUE, "IDMP-DURATION", 3600, "IDMP-MAXSIZE", 10000)


def is_drained(connection):
    return connection.call("XLEN", QUEUE) == 0 and connection.call("ZCARD", LATER) == 0


def dead_letters(connection):
    letters = connection.call("XRANGE", DEAD, "-", "+")
    return {dict(zip(fields[::2], fields[1::2]))["data"] for _, fields in letters}
