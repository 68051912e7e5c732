"""Scenarios with a primary and replicas: promotions with and without acknowledgements, stale primaries, sessions, sentinels.

Servers keep no files here, so that what was not replicated is lost. Between two gains of authority lies more than a second, as
fences ask for (docs/locks.md).
"""

import contextlib
import os
import random
import selectors
import shutil
import signal
import subprocess
import threading
import time

from history import Client, sample_queue
from scenario import Skipped, scenario
from single import LONG_MS
from wire import Gone, Refused, ask, free_port, info, until

# Of a client that finds itself cut off.
TIMEOUT_SECONDS = 1.0
APART_SECONDS = 1.2


class Nodes:
    """The first server is the primary, the others follow it."""

    def __init__(self, world, count, *options):
        self.world = world
        self.all = [world.server("--repl-diskless-sync-delay", "0", *options, has_port=True) for _ in range(count)]
        self.primary = self.all[0]
        self.gained = time.monotonic()
        for node in self.all[1:]:
            self.follow(node)

    def follow(self, node):
        """Has a node follow the primary, and waits until it does."""
        until(lambda: ask(node.address, "REPLICAOF", "127.0.0.1", self.primary.port) == "OK", "it takes the order")
        until(lambda: info(node.address, "replication").get("master_link_status") == "up", "the replica follows", 30)

    def rest(self):
        """Until another gain of authority may follow."""
        time.sleep(max(0.0, self.gained + APART_SECONDS - time.monotonic()))

    def promote(self, node):
        self.rest()
        self.world.promote(node)
        self.primary, self.gained = node, time.monotonic()

    def others(self):
        return [node for node in self.all if node is not self.primary]

    @contextlib.contextmanager
    def without(self, node, how):
        """Kills or stops a node; afterwards it follows whoever is the primary then."""
        node.signal(how)
        yield
        if how == signal.SIGKILL:
            self.world.start(node)
        else:
            node.signal(signal.SIGCONT)
        self.gained = time.monotonic()
        self.follow(node)


def contend_over(world, nodes, name, seed, goes_on, keys, confirmed=0, replicas=None):
    """One client that takes and gives back at whatever is the primary. `confirmed`: what so many replicas have counts."""
    chance, count, client = random.Random(seed), 0, None
    while goes_on():
        count += 1
        owner = f"{name}-{count}"
        try:
            if client is None or client.server is not nodes.primary:
                if client:
                    client.close()
                client = Client(world.history, nodes.primary, owner, timeout=TIMEOUT_SECONDS)
            client.owner = owner
            key, block = chance.choice(keys), chance.choice((None, 100, 500))
            grant = client.acquire(key, chance.randint(300, 3000), block=block, replicas=replicas)
            if not grant:
                time.sleep(chance.random() * 0.01)
                continue
            if not confirmed or client.confirm(key, grant[0], confirmed, 300):
                time.sleep(chance.random() * 0.005)
                client.guard(key, grant[0])
            if chance.random() < 0.8:
                client.release(key, grant[0])
        except (Gone, Refused):
            if client:
                client.close()
            client = None
            time.sleep(0.02)


def load(world, nodes, goes_on, **options):
    keys = [f"k{number}" for number in range(6)]
    return world.threads(*(
        lambda name=f"c{number}", seed=world.random.random(): contend_over(world, nodes, name, seed, goes_on, keys, **options)
        for number in range(8)
    ))


def failing_over(world, how, **options):
    """Promotes the replica again and again, under load. `how`: the old primary is demoted (None), killed or stopped."""
    nodes = Nodes(world, 2)
    end = time.monotonic() + max(world.seconds, 2 * APART_SECONDS)
    running = load(world, nodes, lambda: time.monotonic() < end, **options)
    while time.monotonic() < end:
        nodes.rest()
        old, new = nodes.primary, nodes.others()[0]
        time.sleep(world.random.random() * 0.1)
        with world.down():
            if how is None:
                nodes.promote(new)
                nodes.follow(old)
            else:
                with nodes.without(old, how):
                    nodes.promote(new)
                    time.sleep(0.3)
    world.join(running)


def knows_replicas(world):
    probe = world.server()
    world.knows(probe, "LOCK.ACQUIRE", "REPLICAS")


@scenario("L7")
def planned_failovers(world):
    """REPLICAOF NO ONE and the old primary demoted, without acknowledgements: fences grow; what was lost is counted."""
    failing_over(world, None)


@scenario("L8")
def planned_failovers_replicas(world):
    """The same with REPLICAS: nothing that was granted is lost."""
    knows_replicas(world)
    failing_over(world, None, replicas=(1, 500))


@scenario("L9")
def killed_primary(world):
    """The primary is killed; WAIT 1 after the grant: what the replica that is promoted had acknowledged stays held."""
    failing_over(world, signal.SIGKILL, confirmed=1)


