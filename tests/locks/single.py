"""Scenarios with one server: contention, leases, retries, restarts, dying clients."""

import random
import signal
import threading
import time

from history import Client
from scenario import scenario
from wire import Gone, Refused

LONG_MS = 60_000


def contend(world, server, name, seed, end, keys, px=(20, 400)):
    """One client that takes, renews, gives back, forgets and gives up, until `end`; over restarts too."""
    chance, count, client = random.Random(seed), 0, None
    while time.monotonic() < end:
        count += 1
        owner = f"{name}-{count}"
        try:
            client = client or world.client(server, owner)
            client.owner = owner
            take_part(client, chance, chance.choice(keys), chance.randint(*px))
        except (Gone, Refused):
            if client:
                client.close()
            client = None
            time.sleep(0.01)
        if client and chance.random() < 0.05:
            client.close()
            client = None


def take_part(client, chance, key, px):
    options = {"block": chance.choice((None, 0, 20, 2000))}
    if chance.random() < 0.1:
        options["grace"] = chance.randint(5, 50)
    grant = client.acquire(key, px, **options)
    if not grant:
        return
    fence = grant[0]
    time.sleep(chance.random() * 0.003)
    dice = chance.random()
    if dice < 0.1:
        client.acquire(key, px)
    elif dice < 0.2:
        client.renew(key, px)
    elif dice < 0.3:
        client.guard(key, fence)
    elif dice < 0.33:
        # Its lease or its session ends by itself.
        return client.close()
    client.release(key, fence, keep=5 if chance.random() < 0.05 else None)
    if chance.random() < 0.1:
        client.release(key, fence)


def take_several(world, server, name, seed, end):
    """One client that takes several locks at once, or permits."""
    chance, count, client = random.Random(seed), 0, world.client(server, name)
    while time.monotonic() < end:
        count += 1
        client.owner = f"{name}-{count}"
        if chance.random() < 0.5:
            keys = chance.sample(["m1", "m2", "m3", "m4"], chance.randint(2, 3))
            fence = client.acquire_all(keys, chance.randint(20, 300), chance.choice((None, 0, 20)))
            time.sleep(chance.random() * 0.003)
            # Some are left to their leases.
            for key in keys if fence and chance.random() < 0.9 else ():
                client.release(key, fence)
        else:
            granted = client.permit("permits", 3, chance.randint(20, 300), chance.choice((None, 0, 20)))
            time.sleep(chance.random() * 0.003)
            for permit in granted[0] if granted and chance.random() < 0.9 else ():
                client.give_back("permits", permit)


@scenario("L1")
def contention(world):
    """50 clients contend for locks, eight for several at once and permits: take, renew, give back twice, forget, give up, go."""
    server = world.server()
    end, keys = time.monotonic() + world.seconds, ["one", "one", "one", "two", "three"]
    for process in range(5):
        seeds = [world.random.random() for _ in range(10)]

        def clients(process=process, seeds=seeds):
            names = [f"c{process}{number}" for number in range(10)]
            world.join(world.threads(*(
                lambda name=name, seed=seed: contend(world, server, name, seed, end, keys)
                for name, seed in zip(names, seeds)
            )), world.seconds + 30)

        world.process(clients)
    stopped = threading.Event()
    watching = world.threads(world.watch_queue(server, ["one", "two", "three"], stopped), *(
        lambda name=f"s{number}", seed=world.random.random(): take_several(world, server, name, seed, end)
        for number in range(8)
    ))
    for child in list(world.children):
        world.reap(child)
    stopped.set()
    world.join(watching)


@scenario("L2")
def passed_lease(world):
    """A lease passes; whatever its holder does afterwards, its successor keeps the lock."""
    server = world.server()
    end = time.monotonic() + world.seconds
    while time.monotonic() < end:
        key, px = f"k{time.monotonic_ns()}", world.random.randint(20, 60)
        late = world.client(server, "late")
        began = time.monotonic()
        fence = late.acquire(key, px)[0]
        next_one, = world.stand(server, key, LONG_MS, "next")
        successor = next_one.finish()
        world.expect_after("the successor was served", began, px, px)
        for _ in range(10):
            what = world.random.randrange(6)
            if what == 0:
                world.expect(late.release(key, fence) == -2, "a late release with its fence is answered -2")
            elif what == 1:
                world.expect(late.release(key) == -2, "a late release without a fence is answered -2")
            elif what == 2:
                world.expect(late.renew(key, LONG_MS) == 0, "a late renewal is answered 0")
            elif what == 3:
                world.expect(late.guard(key, fence) == 0, "a late guard is answered 0")
            elif what == 4:
                world.expect(late.acquire(key, LONG_MS) is None, "who comes late is refused")
            else:
                world.expect(late.release(key, all=True, keep=1000) == -2, "a late release with KEEP is answered -2")
        next_one.guard(key, successor[0])
        next_one.renew(key, LONG_MS)
        world.expect(next_one.release(key, successor[0]) == 0, "the successor gives its lock back")
        world.expect(late.release(key, fence) == -1, "nobody holds it")
        late.close()
        next_one.close()


