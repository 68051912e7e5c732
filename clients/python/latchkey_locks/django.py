"""`cache.lock` for Django: a mixin for the Redis backends of Django and of django-redis, whose locks are the server's.

    class Cache(latchkey_locks.django.LockMixin, django.core.cache.backends.redis.RedisCache):
        pass

    with cache.lock("jobs", timeout=30, blocking_timeout=10) as lock:
        resource.write(value, fence=lock.fence)
"""

import threading

from redis.exceptions import LockError, LockNotOwnedError

from . import Locks
from ._core import LockLost, NotGranted, note


class LockMixin:
    """Adds `lock` to a cache. The keys are those of the cache, with its prefix and version, and `lock:` before the name."""

    def lock(self, key, timeout=None, version=None, blocking=True, blocking_timeout=None):
        """A CacheLock. timeout: the lease, in seconds; None: 30. blocking_timeout: seconds to wait; None: for ever."""
        name = self.make_key(f"lock:{key}", version=version)
        return CacheLock(Locks(self._client_of(name)), str(name), timeout or 30, blocking, blocking_timeout)

    def _client_of(self, name):
        if hasattr(self, "client"):
            return self.client.get_client(write=True)  # django-redis
        return self._cache.get_client(name, write=True)


class CacheLock:
    """In the manner of redis-py's and django-redis's lock. Each thread holds its own."""

    def __init__(self, locks, name, timeout, blocking, blocking_timeout):
        self.name, self.timeout = name, timeout
        self._locks, self._blocking, self._blocking_timeout = locks, blocking, blocking_timeout
        self._mine = threading.local()

    def acquire(self, blocking=None, blocking_timeout=None):
        """Whether it was granted within the time to wait."""
        blocking = self._blocking if blocking is None else blocking
        wait = self._blocking_timeout if blocking_timeout is None else blocking_timeout
        try:
            self._mine.lock = self._locks.acquire(self.name, lease=self.timeout, wait=wait if blocking else 0)
        except NotGranted:
            return False
        return True

    def release(self):
        """Errors: LockError, if this thread holds none; LockNotOwnedError, if it was lost."""
        lock = self._held()
        del self._mine.lock
        self._or_not_owned(lock.release)

    def extend(self, additional_time=None):
        """Lets it last so many seconds from now on, at least; None: as long as at first."""
        self._or_not_owned(self._held().renew, additional_time)

    reacquire = extend

    def owned(self):
        """Whether this thread holds it, as the server says."""
        return hasattr(self._mine, "lock") and self._mine.lock.held()

    @property
    def fence(self):
        """The number of the grant. Hand it to whatever is protected."""
        return self._held().fence

    def guard(self, transaction):
        """Adds a guard to a transaction: it does nothing, and raises WatchError, unless this is held then."""
        return self._held().guard(transaction)

    def _held(self):
        if not hasattr(self._mine, "lock"):
            raise LockError("Cannot use an unlocked lock")
        return self._mine.lock

    @staticmethod
    def _or_not_owned(call, *args):
        try:
            call(*args)
        except LockLost as lost:
            raise LockNotOwnedError(str(lost)) from lost

    def __enter__(self):
        if not self.acquire():
            raise LockError("Unable to acquire lock within the time specified")
        return self

    def __exit__(self, _, error, __):
        try:
            self.release()
        except LockError as failed:
            if error is None:
                raise
            note(error, failed)
