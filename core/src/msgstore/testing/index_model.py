"""Index against a dictionary: every method in any order, with failing commits, crashes and restarts in between."""

from __future__ import annotations

import contextlib
import errno
import itertools
import reprlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from msgstore.contract import Capability, Index, IndexContext
from msgstore.contract.indexes import MAX_REFERENCES, ReleaseResult
from msgstore.files import Files
from msgstore.locations import LIMIT, pack_location
from msgstore.testing.faults import FailingFiles, TornFiles, UnsyncedFiles, copy_of, file_size_limit, listing
from msgstore.testing.subjects import Subject

Entries = dict[bytes, tuple[int, int]]
"""Id to (location, references)."""
Saved = tuple[dict[bytes, bytes], Entries]
"""State and entries that ``load`` restores. No state equals an empty state."""
NOTHING: Saved = ({}, {})
IDS = [*(bytes([n]) * 15 + bytes([n % 3]) for n in range(1, 9)), bytes(16), b"\xff" * 16]
"""Few, so that operations often meet the same id."""
_locations = st.builds(pack_location, st.integers(0, 2**64 - 1), st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1))
batches = st.dictionaries(st.sampled_from(IDS), _locations, max_size=6)
_counts = st.sampled_from([1, 2, 2, 2, 3, 4, 2**31, 2**32, MAX_REFERENCES - 1, MAX_REFERENCES])
_keys = st.sampled_from([b"a", b"key", b"\0" * 511])
_values = st.binary(max_size=5) | st.sampled_from([0, 70_000]).map(bytes)
changes = st.dictionaries(_keys, st.none() | _values, max_size=3)
failures = st.tuples(st.none() | st.integers(0, 6), st.sampled_from([errno.EIO, errno.ENOSPC, errno.EFBIG]))
"""(number of the file operation that fails, error). With EFBIG, or in an index with files of its own, no file can grow beyond
a third as many blocks of 4 KiB: then writes of a library fail."""


def entries_of(index: Index) -> Entries:
    rows = list(index.items())
    found = {msg_id: (at, count) for msg_id, at, count in rows}
    assert len(found) == len(rows), "items() gives an id twice"
    return found


def loaded(index: Index) -> Saved:
    return index.load() or {}, entries_of(index)


def assert_index_equals(index: Index, entries: Entries, ids: Iterable[bytes] = ()) -> None:
    """Every read method gives ``entries``, and nothing for those of ``ids`` that are absent."""
    for msg_id in {*entries, *ids}:
        at, count = entries.get(msg_id, (None, 0))
        assert index.get(msg_id) == at, f"get({msg_id.hex()}) must be {at}"
        assert index.references(msg_id) == count, f"references({msg_id.hex()}) must be {count}"
    assert entries_of(index) == entries, "items() differs from get() and references()"


