"""Judges a history: pure, without a server.

A grant is surely held from when its reply was read until its lease, counted from when it was asked for, ends, or until its
release was sent. It is possibly held from when it was asked for until its lease, counted from the reply, ends, or until its
release was answered. Two sure holdings of a key that meet, a holder that is refused within its sure time, and a client that
waits while nobody possibly holds the key are faults, however requests were delayed on their way.

Fences grow within an authority (a start or a promotion of a node, kind `gain`), and each authority's are above those of all
earlier ones. What an authority granted is only promised to outlive it if `Holding.safe_from` says so: all grants where the
log does, else those which replicas have acknowledged.
"""

import bisect
import collections
import dataclasses

MS = 1_000_000
FOREVER = 1 << 62
# A loop that is late, on a machine that others use: how long a free key may pass a waiting client by.
SLACK_MS = 1000
RULES = (
    "overlap", "fence", "early loss", "retry", "release", "order", "forgotten", "kept", "permits", "resource", "expected",
)


@dataclasses.dataclass
class Violation:
    rule: str
    text: str
    at: int = 0


@dataclasses.dataclass
class Holding:
    key: str
    owner: str
    fence: int
    node: int
    # Possibly held from `asked` to `last`, surely from `start` to `end`.
    asked: int
    start: int
    end: int
    last: int
    shared: bool = False
    authority: int = 0
    # From when on it is promised to outlive its authority.
    safe_from: int | None = None
    released: int = 0
    notes: list = dataclasses.field(default_factory=list)

    def __str__(self):
        return f"{self.owner} (fence {self.fence})"

    def covers(self, operation):
        return self.start <= operation.sent and (operation.replied or FOREVER) <= self.end


