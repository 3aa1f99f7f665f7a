"""Dirty starts: reference counts are exact, a rebuild that is stopped begins again, and it says how far it is."""

from __future__ import annotations

import gc
import shutil
import weakref

import attrs
import pytest

import msgstore
from msgstore.engine import recovery as recovery_module
from msgstore.testing.faults import Crash, RecordingFiles
from support import open_with

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


def counts(store):
    return {entry.msg_id: entry.references for entry in store.entries()}


def test_counts_after_a_dirty_stop_are_exact(cell, tmp_path):
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


def test_without_counts_each_message_is_kept_once(cell, tmp_path):
    """An index that is not persistent keeps messages, not how often."""
    fan_out(tmp_path, cell.keys)
    if cell.index == "lmdb":  # its counts survive; unless it is lost
        shutil.rmtree(tmp_path / "msgstore-lmdb")
    with open_with(tmp_path, **cell.keys) as store:
        assert counts(store) == {ONE: 1, THREE: 1, GONE: 1, LAST: 1}


def test_counts_that_are_passed_decide_a_rebuild(cell, tmp_path):
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


def test_of_copies_the_highest_numbered_files_wins(cell, tmp_path):
    live = many_segments(tmp_path, cell.keys)
    with open_with(tmp_path, **cell.keys) as store:
        assert store.stats().recovery.how == "rebuild"
        assert set(counts(store)) == live
        assert [segment.live_count for segment in store.segments()] == [10, 0, 0, 10, 10]
        assert store.stats().recovery.garbage == 20
        assert all(store.client().read(msg_id) == body(msg_id) for msg_id in live)


@pytest.mark.parametrize("after", [False, True])
def test_a_rebuild_that_is_killed_begins_again(cell, tmp_path, monkeypatch, after):
    """Before and behind each commit of it: what such a commit left is not taken for an index."""
    live = many_segments(tmp_path, cell.keys)
    exact = dict.fromkeys(live, 3)
    index = __import__(f"msgstore_{cell.index}_index.index", fromlist=["index"])
    kind = getattr(index, {"ets": "EtsIndex", "lmdb": "LmdbIndex"}[cell.index])
    commit, left = kind.commit, 0

    def stop(self):
        nonlocal left
        left -= 1
        if left < 0 and not after:
            raise Crash
        commit(self)
        if left < 0:
            raise Crash

    for kill_at in range(20):
        left = kill_at
        with monkeypatch.context() as patch:
            patch.setattr(kind, "commit", stop)
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


def test_progress_is_in_bytes_and_ends_at_the_end(cell, tmp_path):
    many_segments(tmp_path, cell.keys)
    total = sum(file.stat().st_size for file in tmp_path.iterdir() if file.name[0].isdigit())
    seen = []
    msgstore.open_store(tmp_path, **cell.keys, progress=lambda *now: seen.append(now)).close()
    if cell.index == "lmdb":
        assert seen.pop(0)[0] == 0  # the changed segment was looked at first, and did not agree
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert len(seen) == 6
    seen.clear()
    msgstore.open_store(tmp_path, **cell.keys, progress=lambda *now: seen.append(now)).close()
    assert seen == []  # nothing was read


def test_a_progress_that_raises_stops_the_opening_and_costs_nothing(cell, tmp_path):
    live = many_segments(tmp_path, cell.keys)

    def cancel(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        msgstore.open_store(tmp_path, **cell.keys, progress=cancel)
    with open_with(tmp_path, **cell.keys) as store:
        assert set(counts(store)) == live


def test_one_segment_is_in_memory_at_a_time(cell, tmp_path, monkeypatch):
    """What a scan returned is gone before the next but one begins."""
    live = many_segments(tmp_path, cell.keys)
    scans, most = weakref.WeakSet(), 0
    original = recovery_module._scan

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

    monkeypatch.setattr(recovery_module, "_scan", scan)
    with open_with(tmp_path, **cell.keys) as store:
        assert set(counts(store)) == live
    assert most == 1


def test_a_persistent_index_that_knows_everything_reads_no_segment(cell, tmp_path):
    if cell.index != "lmdb":
        return  # it has nothing that could know
    fan_out(tmp_path, cell.keys)
    files = RecordingFiles()
    store = open_with(tmp_path, files, **cell.keys)
    assert store.stats().recovery.how == "tail"
    assert not [path for name, path, _ in files.operations if name == "pread" and path[0].isdigit()]
    store.abandon()
