"""Scenarios with one server, which is disturbed, or whose clients are: clocks, pauses, memory, deletions, other recipes."""

import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time

from history import Client
from scenario import Skipped, scenario
from single import LONG_MS, contend
from wire import Gone, Refused, until

# ---- clocks --------------------------------------------------------------------------------------------------------------


class WallClock:
    """The wall clock of a server, which can be set (clock.c)."""

    def __init__(self, world):
        here = os.path.dirname(os.path.abspath(__file__))
        compiler, library = shutil.which("cc"), os.path.join(world.folder, "clock.so")
        if os.uname().machine != "x86_64" or not compiler:
            raise Skipped("a clock can be set on x86-64 with a C compiler only")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, os.path.join(here, "clock.c")], check=True)
        self.file = os.path.join(world.folder, "clock")
        self.set(0)
        self.environment = {"LD_PRELOAD": library, "CLOCK_FILE": self.file}
        code = subprocess.run(["/bin/true"], env={**os.environ, **self.environment}).returncode
        if code != 0:
            raise Skipped(f"a clock cannot be set here: {code}")

    def set(self, ahead_ms):
        with open(self.file, "r+b" if os.path.exists(self.file) else "wb") as file:
            file.write(struct.pack("<q", ahead_ms))

    def check(self, world, server, ahead_ms):
        """The server's time is as it was set: else the scenario would tell nothing."""
        with world.wire(server) as wire:
            seconds = int(wire.call("TIME")[0])
        assert abs(seconds - time.time() - ahead_ms / 1000) < 2, f"the clock was not set: {seconds}"


@scenario("L15")
def clock_steps(world):
    """The wall clock is set to and fro by hours: no lease ends early, none lasts, nobody is forgotten."""
    clock = WallClock(world)
    server = world.server("--appendonly", "yes", environment=clock.environment)
    end = time.monotonic() + world.seconds
    long_ones = [world.client(server, f"long-{number}") for number in range(4)]
    fences = [client.acquire(f"long-{number}", LONG_MS) for number, client in enumerate(long_ones)]
    running = world.threads(*(
        lambda name=f"c{number}", seed=world.random.random(): contend(world, server, name, seed, end, ["one", "two"], (20, 300))
        for number in range(8)
    ))
    while time.monotonic() < end:
        time.sleep(world.random.random() * 0.2)
        ahead_ms = world.random.choice((-86_400_000, -3_600_000, -1000, 0, 1000, 3_600_000, 86_400_000 * 400))
        clock.set(ahead_ms)
        clock.check(world, server, ahead_ms)
        for number, client in enumerate(long_ones):
            client.guard(f"long-{number}", fences[number][0])
    world.join(running)


@scenario("L16")
def clock_over_restarts(world):
    """The wall clock is set back or forth while a server with a log is down: fences go on growing."""
    clock = WallClock(world)
    server = world.server("--appendonly", "yes", environment=clock.environment)
    end, count, ahead_ms = time.monotonic() + world.seconds, 0, 0
    while time.monotonic() < end or count < 5:
        count += 1
        client = world.client(server, "holder")
        for number in range(world.random.randint(1, 3)):
            client.acquire(f"k{count}-{number}", 300)
        client.close()
        # Leases of files are on the wall clock: that they end early or late is said in the documents.
        number = world.history.ask("end", key="")
        with world.down():
            server.signal(world.random.choice((signal.SIGKILL, signal.SIGTERM)))
            server.process.wait(30)
            ahead_ms = [-3_600_000, -7_200_000, 0, 3_600_000, -86_400_000][count % 5]
            clock.set(ahead_ms)
            world.start(server)
        world.history.answer(number, 1)
        clock.check(world, server, ahead_ms)


