"""Every crash point of a recording: the directory as it would be, and the store that is opened on it.

Many points leave the same directory and owe the same: what an operation changes is only there after it, and a look changes
nothing. Each is counted as a point; the store is opened once for all of them.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import attrs

from crash.invariants import Situation, check
from crash.recording import Recording, Tree
from crash.running import Outcome, Workers, problem
from crash.states import Disk, materialise
from crash.workload import Expected
from support import WHOLE, Sample


@attrs.frozen
class Point:
    label: str
    tree: Tree
    expected: Expected
    power_loss: bool = False


def points(recording: Recording) -> Iterator[Point]:
    """Before, inside and after each operation: as a killed process leaves the directory; with ``fsync`` after a power loss,
    too, with what is not synced there or not."""
    disk = Disk(recording.initial)
    for at, operation in enumerate(recording.log):
        where, owed = f"operation {at}, {operation}", operation.expected
        yield Point(f"killed before {where}", disk.now(), owed)
        for label, tree in disk.inside(operation):
            yield Point(f"killed inside {where}: {label}", tree, owed)
        if recording.durability == "fsync":
            for label, tree in disk.after_a_power_loss(f"before {at}"):
                yield Point(f"power lost before {where}: {label}", tree, owed, power_loss=True)
            for label, tree in disk.power_loss_inside(operation, f"inside {at}"):
                yield Point(f"power lost inside {where}: {label}", tree, owed, power_loss=True)
        disk.apply(operation)
        yield Point(f"killed after {where}", disk.now(), owed)
    yield Point("killed at the end", disk.now(), recording.last)
    if recording.durability == "fsync":
        for label, tree in disk.after_a_power_loss("end"):
            yield Point(f"power lost at the end: {label}", tree, recording.last, power_loss=True)


def run(
    recording: Recording, directory: Path, share: int = 0, shares: int = 1, *, sample: Sample = WHOLE, enough: int = 0
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
        pass_counts = len(seen) // shares % 2 == 1
        situation = Situation(recording.cell, recording.bodies, point.expected, point.power_loss, pass_counts)
        if failure := problem(functools.partial(check, directory, situation)):
            failures.append(f"{point.label}: {failure}")
    return Outcome(count, states, tuple(failures))


def _key(point: Point) -> bytes:
    """Of the directory and what is owed. The lock's file and LMDB's lock decide nothing: their processes are gone."""
    digest = hashlib.blake2b(digest_size=16)
    for name, state in sorted(point.tree.items()):
        if not name.endswith(("lock.mdb", ".lock")):
            digest.update(repr((name, state.size, state.mtime, _hash_of(state.content))).encode())
    expected = point.expected
    owed = (sorted(expected.settled.items()), sorted(expected.wanted.items()), sorted(expected.required))
    digest.update(repr((owed, expected.closed, expected.refcounts, point.power_loss)).encode())
    return digest.digest()


@functools.lru_cache(maxsize=512)
def _hash_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def run_shared(workers: Workers, recording: Recording, directory: Path, sample: Sample) -> Outcome:
    """All points, shared by the processes of ``workers``."""
    saved = directory / "recording.pickle"
    saved.write_bytes(pickle.dumps(recording))
    return workers.share(_work, saved, sample)


def _work(saved: Path, sample: Sample, share: int, shares: int) -> Outcome:
    return run(pickle.loads(saved.read_bytes()), saved.with_name(f"reopened-{share}"), share, shares, sample=sample)
