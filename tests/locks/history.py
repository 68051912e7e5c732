"""What clients asked and were answered, as lines of a file that threads and processes append to.

Each request is a line when it is sent and a line when its reply is read, so that a client that is killed leaves what it had
asked. Times are CLOCK_MONOTONIC of this machine, in nanoseconds. `read` joins the lines to `Operation`s, which `checker.py`
judges.
"""

import dataclasses
import itertools
import json
import os
import time

from wire import Connection, Gone, Refused

COUNTER = itertools.count(1)


@dataclasses.dataclass
class Operation:
    """A request, or something that happens to servers. `replied` None: nobody knows what became of it."""

    kind: str
    sent: int
    replied: int | None = None
    key: str = ""
    owner: str = ""
    node: int = 0
    connection: str = ""
    px: int = 0
    block: int | None = None
    grace: int | None = None
    replicas: int = 0
    keep: int = 0
    limit: int = 0
    shared: bool = False
    reentrant: bool = False
    # One of several keys of LOCK.MACQUIRE.
    several: bool = False
    fence: int | None = None
    # Of acquire: (fence, holds, ms left), or None if it was refused; of the others: what the server answered.
    result: object = None
    error: str = ""

    def is_granted(self):
        return self.kind == "acquire" and self.result is not None


class History:
    """Appends to a file: whole lines, whoever writes."""

    def __init__(self, path):
        self.path = path
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **fields):
        os.write(self.file, json.dumps(fields).encode() + b"\n")

    def ask(self, kind, **fields):
        """A request that is about to be sent. Returns its number."""
        number = f"{os.getpid()}.{next(COUNTER)}"
        self.write(id=number, kind=kind, sent=time.monotonic_ns(), **fields)
        return number

    def answer(self, number, result=None, error="", at=None):
        self.write(id=number, replied=at or time.monotonic_ns(), result=result, error=error)

    def during(self, kind, action, **fields):
        """Writes down what `action` did, and from when to when."""
        number = self.ask(kind, **fields)
        result = action()
        self.answer(number, result if isinstance(result, (int, str)) else None)
        return result

    def read(self):
        operations = {}
        with open(self.path, encoding="utf8") as file:
            for line in file:
                fields = json.loads(line)
                number = fields.pop("id")
                if number not in operations:
                    operations[number] = Operation(**fields)
                else:
                    operation = operations[number]
                    operation.replied, operation.error = fields["replied"], fields["error"]
                    result = fields["result"]
                    operation.result = tuple(result) if isinstance(result, list) else result
        return sorted(operations.values(), key=lambda operation: operation.sent)


class Client:
    """A connection of one owner. What it asks is written down; an error of the server is raised as `Refused`."""

    def __init__(self, history, server, owner, resp3=False, timeout=60.0):
        self.history, self.server, self.owner = history, server, owner
        self.wire = Connection(server.address, timeout)
        self.name = f"{os.getpid()}:{next(COUNTER)}"
        self.waiting = None
        if resp3:
            self.wire.call("HELLO", 3)

    def ask(self, kind, **fields):
        return self.history.ask(kind, owner=self.owner, node=self.server.number, connection=self.name, **fields)

    def begin(self, kind, request, **fields):
        """Sends without reading the reply."""
        number = self.ask(kind, **fields)
        self.waiting = number, kind
        self.wire.send(request)

    def finish(self):
        """Reads the reply to what was begun."""
        (number, kind), self.waiting = self.waiting, None
        try:
            result = self.wire.reply()
        except Refused as error:
            self.history.answer(number, error=str(error))
            raise
        at = time.monotonic_ns()
        if kind in ("acquire", "permit"):
            result = result if result[0] else None
        elif kind == "renew":
            result = result[0]
        elif kind == "confirm":
            result = int(result >= self.wanted)
        self.history.answer(number, result, at=at)
        return result

    def do(self, kind, request, **fields):
        self.begin(kind, request, **fields)
        return self.finish()

    def begin_acquire(self, key, px, block=None, grace=None, shared=False, reentrant=False, replicas=None):
        request = ["LOCK.ACQUIRE", key, self.owner, "PX", px]
        request += ["BLOCK", block] if block is not None else []
        request += ["SHARED"] if shared else []
        request += ["SESSION", "GRACE", grace] if grace is not None else []
        request += ["REENTRANT"] if reentrant else []
        request += ["REPLICAS", *replicas] if replicas else []
        fields = {"block": block, "grace": grace, "shared": shared, "reentrant": reentrant}
        self.begin("acquire", request, key=key, px=px, replicas=replicas[0] if replicas else 0, **fields)

    def acquire(self, key, px, **options):
        """The grant (fence, holds, ms left), or None."""
        self.begin_acquire(key, px, **options)
        return self.finish()

    def acquire_all(self, keys, px, block=None):
        """The fence of LOCK.MACQUIRE, or None: written down as if each key had been asked for."""
        request = ["LOCK.MACQUIRE", len(keys), *keys, self.owner, "PX", px] + (["BLOCK", block] if block is not None else [])
        numbers = [self.ask("acquire", key=key, px=px, block=block, several=True) for key in keys]
        self.wire.send(request)
        try:
            result = self.wire.reply()
        except Refused as error:
            for number in numbers:
                self.history.answer(number, error=str(error))
            raise
        at = time.monotonic_ns()
        for number in numbers:
            self.history.answer(number, (result[0], 1, result[1]) if result[0] else None, at=at)
        return result[0] or None

    def release(self, key, fence=None, keep=None, all=False):
        request = ["LOCK.RELEASE", key, self.owner]
        request += ["ALL"] if all else []
        request += ["FENCE", fence] if fence is not None else []
        request += ["KEEP", keep] if keep is not None else []
        return self.do("release", request, key=key, fence=fence, keep=keep or 0)

    def renew(self, key, px):
        return self.do("renew", ["LOCK.RENEW", 1, key, self.owner, "PX", px], key=key, px=px)

    def guard(self, key, fence=None):
        request = ["LOCK.GUARD", key, self.owner] + (["FENCE", fence] if fence is not None else [])
        return self.do("guard", request, key=key, fence=fence)

    def confirm(self, key, fence, replicas, ms):
        """Whether so many replicas have the grant within `ms`."""
        self.wanted = replicas
        return self.do("confirm", ("WAIT", replicas, ms), key=key, fence=fence)

    def permit(self, key, limit, px, block=None):
        request = ["SEM.ACQUIRE", key, self.owner, "LIMIT", limit, "PX", px] + (["BLOCK", block] if block is not None else [])
        return self.do("permit", request, key=key, limit=limit, px=px, block=block)

    def give_back(self, key, permit):
        return self.do("give-back", ["SEM.RELEASE", key, permit], key=key)

    def end(self, key, *request):
        """A request that may end the key's holding, whoever has it; without a key, that of all keys."""
        return self.do("end", request, key=key)

    def call(self, *request):
        """Any other request: a sign of life."""
        return self.do("other", request)

    def close(self):
        number = self.ask("close")
        self.wire.close()
        self.history.answer(number)


def sample_queue(history, connection, node, key):
    """Writes down who waits, in which order; connections are told apart by their owners."""
    number = history.ask("queue", key=key, node=node)
    try:
        waiters = connection.call("LOCK.WAITERS", key, "COUNT", 10_000)
    except (Gone, Refused):
        return []
    owners = [dict(zip(it[::2], it[1::2]))["owner"] if isinstance(it, list) else it["owner"] for it in waiters]
    history.answer(number, owners)
    return owners
