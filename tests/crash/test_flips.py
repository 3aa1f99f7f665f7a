"""One bit is flipped in what a store has left on disk: it costs at most the record that it hits, and is never served."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import attrs
import pytest

import msgstore
from attempts import Outcome
from crash.history import CRASH_CELLS, is_persistent, keys_of
from crash.model import NEW, demand
from crash.recording import FileState, Recording, Tree, record
from crash.states import DATA, LMDB, PAGE, Disk, materialise
from msgstore.directory import LOCK, SETTINGS
from msgstore.jobs.salvage import plan_salvage
from msgstore.scan import FormatSet
from msgstore.testing.faults import UnsyncedFiles
from support import Sample, catalogue, open_with, run_job

pytestmark = pytest.mark.crash

SMALL = 300
"""Bytes of a file every byte of which is hit, unless it is a segment."""
SAMPLES = 20
"""Bits of any other file."""


def flips(recording: Recording, directory: Path, sample: Sample) -> Outcome:
    """Flip bits of every file of a store that was closed, one that was killed at work, and one that was killed between the
    steps of closing. LMDB maps its file and believes it: a flip there may end the process."""
    closed = b"- 0123456789abcdef\n"
    disk, trees = Disk(recording.initial), {"closed": {**recording.final, LOCK: FileState(closed, len(closed), 0)}}
    for at, operation in enumerate(recording.log):
        if at == len(recording.log) * 4 // 5:
            trees["killed"] = disk.now()
        if (operation.kind, operation.path) == ("replace", "msgstore-clean.dot"):
            trees["killed while closing"] = disk.now()
        disk.apply(operation)
    looks = {state: Look.before(recording, tree, directory / "sound") for state, tree in trees.items()}
    todo = list(_hits(trees))
    mine = sample.of(todo)
    tries = (
        (f"{state}, bit {bit % 8} of byte {bit // 8} of {file}", partial(looks[state].after, directory, file, bit))
        for state, file, bit in mine
    )
    return Outcome(len(todo), len(mine)).run(tries)


def _hits(trees: dict[str, Tree]) -> Iterator[tuple[str, str, int]]:
    """Yield (state, file, bit): small files at each byte, large ones at sampled bits."""
    seen: set[tuple[str, bytes]] = set()
    for state, tree in trees.items():
        for file, content in sorted(tree.items()):
            chance = random.Random(f"{state} {file}")
            known = (file, content.content) in seen
            seen.add((file, content.content))
            filled = len(content.content)  # behind it there are zeros that LMDB has never used
            if filled <= SMALL and not known and not file.endswith((".sqs", ".rdq", "lock.mdb")):
                bits = [8 * at + chance.randrange(8) for at in range(filled)]
            else:
                bits = [chance.randrange(8 * filled) for _ in range(SAMPLES if filled else 0)]
            if file == DATA:  # LMDB's meta pages, what there is in them
                bits += [8 * (page + at) + chance.randrange(8) for page in (0, PAGE) for at in range(0, 152, 3)]
            yield from ((state, file, bit) for bit in bits)


@attrs.frozen
class Look:
    """One state, of which the truth is known."""

    recording: Recording
    tree: Tree
    live: frozenset[bytes]
    records: dict[str, list[tuple[int, int, bytes]]]
    """For each segment (offset, end, id) of every record, live or not."""

    @classmethod
    def before(cls, recording: Recording, tree: Tree, directory: Path) -> Look:
        materialise(tree, directory)
        with open_with(directory, UnsyncedFiles(), **keys_of(recording.cell)) as store:
            live = frozenset(entry.msg_id for entry in store.entries())
        formats = FormatSet(catalogue(), {"checksum": 4} if recording.cell.record == "checksum" else {})
        records = {}
        for name, state in tree.items():
            if Path(name).suffix in formats.extensions:
                scan = formats.by_extension(Path(name).suffix).format.scan(state.whole)
                rows = [*scan.records.rows(), *scan.duplicates.rows()]
                records[name] = [(offset, offset + size, msg_id) for msg_id, offset, size, _ in rows]
        return cls(recording, tree, live, records)

    def after(self, directory: Path, file: str, bit: int, number: int) -> None:
        """Open the store, read everything, go on with it; and salvage what it does not serve."""
        path, old = directory / f"flipped-{number}", self.tree[file]
        data = bytearray(old.whole)
        data[bit // 8] ^= 1 << bit % 8
        tree = {**self.tree, file: attrs.evolve(old, content=bytes(data))}
        cell, in_segment = self.recording.cell, file in self.records
        hit = {msg_id for offset, end, msg_id in self.records.get(file, []) if offset <= bit // 8 < end}
        is_checksummed = cell.record == "checksum"
        may_be_wrong = set() if is_checksummed else hit
        materialise(tree, path)
        served: set[bytes] = set()
        try:
            store = open_with(path, UnsyncedFiles(), **keys_of(cell))
        except msgstore.MsgStoreError as error:
            demand(file == SETTINGS or file.startswith(LMDB), f"the store does not open: {error}")
            demand(str(path) in str(error), f"the error does not name the store: {error}")
        else:
            try:
                # The id of a record without a checksum, read by a scan, may be one that nobody wrote.
                served = self._served(store, may_be_wrong, strangers=int(in_segment and not is_checksummed))
                _go_on(store)
            finally:
                store.abandon()
        missing = self.live - served - hit
        demand(
            not (missing and in_segment and is_persistent(cell)), f"{len(missing)} messages that it did not hit cannot be read"
        )
        if missing or bit % 5 == 0:
            materialise(tree, path)
            self._salvage(path, self.live - hit, may_be_wrong)

    def _served(self, store: msgstore.Store, may_be_wrong: set[bytes], *, strangers: int) -> set[bytes]:
        """The ids that the store serves; each with the right bytes."""
        bodies, found = self.recording.bodies, {}
        for msg_id in {entry.msg_id for entry in store.entries()} | bodies.keys():
            with suppress(msgstore.MsgStoreError):
                found[msg_id] = store.read(msg_id)
        self._check_bodies(found, may_be_wrong)
        unknown = found.keys() - bodies.keys()
        demand(len(unknown) <= strangers, f"{len(unknown)} messages are there that nobody wrote")
        return found.keys() & bodies.keys()

    def _check_bodies(self, found: dict[bytes, bytes], may_be_wrong: set[bytes]) -> None:
        bodies = self.recording.bodies
        wrong = [i.hex() for i, body in found.items() if i not in may_be_wrong and bodies.get(i, body) != body]
        demand(not wrong, f"{wrong} were read with wrong bytes")

    def _salvage(self, path: Path, wanted: frozenset[bytes], may_be_wrong: set[bytes]) -> None:
        target = path.with_name(f"{path.name}.salvaged")
        shutil.rmtree(target, ignore_errors=True)
        with mock.patch.object(os, "fsync"):
            run_job(plan_salvage(catalogue(), [path], target))
        store = open_with(target, UnsyncedFiles(), index="ets", format="v2")
        try:
            bodies = store.client().read_many(wanted)
            lost = wanted - bodies.keys()
            demand(not lost, f"{len(lost)} messages that it did not hit are not salvaged: {[i.hex() for i in lost][:4]}")
            self._check_bodies(bodies, may_be_wrong)
        finally:
            store.abandon()


def _go_on(store: msgstore.Store) -> None:
    """Use the store; it may say no, in words of its own."""
    with suppress(msgstore.MsgStoreError):
        store.client().write(NEW, NEW)
        store.flush()
        store.compact(everything=True)
        demand(store.read(NEW) == NEW, "what was written afterwards is not there")
        store.close()


@pytest.mark.parametrize("crash_cell", CRASH_CELLS, ids=str)
def test_flipped_bit_costs_at_most_its_record(crash_cell, tmp_path, sample, report):
    """It is never served as a right body, and the store does not stop for it."""
    outcome = flips(record(tmp_path, crash_cell, "os"), tmp_path, sample)
    report("crash harness", f"{crash_cell}: {outcome.states} flipped bits, {len(outcome.failures)} failed")
    assert not outcome.failures, outcome.said
    assert outcome.points > 500
