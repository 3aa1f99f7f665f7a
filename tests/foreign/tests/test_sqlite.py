"""Tests of what the index ``sqlite`` does beyond the contract, which the conformance kit tests: damaged and foreign files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from msgstore.contract import IndexContext
from msgstore.testing import Subject
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index.model import IndexAgainstDictionary

pytest.importorskip("foreign_backends", reason="pip install -e ./tests/foreign")

from foreign_backends.plugin import SqliteOptions, msgstore_indexes  # type: ignore[import-not-found]
from foreign_backends.sqlite import FILE, SqliteIndex  # type: ignore[import-not-found]

IDS = [bytes([n]) * 16 for n in range(8)]


def make(directory: Path, **keys: object) -> SqliteIndex:
    return SqliteIndex(IndexContext(SqliteOptions(), directory, UnsyncedFiles(), **keys))


def test_index_after_random_calls_equals_dictionary():
    """As in the kit, which asks for more examples: here for the fast suite."""
    subject = Subject.of(*msgstore_indexes())
    run_state_machine_as_test(lambda: IndexAgainstDictionary(subject), settings=settings(stateful_step_count=25))


@pytest.mark.parametrize("damage", [b"this is no database" * 300, b"SQLite format 3\0" + b"x" * 5000])
def test_load_damaged_file_sets_it_aside(damage, tmp_path):
    (tmp_path / FILE).write_bytes(damage)
    reader = make(tmp_path, read_only=True)
    assert reader.load() is None
    reader.close(None)
    assert (tmp_path / FILE).read_bytes() == damage
    index = make(tmp_path)
    assert index.load() is None
    index.enter(IDS, [1] * 8)
    index.close({b"a": b"1"})
    assert (tmp_path / f"{FILE}.damaged-1").read_bytes() == damage
    index = make(tmp_path)
    assert (index.load(), len(index)) == ({b"a": b"1"}, 8)
    index.close(None)


def test_load_database_of_another_program_sets_it_aside(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("CREATE TABLE entries (mine)")
        other.execute("PRAGMA user_version = 7")
    other.close()
    index = make(tmp_path)
    assert index.load() is None
    index.close(None)
    assert (tmp_path / f"{FILE}.damaged-1").exists()


def test_load_symbolic_link_raises_os_error(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        make(tmp_path).load()
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_load_sqlite_error_raises_os_error_with_path(tmp_path):
    with pytest.raises(OSError, match=FILE):
        make(tmp_path / "absent").load()