@scenario("L10")
def paused_primary_replicas(world):
    """The primary is stopped, its replica promoted, and it goes on: with REPLICAS nobody gets anything from it."""
    knows_replicas(world)
    failing_over(world, signal.SIGSTOP, replicas=(1, 300))


@scenario("L11")
def stale_primary(world):
    """A stale primary goes on granting beside the new one: its fences stay below, so that a resource refuses its holders."""
    nodes = Nodes(world, 2)
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 1:
        count += 1
        nodes.rest()
        old, new = nodes.primary, nodes.others()[0]
        stale = [Client(world.history, old, f"stale-{count}-{number}") for number in range(3)]
        old.signal(signal.SIGSTOP)
        nodes.promote(new)
        fresh = world.client(new, f"fresh-{count}")
        fences = [fresh.acquire(f"k{count}-{number}", LONG_MS)[0] for number in range(3)]
        old.signal(signal.SIGCONT)
        for number, client in enumerate(stale):
            for name in range(100):
                grant = client.acquire(f"k{count}-{number}", LONG_MS)
                world.expect(grant and grant[0] < min(fences), f"a stale primary granted {grant}, the new one {fences}")
                client.release(f"k{count}-{number}", grant[0])
        nodes.follow(old)
        nodes.gained = time.monotonic()
        for client in (*stale, fresh):
            client.close()


@scenario("L12", takes=2)
def two_in_a_row(world):
    """Two failovers one after the other: leases that both replicas had acknowledged outlive both, and fences grow twice."""
    nodes = Nodes(world, 3)
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 1:
        count += 1
        nodes.rest()
        owners = [f"owner-{count}-{number}" for number in range(20)]
        fences = {}
        holder = world.client(nodes.primary, "holder")
        for owner in owners:
            holder.owner = owner
            fences[owner] = holder.acquire(owner, LONG_MS)[0]
            world.expect(holder.confirm(owner, fences[owner], 2, 2000), "both replicas have acknowledged the grant")
        highest = max(fences.values())
        killed = []
        for _ in range(2):
            nodes.primary.signal(signal.SIGKILL)
            killed.append(nodes.primary)
            rest = [node for node in nodes.all if node not in killed]
            nodes.promote(rest[0])
            for node in rest[1:]:
                nodes.follow(node)
            holder = world.client(nodes.primary, "holder")
            for owner in owners:
                holder.owner = owner
                holder.guard(owner, fences[owner])
                world.expect(holder.acquire(owner, 1)[0] == fences[owner], "a retry after a failover is the same grant")
                holder.owner = "somebody"
                world.expect(holder.acquire(owner, LONG_MS) is None, "what is held is refused after a failover")
            new = holder.acquire(f"new-{count}-{len(killed)}", LONG_MS)[0]
            world.expect(new > highest, "fences grow over a failover")
            highest = new
        for node in killed:
            world.start(node)
            nodes.follow(node)
        nodes.gained = time.monotonic()
        with world.wire(nodes.primary) as wire:
            world.history.during("end", lambda: wire.call("FLUSHALL") == "OK", key="")


@scenario("L13")
def sessions_over_a_promotion(world):
    """After a promotion a session ends when its grace is over, or lives on if it is attached again; an old lease's length counts not."""
    nodes = Nodes(world, 2)
    end, count = time.monotonic() + world.seconds, 0
    while time.monotonic() < end or count < 1:
        count += 1
        nodes.rest()
        old, new = nodes.primary, nodes.others()[0]
        grace, keys = 400, [f"{name}-{count}" for name in ("lost", "attached", "asked")]
        before = [world.client(old, key) for key in keys]
        fences = [client.acquire(key, LONG_MS, grace=grace)[0] for client, key in zip(before, keys)]
        for client, key, fence in zip(before, keys, fences):
            world.expect(client.confirm(key, fence, 1, 2000), "the replica has acknowledged the session")
        with nodes.without(old, signal.SIGKILL):
            nodes.promote(new)
            promoted = time.monotonic()
            attached, asked = world.client(new, keys[1]), world.client(new, keys[2])
            world.expect(attached.do("attach", ("LOCK.ATTACH", keys[1])) == 1, "a session is attached after a promotion")
            grant = asked.acquire(keys[2], LONG_MS, grace=grace)
            world.expect(grant and grant[0] == fences[2], "asking again within the grace is the same grant")
            follower, = world.stand(new, keys[0], LONG_MS, f"after-{count}")
            follower.finish()
            world.expect_after("a session ended after a promotion", promoted, 0, grace)
            time.sleep(0.1)
            world.expect(attached.guard(keys[1], fences[1]) == 1, "an attached session lives on")
            world.expect(asked.guard(keys[2], fences[2]) == 1, "a session that was asked for again lives on")
        for client in (*before, attached, asked, follower):
            client.close()


# ---- sentinels -----------------------------------------------------------------------------------------------------------


