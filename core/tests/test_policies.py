"""The GC policies of core, and the check of what any policy plans. The conformance kit has what holds for every policy."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import attrs
import pytest

from msgstore.builtin.plugin import HalfEmptyOptions, RetentionOptions
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Retention
from msgstore.contract import (
    BrokenPlugin,
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
from msgstore.engine.compact.policy_actions import validate_actions
from msgstore.option_values import structure
from msgstore.plugins.catalogue import load_catalogue
from msgstore.testing import GcPolicyTests, Subject
from msgstore.testing.policies import NOW, segment
from msgstore.testing.stores import CombinationTests, StoreFactory


def stats(number: int, size: int = 500, live: int = 100, **changes: Any) -> SegmentStats:
    """Sizes behind the header."""
    return segment(number, size, live, file=f"{number}.sqs", **changes)


BIG = [stats(number, 900, 100) for number in range(1, 5)]
MIXED = [stats(1, 300, 50), stats(2, 300, 50), stats(3, 900, 100), stats(4, 900, 100), stats(5, 100, 100, current=True)]
HALF = HalfEmpty(HalfEmptyOptions())
COMBINE = CombineNeighbours(NoOptions())


@pytest.mark.parametrize(
    ("policy", "segments", "planned"),
    [
        (HALF, [], []),
        (HALF, [stats(1, 500, 249), stats(2, 500, 250), stats(3, 500, 251)], [Compact(1)]),  # more garbage than half
        (HALF, [stats(1, current=True), stats(2, quarantined=True), stats(3, 0, 0), stats(4, 500, 0)], [Compact(4)]),
        (HalfEmpty(HalfEmptyOptions(0.9)), [stats(1, 500, 50), stats(2, 500, 49)], [Compact(2)]),
        (COMBINE, MIXED, [Combine((3, 4)), Combine((1, 2))]),  # most garbage first
        (COMBINE, [*MIXED[:2], stats(9, 2000, 2000)], []),  # less than half of the store is garbage
        (COMBINE, [*BIG, stats(5, 3000, 2400)], [Combine((1, 2))]),  # until half of the store is garbage
        (COMBINE, [*BIG[:2], stats(3, 1000, 900, current=True)], [Combine((1, 2))]),
        (COMBINE, [stats(1, 2000, 500), stats(2, 2000, 437)], []),  # with its header above the limit
        (COMBINE, [stats(1, 2000, 500), stats(2, 2000, 436)], [Combine((1, 2))]),
        (COMBINE, [BIG[0], stats(2, 500, 0), BIG[2]], [Combine((1, 3))]),  # an empty segment needs no action
        (COMBINE, [BIG[0], stats(2, 500, 9, quarantined=True), BIG[2]], []),
        (COMBINE, [stats(1, 500, 100), stats(2, 900, 900), stats(3, 2000, 0)], []),  # neighbours of a full one
        (Retention(RetentionOptions(max_bytes=2000)), [stats(1, quarantined=True), stats(2), stats(3), stats(4)],
         [Drop(2, ANY)]),
        (Retention(RetentionOptions(max_bytes=500)),
         [stats(2), stats(1, sealed_at=NOW), stats(3, current=True, sealed_at=None)], [Drop(2, ANY), Drop(1, ANY)]),
        (Retention(RetentionOptions(max_age=997.5)), [stats(1), stats(2), stats(3)], [Drop(1, ANY), Drop(2, ANY)]),
        (Retention(RetentionOptions(max_age=998.5, then="half-empty")), [stats(1), stats(2), stats(3, 100, 90)],
         [Drop(1, ANY), Compact(2)]),
    ],
)  # fmt: skip
def test_policy_plans(policy, segments, planned):
    assert policy.plan(segments, NOW) == planned


def test_retention_states_the_reason():
    segments = [stats(1), stats(2), stats(3, current=True, sealed_at=None)]
    (drop,) = Retention(RetentionOptions(max_bytes=1200)).plan(segments, NOW)
    assert drop == Drop(1, "the store has 1692 bytes, and max_bytes is 1200")
    (drop,) = Retention(RetentionOptions(max_age=998.5)).plan(segments, NOW)
    assert drop == Drop(1, "its newest message is 999 s old, and max_age is 998 s")


@attrs.frozen
class Unresolved:
    size: "Sice" = 1  # type: ignore[name-defined]  # noqa: F821, UP037 - a name that is nowhere, as a stranger misspells one


class Mode(Enum):
    FAST = "fast"


@attrs.frozen
class Unfit:
    when: SimpleNamespace | None = None
    mode: Mode = Mode.FAST
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
        (HalfEmptyOptions, {"garbage": 10**400}, "here garbage: int too large to convert to float"),
        (Unresolved, {}, "here: the class of options .*Unresolved cannot be used: NameError: .*Sice"),
        (
            Unfit,
            {"when": "UTC"},
            "here when: the class of options .*Unfit cannot be used: TypeError: the option .when. cannot be a ",
        ),
        (Unfit, {"mode": "slow"}, "here mode: 'slow' is not a valid Mode"),
        (Unfit, {"share": 0}, "here: the class of options .*Unfit cannot be used: ZeroDivisionError"),
    ],
)
def test_wrong_options_are_refused(options, table, message):
    with pytest.raises(ConfigError, match=message):
        structure(options, table, "here")


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
        (Compact(7), "there is no segment 7"),
        (Compact("1"), "it names a segment by str, not by its number"),
        (Compact(SEGMENTS[0]), "it names a segment by SegmentStats"),
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
    [(judged, why)] = validate_actions([action], SEGMENTS, BY_NUMBER, 2, may_drop=False)
    assert judged is action
    assert why == reason or (reason and reason in why)


def test_segment_named_twice_is_refused():
    actions = [Compact(1), Drop(1, "old"), Combine((1, 2)), Combine((2, 6)), Migrate(6)]
    reasons = [reason for _, reason in validate_actions(actions, SEGMENTS, BY_NUMBER, 2, may_drop=True)]
    assert [reason is None for reason in reasons] == [True, False, False, True, False]
    assert all("is named by an earlier action" in reason for reason in reasons if reason)


class Scripted:
    def __init__(self, options):
        pass

    def plan(self, segments, now):
        raise NotImplementedError


def drop_all(self, segments, now):
    return [Drop(s.number, "it is there") for s in segments if not s.current]


@pytest.mark.parametrize(
    ("capabilities", "plan", "left", "logged"),
    [
        ([], drop_all, 1, "does not claim the capability"),
        ([Capability.DROPS_MESSAGES], drop_all, 0, "it is there"),
        ([], lambda *_: [Compact(77)], 1, "Compact(number=77) of the GC policy 'scripted' of "),
    ],
)
def test_store_carries_out_only_what_is_possible(capabilities, plan, left, logged, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Scripted, "plan", plan)
    factory = f"{__name__}:Scripted"
    descriptor = GcPolicyDescriptor(name="scripted", contract=(1, 0), factory=factory, capabilities=capabilities)
    with StoreFactory(Subject.of(descriptor), tmp_path).open() as store, store.client() as client:
        client.write(bytes(16), b"body")
        store.roll()
        store.compact()
        assert store.stats().messages == left
    assert logged in caplog.text


class Idle(Scripted):
    def plan(self, segments, now):
        return [Compact(s.number) for s in segments if s.size > 2**40]


def test_kit_fails_policy_that_never_plans(tmp_path):
    subject = Subject.of(GcPolicyDescriptor(name="idle", contract=(1, 0), factory=f"{__name__}:Idle"))
    with pytest.raises(AssertionError, match="it plans nothing in any of these stores"):
        GcPolicyTests().test_it_plans_something(subject, Idle(None))


@pytest.mark.kit
@pytest.mark.parametrize("erase", [False, True])
def test_kit_passes_policy_that_drops_messages(erase):
    [installed] = [it.descriptor for it in load_catalogue().registrations if it.descriptor.name == "retention"]
    subject = Subject.of(installed, max_bytes=1)
    CombinationTests().test_a_store_is_a_dictionary_that_survives(subject)
    CombinationTests().test_a_crash_at_each_file_operation(subject, erase)


def test_policy_that_raises_is_named_and_empty_segments_are_deleted(tmp_path):
    factory = f"{__name__}:Scripted"
    descriptor = GcPolicyDescriptor(name="scripted", contract=(1, 0), factory=factory)
    with StoreFactory(Subject.of(descriptor), tmp_path).open() as store, store.client() as client:
        client.write(bytes(16), b"body")
        store.roll()
        client.remove([bytes(16)])
        failed = "the GC policy 'scripted' of unregistered .* failed in plan: NotImplementedError"
        text = f"{tmp_path}: nothing is collected but empty segments: {failed}"
        with pytest.raises(BrokenPlugin, match=text):
            store.compact()
        assert not store.segments()