def crash(world, policies, disturb=None):
    """Kills a server again and again, under clients whose leases outlive it."""
    policy = world.random.choice(policies)
    options = ["--appendonly", "yes", "--appendfsync", policy, "--auto-aof-rewrite-min-size", "64kb"]
    server = world.server(*options)
    end = time.monotonic() + world.seconds
    keys = [f"k{number}" for number in range(60)]
    threads = [
        lambda name=f"c{number}", seed=world.random.random(): contend(world, server, name, seed, end, keys, (500, 20_000))
        for number in range(8)
    ]
    running = world.threads(*threads)
    while time.monotonic() < end:
        if disturb:
            disturb(server)
        time.sleep(world.random.random() * world.random.choice((0.05, 0.3)))
        world.restart(server, signal.SIGKILL, "--appendfsync", world.random.choice(policies))
    world.join(running)


@scenario("L5", survives=True)
def crash_points(world):
    """A server with a log is killed at any point, again and again: locks, leases and fences go on."""
    crash(world, ["always", "everysec"])


@scenario("L6", survives=True)
def crash_during_rewrite(world):
    """Killed while the log is rewritten or a snapshot is saved, with enough data that this takes a while."""
    chance, is_filled = random.Random(world.random.random()), []

    def disturb(server):
        with world.wire(server) as wire:
            try:
                if not is_filled:
                    wire.call("DEBUG", "POPULATE", 50_000, "ballast")
                    is_filled.append(True)
                wire.call(*chance.choice((("BGREWRITEAOF",), ("BGREWRITEAOF",), ("BGSAVE",))))
            except Refused:
                pass

    crash(world, ["always", "everysec"], disturb)


@scenario("L3")
def lost_reply(world):
    """A reply is lost, the client asks again, also for what it gives back; others contend for the key."""
    server = world.server()
    end, keys = time.monotonic() + world.seconds, ["one", "two"]

    def careless(name, seed):
        chance, count = random.Random(seed), 0
        while time.monotonic() < end:
            count += 1
            owner, key, px = f"{name}-{count}", chance.choice(keys), chance.randint(50, 300)
            block = chance.choice((None, 0, 30))
            lost = world.client(server, owner)
            lost.begin_acquire(key, px, block=block)
            time.sleep(chance.choice((0, 0, 0.0005, 0.01)))
            lost.close()
            client = world.client(server, owner)
            grant = client.acquire(key, px, block=0)
            world.expect(grant[1] == 1, f"{owner} holds {key} {grant[1]} times after a retry")
            client.guard(key, grant[0])
            number = client.ask("release", key=key, fence=grant[0])
            client.wire.send(("LOCK.RELEASE", key, owner, "FENCE", grant[0]))
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.002)
                client.close()
                again = world.client(server, owner)
                answer = again.release(key, grant[0])
                world.expect(answer in (0, -1, -2), f"a second release is answered {answer}")
                again.close()
            else:
                world.history.answer(number, client.wire.reply())
                # The same owner again, and its former release once more.
                second = client.acquire(key, px, block=0)
                world.expect(client.release(key, grant[0]) == -2, "a release of a former grant is answered -2")
                client.guard(key, second[0])
                client.release(key, second[0])
                client.close()

    clients = [lambda name=f"c{n}", seed=world.random.random(): careless(name, seed) for n in range(6)]
    others = [
        lambda name=f"o{n}", seed=world.random.random(): contend(world, server, name, seed, end, keys, (20, 100))
        for n in range(4)
    ]
    world.join(world.threads(*clients, *others), world.seconds + 60)


