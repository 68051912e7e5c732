"""The checker on histories made by hand: each rule is kept once and broken once."""

import unittest

from checker import MS, check
from history import Operation


def acquire(owner, at, fence, px=1000, took=1, holds=1, left=None, **fields):
    """Times in milliseconds. `fence` None: refused."""
    result = (fence, holds, px if left is None else left) if fence is not None else None
    return Operation("acquire", at * MS, (at + took) * MS, fields.pop("key", "k"), owner, px=px, result=result, **fields)


def lost(owner, at, **fields):
    """An acquisition whose reply nobody read."""
    return Operation("acquire", at * MS, None, "k", owner, px=fields.pop("px", 1000), **fields)


def told(kind, owner, at, result, fence=None, took=1, **fields):
    return Operation(kind, at * MS, (at + took) * MS, fields.pop("key", "k"), owner, fence=fence, result=result, **fields)


def mark(kind, at, until, **fields):
    return Operation(kind, at * MS, until * MS if until is not None else None, **fields)


class Rules(unittest.TestCase):
    def broken(self, *operations, **options):
        return sorted({violation.rule for violation in check(list(operations), **options).violations})

    def holds(self, *operations, **options):
        self.assertEqual([], [str(it) for it in check(list(operations), **options).violations])

    def test_two_hold_at_once(self):
        self.holds(acquire("a", 0, 1), told("release", "a", 500, 0, 1), acquire("b", 400, 2, took=200))
        self.holds(acquire("a", 0, 1), acquire("b", 900, 2, took=101))
        self.assertEqual(["overlap"], self.broken(acquire("a", 0, 1), acquire("b", 500, 2)))
        renewed = told("renew", "a", 800, 1, px=1000)
        self.assertEqual(["overlap"], self.broken(acquire("a", 0, 1), renewed, acquire("b", 1500, 2)))
        self.holds(acquire("a", 0, 1, shared=True), acquire("b", 500, 2, shared=True))
        self.assertEqual(["overlap"], self.broken(acquire("a", 0, 1, shared=True), acquire("b", 500, 2)))

    def test_a_deletion_ends_a_holding(self):
        self.holds(acquire("a", 0, 1), told("end", "x", 400, 1), acquire("b", 500, 2), told("release", "a", 600, -2, 1))
        self.assertEqual(["overlap"], self.broken(acquire("a", 0, 1), told("end", "x", 400, 0), acquire("b", 500, 2)))

    def test_a_sessions_lease(self):
        grant = acquire("a", 0, 1, grace=100, connection="c")
        ping = told("other", "a", 900, "PONG", key="", connection="c")
        close = mark("close", 1000, 1000, connection="c")
        self.holds(grant, ping, close, acquire("b", 1200, 2))
        self.assertEqual(["overlap"], self.broken(grant, ping, acquire("b", 1800, 2)))
        # A request that was under way when the lease ended may have come too late.
        slow = told("other", "a", 900, "PONG", key="", connection="c", took=200)
        self.holds(grant, slow, acquire("b", 1050, 2), told("guard", "a", 1120, 0, 1, connection="c"))
        self.assertEqual(["overlap"], self.broken(grant, ping, close, acquire("b", 1050, 2)))
        waits = dict(connection="d", block=0)
        self.assertEqual(["forgotten"], self.broken(grant, ping, close, acquire("b", 950, 2, took=2000, **waits)))

    def test_a_promotion_leaves_a_session_its_grace(self):
        gains = [mark("gain", -100, -90, node=1), mark("gain", 500, 510, node=2)]
        grant = acquire("a", 0, 1, px=5000, grace=300, node=1, connection="c", replicas=1)
        self.holds(*gains, grant, acquire("b", 900, 2, node=2))
        self.assertEqual(["overlap"], self.broken(*gains, grant, acquire("b", 700, 2, node=2)))
        unanswered = mark("release", 300, None, key="k", owner="a", fence=1)
        self.holds(*gains, grant, unanswered, acquire("b", 700, 2, node=2))

    def test_fences_repeat_or_fall(self):
        released = told("release", "a", 10, 0, 5)
        self.holds(acquire("a", 0, 5), released, acquire("b", 20, 6))
        self.assertEqual(["fence"], self.broken(acquire("a", 0, 5), released, acquire("b", 20, 5)))
        self.assertEqual(["fence"], self.broken(acquire("a", 0, 5), released, acquire("b", 20, 4)))
        # Of two that were under way at once, either may be the first.
        self.holds(acquire("a", 0, 6, took=50), acquire("b", 20, 5, key="l"))

    def test_fences_over_authorities(self):
        gains = [mark("gain", 0, 1, node=1), mark("gain", 100, 110, node=2)]
        stale = acquire("b", 200, 6, node=1, key="l")
        self.holds(*gains, acquire("a", 10, 5, node=1), acquire("c", 150, 7, node=2, key="m"), stale)
        self.assertEqual(["fence"], self.broken(*gains, acquire("c", 150, 6, node=2, key="m"), stale))
        self.assertEqual(["fence"], self.broken(*gains, acquire("c", 150, 5, node=2, key="m"), stale))

    def test_what_outlives_its_authority(self):
        gains = [mark("gain", 0, 1, node=1), mark("gain", 100, 110, node=2)]
        second = acquire("b", 150, 6, node=2)
        self.assertEqual(["overlap"], self.broken(*gains, acquire("a", 10, 5, node=1, replicas=1), second))
        self.assertEqual(["overlap"], self.broken(*gains, acquire("a", 10, 5, node=1), second, survives=True))
        unsafe = check([*gains, acquire("a", 10, 5, node=1), second])
        self.assertEqual((0, 1), (len(unsafe.violations), len(unsafe.unpromised)))
        confirmed = told("confirm", "a", 20, 1, 5)
        self.assertEqual(["overlap"], self.broken(*gains, acquire("a", 10, 5, node=1), confirmed, second))

    def test_lost_before_the_leases_end(self):
        for kind, result in (("release", -1), ("release", -2), ("renew", 0), ("guard", 0), ("lost", None)):
            self.holds(acquire("a", 0, 1), told(kind, "a", 1100, result, 1))
            self.assertEqual(["early loss"], self.broken(acquire("a", 0, 1), told(kind, "a", 900, result, 1)), kind)
        twice = [told("release", "a", 10, 0, 1), told("release", "a", 20, -1, 1)]
        self.holds(acquire("a", 0, 1), *twice)

    def test_asking_again(self):
        self.holds(acquire("a", 0, 1), acquire("a", 500, 1))
        self.holds(acquire("a", 0, 1), acquire("a", 500, 1, holds=2, reentrant=True))
        for again in (acquire("a", 500, None), acquire("a", 500, 1, holds=2), acquire("a", 500, 1, px=10, left=10)):
            self.assertEqual(["retry"], self.broken(acquire("a", 0, 1), again))
        self.assertIn("retry", self.broken(acquire("a", 0, 1), acquire("a", 500, 2)))
        # A grant whose reply was lost: what came between has a higher fence all the same.
        self.holds(lost("a", 0), acquire("b", 10, 2, key="l"), acquire("a", 20, 1))

    def test_a_release_of_anothers_lock(self):
        self.assertEqual(["release"], self.broken(acquire("a", 0, 1), told("release", "b", 500, 0)))
        self.assertEqual(["release"], self.broken(acquire("a", 0, 1), told("renew", "b", 500, 1)))
        late = [acquire("b", 0, 1, px=100), acquire("a", 200, 2), told("release", "b", 500, 0, 1)]
        self.assertEqual(["release"], self.broken(*late))
        twice = [told("release", "a", 10, 0, 1), told("release", "a", 2000, 0, 1)]
        self.assertEqual(["release"], self.broken(acquire("a", 0, 1), *twice))
        self.holds(lost("b", 0), told("release", "b", 5, 0))

    def test_out_of_order(self):
        held = [acquire("h", 0, 1), told("release", "h", 100, 0, 1)]
        first = acquire("a", 10, 2, took=92, block=0)
        second = acquire("b", 11, 3, took=193, block=0)
        sample = mark("queue", 20, 21, key="k", result=("a", "b"))
        released = told("release", "a", 200, 0, 2)
        self.holds(*held, first, second, sample, released)
        self.holds(*held, first, second, released)
        swapped = mark("queue", 20, 21, key="k", result=("b", "a"))
        self.assertEqual(["order"], self.broken(*held, first, second, swapped, released))
        # The first gives up after the second was granted, and before.
        timed_out = acquire("b", 11, None, took=2001, block=2000)
        self.assertEqual(["order"], self.broken(*held, first, timed_out, swapped))
        self.holds(*held, first, acquire("b", 11, None, took=61, block=60), swapped)
        # One that came later than all that are seen waiting.
        late = acquire("c", 50, 2, took=60, block=0)
        self.assertEqual(["order"], self.broken(*held, late, told("release", "c", 120, 0, 2), acquire("b", 11, 3, took=193, block=0),
                                                mark("queue", 20, 21, key="k", result=("b",))))

    def test_forgotten_while_the_key_was_free(self):
        held = [acquire("h", 0, 1, px=10_000), told("release", "h", 100, 0, 1)]
        self.holds(*held, acquire("a", 10, 2, took=500, block=0))
        self.assertEqual(["forgotten"], self.broken(*held, acquire("a", 10, 2, took=1500, block=0)))
        self.assertEqual(["forgotten"], self.broken(*held, acquire("a", 10, None, took=1500, block=1490)))
        self.holds(*held, acquire("a", 10, 2, took=1500, block=0), mark("down", 90, 1400))
        # The lease is over, and nobody is served.
        expired = acquire("h", 0, 1, px=100)
        self.assertEqual(["forgotten"], self.broken(expired, acquire("a", 10, 2, took=1500, block=0)))

    def test_a_waiter_that_is_gone_holds_nothing(self):
        held = [acquire("h", 0, 1, px=10_000), told("release", "h", 100, 0, 1)]
        dead = lost("d", 5, px=10_000, block=0, connection="7:1")
        waits = acquire("a", 10, 2, took=3000, block=0)
        # Gone before the release: nothing could be granted to it. Gone after: it may have been.
        self.assertEqual(["forgotten"], self.broken(*held, dead, mark("close", 80, 90, connection="7"), waits))
        self.holds(*held, dead, mark("close", 180, 190, connection="7:1"), waits)

    def test_granted_while_kept(self):
        keeps = told("release", "a", 100, 0, 1, keep=500)
        self.holds(acquire("a", 0, 1), keeps, acquire("b", 610, 2))
        self.assertEqual(["kept"], self.broken(acquire("a", 0, 1), keeps, acquire("b", 400, 2)))
        self.holds(acquire("a", 0, 1), keeps, told("end", "x", 300, 1), acquire("b", 400, 2))

    def test_too_many_permits(self):
        def permit(owner, at):
            return told("permit", owner, at, ([f"{owner}#1#0"], 1, 0), px=1000, limit=2)

        self.holds(permit("a", 0), permit("b", 10), permit("c", 1100))
        self.holds(permit("a", 0), permit("b", 10), told("give-back", "a", 20, 1), permit("c", 30))
        self.assertEqual(["permits"], self.broken(permit("a", 0), permit("b", 10), permit("c", 20)))

    def test_writes_to_a_resource(self):
        passed = [acquire("a", 0, 1, px=100), acquire("b", 200, 2)]
        self.holds(*passed, told("write", "b", 210, 1, 2), told("write", "a", 220, 0, 1))
        self.assertEqual(["resource"], self.broken(*passed, told("write", "b", 210, 1, 2), told("write", "a", 205, 2, 1)))
        self.assertEqual(["resource"], self.broken(*passed, told("write", "b", 210, 0, 2)))

    def test_what_a_scenario_expects_by_itself(self):
        self.assertEqual(["expected"], self.broken(mark("expected", 1, 1, result=False, error="it was so")))


if __name__ == "__main__":
    unittest.main()
