"""Hints are worth time, never data: whatever becomes of one, the store comes up with what is in its segments."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import zlib
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import msgstore
from msgstore.contract import Columns
from msgstore.engine.segment import hint_file, hints
from msgstore.engine.segment.hint_file import InvalidHint
from msgstore.files import Files
from msgstore.locations import pack_locations
from msgstore.testing.faults import CHANGES, Crash, UnsyncedFiles
from support import CELLS, failing, open_with, stops, unchanged, until

ETS = [cell for cell in CELLS.values() if cell.index == "ets"]


@pytest.fixture(params=ETS, ids=str)
def ets(request):
    pytest.importorskip("msgstore_ets_index")
    pytest.importorskip(f"msgstore_format_{request.param.format}")
    if request.param.record == "checksum":
        pytest.importorskip("msgstore_checksum_record")
    return request.param.keys | {"sync_interval": "1h"}


@pytest.fixture(autouse=True)
def small_segments_have_hints(monkeypatch):
    monkeypatch.setattr(hints, "SMALLEST", 0)


def body(number: int) -> bytes:
    return b"\x83m" + (10 + number % 3).to_bytes(4, "big") + bytes(10 + number % 3)


def ids(*span: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(*span)]


def write(store: msgstore.Store, *span: int) -> None:
    store.client().write_many((msg_id, body(int.from_bytes(msg_id))) for msg_id in ids(*span))
    store.flush()


def two_segments(path: Path, keys: dict, files: Files | None = None) -> None:
    """0 to 99 in a sealed segment, 100 to 149 in the one that is being written; killed."""
    store = open_with(path, files, **keys)
    write(store, 100)
    store.roll()
    write(store, 100, 150)
    store.abandon()


@pytest.fixture
def two(tmp_path, ets):
    """The keys of a store with two segments, in ``tmp_path``."""
    two_segments(tmp_path, ets)
    return ets


def recovered(path: Path, keys: dict, **more: object) -> Any:
    store = open_with(path, **keys, **more)
    recovery = store.stats().recovery
    store.abandon()
    return recovery


def check(path: Path, keys: dict, expected: list[bytes], **more: object) -> Any:
    """Open after a kill: everything is there and readable, and what is counted of segments is what the index says. Kill."""
    store = open_with(path, **keys, **more)
    entries = list(store.entries())
    assert sorted(entry.msg_id for entry in entries) == expected
    assert store.client().read_many(expected) == {i: body(int.from_bytes(i)) for i in expected}
    for segment in store.segments():
        sizes = [entry.size for entry in entries if entry.number == segment.number]
        assert (segment.live_count, segment.live_bytes) == (len(sizes), sum(sizes))
    recovery = store.stats().recovery
    store.abandon()
    return recovery


def hints_in(path: Path, pattern: str = "*.hint*") -> list[str]:
    return [file.name for file in path.glob(pattern)]


def hint_of(path: Path) -> Path:
    (found,) = path.glob("msgstore-0.*.hint")
    return found


def segment_of(path: Path) -> Path:
    (found,) = (file for file in path.glob("0.*") if file.suffix != ".hint")
    return found


# -- written and read -----------------------------------------------------------------------------------------------------


def test_sealed_segment_with_hint_is_not_scanned(tmp_path, two):
    recovery = check(tmp_path, two, ids(150))
    assert recovery.how == "rebuild"
    assert [[name.split(".")[0] for name in names] for names in (recovery.hinted, recovery.scanned)] == [["0"], ["1"]]
    assert (recovery.entered, recovery.garbage) == (150, 0)


def test_hint_equals_the_scan(tmp_path, two):
    with open_with(tmp_path, mode="r", **two) as store:
        segment = store._segments.by_number[0]
        hint = store._segments.hints.load(segment)
    scanned = segment.form.format.scan(segment.path.read_bytes()).records
    assert hint.id_list() == scanned.id_list() == ids(100)
    assert (hint.offsets, hint.sizes) == (scanned.offsets, scanned.sizes)


def test_segment_continued_after_stop_is_scanned_once(tmp_path, ets):
    with open_with(tmp_path, **ets) as store:
        write(store, 50)
    assert len(hints_in(tmp_path, "*.hint")) == 1
    store = open_with(tmp_path, **ets)
    write(store, 50, 100)
    assert hints_in(tmp_path, "*.hint") == []  # it was stale with the first append
    store.roll()
    write(store, 100, 150)
    store.abandon()
    assert hints_in(tmp_path, "*.hint") == []
    assert [len(check(tmp_path, ets, ids(150)).hinted) for _ in range(2)] == [0, 1]


def test_hints_of_foreign_segments_follow_the_scan(tmp_path, ets):
    two_segments(tmp_path / "a", ets)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)  # times are lost
    for file in (tmp_path / "b").iterdir():
        os.utime(file, ns=(10**18, 10**18))
    assert check(tmp_path / "b", ets, ids(150)).hinted == []
    assert segment_of(tmp_path / "b").stat().st_mtime_ns == 10**18  # old already
    assert len(check(tmp_path / "b", ets, ids(150)).hinted) == 1


def test_small_segments_get_no_hint(tmp_path, ets, monkeypatch):
    monkeypatch.setattr(hints, "SMALLEST", 2**20)
    two_segments(tmp_path, ets)
    assert hints_in(tmp_path) == []


def test_persistent_index_removes_old_hints(tmp_path):
    keys = {"format": "v2", "sync_interval": "1h"}
    two_segments(tmp_path, keys | {"index": "ets"})
    open_with(tmp_path, index="ets", **keys).close()
    assert hint_of(tmp_path).exists()
    with open_with(tmp_path, index="lmdb", **keys) as store:
        store.client().remove(ids(0, 100, 2))
        store.roll()
        assert next(done.file for done in store.compact(everything=True)) == "0.sqs"
    assert hints_in(tmp_path) == []  # one was compacted, the other is written on
    shutil.rmtree(tmp_path / "msgstore-lmdb")
    with open_with(tmp_path, index="lmdb", **keys) as store:  # removed ones may be back: nothing says that they were
        assert store.stats().recovery.how == "rebuild"
        assert {entry.msg_id for entry in store.entries()} >= set(ids(1, 100, 2) + ids(100, 150))


def test_read_only_store_uses_and_keeps_hints(tmp_path, two, files):
    hint = hint_of(tmp_path)
    hint.rename(tmp_path / "kept")
    with unchanged(tmp_path):
        open_with(tmp_path, files, mode="r", **two).close()
    assert files.count(*CHANGES) == 0
    (tmp_path / "kept").rename(hint)
    with open_with(tmp_path, mode="r", **two) as store:
        assert len(store.stats().recovery.hinted) == 1


# -- stale and damaged ----------------------------------------------------------------------------------------------------


def test_hint_after_same_time_change_is_refused(tmp_path, ets):
    """The clock of a file system may stand still for milliseconds."""

    class CoarseClock(UnsyncedFiles):
        """Stands still: every write leaves the time of the first."""

        now = 0

        def pwrite(self, fd, data, offset):
            super().pwrite(fd, data, offset)
            CoarseClock.now = CoarseClock.now or os.fstat(fd).st_mtime_ns
            os.utime(fd, ns=(self.now, self.now))

    files = CoarseClock()
    two_segments(tmp_path, ets, files)
    fd = files.open_write(segment_of(tmp_path))
    files.pwrite(fd, b"!", os.fstat(fd).st_size - len(body(99)) + 6)
    files.close(fd)
    assert recovered(tmp_path, ets).hinted == []


def test_hint_with_flipped_bit_is_invalid():
    columns = Columns()
    for number, msg_id in enumerate(ids(5)):
        columns.add(msg_id, 64 + 50 * number, 40 + number)
    without_gaps = attrs.evolve(columns, offsets=array("Q", accumulate(columns.sizes[:-1], initial=64)))
    for records, offsets in ((columns, columns.offsets), (without_gaps, 64)):
        data = b"".join(hint_file.write((records.ids, offsets, records.sizes), "0.sqs", 400, 1))
        assert hint_file.read(data, "0.sqs", 400, 1) == records
        damaged = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
        for wrong in (*damaged, *(data[:at] for at in range(len(data)))):
            with pytest.raises(InvalidHint):
                hint_file.read(wrong, "0.sqs", 400, 1)
        for name, size, mtime in (("1.sqs", 400, 1), ("0.sqs", 401, 1), ("0.sqs", 400, 2)):
            with pytest.raises(InvalidHint):
                hint_file.read(data, name, size, mtime)


@given(
    widths=st.tuples(st.sampled_from([0, 4, 8]), st.sampled_from([0, 4, 8])),
    count=st.integers(0, 5) | st.integers(0, 2**64 - 1),
    numbers=st.tuples(*[st.integers(0, 500) | st.integers(0, 2**64 - 1)] * 2),
    rest=st.binary(max_size=200),
    fits=st.booleans(),
)
def test_hostile_hint_stays_within_its_segment(widths, count, numbers, rest, fits):
    """With a checksum that is right."""
    if fits and count <= 5:
        rest = rest.ljust(count * (16 + sum(widths)), b"\0")[: count * (16 + sum(widths))]
    data = struct.pack(">8sIBBHQQqQQ", b"msghint\n", 1, *widths, 0, count, 400, 1, *numbers) + rest
    data += zlib.crc32(data, zlib.crc32(b"0.sqs")).to_bytes(4)
    try:
        hint = hint_file.read(data, "0.sqs", 400, 1)
    except InvalidHint:
        return
    end = 0
    for location, msg_id in zip(pack_locations(0, hint.offsets, hint.sizes), hint.id_list(), strict=True):
        offset, size = location >> 40, location & 2**40 - 1
        assert len(msg_id) == 16
        assert end <= offset
        end = offset + size
        assert end <= 400


def hint_of_another_store(hint: Path, ets: dict) -> None:
    other = hint.parent.with_name("other")
    two_segments(other, ets)
    shutil.copy2(hint_of(other), hint)


DAMAGES = {
    "gone": lambda hint, data, keys: None,
    "cut": lambda hint, data, keys: hint.write_bytes(data[:-1]),
    "empty": lambda hint, data, keys: hint.touch(),
    "huge": lambda hint, data, keys: (hint.touch(), os.truncate(hint, 2**40)),
    "other": lambda hint, data, keys: hint_of_another_store(hint, keys),
    "directory": lambda hint, data, keys: hint.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_hint_causes_a_scan(tmp_path, two, damage):
    hint = hint_of(tmp_path)
    data = hint.read_bytes()
    hint.unlink()
    DAMAGES[damage](hint, data, two)
    recovery = check(tmp_path, two, ids(150))
    assert (recovery.hinted, len(recovery.scanned)) == ([], 2)
    if damage != "directory":
        assert len(check(tmp_path, two, ids(150)).hinted) == 1


def overwrite_end(path: Path, back: int, data: bytes) -> None:
    """Write over the bytes so far from the end."""
    with path.open("r+b") as file:
        file.seek(-back, os.SEEK_END)
        file.write(data)


def test_hint_of_segment_with_lost_end_is_refused(tmp_path, two):
    """Name, size and time survived a power loss, the content did not."""
    segment = segment_of(tmp_path)
    status = segment.stat()
    overwrite_end(segment, 100, bytes(100))
    os.utime(segment, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert recovered(tmp_path, two).hinted == []


def test_hint_without_segment_is_deleted(tmp_path, two):
    """Its number may be given to another segment."""
    segment_of(tmp_path).unlink()
    hint = hint_of(tmp_path)
    leftover = hint.with_name(hint.name + ".tmp")
    leftover.touch()
    check(tmp_path, two, ids(100, 150))
    assert (hint.exists(), leftover.exists()) == (False, False)


# -- while the store is open ----------------------------------------------------------------------------------------------

FAULTS = {
    "no room": lambda files, patch: files.before("create", failing(errno.ENOSPC), ".hint", times=None),
    "no times": lambda files, patch: files.before("set_mtime", failing(errno.EPERM), times=None),
    "times forgotten": lambda files, patch: patch.setattr(
        files, "set_mtime", lambda path, _: Files.set_mtime(files, path, path.stat().st_mtime_ns)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_unwritable_hint_fails_nothing(tmp_path, ets, files, fault, monkeypatch):
    FAULTS[fault](files, monkeypatch)
    two_segments(tmp_path, ets, files)
    assert hints_in(tmp_path) == []
    assert check(tmp_path, ets, ids(150)).hinted == []


def test_hint_after_failed_append_is_right(tmp_path, ets):
    """What was appended before the failure is written once more: the segments have copies."""

    class FailingInTheSecond(UnsyncedFiles):
        second = None

        def create(self, path):
            fd = super().create(path)
            self.second = fd if path.name.startswith("1.") else self.second
            return fd

        def pwrite(self, fd, data, offset):
            if fd == self.second and len(data) > 1000:
                self.second = None
                super().pwrite(fd, memoryview(data)[:10], offset)
                failing(errno.ENOSPC)()
            super().pwrite(fd, data, offset)

    store = open_with(tmp_path, FailingInTheSecond(), **ets, file_size_limit=4000, gc_interval=0)
    write(store, 10)
    with pytest.raises(msgstore.StoreIOError):
        write(store, 10, 200)
    store.flush()
    store.roll()
    store.abandon()
    recovery = check(tmp_path, ets, ids(200), file_size_limit=4000)
    assert recovery.garbage > 0
    assert recovery.scanned in ([], ["0.rdq"], ["0.sqs"])  # the first one is mostly copies: it gets no hint
    assert recovery.hinted


def test_deleted_segment_loses_its_hint(tmp_path, ets):
    with open_with(tmp_path, **ets) as store:
        write(store, 100)
        store.roll()
        assert hint_of(tmp_path).exists()
        store.client().remove(ids(100))
        store.flush()
        assert hints_in(tmp_path) == []


def test_migration_deletes_hints_of_old_segments(tmp_path):
    keys = {"index": "ets", "format": "v2", "sync_interval": "1h"}
    two_segments(tmp_path, keys | {"format": "v1"})
    store = open_with(tmp_path, **keys)
    store.migrate()
    store.abandon()
    assert hints_in(tmp_path, "*.rdq*") == []
    check(tmp_path, keys, ids(150))


def test_compaction_rewrites_the_hint(tmp_path, two):
    store = open_with(tmp_path, **two)
    store.client().remove(ids(0, 100, 2))
    store.flush()
    (done,) = store.compact(everything=True)
    assert done.moved_records
    store.abandon()
    assert len(check(tmp_path, two, sorted(ids(1, 100, 2) + ids(100, 150))).hinted) == 1


def test_compaction_killed_anywhere_leaves_no_wrong_hint(tmp_path, ets):
    two_segments(tmp_path / "before", ets)
    live = ids(1, 100, 2) + ids(100, 150)
    for name, files in stops(8):
        path = tmp_path / name
        shutil.copytree(tmp_path / "before", path)
        store = open_with(path, **ets)
        store.client().remove(ids(0, 100, 2))
        store.flush()
        store._segments.files = store._segments.hints._files = files
        try:
            store.compact(everything=True)
        except Crash:
            store._segments.files = store._segments.hints._files = Files()
        store.abandon()
        with open_with(path, **ets) as store, store.client() as client:
            assert client.read_many(live) == {i: body(int.from_bytes(i)) for i in live}


def test_quarantined_segment_loses_its_hint(tmp_path, two):
    """Or the next start would find no damage in it."""
    store = open_with(tmp_path, **two)
    assert len(store.stats().recovery.hinted) == 1
    overwrite_end(segment_of(tmp_path), 500, b"\xff" * 200)
    store.client().remove(ids(0, 100, 2))
    store.flush()
    (done,) = store.compact(everything=True)
    assert done.skipped
    store.abandon()
    assert hints_in(tmp_path, "msgstore-0*.hint") == []


def test_hint_with_huge_sizes_is_read():
    huge = array("Q", [2**33, 2**34])
    data = b"".join(hint_file.write((bytes(32), 64, huge), "0.sqs", 2**36, 1))
    hint = hint_file.read(data, "0.sqs", 2**36, 1)
    assert (hint.offsets, hint.sizes) == (array("Q", [64, 64 + 2**33]), huge)


def test_foreign_append_is_not_hidden_by_hint(tmp_path, ets):
    store = open_with(tmp_path, **ets)
    write(store, 100)
    with segment_of(tmp_path).open("ab") as file:
        file.write(b"\xff" * 100)
    store.roll()
    store.abandon()
    assert hints_in(tmp_path) == []
    assert check(tmp_path, ets, ids(100)).damaged


def test_first_copy_in_segment_wins(tmp_path, ets):
    """A message that was removed, and written again when its record could not be revived."""
    store = open_with(tmp_path, **ets)
    write(store, 2)
    first = [entry.location for entry in store.entries()]
    store.client().remove(ids(1))
    store._accounting.revivable.clear()
    write(store, 1)
    store.roll()
    store.abandon()
    with open_with(tmp_path, mode="r", **ets) as store:
        assert [entry.location for entry in store.entries()] == first
    recovery = check(tmp_path, ets, ids(2))
    assert (len(recovery.hinted), recovery.entered, recovery.garbage) == (1, 2, 1)


def test_segment_emptied_soon_gets_no_hint(tmp_path, ets, monkeypatch):
    """Hints wait until their segments have shown that they stay; those that stay are written without being asked for."""
    monkeypatch.setattr(hints, "DELAY_SECONDS", 0.2)
    store = open_with(tmp_path, **ets | {"file_size_limit": 2**21, "sync_interval": "5ms"})
    client, gone = store.client(), ids(2500)
    for msg_id in gone:
        client.write(msg_id, bytes(1000))
    store.flush()
    client.remove(gone)
    for msg_id in ids(5000, 7500):
        client.write(msg_id, bytes(1000))
    store.flush()
    until(lambda: hints_in(tmp_path, "*.hint"), seconds=30)
    assert hints_in(tmp_path, "msgstore-0.*.hint") == []
    store.abandon()
