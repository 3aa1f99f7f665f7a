"""Flipped bits in what a store has left on disk.

Every file of a directory is hit: small ones at each byte, large ones at sampled bits. A flip in LMDB's files is looked at in a
process of its own: LMDB maps its file and believes it. A store that hangs ends the process that looks.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import attrs

import msgstore
from crash.invariants import NEW, demand
from crash.recording import FileState, Recording, Tree
from crash.running import HANG, Outcome, Workers, described, problem
from crash.states import LMDB, Disk, materialise
from msgstore.builtin.options import LocalOptions
from msgstore.directory import SETTINGS
from msgstore.jobs.local import LocalRunner
from msgstore.jobs.salvage import plan_salvage
from msgstore.scan import FormatSet
from msgstore.testing.faults import UnsyncedFiles
from support import Sample, catalogue, open_with

SMALL = 300
"""Bytes of a file every byte of which is hit, unless it is a segment."""
SAMPLES = 20
"""Bits of any other file."""


@attrs.frozen
class Flip:
    state: str
    file: str
    bit: int

    def __str__(self) -> str:
        return f"{self.state}, bit {self.bit % 8} of byte {self.bit // 8} of {self.file}"

    def apply(self, tree: Tree) -> Tree:
        state = tree[self.file]
        data = bytearray(state.whole)
        data[self.bit // 8] ^= 1 << self.bit % 8
        return {**tree, self.file: FileState(bytes(data), state.size, state.mtime)}


def states(recording: Recording) -> dict[str, Tree]:
    """A store that was closed, one that was killed at work, and one that was killed between the steps of closing."""
    disk = Disk(recording.initial)
    found: dict[str, Tree] = {}
    last_flush = max(at for at, operation in enumerate(recording.log) if operation.kind == "truncate") + 4
    for at, operation in enumerate(recording.log):
        if at == last_flush:
            found["killed"] = disk.now()
        if operation.kind == "replace" and operation.path == "msgstore-clean.dot":
            found["killed while closing"] = disk.now()
        disk.apply(operation)
    return {"closed": recording.final, **found}


def flips(recording: Recording) -> Iterator[Flip]:
    seen: set[tuple[str, bytes]] = set()
    for state, tree in states(recording).items():
        for file, content in sorted(tree.items()):
            chance = random.Random(f"{state} {file}")
            known = (file, content.content) in seen
            seen.add((file, content.content))
            filled = len(content.content)  # behind it there are zeros that LMDB has never used
            if filled <= SMALL and not known and not file.endswith((".sqs", ".rdq", "lock.mdb")):
                yield from (Flip(state, file, 8 * at + chance.randrange(8)) for at in range(filled))
            else:
                yield from (Flip(state, file, chance.randrange(8 * filled)) for _ in range(SAMPLES if filled else 0))
            if file.startswith(LMDB) and file.endswith("data.mdb"):  # LMDB's meta pages, what there is in them
                yield from (
                    Flip(state, file, 8 * (page + at) + chance.randrange(8)) for page in (0, 4096) for at in range(0, 152, 3)
                )


def run_shared(workers: Workers, recording: Recording, directory: Path, sample: Sample) -> Outcome:
    return workers.share(_work, recording, directory, list(flips(recording)), sample)


def _work(recording: Recording, directory: Path, todo: list[Flip], sample: Sample, share: int, shares: int) -> Outcome:
    trees, failures, mine = states(recording), [], sample.of(todo[share::shares])
    directory = directory / f"flipped-{share}"
    truths = {state: Pristine.of(recording, tree, directory) for state, tree in trees.items()}
    for flip in mine:
        in_process = alone if flip.file.startswith(LMDB) else problem
        if failure := in_process(partial(look, flip, trees[flip.state], truths[flip.state], recording, directory)):
            failures.append(f"{flip}: {failure}")
    return Outcome(len(todo), len(mine), tuple(failures))


def alone(call: Callable[[], object]) -> str:
    """Return what went wrong in a call in a fork; nothing if nothing did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(HANG)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an assertion of LMDB
            call()
        except BaseException as error:
            os.write(writing, described(error)[:4000].encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"the process ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return text


@attrs.frozen
class Pristine:
    """The state without the flip."""

    live: frozenset[bytes]
    records: dict[str, list[tuple[int, int, bytes]]]
    """For each segment (offset, end, id) of every record, live or not."""

    @classmethod
    def of(cls, recording: Recording, tree: Tree, directory: Path) -> Pristine:
        materialise(tree, directory)
        with open_with(directory, UnsyncedFiles(), **recording.cell.keys) as store:
            live = frozenset(entry.msg_id for entry in store.entries())
        formats = FormatSet(catalogue(), {"checksum": 4} if recording.cell.checksummed else {})
        records = {}
        for name, state in tree.items():
            if Path(name).suffix in formats.extensions:
                scan = formats.by_extension(Path(name).suffix).format.scan(state.whole)
                rows = [*scan.records.rows(), *scan.duplicates.rows()]
                records[name] = [(offset, offset + size, msg_id) for msg_id, offset, size, _ in rows]
        return cls(live, records)

    def hit(self, flip: Flip) -> set[bytes]:
        at = flip.bit // 8
        return {msg_id for offset, end, msg_id in self.records.get(flip.file, []) if offset <= at < end}


def look(flip: Flip, tree: Tree, pristine: Pristine, recording: Recording, directory: Path) -> None:
    """Open the store, read everything, go on with it; and salvage what it does not serve."""
    materialise(flip.apply(tree), directory)
    cell, hit = recording.cell, pristine.hit(flip)
    may_be_wrong = set() if cell.checksummed else hit
    in_segment = flip.file in pristine.records
    unread = set(pristine.live)
    try:
        store = open_with(directory, UnsyncedFiles(), **cell.keys)
    except msgstore.MsgStoreError as error:
        demand(flip.file == SETTINGS or flip.file.startswith(LMDB), f"the store does not open: {error}")
        demand(str(directory) in str(error), f"the error does not name the store: {error}")
    else:
        try:
            unread -= _served(store, recording, may_be_wrong, in_segment=in_segment)
            _go_on(store)
        finally:
            store.abandon()
    missing = unread - hit
    demand(not (missing and in_segment and cell.persistent), f"{len(missing)} messages that it did not hit cannot be read")
    if missing or flip.bit % 5 == 0:
        materialise(flip.apply(tree), directory)
        _salvage(directory, recording, pristine.live - hit, may_be_wrong)


def _served(store: msgstore.Store, recording: Recording, may_be_wrong: set[bytes], *, in_segment: bool) -> set[bytes]:
    """The ids that the store serves; each with the right bytes."""
    served = set()
    strangers = 0
    with store.client() as client:
        ids = {entry.msg_id for entry in store.entries()}
        for msg_id in ids | recording.bodies.keys():
            try:
                body = client.read(msg_id)
            except msgstore.MsgStoreError:
                continue
            if msg_id not in recording.bodies:
                strangers += 1
                continue
            right = body == recording.bodies[msg_id]
            demand(right or msg_id in may_be_wrong, f"{msg_id.hex()} was served with wrong bytes")
            served.add(msg_id)
    # The id of a record without a checksum, read by a scan
    allowed = 1 if in_segment and not recording.cell.checksummed else 0
    demand(strangers <= allowed, f"{strangers} messages are there that nobody wrote")
    return served


def _go_on(store: msgstore.Store) -> None:
    """Use the store; it may say no, in words of its own."""
    try:
        with store.client() as client:
            client.write(NEW, NEW)
            store.flush()
            store.compact(everything=True)
            demand(client.read(NEW) == NEW, "what was written afterwards is not there")
        store.close()
    except msgstore.MsgStoreError:
        pass


def _salvage(source: Path, recording: Recording, wanted: frozenset[bytes], may_be_wrong: set[bytes]) -> None:
    target = source.with_name(f"{source.name}.salvaged")
    shutil.rmtree(target, ignore_errors=True)
    with mock.patch.object(os, "fsync"):
        LocalRunner(LocalOptions(processes=1)).salvage(plan_salvage(catalogue(), [source], target))
    store = open_with(target, UnsyncedFiles(), index="ets", format="v2")
    try:
        bodies = store.client().read_many(wanted)
        lost = wanted - bodies.keys()
        demand(not lost, f"{len(lost)} messages that it did not hit are not salvaged: {[i.hex() for i in lost][:4]}")
        wrong = [i for i in bodies if bodies[i] != recording.bodies[i] and i not in may_be_wrong]
        demand(not wrong, f"{len(wrong)} messages are salvaged with wrong bytes")
    finally:
        store.abandon()
