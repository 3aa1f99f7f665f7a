"""Trying inputs in processes of their own: what raises, hangs or dies is reported with its seed."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random

import attrs

from fuzzing.mutations import Member, mutated
from fuzzing.targets import TARGETS, Target

HANG = 5.0
"""Seconds of processor time for one input of a few KiB, which takes far less than a millisecond: so load does not count."""
STUCK = 60.0
"""Seconds, by the clock, after which a process that does not even notice its alarm is ended, with its stack."""
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

    def __iadd__(self, other: Tally) -> Tally:
        return Tally(
            self.inputs + other.inputs, self.digests | other.digests, self.seconds + other.seconds,
            self.failures + other.failures,
        )  # fmt: skip

    def fail(self, name: str, seeds: str, error: str) -> None:
        self.failures.append(f"{name}, seed {seeds}: {error}\n  again: python -m fuzzing {name} {seeds} (in tests/)")


def make(target: Target, seed: int) -> tuple[bytes, Member]:
    """The input of a number."""
    random = Random(seed)
    member = random.choice(target.members())
    data = mutated(random, member)
    return target.repair(data) if target.repair is not None and seed % 2 else data, member


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    """Inside, ``signal.setitimer(ITIMER_VIRTUAL, HANG)`` ends what runs too long with Hang."""

    def ring(number: int, frame: object) -> None:
        raise Hang(f"took more than {HANG} s of processor time")

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(target: Target, data: bytes, member: Member) -> str | None:
    """Why an input fails, or None. To be called inside :func:`alarm`."""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
        target.check(data, member)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except (Exception, Hang) as error:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}: {where.line})"
    return None


def run_chunk(name: str, seeds: range) -> Tally:
    """Try the inputs of these seeds, until one fails."""
    target, tally = TARGETS[name], Tally()
    faulthandler.dump_traceback_later(STUCK, exit=True)
    begin = time.process_time()
    with alarm():
        for seed in seeds:
            data, member = make(target, seed)
            tally.digests.add(hashlib.blake2b(data, digest_size=8).digest())
            tally.inputs += 1
            if error := attempt(target, data, member):
                tally.fail(name, str(seed), error)
                break
    tally.seconds = time.process_time() - begin
    faulthandler.cancel_dump_traceback_later()
    return tally


def run(name: str, seeds: range, workers: int = 2) -> Tally:
    """Try the inputs of these seeds with one target in ``workers`` processes. What kills a process is a failure, too."""
    whole = Tally()
    # Spawned, not forked: a fork of a process with threads may hang by itself.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=faulthandler.enable) as pool:
        parts = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
        running = [pool.submit(run_chunk, name, part) for part in parts]
        for part, future in zip(parts, running, strict=True):
            try:
                whole += future.result()
            except BrokenProcessPool:
                error = "the process died, of these or others of the target: its standard error has the stack"
                whole.fail(name, f"{part[0]}-{part[-1]}", error)
                break
    return whole


def main(name: str, seeds: str) -> None:
    """Try the inputs of some seeds again: 17, or 0-4999. The number of each is printed before."""
    first, _, last = seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        data, member = make(TARGETS[name], seed)
        print(f"{seed}: {len(data)} bytes: {data.hex()}", flush=True)
        TARGETS[name].check(data, member)
