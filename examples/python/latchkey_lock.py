"""A lock of a Latchkey server for redis-py, in the manner of `redis.lock.Lock`. See README.md for its traps.

    with LatchkeyLock(client, "jobs") as lock:
        resource.write(value, fence=lock.fence)
"""

import threading
import time
import uuid

from redis.exceptions import LockError, LockNotOwnedError


class LatchkeyLock:
    """A lock that waits in the server's queue and has a fence. Each thread that uses it is an owner of its own.

    timeout: the lease in seconds. blocking_timeout: how long acquire() waits; None: for ever.
    session_grace: the lock ends so many seconds after its connection closes; the lease counts from the connection's last
    sign of life. reentrant: a thread may acquire it again, and releases it as often.
    """

    def __init__(self, client, name, timeout=30, blocking=True, blocking_timeout=None, session_grace=None, reentrant=False):
        self.client, self.name = client, name
        self.lease_ms = max(1, int(timeout * 1000))
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.session_grace, self.reentrant = session_grace, reentrant
        self.mine = _Holding()

    @property
    def fence(self):
        """The number of this thread's grant. Hand it to whatever the lock protects; None if it is not held."""
        return self.mine.fence

    def acquire(self, blocking=None, blocking_timeout=None):
        """Takes the lock; False if another holds it and the time to wait is over.

        May be called again after an error: the owner stays the same, and so does a grant whose reply was lost.
        """
        if self.mine.holds and not self.reentrant:
            raise LockError("This thread holds the lock already")
        blocking = self.blocking if blocking is None else blocking
        seconds = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            fence = self._ask(until) if blocking else self._ask(0)
            if fence:
                break
            if not blocking or until is not None and time.monotonic() >= until:
                if not self.mine.holds:
                    self._forget()
                    return False
                raise self._lost()
        if self.mine.holds and fence != self.mine.fence:
            # The lease ended in between. Whoever relies on the first grant must not go on with another.
            self.mine.fence, self.mine.holds = fence, 1
            self.release()
            raise self._lost()
        self.mine.fence, self.mine.holds = fence, self.mine.holds + 1
        return True

    def release(self):
        """Gives the lock back. LockNotOwnedError: this thread has lost it."""
        if not self.mine.holds:
            raise LockError("Cannot release a lock that this thread does not hold")
        self.mine.holds -= 1
        if self.mine.holds:
            return
        try:
            left = self._connection().execute_command("LOCK.RELEASE", self.name, self.mine.owner, "FENCE", self.mine.fence)
        finally:
            self._forget()
        if left < 0:
            raise self._lost()

    def renew(self, seconds=None):
        """Lets the lease last so long from now on, at least; None: as long as at first. A session is bound to its new
        connection after a reconnect."""
        lease_ms = self.lease_ms if seconds is None else int(seconds * 1000)
        fences = self._connection().execute_command("LOCK.RENEW", 1, self.name, self.mine.owner, "PX", lease_ms)
        if fences != [self.mine.fence]:
            raise self._lost()
        return True

    reacquire = renew

    def owned(self):
        """Whether this thread still holds what it was granted."""
        guard = ("LOCK.GUARD", self.name, self.mine.owner, "FENCE", self.mine.fence)
        return self.mine.holds > 0 and self._connection().execute_command(*guard) == 1

    def locked(self):
        """Whether anybody holds the lock."""
        return self.client.exists(self.name) == 1

    def guard(self, pipe):
        """Adds a guard to a transaction: it does nothing, and raises WatchError, unless this grant is still held."""
        return pipe.execute_command("LOCK.GUARD", self.name, self.mine.owner, "FENCE", self.mine.fence)

    def __enter__(self):
        if self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified")

    def __exit__(self, *_):
        self.release()

    def _ask(self, until):
        """One request. `until`: the end of the wait by the monotonic clock; None: it does not end."""
        request = ["LOCK.ACQUIRE", self.name, self.mine.owner, "PX", self.lease_ms]
        seconds = [] if until is None else [until - time.monotonic()]
        # The client gives up a reply after its socket's timeout: a longer wait is made of several.
        patience = self.client.get_connection_kwargs().get("socket_timeout")
        seconds += [] if patience is None else [patience - min(1, patience / 2)]
        if not seconds:
            request += ["BLOCK", 0]
        elif min(seconds) > 0:
            request += ["BLOCK", max(1, int(min(seconds) * 1000))]
        if self.session_grace is not None:
            request += ["SESSION", "GRACE", max(1, int(self.session_grace * 1000))]
        return self._connection().execute_command(*request)[0]

    def _connection(self):
        """Sessions need a connection that nobody else uses: what a pool lends goes from hand to hand."""
        if self.session_grace is None:
            return self.client
        if self.mine.connection is None:
            self.mine.connection = self.client.client()
        return self.mine.connection

    def _forget(self):
        """Ends this thread's use of the lock: the next acquisition is another owner's."""
        if self.mine.connection is not None:
            self.mine.connection.close()
        self.mine.__init__()

    def _lost(self):
        return LockNotOwnedError(f"The lock {self.name} is no longer held by this owner")


class _Holding(threading.local):
    def __init__(self):
        self.owner, self.fence, self.holds, self.connection = uuid.uuid4().hex, None, 0, None
