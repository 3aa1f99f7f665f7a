"""Faults in GC policies."""

from __future__ import annotations

import random
import time
from functools import partial
from itertools import pairwise

import attrs

from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.contract import Combine, Compact, Drop, Migrate
from mutants import broken

_BY_NAME = {descriptor.name: descriptor for descriptor in builtin.msgstore_gc_policies()}
HALF_EMPTY, COMBINE, RETENTION = (_BY_NAME[name] for name in ("half-empty", "combine", "retention"))
SILENT_RETENTION = attrs.evolve(RETENTION, capabilities=[])


def plans(name, what, plan, original=HALF_EMPTY, base=HalfEmpty):
    """``plan(segments, old)`` is called with the policy's own plan for them, ``old()``."""
    broken(__name__, original, base, name, what, plan=lambda _, old, segments, now: plan(segments, partial(old, segments, now)))


def half_empty(segment):
    return segment.garbage_bytes * 2 > segment.used_bytes


def at_rest(segment):
    return not (segment.current or segment.quarantined)


def counts_segments(segments, old):
    wanted = {action.number for action in old()}
    return [Compact(at) for at, s in enumerate(segments) if s.number in wanted]


def sorts(segments, old):
    if isinstance(segments, list):
        segments.sort(key=lambda s: s.live_bytes)
    return old()


def divides(segments, old):
    return [a for a in old() if sum(s.live_bytes for s in segments) / len(segments)] or [
        Compact(s.number) for s in segments if not s.current and s.garbage_bytes / s.used_bytes > 1
    ]


def never_returns(segments, old):
    while len({s.size for s in segments}) < len(segments) > 1000:
        pass
    return old()


plans(
    "compacts-the-current",
    "it compacts the segment that new messages go to",
    lambda segments, old: [Compact(s.number) for s in segments if half_empty(s) and not s.quarantined],
)
plans(
    "compacts-the-quarantined",
    "it compacts quarantined segments",
    lambda segments, old: [Compact(s.number) for s in segments if half_empty(s) and not s.current],
)
plans("names-one-twice", "it names a segment twice", lambda segments, old: old() + old()[:1])
plans("counts-segments", "it counts segments instead of reading their numbers", counts_segments)
plans("answers-numbers", "it returns numbers", lambda segments, old: [action.number for action in old()])
plans("answers-none", "it returns None if there is nothing to do", lambda segments, old: old() or None)
plans("sorts-its-input", "it sorts the list that it is given", sorts)
plans("looks-at-the-clock", "it reads the clock", lambda segments, old: [a for a in old() if time.time() > 10**9])
plans("rolls-dice", "it depends on chance", lambda segments, old: [a for a in old() if random.random() < 0.5])
plans(
    "never-enough",
    "it compacts compacted segments again",
    lambda segments, old: [Compact(s.number) for s in segments if s.live_count and at_rest(s)],
)
plans(
    "migrates-for-ever",
    "it migrates segments of the store's own format, for ever",
    lambda segments, old: [Migrate(s.number) for s in segments if at_rest(s)],
)
plans("divides-by-zero", "it divides by a number that may be zero", divides)
plans(
    "quadratic",
    "it compares each segment with each",
    lambda segments, old: [a for a in old() if [s for s in segments if s.number == a.number and not s.current]],
)
plans("never-returns", "it does not return for a store with two segments of the same size", never_returns)


def remembers(self, old, segments, now):
    asked = vars(self).setdefault("asked", set())
    found = [action for action in old(segments, now) if action.number not in asked]
    asked.update(action.number for action in found)
    return found


broken(__name__, HALF_EMPTY, HalfEmpty, "remembers", "it remembers what it wanted before", plan=remembers)
broken(
    __name__,
    COMBINE,
    CombineNeighbours,
    "combines-too-much",
    "it combines segments that do not fit into one",
    plan=lambda _, old, segments, now: old([attrs.evolve(s, size_limit=2 * s.size_limit) for s in segments], now),
)


def with_both_neighbours(segments, old):
    return [
        Combine((left.number, right.number))
        for left, right in pairwise(segments)
        if at_rest(left) and at_rest(right)
        if left.garbage_bytes + right.garbage_bytes and 64 + left.live_bytes + right.live_bytes <= left.size_limit
    ]


plans(
    "combines-with-itself",
    "it combines a segment with itself",
    lambda segments, old: [Combine((action.numbers[0],) * 2) for action in old()],
    COMBINE,
    CombineNeighbours,
)
plans(
    "combines-overlapping",
    "it combines one segment with both of its neighbours",
    with_both_neighbours,
    COMBINE,
    CombineNeighbours,
)
dropping = partial(broken, __name__, options={"max_bytes": "2kB"})
dropping(
    original=SILENT_RETENTION,
    base=Retention,
    name="drops-silently",
    fault="it drops live messages, and does not claim DROPS_MESSAGES",
)
dropping(
    original=RETENTION,
    base=Retention,
    name="drops-without-reason",
    fault="it drops without a reason",
    plan=lambda _, old, *given: [Drop(a.number, "") if isinstance(a, Drop) else a for a in old(*given)],
)