@scenario("L17")
def paused_server(world):
    """The server is stopped and continued: leases end when they would have, sessions live on, nobody is forgotten."""
    server = world.server()
    end, count = time.monotonic() + world.seconds, 0
    contending = world.threads(*(
        lambda name=f"c{number}", seed=world.random.random(): contend(world, server, name, seed, end, ["one", "two"], (20, 300))
        for number in range(6)
    ))
    while time.monotonic() < end or count < 2:
        count += 1
        session, holder = world.client(server, "session"), world.client(server, "holder")
        grant = session.acquire(f"session-{count}", 300, grace=50)
        holder.acquire(f"lease-{count}", 200)
        waiting, = world.stand(server, f"lease-{count}", LONG_MS, "waiting")
        seconds = world.random.choice((0.05, 0.6))
        with world.down():
            server.signal(signal.SIGSTOP)
            time.sleep(seconds)
            server.signal(signal.SIGCONT)
            continued = time.monotonic()
            waiting.finish()
        if seconds > 0.2:
            world.expect_after("the waiter was served", continued, 0, 0)
        with world.wire(server) as wire:
            owners = wire.call("LOCK.INFO", f"session-{count}")
        world.expect("session" in str(owners), f"a session outlives that its server stood still for {seconds} s")
        session.guard(f"session-{count}", grant[0])
        for client in (session, holder, waiting):
            client.close()
    world.join(contending)


# ---- clients that stand still --------------------------------------------------------------------------------------------

# A resource that compares fences, and counts its writes.
WRITE = """
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or '0') then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return redis.call('INCR', KEYS[2])
"""


@scenario("L18")
def paused_client(world):
    """Holders are stopped for longer than their leases and write afterwards: a resource with fences refuses them."""
    server = world.server()
    end, px = time.monotonic() + world.seconds, 100

    def work(name):
        count = 0
        client = Client(world.history, server, name)
        while time.monotonic() < end:
            count += 1
            client.owner = f"{name}-{count}"
            fence = client.acquire("lock", px, block=0)[0]
            for _ in range(3):
                client.do("write", ("EVAL", WRITE, 2, "highest", "writes", fence), key="lock", fence=fence)
                time.sleep(0.002)
            client.release("lock", fence)

    children = [world.process(lambda name=f"c{number}": work(name)) for number in range(4)]
    while time.monotonic() < end:
        child = world.random.choice(children)
        world.kill(child, signal.SIGSTOP)
        time.sleep(px / 1000 * world.random.choice((0.5, 2, 3)))
        world.kill(child, signal.SIGCONT)
        time.sleep(world.random.random() * 0.05)
    for child in children:
        world.reap(child)
    writes = [it for it in world.history.read() if it.kind == "write"]
    world.expect(any(not it.result for it in writes), "no write came too late: the scenario tells nothing")


@scenario("L19")
def pooled_session(world):
    """A pool gives a session's connection to somebody else, or closes it: it lives with the connection, or is taken along."""
    server = world.server()
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 3:
        count += 1
        key, px, grace = f"k{count}", 200, 100
        pooled = world.client(server, "owner")
        fence = pooled.acquire(key, px, grace=grace)[0]
        # Another borrows the connection: its requests are the session's signs of life.
        for _ in range(6):
            pooled.call("PING")
            time.sleep(px / 4000)
        other = world.client(server, "owner")
        world.expect(other.guard(key, fence) == 1, "a session lives on by what others ask over its connection")
        if count % 3 == 0:
            # Taken along: the end of the old connection is no more its end.
            world.expect(other.acquire(key, px, grace=grace)[0] == fence, "asking again is the same grant")
            pooled.close()
            for _ in range(4):
                time.sleep(grace / 2000)
                other.call("PING")
            world.expect(other.guard(key, fence) == 1, "a session that was taken along does not end with its old connection")
            pooled = other
        follower, = world.stand(server, key, LONG_MS, "follower")
        began = time.monotonic()
        if count % 3 == 1:
            # Silent: its last sign of life was before the guard over the other connection.
            follower.finish()
            world.expect_after("a silent session ended", began, 0, px)
            world.expect(pooled.guard(key, fence) == 0, "a session that ended is lost")
        else:
            pooled.close()
            follower.finish()
            world.expect_after("the session ended", began, grace - 1, grace)
        for client in (other, follower, pooled):
            client.close()


# ---- pauses, scripts, transactions ---------------------------------------------------------------------------------------


