"""An index against a dictionary: every method in any order, with commits that fail, crashes and restarts in between."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from msgstore.contract import Capability, Index
from msgstore.testing.faults import FailingFiles
from msgstore.testing.index_fixtures import (
    IDS,
    LOCATIONS,
    NOTHING,
    Entries,
    Place,
    Saved,
    agree,
    batches,
    changes,
    counted,
    entries_of,
    some_ids,
    states,
)
from msgstore.testing.subjects import Subject

_moves = st.dictionaries(st.sampled_from(IDS), st.tuples(LOCATIONS, LOCATIONS, st.booleans()), max_size=6)


class EntriesAgainstDictionary(RuleBasedStateMachine):
    """What an index is asked between two stops. A subclass makes ``index``; ``entries`` is what it has to hold."""

    index: Index
    entries: Entries
    in_order = False
    """Whether ``release`` is held to the order in which messages were freed: more than the contract demands."""

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
        assert self.index.add_reference(msg_id) is (msg_id in self.entries)
        if msg_id in self.entries:
            at, count = self.entries[msg_id]
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
        assert released.freed == freed if self.in_order else sorted(released.freed) == sorted(freed), "freed"
        assert released.missing == missing, "missing"

    @rule(moves=_moves)
    def relocate(self, moves: dict[bytes, tuple[int, int, bool]]) -> None:
        """``right`` says whether the location of before is given, or any."""
        old = [self.entries[i][0] if right and i in self.entries else at for i, (at, _, right) in moves.items()]
        expected = 0
        for (msg_id, (_, to, _)), was in zip(moves.items(), old, strict=True):
            at, count = self.entries.get(msg_id, (None, 0))
            if at == was:
                self.entries[msg_id] = (to, count)
                expected += 1
        assert self.index.relocate(list(moves), old, [to for _, to, _ in moves.values()]) == expected

    @rule(more=batches)
    def items_are_as_of_the_call(self, more: dict[bytes, int]) -> None:
        items = self.index.items()
        expected = sorted((msg_id, at, count) for msg_id, (at, count) in self.entries.items())
        self.enter(more)
        self.release(list(more)[::2])
        assert sorted(items) == expected, "items() shows what was changed after the call"

    @rule()
    def length(self) -> None:
        """Not an invariant: an index may put off what it takes to know."""
        assert len(self.index) == len(self.entries)

    @invariant()
    def agrees(self) -> None:
        agree(self.index, self.entries, IDS)


class IndexAgainstDictionary(EntriesAgainstDictionary):
    """``entries`` and ``state`` are what the index holds; ``due`` is what was set apart for a commit, ``durable`` what a
    process may find that starts after this one was killed: one of these."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.persistent = subject.has(Capability.PERSISTENT)
        self.scratch = tempfile.TemporaryDirectory()
        directory = Path(self.scratch.name, "store")
        directory.mkdir()
        self.place = Place(subject, directory)
        self.durable = [NOTHING]
        self.open()

    def open(self) -> None:
        self.files = FailingFiles()
        self.index = self.place.make(self.files)
        found = Saved(self.index.load(), entries_of(self.index))
        assert found in self.durable, f"loaded {found}, not {' or '.join(map(str, self.durable))}"
        self.durable = [found]
        self.entries: Entries = dict(found.entries)
        self.state = dict(found.state or {})
        self.due: Saved | None = None

    def teardown(self) -> None:
        self.index.close(None)
        self.scratch.cleanup()

    @rule()
    def clear(self) -> None:
        """What is on disk may be dropped now, or when the next commit comes."""
        self.index.clear()
        self.entries, self.state, self.due = {}, {}, None
        if self.persistent:
            self.durable.append(NOTHING)

    @rule(state=changes)
    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        self.index.freeze(state)
        if self.persistent:
            self.state.update({key: value for key, value in state.items() if value is not None})
            self.state = {key: value for key, value in self.state.items() if state.get(key, b"") is not None}
            self.due = Saved(dict(self.state), dict(self.entries))

    @rule()
    def commit(self) -> None:
        self.index.commit()
        self.was_committed()

    def was_committed(self) -> None:
        if not self.persistent:
            self.durable = [NOTHING]
        elif self.due is not None:
            self.durable = [self.due]
            self.due = None

    @rule(fail=st.integers(0, 6))
    def a_commit_that_may_fail(self, fail: int) -> None:
        """It is repeated, or not."""
        self.files.fail = fail
        try:
            self.index.commit()
        except OSError:
            self.durable += [self.due or NOTHING]
        else:
            self.was_committed()
        finally:
            self.files.fail = None

    @rule()
    def crash(self) -> None:
        copy = self.place.copy()
        self.index.close(None)
        self.place.remove()
        copy.directory.rename(self.place.directory)
        self.open()

    @rule()
    def end_without_saving(self) -> None:
        self.index.close(None)
        self.open()

    @rule(state=states)
    def restart(self, state: dict[bytes, bytes]) -> None:
        self.index.close(state)
        self.index.close(None)
        self.durable = [Saved(state, self.entries)]
        self.open()
