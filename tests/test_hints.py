"""Hints are worth time, never data: whatever becomes of one, the store comes up with what is in its segments."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from msgstore.contract import Columns
from msgstore.engine.segment import hints
from msgstore.files import Files
from msgstore.testing.faults import CHANGES, Crash, UnsyncedFiles
from support import CELLS, failing, open_with, stops, unchanged

ETS = [cell for cell in CELLS.values() if cell.index == "ets"]


@pytest.fixture(params=ETS, ids=str)
def ets(request):
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
    (found,) = path.glob("0.*")
    return found


# -- the bytes ------------------------------------------------------------------------------------------------------------


def test_hint_of_other_segment_is_invalid():
    """Or one that is damaged; fuzzing tries what is damaged and has its checksum."""
    columns = Columns()
    for number, msg_id in enumerate(ids(5)):
        columns.add(msg_id, 64 + 50 * number, 40 + number)
    without_gaps = attrs.evolve(columns, offsets=array("Q", accumulate(columns.sizes[:-1], initial=64)))
    for records, offsets in ((columns, columns.offsets), (without_gaps, 64)):
        data = b"".join(hints.write_hint((records.ids, offsets, records.sizes), "0.sqs", 400, 1))
        assert hints.read_hint(data, "0.sqs", 400, 1) == records
        damaged = [data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :] for at in range(len(data))]
        others = [(data, "1.sqs", 400, 1), (data, "0.sqs", 401, 1), (data, "0.sqs", 400, 2)]
        for wrong in (*others, *((data, "0.sqs", 400, 1) for data in (*damaged, data[:-1], b""))):
            with pytest.raises(hints.InvalidHint):
                hints.read_hint(*wrong)


# -- written and used -----------------------------------------------------------------------------------------------------


def test_sealed_segment_with_hint_is_not_scanned(tmp_path, two, files):
    """A store that is only read uses the hint, too, and writes none."""
    hint = hint_of(tmp_path)
    with open_with(tmp_path, mode="r", **two) as store:
        assert len(store.stats().recovery.hinted) == 1
        segment = store._segments.by_number[0]
        found = store._segments.hints.load(segment)
    scanned = segment.form.format.scan(segment.path.read_bytes()).records
    assert found.id_list() == scanned.id_list() == ids(100)
    assert (found.offsets, found.sizes) == (scanned.offsets, scanned.sizes)
    hint.rename(tmp_path / "kept")
    with unchanged(tmp_path):
        open_with(tmp_path, files, mode="r", **two).close()
    assert files.count(*CHANGES) == 0
    (tmp_path / "kept").rename(hint)
    recovery = check(tmp_path, two, ids(150))
    assert (recovery.how, recovery.entered, recovery.garbage) == ("rebuild", 150, 0)
    assert [[name.split(".")[0] for name in names] for names in (recovery.hinted, recovery.scanned)] == [["0"], ["1"]]


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
    for _ in range(2):
        with open_with(tmp_path, mode="r", **ets) as store:
            assert [entry.location for entry in store.entries()] == first
    recovery = check(tmp_path, ets, ids(2))
    assert (len(recovery.hinted), recovery.entered, recovery.garbage) == (1, 2, 1)


# -- stale and damaged ----------------------------------------------------------------------------------------------------


def overwrite_end(path: Path, back: int, data: bytes) -> None:
    """Write over the bytes so far from the end."""
    with path.open("r+b") as file:
        file.seek(-back, os.SEEK_END)
        file.write(data)


DAMAGES = {
    "gone": lambda hint, data: None,
    "cut": lambda hint, data: hint.write_bytes(data[:-1]),
    "empty": lambda hint, data: hint.touch(),
    "huge": lambda hint, data: (hint.touch(), os.truncate(hint, 2**40)),
    "of another segment": lambda hint, data: hint.write_bytes(b"".join(hints.rename_hint(data, hint.stem[9:], "9.sqs"))),
    "directory": lambda hint, data: hint.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_hint_causes_a_scan(tmp_path, two, damage):
    hint = hint_of(tmp_path)
    data = hint.read_bytes()
    hint.unlink()
    DAMAGES[damage](hint, data)
    recovery = check(tmp_path, two, ids(150))
    assert (recovery.hinted, len(recovery.scanned)) == ([], 2)
    assert damage == "directory" or len(check(tmp_path, two, ids(150)).hinted) == 1


def test_hint_of_segment_with_lost_end_is_refused(tmp_path, two):
    """Name, size and time survived a power loss, the content did not."""
    segment = segment_of(tmp_path)
    times = segment.stat()
    overwrite_end(segment, 100, bytes(100))
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))
    with open_with(tmp_path, **two) as store:
        assert store.stats().recovery.hinted == []


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
    with open_with(tmp_path, **ets) as store:
        assert store.stats().recovery.hinted == []


def test_foreign_append_is_not_hidden_by_hint(tmp_path, ets):
    store = open_with(tmp_path, **ets)
    write(store, 100)
    with segment_of(tmp_path).open("ab") as file:
        file.write(b"\xff" * 100)
    store.roll()
    store.abandon()
    assert hints_in(tmp_path) == []
    assert check(tmp_path, ets, ids(100)).damaged


def test_hint_without_segment_is_deleted(tmp_path, two):
    """Its number may be given to another segment."""
    segment_of(tmp_path).unlink()
    hint = hint_of(tmp_path)
    leftover = hint.with_name(hint.name + ".tmp")
    leftover.touch()
    check(tmp_path, two, ids(100, 150))
    assert (hint.exists(), leftover.exists()) == (False, False)


# -- while the store is open ----------------------------------------------------------------------------------------------

NO_HINT = {
    "small": lambda files, patch: patch.setattr(hints, "SMALLEST", 2**20),
    "no room": lambda files, patch: files.before("create", failing(errno.ENOSPC), ".hint", times=None),
    "no times": lambda files, patch: files.before("set_mtime", failing(errno.EPERM), times=None),
    "times forgotten": lambda files, patch: patch.setattr(
        files, "set_mtime", lambda path, _: Files.set_mtime(files, path, path.stat().st_mtime_ns)
    ),
}


@pytest.mark.parametrize("why", NO_HINT)
def test_hint_that_cannot_be_fails_nothing(tmp_path, ets, files, why, monkeypatch):
    NO_HINT[why](files, monkeypatch)
    two_segments(tmp_path, ets, files)
    assert hints_in(tmp_path) == []
    assert check(tmp_path, ets, ids(150)).hinted == []


def test_hint_after_failed_append_is_right(tmp_path, ets, files):
    """What was appended before the failure is written once more: the segments have copies."""
    store = open_with(tmp_path, files, **ets, file_size_limit=4000, gc_interval=0)
    write(store, 10)
    fail = failing(errno.ENOSPC)
    files.after("pwrite", lambda: files.before("pwrite", fail, "1."), "1.")  # the first write is the header
    with pytest.raises(msgstore.StoreIOError):
        write(store, 10, 200)
    store.flush()
    store.roll()
    store.abandon()
    recovery = check(tmp_path, ets, ids(200), file_size_limit=4000)
    assert recovery.garbage > 0
    assert recovery.scanned in ([], ["0.rdq"], ["0.sqs"])  # the first one is mostly copies: it gets no hint
    assert recovery.hinted


@pytest.fixture
def halved(tmp_path, two):
    """A store of whose first segment half was removed."""
    store = open_with(tmp_path, **two)
    store.client().remove(ids(0, 100, 2))
    store.flush()
    yield store
    store.abandon()


def test_compaction_rewrites_the_hint(tmp_path, two, halved):
    assert halved.compact(everything=True)[0].moved_records
    halved.abandon()
    assert len(check(tmp_path, two, sorted(ids(1, 100, 2) + ids(100, 150))).hinted) == 1


def test_quarantined_segment_loses_its_hint(tmp_path, halved):
    """Or the next start would find no damage in it."""
    overwrite_end(segment_of(tmp_path), 500, b"\xff" * 200)
    assert halved.compact(everything=True)[0].skipped
    assert hints_in(tmp_path, "msgstore-0*.hint") == []


def test_deleted_segment_loses_its_hint(tmp_path, halved):
    assert hint_of(tmp_path).exists()
    halved.client().remove(ids(1, 100, 2))
    halved.flush()
    assert hints_in(tmp_path, "msgstore-0*.hint") == []


@pytest.mark.slow
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
        with contextlib.suppress(Crash):
            store.compact(everything=True)
        store._segments.files = store._segments.hints._files = Files()
        store.abandon()
        with open_with(path, **ets) as store, store.client() as client:
            assert client.read_many(live) == {i: body(int.from_bytes(i)) for i in live}
