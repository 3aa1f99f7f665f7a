"""Compaction, stopped before, inside and after every file operation, leaves every live record readable."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from msgstore.files import Files
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from support import WHOLE, Cell, RealDirectory, Sample, hashes, id_of, open_with, opening


def ours(path: Path, cell: Cell) -> dict[bytes, int]:
    """A store of our own with two thirds removed, whatever its record type. Returns the counts of what is left."""
    ids = [id_of(n) for n in range(1, 90)]
    with open_with(path, **cell.keys, gc_interval=0, file_size_limit=cell.header + 12_000) as store, store.client() as client:
        client.write_many((msg_id, msg_id * (1 + n * 7 % 60) if n % 11 else b"") for n, msg_id in enumerate(ids))
        store.flush()
        client.remove([msg_id for n, msg_id in enumerate(ids) if n % 3])
    return dict.fromkeys(ids[::3], 1)


def real(path: Path, cell: Cell) -> dict[bytes, int]:
    """A directory that RabbitMQ wrote, with two thirds removed."""
    directory = RealDirectory.load("v1_clean" if cell.format == "v1" else "v2_clean")
    directory.copy(path.parent).rename(path)
    keep = sorted(directory.refcounts)[::3]
    return {msg_id: directory.refcounts[msg_id] for msg_id in keep}


@pytest.mark.parametrize(
    ("source", "durability"), [(ours, "os"), (ours, "fsync"), (real, "fsync"), pytest.param(real, "os", marks=pytest.mark.slow)]
)
def test_compaction_killed_anywhere_loses_nothing(source, durability, cell, tmp_path, sample):
    counts = source(tmp_path / "start", cell)
    assert stop_everywhere(tmp_path, cell, counts, durability, sample) > 20


def stop_everywhere(tmp_path: Path, cell: Cell, counts: dict[bytes, int], durability: str, sample: Sample = WHOLE) -> int:
    """Stop before each change, and inside each write at every sector, or at those of ``sample``. Returns how many of
    these crash points there are."""
    start, path = tmp_path / "start", tmp_path / "stopped"
    whole = RecordingFiles()
    expected = _after(start, path, cell, counts, durability, whole)
    assert set(expected) == set(counts)
    changes, points = whole.changes(), crash_points(whole)
    assert any(name == ("unlink" if cell.format == "v1" else "truncate") for name, _, _ in changes)
    for stop, torn in sample.of(points):
        assert stopped(partial(_after, start, path, cell, counts, durability, StoppingFiles(stop, torn)))
        assert _reopened(path, cell, counts) == expected, f"stopped at {changes[stop]}, {torn} bytes of it written"
    return len(points)


def _after(start: Path, path: Path, cell: Cell, counts: dict[bytes, int], durability: str, files: Files) -> dict[bytes, str]:
    """Open a copy, compact everything, stop as a killed process would, and open it again."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(start, path)
    with opening(path, cell, refcounts=counts.items(), durability=durability, gc_interval=0, adopt=True) as open_it:
        open_it(files).compact(everything=True)
    return _reopened(path, cell, counts)


def _reopened(path: Path, cell: Cell, counts: dict[bytes, int]) -> dict[bytes, str]:
    with opening(path, cell, refcounts=counts.items(), gc_interval=0, adopt=True) as open_it:
        store = open_it()
        found = hashes(store)
        assert set(store.client().read_many(found)) == set(found)
        return found
