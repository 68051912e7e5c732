"""The same for redis.asyncio: what waits for the server is awaited.

    locks = latchkey_locks.asyncio.Locks(redis.asyncio.Redis())
    async with await locks.acquire("jobs", lease=30, wait=10) as lock:
        await resource.write(value, fence=lock.fence)
"""

import asyncio

from redis.exceptions import MovedError, RedisError, ResponseError, TimeoutError

from . import _core
from ._core import PATIENCE, Limit, LockError, LockLost, NotGranted

__all__ = ["Limit", "Lock", "LockError", "LockLost", "Locks", "NotGranted", "Permits"]


class Locks:
    """Takes locks through a client of redis.asyncio. Arguments and results are those of `latchkey_locks.Locks`."""

    def __init__(self, client):
        self.client = client

    async def acquire(self, *keys, lease=30, wait=None, shared=False, grace=None, owner=None):
        """Takes a lock, or several at once, and gives a Lock. A cancelled task leaves nothing held and nobody waiting."""
        return await Lock(self.client, keys, owner, lease, grace, shared)._take(wait)

    async def permits(self, key, limit, count=1, *, lease=30, wait=None, grace=None, owner=None):
        """Takes permits of a semaphore of which `limit` are held at most, and gives Permits."""
        return await Permits(self.client, key, owner, lease, grace, limit, count)._take(wait)

    async def throttle(self, key, count, period, burst=0, quantity=1):
        """Whether `quantity` actions are allowed: `count` in `period` seconds and `burst` more at once. Gives a Limit."""
        return _core.limit(await self.client.execute_command(*_core.throttle_request(key, burst, count, period, quantity)))


class _Connection:
    """A connection of the pool for the key's server: until the reply, or as long as a session. Nothing repeats requests unseen."""

    def __init__(self, client, key):
        self.client, self.key, self.connection, self.pool = client, key, None, None

    async def ask(self, request, seconds, attach):
        if self.connection is None:
            await self._take()
            if attach:
                await self.ask(attach, 0, None)
        try:
            await self.connection.send_command(*request)
            # This time and not the socket's own, which may be shorter than the wait.
            reply = await self.connection.read_response(timeout=seconds + PATIENCE)
            if reply is None:
                raise TimeoutError("The server does not reply")
            return reply
        except MovedError:
            await self.close()
            # Which makes the client learn the new place.
            await self.client.execute_command("EXISTS", self.key)
            return await self.ask(request, seconds, attach)
        except ResponseError:
            raise
        except BaseException:
            await self.connection.disconnect(nowait=True)
            await self.close()
            raise

    async def _take(self):
        if not hasattr(self.client, "get_node_from_key"):
            self.pool = self.client.connection_pool
            self.connection = await _core.borrow(self.pool)
            return
        await self.client.initialize()
        self.pool = self.client.get_node_from_key(self.key)
        self.connection = self.pool.acquire_connection()
        try:
            await self.connection.connect()
        except BaseException:
            await self.close()
            raise

    async def close(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            # The nodes of older clusters only have the list.
            given = getattr(self.pool, "release", None) or self.pool._free.append
            given = given(connection)
            if given is not None:
                await given


class _Held:
    """The half of Lock and Permits that speaks to the server. Safe for use by several tasks."""

    def __init__(self, client, *args):
        super().__init__(*args)
        self._client, self._own, self._one = client, _Connection(client, self.key), asyncio.Lock()
        self._watch = None

    async def renew(self, lease=None):
        """Lets the lease last so many seconds from now on, at least; None: as long as at first. LockLost: it has ended."""
        await self._run(self._renew(lease))

    async def release(self, keep=0):
        """Gives it back. keep: nobody gets the lock for so many seconds. LockLost: it had ended before."""
        try:
            await self._run(self._release(keep))
        finally:
            await self._close()

    async def attach(self):
        """Binds the session to its connection, a new one if that broke; whether there was something to bind."""
        return await self._run(self._attach())

    def watch(self, on_lost, every=None):
        """Renews in a task of its own, three times in a lease or `every` so many seconds, and calls `on_lost(error)` once if
        this is lost, or if nothing was heard of the server until the lease was over. It ends with the release."""
        self._watch = asyncio.create_task(self._beat_on(on_lost, every))

    async def _beat_on(self, on_lost, every):
        while True:
            await asyncio.sleep(self._beat(every))
            try:
                await self.renew()
            except (LockLost, RedisError) as error:
                if isinstance(error, LockLost) or not self.left():
                    self._watch = None
                    return on_lost(error if isinstance(error, LockLost) else self._lost())

    async def __aenter__(self):
        return self

    async def __aexit__(self, _, error, __):
        try:
            await self.release()
        except (LockError, RedisError) as failed:
            if error is None:
                raise
            _core.note(error, failed)

    async def _take(self, wait):
        try:
            await self._run(self._acquire(wait))
        except BaseException as error:
            giving_back = asyncio.ensure_future(self._give_back(not isinstance(error, (NotGranted, ResponseError))))
            while not giving_back.done():
                try:
                    await asyncio.shield(giving_back)
                except asyncio.CancelledError:
                    pass  # Once more: the first one is on its way to the caller.
            raise
        return self

    async def _give_back(self, is_unknown):
        if is_unknown:
            # A cancelled task, or a connection that broke: nobody will release what may have been granted. The loop closes that
            # connection in its next turn; what is granted to it after the release would stay.
            await asyncio.sleep(0)
            try:
                await self._run(self._abandon())
            except RedisError:
                pass  # It ends with its lease.
        await self._close()

    async def _run(self, requests):
        """Answers the requests of a generator, and gives its result."""
        async with self._one:
            try:
                request, seconds = next(requests)
                while True:
                    try:
                        reply = await self._ask(request, seconds)
                    except RedisError as error:
                        request, seconds = requests.throw(error)
                    else:
                        request, seconds = requests.send(reply)
            except StopIteration as done:
                return done.value

    async def _ask(self, request, seconds):
        attach = self.grace is not None and self.fence and ["LOCK.ATTACH", self.owner]
        try:
            return await self._own.ask(request, seconds, attach)
        finally:
            if self.grace is None:
                await self._own.close()

    async def _close(self):
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        async with self._one:
            await self._own.close()


class Lock(_Held, _core.LockGrant):
    """A lock that is held, several of them, or a reader's part of one; `async with` releases it."""

    async def held(self):
        """Whether the server still says so."""
        return await self._run(self._held())


class Permits(_Held, _core.PermitsGrant):
    """Permits that are held; `async with` releases them."""
