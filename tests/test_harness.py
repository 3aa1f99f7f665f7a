"""The crash tests can fail: a build that is broken on purpose is caught by them."""

from __future__ import annotations

import pytest

import msgstore
from msgstore.engine.compact import in_place as compaction
from support import CELLS
from test_compaction_crash import ours, stop_everywhere


def test_records_that_appear_before_they_are_written_are_noticed(tmp_path, monkeypatch):
    steps = compaction._steps

    def seal_first(*arguments):
        prepare, inside, seal = steps(*arguments)
        return [prepare, seal, inside]

    monkeypatch.setattr(compaction, "_steps", seal_first)
    counts = ours(tmp_path / "start", CELLS["ets-v2"])
    with pytest.raises((AssertionError, msgstore.CorruptRecord)):
        stop_everywhere(tmp_path, CELLS["ets-v2"], counts, "os")


def test_a_move_that_the_index_never_hears_of_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_swap", lambda *_: None)
    counts = ours(tmp_path / "start", CELLS["lmdb-v2"])
    with pytest.raises((AssertionError, msgstore.CorruptRecord)):
        stop_everywhere(tmp_path, CELLS["lmdb-v2"], counts, "os")
