"""Tests of what the backends of ``tests/foreign`` do beyond the contract, which the conformance kit tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

import foreign_ledger
from msgstore.contract import FormatContext, IndexContext, NoOptions
from msgstore.testing import Subject
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index_model import IndexAgainstDictionary

pytest.importorskip("foreign_backends", reason="pip install -e ./tests/foreign")

from foreign_backends.ledger import GAP_HEAD, HEADER, LedgerFormat, gap_head  # type: ignore[import-not-found]
from foreign_backends.plugin import msgstore_indexes  # type: ignore[import-not-found]
from foreign_backends.sqlite import FILE, SqliteIndex  # type: ignore[import-not-found]

FORM = LedgerFormat(FormatContext(NoOptions()))
bodies = st.binary(max_size=300) | st.sampled_from([b"", b"R" * 200, b"F\x01\x00" * 50, HEADER[:64], bytes(150)])
messages = st.dictionaries(st.binary(min_size=16, max_size=16), bodies, min_size=1, max_size=20)
keyed = st.dictionaries(st.binary(min_size=1, max_size=400), bodies, min_size=1, max_size=20)


@given(keyed, messages, st.booleans())
def test_scan_finds_records_of_another_program(before, after, index):
    data = foreign_ledger.ledger(before.items(), index=index)
    written = {foreign_ledger.message_id(key): body for key, body in before.items()}
    assert len(FORM.scan(data).hole_offsets) == index, "an INDEX is a hole"
    more = {msg_id: body for msg_id, body in after.items() if msg_id not in written}
    data += FORM.encode(list(more), list(more.values()))[0]
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert {i: FORM.decode(i, data[at : at + size]) for i, at, size, _ in scan.records.rows()} == {**more, **written}
    assert FORM.scan(data + bytes(5000)).end.state == "torn"  # a file may grow by zeros when its writer loses power
    assert FORM.scan(data + b"\0" * 5 + b"x").end.state == "corrupt"


@pytest.mark.parametrize("size", [1, GAP_HEAD - 1, GAP_HEAD, 200, 2**20])
def test_gap_head_hides_gap_of_any_size(size):
    scan = FORM.scan(HEADER + gap_head(size).ljust(size, b"?"))
    assert (scan.end.state, sum(scan.hole_sizes)) == ("clean", size)


def make(directory: Path, **keys: object) -> SqliteIndex:
    return SqliteIndex(IndexContext(NoOptions(), directory, UnsyncedFiles(), **keys))


def test_index_after_random_calls_equals_dictionary():
    """As in the kit, which asks for more examples: here for the fast suite."""
    subject = Subject.of(*msgstore_indexes())
    run_state_machine_as_test(lambda: IndexAgainstDictionary(subject), settings=settings(stateful_step_count=25))


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
