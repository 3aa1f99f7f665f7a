"""Index against a dictionary: every method in any order, with failing commits, crashes and restarts in between."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from msgstore.contract import Capability
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.locations import LIMIT, pack_location
from msgstore.testing.faults import FailingFiles, listing
from msgstore.testing.index.place import IDS, LATER, NOTHING, Entries, Place, Saved, agree, entries_of
from msgstore.testing.subjects import Subject

LOCATIONS = st.builds(pack_location, st.integers(0, 2**64 - 1), st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1))
LARGE_COUNTS = st.sampled_from([2**31, 2**32, MAX_REFERENCES - 1, MAX_REFERENCES])
some_ids = st.lists(st.sampled_from(IDS), max_size=8)
"""Some of them twice."""
batches = st.dictionaries(st.sampled_from(IDS), LOCATIONS, max_size=6)
counted = st.dictionaries(st.sampled_from(IDS), st.tuples(LOCATIONS, st.integers(1, 4) | LARGE_COUNTS), max_size=6)
_keys = st.sampled_from([b"a", b"key", b"\0" * 511])
_values = st.binary(max_size=5) | st.sampled_from([0, 70_000]).map(bytes)
states = st.dictionaries(_keys, _values, max_size=3)
changes = st.dictionaries(_keys, st.none() | _values, max_size=3)
failures = st.tuples(st.none() | st.integers(0, 6), st.sampled_from([errno.EIO, errno.ENOSPC]))
"""(number of the file operation that fails, error)."""
_moves = st.dictionaries(st.sampled_from(IDS), st.tuples(LOCATIONS, LOCATIONS, st.booleans()), max_size=6)


class IndexAgainstDictionary(RuleBasedStateMachine):
    """``entries`` and ``state`` are what the index holds; ``due`` is what is set aside for a commit; ``durable`` has the states
    of which a process may find any one that starts after this one was killed."""

    in_order = False
    """True if ``release`` must keep the order in which messages were freed: more than the contract demands."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.persistent = subject.has(Capability.PERSISTENT)
        self.scratch = tempfile.TemporaryDirectory()
        directory = Path(self.scratch.name, "store")
        directory.mkdir()
        (directory / "0.rdq").write_bytes(b"a segment")
        self.place = Place(subject, directory)
        self.durable = [NOTHING]
        self.open()

    def open(self) -> None:
        names = {path.name for path in self.place.directory.iterdir()} - {"0.rdq"}
        assert all(name.startswith("msgstore-") for name in names), f"names of index files begin with msgstore-, not {names}"
        assert (self.place.directory / "0.rdq").read_bytes() == b"a segment"
        self.files = FailingFiles()
        self.index = self.place.make(self.files)
        found = Saved(self.index.load(), entries_of(self.index))
        self._check_durable(found)
        self.durable = [found]
        self.entries: Entries = dict(found.entries)
        self.state = dict(found.state or {})
        self.due: Saved | None = None

    def _check_durable(self, found: Saved) -> None:
        """A new store has nothing; a commit and a close save everything that was set aside, and only that."""
        assert found in self.durable, f"loaded {found}, not {' or '.join(map(str, self.durable))}"

    def teardown(self) -> None:
        self.index.close(None)
        self.scratch.cleanup()

    @rule(batch=batches)
    def enter(self, batch: dict[bytes, int]) -> None:
        self.index.enter(list(batch), iter(batch.values()))
        self.entries.update({msg_id: (at, 1) for msg_id, at in batch.items()})

    @rule(batch=counted)
    def enter_with_references(self, batch: Entries) -> None:
        self.index.enter(list(batch), (at for at, _ in batch.values()), (count for _, count in batch.values()))
        self.entries.update(batch)

    @rule(msg_id=st.sampled_from(IDS))
    def add_reference(self, msg_id: bytes) -> None:
        at, count = self.entries.get(msg_id, (0, 0))
        if count < MAX_REFERENCES:
            assert self.index.add_reference(msg_id) is bool(count), "add_reference must say whether there is an entry"
            if count:
                self.entries[msg_id] = (at, count + 1)

    @rule(ids=some_ids)
    def release(self, ids: list[bytes]) -> None:
        freed, missing = [], []
        for msg_id in ids:
            at, count = self.entries.pop(msg_id, (0, 0))
            if count > 1:
                self.entries[msg_id] = (at, count - 1)
            elif count == 1:
                freed.append((msg_id, at))
            else:
                missing.append(msg_id)
        released = self.index.release(ids)
        same = released.freed == freed if self.in_order else sorted(released.freed) == sorted(freed)
        assert same, "freed must have each entry that lost its last reference; an id given twice loses two"
        assert released.missing == missing, "missing must have each id without an entry, as often as it was given"

    @rule(moves=_moves)
    def relocate(self, moves: dict[bytes, tuple[int, int, bool]]) -> None:
        """The third value says whether the location of before is given, or another."""
        old = [self.entries[i][0] if right and i in self.entries else at for i, (at, _, right) in moves.items()]
        expected = 0
        for (msg_id, (_, to, _)), was in zip(moves.items(), old, strict=True):
            at, count = self.entries.get(msg_id, (None, 0))
            if at == was:
                self.entries[msg_id] = (to, count)
                expected += 1
        relocated = self.index.relocate(list(moves), old, [to for _, to, _ in moves.values()])
        assert relocated == expected, "relocate must move exactly the entries whose location is still the old one"

    @rule(more=batches)
    def items_are_as_of_the_call(self, more: dict[bytes, int]) -> None:
        items = self.index.items()
        expected = sorted((msg_id, at, count) for msg_id, (at, count) in self.entries.items())
        self.enter(more)
        self.release(list(more)[::2])
        assert sorted(items) == expected, "items() shows changes made after the call"

    @rule()
    def length(self) -> None:
        """Not an invariant: an index may compute its length late."""
        assert len(self.index) == len(self.entries), "len must be the number of entries"

    @invariant()
    def agrees(self) -> None:
        agree(self.index, self.entries, IDS)

    @rule()
    def clear(self) -> None:
        """Drop everything, on disk now or with the next commit."""
        self.index.clear()
        self.entries, self.state, self.due = {}, {}, None
        if self.persistent:
            self.durable.append(NOTHING)

    @rule(state=changes)
    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        self.index.freeze(state)
        if self.persistent:
            merged: dict[bytes, bytes | None] = {**self.state, **state}
            self.state = {key: value for key, value in merged.items() if value is not None}
            self.due = Saved(dict(self.state), dict(self.entries))

    @rule(batch=batches, state=st.none() | changes, failure=failures)
    def commit(
        self, batch: dict[bytes, int], state: Mapping[bytes, bytes | None] | None, failure: tuple[int | None, int]
    ) -> None:
        """A commit that fails leaves what was set aside for the next one: at once after EIO, later after ENOSPC."""
        if state is not None:
            self.enter(batch)
            self.freeze(state)
        self.files.fail, self.files.error = failure
        try:
            self.index.commit()
        except OSError:
            assert self.files.failed, "commit raises although no file operation failed"
            self.durable.append(self.due or NOTHING)
            self._check_durable(self.place.after_a_crash())
            if self.files.error == errno.EIO:
                self.index.commit()
                self._was_committed()
        else:
            self._was_committed()
        self.files.fail = None

    def _was_committed(self) -> None:
        if not self.persistent:
            self.durable = [NOTHING]
        elif self.due is not None:
            self.durable = [self.due]
            self.due = None
        self._check_durable(self.place.after_a_crash())

    @rule()
    def crash(self) -> None:
        copy = self.place.copy()
        self.index.close(None)
        self.place.remove()
        copy.directory.rename(self.place.directory)
        self.open()

    @rule(fails=st.booleans())
    def end_without_saving(self, fails: bool) -> None:
        self.index.close(None)
        if fails:
            files = FailingFiles(0)
            index = self.place.make(files)
            try:
                index.load()
                raised = False
            except OSError:
                raised = True
            finally:
                index.close(None)
            assert raised == bool(files.failed), f"{files.failed or 'nothing'} failed, load must raise OSError if something did"
        self.open()

    @rule(state=states, failure=failures)
    def restart(self, state: dict[bytes, bytes], failure: tuple[int | None, int]) -> None:
        """A close that fails releases nothing and can be repeated; a second close does nothing."""
        self.files.fail, self.files.error = failure
        closed = Saved(state, dict(self.entries))
        try:
            self.index.close(state)
        except OSError:
            assert self.files.failed, "close raises although no file operation failed"
            self.agrees()
            self.durable.append(closed)
            self._check_durable(self.place.after_a_crash())
            self.index.close(state)
        self.files.fail = None
        self.index.close(state)
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
            found = Saved(index.load(), entries_of(index))
            self._check_durable(found)
            entries = dict(found.entries)
            index.release([gone] * min(index.references(gone), 5))
            if entries.get(gone, (0, 9))[1] <= 5:
                entries.pop(gone, None)
                assert index.get(gone) is None
            index.enter([mine], [9])
            assert index.add_reference(mine)
            index.freeze(LATER)
            index.commit()
            assert (index.get(mine), index.references(mine)) == (9, 2)
            index.clear()
            index.freeze({})
            index.commit()
            assert len(index) == 0
            index.close(LATER)
            assert listing(place.directory) == before, "an index that is read-only changes files"
        place.remove()
