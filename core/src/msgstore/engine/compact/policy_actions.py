"""What a GC policy plans, checked against the store: what cannot be carried out is passed over, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgstore.contract import Action, Combine, Compact, Drop, GcPolicy, Migrate, SegmentStats
from msgstore.engine.segment.segment import Segment

log = logging.getLogger("msgstore.collection")


def ask(policy: GcPolicy, stats: Sequence[SegmentStats], now: float) -> list[Any]:
    """What the policy wants. One that raises wants nothing, and is logged: it must not end the collector."""
    try:
        return list(policy.plan(stats, now))
    except Exception:
        log.exception("the GC policy %s failed; nothing is collected but empty segments", type(policy).__name__)
        return []


def validate_actions(
    actions: Iterable[object],
    stats: Sequence[SegmentStats],
    segments: Mapping[int, Segment],
    generation: int,
    *,
    may_drop: bool,
) -> list[Action]:
    """The actions that can be carried out. ``generation``: of the format that the store writes; ``may_drop``: the policy says
    that it drops messages."""
    good: list[Action] = []
    for action, reason in judge(actions, stats, segments, generation, may_drop=may_drop):
        if reason is None:
            assert isinstance(action, Action)
            good.append(action)
        elif reason:
            log.warning("the GC policy's %r is passed over: %s", action, reason)
    return good


def judge(
    actions: Iterable[object],
    stats: Sequence[SegmentStats],
    segments: Mapping[int, Segment],
    generation: int,
    *,
    may_drop: bool,
) -> Iterator[tuple[object, str | None]]:
    """Each action, and why it is passed over: "" if that is not worth a line in the log, None if it can be carried out."""
    by_number = {s.number: s for s in stats}
    taken: set[int] = set()
    for action in actions:
        reason = _refusal(action, by_number, segments, generation, taken)
        if reason is None and isinstance(action, Drop) and not may_drop:
            reason = "the policy does not claim the capability drops-messages, and live messages would be lost"
        if reason is None:
            assert isinstance(action, Action)
            taken.update(numbers_of(action))
        yield action, reason


def numbers_of(action: Action) -> tuple[int, ...]:
    return action.numbers if isinstance(action, Combine) else (action.number,)


def _refusal(
    action: object, stats: Mapping[int, SegmentStats], segments: Mapping[int, Segment], generation: int, taken: set[int]
) -> str | None:
    """Why an action is passed over; "" if that is not worth a line in the log; None if it is not."""
    if not isinstance(action, Action):
        return "it is none of Compact, Combine, Drop, Migrate"
    if isinstance(action, Combine) and not _is_pair(action.numbers):
        return "it does not name two segments"
    for number in numbers_of(action):
        reason = _unfit(number, stats, taken)
        if reason:
            return reason
    if isinstance(action, Combine):
        return _unfit_pair(action, stats)
    segment = segments[action.number]
    if isinstance(action, Migrate) and segment.form.descriptor.generation >= generation:
        return f"{segment.path.name} is not of an older format than the store's"
    if isinstance(action, Compact) and segment.compacted_live_bytes == segment.live_bytes:
        return ""  # looked at before, and nothing has died since
    return None


def _is_pair(numbers: object) -> bool:
    return isinstance(numbers, tuple) and len(numbers) == 2 and numbers[0] != numbers[1]


def _unfit(number: object, stats: Mapping[int, SegmentStats], taken: set[int]) -> str | None:
    found = stats.get(number) if isinstance(number, int) else None
    if found is None:
        return f"there is no segment {number!r}"
    if found.current:
        return f"{found.file} is the one that new messages go to"
    if found.quarantined:
        return f"{found.file} is quarantined"
    if number in taken:
        return f"{found.file} is named by an earlier action"
    return None


def _unfit_pair(action: Combine, stats: Mapping[int, SegmentStats]) -> str | None:
    left, right = (stats[number] for number in action.numbers)
    size = max(left.header_bytes, right.header_bytes) + left.live_bytes + right.live_bytes
    if size > left.size_limit:
        return f"{left.file} and {right.file} have {size} bytes together, and a segment at most {left.size_limit}"
    return None
