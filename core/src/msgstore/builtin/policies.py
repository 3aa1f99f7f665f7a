"""Built-in GC policies, whose docstrings are printed in docs/reference/configuration.md, and the body codec ``raw``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgstore.builtin.plugin import HalfEmptyOptions, RetentionOptions
from msgstore.contract import Action, Combine, Compact, Drop, GcPolicy, NoOptions, SegmentStats


class Raw:
    """Body codec that stores bodies unchanged."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        return body

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        return stored

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        return True


class HalfEmpty:
    """Compact each segment with more garbage than the fraction ``garbage``, in number order.

    RabbitMQ 3.13 and later do the same with one half.
    """

    def __init__(self, options: HalfEmptyOptions) -> None:
        self._garbage = options.garbage

    def plan(self, segments: Sequence[SegmentStats], now: float) -> list[Action]:
        return [Compact(s.number) for s in _collectable(segments) if s.garbage_bytes > s.used_bytes * self._garbage]


class CombineNeighbours:
    """Combine neighbours whose live records fit into one segment, once more than half of the store is garbage.

    RabbitMQ before 3.13 did the same. The pair with the most garbage comes first. The policy stops when half of the store is
    garbage: remaining segments may become empty by themselves, which costs nothing.
    """

    def __init__(self, options: NoOptions) -> None:
        pass

    def plan(self, segments: Sequence[SegmentStats], now: float) -> list[Action]:
        garbage, size = sum(s.garbage_bytes for s in segments), sum(s.used_bytes for s in segments)
        taken: set[int] = set()
        actions: list[Action] = []
        for left, right in sorted(_combinable(segments), key=_garbage_of, reverse=True):
            if garbage * 2 <= size:
                break
            if taken.isdisjoint((left.number, right.number)):
                taken |= {left.number, right.number}
                garbage -= left.garbage_bytes + right.garbage_bytes
                size -= left.garbage_bytes + right.garbage_bytes
                actions.append(Combine((left.number, right.number)))
        return actions


def _combinable(segments: Sequence[SegmentStats]) -> list[tuple[SegmentStats, SegmentStats]]:
    """Return neighbours in number order that fit into one file and have garbage. Empty segments need no action."""
    return [
        (left, right)
        for left, right in pairwise(s for s in segments if s.live_count or s.current or s.quarantined)
        if not (left.current or right.current or left.quarantined or right.quarantined)
        and max(left.header_bytes, right.header_bytes) + left.live_bytes + right.live_bytes <= right.size_limit
        and left.garbage_bytes + right.garbage_bytes
    ]


def _garbage_of(pair: tuple[SegmentStats, SegmentStats]) -> int:
    return pair[0].garbage_bytes + pair[1].garbage_bytes


class Never:
    """Collect empty segments only."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def plan(self, segments: Sequence[SegmentStats], now: float) -> list[Action]:
        return []


class Retention:
    """Drop the oldest segments, including their live messages, by age or by total size."""

    def __init__(self, options: RetentionOptions) -> None:
        self._max_age = options.max_age
        self._max_bytes = options.max_bytes
        self._then: GcPolicy = HalfEmpty(HalfEmptyOptions()) if options.then == "half-empty" else Never(NoOptions())

    def plan(self, segments: Sequence[SegmentStats], now: float) -> list[Action]:
        actions: list[Action] = []
        sizes = {s.number: s.size for s in segments}
        total = sum(sizes.values())
        for sealed_at, number in sorted((s.sealed_at, s.number) for s in _collectable(segments) if s.sealed_at is not None):
            reason = self._reason(now - sealed_at, total)
            if reason is None:
                break
            total -= sizes[number]
            actions.append(Drop(number, reason))
        dropped = {action.number for action in actions if isinstance(action, Drop)}
        return [*actions, *self._then.plan([s for s in segments if s.number not in dropped], now)]

    def _reason(self, age: float, total: int) -> str | None:
        """Return why the oldest segment is dropped when the store has ``total`` bytes; None if it stays."""
        if self._max_age is not None and age > self._max_age:
            return f"its newest message is {age:.0f} s old, and max_age is {self._max_age:.0f} s"
        if self._max_bytes is not None and total > self._max_bytes:
            return f"the store has {total} bytes, and max_bytes is {self._max_bytes}"
        return None


def _collectable(segments: Sequence[SegmentStats]) -> list[SegmentStats]:
    return [s for s in segments if not (s.current or s.quarantined)]
