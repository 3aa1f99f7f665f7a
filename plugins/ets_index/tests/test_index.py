"""The index against a plain dictionary, as the conformance kit tries it; and what this index has beyond the contract."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import settings

from msgstore.contract import IndexContext, NoOptions
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index.model import IndexAgainstDictionary
from msgstore.testing.subjects import Subject
from msgstore_ets_index import plugin

(DESCRIPTOR,) = plugin.msgstore_indexes()


class Model(IndexAgainstDictionary):
    in_order = True

    def __init__(self):
        super().__init__(Subject.of(DESCRIPTOR))


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)


@pytest.fixture
def index(tmp_path: Path):
    return DESCRIPTOR.load_factory()(IndexContext(NoOptions(), tmp_path, UnsyncedFiles()))


def test_columns_of_different_lengths_are_refused(index):
    with pytest.raises(ValueError):
        index.enter([bytes(16)], [1, 2])


def test_entries_are_invisible_to_garbage_collector(index):
    ids = [number.to_bytes(16) for number in range(1000)]
    before = len(gc.get_objects())
    index.enter(ids, [pack_location(1, number, 100) for number in range(1000)], [2] * 1000)
    assert len(gc.get_objects()) - before < 50
