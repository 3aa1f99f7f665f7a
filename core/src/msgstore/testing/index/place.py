"""Directories in which the kit opens indexes: what is saved in them, and what a killed process would leave there."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import reprlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import pytest

from msgstore.contract import Index, IndexContext, IndexDescriptor
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles, copy_of
from msgstore.testing.guard import KitTests
from msgstore.testing.subjects import Subject

Entries = dict[bytes, tuple[int, int]]
"""Id to (location, references)."""

IDS = [*(bytes([n]) * 15 + bytes([n % 3]) for n in range(1, 9)), bytes(16), b"\xff" * 16]
"""Few, so that operations often meet the same id."""


def _or_none(state: dict[bytes, bytes] | None) -> dict[bytes, bytes]:
    return state or {}


@attrs.frozen
class Saved:
    """Result of ``load``. No state equals an empty state."""

    state: dict[bytes, bytes] | None = attrs.field(eq=_or_none, repr=reprlib.repr)
    entries: Entries


NOTHING = Saved(None, {})


@attrs.define
class Place:
    """The directory of one store."""

    subject: Subject
    directory: Path
    copies: int = 0

    def make(self, files: Files | None = None, **context: Any) -> Index:
        """An index that is not loaded yet."""
        given = IndexContext(self.subject.made_options, self.directory, files or UnsyncedFiles(), **context)
        index: Index = self.subject.make(given)
        return index

    def open(self, files: Files | None = None, **context: Any) -> Index:
        """A loaded index after its first commit, as in an open store."""
        index = self.make(files, **context)
        index.load()
        index.freeze({})
        index.commit()
        return index

    def copy(self) -> Place:
        """The state that a process would leave if it were killed now."""
        self.copies += 1
        target = self.directory.with_name(f"{self.directory.name}-{self.copies}")
        shutil.rmtree(target, ignore_errors=True)
        return Place(self.subject, copy_of(self.directory, target))

    def saved(self) -> Saved:
        """Return what an index restores in this directory."""
        index = self.make()
        try:
            return Saved(index.load(), entries_of(index))
        finally:
            index.close(None)

    def after_a_crash(self) -> Saved:
        """Load a copy of the directory: what an index finds after a crash at this point."""
        copy = self.copy()
        try:
            return copy.saved()
        finally:
            copy.remove()

    def clear(self) -> None:
        self.remove()
        self.directory.mkdir()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class PlaceTests(KitTests):
    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> Place:
        directory = tmp_path / "store"
        directory.mkdir()
        return Place(subject, directory)


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


_A, _B, _C, _D = IDS[:4]
FIRST: Entries = {_A: (pack_location(1, 0, 10), 1), _B: (pack_location(1, 10, 10), 2), _C: (pack_location(1, 20, 10), 3)}
SECOND: Entries = {_B: (pack_location(2, 0, 10), 3), _C: (pack_location(1, 20, 10), 2), _D: (pack_location(2, 10, 10), 1)}
STATE, LATER = {b"key": b"value", b"other": b""}, {b"key": b"later"}
OWN_FILES = "files that it writes through the operations of its context"


def enter_first(index: Index) -> None:
    """Enter ``FIRST``."""
    index.enter(list(FIRST), [at for at, _ in FIRST.values()], [count for _, count in FIRST.values()])


def make_second(index: Index) -> None:
    """Change ``FIRST`` into ``SECOND``, with every kind of change."""
    index.release([_A, _C])
    index.relocate([_B], [FIRST[_B][0]], [SECOND[_B][0]])
    index.add_reference(_B)
    index.enter([_D], [SECOND[_D][0]])


ROUND = b"round"
CHILD_IDS = [random.Random(n).randbytes(16) for n in range(300)]


def committed(round_: int) -> Saved:
    """After a commit of the child: every third id is absent in every other round; the others have a location of this round."""
    there = [msg_id for n, msg_id in enumerate(CHILD_IDS) if n % 3 or round_ % 2]
    entries: Entries = {msg_id: (pack_location(round_, n, 100), 1 + round_ % 3) for n, msg_id in enumerate(there)}
    return Saved({ROUND: b"%d" % round_}, entries)


def _commit_rounds(descriptor: IndexDescriptor, context: IndexContext, parent: Any, step_by_step: bool) -> None:
    index: Index = descriptor.load_factory()(context)
    index.load()
    round_ = 0
    while not step_by_step or parent.recv():
        round_ += 1
        goal = committed(round_).entries
        index.enter(list(goal), [at for at, _ in goal.values()], [count for _, count in goal.values()])
        index.release([msg_id for msg_id in CHILD_IDS if msg_id not in goal for _ in range(index.references(msg_id))])
        index.freeze({ROUND: b"%d" % round_})
        index.commit()
        parent.send(round_)


class Committing:
    """A child process that commits round after round until it is killed: at the latest at the end of the block."""

    def __init__(self, place: Place, *, step_by_step: bool = False) -> None:
        """``step_by_step``: it commits only in :meth:`wait_for`."""
        processes = multiprocessing.get_context("spawn")
        self._child, parent = processes.Pipe()
        self._step_by_step = step_by_step
        self._round = 0
        context = IndexContext(place.subject.made_options, place.directory, Files())
        arguments = place.subject.descriptor, context, parent, step_by_step
        self._process = processes.Process(target=_commit_rounds, args=arguments, daemon=True)
        self._process.start()
        parent.close()

    def __enter__(self) -> Committing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._child.close()

    def wait_for(self, round_: int) -> None:
        """Wait until it has committed so often. Raises EOFError if it has failed."""
        while self._round < round_:
            if self._step_by_step:
                self._child.send(True)
            self._round = self._child.recv()

    def kill(self) -> int:
        """Kill it; return the number of its last commit that has returned."""
        self._process.kill()
        self._process.join()
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._round = self._child.recv()
        return self._round
