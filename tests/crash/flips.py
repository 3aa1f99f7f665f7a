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
from crash.model import NEW, demand
from crash.points import HANG, Outcome, described, problem
from crash.recording import FileState, Recording, Tree
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

Flip = tuple[str, str, int]
"""(state, file, bit)."""


def states(recording: Recording) -> dict[str, Tree]:
    """A store that was closed, one that was killed at work, and one that was killed between the steps of closing."""
    disk = Disk(recording.initial)
    found: dict[str, Tree] = {"closed": recording.final}
    for at, operation in enumerate(recording.log):
        if at == len(recording.log) * 4 // 5:
            found["killed"] = disk.now()
        if (operation.kind, operation.path) == ("replace", "msgstore-clean.dot"):
            found["killed while closing"] = disk.now()
        disk.apply(operation)
    return found


def flips(trees: dict[str, Tree]) -> Iterator[Flip]:
    seen: set[tuple[str, bytes]] = set()
    for state, tree in trees.items():
        for file, content in sorted(tree.items()):
            chance = random.Random(f"{state} {file}")
            known = (file, content.content) in seen
            seen.add((file, content.content))
            filled = len(content.content)  # behind it there are zeros that LMDB has never used
            if filled <= SMALL and not known and not file.endswith((".sqs", ".rdq", "lock.mdb")):
                yield from ((state, file, 8 * at + chance.randrange(8)) for at in range(filled))
            else:
                yield from ((state, file, chance.randrange(8 * filled)) for _ in range(SAMPLES if filled else 0))
            if file.startswith(LMDB) and file.endswith("data.mdb"):  # LMDB's meta pages, what there is in them
                at_pages = (8 * (page + at) for page in (0, 4096) for at in range(0, 152, 3))
                yield from ((state, file, at + chance.randrange(8)) for at in at_pages)


def run(recording: Recording, directory: Path, share: int, shares: int, *, sample: Sample) -> Outcome:
    trees = states(recording)
    todo = list(flips(trees))
    mine = sample.of(todo[share::shares])
    looks = {state: Look.before(recording, tree, directory) for state, tree in trees.items()}
    failures = []
    for flip in mine:
        state, file, bit = flip
        in_process = alone if file.startswith(LMDB) else problem
        if failure := in_process(partial(looks[state].after, trees[state], file, bit)):
            failures.append(f"{state}, bit {bit % 8} of byte {bit // 8} of {file}: {failure}")
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
    return f"the process ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else text


@attrs.frozen
class Look:
    """One state, of which the truth is known; each flip is looked at in ``directory``."""

    recording: Recording
    directory: Path
    live: frozenset[bytes]
    records: dict[str, list[tuple[int, int, bytes]]]
    """For each segment (offset, end, id) of every record, live or not."""

    @classmethod
    def before(cls, recording: Recording, tree: Tree, directory: Path) -> Look:
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
        return cls(recording, directory, live, records)

    def after(self, tree: Tree, file: str, bit: int) -> None:
        """Open the store, read everything, go on with it; and salvage what it does not serve."""
        data = bytearray(tree[file].whole)
        data[bit // 8] ^= 1 << bit % 8
        tree = {**tree, file: FileState(bytes(data), tree[file].size, tree[file].mtime)}
        cell, in_segment = self.recording.cell, file in self.records
        hit = {msg_id for offset, end, msg_id in self.records.get(file, []) if offset <= bit // 8 < end}
        may_be_wrong = set() if cell.checksummed else hit
        materialise(tree, self.directory)
        served: set[bytes] = set()
        try:
            store = open_with(self.directory, UnsyncedFiles(), **cell.keys)
        except msgstore.MsgStoreError as error:
            demand(file == SETTINGS or file.startswith(LMDB), f"the store does not open: {error}")
            demand(str(self.directory) in str(error), f"the error does not name the store: {error}")
        else:
            try:
                # The id of a record without a checksum, read by a scan, may be one that nobody wrote.
                served = self._served(store, may_be_wrong, strangers=int(in_segment and not cell.checksummed))
                go_on(store)
            finally:
                store.abandon()
        missing = self.live - served - hit
        demand(not (missing and in_segment and cell.persistent), f"{len(missing)} messages that it did not hit cannot be read")
        if missing or bit % 5 == 0:
            materialise(tree, self.directory)
            self._salvage(self.live - hit, may_be_wrong)

    def _served(self, store: msgstore.Store, may_be_wrong: set[bytes], *, strangers: int) -> set[bytes]:
        """The ids that the store serves; each with the right bytes."""
        bodies, found = self.recording.bodies, {}
        with store.client() as client:
            for msg_id in {entry.msg_id for entry in store.entries()} | bodies.keys():
                try:
                    found[msg_id] = client.read(msg_id)
                except msgstore.MsgStoreError:
                    continue
        self._check_bodies(found, may_be_wrong)
        unknown = found.keys() - bodies.keys()
        demand(len(unknown) <= strangers, f"{len(unknown)} messages are there that nobody wrote")
        return found.keys() & bodies.keys()

    def _check_bodies(self, found: dict[bytes, bytes], may_be_wrong: set[bytes]) -> None:
        bodies = self.recording.bodies
        wrong = [i.hex() for i, body in found.items() if i not in may_be_wrong and bodies.get(i, body) != body]
        demand(not wrong, f"{wrong} were read with wrong bytes")

    def _salvage(self, wanted: frozenset[bytes], may_be_wrong: set[bytes]) -> None:
        target = self.directory.with_name(f"{self.directory.name}.salvaged")
        shutil.rmtree(target, ignore_errors=True)
        with mock.patch.object(os, "fsync"):
            LocalRunner(LocalOptions(processes=1)).salvage(plan_salvage(catalogue(), [self.directory], target))
        store = open_with(target, UnsyncedFiles(), index="ets", format="v2")
        try:
            bodies = store.client().read_many(wanted)
            lost = wanted - bodies.keys()
            demand(not lost, f"{len(lost)} messages that it did not hit are not salvaged: {[i.hex() for i in lost][:4]}")
            self._check_bodies(bodies, may_be_wrong)
        finally:
            store.abandon()


def go_on(store: msgstore.Store) -> None:
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
