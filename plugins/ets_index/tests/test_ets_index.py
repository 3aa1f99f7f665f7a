"""The index against a dictionary, as the conformance kit tries it; and its snapshot: what is damaged is never believed."""

from __future__ import annotations

import gc
import logging
import random
import struct
import zlib
from collections.abc import Iterable
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

IDS = st.binary(min_size=16, max_size=16)
LOCATIONS = st.one_of(
    st.just(0), st.builds(pack_location, st.integers(0, 2**70), st.integers(0, 2**40 - 1), st.integers(0, 2**40 - 1))
)
ENTRIES = {bytes([i]) * 16: pack_location(i, 64 + i, 100) for i in range(5)}
COUNTS = {bytes([3]) * 16: 7}
STATE = {b"clean": b"yes", b"": b"", b"fingerprint": bytes(range(20))}


def open_index(directory: Path, *, read_only: bool = False) -> EtsIndex:
    return EtsIndex(IndexContext(NoOptions(), directory, UnsyncedFiles(), read_only=read_only))


class Model(IndexAgainstDictionary):
    def __init__(self):
        super().__init__(Subject.of(*plugin.msgstore_indexes()))


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)


def test_entries_are_invisible_to_garbage_collector(tmp_path):
    index = open_index(tmp_path)
    with pytest.raises(ValueError):
        index.enter([bytes(16)], [1, 2])  # columns of different lengths
    ids = [number.to_bytes(16) for number in range(1000)]
    before = len(gc.get_objects())
    index.enter(ids, [pack_location(1, number, 100) for number in range(1000)], [2] * 1000)
    assert len(gc.get_objects()) - before < 50


def image(state: dict[bytes, bytes] = STATE) -> bytes:
    return b"".join(snapshot.write(ENTRIES, COUNTS, state))


def is_refused(data: bytes) -> bool:
    entries, counts = {}, {}
    try:
        snapshot.read(data, entries, counts)
    except snapshot.InvalidSnapshot:
        return not entries and not counts
    return False


def sealed(data: bytes) -> bytes:
    """``data`` with its last four bytes replaced by the checksum of the rest: what a hostile writer would do."""
    return data[:-4] + struct.pack(">I", zlib.crc32(data[:-4]))


def read_back(data):
    entries, counts = {}, {}
    return snapshot.read(data, entries, counts), entries, counts


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
    assert [size for size in range(len(data)) if not is_refused(data[:size])] == []
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert is_refused(bytes(changed)) or RESCUED_KEY in snapshot.read(bytes(changed), {}, {}), (at, bit)
    assert is_refused(data + b"\0")


@given(st.data())
def test_forged_header_with_right_checksum_is_refused(data):
    whole = bytearray(image())
    at, size = data.draw(st.sampled_from([(8, 4), (12, 4), (16, 8), (24, 8), (32, 8)]))
    value = data.draw(st.integers(0, 2 ** (8 * size) - 1).filter(lambda value: value != int.from_bytes(whole[at : at + size])))
    whole[at : at + size] = value.to_bytes(size)
    assert is_refused(sealed(bytes(whole)))
    whole = bytearray(image({b"k": b"v"}))
    whole[-4 - 10 : -4 - 6] = struct.pack(">I", 2**32 - 1)  # the length of a key of the state
    assert is_refused(sealed(bytes(whole)))


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" * 10, bytes(1000), image()[:-1]])
def test_bad_snapshot_is_kept_until_first_commit(tmp_path, caplog, content):
    (tmp_path / FILE).write_bytes(content)
    index = open_index(tmp_path)
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        assert index.load() is None
    assert (len(index), list(index.items())) == (0, [])
    assert str(tmp_path / FILE) in caplog.text
    index.freeze({})
    index.commit()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(DAMAGED_FILE, content)]


def test_changed_byte_leaves_every_other_entry(tmp_path, caplog):
    """The engine compares each with its record, and what is damaged is kept until another snapshot takes its place."""
    entries = {bytes([n]) * 16: n << 80 | n for n in range(1, 20)}
    index = open_index(tmp_path)
    index.enter(list(entries), entries.values(), [n % 3 + 1 for n in range(1, 20)])
    index.close({b"layout": b"1"})
    data = bytearray((tmp_path / FILE).read_bytes())
    data[60] ^= 1  # in the second id
    (tmp_path / FILE).write_bytes(data)
    index = open_index(tmp_path)
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        state = index.load()
    assert state == {b"layout": b"1", RESCUED_KEY: b""}
    assert "the checksum does not match" in caplog.text
    right = {msg_id: (at, refs) for msg_id, at, refs in index.items() if entries.get(msg_id) == at}
    assert len(right) == len(entries) - 1 == len(index) - 1
    assert all(refs == msg_id[0] % 3 + 1 for msg_id, (_, refs) in right.items())
    index.freeze({})
    index.commit()
    assert [path.name for path in tmp_path.iterdir()] == [DAMAGED_FILE]


def test_unreadable_snapshot_is_an_error_not_loss(tmp_path):
    (tmp_path / FILE).mkdir()
    for read_only in (True, False):
        with pytest.raises(OSError):
            open_index(tmp_path, read_only=read_only).load()


def test_first_commit_removes_snapshot_unless_read_only(tmp_path):
    (tmp_path / FILE).write_bytes(image())
    reader = open_index(tmp_path, read_only=True)
    assert reader.load() == STATE
    reader.release(list(ENTRIES))
    reader.freeze({})
    reader.commit()
    reader.close({b"other": b"state"})
    assert (tmp_path / FILE).read_bytes() == image()
    index = open_index(tmp_path)
    assert index.load() == STATE
    assert (tmp_path / FILE).exists()  # an opening that fails after this has lost nothing
    index.freeze({})
    index.commit()
    assert list(tmp_path.iterdir()) == []
    assert open_index(tmp_path).load() is None


def test_failed_write_keeps_entries(tmp_path):
    class FullDisk(UnsyncedFiles):
        def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
            raise OSError(28, "No space left on device")

    index = EtsIndex(IndexContext(NoOptions(), tmp_path, FullDisk()))
    index.enter(list(ENTRIES), ENTRIES.values())
    with pytest.raises(OSError):
        index.close({})
    assert len(index) == len(ENTRIES)
    index.close(None)
    index.close({})
    assert list(tmp_path.iterdir()) == []
