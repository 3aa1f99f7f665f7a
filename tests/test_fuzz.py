"""Every parser of bytes from disk meets damage: it answers or refuses, whatever the bytes are, in linear time and memory.

``--fuzz 1000000`` says how many inputs; they are shared out over the list in :mod:`fuzzing.targets`. The same numbers give the
same inputs; ``--fuzz-from`` gives others. A failure is told with the options that repeat its input alone.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from random import Random
from types import SimpleNamespace
from unittest import mock

import attrs
import pytest

from fuzzing.extremes import EXTREMES
from fuzzing.mutations import Member, mutated
from fuzzing.running import CHUNK, attempt, make, run
from fuzzing.targets import TARGETS, Target

pytestmark = pytest.mark.fuzz

SHARES = sum(target.share for target in TARGETS.values())
each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
def test_mutated_inputs(name, request, report):
    count = -(-request.config.getoption("--fuzz") * TARGETS[name].share // SHARES)
    first = request.config.getoption("--fuzz-from")
    tally = run(name, range(first, first + count))
    report(
        "fuzzing",
        f"{name}: {tally.inputs:,} mutated inputs, {len(tally.digests):,} of them different, "
        f"{tally.inputs / max(tally.seconds, 1e-9):,.0f} a second of processor time, {len(tally.failures)} failures",
    )
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.inputs == count


@each_target
def test_large_inputs_after_mutations(name):
    """The large extremes, damaged: the same checks, far fewer of them."""
    random = Random(name)
    for family in EXTREMES[name].values():
        for size in (3000, 60_000):
            member = Member(family(size))
            for data in (mutated(random, member) for _ in range(5)):
                assert attempt(TARGETS[name], data, member) == ""


extremes = pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in EXTREMES for kind in EXTREMES[name]])
SLOWEST = 20e-6
"""Seconds a byte of a file, at the most; a thousand bytes of a compressed term can be a million."""
MULTIPLE = {"settings": 40, "scrub-state": 40}
"""Of a file's size, the memory that is allowed where it is not 16. ``msgstore.json`` is refused above 1 MiB, the state of a
scrub above 16 MiB."""


def parse(target: Target, data: bytes) -> None:
    with contextlib.suppress(*target.refuses):
        target.parse(data)


def seconds(name: str, kind: str, size: int) -> float:
    """Of processor time, the least of three."""
    data = EXTREMES[name][kind](size)
    times = []
    for _ in range(3):
        begin = time.process_time()
        parse(TARGETS[name], data)
        times.append(time.process_time() - begin)
        if times[-1] > 0.2:
            break
    return min(times)


@extremes
def test_time_is_linear_in_the_size(name, kind):
    """Four times the bytes take four times as long, not sixteen times. On a loaded machine some more are tried: what is not
    linear never passes."""
    for _ in range(5):
        small, large = (seconds(name, kind, size) for size in (100_000, 400_000))
        if large <= 9 * small + 0.03:
            break
    assert large <= min(9 * small + 0.03, 400_000 * SLOWEST)


@extremes
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


# -- the harness finds what is to be found ---------------------------------------------------------------------------------


def first_error(target: Target) -> str:
    return next(filter(None, (attempt(target, *make(target, seed)) for seed in range(CHUNK))), "")


def test_an_exception_and_a_hang_are_found(monkeypatch):
    def hang(data):
        while len(data) % 7 == 3:
            pass

    def fail(data):
        if b"\xff\xff" in data:
            raise IndexError("deep inside")

    monkeypatch.setattr("fuzzing.running.HANG", 0.2)
    for broken, error in ((fail, "IndexError: deep inside"), (hang, "Hang")):
        assert first_error(attrs.evolve(TARGETS["v2-scan"], parse=broken, judge=mock.Mock())).startswith(error)


BROKEN = {
    "ets-snapshot": ("msgstore_ets_index.snapshot.zlib", SimpleNamespace(crc32=lambda data, start=0: mock.ANY)),
    "hint": ("msgstore.engine.segment.hints._check_order", lambda offsets, sizes, segment_size: None),
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
