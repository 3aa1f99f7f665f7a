"""Executors have working directories of their own."""

from __future__ import annotations

from msgstore.jobs.inputs import SegmentInput
from msgstore_spark.tasks import absolute


def test_what_executors_are_told_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = SegmentInput(0, "store", "store/0.sqs", "v2", 64)
    assert absolute((3, (found,))) == (3, (SegmentInput(0, "store", str(tmp_path / "store/0.sqs"), "v2", 64),))
    assert absolute("store") == "store"
