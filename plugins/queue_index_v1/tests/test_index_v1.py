"""Queue index v1: its bytes are RabbitMQ's, and what a crash leaves is read as it should be."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from functools import partial
from pathlib import Path

import attrs
import pytest

from msgstore.contract import StoreError
from msgstore.files import Files
from msgstore.testing.faults import CHANGES, OPENINGS, Crash, FailingFiles, RecordingFiles, StoppingFiles
from msgstore_queue_index_v1 import index as module
from msgstore_queue_index_v1.index import JOURNAL, QueueIndexV1
from msgstore_queues.contract import Entry, QueueIndexContext
from msgstore_queues.testing.queue_indexes import write
from msgstore_rabbitmq_source.queue_index import LiveEntry, live_entries
from rabbitmq_files import index_v1
from rabbitmq_files.messages import encode_message, read_message
from rabbitmq_files.names import queue_directory, read_segment_entries, vhost_directory
from support import HookedFiles, failing, one_at_a_time, slow

TERM = b"\x83h\x06 any bytes"
ID = b"i" * 16
CLEAN = Path(__file__).parents[3] / "tests/data/rabbitmq-3.10/clean"


@pytest.fixture
def short_journal(monkeypatch):
    """The journal moves to the segments when it has more than three entries."""
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", 3)


@pytest.fixture
def opened(tmp_path):
    """Open the index of the test, or one in another directory. The one before is abandoned, as at the end of a process."""

    def make(path=tmp_path, *, files=None, terms=None, synced=False, size=4, broker=False):
        context = QueueIndexContext(
            options=None, directory=path, files=files or Files(), terms=terms, is_synced=synced, segment_entries=size,
            is_for_broker=broker,
        )  # fmt: skip
        return QueueIndexV1(context)

    with one_at_a_time(make) as open_index:
        yield open_index


def own(position, *, persistent=True, term=TERM):
    return Entry(position, persistent, ID, 10, 0, term)


def shared(position, *, expiry=7):
    return Entry(position, True, bytes([position + 1]) * 16, 5000, expiry, None, is_shared=True)


def positions(index, start=0, stop=4):
    return [entry.position for entry in index.read(start, stop)]


def all_positions(index, stop=12):
    return [position for start in range(0, stop, 4) for position in positions(index, start, start + 4)]


def names(path):
    return sorted(one.name for one in path.iterdir())


def publish(number, entry, *, journal=False):
    encode = index_v1.encode_journal_publish if journal else index_v1.encode_publish
    body = index_v1.encode_body(entry.msg_id, entry.body_size, entry.term or b"", entry.expiry_us)
    return encode(number, body, is_persistent=entry.is_persistent)


def journal_mark(number, *, acked):
    return index_v1.encode_journal_mark(number, is_acknowledged=acked)


# -- bytes -------------------------------------------------------------------------------------------------------------------


def test_journal_has_publishes_marks_and_acknowledgements(opened, tmp_path):
    index = opened(broker=True)
    write(index, [own(0), shared(5)], [0])
    index.abandon()
    assert names(tmp_path) == [JOURNAL]
    assert (tmp_path / JOURNAL).read_bytes() == b"".join(
        [
            publish(0, own(0), journal=True), journal_mark(0, acked=False),
            publish(5, shared(5), journal=True), journal_mark(5, acked=False),
            journal_mark(0, acked=True),
        ]
    )  # fmt: skip


def test_long_journal_moves_to_segments(opened, tmp_path, short_journal):
    mark, before = index_v1.encode_mark, publish(0, own(0)) + index_v1.encode_mark(0) + publish(3, own(3))
    index = opened()
    write(index, [own(0), shared(1), own(3), own(5)], [1])
    assert names(tmp_path) == [JOURNAL]
    write(index, [own(6)], [0])
    assert (tmp_path / "0.idx").read_bytes() == before + mark(3)
    assert (tmp_path / "1.idx").read_bytes() == publish(1, own(5)) + mark(1)
    write(index, [own(7)], [6])
    write(index, [], [])
    assert (tmp_path / "0.idx").read_bytes() == before + mark(3) + mark(0)
    assert (tmp_path / "1.idx").read_bytes() == publish(1, own(5)) + mark(1) + publish(3, own(7)) + mark(3)
    assert (tmp_path / JOURNAL).read_bytes() == b""
    assert all_positions(index) == [3, 5, 7]


@pytest.mark.parametrize("moves", [False, True])
def test_rescue_of_a_broker_reads_the_same(moves, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", 3 if moves else 10**6)
    index = opened()
    for position in range(0, 11, 2):
        write(index, [own(position), shared(position + 1)], [])
        if position % 3:
            write(index, [], [position, position - 1])
    read = [entry for start in range(0, 12, 4) for entry in index.read(start, start + 4)]
    index.abandon()
    found = list(live_entries("", names(tmp_path), 4, lambda name: (tmp_path / name).read_bytes()))
    assert [(one.sequence, one.msg_id, one.body_size, one.expiry_us, one.is_persistent) for one in found] == [
        (entry.position, entry.msg_id, entry.body_size, entry.expiry_us, True) for entry in read
    ]
    for one, entry in zip(found, read, strict=True):
        assert isinstance(one, LiveEntry)
        data = (tmp_path / one.file).read_bytes()
        assert data[one.term_offset : one.term_offset + one.term_size] == (entry.term or b"")
    assert moves == ("0.idx" in names(tmp_path))


MANIFEST = json.loads((CLEAN / "manifest.json").read_text())


def place_of(queue):
    vhost = CLEAN / "msg_stores/vhosts" / vhost_directory(queue["vhost"].encode())
    return vhost / "queues" / queue_directory(queue["vhost"].encode(), queue["name"].encode())


V1 = [queue for queue in MANIFEST["queues"] if list(place_of(queue).glob("*.idx")) and queue["expected"]]


@pytest.mark.parametrize("queue", V1, ids=lambda queue: queue["name"])
def test_queue_of_a_broker_has_what_the_broker_delivered(queue, opened, tmp_path):
    copy = tmp_path / "queue"
    shutil.copytree(place_of(queue), copy)
    count = read_segment_entries((place_of(queue).parent.parent / ".config").read_bytes())
    index, expected = opened(copy, size=count), queue["expected"]
    assert index.recovered.count == len(expected)
    assert index.recovered.body_bytes == sum(one["size"] for one in expected)
    for _ in range(2):  # the second time with our terms, after further messages
        entries = index.read(0, count)[: len(expected)]
        assert [(entry.position, entry.body_size) for entry in entries] == [(one["seq"], one["size"]) for one in expected]
        for entry in entries:
            assert entry.is_shared or read_message(entry.term)[0].indexed_size in (None, entry.body_size)
        write(index, [own(index._next)], [])
        index = opened(copy, terms=index.close(), size=count)
    write(index, [], [one["seq"] for one in expected])
    index = opened(copy, size=count)
    assert index.recovered.count == 2


# -- reading, and opening again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 3, 100])
def test_entries_are_read_as_they_were_written(limit, opened, monkeypatch):
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", limit)
    index = opened()
    write(index, [own(0), shared(1)], [])
    write(index, [own(2, persistent=False), own(3, term=b"\x83h")], [0])
    wanted = [shared(1), own(2, persistent=False), own(3, term=b"\x83h")]
    assert index.read(0, 4) == wanted
    assert index.read(2, 3) == wanted[1:2]
    assert [entry.term for entry in index.read(0, 4, terms=False)] == [None] * 3
    assert list(index.shared()) == [b"\2" * 16]
    assert positions(index, 8, 12) == []
    assert index.segment(7) == (4, 8)


def test_transient_message_may_be_written_after_its_successors(opened):
    index = opened()
    write(index, [own(1)], [])
    write(index, [own(0, persistent=False)], [])
    assert positions(index) == [0, 1]


@pytest.mark.parametrize("limit", [3, 100])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_reopened_index_has_what_was_left(clean, limit, opened, monkeypatch):
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", limit)
    index = opened()
    write(index, [own(position) for position in range(7)], [])
    write(index, [], [0, 1, 2, 3, 5])
    terms = index.close()
    again = opened(terms=json.loads(json.dumps(terms)) if clean else None)
    assert attrs.astuple(again.recovered) == (7, 2, 4, None if clean else 20)
    assert all_positions(again) == [4, 6]
    write(again, [own(7)], [4])
    assert all_positions(again) == [6, 7]
    assert opened().recovered.count == 2


def test_clean_opening_reads_no_segment(opened, short_journal):
    index = opened()
    for position in range(20):
        write(index, [own(position)], [])
    files = RecordingFiles()
    again = opened(files=files, terms=index.close())
    assert [Path(name).name for what, name, _ in files.operations if what in OPENINGS] == [JOURNAL, JOURNAL]
    assert again.recovered.count == 20


def changed_nothing(path):
    pass


def changed_journal(path):
    (path / JOURNAL).write_bytes((path / JOURNAL).read_bytes() + index_v1.encode_journal_acks([2], is_checked=True))


def lost_segment(path):
    (path / "0.idx").unlink()


def new_segment(path):
    shutil.copy(path / "0.idx", path / "9.idx")


@pytest.mark.parametrize(("change", "count"), [(changed_nothing, 5), (changed_journal, 4), (lost_segment, 1), (new_segment, 9)])
def test_terms_of_other_files_are_not_used(change, count, opened, tmp_path, short_journal):
    index = opened()
    write(index, [own(position) for position in range(4)], [])
    write(index, [own(4)], [])
    terms = index.close()
    change(tmp_path)
    again = opened(terms=terms)
    assert (again.recovered.count, again.recovered.body_bytes is None) == (count, change is changed_nothing)


@pytest.mark.parametrize("limit", [0, 100])
def test_transient_entries_end_with_the_process(limit, opened, monkeypatch):
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", limit)
    index = opened()
    write(index, [own(0), own(1, persistent=False), own(2)], [])
    write(index, [own(3, persistent=False)], [])
    again = opened()
    assert (again.recovered.next_position, again.recovered.count) == (4, 2)
    assert positions(again) == [0, 2]


def test_next_position_is_above_acknowledged_ones(opened, short_journal):
    """A second publish with the number of an acknowledged one would be lost."""
    index = opened()
    write(index, [own(position) for position in range(4)], [])
    write(index, [own(4)], [2, 3])
    write(index, [own(5)], [4])
    write(index, [], [5])
    again = opened()
    assert (again.recovered.next_position, again.recovered.count) == (6, 2)


def test_index_without_messages_leaves_no_segment(opened, tmp_path, short_journal):
    index = opened()
    write(index, [own(position) for position in range(8)], [])
    write(index, [], [7, 6, 5, 0, 1, 2, 3, 4])
    write(index, [], [])
    assert names(tmp_path) == [JOURNAL]
    assert (tmp_path / JOURNAL).stat().st_size == 0
    assert index._segments == {}
    index.delete()
    assert names(tmp_path) == []


def test_number_of_entries_that_is_wrong_is_an_error(opened, short_journal):
    index = opened(size=8)
    write(index, [own(position) for position in range(8)], [])
    write(index, [], [])
    index.abandon()
    with pytest.raises(StoreError, match=r"0\.idx: has an entry 4, and segments have 4.*segment_entry_count"):
        opened()


def test_places_of_few_segments_are_in_memory(opened, short_journal):
    index = opened()
    for position in range(40):
        write(index, [own(position)], [])
    assert all_positions(index, 40) == list(range(40))
    assert sum(segment.places is not None for segment in index._segments.values()) == 2


# -- faults ------------------------------------------------------------------------------------------------------------------


def real(position):
    """A message that is surely one, also behind damage."""
    term = encode_message(vhost=b"/", exchange=b"", routing_keys=[b"q"], raw_properties=b"\0\0", body=b"x" * 10, msg_id=ID)
    return own(position, term=term)


@pytest.mark.parametrize("damage", ["cut", slow("zeros"), "hole"])
@pytest.mark.parametrize("limit", [2, 100])
def test_message_that_a_power_failure_has_cut_is_not_there(damage, limit, opened, tmp_path, monkeypatch):
    """``hole``: what was written after it has arrived. Messages before it were synced."""
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", limit)
    index = opened(synced=True)
    write(index, [real(0), real(1), real(2)], [])
    write(index, [real(3)], [0])
    synced = index._journal_size
    write(index, [real(4)], [3])
    write(index, [real(5), real(6), real(7), real(8)], [])
    index.abandon()
    data = (tmp_path / JOURNAL).read_bytes()[: index._journal_size]
    if limit == 2:  # the third call has moved what was before
        synced = 0
    for at in range(synced, len(data), 7):
        size = 60 if damage == "hole" else len(data)
        changed = data[:at] if damage == "cut" else data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
        copy = tmp_path / str(at)
        copy.mkdir()
        for path in tmp_path.glob("*.idx"):
            shutil.copy(path, copy)
        (copy / JOURNAL).write_bytes(changed)
        again = opened(copy)
        kept = all_positions(again)
        assert {1, 2} <= set(kept) <= set(range(1, 9)), at
        assert len(kept) == again.recovered.count
        if damage != "hole":
            assert kept == sorted(kept)
            assert kept[-1] - (kept[0] - 1) - len(kept) in (0, 1), "only the end is missing"
        write(again, [own(20)], [1])
        last_time = opened(copy)
        assert last_time.recovered.count == len(kept), at
        last_time.abandon()


STEPS = [
    ([own(0), own(1), own(2)], []),
    ([own(3), own(4)], []),
    ([own(position) for position in range(5, 10)], [0, 1, 2, 3, 6]),
    ([], []),
    ([own(10)], [5]),
]


def test_write_that_failed_anywhere_can_be_repeated(opened, tmp_path, short_journal):
    whole = RecordingFiles()
    index = run_steps(opened, make(tmp_path / "whole"), whole)
    total = whole.count(*CHANGES, *OPENINGS)
    assert total > 20
    index.abandon()
    for fail in range(total):
        path, files = make(tmp_path / str(fail)), FailingFiles(fail, error=errno.ENOSPC)
        index = run_steps(opened, path, files)
        assert files.failed
        assert all_positions(index) == [4, 7, 8, 9, 10], files.failed
        for terms in (index.close(), None):
            again = opened(path, terms=terms)
            assert all_positions(again) == [4, 7, 8, 9, 10], files.failed
            assert again.recovered.count == 5, files.failed
            again.abandon()
        for segment in path.glob("*.idx"):
            assert not index_v1.read_segment(segment.read_bytes()).damage


def run_steps(opened, path, files):
    index = retried(partial(opened, path, files=files, synced=True))
    for entries, acks in STEPS:
        retried(partial(write, index, entries, acks))
        retried(partial(lambda index: index.sync()(), index))
    return index


def retried(call):
    try:
        return call()
    except OSError:
        return call()


def make(path):
    path.mkdir()
    return path


def test_sync_is_of_the_journal_and_new_names(opened):
    files = RecordingFiles()
    index = opened(files=files, synced=True)
    index.sync()()
    before = files.count("sync_directory")
    write(index, [own(0), own(5)], [])
    index.sync()()
    assert (files.count("sync"), files.count("sync_directory")) == (1, before + 1)
    index.sync()()
    assert files.count("sync") == 1


def test_segments_are_synced_before_the_journal_is_cut(opened, tmp_path, short_journal):
    files = RecordingFiles()
    index = opened(files=files, synced=True)
    write(index, [own(position) for position in range(5)], [])
    files.operations.clear()
    write(index, [], [])
    index.abandon()
    assert [(what, Path(name).name) for what, name, _ in files.changes()] == [
        ("create", "0.idx"), ("pwrite", "0.idx"), ("sync", "0.idx"),
        ("create", "1.idx"), ("pwrite", "1.idx"), ("sync", "1.idx"),
        ("sync_directory", tmp_path.name), ("truncate", JOURNAL),
    ]  # fmt: skip


def test_segment_of_a_killed_process_is_synced_before_the_journal_is_cut(opened, tmp_path, short_journal):
    """It has the entries, so nothing is written; but that process may have ended before it synced them."""
    index = opened(synced=True)
    write(index, [own(0)], [])
    index.abandon()
    (tmp_path / "0.idx").write_bytes(publish(0, own(0)) + index_v1.encode_mark(0))
    files = RecordingFiles()
    opened(files=files, synced=True).abandon()
    assert [what for what, name, size in files.changes() if "idx" in name or size == 0][-2:] == ["sync_directory", "truncate"]
    assert ("sync", "0.idx", 0) in files.operations
    assert (tmp_path / "0.idx").stat().st_size == len(publish(0, own(0))) + 2


def test_failed_sync_is_not_trusted_the_second_time(opened, tmp_path):
    """The system may have dropped the bytes: they are written again, elsewhere."""
    index = opened(files=FailingFiles(), synced=True)
    write(index, [own(0)], [])
    index._files.fail, run = 0, index.sync()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        run()
    index.sync()()
    assert (tmp_path / "0.idx").read_bytes() == publish(0, own(0)) + index_v1.encode_mark(0)
    assert positions(index) == [0]


@pytest.mark.parametrize("stop", range(5))
def test_delete_that_was_cut_leaves_nothing_acknowledged(stop, opened, tmp_path, short_journal):
    files = StoppingFiles(100)
    index = opened(files=files, synced=True)
    write(index, [own(position) for position in range(10)], [])
    write(index, [own(10)], [0, 5, 9])
    assert names(tmp_path) == ["0.idx", "1.idx", "2.idx", JOURNAL]
    files._left = stop
    with pytest.raises(Crash):
        index.delete()
    again = opened(synced=True)
    assert set(all_positions(again)) <= {1, 2, 3, 4, 6, 7, 8, 10}
    write(again, [own(again.recovered.next_position)], [])
    assert again.recovered.next_position in all_positions(again)
    again.delete()
    assert names(tmp_path) == []


@pytest.fixture
def several(tmp_path, monkeypatch):
    """Five indexes, of which two journals may stay open."""
    monkeypatch.setattr(module, "_MAX_OPEN_OF_ALL", 2)
    monkeypatch.setattr(module, "_MAX_UNSYNCED_OF_ALL", 2)
    monkeypatch.setattr(QueueIndexV1, "open_of_all", set())
    files, found = HookedFiles(), []

    def make():
        while found:
            found.pop().abandon()
        for number in range(5):
            path = tmp_path / str(number)
            path.mkdir(exist_ok=True)
            found.append(QueueIndexV1(QueueIndexContext(options=None, directory=path, files=files, is_synced=True)))
        return files, found

    yield make
    for index in found:
        index.abandon()


def test_few_journals_of_many_queues_stay_open(several):
    """A file is synced before it is closed: a sync after that would not report an error of before."""
    files, indexes = several()
    for number, index in enumerate(indexes):
        write(index, [own(0)], [])
        assert len(QueueIndexV1.open_of_all) == min(number + 1, 2)
    assert files.count("sync") == 3
    for index in indexes:
        index.sync()()
        assert positions(index) == [0]
    assert files.count("sync") == 5
    assert len(QueueIndexV1.open_of_all) == 2
    _, again = several()
    assert [index.recovered.count for index in again] == [1] * 5
    assert len(QueueIndexV1.open_of_all) == 2


def test_sync_that_failed_before_closing_is_repeated(several, tmp_path):
    """The flush that confirms writes the entries again, elsewhere, or fails."""
    files, indexes = several()
    for index in indexes[:2]:
        write(index, [own(0)], [])
    files.before("sync", failing(), times=2)
    write(indexes[2], [own(0)], [])
    assert len(QueueIndexV1.open_of_all) == 2
    with pytest.raises(OSError, match="Input/output"):
        indexes[2].sync()
    indexes[2].sync()()
    assert (tmp_path / "2" / "0.idx").read_bytes() == publish(0, own(0)) + index_v1.encode_mark(0)
    assert ("sync", "0.idx", 0) in files.operations
    assert positions(indexes[2]) == [0]


def test_journal_closed_while_its_sync_fails_is_written_again(several, tmp_path):
    files, indexes = several()
    write(indexes[0], [own(0)], [])
    run = indexes[0].sync()
    files.before("sync", lambda: (indexes[0].abandon(), failing()()))
    with pytest.raises(OSError, match="Input/output"):
        run()
    indexes[0].sync()()
    assert (tmp_path / "0" / "0.idx").read_bytes() == publish(0, own(0)) + index_v1.encode_mark(0)


def test_publish_without_a_mark_gets_one(opened, tmp_path):
    """A broker before 3.10 wrote it when the message was delivered; a crash may have cut it off."""
    (tmp_path / "0.idx").write_bytes(publish(0, own(0)) + publish(1, own(1)) + index_v1.encode_mark(1))
    index = opened()
    assert (tmp_path / "0.idx").read_bytes().endswith(index_v1.encode_mark(1) + index_v1.encode_mark(0))
    assert positions(index) == [0, 1]


def test_segment_with_a_torn_end_loses_nothing_that_follows(opened, tmp_path, caplog):
    whole = publish(0, own(0)) + index_v1.encode_mark(0)
    (tmp_path / "0.idx").write_bytes(whole + publish(1, own(1))[:-3])
    index = opened()
    assert positions(index) == [0]
    assert f"0.idx: 44 bytes at {len(whole)}: bytes that are no entry, or one that is cut" in caplog.text
    assert (tmp_path / "0.idx").read_bytes() == whole


def test_segment_that_became_shorter_loses_its_end_only(opened, tmp_path, short_journal, caplog):
    index = opened()
    write(index, [own(position) for position in range(4)], [])
    write(index, [], [])
    assert positions(index) == [0, 1, 2, 3]
    with (tmp_path / "0.idx").open("r+b") as file:
        file.truncate(100)
    assert positions(index) == [0, 1]
    assert "0.idx: is shorter than it was; 2 messages cannot be read" in caplog.text


@pytest.mark.parametrize("behind", [1, 3])
def test_entries_behind_damage_are_not_used(behind, opened, tmp_path, caplog):
    """They were not confirmed. A copy is kept, if there are several."""
    whole = publish(0, own(0), journal=True) + journal_mark(0, acked=False)
    damaged = bytearray(publish(1, real(1), journal=True))
    damaged[24] = 0xFF  # its time
    rest = b"".join(publish(2 + number, real(2 + number), journal=True) for number in range(behind))
    data = whole + bytes(damaged) + rest
    (tmp_path / JOURNAL).write_bytes(data)
    assert sorted(index_v1.read_journal(data).publishes) == [0, *range(2, 2 + behind)]
    index = opened()
    assert attrs.astuple(index.recovered) == (1, 1, 0, 10)
    assert all_positions(index, 80) == [0]
    index.abandon()
    copies = [] if behind == 1 else [f"{JOURNAL}.damaged-1"]
    assert names(tmp_path) == ["0.idx", JOURNAL, *copies]
    if copies:
        assert (tmp_path / copies[0]).read_bytes() == data
        assert f"entries behind byte {len(whole)} are not used; a copy of the file is kept as {copies[0]}" in caplog.text


def test_entries_in_a_message_that_is_cut_are_not_used(opened, tmp_path):
    whole = publish(0, own(0), journal=True)
    inside = b"".join(publish(77 + number, shared(77), journal=True) for number in range(3))
    cut = publish(1, own(1, term=b"\x83h" + inside + bytes(99)), journal=True)[:-90]
    (tmp_path / JOURNAL).write_bytes(whole + cut)
    index = opened(broker=True)
    assert all_positions(index, 80) == [0]


def test_segment_that_is_damaged_in_the_middle_keeps_the_rest(opened, tmp_path, caplog):
    """It is written again: the next crash could not be told from the damage otherwise."""
    rows = [publish(number, real(number)) + index_v1.encode_mark(number) for number in range(5)]
    rows[1] = bytes(len(rows[1]))
    (tmp_path / "0.idx").write_bytes(b"".join(rows))
    index = opened(size=8)
    assert positions(index, 0, 8) == [0, 2, 3, 4]
    write(index, [real(5)], [2])
    index.abandon()
    assert (tmp_path / "0.idx").read_bytes() == b"".join(rows[:1] + rows[2:])
    assert (tmp_path / "0.idx.damaged-1").read_bytes() == b"".join(rows)
    assert "0.idx: was written again without the damage; a copy of the file is kept as 0.idx.damaged-1" in caplog.text
    index = opened(size=8)
    assert attrs.astuple(index.recovered)[:2] == (6, 4)
    assert positions(index, 0, 8) == [0, 3, 4, 5]


@pytest.mark.parametrize("kept", range(0, 400, 9))
def test_move_that_was_cut_is_repeated(kept, opened, tmp_path):
    """The segment has a part of what moved; the journal still has all of it."""
    index = opened(size=8)
    write(index, [real(number) for number in range(4)], [1])
    index.abandon()
    moved = b"".join(publish(number, real(number)) + index_v1.encode_mark(number) for number in (0, 2, 3))
    (tmp_path / "0.idx").write_bytes(moved[:kept])
    index = opened(size=8)
    assert positions(index, 0, 8) == [0, 2, 3]
    index.abandon()
    assert (tmp_path / "0.idx").read_bytes() == moved


def test_empty_queue_writes_nothing(opened):
    files = RecordingFiles()
    index = opened(files=files, synced=True)
    write(index, [], [])
    index.sync()()
    opened(files=files, terms=index.close(), synced=True).abandon()
    assert files.changes() == []


@pytest.mark.parametrize("seed", [*range(6), *map(slow, range(6, 40))])
def test_any_sectors_that_a_power_failure_leaves(seed, opened, tmp_path):
    """All that was synced is there; of what was written since each message and acknowledgement is, or is not."""
    chance, path, position = random.Random(seed), tmp_path / "queue", 300
    path.mkdir()
    index = opened(path, synced=True, size=1000)
    old = [own(at, term=chance.randbytes(chance.choice([30, 250, 1500]))) for at in range(position)]
    write(index, old, [])
    index.sync()()
    before, live, acked = (path / JOURNAL).read_bytes(), {entry.position: entry for entry in old}, set[int]()
    for _ in range(chance.randrange(1, 4)):
        new = [
            own(at, term=chance.randbytes(chance.choice([30, 250, 1500]))) if chance.random() < 0.8 else shared(at % 200)
            for at in range(position, position + chance.randrange(3))
        ]
        new = [attrs.evolve(entry, position=position + row) for row, entry in enumerate(new)]
        acks = chance.sample(sorted(live.keys() - acked), chance.choice([0, 1, 2, 100]))
        write(index, new, acks)
        position += len(new)
        live |= {entry.position: entry for entry in new}
        acked |= set(acks)
    index.abandon()
    after = (path / JOURNAL).read_bytes()
    before = before.ljust(len(after), b"\0")
    sectors = [at for at in range(0, len(after), 512) if before[at : at + 512] != after[at : at + 512]]
    assert sectors or not acked
    for number in range(12):
        content = bytearray(before)
        for at in chance.sample(sectors, chance.randrange(len(sectors) + 1)):
            content[at : at + 512] = after[at : at + 512]
        read = index_v1.read_journal(bytes(content))
        copy = tmp_path / str(number)
        copy.mkdir()
        (copy / JOURNAL).write_bytes(content)
        again = opened(copy, size=1000)
        found = {entry.position: entry for entry in again.read(0, 1000)}
        again.abandon()
        assert found.keys() == read.publishes.keys() - read.acknowledged, "other readers find the same"
        assert set(range(300)) - acked <= found.keys() <= live.keys()
        for at, entry in found.items():
            assert attrs.evolve(entry, msg_id=live[at].msg_id) == live[at]


def test_bytes_of_a_write_that_failed_are_cut(opened):
    """Otherwise, a power failure might leave a part of them in the next write."""
    files = FailingFiles()
    index = opened(files=files, synced=True)
    write(index, [own(0)], [])
    end, files.fail = index._journal_size, 0
    with pytest.raises(OSError, match="Input/output"):
        write(index, [own(1)], [])
    write(index, [own(1)], [])
    index.abandon()
    assert [name for name, path, _ in files.operations if path == JOURNAL][-2:] == ["allocate", "pwrite"]
    assert ("truncate", JOURNAL, end) in files.operations
    assert positions(opened()) == [0, 1]


def test_what_a_power_failure_has_left_is_not_under_the_next_journal(opened, tmp_path):
    index = opened()
    write(index, [own(0), own(1)], [])
    index.abandon()
    content = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(bytes(20) + content[20:])
    assert positions(opened()) == []
    assert (tmp_path / JOURNAL).read_bytes() == b""


class FullDisk(Files):
    """Has no place for zeros, but lengthens the file before it says so."""

    def allocate(self, fd, size):
        self.truncate(fd, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_without_place_for_zeros_the_journal_is_appended_to(opened, tmp_path):
    index = opened(files=FullDisk(), synced=True)
    write(index, [own(0)], [])
    write(index, [own(1)], [0])
    index.abandon()
    assert (tmp_path / JOURNAL).stat().st_size == index._journal_size
    assert positions(opened()) == [1]


def test_journal_for_a_broker_has_no_checksums_and_no_zeros(opened, tmp_path):
    content = {}
    for broker in (True, False):
        path = tmp_path / str(broker)
        path.mkdir()
        index = opened(path, synced=True, broker=broker)
        write(index, [own(0)], [])
        index.abandon()
        content[broker] = (path / JOURNAL).read_bytes()
    assert content[True] == index_v1.encode_journal_message(0, ID, 10, TERM, 0, is_persistent=True)
    assert content[False].startswith(index_v1.CHECKED_JOURNAL + content[True][:-8])
    assert set(content[False][len(content[True]) + 8 :]) == {0}


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("broker", [True, False])
def test_journal_begins_anew_if_the_layout_is_another(broker, is_clean, opened, tmp_path):
    index = opened(synced=True, broker=not broker)
    write(index, [own(0), own(1), shared(2)], [])
    write(index, [], [1])
    terms = index.close() if is_clean else index.abandon()
    again = opened(terms=terms, synced=True, broker=broker)
    assert (tmp_path / JOURNAL).read_bytes() == b""
    write(again, [own(3)], [0])
    assert positions(again) == [2, 3]
    again.abandon()
    assert index_v1.is_checked((tmp_path / JOURNAL).read_bytes()) == (not broker)
    assert positions(opened(broker=broker)) == [2, 3]


def test_journals_that_are_not_synced_wait_for_the_flush(several, monkeypatch):
    """A sync in a write would hold up whoever uses the queue."""
    monkeypatch.setattr(module, "_MAX_UNSYNCED_OF_ALL", 5)
    files, indexes = several()
    for index in indexes:
        write(index, [own(0)], [])
    assert (files.count("sync"), len(QueueIndexV1.open_of_all)) == (0, 5)
    for index in indexes:
        index.sync()()
    assert (files.count("sync"), len(QueueIndexV1.open_of_all)) == (5, 2)
