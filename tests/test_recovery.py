"""Dirty starts: reference counts are exact, a rebuild that is stopped begins again, and it says how far it is."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import weakref

import attrs
import pytest

import msgstore
from msgstore.engine.open import recovery as recovery_module
from msgstore.testing.faults import Crash, RecordingFiles
from support import counts, open_with, unchanged

ONE, THREE, GONE, LAST = (bytes([n]) * 16 for n in (1, 3, 7, 9))


def body(msg_id: bytes) -> bytes:
    return b"\x83m\0\0\0\x10" + msg_id


def ids(*numbers: int, first: int = 0) -> list[bytes]:
    """Ten ids, or fewer, of each segment."""
    return [bytes([number, n]) * 8 for number in numbers for n in range(first, 10)]


def write(store, messages) -> None:
    store.client().write_many((msg_id, body(msg_id)) for msg_id in messages)


def segment_files(path):
    return sorted(path.glob("[0-9]*.*"), key=lambda file: int(file.stem))


def fan_out(path, keys):
    """One reference, three, none left, and one in the segment that is being written; killed."""
    store = open_with(path, **keys, sync_interval="1h")
    write(store, (ONE, THREE, GONE))
    write(store, [THREE])  # before the first one is on disk
    store.flush()
    write(store, [THREE])  # and behind it
    store.client().remove([GONE])
    store.roll()
    write(store, [LAST])
    store.flush()
    store.abandon()


def test_counts_after_dirty_stop_are_exact(cell, tmp_path):
    fan_out(tmp_path, cell.keys)
    exact = {ONE: 1, THREE: 3, LAST: 1}
    with open_with(tmp_path, **cell.keys, refcounts=None if cell.index == "lmdb" else exact.items()) as store:
        assert store.stats().recovery.how == ("tail" if cell.index == "lmdb" else "rebuild")
        assert counts(store) == exact
        client = store.client()
        client.remove([THREE, THREE])
        assert client.read(THREE) == body(THREE)
        client.remove([THREE])
        with pytest.raises(msgstore.MessageNotFound):
            client.read(THREE)


def lose_index(cell, path) -> None:
    if cell.index == "lmdb":  # its counts survive; unless it is lost
        shutil.rmtree(path / "msgstore-lmdb")


def test_rebuild_without_counts_keeps_messages_once(cell, tmp_path):
    """An index that is not persistent keeps messages, not how often."""
    fan_out(tmp_path, cell.keys)
    lose_index(cell, tmp_path)
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {ONE: 1, THREE: 1, GONE: 1, LAST: 1}


def test_given_counts_decide_a_rebuild(cell, tmp_path):
    """Sums of deltas; what they do not name, or name without references, is garbage; what no segment holds is missing."""
    fan_out(tmp_path, cell.keys)
    for file in (tmp_path / "msgstore-lmdb").glob("*"):
        file.unlink()
    absent = bytes([77]) * 16
    deltas = [(THREE, 2), (THREE, 2), (THREE, -1), (ONE, 1), (ONE, -1), (LAST, 5), (absent, 1)]
    with open_with(tmp_path, **cell.keys, refcounts=deltas) as store:
        stats = store.stats()
        assert counts(store) == {THREE: 3, LAST: 5}
        assert (stats.recovery.entered, stats.recovery.garbage, stats.recovery.missing) == (2, 2, 1)
        assert [segment.live_count for segment in store.segments()] == [1, 1]
        assert stats.live_bytes == sum(entry.size for entry in store.entries())


LIVE = ids(0, 1, 3)


@pytest.fixture
def many_segments(cell, tmp_path):
    """The keys of a store of five segments; in the third and the fifth there is a copy of what is in the second."""
    store = open_with(tmp_path, **cell.keys, sync_interval="1h")
    for number in range(4):
        write(store, ids(number))
        store.roll()
    store.abandon()
    (second,) = tmp_path.glob("1.*")
    for number in (4, 2):
        shutil.copy(second, second.with_stem(str(number)))
    return cell.keys


def given(count: int) -> dict[str, object]:
    return {"refcounts": dict.fromkeys(LIVE, count).items()}


def test_copy_in_highest_segment_wins(many_segments, tmp_path):
    with open_with(tmp_path, **many_segments, **given(1)) as store:
        assert store.stats().recovery.how == "rebuild"
        assert set(counts(store)) == set(LIVE)
        assert [segment.live_count for segment in store.segments()] == [10, 0, 0, 10, 10]
        assert store.stats().recovery.garbage == 20
        assert all(store.client().read(msg_id) == body(msg_id) for msg_id in LIVE)


@pytest.mark.parametrize("after", [False, True])
def test_killed_rebuild_begins_again(cell, many_segments, tmp_path, monkeypatch, after):
    """Before and behind each commit of it: what such a commit left is not taken for an index."""
    module = __import__(f"msgstore_{cell.index}_index.index", fromlist=["index"])
    kind = getattr(module, {"ets": "EtsIndex", "lmdb": "LmdbIndex"}[cell.index])
    commit, close, left = kind.commit, kind.close, 0

    def stop(self):
        nonlocal left
        left -= 1
        if left >= 0 or after:
            commit(self)
        if left < 0:
            raise Crash

    def stop_saving(self, state):
        if left < 0 and state is not None:
            raise Crash
        close(self, state)

    for kill_at in range(20):
        left = kill_at
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            patch.setattr(kind, "commit", stop)
            patch.setattr(kind, "close", stop_saving)
            open_with(tmp_path, **many_segments, **given(3)).abandon()
            break
        if cell.index == "lmdb" and kill_at == 5 and after:
            break  # the last commit was behind us: the index is complete
    else:
        pytest.fail("there is always one more commit")
    assert kill_at >= 5
    with open_with(tmp_path, **many_segments, **given(3)) as store:
        assert store.stats().recovery.how == ("rebuild" if cell.index == "ets" else "tail")
        assert counts(store) == dict.fromkeys(LIVE, 3)


def test_progress_of_rebuild_ends_at_total_bytes(cell, many_segments, tmp_path):
    total = sum(file.stat().st_size for file in segment_files(tmp_path))
    seen = []
    keys = many_segments | {"progress": lambda *now: seen.append(now)}
    msgstore.open_store(tmp_path, **keys, **given(1)).close()
    if cell.index == "lmdb":
        assert seen.pop(0)[0] == 0  # the changed segment was looked at first, and did not agree
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (len(seen), seen[0], seen[-1]) == (6, (0, total), (total, total))
    seen.clear()
    msgstore.open_store(tmp_path, **keys).close()
    assert seen == []  # nothing was read


def test_progress_callback_raising_stops_opening_unharmed(many_segments, tmp_path):
    def cancel(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        msgstore.open_store(tmp_path, **many_segments, progress=cancel)
    with open_with(tmp_path, **many_segments) as store:
        assert set(counts(store)) == set(LIVE)


@pytest.mark.slow
def test_rebuild_holds_one_scan_in_memory(many_segments, tmp_path, monkeypatch):
    """What a scan returned is gone before the next but one begins."""
    scans, most = weakref.WeakSet(), 0
    original = recovery_module.RecoveryRun.scan

    @attrs.define(eq=False, weakref_slot=True)
    class Watched:
        scan: object

        def __getattr__(self, name):
            return getattr(self.scan, name)

    def scan(*arguments):
        nonlocal most
        gc.collect()
        most = max(most, len(scans))
        watched = Watched(original(*arguments))
        scans.add(watched)
        return watched

    monkeypatch.setattr(recovery_module.RecoveryRun, "scan", scan)
    with open_with(tmp_path, **many_segments, **given(1)) as store:
        assert set(counts(store)) == set(LIVE)
    assert most == 1


def test_complete_persistent_index_reads_no_segment(tmp_path):
    keys = {"index": "lmdb"}
    fan_out(tmp_path, keys)
    files = RecordingFiles()
    store = open_with(tmp_path, files, **keys)
    assert store.stats().recovery.how == "tail"
    assert not [path for name, path, _ in files.operations if name == "pread" and path[0].isdigit()]
    store.abandon()


def three_segments(path, keys, *, killed=False):
    """Ten messages in each, of which the first is removed and the others have two references; one copy is dead. Return the
    counts."""
    store = open_with(path, **keys, sync_interval="1h", gc="never")
    for number in range(3):
        write(store, ids(number))
        store.flush()
        write(store, ids(number, first=1))
        store.client().remove(ids(number)[:1])
        store.roll()
    store.abandon() if killed else store.close()
    return dict.fromkeys(ids(0, 1, 2, first=1), 2)


def lose(path, number, how="missing"):
    """A segment goes, or its last record; or all but a piece of it. Return its name and the lost ids."""
    (file,) = path.glob(f"{number}.*")
    with open_as_remembered(path) as store:
        offset = max(entry.offset for entry in store.entries() if entry.number == number)
    if how == "missing":
        file.unlink()
    else:
        os.truncate(file, offset + (20 if how == "torn" else 0))
    return file.name, set(ids(number, first=1 if how == "missing" else 9))


def open_as_remembered(path):
    return msgstore.open_store(path, mode="r", index="lmdb" if (path / "msgstore-lmdb").exists() else "ets")


@pytest.mark.parametrize("how", ["missing", "shortened", "torn"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_lost_segment_is_reported_other_counts_stay(cell, tmp_path, caplog, how, number):
    """What is left is as it was; nothing that was removed comes back, and what is gone is named."""
    caplog.set_level(logging.WARNING)
    expected = three_segments(tmp_path, cell.keys, killed=cell.index == "lmdb" and number == 1)
    name, lost = lose(tmp_path, number, how)
    left = {msg_id: count for msg_id, count in expected.items() if msg_id not in lost}
    for mode in ("r", "r", "rw"):
        caplog.clear()
        with unchanged(tmp_path, but=["data.mdb", "lock.mdb"]) if mode == "r" else contextlib.nullcontext():
            store = msgstore.open_store(tmp_path, **cell.keys, mode=mode, gc="never")
            stats, recovery = store.stats(), store.stats().recovery
            assert counts(store) == left
            assert all(store.client().read(i) == body(i) for i in left)
            assert (recovery.how, recovery.counts_are_kept, recovery.missing) == ("rebuild", False, len(lost))
            assert recovery.first_missing in lost
            assert recovery.damaged[-1].startswith(f"{name}: {'is missing' if how == 'missing' else 'has '}")
            assert recovery.damaged[-1].endswith("; the index has 9 live messages in it")
            assert f"{tmp_path / name}: " in caplog.text
            assert stats.counters.corruptions
            assert stats.messages == sum(segment.live_count for segment in store.segments()) == len(left)
            assert stats.live_bytes == sum(entry.size for entry in store.entries())
            if how == "torn":
                assert [segment.quarantined for segment in store.segments()] == [n == number for n in range(3)]
            if mode == "r":
                store.abandon()
    write(store, [LAST])
    store.close()
    with open_with(tmp_path, **cell.keys) as store:
        assert (store.stats().recovery.how, store.stats().recovery.damaged) == ("trust", [])
        assert counts(store) == left | {LAST: 1}


def test_recovery_after_lost_segment_uses_dead_copy(cell, tmp_path):
    """In a segment that the index knows, where it was dead."""
    keys = cell.keys | {"sync_interval": "1h", "gc": "never"}
    with open_with(tmp_path, **keys) as store:
        write(store, (ONE, LAST))
        store.roll()
        store.client().remove([ONE])
    with open_with(tmp_path, **keys) as store:  # which does not revive it
        store.roll()
        for _ in range(3):
            write(store, [ONE])
            store.flush()
        store.roll()
        assert [entry.number for entry in store.entries()] == [0, 1]
    next(tmp_path.glob("1.*")).unlink()
    with open_with(tmp_path, **cell.keys) as store:
        recovery = store.stats().recovery
        assert counts(store) == {ONE: 3, LAST: 1}
        assert store.client().read(ONE) == body(ONE)
        assert (recovery.missing, recovery.first_missing) == (0, None)
        assert recovery.damaged[-1].endswith("is missing; the index has 1 live messages in it")
        assert [segment.live_count for segment in store.segments()] == [2]


def test_given_counts_beat_index_with_lost_segments(cell, tmp_path):
    expected = three_segments(tmp_path, cell.keys)
    name, lost = lose(tmp_path, 1)
    with open_with(tmp_path, **cell.keys, refcounts=dict.fromkeys(expected, 5).items()) as store:
        assert counts(store) == dict.fromkeys(expected.keys() - lost, 5)
        assert store.stats().recovery.missing == 9
        (damaged,) = store.stats().recovery.damaged
        assert damaged.startswith(f"{name}: is missing")


def test_opening_stopped_late_keeps_counts(cell, tmp_path, monkeypatch):
    """The index on disk knows what it knew until the store is open."""
    expected = three_segments(tmp_path, cell.keys)
    _, lost = lose(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("msgstore.engine.open.startup._resume", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            open_with(tmp_path, **cell.keys)
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {i: n for i, n in expected.items() if i not in lost}


def test_loss_of_every_segment_is_reported(cell, tmp_path, caplog):
    three_segments(tmp_path, cell.keys)
    names = [file.name for file in segment_files(tmp_path)]
    for name in names:
        (tmp_path / name).unlink()
    with open_as_remembered(tmp_path) as store:
        recovery = store.stats().recovery
        assert recovery.damaged == [f"{name}: is missing; the index has 9 live messages in it" for name in names]
        assert (recovery.how, recovery.missing, store.stats().messages) == ("rebuild", 27, 0)
    assert "the index has 27 messages, and no segment is there: they are lost" in caplog.text


def test_segment_deleted_by_broker_is_not_lost(cell, tmp_path):
    """It took ``clean.dot`` away, as RabbitMQ does when it starts."""
    three_segments(tmp_path, cell.keys)
    lose(tmp_path, 1)
    (tmp_path / "clean.dot").unlink()
    with open_with(tmp_path, **cell.keys) as store:
        assert (store.stats().recovery.how, store.stats().recovery.damaged) == ("reconciled", [])


def append(path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_distrusted_counts_log_the_reason(cell, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    three_segments(tmp_path, cell.keys)
    grown = segment_files(tmp_path)[1]
    append(grown, b"more")
    open_with(tmp_path, **cell.keys).close()
    assert f"the saved counts do not fit the directory: {grown.name} has grown since it was sealed" in caplog.text


def test_records_behind_the_last_commit_keep_older_counts(tmp_path):
    """An index that was committed knows ONE twice; behind that ONE was removed and written anew, and THREE was written."""
    keys = {"index": "lmdb", "gc_interval": 0}
    store = open_with(tmp_path, **keys, sync_interval="1h")
    write(store, (ONE, ONE))
    store.roll()
    store._accounting.commit = lambda: None  # the process is killed before the next one
    store.client().remove([ONE, ONE])
    write(store, (ONE, THREE))
    store.flush()
    store.abandon()
    with open_with(tmp_path, **keys) as again:
        assert again.stats().recovery.how == "tail"
        assert counts(again) == {ONE: 2, THREE: 1}
        assert sum(segment.live_count for segment in again.segments()) == 2, "what was found is not counted as live"


def test_segment_with_torn_end_takes_no_records(cell, tmp_path):
    """Recovery leaves the torn bytes where they are; a record after them would be lost to every scan."""
    fan_out(tmp_path, cell.keys)
    newest = segment_files(tmp_path)[-1]
    append(newest, b"\x03\x00")
    size = newest.stat().st_size
    with open_with(tmp_path, **cell.keys) as store:
        write(store, [GONE])
        store.flush()
        assert newest.stat().st_size == size
        assert store.client().read(GONE) == body(GONE)
