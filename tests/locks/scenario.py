"""What each scenario is given: servers, clients in threads and processes, a history, and a way to say what it expects."""

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time

from history import Client, History, sample_queue
from wire import Connection, Gone, Refused, Server, until

SCENARIOS = {}
# What an answer may be late on a machine that others use; how late it is on a quiet one, benches/peers measures.
LATE_MS = 500


class Skipped(Exception):
    """What this needs is not there."""


@dataclasses.dataclass
class Scenario:
    name: str
    text: str
    function: object
    survives: bool
    takes: int


def scenario(name, survives=False, takes=1):
    """`survives`: the log keeps all grants over restarts. `takes`: how many times --seconds it lasts, about."""
    def add(function):
        SCENARIOS[name] = Scenario(name, function.__doc__.strip().split("\n")[0], function, survives, takes)
        return function
    return add


class World:
    def __init__(self, options, folder, seed):
        self.options, self.folder = options, folder
        self.random = random.Random(seed)
        self.history = History(os.path.join(folder, "history.jsonl"))
        self.servers, self.children, self.faults = [], [], []
        self.seconds = options.seconds

    # ---- servers -------------------------------------------------------------------------------------------------------------

    def server(self, *options, start=True, has_port=False, environment=None, binary=None):
        number = len(self.servers) + 1
        server = Server(binary or self.options.binary, self.folder, number, options, has_port, environment)
        self.servers.append(server)
        if start:
            self.start(server)
        return server

    def start(self, server, *options):
        """A start is a gain of authority, unless the node follows another."""
        follows = "--replicaof" in (*server.options, *options)
        if follows:
            server.start(*options)
        else:
            self.history.during("gain", lambda: server.start(*options), node=server.number)

    @contextlib.contextmanager
    def down(self):
        """Within, no waiting client needs to be served."""
        number = self.history.ask("down")
        yield
        self.history.answer(number)

    def restart(self, server, which=signal.SIGKILL, *options):
        with self.down():
            if which == signal.SIGKILL:
                server.signal(which)
            else:
                server.signal(which)
                server.process.wait(30)
            self.start(server, *options)

    def promote(self, server):
        """REPLICAOF NO ONE. All its locks are granted with a higher fence from then on."""
        with self.wire(server) as wire:
            self.history.during("gain", lambda: wire.call("REPLICAOF", "NO", "ONE"), node=server.number)

    def knows(self, server, command, *words):
        """Skips the scenario unless the server's documentation of a command has all these words."""
        with self.wire(server) as wire:
            text = str(wire.call("COMMAND", "DOCS", command))
        for word in words:
            if f"'{word}'" not in text:
                raise Skipped(f"the server has no {word}")

    def knows_parameter(self, server, name):
        with self.wire(server) as wire:
            if not wire.call("CONFIG", "GET", name):
                raise Skipped(f"the server has no {name}")

    # ---- clients -------------------------------------------------------------------------------------------------------------

    def client(self, server, owner, resp3=False):
        return Client(self.history, server, owner, resp3)

    @contextlib.contextmanager
    def wire(self, server):
        """A connection whose requests are not written down."""
        connection = Connection(server.address)
        try:
            yield connection
        finally:
            connection.close()

    def expect(self, condition, text):
        if not condition:
            self.history.write(id=f"expected-{time.monotonic_ns()}", kind="expected", sent=time.monotonic_ns(), error=text)
        return condition

    def expect_after(self, text, since, earliest_ms, latest_ms):
        """That so much time has passed since `since`, and not much more."""
        ms = (time.monotonic() - since) * 1000
        self.expect(earliest_ms <= ms <= latest_ms + LATE_MS, f"{text} after {ms:.0f} ms, not {earliest_ms} to {latest_ms}")

    def threads(self, *functions):
        """Starts them; what goes wrong in one is a fault of the scenario."""
        def guarded(function):
            try:
                function()
            except Exception as error:
                self.faults.append(error)
                raise
        threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        return threads

    def join(self, threads, seconds=60):
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(f"a client has not ended within {seconds} s")

    def process(self, function):
        """Runs in a process of its own, which ends with it."""
        child = os.fork()
        if child == 0:
            try:
                function()
            except (Gone, KeyboardInterrupt):
                pass
            finally:
                os._exit(0)
        self.children.append(child)
        return child

    def kill(self, child, which=signal.SIGKILL):
        if which != signal.SIGKILL:
            return os.kill(child, which)
        number = self.history.ask("close", connection=str(child))
        os.kill(child, which)
        self.reap(child)
        self.history.answer(number)

    def reap(self, child):
        os.waitpid(child, 0)
        self.children.remove(child)

    def queued(self, server, key, *owners):
        """Waits until exactly these stand in the queue, in this order."""
        with self.wire(server) as wire:
            until(lambda: sample_queue(self.history, wire, server.number, key) == list(owners), f"{owners} wait for {key}")

    def stand(self, server, key, px, *owners, **options):
        """Clients that wait, in this order."""
        clients = []
        for owner in owners:
            clients.append(self.client(server, owner))
            clients[-1].begin_acquire(key, px, block=options.pop("block", 0), **options)
            self.queued(server, key, *owners[:len(clients)])
        return clients

    def watch_queue(self, server, keys, stopped, pause=0.01):
        """Writes down who waits until `stopped` is set."""
        def watch():
            wire = None
            while not stopped.is_set():
                try:
                    wire = wire or Connection(server.address)
                    for key in keys:
                        sample_queue(self.history, wire, server.number, key)
                except (Gone, Refused):
                    wire = None
                time.sleep(pause)
        return watch

    def end(self):
        for child in list(self.children):
            self.kill(child)
        for server in self.servers:
            if server.process and server.process.poll() is None:
                server.kill()