class Checker:
    def __init__(self, operations, survives=False, slack_ms=SLACK_MS):
        self.operations = sorted(with_closed(operations), key=lambda operation: operation.sent)
        self.survives, self.slack = survives, slack_ms * MS
        self.violations, self.unpromised = [], []
        self.by_kind = collections.defaultdict(list)
        self.by_owner = collections.defaultdict(list)
        self.by_connection = collections.defaultdict(list)
        self.ends = collections.defaultdict(list)
        self.closed = {}
        for operation in self.operations:
            self.by_kind[operation.kind].append(operation)
            if operation.key:
                self.by_owner[operation.owner, operation.key].append(operation)
            if operation.connection:
                self.by_connection[operation.connection].append(operation)
            if operation.kind == "end":
                self.ends[operation.key].append(operation)
            if operation.kind == "close":
                self.closed.setdefault(operation.connection, operation)
        self.gains = self.by_kind["gain"]
        self.holdings = self.find_holdings()
        self.by_key = collections.defaultdict(list)
        self.owned = collections.defaultdict(list)
        for holding in self.holdings:
            self.by_key[holding.key].append(holding)
            self.owned[holding.owner, holding.key].append(holding)

    def report(self, rule, text, at=0):
        self.violations.append(Violation(rule, text, at))

    def authority(self, operation):
        """The number of the node's last start or promotion before the reply."""
        at = operation.replied or operation.sent
        numbers = [number for number, gain in enumerate(self.gains, 1) if gain.node == operation.node and gain.sent <= at]
        return numbers[-1] if numbers else 0

    # ---- holdings ------------------------------------------------------------------------------------------------------------

    def find_holdings(self):
        found = {}
        for operation in self.by_kind["acquire"]:
            if not operation.is_granted():
                continue
            name = operation.owner, operation.key, operation.result[0]
            if name not in found:
                found[name] = self.holding(operation)
        return sorted(found.values(), key=lambda holding: holding.start)

    def holding(self, first):
        """Follows a grant through what was asked of it later. `first`: the first request that was answered with it."""
        owner, key, fence = first.owner, first.key, first.result[0]
        px, grace = first.px * MS, first.grace
        # A request whose reply was lost may have made it.
        asked = first.sent
        for operation in reversed(self.before(self.by_owner[owner, key], first.sent)):
            if operation.kind == "acquire" and not operation.error:
                if operation.is_granted():
                    break
                asked = operation.sent if operation.replied is None else asked
        it = Holding(key, owner, fence, first.node, asked, first.replied, first.sent + px, first.replied + px, first.shared)
        it.last = max(it.last, first.replied + first.result[2] * MS)
        it.authority = self.authority(first)
        if self.survives or first.replicas:
            it.safe_from = it.start
        # What may have ended it, whatever is said of its lease later.
        bound, ended = first.connection, FOREVER
        later = self.after(self.by_owner[owner, key], asked) + self.after(self.ends[key], asked, True)
        later += self.after(self.ends[""], asked, True) if key else []
        if grace is not None:
            connections = {other.connection for other in later if other.kind in ("acquire", "renew")}
            connections |= {other.connection for other in self.by_kind["attach"] if other.owner == owner}
            later += [other for name in connections - {""} for other in self.after(self.by_connection[name], asked)]
            later += self.after(self.gains, asked)
        seen = set()
        for other in sorted(later, key=lambda other: other.sent):
            if id(other) in seen or other.sent > it.last:
                continue
            seen.add(id(other))
            unknown, replied = other.replied is None, other.replied or FOREVER
            if other.kind == "end":
                if other.result == 0 or replied < asked:
                    continue
                ended = min(ended, other.sent)
                if other.sent >= it.start and not unknown:
                    it.last = min(it.last, replied)
                    break
            elif other.kind == "release" and (other.owner, other.key) == (owner, key) and other.fence in (None, fence):
                if other.sent < it.start:
                    continue
                if unknown or other.result == 0:
                    ended = min(ended, other.sent)
                if other.result == 0:
                    it.released, it.last = other.sent, min(it.last, replied)
                    break
            elif other.kind == "confirm" and other.fence == fence and other.owner == owner and other.result:
                it.safe_from = replied if it.safe_from is None else it.safe_from
            elif other.kind == "acquire" and other.is_granted() and other.result[0] == fence and other.key == key:
                if other is not first and other.replied + (other.result[2] + 2) * MS < min(it.end, ended):
                    it.notes.append(("retry", f"{it}'s lease on {key} became shorter by asking again", other.sent))
                if other is not first and not other.reentrant and not first.reentrant and other.result[1] != 1:
                    it.notes.append(("retry", f"{it} holds {key} {other.result[1]} times by asking again", other.sent))
                it.end, it.last = max(it.end, other.sent + other.px * MS), max(it.last, replied + other.px * MS)
                bound = other.connection
            elif other.kind == "renew" and other.owner == owner and other.key == key and (unknown or other.result == fence):
                it.last = max(it.last, min(replied, other.sent + self.slack) + other.px * MS)
                if not unknown:
                    it.end = max(it.end, other.sent + other.px * MS)
                    bound = other.connection
            if grace is None:
                continue
            if other.kind == "attach" and other.owner == owner and other.result:
                bound = other.connection
            if other.kind == "close":
                if other.connection == bound:
                    it.end, it.last, bound = other.sent + grace * MS, replied + grace * MS, None
            elif other.kind == "gain" and other.sent > it.asked:
                if it.safe_from is not None:
                    it.end = other.sent + grace * MS
                it.last, bound = replied + grace * MS, None
            elif other.connection and other.connection == bound:
                it.last = max(it.last, min(replied, other.sent + self.slack) + px)
                # One that may have come after the end is no sign of life.
                if replied <= it.end and not other.error and other.block is None:
                    it.end = max(it.end, other.sent + px)
        it.end = min(it.end, ended)
        return it

    @staticmethod
    def before(operations, at):
        return operations[:bisect.bisect_left(operations, at, key=lambda operation: operation.sent)]

    @staticmethod
    def after(operations, at, with_under_way=False):
        """Those sent from `at` on; or also those that were not answered then, of which there are few."""
        position = bisect.bisect_left(operations, at, key=lambda operation: operation.sent)
        under_way = operations[max(0, position - 100):position] if with_under_way else []
        return [it for it in under_way if (it.replied or FOREVER) >= at] + operations[position:]

    # ---- rules ---------------------------------------------------------------------------------------------------------------

    def check(self):
        for holding in self.holdings:
            for note in holding.notes:
                self.report(*note)
        for rule in (
            self.overlaps, self.fences, self.answers, self.releases, self.order, self.forgotten, self.kept, self.permits,
            self.resource,
        ):
            rule()
        for operation in self.by_kind["expected"]:
            if not operation.result:
                self.report("expected", operation.error, operation.sent)
        return self

    def overlaps(self):
        for key, holdings in self.by_key.items():
            open_ones = []
            for holding in holdings:
                open_ones = [other for other in open_ones if other.end > holding.start]
                for other in open_ones if holding.end > holding.start else ():
                    if holding.shared and other.shared or (holding.owner, holding.fence) == (other.owner, other.fence):
                        continue
                    earlier, later = sorted((holding, other), key=lambda it: it.authority)
                    meets = Violation("overlap", f"{key}: {other} and {holding} hold it at once", holding.start)
                    if earlier.authority == later.authority:
                        self.violations.append(meets)
                    elif earlier.safe_from is None or max(earlier.safe_from, later.start) >= min(earlier.end, later.end):
                        self.unpromised.append(meets)
                    else:
                        self.violations.append(meets)
                open_ones.append(holding)

    def fences(self):
        owners, spans = {}, collections.defaultdict(list)
        # Locks of other recipes, which have none, have numbers below 0.
        for holding in [it for it in self.holdings if it.fence > 0]:
            other = owners.setdefault(holding.fence, holding)
            if other.owner != holding.owner:
                self.report("fence", f"{holding} of {holding.key} repeats the fence of {other} of {other.key}", holding.start)
            spans[holding.authority].append(holding)
        highest_before = None
        for authority in sorted(spans):
            answered = spans[authority]
            asked, position, highest = sorted(answered, key=lambda it: it.asked), 0, None
            for holding in asked:
                while position < len(answered) and answered[position].start <= holding.asked:
                    highest = max(highest or answered[position], answered[position], key=lambda it: it.fence)
                    position += 1
                if highest and highest.fence > holding.fence:
                    self.report("fence", f"{holding} of {holding.key} came after {highest} of {highest.key}", holding.start)
            lowest, highest = min(answered, key=lambda it: it.fence), max(answered, key=lambda it: it.fence)
            if highest_before and lowest.fence <= highest_before.fence:
                text = f"{lowest} is of a later authority than {highest_before}, {authority} and {highest_before.authority}"
                self.report("fence", text, lowest.start)
            highest_before = max(highest_before or highest, highest, key=lambda it: it.fence)

    def meant(self, operation):
        """The holding that a request of its owner is about."""
        mine = self.owned[operation.owner, operation.key]
        mine = [it for it in mine if it.start <= operation.sent and operation.fence in (None, it.fence)]
        return mine[-1] if mine else None

    def held_meanwhile(self, operation):
        """The holdings that surely covered a request. They do not meet, or that is found elsewhere: the last few are enough."""
        holdings = self.by_key[operation.key]
        position = bisect.bisect_right(holdings, operation.sent, key=lambda it: it.start)
        return [it for it in holdings[max(0, position - 50):position] if it.covers(operation)]

    def answers(self):
        """Holders that are told within their sure time that they are none."""
        refusals = {"release": (-1, -2), "renew": (0,), "guard": (0,), "lost": (None,)}
        for kind in (*refusals, "acquire"):
            for operation in self.by_kind[kind]:
                if operation.replied is None or operation.error:
                    continue
                holding = self.meant(operation)
                if holding is None or not holding.covers(operation) or self.authority(operation) < holding.authority:
                    continue
                if self.authority(operation) != holding.authority and holding.safe_from is None:
                    continue
                if kind == "acquire":
                    if not operation.is_granted() or operation.result[0] != holding.fence:
                        text = f"{holding} asked again for {holding.key} and was answered {operation.result}"
                        self.report("retry", text, operation.sent)
                elif operation.result in refusals[kind]:
                    left = (holding.end - operation.replied) / MS
                    text = f"{holding} of {holding.key}: {kind} was answered {operation.result}, {left:.0f} ms too early"
                    self.report("early loss", text, operation.sent)

    def releases(self):
        freed = {}
        for operation in self.by_kind["release"] + self.by_kind["renew"] + self.by_kind["guard"]:
            result, is_release = operation.result, operation.kind == "release"
            if operation.replied is None or operation.error or result is None or result < (0 if is_release else 1):
                continue
            mine = self.owned[operation.owner, operation.key]
            fence = result if operation.kind == "renew" else operation.fence
            mine = [it for it in mine if fence in (None, it.fence)]
            lost_replies = any(
                other.kind == "acquire" and other.replied is None and other.sent < operation.sent
                for other in self.by_owner[operation.owner, operation.key]
            )
            if not mine and not lost_replies:
                text = f"{operation.owner} was told that it held {operation.key} ({operation.kind}), which nobody granted"
                self.report("release", text, operation.sent)
            for other in self.held_meanwhile(operation):
                if other not in mine and not other.shared:
                    if self.authority(operation) == other.authority:
                        text = f"{operation.owner}'s {operation.kind} of {operation.key} succeeded while {other} held it"
                        self.report("release", text, operation.sent)
            if is_release and result == 0 and operation.fence is not None and mine:
                name = operation.key, operation.owner, operation.fence
                if name in freed and self.authority(operation) == self.authority(freed[name]):
                    self.report("release", f"{mine[-1]} released {operation.key} twice", operation.sent)
                freed[name] = operation

    def wait_of(self, sample, owner):
        """The request of an owner that a sample of the queue shows."""
        for operation in reversed(self.before(self.by_owner[owner, sample.key], sample.sent)):
            if operation.kind == "acquire":
                is_open = (operation.replied or FOREVER) > sample.replied
                return operation if operation.block is not None and is_open else None
        return None

    def order(self):
        samples = [sample for sample in self.by_kind["queue"] if sample.replied]
        served = collections.defaultdict(list)
        for holding in self.holdings:
            served[holding.key].append(holding)
        for holdings in served.values():
            holdings.sort(key=lambda it: it.asked)
        for sample in samples:
            waits = [wait for wait in (self.wait_of(sample, owner) for owner in sample.result or ()) if wait]
            granted = [wait for wait in waits if wait.is_granted() and self.authority(wait) == self.authority(sample)]
            for before, after in zip(granted, granted[1:]):
                if before.result[0] > after.result[0]:
                    text = f"{sample.key}: {after.owner} stood behind {before.owner} and was granted before it"
                    return self.report("order", text, after.replied)
            for position, wait in enumerate(waits):
                behind = next((other for other in waits[position + 1:] if other.is_granted()), None)
                if behind and not wait.is_granted() and not wait.error and behind.replied < self.gave_up(wait):
                    text = f"{sample.key}: {behind.owner} stood behind {wait.owner}, which still waited, and was granted"
                    return self.report("order", text, behind.replied)
            # Whoever came after the sample stands behind all in it.
            if granted:
                last = max(granted, key=lambda wait: wait.result[0])
                newer = served[sample.key]
                newer = newer[bisect.bisect_right(newer, sample.replied, key=lambda it: it.asked):]
                for holding in newer:
                    if holding.fence < last.result[0] and holding.authority == self.authority(last):
                        text = f"{sample.key}: {holding} came later than {last.owner} and was granted before it"
                        return self.report("order", text, holding.start)

    def gave_up(self, wait):
        """Until when a client surely waited that was not granted what it waited for."""
        closed = self.closed.get(wait.connection)
        end = closed.sent if closed else FOREVER
        if wait.block:
            end = min(end, wait.sent + wait.block * MS)
        return min(end, wait.replied) if wait.replied and not wait.block else end

    def forgotten(self):
        """Clients that wait while nobody possibly holds the key."""
        end_of_all = max((operation.replied or operation.sent for operation in self.operations), default=0)
        downs = [(it.sent, it.replied or end_of_all) for it in self.by_kind["down"]]
        keys = collections.defaultdict(list)
        for operation in self.by_kind["acquire"]:
            keys[operation.key].append(operation)
        for key, asked in keys.items():
            # Only waits that are long can be too long.
            waits = [it for it in asked if it.block is not None and (it.replied or end_of_all) - it.sent > self.slack]
            # Who asks for several keys keeps those that are free from others.
            if not waits or any(it.several for it in asked):
                continue
            # A grant counts from its reply: one that is told late is as bad as one that comes late.
            occupied = downs + [(it.start, it.last) for it in self.by_key[key]] + self.kept_times(key)
            unheld = gaps_of([(it.start, it.end) for it in self.by_key[key] if it.end > it.start], FOREVER)
            occupied += [span for it in asked if it.replied is None for span in self.unknown(it, unheld, end_of_all)]
            gaps = gaps_of(occupied, end_of_all)
            reported = set()
            for wait in waits:
                closed = self.closed.get(wait.connection)
                until = wait.replied or (closed.sent if closed else end_of_all)
                for begin, end in gaps:
                    free_from, free_to = max(begin, wait.sent), min(end, until)
                    if free_to - free_from > self.slack and begin not in reported:
                        reported.add(begin)
                        ms = (free_to - free_from) // MS
                        self.report("forgotten", f"{wait.owner} waited for {key}, which was free for {ms} ms", free_from)

    def unknown(self, operation, unheld, end_of_all):
        """When a request may have held the key whose reply nobody read: never, if others surely held it until it was gone.

        `unheld`: when nobody surely held it.
        """
        closed = self.closed.get(operation.connection)
        gone = closed.replied or end_of_all if closed else end_of_all
        position = bisect.bisect_right(unheld, operation.sent, key=lambda gap: gap[1])
        if position == len(unheld) or unheld[position][0] >= gone:
            return []
        left = operation.px if operation.grace is None else operation.grace
        return [(max(unheld[position][0], operation.sent), gone + left * MS)]

    def kept_times(self, key):
        kept = [it for it in self.by_kind["release"] if it.key == key and it.keep]
        return [(it.sent, (it.replied or it.sent + self.slack) + it.keep * MS) for it in kept]

    def kept(self):
        for operation in self.by_kind["release"]:
            if not operation.keep or operation.result != 0:
                continue
            end = operation.sent + operation.keep * MS
            ends = [it.sent for it in self.ends[operation.key] + self.ends[""] if it.sent >= operation.sent]
            end = min([end, *ends])
            for holding in self.by_key[operation.key]:
                if holding.asked >= operation.replied and holding.start < end:
                    self.report("kept", f"{holding} was granted {operation.key}, which was kept", holding.start)

    def permits(self):
        returned = {}
        for operation in self.by_kind["give-back"]:
            returned.setdefault(operation.owner, []).append(operation.sent)
        changes = collections.defaultdict(list)
        for operation in self.by_kind["permit"]:
            if operation.result is None:
                continue
            ends = [at for at in returned.get(operation.owner, []) if at >= operation.replied]
            end = min([operation.sent + operation.px * MS, *ends])
            if end > operation.replied:
                count = len(operation.result[0])
                changes[operation.key] += [(operation.replied, count, operation.limit), (end, -count, FOREVER)]
        for key, steps in changes.items():
            held = 0
            for at, count, limit in sorted(steps):
                held += count
                if held > limit:
                    self.report("permits", f"{key}: {held} permits of {limit} are held", at)
                    break

    def resource(self):
        """Writes to something that compares fences: none goes back, and no holder's is refused."""
        highest = collections.defaultdict(int)
        accepted = [operation for operation in self.by_kind["write"] if operation.result]
        # The result is the write's number there: the order in which they were sent tells nothing.
        for operation in sorted(accepted, key=lambda operation: operation.result):
            if operation.fence < highest[operation.key]:
                self.report("resource", f"a write with fence {operation.fence} came after {highest[operation.key]}")
            highest[operation.key] = max(highest[operation.key], operation.fence)
        for operation in self.by_kind["write"]:
            if operation.result:
                continue
            holding = self.meant(operation)
            if holding and holding.fence == operation.fence and holding.covers(operation):
                self.report("resource", f"the write of {holding}, which held {holding.key}, was refused", operation.sent)


def with_closed(operations):
    """The end of a process, `pid`, is that of its connections, `pid:number`."""
    names = {operation.connection for operation in operations}
    for operation in operations:
        if operation.kind == "close" and operation.connection.isdigit():
            mine = [name for name in names if name.startswith(operation.connection + ":")]
            yield from (dataclasses.replace(operation, connection=name) for name in mine)
        else:
            yield operation


def gaps_of(spans, end):
    """The times up to `end` that no span covers, from the first span on."""
    gaps, reached = [], None
    for begin, until in sorted(spans):
        if reached is not None and begin > reached:
            gaps.append((reached, begin))
        reached = max(until, reached or 0)
    if reached is None:
        return [(0, end)]
    if reached < end:
        gaps.append((reached, end))
    return gaps if not spans or min(spans)[0] <= 0 else [(0, min(spans)[0]), *gaps]


def check(operations, **options):
    return Checker(operations, **options).check()
