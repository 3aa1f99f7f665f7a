"""Queue index v2: its bytes are RabbitMQ's, and what a crash leaves is read as it should be."""

from __future__ import annotations

import errno
import os

import attrs
import pytest

from msgstore.files import Files
from msgstore.testing.faults import CHANGES, OPENINGS, FailingFiles, RecordingFiles
from msgstore_queue_index_v2 import index as module
from msgstore_queue_index_v2.index import ALONE, QueueIndexV2
from msgstore_queues import open_vhost
from msgstore_queues.contract import Entry, QueueIndexContext
from msgstore_queues.testing.backing_queues import take_all
from msgstore_queues.testing.queue_indexes import write
from rabbitmq_files import index_v2
from support import HookedFiles, failing, flip, one_at_a_time

TERM = b"\x83h\x06 any bytes"


@pytest.fixture
def opened(tmp_path):
    """Open the index of the test, or one in another directory. The one before is abandoned, as at the end of a process."""

    def make(path=tmp_path, *, files=None, terms=None, synced=False, size=4):
        context = QueueIndexContext(
            options=None, directory=path, files=files or Files(), terms=terms, is_synced=synced, segment_entries=size,
        )  # fmt: skip
        return QueueIndexV2(context)

    with one_at_a_time(make) as open_index:
        yield open_index


def own(position, *, persistent=True, term=TERM):
    return Entry(position, persistent, b"", 10, 0, term)


def shared(position, *, expiry=7):
    return Entry(position, True, bytes([position]) * 16, 5000, expiry, None, is_shared=True)


def positions(index, start=0, stop=4):
    return [entry.position for entry in index.read(start, stop)]


def test_files_are_those_of_rabbitmq(opened, tmp_path):
    index = opened()
    write(index, [own(0), shared(1), own(3)], [])
    index.abandon()
    stored = index_v2.encode_header(index_v2.STORE_MAGIC, 0, 4) + 2 * index_v2.encode_stored(TERM)
    assert (tmp_path / "0.qs").read_bytes() == stored
    second = index_v2.HEADER_SIZE + index_v2.STORED_SIZE + len(TERM)
    rows = [
        index_v2.encode_own(64, len(TERM), 10),
        index_v2.encode_shared(b"\1" * 16, 5000, expiry_us=7),
        bytes(32),
        index_v2.encode_own(second, len(TERM), 10),
    ]
    assert (tmp_path / "0.qi").read_bytes() == index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4) + b"".join(rows)


def test_entries_are_read_as_they_were_written(opened):
    index = opened()
    write(index, [own(0), shared(1)], [])
    assert index.read(0, 4) == [own(0), shared(1)]
    assert [entry.term for entry in index.read(0, 1, terms=False)] == [None]
    assert list(index.shared()) == [b"\1" * 16]
    assert positions(index, 8, 12) == []


def test_finished_segment_is_deleted_and_current_one_stays(opened, tmp_path):
    index = opened()
    write(index, [own(position) for position in range(6)], [])
    write(index, [], [3, 0, 1, 2, 4, 5])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.qi", "1.qs"]
    assert opened().recovered.count == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_reopened_index_has_what_was_left(clean, opened):
    index = opened()
    write(index, [own(position) for position in range(6)], [])
    write(index, [], [0, 1, 2, 3])
    terms = index.close() if clean else None
    again = opened(terms=terms)
    assert attrs.astuple(again.recovered) == (6, 2, 4, None if clean else 20)
    assert positions(again, 4, 8) == [4, 5]


def test_terms_of_other_files_are_not_used(opened, tmp_path):
    index = opened()
    write(index, [own(0)], [])
    terms = index.close()
    (tmp_path / "0.qi").unlink()
    (tmp_path / "0.qs").unlink()
    assert opened(terms=terms).recovered.count == 0