@scenario("L4", survives=True)
def restart(world):
    """A planned restart with a log: leases go on, sessions have their grace, waiters queue anew, fences grow."""
    server = world.server("--appendonly", "yes")
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 2:
        count += 1
        keys = {name: f"{name}-{count}" for name in ("lease", "passing", "session", "attached")}
        began = time.monotonic()
        holders = {name: world.client(server, name) for name in keys}
        fences = {
            "lease": holders["lease"].acquire(keys["lease"], LONG_MS)[0],
            "passing": holders["passing"].acquire(keys["passing"], 700)[0],
            "session": holders["session"].acquire(keys["session"], LONG_MS, grace=300)[0],
            "attached": holders["attached"].acquire(keys["attached"], LONG_MS, grace=300)[0],
        }
        waiting, = world.stand(server, keys["lease"], LONG_MS, "waiting")
        world.restart(server, signal.SIGTERM)
        started = time.monotonic()
        try:
            waiting.finish()
            world.expect(False, "a waiter was answered by a server that ended")
        except Gone:
            waiting.close()
        attached = world.client(server, "attached")
        world.expect(attached.do("attach", ("LOCK.ATTACH", "attached")) == 1, "a session is attached after the start")
        lease = world.client(server, "lease")
        left = lease.acquire(keys["lease"], 1)
        passed_ms = (time.monotonic() - began) * 1000
        world.expect(left[0] == fences["lease"], "the same grant is found after the start")
        world.expect(LONG_MS - passed_ms - 50 <= left[2] <= LONG_MS - (started - began) * 1000 + 50, f"{left[2]} ms are left")
        followers = {}
        for name in ("passing", "session", "attached"):
            followers[name], = world.stand(server, keys[name], LONG_MS, f"after-{name}")
        new = followers["session"].finish()
        world.expect_after("the session ended", started, 0, 300)
        world.expect(new[0] > max(fences.values()), "fences grow over a start")
        followers["passing"].finish()
        world.expect_after("the lease ended", began, 699, 700)
        world.expect(attached.guard(keys["attached"], fences["attached"]) == 1, "an attached session goes on")
        attached.release(keys["attached"], fences["attached"])
        followers["attached"].finish()
        for client in (*followers.values(), *holders.values(), lease, attached):
            client.close()


# ---- waiters that die ------------------------------------------------------------------------------------------------------------


def closed_by(world, client, how):
    """Writes down that a client's connection ends in `how`."""
    world.history.during("close", how, connection=client.name, owner=client.owner, node=client.server.number)


@scenario("L25")
def killed_in_the_turn(world):
    """A waiter dies just before, with, or just after the release that serves it: the next one gets the lock."""
    server = world.server()
    end = time.monotonic() + world.seconds
    ways = ["killed", "closed", "kill-first", "release-first", "transaction", "deleted", "expires", "race"]
    count = 0
    while time.monotonic() < end or count < 2 * len(ways):
        way, key, count = ways[count % len(ways)], f"k{count}", count + 1
        holder = world.client(server, "holder")
        fence = holder.acquire(key, 60 if way == "expires" else LONG_MS)[0]
        # The lock of one that may have been granted it unseen ends soon.
        px = 200 if way == "race" else LONG_MS
        if way == "killed":
            pipe_name = f"dying-{count}"
            child = world.process(lambda: Client(world.history, server, pipe_name).acquire(key, px, block=0))
            world.queued(server, key, pipe_name)
            dying = None
        else:
            dying, = world.stand(server, key, px, "dying")
        follower = world.client(server, "follower")
        follower.begin_acquire(key, LONG_MS, block=0)
        world.queued(server, key, pipe_name if way == "killed" else "dying", "follower")
        identity = dying.wire and [
            dict(zip(it[::2], it[1::2])) for it in holder.wire.call("LOCK.WAITERS", key)
        ][0]["client"][1] if dying else None
        kill = ("CLIENT", "KILL", "ID", identity)
        release = ("LOCK.RELEASE", key, "holder", "FENCE", fence)
        began = time.monotonic()
        if way == "killed":
            world.kill(child)
            world.expect(holder.release(key, fence) == 0, "the holder releases")
        elif way in ("closed", "race"):
            if way == "race":
                holder.begin("release", release, key=key, fence=fence)
                dying.close()
                holder.finish()
            else:
                dying.close()
                holder.release(key, fence)
        elif way == "expires":
            closed_by(world, dying, dying.wire.close)
        else:
            requests = {
                "kill-first": [kill, release],
                "release-first": [release, kill],
                "transaction": [("MULTI",), release, kill, ("EXEC",)],
                "deleted": [("DEL", key), kill],
            }[way]

            def send():
                holder.wire.send(*requests)
                replies = [holder.wire.reply() for _ in requests]
                replies = replies[-1] if way == "transaction" else replies
                return replies[requests.index(release) if way == "kill-first" else 0]

            ends = "end" if way == "deleted" else "release"
            closed_by(world, dying, lambda: world.history.during(ends, send, key=key, owner="holder", fence=fence, node=1))
        grant = follower.finish()
        world.expect_after(f"{way}: the follower was served", began, 0, 0)
        world.expect(follower.release(key, grant[0]) == 0, f"{way}: the follower holds it")
        for client in (holder, follower):
            client.close()
