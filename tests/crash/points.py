"""Every crash point of a recording: the directory as it would be, and the store that is opened on it.

Many points leave the same directory and owe the same: what an operation changes is only there after it, and a look changes
nothing. Each is counted as a point; the store is opened once for all of them.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import pickle
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import attrs

from crash.invariants import Situation, check
from crash.recording import Recording, Tree
from crash.states import Disk, materialise
from crash.workload import Expected
from support import WHOLE, Sample

HANG = 60
"""Seconds after which a store is said to hang, and the process that opened it ended; it takes some hundredths of one."""


@attrs.frozen
class Point:
    label: str
    tree: Tree
    expected: Expected
    power_loss: bool


@attrs.frozen
class Outcome:
    """Of the points of one recording, or of some of them."""

    points: int = 0
    states: int = 0
    """Stores opened: different directories, or different obligations."""
    failures: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(max(self.points, other.points), self.states + other.states, self.failures + other.failures)


def killed(recording: Recording) -> Iterator[Point]:
    """Before, inside and after each operation, as a killed process leaves the directory."""
    disk = Disk(recording.initial)
    for at, operation in enumerate(recording.log):
        where = f"operation {at}, {operation}"
        yield Point(f"killed before {where}", disk.now(), operation.expected, power_loss=False)
        for label, tree in disk.inside(operation):
            yield Point(f"killed inside {where}: {label}", tree, operation.expected, power_loss=False)
        disk.apply(operation)
        yield Point(f"killed after {where}", disk.now(), operation.expected, power_loss=False)
    yield Point("killed at the end", disk.now(), recording.last, power_loss=False)


def powerless(recording: Recording) -> Iterator[Point]:
    """The same after a power loss, with what is not synced there or not."""
    disk = Disk(recording.initial)
    for at, operation in enumerate(recording.log):
        where = f"operation {at}, {operation}"
        for label, tree in disk.after_a_power_loss(f"before {at}"):
            yield Point(f"power lost before {where}: {label}", tree, operation.expected, power_loss=True)
        for label, tree in disk.power_loss_inside(operation, f"inside {at}"):
            yield Point(f"power lost inside {where}: {label}", tree, operation.expected, power_loss=True)
        disk.apply(operation)
    for label, tree in disk.after_a_power_loss("end"):
        yield Point(f"power lost at the end: {label}", tree, recording.last, power_loss=True)


def points(recording: Recording) -> Iterator[Point]:
    yield from killed(recording)
    if recording.durability == "fsync":
        yield from powerless(recording)


def run(
    recording: Recording, directory: Path, *, share: int = 0, shares: int = 1, sample: Sample = WHOLE, enough: int = 0
) -> Outcome:
    """Open the store at every point of a share of the states; of ``sample`` only; with ``enough`` only
    until there are so many failures."""
    seen: set[bytes] = set()
    failures: list[str] = []
    count = states = 0
    for point in points(recording):
        count += 1
        if enough and len(failures) >= enough:
            break
        key = _key(point)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) % shares != share or not sample.has(len(seen) // shares):
            continue
        states += 1
        materialise(point.tree, directory)
        situation = Situation(
            recording.cell, recording.bodies, point.expected, point.power_loss, pass_counts=len(seen) // shares % 2 == 1
        )
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            check(directory, situation)
        except Exception as error:  # whatever it is, it is not what a store may do
            failures.append(f"{point.label}: {type(error).__name__}: {error}\n{_last_lines(error)}")
    faulthandler.cancel_dump_traceback_later()
    return Outcome(count, states, tuple(failures))


def _key(point: Point) -> bytes:
    """Of the directory and what is owed. The lock's file and LMDB's lock decide nothing: their processes are gone."""
    digest = hashlib.blake2b(digest_size=16)
    for name, state in sorted(point.tree.items()):
        if not name.endswith(("lock.mdb", ".lock")):
            digest.update(repr((name, state.size, state.mtime, hash_of(state.content))).encode())
    expected = point.expected
    owed = (sorted(expected.settled.items()), sorted(expected.wanted.items()), sorted(expected.required))
    digest.update(repr((owed, expected.closed, expected.refcounts, point.power_loss)).encode())
    return digest.digest()


@functools.lru_cache(maxsize=512)
def hash_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _last_lines(error: Exception) -> str:
    return "".join(traceback.format_exception(error)[-4:])


def run_shared(workers: Executor, shares: int, recording: Recording, directory: Path, *, sample: Sample = WHOLE) -> Outcome:
    """All points, shared by the processes of ``workers``."""
    saved = directory / "recording.pickle"
    saved.write_bytes(pickle.dumps(recording))
    jobs = [workers.submit(_work, saved, directory / f"reopened-{share}", share, shares, sample) for share in range(shares)]
    return sum((job.result() for job in jobs), Outcome())


def _work(saved: Path, directory: Path, share: int, shares: int, sample: Sample) -> Outcome:
    return run(pickle.loads(saved.read_bytes()), directory, share=share, shares=shares, sample=sample)


def summary(outcomes: Iterable[tuple[str, Outcome]]) -> list[str]:
    return [f"{name}: {outcome.points} crash points, {outcome.states} different directories" for name, outcome in outcomes]
