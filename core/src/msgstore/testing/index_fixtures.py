"""Where the kit opens indexes: a directory, what was saved in it, and what a killed process would leave there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st

from msgstore.contract import Index, IndexContext
from msgstore.contract.locations import LIMIT, pack_location
from msgstore.files import Files
from msgstore.testing.faults import UnsyncedFiles, copy_of
from msgstore.testing.subjects import Subject

Entries = dict[bytes, tuple[int, int]]
"""Id to (location, references)."""

IDS = [bytes([n]) * 15 + bytes([n % 3]) for n in range(1, 9)]
"""Few, so that they meet."""
LOCATIONS = st.builds(pack_location, st.integers(0, 2**64 - 1), st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1))
some_ids = st.lists(st.sampled_from(IDS), max_size=8)
"""Some of them twice."""
batches = st.dictionaries(st.sampled_from(IDS), LOCATIONS, max_size=6)
counted = st.dictionaries(st.sampled_from(IDS), st.tuples(LOCATIONS, st.integers(1, 4)), max_size=6)
states = st.dictionaries(st.sampled_from([b"a", b"key", b"\0" * 511]), st.binary(max_size=5), max_size=3)
changes = st.dictionaries(st.sampled_from([b"a", b"key", b"\0" * 511]), st.none() | st.binary(max_size=5), max_size=3)


def _or_none(state: dict[bytes, bytes] | None) -> dict[bytes, bytes]:
    return state or {}


@attrs.frozen
class Saved:
    """What ``load`` gives back. No state is as good as an empty one."""

    state: dict[bytes, bytes] | None = attrs.field(eq=_or_none)
    entries: Entries


NOTHING = Saved(None, {})


@attrs.define
class Place:
    """One store's directory."""

    subject: Subject
    directory: Path
    copies: int = 0

    def make(self, files: Files | None = None, **context: Any) -> Index:
        """An index that was not loaded yet."""
        given = IndexContext(self.subject.made_options, self.directory, files or UnsyncedFiles(), **context)
        index: Index = self.subject.make(given)
        return index

    def open(self, files: Files | None = None, **context: Any) -> Index:
        """An index that serves; whatever was there is loaded, and the first commit is done, as a store does."""
        index = self.make(files, **context)
        index.load()
        index.freeze({})
        index.commit()
        return index

    def copy(self) -> Place:
        """What a process leaves that is killed now."""
        self.copies += 1
        target = self.directory.with_name(f"{self.directory.name}-{self.copies}")
        shutil.rmtree(target, ignore_errors=True)
        return Place(self.subject, copy_of(self.directory, target))

    def saved(self) -> Saved:
        """What an index finds that is opened here."""
        index = self.make()
        try:
            return Saved(index.load(), entries_of(index))
        finally:
            index.close(None)

    def after_a_crash(self) -> Saved:
        """What an index would find if this process were killed now."""
        copy = self.copy()
        try:
            return copy.saved()
        finally:
            copy.remove()

    def clear(self) -> None:
        """Begin anew."""
        self.remove()
        self.directory.mkdir()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def entries_of(index: Index) -> Entries:
    rows = list(index.items())
    found = {msg_id: (at, count) for msg_id, at, count in rows}
    assert len(found) == len(rows), "items() gives an id twice"
    return found


def agree(index: Index, entries: Entries, ids: Iterable[bytes] = ()) -> None:
    """Every way to ask gives the same: of ``entries``, and of ``ids``, which may be absent."""
    for msg_id in {*entries, *ids}:
        at, count = entries.get(msg_id, (None, 0))
        assert index.get(msg_id) == at, f"get({msg_id.hex()})"
        assert index.references(msg_id) == count, f"references({msg_id.hex()})"
    assert entries_of(index) == entries, "items()"


_A, _B, _C, _D = IDS[:4]
FIRST: Entries = {_A: (pack_location(1, 0, 10), 1), _B: (pack_location(1, 10, 10), 2), _C: (pack_location(1, 20, 10), 3)}
SECOND: Entries = {_B: (pack_location(2, 0, 10), 3), _C: (pack_location(1, 20, 10), 2), _D: (pack_location(2, 10, 10), 1)}
STATE, LATER = {b"key": b"value", b"other": b""}, {b"key": b"later"}
OWN_FILES = "files that it writes through the operations of its context"


def enter_first(index: Index) -> None:
    """An empty index has the entries ``FIRST`` then."""
    index.enter(list(FIRST), [at for at, _ in FIRST.values()], [count for _, count in FIRST.values()])


def make_second(index: Index) -> None:
    """GroupCommit ``FIRST`` into ``SECOND``: something of everything."""
    index.release([_A, _C])
    index.relocate([_B], [FIRST[_B][0]], [SECOND[_B][0]])
    index.add_reference(_B)
    index.enter([_D], [SECOND[_D][0]])
