"""Faults in GC policies."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import attrs

from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.contract import Combine, Compact, Drop, Migrate
from mutants import Broken

_BY_NAME = {descriptor.name: descriptor for descriptor in builtin.msgstore_gc_policies()}
half_empty = Broken(_BY_NAME["half-empty"], HalfEmpty)
combine = Broken(_BY_NAME["combine"], CombineNeighbours)
retention = Broken(_BY_NAME["retention"], Retention, {"max_bytes": "2kB"})
silent = attrs.evolve(retention, faulty={"capabilities": []})


def plans(name, what, plan, broken=half_empty):
    """``plan(segments, old)`` is called with the policy's own plan for them, ``old``."""
    broken(name, what, plan=lambda _, old, segments, now: plan(segments, old(segments, now)))


def is_half_empty(s):
    return s.garbage_bytes * 2 > s.used_bytes


def compacted(segments, wanted):
    return [Compact(s.number) for s in segments if wanted(s)]


def at_rest(s):
    return not (s.current or s.quarantined)


def neighbours(segments):
    for one, two in pairwise(segments):
        fit = 64 + one.live_bytes + two.live_bytes <= one.size_limit
        if at_rest(one) and at_rest(two) and fit and one.garbage_bytes + two.garbage_bytes:
            yield Combine((one.number, two.number))


plans(
    "compacts-the-current",
    "it compacts the segment that new messages go to",
    lambda segments, _: compacted(segments, lambda s: is_half_empty(s) and not s.quarantined),
)
plans(
    "compacts-the-quarantined",
    "it compacts quarantined segments",
    lambda segments, _: compacted(segments, lambda s: is_half_empty(s) and not s.current),
)
plans("names-one-twice", "it names a segment twice", lambda _, old: old + old[:1])
plans(
    "counts-segments",
    "it counts segments instead of reading their numbers",
    lambda segments, old: [Compact(at) for at, s in enumerate(segments) if Compact(s.number) in old],
)
plans("answers-numbers", "it returns numbers", lambda _, old: [action.number for action in old])
plans("answers-none", "it returns None if there is nothing to do", lambda _, old: old or None)
plans("looks-at-the-clock", "it reads the clock", lambda _, old: [a for a in old if time.time() > 10**9])
plans("rolls-dice", "it depends on chance", lambda _, old: [a for a in old if random.random() < 0.5])
plans(
    "never-enough",
    "it compacts compacted segments again",
    lambda segments, _: compacted(segments, lambda s: s.live_count and at_rest(s)),
)
plans(
    "migrates-for-ever",
    "it migrates segments of the store's own format, for ever",
    lambda segments, _: [Migrate(s.number) for s in segments if at_rest(s)],
)
plans(
    "divides-by-zero",
    "it divides by a number that may be zero",
    lambda segments, old: (
        [a for a in old if sum(s.live_bytes for s in segments) / len(segments)]
        or compacted(segments, lambda s: not s.current and s.garbage_bytes / s.used_bytes > 1)
    ),
)
plans(
    "quadratic",
    "it compares each segment with each",
    lambda segments, old: [a for a in old if [s for s in segments if s.number == a.number and not s.current]],
)
plans("combines-overlapping", "it combines one with both neighbours", lambda segments, _: list(neighbours(segments)), combine)
plans(
    "combines-with-itself",
    "it combines a segment with itself",
    lambda _, old: [Combine((action.numbers[0],) * 2) for action in old],
    combine,
)
plans(
    "drops-without-reason",
    "it drops without a reason",
    lambda _, old: [Drop(a.number, "") if isinstance(a, Drop) else a for a in old],
    retention,
)
silent("drops-silently", "it drops live messages, and does not claim DROPS_MESSAGES")


@half_empty.of("plan")
def sorts_its_input(self, old, segments, now):
    """It sorts the list that it is given."""
    if isinstance(segments, list):
        segments.sort(key=lambda s: s.live_bytes)
    return old(segments, now)


@half_empty.of("plan")
def never_returns(self, old, segments, now):
    """It does not return for a store with two segments of the same size."""
    while len({s.size for s in segments}) < len(segments) > 1000:
        pass
    return old(segments, now)


@half_empty.of("plan")
def remembers(self, old, segments, now):
    """It remembers what it wanted before."""
    asked = vars(self).setdefault("asked", set())
    found = [action for action in old(segments, now) if action.number not in asked]
    asked.update(action.number for action in found)
    return found


@combine.of("plan")
def combines_too_much(self, old, segments, now):
    """It combines segments that do not fit into one."""
    return old([attrs.evolve(s, size_limit=2 * s.size_limit) for s in segments], now)