@scenario("L20")
def pauses_and_scripts(world):
    """CLIENT PAUSE and a script that does not end: nothing is granted meanwhile, then in order, and the killed get nothing."""
    server = world.server("--busy-reply-threshold", "50")
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 4:
        count += 1
        key, mode = f"k{count}", ("WRITE", "ALL", "script", "script-expires")[count % 4]
        holder, control = world.client(server, "holder"), world.client(server, "control")
        px = LONG_MS if mode == "script" else 100
        fence = holder.acquire(key, px)[0]
        waiters = world.stand(server, key, LONG_MS, "first", "second", "third")
        with world.down():
            if mode.startswith("script"):
                busy = world.client(server, "busy")
                busy.wire.send(("EVAL", "while true do end", 0))
                until(lambda: is_busy(control), "the script is too slow")
                if mode == "script":
                    try:
                        holder.release(key, fence)
                        world.expect(False, "a lock was released during a script")
                    except Refused as error:
                        world.expect(str(error).startswith("BUSY"), f"while a script runs a release is answered {error}")
                time.sleep(0.2)
                control.call("SCRIPT", "KILL")
                busy.close()
                if mode == "script":
                    holder.release(key, fence)
            else:
                began = time.monotonic()
                control.call("CLIENT", "PAUSE", 300, mode)
                time.sleep(0.15)
                if count % 8 < 4:
                    # A waiter that is killed within the pause gets nothing after it.
                    waiters.pop(0).close()
        for number, waiter in enumerate(waiters):
            grant = waiter.finish()
            if number == 0 and not mode.startswith("script"):
                world.expect_after("served after a pause", began, 299, 300)
            waiter.release(key, grant[0])
        for client in (holder, control, *waiters):
            client.close()


def is_busy(client):
    try:
        client.wire.call("GET", "x")
        return False
    except Refused as error:
        return str(error).startswith("BUSY")


@scenario("L21")
def transactions(world):
    """WATCH sees grants, renewals and losses; EXEC with a guard runs exactly while the lock is held; nothing waits in MULTI."""
    server = world.server()
    end, count = time.monotonic() + world.seconds, 0

    def guarded(name, seed):
        chance, number = random.Random(seed), 0
        while time.monotonic() < end:
            number += 1
            client = world.client(server, f"{name}-{number}")
            grant = client.acquire("shared", chance.randint(5, 40), block=0)
            fence = grant[0]
            for _ in range(4):
                time.sleep(chance.random() * 0.01)
                asked = client.ask("guard", key="shared", fence=fence)
                client.wire.send(
                    ("MULTI",), ("LOCK.GUARD", "shared", client.owner, "FENCE", fence), ("INCRBY", "total", 1), ("EXEC",)
                )
                replies = [client.wire.reply() for _ in range(4)]
                world.history.answer(asked, 0 if replies[3] is None else replies[3][0])
            client.release("shared", fence)
            client.close()

    running = world.threads(*(lambda name=f"g{n}", seed=world.random.random(): guarded(name, seed) for n in range(4)))
    while time.monotonic() < end or count < 5:
        count += 1
        key, what = f"k{count}", ("grant", "renew", "expire", "release", "nothing")[count % 5]
        holder, watcher = world.client(server, "holder"), world.client(server, "watcher")
        fence = None if what == "grant" else holder.acquire(key, 40 if what == "expire" else LONG_MS)[0]
        watcher.wire.call("WATCH", key)
        if what == "grant":
            holder.acquire(key, LONG_MS)
        elif what == "renew":
            holder.renew(key, 2 * LONG_MS)
        elif what == "expire":
            time.sleep(0.06)
        elif what == "release":
            holder.release(key, fence)
        watcher.wire.send(("MULTI",), ("LOCK.ACQUIRE", key, "watcher", "PX", 50, "BLOCK", 0), ("EXEC",))
        began = time.monotonic()
        replies = [watcher.wire.reply() for _ in range(3)]
        world.expect(time.monotonic() - began < 1, "nothing waits in a transaction")
        world.expect((replies[2] is None) == (what != "nothing"), f"WATCH and {what}: EXEC was answered {replies[2]}")
        for client in (holder, watcher):
            client.close()
    world.join(running)
    granted = sum(1 for it in world.history.read() if it.kind == "guard" and it.result)
    with world.wire(server) as wire:
        world.expect(int(wire.call("GET", "total") or 0) == granted, f"{granted} guarded transactions have run")
    refused = sum(1 for it in world.history.read() if it.kind == "guard" and it.result == 0)
    world.expect(granted and refused, f"{granted} ran, {refused} were refused: one of them tells nothing")


POLICIES = (
    "noeviction", "allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random",
    "volatile-ttl",
)