def test_transient_entries_end_with_the_process(opened):
    index = opened()
    write(index, [own(0), own(1, persistent=False), own(2)], [])
    again = opened()
    assert again.recovered.count == 2
    assert positions(again) == [0, 2]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda stored: stored[:-1], [0]),
        (lambda stored: stored[:-20], [0]),
        (lambda stored: b"", []),
        (lambda stored: stored[: -len(TERM)] + bytes(len(TERM)), [0]),  # the file has its size, and zeros
    ],
)
def test_message_that_a_power_failure_has_cut_is_not_there(change, left, opened, tmp_path):
    index = opened()
    write(index, [own(0), own(1)], [])
    index.abandon()
    (tmp_path / "0.qs").write_bytes(change((tmp_path / "0.qs").read_bytes()))
    again = opened()
    assert (again.recovered.count, positions(again)) == (len(left), left)


def test_damaged_message_before_whole_ones_stays_in_the_index(opened, tmp_path, caplog):
    """The queue reports it when it reads it, as after a clean stop. A crash does not do that: it cuts off the end."""
    index = opened()
    write(index, [own(0), own(1), own(2)], [])
    index.abandon()
    flip(tmp_path / "0.qs", index_v2.HEADER_SIZE + index_v2.STORED_SIZE + len(TERM) + 12)
    again = opened()
    assert again.recovered.count == 3
    assert [entry.position for entry in again.read(0, 4, terms=False)] == [0, 1, 2]
    assert positions(again) == [0, 2]
    assert "1 messages from position 0 to 4 cannot be read" in caplog.text


def test_last_message_that_is_damaged_and_not_cut_stays(opened, tmp_path):
    index = opened()
    write(index, [own(0), own(1)], [])
    index.abandon()
    flip(tmp_path / "0.qs", -1)
    assert opened().recovered.count == 2


@pytest.mark.parametrize("size", [600, 5000])
def test_message_of_which_a_sector_was_not_written_is_dropped(size, opened, tmp_path, caplog):
    index = opened()
    write(index, [own(0), own(1, term=b"x" * size)], [])
    index.abandon()
    content = bytearray((tmp_path / "0.qs").read_bytes())
    content[512:1024] = bytes(len(content[512:1024]))
    (tmp_path / "0.qs").write_bytes(content)
    assert opened().recovered.count == 1
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("byte", "bits"), [(0, 1), (0, 2), (1, 2), (2, 1), (3, 1), (3, 2), (3, 4)])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_damaged_entry_is_dropped_and_counted(row, byte, bits, opened, tmp_path, caplog):
    """Its message is counted once: so the queue reports that it is lost."""
    index = opened()
    write(index, [own(position) for position in range(4)], [])
    write(index, [], [3])
    index.abandon()
    flip(tmp_path / "0.qi", index_v2.HEADER_SIZE + row * index_v2.ENTRY_SIZE + byte, bits)
    again = opened()
    left = [position for position in range(3) if position != row]
    assert (again.recovered.count, again.recovered.body_bytes, positions(again)) == (3, 20, left)
    assert "0.qi: 1 entries are damaged, and are dropped" in caplog.text
    write(again, [own(5)], [])
    assert opened().recovered.count == 3


@pytest.mark.parametrize("row", [0, 3])
@pytest.mark.parametrize("number", [1, 2])
def test_queue_reports_a_damaged_entry_after_a_crash(number, row, tmp_path, monkeypatch):
    """And ends when it looks for the message: what is counted, and is in no segment, is behind the last one."""
    monkeypatch.setattr("msgstore_queue_index_v2.index.SEGMENT_ENTRIES", 4)
    options = {"index": "v2", "backing": {"use": "variable", "memory": 0}}
    vhost = open_vhost(tmp_path, sync_interval="365d")
    for body in range(12):
        vhost.queue("jobs", **options).publish(b"%02d" % body)
    vhost.flush()
    vhost.abandon()
    flip(next(vhost.directory.glob(f"queues/*/{number}.qi")), index_v2.HEADER_SIZE + row * index_v2.ENTRY_SIZE)
    lost, folded, reads, read = [], [], iter(range(50)), QueueIndexV2.read
    monkeypatch.setattr(QueueIndexV2, "read", lambda *given, **named: next(reads) < 50 and read(*given, **named))
    monkeypatch.setattr("msgstore_queues.vhost_files.VHostFiles._note_lost", lambda _, *report: lost.append(report[:2]))
    left = [b"%02d" % body for body in range(12) if body != 4 * number + row]
    with open_vhost(tmp_path, sync_interval="365d") as vhost:
        jobs = vhost.queue("jobs")
        jobs.backing.fold(lambda _, message: folded.append(message.body))
        assert folded == left
        assert [received.body for received in take_all(jobs)] == left
    assert lost == [("jobs", 1)]


