"""The contract of an index, against a plain dictionary, with stops and restarts in between."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from msgstore.contract import Index, IndexContext, NoOptions
from msgstore.contract.locations import pack
from msgstore_ets_index import plugin
from msgstore_ets_index.index import FILE

IDS = st.integers(0, 7).map(lambda number: bytes([number]) * 16)
BATCHES = st.lists(IDS, max_size=6)
LOCATIONS = st.builds(pack, st.integers(0, 2**20), st.integers(0, 2**40 - 1), st.integers(1, 2**40 - 1))
STATES = st.dictionaries(st.sampled_from([b"a", b"b"]), st.binary(max_size=4))


class Files:
    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
        path.write_bytes(b"".join(chunks))

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)


def make(directory: Path) -> Index:
    (descriptor,) = plugin.msgstore_indexes()
    index: Index = descriptor.load_factory()(IndexContext(NoOptions(), directory, Files()))
    return index


class Model(RuleBasedStateMachine):
    """``entries`` is what the index must hold: id -> (location, references)."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        self.entries: dict[bytes, tuple[int, int]] = {}
        self.index = make(self.directory)
        assert self.index.load() is None

    def teardown(self) -> None:
        self.index.close(None)
        self.scratch.cleanup()

    @rule(batch=st.dictionaries(IDS, LOCATIONS, max_size=6))
    def enter(self, batch: dict[bytes, int]) -> None:
        self.index.enter(list(batch), iter(batch.values()))
        self.entries.update({msg_id: (at, 1) for msg_id, at in batch.items()})

    @rule(batch=st.dictionaries(IDS, st.tuples(LOCATIONS, st.integers(1, 4)), max_size=6))
    def enter_with_references(self, batch: dict[bytes, tuple[int, int]]) -> None:
        self.index.enter(list(batch), (at for at, _ in batch.values()), (count for _, count in batch.values()))
        self.entries.update(batch)

    @rule(msg_id=IDS)
    def add_reference(self, msg_id: bytes) -> None:
        assert self.index.add_reference(msg_id) is (msg_id in self.entries)
        if msg_id in self.entries:
            at, count = self.entries[msg_id]
            self.entries[msg_id] = (at, count + 1)

    @rule(ids=BATCHES)
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
        assert (released.freed, released.missing) == (freed, missing)

    @rule(moves=st.dictionaries(IDS, st.tuples(LOCATIONS, LOCATIONS, st.booleans()), max_size=6))
    def relocate(self, moves: dict[bytes, tuple[int, int, bool]]) -> None:
        old = [self.entries[i][0] if right and i in self.entries else at for i, (at, _, right) in moves.items()]
        expected = 0
        for (msg_id, (_, to, _)), was in zip(moves.items(), old, strict=True):
            at, count = self.entries.get(msg_id, (None, 0))
            if at == was:
                self.entries[msg_id] = (to, count)
                expected += 1
        assert self.index.relocate(list(moves), old, [to for _, to, _ in moves.values()]) == expected

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.entries.clear()

    @rule(state=STATES)
    def commit(self, state: dict[bytes, bytes]) -> None:
        self.index.freeze(state)
        self.index.commit()
        assert list(self.directory.iterdir()) == []

    @rule(state=STATES)
    def restart(self, state: dict[bytes, bytes]) -> None:
        self.index.close(state)
        self.index.close(None)
        self.index = make(self.directory)
        assert self.index.load() == state
        self.index.freeze({})
        self.index.commit()

    @rule()
    def crash(self) -> None:
        self.index.close(None)
        assert not (self.directory / FILE).exists()
        self.index = make(self.directory)
        assert self.index.load() is None
        self.entries.clear()

    @rule(more=st.dictionaries(IDS, LOCATIONS))
    def items_are_as_of_the_call(self, more: dict[bytes, int]) -> None:
        items = self.index.items()
        expected = sorted((msg_id, at, count) for msg_id, (at, count) in self.entries.items())
        self.enter(more)
        self.release(list(more)[::2])
        assert sorted(items) == expected

    @invariant()
    def agrees(self) -> None:
        assert len(self.index) == len(self.entries)
        for number in range(8):
            msg_id = bytes([number]) * 16
            at, count = self.entries.get(msg_id, (None, 0))
            assert (self.index.get(msg_id), self.index.references(msg_id)) == (at, count)
        assert sorted(self.index.items()) == sorted((i, at, count) for i, (at, count) in self.entries.items())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        make(tmp_path).enter([bytes(16)], [1, 2])


def test_an_entry_is_nothing_that_the_garbage_collector_walks(tmp_path: Path) -> None:
    index = make(tmp_path)
    ids = [number.to_bytes(16) for number in range(1000)]
    before = len(gc.get_objects())
    index.enter(ids, [pack(1, number, 100) for number in range(1000)], [2] * 1000)
    assert len(gc.get_objects()) - before < 50