@scenario("L22")
def memory(world):
    """Memory runs out under each policy: held locks stay, releases and renewals work, waiters are served, new ones are refused."""
    server = world.server()
    for policy in POLICIES:
        with world.wire(server) as wire:
            wire.call("CONFIG", "SET", "maxmemory", 0, "maxmemory-policy", policy)
            holders = [world.client(server, f"{policy}-{number}") for number in range(50)]
            fences = [holder.acquire(holder.owner, LONG_MS)[0] for holder in holders]
            waiting, = world.stand(server, holders[0].owner, LONG_MS, "waiting")
            used = int(next(line for line in wire.call("INFO", "memory").split("\r\n") if "used_memory:" in line).split(":")[1])
            wire.call("CONFIG", "SET", "maxmemory", used + 3_000_000)
            refused = 0
            for number in range(300):
                try:
                    # Keys that may be evicted, some of them later than the locks.
                    wire.call("SET", f"ballast-{number}", "x" * 50_000, "EX", 3 + number)
                    wire.call("GET", f"ballast-{number}")
                except Refused as error:
                    assert str(error).startswith("OOM"), error
                    refused += 1
            world.expect((refused > 0) == (policy == "noeviction"), f"{policy}: {refused} writes were refused")
            if policy == "noeviction":
                # Smaller than what the ballast left.
                wire.call("CONFIG", "SET", "maxmemory", used)
                try:
                    world.client(server, "new").acquire("new", 1000)
                    world.expect(False, "a new lock was granted without memory")
                except Refused as error:
                    world.expect(str(error).startswith("OOM"), f"without memory a new lock is answered {error}")
                world.expect(holders[1].acquire(holders[1].owner, LONG_MS)[0] == fences[1], "a retry needs no memory")
            for holder, fence in zip(holders, fences):
                holder.guard(holder.owner, fence)
                holder.renew(holder.owner, LONG_MS)
            for holder, fence in zip(holders, fences):
                world.expect(holder.release(holder.owner, fence) == 0, f"{policy}: {holder.owner} is released")
            grant = waiting.finish()
            world.expect(waiting.release(holders[0].owner, grant[0]) == 0, f"{policy}: who waited was served")
            wire.call("CONFIG", "SET", "maxmemory", 0)
            wire.call("FLUSHALL")
            for client in (*holders, waiting):
                client.close()


# ---- what others do to a key ---------------------------------------------------------------------------------------------

# The request, and whether the waiter is served at once; {key} is the lock, {other} a lock of somebody else's in a dump.
DELETIONS = {
    "DEL": (("DEL", "{key}"), True),
    "UNLINK": (("UNLINK", "{key}"), True),
    "FLUSHALL": (("FLUSHALL",), True),
    "FLUSHDB": (("FLUSHDB", "ASYNC"), True),
    "SWAPDB": (("SWAPDB", 0, 7), True),
    "RENAME away": (("RENAME", "{key}", "elsewhere"), True),
    "MOVE": (("MOVE", "{key}", 5), True),
    "PEXPIRE 0": (("PEXPIRE", "{key}", -1), True),
    "LOCK.BREAK": (("LOCK.BREAK", "{key}"), True),
    "RENAME over": (("RENAME", "{other}", "{key}"), False),
    "COPY": (("COPY", "{other}", "{key}", "REPLACE"), False),
    "RESTORE": (("RESTORE", "{key}", 0, "{dump}", "REPLACE"), False),
    "SET": (("SET", "{key}", "somebody"), False),
    "HDEL": (("HDEL", "{key}", "holder"), True),
}


