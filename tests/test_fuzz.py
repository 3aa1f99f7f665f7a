"""Every parser of bytes from disk meets damage: it answers or refuses, whatever the bytes are, in linear time and memory.

``--fuzz 1000000`` says how many inputs; they are shared out over the list in :mod:`fuzzing.targets`. The same numbers give the
same inputs; ``--fuzz-from`` gives others.
"""

from __future__ import annotations

import contextlib
import os
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from unittest import mock

import attrs
import pytest

from fuzzing.extremes import EXTREMES, Family
from fuzzing.mutations import mutated
from fuzzing.running import CHUNK, alarm, attempt, make, run
from fuzzing.targets import TARGETS, Target

pytestmark = pytest.mark.fuzz

SHARES = sum(target.share for target in TARGETS.values())


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name, request, report):
    asked = request.config.getoption("--fuzz")
    last = name == list(TARGETS)[-1]
    count = asked * TARGETS[name].share // SHARES
    if last:  # and what the divisions left over
        count = asked - sum(asked * target.share // SHARES for other, target in TARGETS.items() if other != name)
    first = request.config.getoption("--fuzz-from")
    tally = run(name, range(first, first + count), workers=min(os.cpu_count() or 1, 2))
    report(
        "fuzzing",
        f"{name}: {tally.inputs:,} mutated inputs, {len(tally.digests):,} of them different, "
        f"{tally.inputs / max(tally.seconds, 1e-9):,.0f} a second of processor time, {len(tally.failures)} failures",
    )
    assert not tally.failures, "\n".join(map(str, tally.failures))
    assert tally.inputs == count


@pytest.mark.parametrize("name", TARGETS)
def test_large_inputs_after_mutations(name):
    """The large extremes, damaged: the same checks, far fewer of them."""
    target, random = TARGETS[name], Random(name)
    with alarm():
        for family in EXTREMES[name].values():
            for size in (3000, 60_000):
                member = target.members()[0].__class__(family(size))
                for _ in range(5):
                    data = mutated(random, member)
                    error = attempt(target, data, member)
                    assert error is None, f"{error}: {data.hex()}"


def extremes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    pairs = [(name, kind) for name in names or EXTREMES for kind in EXTREMES[name]]
    return pytest.mark.parametrize(("name", "kind"), pairs, ids=[f"{name}, {kind}" for name, kind in pairs])


@extremes()
def test_time_is_linear_in_the_size(name, kind):
    """Four times the bytes take four times as long, not sixteen times. Processor time, the least of three, and on a loaded
    machine of some more: what is not linear never passes."""
    for _ in range(5):
        small, large = (seconds(TARGETS[name], EXTREMES[name][kind], size) for size in (100_000, 400_000))
        if large <= 9 * small + 0.03:
            break
    assert large <= 9 * small + 0.03
    assert large <= 400_000 * SLOWEST


SLOWEST = 20e-6
"""Seconds a byte of a file, at the most; a thousand bytes of a compressed term can be a million."""


def seconds(target: Target, family: Family, size: int) -> float:
    data = family(size)
    times = []
    for _ in range(3):
        begin = time.process_time()
        parse(target, data)
        times.append(time.process_time() - begin)
        if times[-1] > 0.2:
            break
    return min(times)


@extremes()
def test_memory_is_a_small_multiple_of_the_size(name, kind):
    """Of the file's size; beside it stands what every parser may take at any time."""
    data = EXTREMES[name][kind](150_000)
    tracemalloc.start()
    try:
        parse(TARGETS[name], data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MULTIPLE.get(name, 16) * len(data) + 2 * 2**20


MULTIPLE = {"settings": 40, "scrub-state": 40}
"""``msgstore.json`` is refused above 1 MiB, the state of a scrub above 16 MiB."""


def parse(target: Target, data: bytes) -> None:
    with contextlib.suppress(ValueError, TypeError):  # its documented refusal
        target.parse(data)


# -- the harness finds what is to be found ---------------------------------------------------------------------------------


def first_error(target: Target) -> str:
    with alarm():
        for seed in range(CHUNK):
            error = attempt(target, *make(target, seed))
            if error is not None:
                return error
    pytest.fail("nothing was found")


def test_an_exception_is_found():
    def check(data, member):
        if b"\xff\xff" in data:
            raise IndexError("deep inside")

    assert first_error(attrs.evolve(TARGETS["v2-scan"], check=check)).startswith("IndexError: deep inside")


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr("fuzzing.running.HANG", 0.2)

    def check(data, member):
        while len(data) % 7 == 3:
            pass

    assert first_error(attrs.evolve(TARGETS["v1-scan"], check=check)).startswith("Hang")


BROKEN = {
    "ets-snapshot": ("msgstore_ets_index.snapshot.zlib", SimpleNamespace(crc32=lambda data, start=0: mock.ANY)),
    "hint": ("msgstore.engine.segment.hint_file._check", lambda offsets, sizes, segment_size: None),
    "v2-scan": ("msgstore_format_v2.scan.HOLE_SIZE", 6),
}
"""Target to a name of its parser, and what breaks the parser in its place."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_parser_is_found(name, monkeypatch):
    TARGETS[name].members()  # by the sound parser
    monkeypatch.setattr(*BROKEN[name])
    assert first_error(TARGETS[name])


def test_same_numbers_same_inputs():
    target = TARGETS["v1-scan"]
    assert [make(target, seed)[0] for seed in range(50)] == [make(target, seed)[0] for seed in range(50)]
    assert all(data != member.data for data, member in (make(target, seed) for seed in range(500)))


def test_the_counts_are_of_what_was_tried():
    tally = run("settings", range(1000, 1777))
    assert (tally.inputs, tally.failures) == (777, [])
    assert 0 < len(tally.digests) <= 777