@pytest.mark.parametrize("left", range(1, index_v2.ENTRY_SIZE))
def test_entry_that_a_crash_has_cut_is_removed(left, opened, tmp_path):
    """Otherwise, the next entry in its place may be a part of it."""
    index = opened()
    write(index, [own(0), own(1)], [])
    index.abandon()
    path = tmp_path / "0.qi"
    path.write_bytes(path.read_bytes()[: index_v2.HEADER_SIZE + index_v2.ENTRY_SIZE + left])
    again = opened()
    assert (again.recovered.count, positions(again)) == (1, [0])
    write(again, [own(3)], [])
    again.abandon()
    assert (opened().recovered.count, positions(again)) == (2, [0, 3])


def test_messages_without_an_index_are_kept_apart(opened, tmp_path, caplog):
    index = opened()
    write(index, [own(0)], [])
    index.abandon()
    (tmp_path / "0.qi").unlink()
    assert opened().recovered.count == 0
    assert [path.name for path in tmp_path.iterdir()] == ["0.qs" + ALONE]
    assert "has no index" in caplog.text


def test_damaged_message_is_left_out_and_named(opened, tmp_path, caplog):
    index = opened()
    write(index, [own(0), own(1)], [])
    flip(tmp_path / "0.qs", -1)
    assert positions(index) == [0]
    assert "1 messages from position 0 to 4 cannot be read" in caplog.text


def test_write_that_failed_anywhere_can_be_repeated(opened, tmp_path):
    entries, acks = [own(position) for position in range(10)], [0, 1, 2, 3, 5]
    whole = RecordingFiles()
    index = opened(make(tmp_path / "whole"), files=whole)
    write(index, entries[:5], [])
    before = whole.count(*CHANGES, *OPENINGS)
    write(index, entries[5:], acks)
    index.abandon()
    for fail in range(before, whole.count(*CHANGES, *OPENINGS)):
        files = FailingFiles(fail)
        index = opened(make(tmp_path / str(fail)), files=files)
        write(index, entries[:5], [])
        with pytest.raises(OSError, match="Input/output"):
            write(index, entries[5:], acks)
        write(index, entries[5:], [*acks, 6])
        found = [entry.position for start in (0, 4, 8) for entry in index.read(start, start + 4)]
        assert found == [4, 7, 8, 9], files.failed
        again = opened(tmp_path / str(fail))
        assert again.recovered.count == 4, files.failed
        again.abandon()


def make(path):
    path.mkdir()
    return path


def test_sync_syncs_each_file_that_was_written_and_new_names(opened):
    files = RecordingFiles()
    index = opened(files=files, synced=True)
    write(index, [own(0), own(5)], [])
    index.sync()()
    assert (files.count("sync"), files.count("sync_directory")) == (4, 1)
    index.sync()()
    assert files.count("sync") == 4


def test_few_files_stay_open(opened):
    index = opened()
    for segment in range(20):
        write(index, [own(4 * segment)], [])
    assert sum(segment.index_fd is not None for segment in index._segments.values()) <= 5


@pytest.mark.parametrize("left", [0, 10])
@pytest.mark.parametrize("suffix", ["qi", "qs"])
def test_file_without_a_header_gets_one(left, suffix, opened, tmp_path):
    index = opened()
    write(index, [own(0)], [])
    index.abandon()
    header = (tmp_path / f"0.{suffix}").read_bytes()[:64]
    (tmp_path / "0.qs").write_bytes(b"")
    (tmp_path / f"0.{suffix}").write_bytes(header[:left])
    index = opened()
    write(index, [own(1)], [])
    index.abandon()
    assert (tmp_path / f"0.{suffix}").read_bytes()[:64] == header
    index = opened()
    assert positions(index) == [1]


