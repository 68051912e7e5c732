"""The table of cases by latchkey-locks for Python: each case over each kind of client, first without and then with asyncio."""

import asyncio
import json
import os
import sys
import threading
import time

import redis
import redis.asyncio
from redis.exceptions import RedisError, WatchError

import latchkey_locks
import latchkey_locks.asyncio

HOST = "127.0.0.1"
PORT, RELAY, SENTINEL = os.environ["PORT"], os.environ["RELAY"], os.environ["SENTINEL"]
CLUSTER = os.environ["CLUSTER"].split()[0]


class Own(Exception):
    pass


def client_of(over, library, protocol):
    options = {"protocol": protocol}
    if over == "cluster":
        return library.RedisCluster(host=HOST, port=int(CLUSTER), **options)
    if over == "sentinel":
        return library.sentinel.Sentinel([(HOST, int(SENTINEL))]).master_for("primary", **options)
    if over == "impatient":
        options["socket_timeout"] = 0.2
    return library.Redis(host=HOST, port=int(RELAY if over == "relay" else PORT), **options)


def seconds(step, name):
    return {name: step[name] / 1000} if name in step else {}


class Case:
    """Runs the steps of a case. All of it is awaited: by `self.wait`, what is not a coroutine is done elsewhere."""

    def __init__(self, tag, client, locks, isolated):
        self.tag, self.client, self.locks, self.isolated = "{" + tag + "}", client, locks, isolated
        self.grants, self.begun, self.told = {}, {}, {}

    async def do(self, call, *args, **options):
        if self.isolated:
            return await call(*args, **options)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*args, **options))

    async def step(self, step):
        expected, error = step.get("error"), None
        try:
            result = await getattr(self, step["do"])(step)
        except latchkey_locks.NotGranted as failed:
            error, result = "not granted", failed
        except latchkey_locks.LockLost as failed:
            error, result = "lost", failed
        except Own as failed:
            error, result = "own", failed
        except RedisError as failed:
            error, result = "server", failed
        except asyncio.CancelledError as failed:
            error, result = "cancelled", failed
        assert error == expected, f"{step}: {error}: {result!r}"
        if "holder" in step:
            owner = step["holder"] and self.grants[step["holder"]].owner
            assert result.holder == owner, f"{step}: {result.holder}, {owner}"
        if "besides" in step:
            assert "LockLost" in result.__notes__[0], result.__notes__
        for name, holds in {"above": int.__gt__, "same": int.__eq__}.items():
            if step["do"] in ("acquire", "permits") and name in step:
                assert holds(result.fence, self.grants[step[name]].fence), step
        if "free" in step:
            assert (result.free, len(result.permits)) == (step["free"], step.get("count", 1)), (step, result.free)
        if "as" in step and error is None and result is not None:
            self.grants[step["as"]] = result

    async def acquire(self, step):
        options = {**seconds(step, "lease"), **seconds(step, "wait"), **seconds(step, "grace")}
        if "owner" in step:
            options["owner"] = self.grants[step["owner"]].owner
        keys = [self.tag + key for key in step["keys"]]
        return await self.do(self.locks.acquire, *keys, shared=step.get("shared", False), **options)

    async def permits(self, step):
        options = {**seconds(step, "lease"), **seconds(step, "wait"), **seconds(step, "grace")}
        return await self.do(self.locks.permits, self.tag + step["key"], step["limit"], step.get("count", 1), **options)

    async def begin(self, step):
        self.begun[step["step"]["as"]] = asyncio.create_task(self.step(step["step"]))

    async def cancel(self, step):
        self.begun[step["of"]].cancel()

    async def end(self, step):
        await asyncio.wait_for(self.begun[step["of"]], 20)

    async def release(self, step):
        await self.do(self.grants[step["of"]].release, **seconds(step, "keep"))

    async def renew(self, step):
        await self.do(self.grants[step["of"]].renew, **seconds(step, "lease"))

    async def held(self, step):
        assert await self.do(self.grants[step["of"]].held) == step["is"], step

    async def attach(self, step):
        assert await self.do(self.grants[step["of"]].attach) == step["is"], step

    async def left(self, step):
        left = self.grants[step["of"]].left() * 1000
        assert step.get("above", -1) < left < step.get("below", 1e9), (step, left)

    async def guarded(self, step):
        transaction = self.client.pipeline(transaction=True)
        self.grants[step["of"]].guard(transaction)
        transaction.set(self.tag + step["key"], step["value"])
        try:
            done = bool(await self.do(transaction.execute))
        except WatchError:
            done = False
        assert done == step["is"], step

    async def watch(self, step):
        told = self.told[step["of"]] = threading.Event()
        self.grants[step["of"]].watch(lambda error: told.set() if isinstance(error, latchkey_locks.LockLost) else None)

    async def told_(self, step):
        if not step["is"]:
            assert not self.told[step["of"]].is_set(), step
        else:
            end = time.monotonic() + 20
            while not self.told[step["of"]].is_set():
                assert time.monotonic() < end, step
                await asyncio.sleep(0.005)

    async def scope(self, step):
        lock = await self.acquire(step)
        self.grants[step["as"]] = lock
        if self.isolated:
            async with lock:
                await self.inside(step)
        else:
            with lock:
                await self.inside(step)

    async def inside(self, step):
        for one in step["inside"]:
            await self.step(one)
        if step.get("raise"):
            raise Own()

    async def throttle(self, step):
        key, options = self.tag + step["key"], {name: step[name] for name in ("burst", "quantity") if name in step}
        limit = await self.do(self.locks.throttle, key, step["count"], step["period"], **options)
        assert (limit.allowed, limit.remaining) == (step["allowed"], step["remaining"]), (step, limit)

    async def kill(self, _):
        with redis.Redis(host=HOST, port=int(PORT)) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def pause(self, step):
        await asyncio.sleep(step["ms"] / 1000)

    async def command(self, step):
        words = [self.tag + word[1:] if word.startswith("$") else word for word in step["words"]]
        end = time.monotonic() + 20
        while True:
            reply = await self.do(self.client.execute_command, *words)
            reply = reply[step["item"]] if "item" in step else len(reply) if "count" in step else reply
            reply = reply.decode() if isinstance(reply, bytes) else "OK" if reply is True else reply
            right = reply > step["above"] if "above" in step else reply == step.get("count", step.get("reply"))
            if right or not step.get("until") or time.monotonic() > end:
                assert right, (step, reply)
                return
            await asyncio.sleep(0.005)


