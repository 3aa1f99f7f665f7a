"""Dirty starts: reference counts are exact, a rebuild that is stopped begins again, and it says how far it is."""

from __future__ import annotations

import gc
import logging
import shutil
import weakref

import attrs
import pytest

import msgstore
from msgstore.engine.open import recovery as recovery_module
from msgstore.testing.faults import Crash, RecordingFiles
from support import counts, open_with

ONE, THREE, GONE, LAST = (bytes([n]) * 16 for n in (1, 3, 7, 9))


def body(msg_id: bytes) -> bytes:
    return b"\x83m\0\0\0\x10" + msg_id


def fan_out(path, keys):
    """One reference, three, none left, and one in the segment that is being written; killed."""
    store = open_with(path, **keys, sync_interval="1h")
    client, other = store.client(), store.client()
    for msg_id in (ONE, THREE, GONE):
        client.write(msg_id, body(msg_id))
    other.write(THREE, body(THREE))  # before the first one is on disk
    store.flush()
    store.client().write(THREE, body(THREE))  # and behind it
    client.remove([GONE])
    store.roll()
    client.write(LAST, body(LAST))
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


def test_rebuild_without_counts_keeps_messages_once(cell, tmp_path):
    """An index that is not persistent keeps messages, not how often."""
    fan_out(tmp_path, cell.keys)
    if cell.index == "lmdb":  # its counts survive; unless it is lost
        shutil.rmtree(tmp_path / "msgstore-lmdb")
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {ONE: 1, THREE: 1, GONE: 1, LAST: 1}


def test_given_counts_decide_a_rebuild(cell, tmp_path):
    """Sums of deltas; what they do not name, or name without references, is garbage; what no segment holds is missing."""
    fan_out(tmp_path, cell.keys)
    if cell.index == "lmdb":
        for file in (tmp_path / "msgstore-lmdb").iterdir():
            file.unlink()
    absent = bytes([77]) * 16
    deltas = [(THREE, 2), (THREE, 2), (THREE, -1), (ONE, 1), (ONE, -1), (LAST, 5), (absent, 1)]
    with open_with(tmp_path, **cell.keys, refcounts=deltas) as store:
        stats = store.stats()
        assert counts(store) == {THREE: 3, LAST: 5}
        assert (stats.recovery.entered, stats.recovery.garbage, stats.recovery.missing) == (2, 2, 1)
        assert [segment.live_count for segment in store.segments()] == [1, 1]
        assert stats.live_bytes == sum(entry.size for entry in store.entries())


def many_segments(path, keys):
    """Five segments; in the third and the fifth there is a copy of what is in the second."""
    store = open_with(path, **keys, sync_interval="1h")
    for number in range(4):
        store.client().write_many((i, body(i)) for i in (bytes([number, n]) * 8 for n in range(10)))
        store.roll()
    store.abandon()
    (second,) = path.glob("1.*")
    shutil.copy(second, path / f"4{second.suffix}")
    shutil.copy(second, path / f"2{second.suffix}")
    return {bytes([number, n]) * 8 for number in (0, 1, 3) for n in range(10)}


def test_copy_in_highest_segment_wins(cell, tmp_path):
    live = many_segments(tmp_path, cell.keys)
    with open_with(tmp_path, **cell.keys, refcounts=dict.fromkeys(live, 1).items()) as store:
        assert store.stats().recovery.how == "rebuild"
        assert set(counts(store)) == live
        assert [segment.live_count for segment in store.segments()] == [10, 0, 0, 10, 10]
        assert store.stats().recovery.garbage == 20
        assert all(store.client().read(msg_id) == body(msg_id) for msg_id in live)


