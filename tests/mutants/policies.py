"""Faults in GC policies."""

from __future__ import annotations

import random  # noqa: F401 - the tables use them
import time  # noqa: F401

import attrs  # noqa: F401

from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.contract import Migrate  # noqa: F401
from mutants import add_mutants

BY_NAME = {descriptor.name: descriptor for descriptor in builtin.msgstore_gc_policies()}


def hangs():
    while True:
        pass


add_mutants(BY_NAME["half-empty"], HalfEmpty, r"""
compacts-the-current: it compacts the segment that new messages go to
    plan: _collectable(segments) if => segments if not s.quarantined and
compacts-the-quarantined: it compacts quarantined segments
    plan: _collectable(segments) if => segments if not s.current and
names-one-twice: it names a segment twice
    plan > _ + _[:1]
counts-segments: it counts segments instead of reading their numbers
    plan > [Compact(at) for at, s in enumerate(segments) if Compact(s.number) in _]
answers-numbers: it returns numbers
    plan: Compact(s.number) => s.number
answers-none: it returns None if there is nothing to do
    plan > _ or None
sorts-its-input: it sorts the list that it is given
    plan > (_, isinstance(segments, list) and segments.sort(key=lambda s: s.live_bytes))[0]
looks-at-the-clock: it reads the clock
    plan > [action for action in _ if time.time() > 10**9]
rolls-dice: it depends on chance
    plan > [action for action in _ if random.random() < 0.5]
remembers: it remembers what it wanted before
    plan > [action for action in _ if self.__dict__.setdefault(str(action), id(_)) == id(_)]
never-enough: it compacts compacted segments again
    plan: s.garbage_bytes > s.used_bytes * self._garbage => s.live_count
migrates-for-ever: it migrates segments of the store's own format, for ever
    plan > [Migrate(s.number) for s in _collectable(segments)]
divides-by-zero: it divides by a number that may be zero
    plan: s.garbage_bytes > s.used_bytes * self._garbage => s.garbage_bytes / s.used_bytes > self._garbage
quadratic: it compares each segment with each
    plan > [action for action in _ if [s for s in segments if s.number == action.number and not s.current]]
never-returns: it does not return for a store with two segments of the same size
    plan > hangs() if len({s.size for s in segments}) < len(segments) > 1000 else _
""")  # fmt: skip

add_mutants(BY_NAME["combine"], CombineNeighbours, r"""
combines-too-much: it combines segments that do not fit into one
    plan: _combinable(segments) => _combinable([attrs.evolve(s, size_limit=2 * s.size_limit) for s in segments])
combines-with-itself: it combines a segment with itself
    plan: Combine((left.number, right.number)) => Combine((left.number, left.number))
combines-overlapping: it combines one segment with both of its neighbours
    plan: if taken.isdisjoint((left.number, right.number)): => if True:
""")  # fmt: skip

LITTLE = {"max_bytes": "2kB"}
add_mutants(BY_NAME["retention"], Retention, r"""
drops-without-reason: it drops without a reason
    plan: Drop(number, reason) => Drop(number, "")
""", options=LITTLE)  # fmt: skip

add_mutants(BY_NAME["retention"], Retention, r"""
drops-silently: it drops live messages, and does not claim DROPS_MESSAGES
""", options=LITTLE, capabilities=[])  # fmt: skip
