"""Policy actions: ask a GC policy for a plan, and check it. Actions that cannot be carried out are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgstore.contract import Action, Combine, Compact, Drop, GcPolicy, Migrate, SegmentStats
from msgstore.engine.segment.segment import Segment


def plan_of(policy: GcPolicy, stats: Sequence[SegmentStats], now: float) -> list[Action]:
    """Return what a policy plans. Raises what it raises, and TypeError if its plan has anything else than actions."""
    planned = policy.plan(stats, now)
    actions = list(planned)
    if not all(isinstance(action, Action) for action in actions):
        raise TypeError(f"it gives {f'{planned!r}':.80}, not a list of Compact, Combine, Drop, Migrate")
    return actions


def validate_actions(
    actions: Iterable[Action],
    stats: Sequence[SegmentStats],
    segments: Mapping[int, Segment],
    generation: int,
    *,
    may_drop: bool,
) -> Iterator[tuple[Action, str | None]]:
    """Yield each action with the reason to skip it: None if it can be carried out, "" if the log need not mention it.

    ``generation``: that of the store's format. ``may_drop``: the policy has the capability DROPS_MESSAGES.
    """
    known, taken = {s.number: s for s in stats}, set[int]()
    for action in actions:
        reason = _refusal(action, known, segments, generation, taken)
        if reason is None and isinstance(action, Drop) and not may_drop:
            reason = "the policy does not claim the capability drops-messages, and live messages would be lost"
        if reason is None:
            taken.update(numbers_of(action))
        yield action, reason


def numbers_of(action: Action) -> tuple[int, ...]:
    """Return the segments that an action names."""
    return action.numbers if isinstance(action, Combine) else (action.number,)


def _refusal(
    action: Action, stats: Mapping[int, SegmentStats], segments: Mapping[int, Segment], generation: int, taken: set[int]
) -> str | None:
    numbers = numbers_of(action)
    if isinstance(action, Combine) and not (isinstance(numbers, tuple) and len(numbers) == 2 and numbers[0] != numbers[1]):
        return "it does not name two segments"
    for number in numbers:
        if not isinstance(number, int):
            return f"it names a segment by {type(number).__name__}, not by its number"
        found = stats.get(number)
        if found is None:
            return f"there is no segment {number}"
        if found.current:
            return f"{found.file} is the one that new messages go to"
        if found.quarantined:
            return f"{found.file} is quarantined"
        if number in taken:
            return f"{found.file} is named by an earlier action"
    if isinstance(action, Combine):
        left, right = (stats[number] for number in numbers)
        size = max(left.header_bytes, right.header_bytes) + left.live_bytes + right.live_bytes
        if size > left.size_limit:
            return f"{left.file} and {right.file} have {size} bytes together, and a segment at most {left.size_limit}"
        return None
    segment = segments[action.number]
    if isinstance(action, Migrate) and segment.form.descriptor.generation >= generation:
        return f"{segment.path.name} is not of an older format than the store's"
    looked_at_before = isinstance(action, Compact) and segment.compacted_live_bytes == segment.live_bytes
    return "" if looked_at_before else None  # and nothing has died since