@pytest.mark.parametrize("after", [False, True])
def test_killed_rebuild_begins_again(cell, tmp_path, monkeypatch, after):
    """Before and behind each commit of it: what such a commit left is not taken for an index."""
    live = many_segments(tmp_path, cell.keys)
    exact = dict.fromkeys(live, 3)
    index = __import__(f"msgstore_{cell.index}_index.index", fromlist=["index"])
    kind = getattr(index, {"ets": "EtsIndex", "lmdb": "LmdbIndex"}[cell.index])
    commit, close, left = kind.commit, kind.close, 0

    def stop(self):
        nonlocal left
        left -= 1
        if left < 0 and not after:
            raise Crash
        commit(self)
        if left < 0:
            raise Crash

    def stop_saving(self, state):
        if left < 0 and state is not None:
            raise Crash
        close(self, state)

    for kill_at in range(20):
        left = kill_at
        with monkeypatch.context() as patch:
            patch.setattr(kind, "commit", stop)
            patch.setattr(kind, "close", stop_saving)
            try:
                open_with(tmp_path, **cell.keys, refcounts=exact.items()).abandon()
                break
            except Crash:
                pass
        if cell.index == "lmdb" and kill_at == 5 and after:
            break  # the last commit was behind us: the index is complete
    else:
        pytest.fail("there is always one more commit")
    assert kill_at >= 5
    with open_with(tmp_path, **cell.keys, refcounts=exact.items()) as store:
        assert store.stats().recovery.how == ("rebuild" if cell.index == "ets" else "tail")
        assert counts(store) == exact


def test_progress_of_rebuild_ends_at_total_bytes(cell, tmp_path):
    many_segments(tmp_path, cell.keys)
    total = sum(file.stat().st_size for file in tmp_path.iterdir() if file.name[0].isdigit())
    seen = []
    once = [(bytes([number, n]) * 8, 1) for number in (0, 1, 3) for n in range(10)]
    msgstore.open_store(tmp_path, **cell.keys, progress=lambda *now: seen.append(now), refcounts=once).close()
    if cell.index == "lmdb":
        assert seen.pop(0)[0] == 0  # the changed segment was looked at first, and did not agree
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert len(seen) == 6
    seen.clear()
    msgstore.open_store(tmp_path, **cell.keys, progress=lambda *now: seen.append(now)).close()
    assert seen == []  # nothing was read


