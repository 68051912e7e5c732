"""Locks, semaphores and rate limits of a Latchkey server, through redis-py. See `latchkey_locks.asyncio` for redis.asyncio.

    locks = latchkey_locks.Locks(redis.Redis())
    with locks.acquire("jobs", lease=30, wait=10) as lock:
        resource.write(value, fence=lock.fence)
"""

import threading

from redis.exceptions import MovedError, RedisError, ResponseError, TimeoutError

from . import _core
from ._core import PATIENCE, Limit, LockError, LockLost, NotGranted

__all__ = ["Limit", "Lock", "LockError", "LockLost", "Locks", "NotGranted", "Permits"]


class Locks:
    """Takes locks through a client of redis-py: `Redis`, one of Sentinel's `master_for`, or `RedisCluster`."""

    def __init__(self, client):
        self.client = client

    def acquire(self, *keys, lease=30, wait=None, shared=False, grace=None, owner=None):
        """Takes a lock, or several at once, and gives a Lock.

        lease: seconds until it ends unless it is renewed. wait: seconds to wait in the server's queue; 0: it does not wait;
        None: for ever. shared: for reading, beside other readers. grace: a session: it ends so many seconds after its
        connection has closed, and the lease counts from the last request over that connection. owner: who asks, a random name
        if None; whoever asks with the same name gets the same grant. Errors: NotGranted, those of redis-py.
        """
        return Lock(self.client, keys, owner, lease, grace, shared)._take(wait)

    def permits(self, key, limit, count=1, *, lease=30, wait=None, grace=None, owner=None):
        """Takes permits of a semaphore of which `limit` are held at most, and gives Permits. See acquire()."""
        return Permits(self.client, key, owner, lease, grace, limit, count)._take(wait)

    def throttle(self, key, count, period, burst=0, quantity=1):
        """Whether `quantity` actions are allowed: `count` in `period` seconds and `burst` more at once. Gives a Limit."""
        return _core.limit(self.client.execute_command(*_core.throttle_request(key, burst, count, period, quantity)))


class _Connection:
    """A connection of the pool for the key's server: until the reply, or as long as a session. Nothing repeats requests unseen."""

    def __init__(self, client, key):
        self.client, self.key, self.connection, self.pool = client, key, None, None

    def ask(self, request, seconds, attach):
        if self.connection is None:
            node = self.client
            if hasattr(node, "get_node_from_key"):
                node = node.get_redis_connection(node.get_node_from_key(self.key))
            self.pool = node.connection_pool
            self.connection = _core.borrow(self.pool)
            if attach:
                self.ask(attach, 0, None)
        try:
            self.connection.send_command(*request)
            # Here, and not by the socket's own time, which may be shorter than the wait.
            if not self.connection.can_read(seconds + PATIENCE):
                raise TimeoutError("The server does not reply")
            return self.connection.read_response()
        except MovedError:
            self.close()
            # Which makes the client learn the new place.
            self.client.execute_command("EXISTS", self.key)
            return self.ask(request, seconds, attach)
        except ResponseError:
            raise
        except BaseException:
            self.connection.disconnect()
            self.close()
            raise

    def close(self):
        if self.connection is not None:
            self.pool.release(self.connection)
            self.connection = None


class _Held:
    """The half of Lock and Permits that speaks to the server. Safe for use by several threads."""

    def __init__(self, client, *args):
        super().__init__(*args)
        self._client, self._own, self._one = client, _Connection(client, self.key), threading.RLock()
        self._watch = None

    def renew(self, lease=None):
        """Lets the lease last so many seconds from now on, at least; None: as long as at first. LockLost: it has ended."""
        self._run(self._renew(lease))

    def release(self, keep=0):
        """Gives it back. keep: nobody gets the lock for so many seconds. LockLost: it had ended before."""
        try:
            self._run(self._release(keep))
        finally:
            self._close()

    def attach(self):
        """Binds the session to its connection, a new one if that broke; whether there was something to bind."""
        return self._run(self._attach())

    def watch(self, on_lost, every=None):
        """Renews in a thread of its own, three times in a lease or `every` so many seconds, and calls `on_lost(error)` once
        if this is lost, or if nothing was heard of the server until the lease was over. It ends with the release."""
        self._watch = threading.Event()
        threading.Thread(target=self._beat_on, args=(self._watch, on_lost, every), daemon=True).start()

    def _beat_on(self, ended, on_lost, every):
        while not ended.wait(self._beat(every)):
            try:
                self.renew()
            except (LockLost, RedisError) as error:
                if ended.is_set():
                    return
                if isinstance(error, LockLost) or not self.left():
                    return on_lost(error if isinstance(error, LockLost) else self._lost())

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        try:
            self.release()
        except (LockError, RedisError) as failed:
            if error is None:
                raise
            _core.note(error, failed)

    def _take(self, wait):
        try:
            self._run(self._acquire(wait))
        except BaseException as error:
            if not isinstance(error, (NotGranted, ResponseError)):
                # An interrupt, or a connection that broke: nobody will release what may have been granted.
                try:
                    self._run(self._abandon())
                except RedisError:
                    pass  # It ends with its lease.
            self._close()
            raise
        return self

    def _run(self, requests):
        """Answers the requests of a generator, and gives its result."""
        with self._one:
            try:
                request, seconds = next(requests)
                while True:
                    try:
                        reply = self._ask(request, seconds)
                    except RedisError as error:
                        request, seconds = requests.throw(error)
                    else:
                        request, seconds = requests.send(reply)
            except StopIteration as done:
                return done.value

    def _ask(self, request, seconds):
        attach = self.grace is not None and self.fence and ["LOCK.ATTACH", self.owner]
        try:
            return self._own.ask(request, seconds, attach)
        finally:
            if self.grace is None:
                self._own.close()

    def _close(self):
        if self._watch is not None:
            self._watch.set()
        with self._one:
            self._own.close()


class Lock(_Held, _core.LockGrant):
    """A lock that is held, several of them, or a reader's part of one; `with` releases it."""

    def held(self):
        """Whether the server still says so."""
        return self._run(self._held())


class Permits(_Held, _core.PermitsGrant):
    """Permits that are held; `with` releases them."""
