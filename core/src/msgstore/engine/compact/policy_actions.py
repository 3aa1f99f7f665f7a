"""Policy actions: ask a GC policy for actions, and check them. Actions that cannot be carried out are skipped and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgstore.contract import Action, Combine, Compact, Drop, GcPolicy, Migrate, SegmentStats
from msgstore.engine.segment.segment import Segment

log = logging.getLogger("msgstore.collection")


def ask(policy: GcPolicy, stats: Sequence[SegmentStats], now: float) -> list[Any]:
    """Return the actions that the policy plans; none, with a line in the log, if it raises: it must not end the collector."""
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
    """Return the actions that can be carried out.

    ``generation``: that of the store's format. ``may_drop``: the policy has the capability DROPS_MESSAGES.
    """
    good: list[Action] = []
    for action, reason in judge(actions, stats, segments, generation, may_drop=may_drop):
        if reason is None:
            assert isinstance(action, Action)
            good.append(action)
        elif reason:
            log.warning("the GC policy's %r is skipped: %s", action, reason)
    return good


def judge(
    actions: Iterable[object],
    stats: Sequence[SegmentStats],
    segments: Mapping[int, Segment],
    generation: int,
    *,
    may_drop: bool,
) -> Iterator[tuple[object, str | None]]:
    """Yield each action with the reason to skip it: None if it can be carried out, "" if the log need not mention it."""
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
    """Return the segments that an action names."""
    return action.numbers if isinstance(action, Combine) else (action.number,)


def _refusal(
    action: object, stats: Mapping[int, SegmentStats], segments: Mapping[int, Segment], generation: int, taken: set[int]
) -> str | None:
    """Return the reason to skip an action, as ``judge`` yields it."""
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
