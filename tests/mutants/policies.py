"""Faults in GC policies."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import attrs

from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.contract import Combine, Compact, Drop, Migrate
from mutants import mutant

_BY_NAME = {descriptor.name: descriptor for descriptor in builtin.msgstore_gc_policies()}
HALF_EMPTY, COMBINE, RETENTION = (_BY_NAME[name] for name in ("half-empty", "combine", "retention"))
SILENT_RETENTION = attrs.evolve(RETENTION, capabilities=[])


@mutant(HALF_EMPTY, "it compacts the segment that new messages go to")
class CompactsTheCurrent(HalfEmpty):
    def plan(self, segments, now):
        return [Compact(s.number) for s in segments if s.garbage_bytes * 2 > s.used_bytes and not s.quarantined]


@mutant(HALF_EMPTY, "it compacts what is quarantined")
class CompactsTheQuarantined(HalfEmpty):
    def plan(self, segments, now):
        return [Compact(s.number) for s in segments if s.garbage_bytes * 2 > s.used_bytes and not s.current]


@mutant(HALF_EMPTY, "it names a segment twice")
class NamesOneTwice(HalfEmpty):
    def plan(self, segments, now):
        actions = super().plan(segments, now)
        return actions + actions[:1]


@mutant(HALF_EMPTY, "it counts segments instead of reading their numbers")
class CountsSegments(HalfEmpty):
    def plan(self, segments, now):
        wanted = {action.number for action in super().plan(segments, now)}
        return [Compact(at) for at, s in enumerate(segments) if s.number in wanted]


@mutant(HALF_EMPTY, "it answers with numbers")
class AnswersNumbers(HalfEmpty):
    def plan(self, segments, now):
        return [action.number for action in super().plan(segments, now)]


@mutant(HALF_EMPTY, "it answers with None if there is nothing to do")
class AnswersNone(HalfEmpty):
    def plan(self, segments, now):
        return super().plan(segments, now) or None


@mutant(HALF_EMPTY, "it sorts the list that it is given")
class SortsItsInput(HalfEmpty):
    def plan(self, segments, now):
        segments = segments if isinstance(segments, list) else list(segments)
        segments.sort(key=lambda s: s.live_bytes)
        return super().plan(segments, now)


@mutant(HALF_EMPTY, "it looks at the clock")
class LooksAtTheClock(HalfEmpty):
    def plan(self, segments, now):
        return [a for a in super().plan(segments, now) if time.time() > 10**9]


@mutant(HALF_EMPTY, "it rolls dice")
class RollsDice(HalfEmpty):
    def plan(self, segments, now):
        return [a for a in super().plan(segments, now) if random.random() < 0.5]


@mutant(HALF_EMPTY, "it remembers what it wanted before")
class Remembers(HalfEmpty):
    def __init__(self, options):
        super().__init__(options)
        self._asked = set()

    def plan(self, segments, now):
        found = [a for a in super().plan(segments, now) if a.number not in self._asked]
        self._asked.update(a.number for a in found)
        return found


@mutant(HALF_EMPTY, "it never has enough: what was compacted is compacted again")
class NeverEnough(HalfEmpty):
    def plan(self, segments, now):
        return [Compact(s.number) for s in segments if s.live_count and not (s.current or s.quarantined)]


@mutant(HALF_EMPTY, "it migrates what is of the store's own format, for ever")
class MigratesForEver(HalfEmpty):
    def plan(self, segments, now):
        return [Migrate(s.number) for s in segments if not (s.current or s.quarantined)]


@mutant(HALF_EMPTY, "it divides by what may be nothing")
class DividesByZero(HalfEmpty):
    def plan(self, segments, now):
        return [a for a in super().plan(segments, now) if sum(s.live_bytes for s in segments) / len(segments)] or [
            Compact(s.number) for s in segments if not s.current and s.garbage_bytes / s.used_bytes > 1
        ]


@mutant(HALF_EMPTY, "it compares each segment with each")
class Quadratic(HalfEmpty):
    def plan(self, segments, now):
        return [a for a in super().plan(segments, now) if [s for s in segments if s.number == a.number and not s.current]]


@mutant(HALF_EMPTY, "it does not come back from a store with two segments of the same size")
class NeverReturns(HalfEmpty):
    def plan(self, segments, now):
        while len({s.size for s in segments}) < len(segments) > 1000:
            pass
        return super().plan(segments, now)


@mutant(COMBINE, "it combines what does not fit into one segment")
class CombinesTooMuch(CombineNeighbours):
    def plan(self, segments, now):
        return super().plan([attrs.evolve(s, size_limit=2 * s.size_limit) for s in segments], now)


@mutant(COMBINE, "it combines a segment with itself")
class CombinesWithItself(CombineNeighbours):
    def plan(self, segments, now):
        return [Combine((action.numbers[0],) * 2) for action in super().plan(segments, now)]


@mutant(COMBINE, "it combines one segment with both of its neighbours")
class CombinesOverlapping(CombineNeighbours):
    def plan(self, segments, now):
        pairs = pairwise(segments)
        return [
            Combine((left.number, right.number))
            for left, right in pairs
            if not (left.current or right.current or left.quarantined or right.quarantined)
            and left.garbage_bytes + right.garbage_bytes
            and 64 + left.live_bytes + right.live_bytes <= left.size_limit
        ]


@mutant(SILENT_RETENTION, "it drops live messages, and does not say that it does", max_bytes="2kB")
class DropsSilently(Retention):
    pass


@mutant(RETENTION, "it drops without a reason", max_bytes="2kB")
class DropsWithoutReason(Retention):
    def plan(self, segments, now):
        return [Drop(a.number, "") if isinstance(a, Drop) else a for a in super().plan(segments, now)]
