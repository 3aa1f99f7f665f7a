"""What collection costs, counted in file operations and bytes instead of seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from msgstore.jobs.inputs import find_inputs, open_input
from msgstore.scan.segment import scan_file
from msgstore.testing.faults import RecordingFiles
from support import catalogue, filled, id_of

KEYS = {"gc_interval": 0}


def test_deleting_an_empty_segment_reads_nothing(opened, files):
    """One unlink a segment, whatever was in it."""
    store, ids = opened(files, file_size_limit="8KiB"), [id_of(n) for n in range(400)]
    store.client().write_many((msg_id, msg_id * 10) for msg_id in ids)
    store.roll()
    segments = len(store.segments())
    assert segments > 5
    files.operations.clear()
    store.client().remove(ids)
    store.flush()
    assert store.segments() == []
    changed = [name for name, path, _ in files.operations if not path.endswith(".snapshot")]
    assert changed == ["unlink"] * segments
    assert files.count("pread", "open_read", "read_file") == 0


@pytest.mark.parametrize("size", [64, 1000, 5000])
def test_compaction_writes_the_moved_records_and_fifteen_bytes_a_gap(size, cell, opened, files):
    """With three of five removed. v1 is copied: it has the moved records alone."""
    store, ids = opened(files, file_size_limit="1GiB"), [id_of(n) for n in range(300_000 // size)]
    store.client().write_many((msg_id, bytes([n % 250]) * (size - n % 50)) for n, msg_id in enumerate(ids))
    store.roll()
    store.client().remove(random.Random(60).sample(ids, len(ids) * 3 // 5))
    store.flush()
    before = store.segments()[0]
    assert 0.55 < before.garbage_bytes / before.size < 0.65
    files.operations.clear()
    (done,) = store.compact()
    written = sum(size for name, path, size in files.operations if name == "pwrite" and path.startswith(("0.", "1.rdq")))
    assert done.moved_bytes > 0
    assert done.written == written
    assert done.size_after < 0.55 * before.size
    if cell.format == "v2":
        gaps = sum(1 for name, _, size in files.operations if name == "pwrite" and size == 5) // 2  # prepared and sealed
        assert written <= done.moved_bytes + 15 * gaps


def test_scan_reads_a_segment_at_once(cell, tmp_path):
    """However many records it has."""
    [found] = find_inputs(catalogue(), [filled(tmp_path, [(id_of(n), b"body") for n in range(2000)], **cell.keys)]).inputs
    files = RecordingFiles()
    assert len(scan_file(files, Path(found.path), open_input(found)).scan.records) == 2000
    assert files.operations == [("open_read", found.path, 0), ("pread", Path(found.path).name, found.size)]
