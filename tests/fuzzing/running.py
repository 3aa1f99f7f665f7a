"""Trying inputs in processes of their own: what raises, hangs or dies is reported with its seed."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import time
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import attrs

from attempts import in_processes
from fuzzing.mutations import Member, mutated
from fuzzing.targets import TARGETS, Target

HANG = 5.0
"""Seconds of processor time for one input of a few KiB, which takes far less than a millisecond: so load does not count."""
CHUNK = 5000


class Hang(BaseException):
    """Not an Exception, so that nothing that is tried handles it."""


@attrs.define
class Tally:
    """What was tried."""

    inputs: int = 0
    digests: set[bytes] = attrs.field(factory=set)
    """Eight bytes of the hash of each: how many are left says how many were different."""
    seconds: float = 0.0
    """Of processor time."""
    failures: list[str] = attrs.field(factory=list)


def make(target: Target, seed: int) -> tuple[bytes, Member]:
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


def attempt(target: Target, data: bytes, member: Member) -> str:
    """Return why an input fails, with the input; nothing if it does not."""
    try:
        with limited():
            target.check(data, member)
    except (Exception, Hang) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}: {where.line}): {data.hex()}"
    return ""


def run_chunk(name: str, seeds: range, _: int = 0) -> Tally:
    """Try the inputs of these seeds, until one fails."""
    tally, begin = Tally(), time.process_time()
    for seed in seeds:
        data, member = make(TARGETS[name], seed)
        tally.digests.add(hashlib.blake2b(data, digest_size=8).digest())
        tally.inputs += 1
        if error := attempt(TARGETS[name], data, member):
            tally.failures.append(f"{name}, --fuzz 1 --fuzz-from {seed}: {error}")
            break
    tally.seconds = time.process_time() - begin
    return tally


def run(name: str, seeds: range) -> Tally:
    """Try the inputs of these seeds with one target. What kills a process is a failure, too."""
    whole = Tally()
    TARGETS[name].members()  # made once, not in each process
    parts = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    calls = ((f"{name}, of the seeds {part[0]} to {part[-1]}", partial(run_chunk, name, part)) for part in parts)
    for label, tally, error in in_processes(calls):
        if error:
            whole.failures.append(f"{label}: {error}")
        else:
            whole.inputs, whole.seconds = whole.inputs + tally.inputs, whole.seconds + tally.seconds
            whole.digests |= tally.digests
            whole.failures += tally.failures
    return whole
