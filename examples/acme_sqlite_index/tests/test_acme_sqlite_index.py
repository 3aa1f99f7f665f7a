"""Tests that are specific to SQLite. msgstore's conformance kit tests the requirements of every index:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-sqlite-index
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from acme_sqlite_index.index import FILE, SqliteIndex
from acme_sqlite_index.plugin import msgstore_indexes
from msgstore.contract import IndexContext, NoOptions
from msgstore.testing import Subject
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index_model import IndexAgainstDictionary


def make(directory: Path, **keys: object) -> SqliteIndex:
    return SqliteIndex(IndexContext(NoOptions(), directory, UnsyncedFiles(), **keys))


def test_index_after_random_calls_equals_dictionary():
    """As in the kit, which asks for more examples: here for the fast suite."""
    subject = Subject.of(*msgstore_indexes())
    few = settings(max_examples=10, stateful_step_count=25)
    run_state_machine_as_test(lambda: IndexAgainstDictionary(subject), settings=few)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE entries (mine)")
    other.close()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"this is no database" * 300), of_another_program])
def test_load_damaged_file_sets_it_aside(damage, tmp_path):
    damage(tmp_path / FILE)
    before = (tmp_path / FILE).read_bytes()
    reader = make(tmp_path, read_only=True)
    assert reader.load() is None
    reader.close(None)
    index = make(tmp_path)
    assert index.load() is None
    index.enter([bytes([n]) * 16 for n in range(8)], [1] * 8)
    index.close({b"a": b"1"})
    assert len((tmp_path / f"{FILE}.damaged-1").read_bytes()) == len(before)
    index = make(tmp_path)
    assert (index.load(), len(index)) == ({b"a": b"1"}, 8)
    index.close(None)


def test_load_of_unusable_path_raises_os_error(tmp_path):
    with pytest.raises(OSError, match=FILE):
        make(tmp_path / "absent").load()
