"""Tests of GC policies: they return, they repeat their result, and carrying it out ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import Action, Capability, Combine, Drop, Migrate, SegmentStats
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import clocks_of, is_linear, tried, within
from msgstore.testing.subjects import Subject, with_other_options

NOW = 1_700_000_000.0
YEARS = 1461 * 7 * 86_400.0
"""Seconds of 28 years, after which each day of a year has the same day of the week."""
LIMIT = 1000
"""Bytes of a segment's file in these stores."""
OWN, OLDER = "own", "older"
"""Names of formats; new segments are of the first."""
PATIENCE = 3.0
"""Seconds of the processor for a plan. The collector asks as often as every second."""


def segment(number: int, used: int, live: int, **changes: Any) -> SegmentStats:
    """``used`` and ``live`` are bytes behind a header of 64, in records of some 40."""
    format_ = changes.pop("format", OWN)
    found = SegmentStats(
        number=number, file=f"{number}.{format_}", format=format_, size=64 + used, live_count=-(-live // 40), live_bytes=live,
        header_bytes=64, current=False, quarantined=False, sealed_at=NOW - 1000 + number, size_limit=LIMIT,
    )  # fmt: skip
    return attrs.evolve(found, **changes)


def with_current(segments: list[SegmentStats]) -> list[SegmentStats]:
    """The same, and new messages go to the last one."""
    return [*segments[:-1], *(attrs.evolve(s, current=True, sealed_at=None, format=OWN) for s in segments[-1:])]


@st.composite
def stores(draw: Any) -> list[SegmentStats]:
    """Segments as a store has them: in number order, numbers left out, the current one, if any, the last."""
    segments = []
    for number in sorted(draw(st.sets(st.integers(0, 40), max_size=9))):
        used = draw(st.integers(0, LIMIT + 500) | st.integers(LIMIT, LIMIT + 500))
        live = draw(st.sampled_from([draw(st.integers(0, used)), 0, used * 2 // 5, used]))  # 2 of 5: two may not fit into one
        sealed_at = draw(st.none() | st.floats(0, 2 * NOW) | st.integers(0, 30).map(lambda days: NOW - 86400.0 * days))
        quarantined = draw(st.integers(0, 7)) == 0
        format_ = draw(st.sampled_from([OWN, OWN, OLDER]))
        header = 64 if format_ == OWN else 100
        more = {"sealed_at": sealed_at, "quarantined": quarantined, "format": format_, "header_bytes": header}
        segments.append(segment(number, used, live, size=header + used, **more))
    return with_current(segments) if draw(st.booleans()) else segments


def questions(segments: list[SegmentStats]) -> Iterator[tuple[list[SegmentStats], float]]:
    """Segments and times: the same segments, older or younger; the same numbers, with another size, age, or
    state; and huge numbers."""
    for now in (NOW + YEARS, NOW + 3600, NOW - 3600, NOW - YEARS, NOW):
        yield segments.copy(), now
    full = [attrs.evolve(s, live_bytes=s.used_bytes, live_count=-(-s.used_bytes // 40)) for s in segments]
    yield full, NOW
    yield [attrs.evolve(s, live_bytes=s.used_bytes // 9, live_count=min(s.used_bytes // 9, 1)) for s in segments], NOW
    yield [attrs.evolve(s, sealed_at=None if s.current else NOW - 3 * YEARS) for s in segments], NOW
    yield [attrs.evolve(s, quarantined=not s.quarantined) for s in segments], NOW
    yield [attrs.evolve(s, number=s.number * 10**15) for s in segments], NOW
    yield segments.copy(), NOW


class GcPolicyTests(KitTests):
    kinds = ("gc",)

    @pytest.fixture
    def policy(self, subject: Subject) -> Any:
        return subject.make(subject.made_options)

    @given(segments=stores())
    @tried(200)
    def test_a_plan_is_pure_and_safe(self, subject: Subject, segments: list[SegmentStats]) -> None:
        """A failure means that the policy asks for something that cannot be done: with a segment that is being written, is
        quarantined, does not exist or is named twice, or with two that do not fit into one. Or it drops live messages
        without the capability DROPS_MESSAGES, or without a reason. The engine skips such actions and logs each of them.

        Or that it remembers what it was asked before, rolls dice, changes the list that it is given, or asks the clock of the
        machine instead of ``now``. Then the plan that is shown by a tool is not the one that is carried out, and an hour that
        is put back collects what it should not."""
        policy, given_ = subject.make(subject.made_options), list(segments)  # a new one: what it remembers is of this example
        first = plan(policy, given_)
        assert given_ == segments, "the list of segments was changed"
        check(subject, first, segments)
        given_.reverse()
        plan(policy, segments[:1])
        random.seed(len(segments))
        assert plan(policy, tuple(segments)) == first, "the same question has another answer the second time"
        assert plan(subject.make(subject.made_options), segments) == first, "another object answers otherwise"
        for others, now in questions(segments):
            answer = plan(policy, others, now)
            assert answer == plan(subject.make(subject.made_options), others, now), "it depends on what was asked before"
            check(subject, answer, others)
        unknown = [attrs.evolve(s, sealed_at=None) for s in segments]
        plans = [plan(policy, unknown, now) for now in (NOW - YEARS, NOW, NOW + YEARS)]
        assert plans[0] == plans[1] == plans[2], "no age is known, and the plan changes with the years"
        ageless = {s.number for s in segments if s.sealed_at is None}
        early, late = ({one.number for one in policy.plan(segments, now) if isinstance(one, Drop)} for now in (0.0, NOW))
        assert not ageless & (late - early), "a segment whose age is unknown is dropped for its age"
        times = ([attrs.evolve(s, sealed_at=s.sealed_at and at) for s in segments] for at in (NOW, NOW + YEARS))
        fresh, ahead = ({one.number for one in policy.plan(made, NOW) if isinstance(one, Drop)} for made in times)
        assert ahead <= fresh, "a segment whose time lies after now, as after a clock was set back, is dropped for its age"
        clocks = clocks_of(policy, partial(policy.plan, segments, NOW))
        assert not clocks, f"plan asks the clock of the machine: {', '.join(clocks)}; its argument now has the time"

    @given(segments=stores())
    @tried(80)
    def test_it_comes_to_an_end(self, policy: Any, segments: list[SegmentStats]) -> None:
        """A failure means that the policy wants the same again when it is done, or compacts segments in which everything is
        alive: a collector that compacts for ever wears out the disk. Every action is carried out as the engine would, and
        nothing is written or removed in between."""
        check_end(policy, segments)

    def test_options_that_its_class_accepts(self, subject: Subject) -> None:
        """A failure means that with another value of an option, which its class accepts, a plan raises, or asks for what cannot
        be done. For options that are text, or numbers from 0 to 1, also that the policy compacts for ever. Negative numbers are
        left out."""
        rng = random.Random(1)
        for name, value, other in with_other_options(subject):
            for count in (0, 1, 2, *([9] * 9)) if isinstance(value, str) or value >= 0 else ():
                used = [rng.choice((0, LIMIT, rng.randrange(LIMIT))) for _ in range(count)]
                live = [rng.choice((0, one, rng.randrange(one + 1))) for one in used]
                ages = [rng.choice((None, NOW, NOW - rng.randrange(10**8))) for _ in range(count)]
                given = [segment(n, used[n], live[n], sealed_at=ages[n], quarantined=n == 7) for n in range(count)]
                try:
                    policy = other.make(other.made_options)
                    check(other, plan(policy, given), given)
                    check_end(policy, with_current(given)) if isinstance(value, str) or value <= 1 else None
                except Exception as error:
                    raise AssertionError(f"with {name} = {value!r}: {error}") from error

    def test_it_plans_something(self, subject: Subject, policy: Any) -> None:
        """A failure means that the policy, with these options, does nothing in any of several hundred stores: with segments of
        1 kB to 16 MB, from nearly all garbage to none, a minute to a year old, at each minute of a day and each hour of a week.
        Then the other tests say nothing of it: give the descriptor an example with which it plans something.

        A failure of the comparison means that the policy remembers what it has planned: an action that the engine had to leave
        out is not planned again, or segments that were too young stay so for ever."""
        if subject.provider.distribution == "msgstore" and subject.name == "never":
            return
        planned = []
        for scale in (1, 1000, 16_000):
            limit, fractions = LIMIT * scale, (0.005, 0.1, 0.3, 0.5, 0.7, 0.95)
            ages = [60.0 * 3**power for power in range(12)]
            found = [
                segment(number, limit, int(limit * fractions[number % 6]), sealed_at=NOW - ages[number % 12], size_limit=limit,
                        format=OLDER if number % 7 == 0 else OWN)
                for number in range(72)
            ]  # fmt: skip
            minutes = [*range(24 * 60), *range(24 * 60, 7 * 24 * 60, 60)]
            for after in (-(10.0**9), *(-60.0 * 3**power for power in range(12, -1, -1)), *(60.0 * it for it in minutes)):
                objects = (policy, policy, subject.make(subject.made_options))
                one, again, other = (list(it.plan(with_current(found), NOW + after)) for it in objects)
                assert one == again == other, "the second time, or by another object, the plan is another"
                planned += [one] if one else []
                if one and after >= 0:
                    break
        assert planned, "it plans nothing in any of these stores"

    def test_many_segments_take_little_time(self, subject: Subject, policy: Any) -> None:
        """A failure means that the time of a plan grows faster than the number of segments: at ten thousand, 160 GB by default,
        the collector does nothing else. Seconds are those of the processor, so a busy machine is not to blame."""
        rng = random.Random(1)
        used = [rng.randrange(1, LIMIT) for _ in range(10_000)]
        some = with_current([segment(n, u, rng.randrange(u), sealed_at=NOW - rng.randrange(10**7)) for n, u in enumerate(used)])
        alike = {"alive": LIMIT, "garbage, but for a record": 40, "garbage, but for a half": LIMIT // 2}
        stores = {what: with_current([segment(n, LIMIT, live) for n in range(10_000)]) for what, live in alike.items()}
        for what, many in {"of any kind": some, **stores}.items():
            check(subject, plan(policy, many), many)
            with within(10 * PATIENCE):
                linear = is_linear(partial(_planning, policy, many), 2500)
            assert linear, f"the time is not linear, with segments that are {what}"


def _planning(policy: Any, segments: Sequence[SegmentStats], count: int) -> Callable[[], object]:
    """Return the call that plans for the last ``count`` segments."""
    return partial(policy.plan, segments[-count:], NOW)


def plan(policy: Any, segments: Sequence[SegmentStats], now: float = NOW) -> list[Action]:
    """Return the plan of the policy. Fails if it does not return. What it returned is changed: it may not keep it."""
    with within(PATIENCE):
        actions = policy.plan(segments, now)
    assert isinstance(actions, Sequence), f"plan() returned {actions!r}, no sequence of actions"
    found = list(actions)
    if isinstance(actions, list):
        actions.clear()
    return found


def check_end(policy: Any, segments: list[SegmentStats]) -> None:
    """Carry the plans out until there is none."""
    actions: list[Action] = []
    for _ in range(2 * len(segments) + 3):
        actions = plan(policy, segments)
        if not actions:
            return
        segments = carried_out(actions, segments)
    pytest.fail(f"it never has enough: it still wants {actions} of {segments}")


def numbers_of(action: Action) -> tuple[int, ...]:
    return action.numbers if isinstance(action, Combine) else (action.number,)


def check(subject: Subject, actions: Sequence[object], segments: Sequence[SegmentStats]) -> None:
    """Each action can be carried out, and the policy may ask for it."""
    by_number = {s.number: s for s in segments}
    named: set[int] = set()
    for action in actions:
        assert isinstance(action, Action), f"{action!r} is none of Compact, Combine, Drop, Migrate"
        for number in numbers_of(action):
            assert number in by_number, f"{action}: there is no segment {number!r}"
            assert not by_number[number].current, f"{action}: new messages go to it"
            assert not by_number[number].quarantined, f"{action}: it is quarantined"
            assert number not in named, f"{action}: {number} is named twice"
            named.add(number)
        if isinstance(action, Drop):
            assert subject.has(Capability.DROPS_MESSAGES), f"{action}: the descriptor does not claim DROPS_MESSAGES"
            assert isinstance(action.reason, str)
            assert len(action.reason.strip().splitlines()) == 1, f"{action}: the reason that users see must be one line"
        if isinstance(action, Combine):
            two = isinstance(action.numbers, tuple) and len(action.numbers) == 2
            assert two, f"{action} does not name two segments"
            pair = [by_number[number] for number in action.numbers]
            size = max(s.header_bytes for s in pair) + sum(s.live_bytes for s in pair)
            assert size <= pair[0].size_limit, f"{action}: {size} bytes together, and a segment has {pair[0].size_limit}"


def carried_out(actions: Sequence[Action], segments: Sequence[SegmentStats]) -> list[SegmentStats]:
    """The segments afterwards, if a format leaves nothing in a gap; those without a live record go by themselves."""
    left = {s.number: s for s in segments}
    for action in actions:
        numbers = numbers_of(action)
        sources = [left.pop(number) for number in numbers]
        if not isinstance(action, Drop):
            fresh = isinstance(action, Combine | Migrate)
            number = max([*left, *numbers]) + 1 if fresh else numbers[0]
            live, times = sum(s.live_bytes for s in sources), [s.sealed_at for s in sources if s.sealed_at is not None]
            format_ = OWN if fresh else sources[0].format
            left[number] = segment(number, live, live, sealed_at=max(times, default=None), format=format_)
            left[number] = attrs.evolve(left[number], current=sources[0].current, live_count=sum(s.live_count for s in sources))
    return [left[number] for number in sorted(left) if left[number].live_count or left[number].current]
