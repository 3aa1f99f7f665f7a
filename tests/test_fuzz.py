"""Every parser of bytes from disk meets damage: it answers or refuses, whatever the bytes are, in linear time and memory.

``--fuzz 1000000`` says how many inputs; they are shared out over the list in :mod:`fuzzing.targets`. The same numbers give the
same inputs; ``--fuzz-from`` gives others. A failure is told with the options that repeat its input alone.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import signal
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest import mock

import attrs
import pytest

from attempts import in_processes
from fuzzing.extremes import EXTREMES
from fuzzing.mutations import Member, mutated
from fuzzing.targets import TARGETS, FuzzTarget

pytestmark = pytest.mark.fuzz

HANG = 5.0
"""Seconds of processor time for one input of a few KiB, which takes far less than a millisecond: so load does not count."""
CHUNK = 5000


class Hang(BaseException):
    """Not an Exception, so that nothing that is tried handles it."""


def make(target: FuzzTarget, seed: int) -> tuple[bytes, Member]:
    """The input of a number."""
    random = Random(seed)
    member = random.choice(target.members())
    data = mutated(random, member)
    return target.repair(data) if target.repair is not None and seed % 2 else data, member


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what runs too long with Hang."""

    def ring(number: int, frame: object) -> None:
        raise Hang(f"took more than {HANG} s of processor time")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(target: FuzzTarget, data: bytes, member: Member) -> str:
    """Return why an input fails, with the input; nothing if it does not."""
    try:
        with limited():
            target.check(data, member)
    except (Exception, Hang) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}: {where.line}): {data.hex()}"
    return ""


def run_chunk(name: str, seeds: range, _: int) -> tuple[int, set[bytes], float, str]:
    """Try the inputs of these seeds, until one fails. Return how many, eight bytes of the hash of each, seconds of processor
    time, and the failure if there is one."""
    digests, begin, error = set(), time.process_time(), ""
    for seed in seeds:
        data, member = make(TARGETS[name], seed)
        digests.add(hashlib.blake2b(data, digest_size=8).digest())
        if error := attempt(TARGETS[name], data, member):
            error = f"{name}, --fuzz 1 --fuzz-from {seed}: {error}"
            break
    return seed - seeds[0] + 1, digests, time.process_time() - begin, error


SHARES = sum(target.share for target in TARGETS.values())
each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
def test_mutated_inputs(name, request, report):
    """What kills a process is a failure, too."""
    each = request.config.getoption("--fuzz-each")
    count = each or -(-request.config.getoption("--fuzz") * TARGETS[name].share // SHARES)
    first = request.config.getoption("--fuzz-from")
    TARGETS[name].members()  # made once, not in each process
    parts = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    calls = ((f"{name}, of the seeds {part[0]} to {part[-1]}", partial(run_chunk, name, part)) for part in parts)
    inputs, digests, seconds, failures = 0, set(), 0.0, []
    for label, chunk, error in in_processes(calls, batch=1):
        tried, hashes, spent, failure = chunk or (0, set(), 0.0, f"{label}: {error}")
        inputs, digests, seconds = inputs + tried, digests | hashes, seconds + spent
        failures += [failure] * bool(failure)
    report(
        "fuzzing",
        f"{name}: {inputs:,} mutated inputs, {len(digests):,} of them different, "
        f"{inputs / max(seconds, 1e-9):,.0f} a second of processor time, {len(failures)} failures",
    )
    assert not failures, "\n".join(failures)
    assert inputs == count


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
MULTIPLE = {"settings": 40, "scrub-state": 40, "rocketmq-config": 40, "rabbitmq-term": 80, "rabbitmq-tables": 40}
"""Of a file's size, the memory that is allowed where it is not 16. ``msgstore.json`` is refused above 1 MiB, the state of a
scrub above 16 MiB, a file of RocketMQ's configuration above 64 MiB. An empty list of Erlang has one byte, and 64 in Python."""


def parse(target: FuzzTarget, data: bytes) -> None:
    with contextlib.suppress(*target.refuses):
        target.parse(data)


def seconds(name: str, data: bytes) -> float:
    """Return the processor time that a parser takes. Garbage collection is off: its time depends on all objects of the run."""
    gc.disable()
    try:
        begin = time.process_time()
        parse(TARGETS[name], data)
        return time.process_time() - begin
    finally:
        gc.enable()


@extremes
def test_time_is_linear_in_the_size(name, kind):
    """With eight times the bytes, what is linear takes eight times as long, what is quadratic 64 times. The bound leaves room
    for a loaded machine, which gets five tries: what is quadratic passes none of them."""
    small, large = (EXTREMES[name][kind](size) for size in (100_000, 800_000))
    bound = min(40 * min(seconds(name, small) for _ in range(3)) + 0.03, 800_000 * SLOWEST)
    assert any(seconds(name, large) <= bound for _ in range(5))


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


def first_error(target: FuzzTarget) -> str:
    return next(filter(None, (attempt(target, *make(target, seed)) for seed in range(CHUNK))), "")


def test_an_exception_and_a_hang_are_found(monkeypatch):
    def hang(data):
        while len(data) % 7 == 3:
            pass

    def fail(data):
        if b"\xff\xff" in data:
            raise IndexError("deep inside")

    monkeypatch.setitem(globals(), "HANG", 0.2)
    for broken, error in ((fail, "IndexError: deep inside"), (hang, "Hang")):
        assert first_error(attrs.evolve(TARGETS["v2-scan"], parse=broken, judge=mock.Mock())).startswith(error)


@pytest.mark.parametrize(("power", "error"), [(1, None), (2, AssertionError)], ids=["linear", "quadratic"])
def test_only_a_quadratic_parser_is_found(monkeypatch, power, error):
    """Both take 10 ms for 100,000 bytes, by a clock of the test: real time depends on load."""
    clock = [0.0]

    def parse_slowly(data):
        clock[0] += 0.01 * (len(data) / 100_000) ** power

    monkeypatch.setitem(globals(), "time", SimpleNamespace(process_time=lambda: clock[0]))
    monkeypatch.setitem(TARGETS, "v2-scan", attrs.evolve(TARGETS["v2-scan"], parse=parse_slowly))
    with pytest.raises(error) if error else contextlib.nullcontext():
        test_time_is_linear_in_the_size("v2-scan", "zeros")


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