async def run(case, over, is_async, protocol):
    library = redis.asyncio if is_async else redis
    client = client_of(over, library, protocol)
    module = latchkey_locks.asyncio if is_async else latchkey_locks
    running = Case(f"{case['name'][:9]}{over}{is_async}{protocol}{time.monotonic_ns()}", client, module.Locks(client), is_async)
    for step in case["steps"]:
        do = {"told": running.told_}.get(step["do"])
        await asyncio.wait_for(do(step) if do else running.step(step), 60)
    await (client.aclose() if is_async else asyncio.sleep(0, client.close()))


async def main():
    passed, failed, skipped = 0, 0, 0
    for case in json.load(open(sys.argv[1])):
        for over in case.get("over", ["server", "cluster", "sentinel"]):
            if over == "sentinel" and not SENTINEL:
                skipped += 1
                continue
            for is_async, protocol in (False, 2), (True, 3), (False, 3), (True, 2):
                if over != "server" and (is_async, protocol) in ((False, 3), (True, 2)):
                    continue
                if not is_async and "needs" in case:
                    continue  # Nothing cancels a thread.
                try:
                    await run(case, over, is_async, protocol)
                    passed += 1
                except Exception as error:
                    failed += 1
                    print(f"FAILED {case['name']}, over {over}, async {is_async}, RESP{protocol}: {error!r}", flush=True)
    print(f"python: {passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


sys.exit(asyncio.run(main()))