@attrs.define
class Dictionary:
    """Reference model of an index: its methods, on a dictionary."""

    entries: Entries = attrs.field(factory=dict)

    def get(self, msg_id: bytes) -> int | None:
        return self.entries[msg_id][0] if msg_id in self.entries else None

    def references(self, msg_id: bytes) -> int:
        return self.entries[msg_id][1] if msg_id in self.entries else 0

    def enter(self, ids: Iterable[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        self.entries.update(zip(ids, zip(locations, references or itertools.repeat(1), strict=False), strict=True))

    def add_reference(self, msg_id: bytes) -> bool:
        if msg_id in self.entries:
            at, count = self.entries[msg_id]
            self.entries[msg_id] = (at, count + 1)
        return msg_id in self.entries

    def release(self, ids: Iterable[bytes]) -> ReleaseResult:
        released = ReleaseResult([], [])
        for msg_id in ids:
            at, count = self.entries.pop(msg_id, (0, 0))
            if count > 1:
                self.entries[msg_id] = (at, count - 1)
            elif count == 1:
                released.freed.append((msg_id, at))
            else:
                released.missing.append(msg_id)
        return released

    def relocate(self, ids: Iterable[bytes], old: Iterable[int], new: Iterable[int]) -> int:
        moved = {i: (to, self.references(i)) for i, at, to in zip(ids, old, new, strict=True) if self.get(i) == at}
        self.entries.update(moved)
        return len(moved)


@attrs.define
class IndexDirectory:
    """The directory of one store."""

    subject: Subject
    directory: Path

    def make(self, files: Files | None = None, **context: Any) -> Any:
        """An index that is not loaded yet."""
        return self.subject.make(IndexContext(self.subject.made_options, self.directory, files or UnsyncedFiles(), **context))

    def copy(self) -> IndexDirectory:
        """The state that a process would leave if it were killed now. Replaces the previous copy."""
        target = self.directory.with_name(f"{self.directory.name}-copy")
        shutil.rmtree(target, ignore_errors=True)
        return IndexDirectory(self.subject, copy_of(self.directory, target))

    def saved(self) -> Saved:
        """Return what an index restores in this directory."""
        index = self.make()
        try:
            return loaded(index)
        finally:
            index.close(None)


class IndexAgainstDictionary(RuleBasedStateMachine):
    """``model`` and ``state`` are what the index holds; ``due`` is what is set aside for a commit; ``durable`` has the states
    of which a process may find any one that starts after this one was killed."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.persistent = subject.has(Capability.PERSISTENT)
        self.scratch = tempfile.TemporaryDirectory()
        self.place = IndexDirectory(subject, Path(self.scratch.name, "store"))
        self.place.directory.mkdir()
        (self.place.directory / "0.rdq").write_bytes(b"a segment")
        self.durable = [NOTHING]
        self.found: list[Saved] = []
        """Copies of the directory, one for each failed operation, as a crash there would leave it."""
        self.open()

    def open(self) -> None:
        names = {path.name for path in self.place.directory.iterdir()} - {"0.rdq"}
        assert all(name.startswith("msgstore-") for name in names), f"names of index files begin with msgstore-, not {names}"
        assert (self.place.directory / "0.rdq").read_bytes() == b"a segment"
        self.files = TornFiles(lambda: self.found.append(self.place.copy().saved()))
        self.index = self.place.make(self.files)
        found = loaded(self.index)
        self.check_durable(found)
        self.durable = [found]
        self.state, self.model = dict(found[0]), Dictionary(dict(found[1]))
        self.due: Saved | None = None

    def check_durable(self, found: Saved | None = None) -> None:
        """A new store has nothing; a commit and a close save everything that was set aside, and only that. ``found``: what was
        loaded, or else what a crash would leave now."""
        found = found or self.place.copy().saved()
        assert found in self.durable, f"loaded {reprlib.repr(found)}, not {' or '.join(map(reprlib.repr, self.durable))}"

    def teardown(self) -> None:
        self.index.close(None)
        self.scratch.cleanup()

    @rule(batch=batches, references=st.lists(_counts, min_size=6, max_size=6) | st.none())
    def enter(self, batch: Mapping[bytes, int], references: list[int] | None = None) -> None:
        for each in (self.index, self.model):
            each.enter(list(batch), iter(batch.values()), iter(references[: len(batch)]) if references else None)

    @rule(msg_id=st.sampled_from(IDS))
    def add_reference(self, msg_id: bytes) -> None:
        if self.model.references(msg_id) < MAX_REFERENCES:
            is_there = self.model.add_reference(msg_id)
            assert self.index.add_reference(msg_id) is is_there, "add_reference must say whether there is an entry"

    @rule(ids=st.lists(st.sampled_from(IDS), max_size=8))
    def release(self, ids: list[bytes]) -> None:
        released, expected = self.index.release(ids), self.model.release(ids)
        assert sorted(released.freed) == sorted(expected.freed), (
            "freed must have each entry that lost its last reference; an id given twice loses two"
        )
        assert released.missing == expected.missing, "missing must have each id without an entry, as often as it was given"

    @rule(moves=st.dictionaries(st.sampled_from(IDS), st.tuples(_locations, _locations, st.booleans()), max_size=6))
    def relocate(self, moves: dict[bytes, tuple[int, int, bool]]) -> None:
        """The third value says whether the location of before is given, or another."""
        entries, new = self.model.entries, [to for _, to, _ in moves.values()]
        old = [entries[i][0] if right and i in entries else at for i, (at, _, right) in moves.items()]
        relocated, expected = (each.relocate(list(moves), old, new) for each in (self.index, self.model))
        assert relocated == expected, "relocate must move exactly the entries whose location is still the old one"

    @rule(more=batches)
    def items_are_as_of_the_call(self, more: dict[bytes, int]) -> None:
        items = self.index.items()
        expected = sorted((msg_id, at, count) for msg_id, (at, count) in self.model.entries.items())
        self.enter(more)
        self.release(list(more)[::2])
        assert sorted(items) == expected, "items() shows changes made after the call"

    @rule(key=st.sampled_from([[], {}, [IDS[0]]]))
    def length(self, key: Any = ()) -> None:
        """Not an invariant: an index may compute its length late. What cannot be a key is a TypeError: otherwise
        ``client.read([...])`` ends in a library's own error, or in "no such message"."""
        assert len(self.index) == len(self.model.entries), "len must be the number of entries"
        if key != ():
            with pytest.raises(TypeError):
                self.index.get(key)

    @invariant()
    def agrees(self) -> None:
        assert_index_equals(self.index, self.model.entries, IDS)

    @rule(commits=st.booleans())
    def clear(self, commits: bool) -> None:
        """Drop everything, on disk now or with the next commit, which may follow at once: what was set aside is gone, too."""
        self.index.clear()
        self.model, self.state, self.due = Dictionary(), {}, None
        if self.persistent:
            self.durable.append(NOTHING)
        if commits:
            self.index.commit()
            self.durable = self.durable if self.persistent else [NOTHING]
            self.check_durable()

    @rule(state=changes, wrong=st.none() | st.sampled_from([b"", bytes(512)]))
    def freeze(self, state: Mapping[bytes, bytes | None], wrong: bytes | None = None) -> None:
        """A key that cannot be stored is refused, and changes nothing: a later commit would fail, and each one after it."""
        if self.persistent and wrong is not None:
            with pytest.raises(ValueError):  # noqa: PT011 - the words are its own
                self.index.freeze({b"key": b"changed", wrong: b"value"})
        self.index.freeze(state)
        if self.persistent:
            self.state = {key: value for key, value in {**self.state, **state}.items() if value is not None}
            self.due = dict(self.state), dict(self.model.entries)

    @rule(batch=batches, state=st.none() | changes, failure=failures)
    def commit(self, batch: Mapping[bytes, int], state: Mapping[bytes, bytes | None] | None, failure: tuple[Any, int]) -> None:
        """A commit that fails leaves what was set aside for the next one: later after ENOSPC, at once otherwise."""
        if state is not None:
            self.enter(batch)
            self.freeze(state)
        saved = self.due if self.persistent else NOTHING
        if self._fails(failure, self.index.commit, saved):
            if self.files.error == errno.ENOSPC:
                return
            self.index.commit()
        if saved is not None:
            self.durable, self.due = [saved], None
        self.check_durable()

    def _fails(self, failure: tuple[Any, int], call: Callable[[], None], saved: Saved | None) -> bool:
        """Let a file operation of a call fail. Whether it raised: then, and after a crash inside the operation, the index may
        find what was durable before, or ``saved``."""
        number, self.files.error = failure
        is_limited = number is not None and self.files.error == errno.EFBIG
        self.files.fail, self.files.failed = None if is_limited else number, ""
        self.found.clear()
        try:
            with file_size_limit(4096 * (number // 3)) if is_limited else contextlib.nullcontext():
                call()
        except OSError:
            assert self.files.failed or is_limited, "OSError although no file operation failed"
        else:
            return False
        finally:
            self.files.fail, self.files.failed = None, ""
        self.durable += [saved] if saved else []
        for found in (*self.found, None):
            self.check_durable(found)
        return True

    @rule(fails=st.none() | st.booleans())
    def end_without_saving(self, fails: bool | None) -> None:
        """A crash, or a close without a state, after which another one saves nothing, and the first file operation of ``load``
        may fail."""
        copy = self.place.copy()
        self.index.close(None)
        self.index.close({b"key": b"again"})
        if fails is None:
            shutil.rmtree(self.place.directory)
            copy.directory.rename(self.place.directory)
        elif fails:
            files = FailingFiles(0)
            index = self.place.make(files)
            raised = None
            try:
                index.load()
            except OSError as error:
                raised = error
            index.close(None)
            assert bool(raised) == bool(files.failed), (
                f"{files.failed or 'nothing'} failed, load must raise OSError if something did"
            )
        self.open()

    @rule(state=st.dictionaries(_keys, _values, max_size=3), failure=failures)
    def restart(self, state: dict[bytes, bytes], failure: tuple[Any, int]) -> None:
        """A close that fails releases nothing and can be repeated; a second close does nothing."""
        closed = state, dict(self.model.entries)
        if self._fails(failure, lambda: self.index.close(state), closed):
            self.agrees()
            self.index.close(state)
        self.index.close({b"key": b"again"})
        self.index.close(None)
        self.durable = [closed]
        self.open()

    @rule(mine=st.sampled_from(IDS), gone=st.sampled_from(IDS))
    def look(self, mine: bytes, gone: bytes) -> None:
        """With ``read_only`` changes stay in memory and end with ``close``; no file is touched, not even a time."""
        place = self.place.copy()
        before = listing(place.directory)
        for _ in range(2):
            index = place.make(read_only=True)
            self.check_durable(loaded(index))
            count = index.references(gone)
            index.release([gone] * min(count, 5))
            assert count > 5 or index.get(gone) is None
            index.enter([mine], [9])
            assert index.add_reference(mine)
            index.freeze({b"key": b"later"})
            index.commit()
            assert (index.get(mine), index.references(mine)) == (9, 2)
            index.clear()
            index.freeze({})
            index.commit()
            assert entries_of(index) == {}
            index.close({b"key": b"closed"})
            assert listing(place.directory) == before, "an index that is read-only changes files"
