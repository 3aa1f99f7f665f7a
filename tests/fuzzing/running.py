"""Trying inputs in processes of their own: what raises, hangs or dies is reported with its seed, and cut down."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import mmap
import multiprocessing
import os
import signal
import struct
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
"""Seconds, by the clock, after which a process that does not even notice its alarm is ended."""
CHUNK = 5000
SHRINKING = 10.0
"""Seconds that are spent on cutting an input down."""


class Hang(BaseException):
    """Not an Exception, so that nothing that is tried handles it."""


@attrs.frozen
class Failure:
    target: str
    seed: int
    error: str
    data: bytes | None
    """Cut down; None if the process died, where only the seed is known."""

    def __str__(self) -> str:
        shown = "not cut down, for the process died" if self.data is None else f"{len(self.data)} bytes: {self.data.hex()}"
        again = self.seed if self.data is None else self.data.hex() or "-"
        return (
            f"{self.target}, seed {self.seed}: {self.error}\n  {shown}\n"
            f"  again: python -m fuzzing {self.target} {again} (in tests/)"
        )


@attrs.define
class Tally:
    """What was tried."""

    inputs: int = 0
    digests: set[bytes] = attrs.field(factory=set)
    """Eight bytes of the hash of each: how many are left says how many were different."""
    seconds: float = 0.0
    """Of processor time."""
    failures: list[Failure] = attrs.field(factory=list)


def make(target: Target, seed: int) -> tuple[bytes, Member]:
    """The input of a number."""
    random = Random(seed)
    members = target.members()
    member = members[int(random.random() * len(members))]
    data = mutated(random, member)
    if target.repair is not None and seed % 2:
        data = target.repair(data)
    return data, member


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    """Inside, ``signal.setitimer(ITIMER_VIRTUAL, HANG)`` ends what runs too long with Hang."""
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _ring(number: int, frame: object) -> None:
    raise Hang(f"took more than {HANG} s of processor time")


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


def run_chunk(name: str, first: int, count: int, progress: str, slot: int) -> Tally:
    """Try the inputs of ``count`` numbers. ``progress`` is a file whose ``slot`` has the number, plus one, that is tried."""
    target, tally = TARGETS[name], Tally()
    faulthandler.dump_traceback_later(STUCK, exit=True)
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 0) as board, alarm():  # noqa: PTH123
        begin = time.process_time()
        for seed in range(first, first + count):
            struct.pack_into(">Q", board, 8 * slot, seed + 1)
            if str(seed) == os.environ.get("MSGSTORE_FUZZ_KILL"):  # a test of this module
                os.abort()
            data, member = make(target, seed)
            error = attempt(target, data, member)
            tally.digests.add(hashlib.blake2b(data, digest_size=8).digest())
            tally.inputs += 1
            if error is not None:
                tally.failures.append(Failure(name, seed, error, shrunk(target, data, member, error)))
                break
        tally.seconds = time.process_time() - begin
        struct.pack_into(">Q", board, 8 * slot, 0)
    faulthandler.cancel_dump_traceback_later()
    return tally


def shrunk(target: Target, data: bytes, member: Member, error: str) -> bytes:
    """Cut out what is not needed for the same failure, then make zeros of what its value is not needed of."""
    until = time.monotonic() + SHRINKING

    def kind(found: str | None) -> str | None:
        return found if found is None or found.startswith("Hang") else found.rsplit("(", 1)[-1]

    size = max(len(data) // 2, 1)
    while size and time.monotonic() < until:
        at = 0
        while at < len(data) and time.monotonic() < until:
            without = data[:at] + data[at + size :]
            zeroed = data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
            if kind(attempt(target, without, member)) == kind(error):
                data = without
            else:
                if zeroed != data and kind(attempt(target, zeroed, member)) == kind(error):
                    data = zeroed
                at += size
        size //= 2
    return data


def run(name: str, first: int, count: int, directory: Path, workers: int = 2) -> Tally:
    """Try ``count`` inputs of one target in ``workers`` processes. What kills a process is a failure, too."""
    chunks = [(at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK)]
    progress = directory / "progress"
    progress.write_bytes(bytes(8 * max(len(chunks), 1)))
    whole = Tally()
    # Spawned, not forked: a fork of a process with threads may hang by itself.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(run_chunk, name, at, size, str(progress), slot) for slot, (at, size) in enumerate(chunks)]
        try:
            for future in running:
                tally = future.result()
                whole.inputs, whole.seconds = whole.inputs + tally.inputs, whole.seconds + tally.seconds
                whole.digests |= tally.digests
                whole.failures += tally.failures
        except BrokenProcessPool:
            tried = [number - 1 for (number,) in struct.iter_unpack(">Q", progress.read_bytes()) if number]
            whole.failures += [Failure(name, seed, "the process died, of this or the other one", None) for seed in tried]
    return whole


def main(name: str, what: str) -> None:
    """Try one input again: a seed, or the bytes in hexadecimal."""
    target = TARGETS[name]
    if what.isdigit() and len(what) < 12:
        data, member = make(target, int(what))
    else:
        data, member = bytes.fromhex(what.strip("-")), target.members()[0]
    print(len(data), "bytes:", data.hex())
    target.check(data, member)
    print("passed")