@scenario("L23")
def deletions(world):
    """The key is deleted, flushed, exchanged, renamed, restored over: its holder is told, who waits is served once it is free."""
    server = world.server()
    end, count, names = time.monotonic() + world.seconds, 0, list(DELETIONS)
    while time.monotonic() < end or count < 2 * len(names):
        name = names[count % len(names)]
        request, is_served = DELETIONS[name]
        count += 1
        key = f"k{count}"
        holder, other = world.client(server, "holder", resp3=True), world.client(server, "other")
        fence = holder.acquire(key, LONG_MS)[0]
        # A copy that does not end.
        other.wire.call("HSET", f"other-{count}", "somebody", 1)
        waiting, = world.stand(server, key, LONG_MS, "waiting")
        other.wire.send(("DUMP", f"other-{count}"))
        dump = other.wire.socket.recv(10_000).split(b"\r\n", 1)[1][:-2]
        places = {"{key}": key, "{other}": f"other-{count}", "{dump}": dump}
        # Who waits in a flushed database goes on waiting; all others' locks of this scenario are gone.
        other.end("" if name.startswith(("FLUSH", "SWAP")) else key, *(places.get(word, word) for word in request))
        at, push = holder.wire.push()
        number = holder.ask("lost", key=key, fence=push[2])
        world.history.answer(number)
        reason = "overwritten" if not is_served or name == "HDEL" else "broken" if name == "LOCK.BREAK" else push[3]
        world.expect(push[:3] == ["lock-lost", key, fence] and push[3] == reason, f"{name}: the push is {push}")
        if is_served:
            grant = waiting.finish()
            world.expect(holder.release(key, fence) == -2, f"{name}: a late release is answered -2")
            world.expect(waiting.release(key, grant[0]) == 0, f"{name}: the next has it")
        else:
            world.expect(holder.release(key, fence) == -2, f"{name}: somebody else's is not released")
            world.expect(holder.guard(key, fence) == 0, f"{name}: its guard fails")
            other.end(key, "DEL", key)
            grant = waiting.finish()
            waiting.release(key, grant[0])
        world.expect(holder.release(key, fence) == -1, f"{name}: nobody holds it")
        other.wire.call("FLUSHALL")
        for client in (holder, other, waiting):
            client.close()


# What libraries send. redis-py's Lock; Redisson's RLock, without the watchdog.
REDIS_PY_RELEASE = """
local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
return 1
"""
REDISSON_LOCK = """
if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end;
return redis.call('pttl', KEYS[1]);
"""
REDISSON_UNLOCK = """
if (redis.call('hexists', KEYS[1], ARGV[1]) == 0) then return nil; end;
local counter = redis.call('hincrby', KEYS[1], ARGV[1], -1);
if (counter > 0) then return 0; else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], '0'); return 1; end;
"""


@scenario("L24")
def other_recipes(world):
    """What redis-py's Lock and Redisson's RLock send, beside native clients on one key (`make clients` has the libraries)."""
    server = world.server()
    end, px = time.monotonic() + world.seconds, 300
    fences = iter(range(-1, -1_000_000_000, -1))

    def foreign(name, seed):
        chance, count = random.Random(seed), 0
        client = world.client(server, name)
        while time.monotonic() < end:
            count += 1
            client.owner = f"{name}-{count}"
            asked = client.ask("acquire", key="lock", px=px)
            try:
                if name.startswith("py"):
                    is_mine = client.wire.call("SET", "lock", client.owner, "NX", "PX", px) == "OK"
                else:
                    is_mine = client.wire.call("EVAL", REDISSON_LOCK, 1, "lock", px, client.owner) is None
            except Refused as error:
                # Redisson does not take a string for a lock, but does not get past it either.
                assert str(error).startswith("WRONGTYPE"), error
                is_mine = False
            # They have no fences: numbers below 0 tell them apart.
            world.history.answer(asked, (next(fences), 1, px) if is_mine else None)
            time.sleep(chance.random() * 0.003)
            if not is_mine or chance.random() < 0.03:
                continue
            asked = client.ask("release", key="lock")
            if name.startswith("py"):
                done = client.wire.call("EVAL", REDIS_PY_RELEASE, 1, "lock", client.owner) == 1
            else:
                try:
                    done = client.wire.call("EVAL", REDISSON_UNLOCK, 2, "lock", "channel", client.owner) == 1
                except Refused:
                    done = False
            world.history.answer(asked, 0 if done else -2)

    def native(name, seed):
        chance, count = random.Random(seed), 0
        client = world.client(server, name)
        while time.monotonic() < end:
            count += 1
            client.owner = f"{name}-{count}"
            grant = client.acquire("lock", px, block=chance.choice((50, 1000)))
            time.sleep(chance.random() * 0.002)
            if grant and chance.random() > 0.03:
                client.release("lock", grant[0])
            # The others get a turn only while nobody is queued.
            time.sleep(chance.random() * 0.02)

    names = ["py1", "py2", "redisson1", "redisson2"]
    threads = [lambda name=name, seed=world.random.random(): foreign(name, seed) for name in names]
    threads += [lambda name=f"n{number}", seed=world.random.random(): native(name, seed) for number in range(3)]
    world.join(world.threads(*threads), world.seconds + 30)
    granted = [it.owner for it in world.history.read() if it.is_granted()]
    for kind in ("py", "redisson", "n"):
        world.expect(sum(owner.startswith(kind) for owner in granted) > 5, f"{kind} was hardly ever granted the lock")
