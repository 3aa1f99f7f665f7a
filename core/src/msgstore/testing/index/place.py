"""Directories in which the kit opens indexes: what is saved in them, and what a killed process would leave there."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Index, IndexContext, IndexDescriptor
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles, copy_of
from msgstore.testing.subjects import Subject

Entries = dict[bytes, tuple[int, int]]
"""Id to (location, references)."""
Saved = tuple[dict[bytes, bytes], Entries]
"""State and entries that ``load`` restores. No state equals an empty state."""
NOTHING: Saved = ({}, {})
IDS = [*(bytes([n]) * 15 + bytes([n % 3]) for n in range(1, 9)), bytes(16), b"\xff" * 16]
"""Few, so that operations often meet the same id."""


@attrs.define
class Place:
    """The directory of one store."""

    subject: Subject
    directory: Path

    def make(self, files: Files | None = None, **context: Any) -> Index:
        """An index that is not loaded yet."""
        given = IndexContext(self.subject.made_options, self.directory, files or UnsyncedFiles(), **context)
        index: Index = self.subject.make(given)
        return index

    def open(self, entries: Entries = NOTHING[1]) -> Index:
        """A loaded index after its first commit, as in an open store, with these entries."""
        index = self.make()
        index.load()
        index.freeze({})
        index.commit()
        enter_all(index, entries)
        return index

    def copy(self) -> Place:
        """The state that a process would leave if it were killed now. Replaces the previous copy."""
        target = self.directory.with_name(f"{self.directory.name}-copy")
        shutil.rmtree(target, ignore_errors=True)
        return Place(self.subject, copy_of(self.directory, target))

    def saved(self) -> Saved:
        """Return what an index restores in this directory."""
        index = self.make()
        try:
            return loaded(index)
        finally:
            index.close(None)


def loaded(index: Index) -> Saved:
    return index.load() or {}, entries_of(index)


def enter_all(index: Index, entries: Entries) -> None:
    index.enter(list(entries), [at for at, _ in entries.values()], [count for _, count in entries.values()])


def entries_of(index: Index) -> Entries:
    rows = list(index.items())
    found = {msg_id: (at, count) for msg_id, at, count in rows}
    assert len(found) == len(rows), "items() gives an id twice"
    return found


def agree(index: Index, entries: Entries, ids: Iterable[bytes] = ()) -> None:
    """Every read method gives ``entries``, and nothing for those of ``ids`` that are absent."""
    for msg_id in {*entries, *ids}:
        at, count = entries.get(msg_id, (None, 0))
        assert index.get(msg_id) == at, f"get({msg_id.hex()}) must be {at}"
        assert index.references(msg_id) == count, f"references({msg_id.hex()}) must be {count}"
    assert entries_of(index) == entries, "items() differs from get() and references()"


ROUND = b"round"
CHILD_IDS = [random.Random(n).randbytes(16) for n in range(300)]


def committed(round_: int) -> Saved:
    """After a commit of the child: every third id is absent in every other round; the others have a location of this round."""
    there = [msg_id for n, msg_id in enumerate(CHILD_IDS) if n % 3 or round_ % 2]
    return {ROUND: b"%d" % round_}, {i: (pack_location(round_, n, 100), 1 + round_ % 3) for n, i in enumerate(there)}


def _commit_rounds(descriptor: IndexDescriptor, context: IndexContext, parent: Any) -> None:
    index: Index = descriptor.load_factory()(context)
    index.load()
    for round_ in range(1, 2**63):
        state, goal = committed(round_)
        enter_all(index, goal)
        index.release([msg_id for msg_id in CHILD_IDS if msg_id not in goal for _ in range(index.references(msg_id))])
        index.freeze(state)
        index.commit()
        parent.send(round_)


@contextlib.contextmanager
def committing(place: Place) -> Iterator[Callable[[], int]]:
    """A child process that commits round after round. The block begins after the first commit. It gets a function that kills
    the process and returns the number of the last commit that has returned."""
    processes = multiprocessing.get_context("spawn")
    child, parent = processes.Pipe()
    context = IndexContext(place.subject.made_options, place.directory, Files())
    process = processes.Process(target=_commit_rounds, args=(place.subject.descriptor, context, parent), daemon=True)
    process.start()
    parent.close()
    round_: int = child.recv()  # raises EOFError if the index has failed

    def kill() -> int:
        nonlocal round_
        process.kill()
        process.join()
        with contextlib.suppress(EOFError, OSError):
            while True:
                round_ = child.recv()
        return round_

    try:
        yield kill
    finally:
        kill()
        child.close()