def test_progress_callback_raising_stops_opening_unharmed(cell, tmp_path):
    live = many_segments(tmp_path, cell.keys)

    def cancel(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        msgstore.open_store(tmp_path, **cell.keys, progress=cancel)
    with open_with(tmp_path, **cell.keys) as store:
        assert set(counts(store)) == live


@pytest.mark.slow
def test_rebuild_holds_one_scan_in_memory(cell, tmp_path, monkeypatch):
    """What a scan returned is gone before the next but one begins."""
    live = many_segments(tmp_path, cell.keys)
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
    with open_with(tmp_path, **cell.keys, refcounts=dict.fromkeys(live, 1).items()) as store:
        assert set(counts(store)) == live
    assert most == 1


def test_complete_persistent_index_reads_no_segment(cell, tmp_path):
    if cell.index != "lmdb":
        return  # it has nothing that could know
    fan_out(tmp_path, cell.keys)
    files = RecordingFiles()
    store = open_with(tmp_path, files, **cell.keys)
    assert store.stats().recovery.how == "tail"
    assert not [path for name, path, _ in files.operations if name == "pread" and path[0].isdigit()]
    store.abandon()


def three_segments(path, keys, *, killed):
    """Ten messages in each, of which the first is removed and the others have two references; one copy is dead."""
    store = open_with(path, **keys, sync_interval="1h", gc="never")
    for number in range(3):
        ids = [bytes([number, n]) * 8 for n in range(10)]
        store.client().write_many((i, body(i)) for i in ids)
        store.flush()
        store.client().write_many((i, body(i)) for i in ids[1:])
        store.client().remove(ids[:1])
        store.roll()
    store.abandon() if killed else store.close()
    return {bytes([number, n]) * 8: 2 for number in range(3) for n in range(1, 10)}


def lose(path, number, how):
    """A segment goes, or its last record; or all but a piece of it."""
    (file,) = path.glob(f"{number}.*")
    with open_as_remembered(path) as store:
        offset = max(entry.offset for entry in store.entries() if entry.number == number)
    if how == "missing":
        file.unlink()
    else:
        with file.open("r+b") as stream:
            stream.truncate(offset + (20 if how == "torn" else 0))
    return file.name


def open_as_remembered(path):
    return msgstore.open_store(path, mode="r", index="lmdb" if (path / "msgstore-lmdb").exists() else "ets")


def lost_of(number, how):
    return {bytes([number, n]) * 8 for n in range(1, 10) if how == "missing" or n == 9}


@pytest.mark.parametrize("how", ["missing", "shortened", "torn"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_lost_segment_is_reported_other_counts_stay(cell, tmp_path, caplog, how, number):
    """What is left is as it was; nothing that was removed comes back, and what is gone is named."""
    caplog.set_level(logging.WARNING)
    expected = three_segments(tmp_path, cell.keys, killed=cell.index == "lmdb" and number == 1)
    name = lose(tmp_path, number, how)
    lost = lost_of(number, how)
    for mode in ("r", "r", "rw"):
        caplog.clear()
        before = snapshot(tmp_path)
        store = msgstore.open_store(tmp_path, **cell.keys, mode=mode, gc="never")
        stats = store.stats()
        assert counts(store) == {i: n for i, n in expected.items() if i not in lost}
        assert all(store.client().read(i) == body(i) for i in expected.keys() - lost)
        assert stats.recovery.how == "rebuild"
        assert not stats.recovery.counts_are_kept
        assert stats.recovery.missing == len(lost)
        assert stats.recovery.first_missing in lost
        line = stats.recovery.damaged[-1]
        assert line.startswith(f"{name}: {'is missing' if how == 'missing' else 'has '}")
        assert line.endswith("; the index has 9 live messages in it")
        assert f"{tmp_path / name}: " in caplog.text
        assert stats.counters.corruptions
        assert stats.messages == sum(segment.live_count for segment in store.segments()) == len(expected) - len(lost)
        assert stats.live_bytes == sum(entry.size for entry in store.entries())
        if how == "torn":
            assert [segment.quarantined for segment in store.segments()] == [n == number for n in range(3)]
        if mode == "r":
            store.abandon()
            assert {file: known for file, known in snapshot(tmp_path).items() if "lmdb" not in file} == {
                file: known for file, known in before.items() if "lmdb" not in file
            }
    store.client().write(LAST, body(LAST))
    store.close()
    with open_with(tmp_path, **cell.keys) as store:
        assert (store.stats().recovery.how, store.stats().recovery.damaged) == ("trust", [])
        assert counts(store) == {i: n for i, n in expected.items() if i not in lost} | {LAST: 1}


def snapshot(path):
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}


def test_recovery_after_lost_segment_uses_dead_copy(cell, tmp_path):
    """In a segment that the index knows, where it was dead."""
    store = open_with(tmp_path, **cell.keys, sync_interval="1h", gc="never")
    store.client().write_many([(ONE, body(ONE)), (LAST, body(LAST))])
    store.roll()
    store.client().remove([ONE])
    store.close()
    store = open_with(tmp_path, **cell.keys, sync_interval="1h", gc="never")  # which does not revive it
    store.roll()
    for _ in range(3):
        store.client().write(ONE, body(ONE))
        store.flush()
    store.roll()
    assert [entry.number for entry in store.entries()] == [0, 1]
    store.close()
    next(tmp_path.glob("1.*")).unlink()
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {ONE: 3, LAST: 1}
        assert store.client().read(ONE) == body(ONE)
        assert (store.stats().recovery.missing, store.stats().recovery.first_missing) == (0, None)
        assert store.stats().recovery.damaged[-1].endswith("is missing; the index has 1 live messages in it")
        assert [segment.live_count for segment in store.segments()] == [2]


def test_given_counts_beat_index_with_lost_segments(cell, tmp_path):
    expected = three_segments(tmp_path, cell.keys, killed=False)
    name = lose(tmp_path, 1, "missing")
    given = dict.fromkeys(expected, 5)
    with open_with(tmp_path, **cell.keys, refcounts=given.items()) as store:
        assert counts(store) == {i: 5 for i in expected if i not in lost_of(1, "missing")}
        assert (store.stats().recovery.missing, len(store.stats().recovery.damaged)) == (9, 1)
        assert store.stats().recovery.damaged[0].startswith(f"{name}: is missing")


def test_opening_stopped_late_keeps_counts(cell, tmp_path, monkeypatch):
    """The index on disk knows what it knew until the store is open."""
    expected = three_segments(tmp_path, cell.keys, killed=False)
    lose(tmp_path, 1, "missing")
    with monkeypatch.context() as patch:
        patch.setattr("msgstore.engine.open.startup._resume", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            open_with(tmp_path, **cell.keys)
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {i: n for i, n in expected.items() if i not in lost_of(1, "missing")}


def test_loss_of_every_segment_is_reported(cell, tmp_path, caplog):
    three_segments(tmp_path, cell.keys, killed=False)
    names = sorted(file.name for file in tmp_path.glob("[0-9].*"))
    for name in names:
        (tmp_path / name).unlink()
    with open_as_remembered(tmp_path) as store:
        recovery = store.stats().recovery
        assert recovery.damaged == [f"{name}: is missing; the index has 9 live messages in it" for name in names]
        assert (recovery.how, recovery.missing, store.stats().messages) == ("rebuild", 27, 0)
    assert "the index has 27 messages, and no segment is there: they are lost" in caplog.text


def test_segment_deleted_by_broker_is_not_lost(cell, tmp_path):
    """It took ``clean.dot`` away, as RabbitMQ does when it starts."""
    three_segments(tmp_path, cell.keys, killed=False)
    lose(tmp_path, 1, "missing")
    (tmp_path / "clean.dot").unlink()
    with open_with(tmp_path, **cell.keys) as store:
        assert (store.stats().recovery.how, store.stats().recovery.damaged) == ("reconciled", [])


def test_distrusted_counts_log_the_reason(cell, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    three_segments(tmp_path, cell.keys, killed=False)
    (file,) = tmp_path.glob("1.*")
    with file.open("ab") as stream:
        stream.write(b"more")
    open_with(tmp_path, **cell.keys).close()
    assert f"the saved counts do not fit the directory: {file.name} has grown since it was sealed" in caplog.text


def test_records_behind_the_last_commit_keep_older_counts(tmp_path):
    """An index that was committed knows A twice; behind that A was removed and written anew, and B was written."""
    a, b = bytes([1]) * 16, bytes([2]) * 16
    store = open_with(tmp_path, index="lmdb", sync_interval="1h", gc_interval=0)
    client = store.client()
    client.write_many([(a, b"a"), (a, b"a")])
    store.roll()
    store._accounting.commit = lambda: None  # the process is killed before the next one
    client.remove([a, a])
    client.write_many([(a, b"a"), (b, b"b")])
    store.flush()
    store.abandon()
    with open_with(tmp_path, index="lmdb", gc_interval=0) as again:
        assert again.stats().recovery.how == "tail"
        assert counts(again) == {a: 2, b: 1}
        assert sum(segment.live_count for segment in again.segments()) == 2, "what was found is not counted as live"


def test_segment_with_torn_end_takes_no_records(cell, tmp_path):
    """Recovery leaves the torn bytes where they are; a record after them would be lost to every scan."""
    fan_out(tmp_path, cell.keys)
    newest = max(tmp_path.glob("[0-9]*.*"), key=lambda path: int(path.stem))
    with newest.open("ab") as stream:
        stream.write(b"\x03\x00")
    size = newest.stat().st_size
    with open_with(tmp_path, **cell.keys) as store:
        store.client().write(bytes([11]) * 16, b"new")
        store.flush()
        assert newest.stat().st_size == size
        assert store.client().read(bytes([11]) * 16) == b"new"
