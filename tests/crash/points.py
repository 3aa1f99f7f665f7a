"""Every crash point of a recording: the directory as it would be, and the store that is opened on it. And sweeps in general,
which several processes share.

Many points leave the same directory and owe the same: what an operation changes is only there after it, and a look changes
nothing. Each is counted as a point; the store is opened once for all of them.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs

from crash.model import Aftermath, Counts, Model
from crash.recording import Recording, Tree
from crash.states import Disk, materialise
from support import WHOLE, Sample

HANG = 60
"""Seconds after which a store is said to hang, and the process that opened it ended; it takes some hundredths of one."""


@attrs.frozen
class Outcome:
    """Result of one sweep, or of a share of it."""

    points: int = 0
    """Crash points or flips that can be tried. Each share has the number of all."""
    states: int = 0
    """Stores opened: different directories, or different obligations."""
    failures: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(max(self.points, other.points), self.states + other.states, self.failures + other.failures)


@attrs.frozen
class Workers:
    """Processes that open stores. Fresh ones, not forks: a fork would share what this process has open."""

    pool: ProcessPoolExecutor
    count: int

    def share(self, work: Callable[..., Outcome], recording: Recording, directory: Path, sample: Sample) -> Outcome:
        """Call ``work(recording, directory, share, shares, sample=sample)`` in each process, and add up what they return."""
        saved = directory / "recording.pickle"
        saved.write_bytes(pickle.dumps(recording))
        jobs = [self.pool.submit(_work, work, saved, share, self.count, sample) for share in range(self.count)]
        return sum((job.result() for job in jobs), Outcome())


def _work(work: Callable[..., Outcome], saved: Path, share: int, shares: int, sample: Sample) -> Outcome:
    return work(pickle.loads(saved.read_bytes()), saved.with_name(f"reopened-{share}"), share, shares, sample=sample)


def problem(call: Callable[[], object]) -> str:
    """Return what went wrong in a call, whatever it is; nothing if nothing did. A hang ends this process."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        call()
    except Exception as error:
        return described(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return ""


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)[-4:])


Point = tuple[str, Tree, Model, bool]
"""(what happens, the directory then, what is owed, whether it is a power loss)."""


def points(recording: Recording) -> Iterator[Point]:
    """Before, inside and after each operation: as a killed process leaves the directory; with ``fsync`` after a power loss,
    too, with what is not synced there or not."""
    disk, synced = Disk(recording.initial), recording.durability == "fsync"
    for at, operation in enumerate(recording.log):
        where, owed = f"operation {at}, {operation}", operation.owed
        yield f"killed before {where}", disk.now(), owed, False
        for label, tree in disk.inside(operation):
            yield f"killed inside {where}: {label}", tree, owed, False
        if synced:
            for label, tree in disk.after_a_power_loss(f"before {at}"):
                yield f"power lost before {where}: {label}", tree, owed, True
            for label, tree in disk.power_loss_inside(operation, f"inside {at}"):
                yield f"power lost inside {where}: {label}", tree, owed, True
        disk.apply(operation)
        yield f"killed after {where}", disk.now(), owed, False
    yield "killed at the end", disk.now(), recording.last, False
    if synced:
        for label, tree in disk.after_a_power_loss("end"):
            yield f"power lost at the end: {label}", tree, recording.last, True


def run(
    recording: Recording, directory: Path, share: int = 0, shares: int = 1, *, sample: Sample = WHOLE, enough: int = 0
) -> Outcome:
    """Open the store at every point of a share of the states; of ``sample`` only; with ``enough`` only
    until there are so many failures."""
    seen: set[bytes] = set()
    failures: list[str] = []
    count = states = 0
    cell = recording.cell
    for label, tree, owed, power_loss in points(recording):
        count += 1
        if enough and len(failures) >= enough:
            break
        key = _key(tree, owed, power_loss=power_loss)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) % shares != share or not sample.has(len(seen) // shares):
            continue
        states += 1
        materialise(tree, directory)
        pass_counts = len(seen) // shares % 2 == 1 or cell.persistent
        after = Aftermath(
            owed, cell.keys, killed=not power_loss, power_loss=power_loss, at_boundary=cell.persistent, pass_counts=pass_counts
        )
        if failure := problem(functools.partial(after.check, directory)):
            failures.append(f"{label}: {failure}")
    return Outcome(count, states, tuple(failures))


def _key(tree: Tree, owed: Model, *, power_loss: bool) -> bytes:
    """Of the directory and what is owed. The lock's file and LMDB's lock decide nothing: their processes are gone."""
    files = [
        (name, state.size, state.mtime, _hash_of(state.content))
        for name, state in sorted(tree.items())
        if not name.endswith(("lock.mdb", ".lock"))
    ]
    counts = [_digest_of(counts) for counts in (owed.now, owed.kept, owed.flushed)]
    return hashlib.blake2b(repr((files, counts, owed.forgotten, power_loss)).encode(), digest_size=16).digest()


@functools.lru_cache(maxsize=512)
def _hash_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


_digests: dict[int, tuple[Counts, bytes]] = {}
"""Identity of a mapping to itself, which keeps the identity, and its digest."""


def _digest_of(counts: Counts) -> bytes:
    if id(counts) not in _digests:
        text = repr(sorted((msg_id, sorted(some)) for msg_id, some in counts.items()))
        _digests[id(counts)] = counts, _hash_of(text.encode())
    return _digests[id(counts)][1]
