"""The index against a dictionary, as the conformance kit tries it; and its snapshot: what is damaged is never believed.

``tests/test_fuzz.py`` tries snapshots that were forged, with the right checksum.
"""

from __future__ import annotations

import errno
import gc
import logging
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msgstore.contract import RESCUED_KEY, IndexContext, NoOptions
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index_model import IndexAgainstDictionary
from msgstore.testing.subjects import Subject
from msgstore_ets_index import plugin, snapshot
from msgstore_ets_index.index import DAMAGED_FILE, FILE, EtsIndex
from support import HookedFiles, failing

IDS = st.binary(min_size=16, max_size=16)
LOCATIONS = st.one_of(
    st.just(0), st.builds(pack_location, st.integers(0, 2**70), st.integers(0, 2**40 - 1), st.integers(0, 2**40 - 1))
)
ENTRIES = {bytes([i]) * 16: pack_location(i, 64 + i, 100) for i in range(5)}
COUNTS = {bytes([3]) * 16: 7}
STATE = {b"clean": b"yes", b"": b"", b"fingerprint": bytes(range(20))}


class Model(IndexAgainstDictionary):
    def __init__(self):
        super().__init__(Subject.of(*plugin.msgstore_indexes()))


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)


def open_index(directory: Path, *, read_only: bool = False, files: UnsyncedFiles | None = None) -> EtsIndex:
    return EtsIndex(IndexContext(NoOptions(), directory, files or UnsyncedFiles(), read_only=read_only))


def commit(index: EtsIndex) -> None:
    index.freeze({})
    index.commit()


def image(state: dict[bytes, bytes] = STATE) -> bytes:
    return b"".join(snapshot.write(ENTRIES, COUNTS, state))


def read_back(data):
    entries, counts = {}, {}
    return snapshot.read(data, entries, counts), entries, counts


def is_refused(data: bytes) -> bool:
    entries, counts = {}, {}
    try:
        state = snapshot.read(data, entries, counts)
    except snapshot.InvalidSnapshot:
        return not entries and not counts
    return RESCUED_KEY in state


def test_entries_are_invisible_to_garbage_collector(tmp_path):
    index = open_index(tmp_path)
    with pytest.raises(ValueError):
        index.enter([bytes(16)], [1, 2])  # columns of different lengths
    ids = [number.to_bytes(16) for number in range(1000)]
    before = len(gc.get_objects())
    index.enter(ids, [pack_location(1, number, 100) for number in range(1000)], [2] * 1000)
    assert len(gc.get_objects()) - before < 50


@given(
    st.dictionaries(IDS, LOCATIONS), st.dictionaries(IDS, st.integers(2, 2**64 - 1)), st.dictionaries(st.binary(), st.binary())
)
def test_written_snapshot_is_read(entries, counts, state):
    assert read_back(b"".join(snapshot.write(entries, counts, state))) == (state, entries, counts)


def test_entries_of_several_chunks_are_read():
    source = random.Random(1)
    entries = {source.randbytes(16): pack_location(*(source.randrange(2**n) for n in (20, 40, 40))) for _ in range(20_000)}
    counts = dict.fromkeys(list(entries)[:10000], 2)
    chunks = list(snapshot.write(entries, counts, {}))
    assert max(map(len, chunks)) < 256 * 1024
    assert read_back(b"".join(chunks)) == ({}, entries, counts)


def test_every_truncation_and_every_changed_byte_is_noticed():
    data = image()
    assert not is_refused(data)
    assert is_refused(data + b"\0")
    assert [size for size in range(len(data)) if not is_refused(data[:size])] == []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert is_refused(bytes(changed)), bit


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" * 10, bytes(1000), image()[:-1]])
def test_bad_snapshot_is_kept_until_first_commit(tmp_path, caplog, content):
    (tmp_path / FILE).write_bytes(content)
    index = open_index(tmp_path)
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        assert index.load() is None
    assert (len(index), list(index.items())) == (0, [])
    assert str(tmp_path / FILE) in caplog.text
    commit(index)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(DAMAGED_FILE, content)]


def test_changed_byte_leaves_every_other_entry(tmp_path, caplog):
    """The engine compares each with its record, and what is damaged is kept until another snapshot takes its place."""
    data = bytearray(image({b"layout": b"1"}))
    data[60] ^= 1  # in the second id
    (tmp_path / FILE).write_bytes(data)
    index = open_index(tmp_path)
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        assert index.load() == {b"layout": b"1", RESCUED_KEY: b""}
    assert "the checksum does not match" in caplog.text
    right = {msg_id: refs for msg_id, at, refs in index.items() if ENTRIES.get(msg_id) == at}
    assert right == {msg_id: COUNTS.get(msg_id, 1) for msg_id in list(ENTRIES)[:1] + list(ENTRIES)[2:]}
    commit(index)
    assert [path.name for path in tmp_path.iterdir()] == [DAMAGED_FILE]


@pytest.mark.parametrize("read_only", [True, False])
def test_unreadable_snapshot_is_an_error_not_loss(tmp_path, read_only):
    (tmp_path / FILE).mkdir()
    with pytest.raises(OSError):
        open_index(tmp_path, read_only=read_only).load()


def test_first_commit_removes_snapshot_unless_read_only(tmp_path):
    (tmp_path / FILE).write_bytes(image())
    reader, index = open_index(tmp_path, read_only=True), open_index(tmp_path)
    assert reader.load() == STATE
    reader.release(list(ENTRIES))
    commit(reader)
    reader.close({b"other": b"state"})
    assert (tmp_path / FILE).read_bytes() == image()
    assert index.load() == STATE
    assert (tmp_path / FILE).exists()  # an opening that fails after this has lost nothing
    commit(index)
    assert list(tmp_path.iterdir()) == []
    assert open_index(tmp_path).load() is None


def test_failed_write_keeps_entries(tmp_path):
    files = HookedFiles()
    files.before("pwrite", failing(errno.ENOSPC))
    index = open_index(tmp_path, files=files)
    index.enter(list(ENTRIES), ENTRIES.values())
    with pytest.raises(OSError):
        index.close({})
    assert len(index) == len(ENTRIES)
    index.close(None)
    index.close({})
    assert list(tmp_path.iterdir()) == []
