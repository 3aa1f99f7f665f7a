"""The contract of an index, against a plain dictionary, with stops and restarts in between."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from msgstore.contract import Index, IndexContext, NoOptions
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index.model import EntriesAgainstDictionary
from msgstore_ets_index import plugin
from msgstore_ets_index.index import FILE

STATES = st.dictionaries(st.sampled_from([b"a", b"b"]), st.binary(max_size=4))


def make(directory: Path) -> Index:
    (descriptor,) = plugin.msgstore_indexes()
    index: Index = descriptor.load_factory()(IndexContext(NoOptions(), directory, UnsyncedFiles()))
    return index


class Model(EntriesAgainstDictionary):
    """``entries`` is what the index must hold: id -> (location, references)."""

    in_order = True

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

    @invariant()
    def counts(self) -> None:
        self.length()


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=30)


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        make(tmp_path).enter([bytes(16)], [1, 2])


def test_an_entry_is_nothing_that_the_garbage_collector_walks(tmp_path: Path) -> None:
    index = make(tmp_path)
    ids = [number.to_bytes(16) for number in range(1000)]
    before = len(gc.get_objects())
    index.enter(ids, [pack_location(1, number, 100) for number in range(1000)], [2] * 1000)
    assert len(gc.get_objects()) - before < 50
