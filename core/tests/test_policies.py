"""The GC policies of core, and the check of what any policy plans. The conformance kit has what holds for every policy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.builtin.options import HalfEmptyOptions, RetentionOptions
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.config import structure
from msgstore.contract import (
    Capability,
    Combine,
    Compact,
    ConfigError,
    Drop,
    GcPolicyDescriptor,
    Migrate,
    NoOptions,
    SegmentStats,
)
from msgstore.engine.compact.policy_actions import judge
from msgstore.testing import Subject
from msgstore.testing.stores import StoreFactory

NOW = 1_000_000.0
LIMIT = 1000
HEADER = 64


def stats(number: int, size: int = 500, live: int = 100, **changes: Any) -> SegmentStats:
    """Sizes behind the header."""
    found = SegmentStats(
        number=number,
        file=f"{number}.sqs",
        format="v2",
        size=HEADER + size,
        live_count=min(live, 1),
        live_bytes=live,
        header_bytes=HEADER,
        current=False,
        quarantined=False,
        sealed_at=NOW - 1000 + number,
        size_limit=LIMIT,
    )
    return attrs.evolve(found, **changes)


@st.composite
def stores(draw: st.DrawFn) -> list[SegmentStats]:
    segments = []
    for number in sorted(draw(st.sets(st.integers(0, 30), max_size=8))):
        size = draw(st.integers(0, 1500))
        live = draw(st.integers(0, size))
        sealed_at = draw(st.none() | st.floats(0, 2 * NOW))
        segments.append(stats(number, size, live, sealed_at=sealed_at, quarantined=draw(st.booleans() | st.just(False))))
    if segments and draw(st.booleans()):
        segments[-1] = attrs.evolve(segments[-1], current=True, sealed_at=None)
    return segments


OPTIONS = st.builds(
    RetentionOptions,
    max_age=st.floats(0, 2 * NOW),
    max_bytes=st.none() | st.integers(0, 10_000),
    then=st.sampled_from(["never", "half-empty"]),
)


@given(stores(), st.floats(0.01, 0.99))
def test_half_empty_plans_segments_above_share(segments, share):
    plan = HalfEmpty(HalfEmptyOptions(share)).plan(segments, NOW)
    wanted = [
        s for s in segments if not (s.current or s.quarantined) and s.size - HEADER - s.live_bytes > share * (s.size - HEADER)
    ]
    assert plan == [Compact(s.number) for s in wanted]


@given(stores())
def test_combine_respects_limit_and_stops_at_half(segments):
    garbage = sum(s.garbage_bytes for s in segments)
    size = sum(s.used_bytes for s in segments)
    by_number = {s.number: s for s in segments}
    there = [s.number for s in segments if s.live_count or s.current or s.quarantined]
    last = None
    for action in CombineNeighbours(NoOptions()).plan(segments, NOW):
        assert isinstance(action, Combine)
        assert garbage * 2 > size  # what came before was not enough
        left, right = (by_number[number] for number in action.numbers)
        assert there.index(right.number) == there.index(left.number) + 1
        assert HEADER + left.live_bytes + right.live_bytes <= LIMIT
        gain = left.garbage_bytes + right.garbage_bytes
        assert gain > 0
        assert last is None or gain <= last
        last = gain
        garbage, size = garbage - gain, size - gain


def test_combine_takes_most_garbage_first():
    segments = [stats(1, 300, 50), stats(2, 300, 50), stats(3, 900, 100), stats(4, 900, 100), stats(5, 100, 100, current=True)]
    assert CombineNeighbours(NoOptions()).plan(segments, NOW) == [Combine((3, 4)), Combine((1, 2))]
    assert CombineNeighbours(NoOptions()).plan([*segments[:2], stats(9, 2000, 2000)], NOW) == []


@given(stores(), OPTIONS)
def test_retention_drops_oldest_first(segments, options):
    plan = Retention(options).plan(segments, NOW)
    dropped = [action.number for action in plan if isinstance(action, Drop)]
    old = sorted((s for s in segments if s.sealed_at is not None and not s.quarantined), key=lambda s: (s.sealed_at, s.number))
    assert dropped == [s.number for s in old[: len(dropped)]]
    total = sum(s.size for s in segments)
    for at, segment in enumerate(old):
        too_old = NOW - segment.sealed_at > options.max_age
        too_much = options.max_bytes is not None and total > options.max_bytes
        assert (at < len(dropped)) == (too_old or too_much)
        if at >= len(dropped):
            break
        total -= segment.size
    others = [action for action in plan if not isinstance(action, Drop)]
    left = [s for s in segments if s.number not in dropped]
    assert others == (HalfEmpty(HalfEmptyOptions()).plan(left, NOW) if options.then == "half-empty" else [])


def test_retention_states_the_reason():
    segments = [stats(1), stats(2), stats(3, current=True, sealed_at=None)]
    (drop,) = Retention(RetentionOptions(max_bytes=1200)).plan(segments, NOW)
    assert drop == Drop(1, "the store has 1692 bytes, and max_bytes is 1200")
    (drop,) = Retention(RetentionOptions(max_age=998.5)).plan(segments, NOW)
    assert drop == Drop(1, "its newest message is 999 s old, and max_age is 998 s")


@attrs.frozen
class Unresolved:
    size: "Sice" = 1  # type: ignore[name-defined]  # noqa: F821, UP037 - a name that is nowhere, as a stranger misspells one


@attrs.frozen
class Unsupported:
    when: SimpleNamespace | None = None


@attrs.frozen
class Failing:
    share: float = attrs.field(default=1.0, validator=lambda _, __, value: 1 / value)


@pytest.mark.parametrize(
    ("options", "table", "message"),
    [
        (RetentionOptions, {}, "give max_age, max_bytes, or both"),
        (RetentionOptions, {"max_age": "7 weeks"}, "is not a time"),
        (RetentionOptions, {"max_bytes": "1GiB", "then": "half-emty"}, "Did you mean 'half-empty'"),
        (RetentionOptions, {"max_bites": 1}, "Did you mean 'max_bytes'"),
        (HalfEmptyOptions, {"garbage": 1}, "is not a fraction between 0 and 1"),
        (HalfEmptyOptions, {"garbage": "half"}, "'half' is not a number"),
        (HalfEmptyOptions, {"garbage": True}, "True is not a number"),
        (Unresolved, {}, "here: the class of options .*Unresolved cannot be used: NameError: .*Sice"),
        (Unsupported, {"when": "UTC"}, "here when: the class of options .*Unsupported cannot be used: StructureHandler"),
        (Failing, {"share": 0}, "here: the class of options .*Failing cannot be used: ZeroDivisionError"),
    ],
)
def test_wrong_options_are_refused(options, table, message):
    with pytest.raises(ConfigError, match=message):
        structure(options, table, "here")


def test_options_with_units_are_parsed():
    assert structure(RetentionOptions, {"max_age": "7d", "max_bytes": "1GiB"}, "here") == RetentionOptions(7 * 86400.0, 2**30)


# -- what any policy may answer -------------------------------------------------------------------------------------------

SEGMENTS = [stats(1), stats(2), stats(3, quarantined=True), stats(4, 900, 900), stats(5, current=True), stats(6)]
BY_NUMBER: Any = {
    number: SimpleNamespace(
        form=SimpleNamespace(descriptor=SimpleNamespace(generation=1 if number == 6 else 2)),
        compacted_live_bytes=100 if number == 4 else -1, live_bytes=100, path=Path(f"{number}.sqs"),
    )
    for number in range(1, 7)
}  # fmt: skip


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (1, "none of Compact, Combine, Drop, Migrate"),
        (None, "none of"),
        (Compact(7), "there is no segment 7"),
        (Compact("1"), "there is no segment '1'"),
        (Compact([1]), "there is no segment"),
        (Compact(3), "3.sqs is quarantined"),
        (Drop(5, "old"), "5.sqs is the one that new messages go to"),
        (Combine((1, 5)), "5.sqs is the one"),
        (Combine((1, 1)), "does not name two segments"),
        (Combine((1, 2, 6)), "does not name two segments"),
        (Combine(1), "does not name two segments"),
        (Combine((2, 4)), "have 1064 bytes together, and a segment at most 1000"),
        (Migrate(1), "not of an older format"),
        (Compact(4), ""),  # looked at before, and nothing has died since: the log does not mention it
        (Drop(1, "old"), "does not claim the capability drops-messages"),
        (Migrate(6), None),
    ],
)
def test_impossible_action_is_refused(action, reason):
    [(judged, why)] = judge([action], SEGMENTS, BY_NUMBER, 2, may_drop=False)
    assert judged is action
    assert why == reason or (reason and reason in why)


def test_segment_named_twice_is_refused():
    actions = [Compact(1), Drop(1, "old"), Combine((1, 2)), Combine((2, 6)), Migrate(6)]
    reasons = [reason for _, reason in judge(actions, SEGMENTS, BY_NUMBER, 2, may_drop=True)]
    assert [reason is None for reason in reasons] == [True, False, False, True, False]
    assert all("is named by an earlier action" in reason for reason in reasons if reason)


class Scripted:
    answer: Any = None

    def __init__(self, options):
        pass

    def plan(self, segments, now):
        return self.answer([s.number for s in segments if not s.current])


@pytest.mark.parametrize(
    ("capabilities", "answer", "left", "logged"),
    [
        ([], lambda numbers: [Drop(number, "it is there") for number in numbers], 1, "does not claim the capability"),
        ([Capability.DROPS_MESSAGES], lambda numbers: [Drop(number, "it is there") for number in numbers], 0, "it is there"),
        ([], lambda numbers: 1 / 0, 1, "the GC policy Scripted failed"),
        ([], lambda numbers: [3, Compact(77)], 1, "there is no segment 77"),
    ],
)
def test_store_carries_out_only_what_is_possible(capabilities, answer, left, logged, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Scripted, "answer", staticmethod(answer))
    factory = f"{__name__}:Scripted"
    descriptor = GcPolicyDescriptor(name="scripted", contract=(1, 0), factory=factory, capabilities=capabilities)
    with StoreFactory(Subject.of(descriptor), tmp_path).open() as store, store.client() as client:
        client.write(bytes(16), b"body")
        store.roll()
        store.compact()
        assert store.stats().messages == left
    assert logged in caplog.text