class Sentinels(Nodes):
    """Three nodes under three sentinels, which say who is the primary."""

    def __init__(self, world):
        super().__init__(world, 3)
        program = shutil.which("redis-sentinel") or shutil.which("redis-server")
        if not program:
            raise Skipped("no redis-sentinel is installed")
        self.ports, self.processes = [free_port() for _ in range(3)], []
        for port in self.ports:
            folder = os.path.join(world.folder, f"sentinel-{port}")
            os.mkdir(folder)
            with open(os.path.join(folder, "conf"), "w", encoding="utf8") as file:
                file.write(
                    f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
                    f"sentinel monitor main 127.0.0.1 {self.primary.port} 2\nsentinel down-after-milliseconds main 500\n"
                    "sentinel failover-timeout main 2000\nsentinel parallel-syncs main 2\n"
                )
            command = [program, os.path.join(folder, "conf"), "--sentinel"]
            self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        until(lambda: all(self.is_ready(port) for port in self.ports), "the sentinels know all", 60)

    def is_ready(self, port):
        words = ask(port, "SENTINEL", "MASTER", "main")
        facts = dict(zip(words[::2], words[1::2]))
        return facts["num-slaves"] == "2" and facts["num-other-sentinels"] == "2"

    def named(self):
        """The node that all sentinels name and that takes itself for the primary."""
        named = {int(ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1]) for port in self.ports}
        node = next(node for node in self.all if node.port in named)
        return node if len(named) == 1 and ask(node.address, "ROLE")[0] == "master" else None

    def all_follow(self):
        facts = info(self.primary.address, "replication")
        return [facts.get(f"slave{number}", "").count("state=online") for number in (0, 1)] == [1, 1]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@scenario("L14", takes=3)
def under_sentinel(world):
    """Real sentinels replace a primary that is killed or stopped, under load: what both replicas had acknowledged stays held."""
    nodes = Sentinels(world)
    try:
        over = threading.Event()
        running = load(world, nodes, lambda: not over.is_set(), confirmed=2)
        count, end = 0, time.monotonic() + world.seconds
        while time.monotonic() < end or count < 1:
            nodes.rest()
            time.sleep(1)
            old, how = nodes.primary, (signal.SIGKILL, signal.SIGSTOP)[count % 2]
            count += 1
            with world.down():
                # Either may be promoted at any time from now on.
                asked = {node: world.history.ask("gain", node=node.number) for node in nodes.others()}
                old.signal(how)
                new = until(lambda: (node := nodes.named()) and node is not old and node, "another primary", 60)
                world.history.answer(asked[new])
                nodes.primary, nodes.gained = new, time.monotonic()
                time.sleep(0.5)
                world.start(old) if how == signal.SIGKILL else old.signal(signal.SIGCONT)
                until(nodes.all_follow, "both others follow the primary", 60)
                nodes.gained = time.monotonic()
        over.set()
        world.join(running)
    finally:
        nodes.end()


# ---- a lagging replica ---------------------------------------------------------------------------------------------------


@scenario("L26", takes=2)
def lagging_replica(world):
    """1,000 wait with REPLICAS while the replica stands still: few are told NOREPLICAS, the rest keep their places and are served."""
    knows_replicas(world)
    nodes = Nodes(world, 2, "--maxclients", "4000")
    count = 200 if world.options.quick else 1000
    holder = world.client(nodes.primary, "holder")
    fence = holder.acquire("lock", LONG_MS)[0]
    waiting = selectors.DefaultSelector()
    for number in range(count):
        client = world.client(nodes.primary, f"w{number}")
        client.begin_acquire("lock", LONG_MS, block=0, replicas=(1, 300))
        waiting.register(client.wire.socket, selectors.EVENT_READ, client)
    with world.wire(nodes.primary) as wire:
        until(lambda: len(sample_queue(world.history, wire, 1, "lock")) == count, "all wait")
        refused = served = 0

        def serve(seconds):
            nonlocal refused, served
            end = time.monotonic() + seconds
            while time.monotonic() < end and waiting.get_map():
                for event, _ in waiting.select(0.05):
                    client = event.data
                    waiting.unregister(client.wire.socket)
                    try:
                        grant = client.finish()
                        served += 1
                        client.release("lock", grant[0])
                    except Refused as error:
                        assert str(error).startswith("NOREPLICAS"), error
                        refused += 1

        with world.down():
            nodes.all[1].signal(signal.SIGSTOP)
            holder.release("lock", fence)
            serve(2)
            world.expect(served == 0, f"{served} were served without an acknowledgement")
            world.expect(refused <= 3, f"{refused} were refused one after the other")
            left = sample_queue(world.history, wire, 1, "lock")
            world.expect(len(left) >= count - refused - 1, f"{len(left)} of {count} have kept their places")
            nodes.all[1].signal(signal.SIGCONT)
        serve(60)
        world.expect(served + refused == count, f"{served} of {count} were served, {refused} refused")
        world.expect(refused <= 3, f"{refused} were refused")