def test_files_whose_sync_failed_are_written_again(opened):
    """A second sync alone says nothing: the system has forgotten which bytes are not on disk."""
    files = HookedFiles()
    files.after("sync", failing())
    index = opened(files=files, synced=True)
    write(index, [own(0)], [])
    with pytest.raises(OSError, match="Input/output"):
        index.sync()()
    before = len(files.operations)
    index.sync()()
    names = [name for name, _, _ in files.operations[before:]]
    assert names == ["pread", "pwrite", "sync"] * 2 + ["sync_directory"]


def test_few_files_of_one_write_stay_open(opened):
    """A file is synced before it is closed: a sync after that would not report an error of before."""
    files = RecordingFiles()
    index = opened(files=files, synced=True)
    write(index, [own(4 * segment) for segment in range(20)], [])
    assert sum(segment.index_fd is not None for segment in index._segments.values()) <= 5
    index.sync()()
    assert files.count("sync") == 40
    write(index, [], [4 * segment for segment in range(1, 20, 2)])
    index.sync()()
    assert sum(segment.index_fd is not None for segment in index._segments.values()) <= 5


@pytest.fixture
def several(tmp_path, monkeypatch):
    """Five indexes, of which three segments may stay open."""
    monkeypatch.setattr(module, "_MAX_OPEN_OF_ALL", 3)
    monkeypatch.setattr(module, "_MAX_UNSYNCED_OF_ALL", 3)
    monkeypatch.setattr(QueueIndexV2, "open_of_all", set())
    files, found = HookedFiles(), []

    def make():
        while found:
            found.pop().abandon()
        for number in range(5):
            path = tmp_path / str(number)
            path.mkdir(exist_ok=True)
            found.append(
                QueueIndexV2(QueueIndexContext(options=None, directory=path, files=files, is_synced=True, segment_entries=4))
            )
        return files, found

    yield make
    for index in found:
        index.abandon()


def test_few_files_of_many_queues_stay_open(several):
    files, indexes = several()
    for index in indexes:
        write(index, [own(0), own(4)], [])
        assert len(QueueIndexV2.open_of_all) <= 3
    for index in indexes:
        index.sync()()
        assert positions(index) + positions(index, 4, 8) == [0, 4]
        assert len(QueueIndexV2.open_of_all) <= 3
    assert files.count("sync") == 20
    _, again = several()
    assert [positions(index) for index in again] == [[0]] * 5
    assert len(QueueIndexV2.open_of_all) <= 3


@pytest.mark.parametrize("opens", [False, True], ids=["closed", "index"])
def test_sync_that_failed_before_closing_is_repeated(opens, several):
    """The flush that confirms writes both files again, or fails."""
    files, indexes = several()
    write(indexes[0], [own(0), own(4)], [])
    files.before("sync", failing(), times=2)
    write(indexes[1], [own(0), own(4)], [])
    if opens:
        indexes[1].read(0, 4, terms=False)
    with pytest.raises(OSError, match="Input/output"):
        indexes[1].sync()()
    before = len(files.operations)
    indexes[1].sync()()
    names = [name for name, _, _ in files.operations[before:]]
    assert (names.count("pwrite"), names.count("sync")) == (4, 4)


def test_files_closed_while_their_sync_fails_are_written_again(opened):
    files = HookedFiles()
    index = opened(files=files, synced=True)
    write(index, [own(0)], [])
    run = index.sync()
    files.before("sync", lambda: (index.abandon(), failing()()))
    with pytest.raises(OSError, match="Input/output"):
        run()
    before = len(files.operations)
    index.sync()()
    assert [path for name, path, _ in files.operations[before:] if name == "sync"] == ["0.qs", "0.qi"]


def test_sync_without_descriptors_can_be_repeated(opened, monkeypatch):
    files, dup, given = RecordingFiles(), os.dup, []
    index = opened(files=files, synced=True)
    write(index, [own(0)], [])

    def dup_once(fd):
        if given:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        given.append(dup(fd))
        return given[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", dup_once)
        with pytest.raises(OSError, match="Too many open files"):
            index.sync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given[0])
    index.sync()()
    assert files.count("sync") == 2
