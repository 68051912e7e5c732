"""Requests and replies of locks, without a connection: what `latchkey_locks` and `latchkey_locks.asyncio` have in common.

A generator here yields a request and the seconds for which the server may keep it, and is sent the reply, or thrown the
error of the connection. So waiting, repeating and giving back are written once.
"""

import math
import secrets
import time
from collections import namedtuple

from redis.exceptions import ConnectionError, TimeoutError

# Bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue.
LONGEST_WAIT = 60
# How many connections may break one after the other, before an acquisition gives up.
TRIES = 3
# How much longer than the server a client waits for the reply.
PATIENCE = 5

Limit = namedtuple("Limit", "allowed limit remaining retry_after reset_after")


class LockError(Exception):
    """What this package raises itself; errors of the connection are redis-py's."""


class NotGranted(LockError):
    """Others hold it, and the time to wait is over. `holder`: who; None where others only stand in line before, and for permits."""

    def __init__(self, name, holder=None):
        super().__init__(f"{name} is held by {holder}" if holder else f"{name} is not free")
        self.holder = holder


class LockLost(LockError):
    """The grant has ended: by its lease, its session, or somebody's hand."""


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def ms(seconds):
    return max(1, math.ceil(seconds * 1000))


def borrow(pool):
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("LOCK.ACQUIRE")  # of redis-py before 5.3


def twice(request):
    """Asks again if the connection breaks: requests of locks may be repeated. Gives the reply, and whether it is the second."""
    try:
        return (yield request, 0), False
    except (ConnectionError, TimeoutError):
        return (yield request, 0), True


class Grant:
    """What a lock and permits have in common. One grant, which ends with `release()`."""

    def __init__(self, key, owner, lease, grace):
        self.key, self.owner, self.lease, self.grace = key, owner or secrets.token_hex(16), lease, grace
        #: The number of this grant. Hand it to whatever is protected.
        self.fence = None
        self._until = 0.0

    def left(self):
        """Seconds for which this is held at least. It counts from before the request, by a clock that nobody sets."""
        return max(0.0, self._until - time.monotonic())

    def _acquire(self, wait):
        request = [*self._question(), "PX", ms(self.lease), *self._options()]
        request += [] if self.grace is None else ["SESSION", "GRACE", ms(self.grace)]
        until = math.inf if wait is None else time.monotonic() + wait
        block, broken = 0, 0
        while True:
            began = time.monotonic()
            try:
                reply = yield request + (["BLOCK", ms(block)] if block else []), block
            except (ConnectionError, TimeoutError):
                # It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
                block, broken = 0, broken + 1
                if broken == TRIES:
                    raise
                continue
            broken = 0
            if reply[0] and time.monotonic() - began <= self.lease / 10:
                self._until = began + self._read(reply)
                return self
            # A lease that began in a long wait is measured by asking again, which gets the same grant.
            block = 0 if reply[0] else min(LONGEST_WAIT, until - time.monotonic())
            if not reply[0] and block <= 0:
                raise NotGranted(self.key, self._holder(reply))

    def _renew(self, lease):
        lease = self.lease if lease is None else lease
        began = time.monotonic()
        for request, expected in self._renewals(ms(lease)):
            reply, _ = yield from twice(request)
            if reply != expected:
                raise self._lost()
        self._until = max(self._until, began + lease)

    def _release(self, keep):
        lost = False
        for request, least in self._releases(keep):
            # Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
            reply, repeated = yield from twice(request)
            lost = lost or not repeated and reply < least
        self._until = 0.0
        if lost:
            raise self._lost()

    def _abandon(self):
        """Gives back what may have been granted although nobody got to know: without a fence, as that is unknown too."""
        for request, _ in self._releases(0):
            yield request, 0

    def _attach(self):
        # Whoever asks over a new connection has attached it already.
        reply, _ = yield from twice(["LOCK.ATTACH", self.owner])
        return reply > 0

    def _lost(self):
        self._until = 0.0
        return LockLost(f"{self.key} is no longer held by {self.owner}")

    def _beat(self, every):
        """Seconds until a watch renews again."""
        return min(self.lease / 3 if every is None else every, max(0.001, self.left()))


class LockGrant(Grant):
    """One lock, several at once, or a reader's part of one."""

    def __init__(self, keys, owner, lease, grace, shared):
        self.keys = list(keys)
        super().__init__(self.keys[0], owner, lease, grace)
        self.shared = shared

    def _question(self):
        if len(self.keys) == 1:
            return ["LOCK.ACQUIRE", self.key, self.owner]
        return ["LOCK.MACQUIRE", len(self.keys), *self.keys, self.owner]

    def _options(self):
        return ["SHARED"] if self.shared else []

    def _read(self, reply):
        self.fence = reply[0]
        return reply[-1] / 1000

    def _holder(self, reply):
        return text(reply[3]) or None

    def _renewals(self, lease_ms):
        yield ["LOCK.RENEW", len(self.keys), *self.keys, self.owner, "PX", lease_ms], [self.fence] * len(self.keys)

    def _releases(self, keep):
        fence = [] if self.fence is None else ["FENCE", self.fence]
        for key in self.keys:
            yield ["LOCK.RELEASE", key, self.owner, *fence, *(["KEEP", ms(keep)] if keep else [])], 0

    def _guards(self):
        for key in self.keys:
            yield ["LOCK.GUARD", key, self.owner, "FENCE", self.fence]

    def _held(self):
        for request in self._guards():
            if not (yield from twice(request))[0]:
                return False
        return True

    def guard(self, transaction):
        """Adds guards to a transaction (a pipeline): unless this grant is held then, it does nothing and raises WatchError."""
        for request in self._guards():
            transaction.execute_command(*request)
        return transaction


class PermitsGrant(Grant):
    """Permits of a semaphore, all of one request."""

    def __init__(self, key, owner, lease, grace, limit, count):
        super().__init__(key, owner, lease, grace)
        self.limit, self.count = limit, count
        self.permits, self.free = [], None

    def _question(self):
        return ["SEM.ACQUIRE", self.key, self.owner, "LIMIT", self.limit]

    def _options(self):
        return ["COUNT", self.count]

    def _read(self, reply):
        self.permits, self.fence, self.free = [text(permit) for permit in reply[0]], reply[1], reply[2]
        return self.lease

    def _holder(self, _):
        return None

    def _renewals(self, lease_ms):
        for permit in self.permits:
            yield ["SEM.RENEW", self.key, permit, "PX", lease_ms], 1

    def _releases(self, _):
        yield ["SEM.RELEASE", self.key, *self.permits], len(self.permits)

    def _abandon(self):
        # Their names are known by asking again.
        reply = yield [*self._question(), "PX", ms(self.lease), *self._options()], 0
        if reply[0]:
            self._read(reply)
            yield from super()._abandon()


def throttle_request(key, burst, count, period, quantity):
    return ["CL.THROTTLE", key, burst, count, period, quantity]


def limit(reply):
    limited, most, remaining, retry_after, reset_after = reply
    return Limit(not limited, most, remaining, None if retry_after < 0 else retry_after, reset_after)


def note(error, failed):
    """An error of the block's own tells more than one of the release, which it gets as a note."""
    error.__notes__ = [*getattr(error, "__notes__", []), f"{type(failed).__name__}: {failed}"]
