"""Dirty starts, lost segments, another index: counts are exact, and a rebuild that is stopped begins again."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest

import msgstore
from msgstore.plugins.catalogue import load_catalogue
from msgstore.testing.faults import Crash
from msgstore_lmdb_index import rescue
from support import DATA, RealDirectory, counts, filled, hashes, open_with

ONE, THREE, GONE, LAST = (bytes([n]) * 16 for n in (1, 3, 7, 9))
EXACT = {ONE: 1, THREE: 3, LAST: 1}
KEYS = {"sync_interval": "1h", "gc": "never"}


def body(msg_id: bytes) -> bytes:
    return b"\x83m\0\0\0\x10" + msg_id


def ids(*numbers: int, first: int = 0) -> list[bytes]:
    """Ten ids, or fewer, of each segment."""
    return [bytes([number, n]) * 8 for number in numbers for n in range(first, 10)]


def write(store, messages) -> None:
    store.client().write_many((msg_id, body(msg_id)) for msg_id in messages)


def segment_files(path):
    return sorted(path.glob("[0-9]*.*"), key=lambda file: int(file.stem))


@pytest.fixture
def killed(cell, tmp_path):
    """A store of two segments whose process was killed: counts ``EXACT``, and a message that was removed."""
    store = open_with(tmp_path, **cell.keys, **KEYS)
    write(store, (ONE, THREE, GONE))
    write(store, [THREE])  # before the first one is on disk
    store.flush()
    write(store, [THREE])  # and behind it
    store.client().remove([GONE])
    store.roll()
    write(store, [LAST])
    store.flush()
    store.abandon()
    return tmp_path


DELTAS = [(THREE, 2), (THREE, 2), (THREE, -1), (ONE, 1), (ONE, -1), (LAST, 5), (bytes([77]) * 16, 1)]


@pytest.mark.parametrize(
    ("keeps_index", "given", "found"),
    [
        (True, EXACT.items(), EXACT),
        (False, None, dict.fromkeys([ONE, THREE, GONE, LAST], 1)),  # the messages, not how often
        (False, DELTAS, {THREE: 3, LAST: 5}),
    ],
    ids=["exact", "one each", "deltas"],
)
def test_counts_after_dirty_stop(cell, killed, keeps_index, given, found):
    """A persistent index has them; otherwise those that are given count, and what they do not name is garbage."""
    has_index = cell.index == "lmdb" and keeps_index
    if not keeps_index:
        shutil.rmtree(killed / "msgstore-lmdb", ignore_errors=True)
    with open_with(killed, **cell.keys, refcounts=None if has_index else given) as store:
        recovery = store.stats().recovery
        assert recovery.how == ("tail" if has_index else "rebuild")
        assert counts(store) == found
        assert store.stats().live_bytes == sum(entry.size for entry in store.entries())
        assert sum(segment.live_count for segment in store.segments()) == len(found)
        if given is DELTAS:
            assert (recovery.entered, recovery.garbage, recovery.missing) == (2, 2, 1)
            assert recovery.first_missing == bytes([77]) * 16
        with store.client() as client:
            client.remove([THREE] * found[THREE])
            assert not client.contains(THREE)
            assert client.read(LAST) == body(LAST)


def test_records_behind_the_last_commit_keep_older_counts(tmp_path, files):
    """An index that was committed knows ONE twice; behind that ONE was removed and written anew, and THREE was written. The
    segment before the last commit is not read."""
    keys = {"index": "lmdb", "gc_interval": 0}
    store = open_with(tmp_path, **keys, sync_interval="1h")
    write(store, (ONE, ONE))
    store.roll()
    store._accounting.commit = lambda: None  # the process is killed before the next one
    store.client().remove([ONE, ONE])
    write(store, (ONE, THREE))
    store.flush()
    store.abandon()
    with open_with(tmp_path, files, **keys) as again:
        assert again.stats().recovery.how == "tail"
        assert again.stats().recovery.scanned == ["1.sqs"]
        assert not [path for name, path, _ in files.operations if name in ("pread", "open_read") and Path(path).name == "0.sqs"]
        assert counts(again) == {ONE: 2, THREE: 1}
        assert sum(segment.live_count for segment in again.segments()) == 2, "what was found is not counted as live"


def test_segment_with_torn_end_takes_no_records(cell, killed):
    """Recovery leaves the torn bytes where they are; a record after them would be lost to every scan."""
    newest = segment_files(killed)[-1]
    newest.write_bytes(newest.read_bytes() + b"\x03\x00")
    size = newest.stat().st_size
    with open_with(killed, **cell.keys) as store:
        write(store, [GONE])
        store.flush()
        assert newest.stat().st_size == size
        assert store.client().read(GONE) == body(GONE)


# -- rebuilds -----------------------------------------------------------------------------------------------------------------

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
    """And the progress ends at the bytes of all segments."""
    total = sum(file.stat().st_size for file in segment_files(tmp_path))
    seen = []
    with msgstore.open_store(tmp_path, **many_segments, **given(1), progress=lambda *now: seen.append(now)) as store:
        assert store.stats().recovery.how == "rebuild"
        assert set(counts(store)) == set(LIVE)
        assert [segment.live_count for segment in store.segments()] == [10, 0, 0, 10, 10]
        assert store.stats().recovery.garbage == 20
        assert all(store.client().read(msg_id) == body(msg_id) for msg_id in LIVE)
    # With lmdb the changed segment was looked at first, and did not agree.
    assert [now for now in seen if now[1] < total] == seen[:-6]
    assert seen[-6:] == sorted(seen[-6:])
    assert (seen[-6], seen[-1]) == ((0, total), (total, total))
    msgstore.open_store(tmp_path, **many_segments, progress=lambda *now: pytest.fail("nothing is read")).close()


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

    is_killed, kills = True, 0
    while is_killed and not (cell.index == "lmdb" and kills == 6 and after):  # then the index is complete
        left, is_killed = kills, False
        with monkeypatch.context() as patch:
            patch.setattr(kind, "commit", stop)
            patch.setattr(kind, "close", stop_saving)
            try:
                open_with(tmp_path, **many_segments, **given(3)).abandon()
            except Crash:
                is_killed, kills = True, kills + 1
    assert kills >= 5
    with open_with(tmp_path, **many_segments, **given(3)) as store:
        assert store.stats().recovery.how == ("rebuild" if cell.index == "ets" else "tail")
        assert counts(store) == dict.fromkeys(LIVE, 3)


def test_progress_callback_raising_stops_opening_unharmed(many_segments, tmp_path):
    def cancel(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        msgstore.open_store(tmp_path, **many_segments, progress=cancel)
    with open_with(tmp_path, **many_segments) as store:
        assert set(counts(store)) == set(LIVE)


def test_recovery_after_lost_segment_uses_dead_copy(cell, tmp_path):
    """In a segment that the index knows, where it was dead."""
    keys = cell.keys | KEYS
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


# -- from one index to another ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_index_switched_repeatedly_keeps_counts(clean, tmp_path):
    real = RealDirectory.load("mixed_upgrade")
    path = real.copy(tmp_path)
    open_with(path, adopt=True, index="lmdb", refcounts=real.refcounts.items()).close()
    if not clean:  # only the lmdb index has the counts of a dirty stop
        open_with(path, index="lmdb").abandon()
    for index in ("ets", "lmdb", "ets"):
        with open_with(path, index=index) as store:
            assert store.stats().recovery.how == "taken over"
            assert hashes(store) == real.live
            assert counts(store) == real.refcounts


TEN = ids(0)


def test_stale_index_is_never_trusted(tmp_path):
    """Messages removed under ets stay removed when lmdb, which still knows them, comes back."""
    filled(tmp_path, [(i, i) for i in TEN], index="lmdb")
    with open_with(tmp_path, index="ets") as store, store.client() as client:
        client.remove(TEN[:5])
    with open_with(tmp_path, index="lmdb") as store:
        assert counts(store).keys() == set(TEN[5:])


def test_switch_without_old_plugin_is_refused(tmp_path, monkeypatch):
    filled(tmp_path, [(ONE, b"1")], index="lmdb")
    without = load_catalogue(["lmdb-index"])
    monkeypatch.setattr("support.catalogue", lambda: without)
    with pytest.raises(msgstore.StoreMismatch, match=r"last opened with the index .lmdb..*pip install msgstore-lmdb-index"):
        open_with(tmp_path, index="ets")
    with open_with(tmp_path, index="ets", refcounts=[(ONE, 2)]) as store:
        assert store.references(ONE) == 2


def write_three_times(path, messages) -> None:
    with open_with(path, index="lmdb") as store, store.client() as client:
        for _ in range(3):
            client.write_many((i, i) for i in messages)
            store.flush()


def damage_lmdb(path: Path) -> None:
    """Cut off the end of LMDB's file, but for the pages of its entries. The index notices that when it opens."""
    data = path / "msgstore-lmdb" / "data.mdb"
    saved = rescue.read_counts(data.parent)
    assert saved, "the store of the test has no message with several references"
    with lmdb.open(str(data.parent), readonly=True, lock=False) as env:
        size = env.stat()["psize"] * env.info()["last_pgno"]
    data.write_bytes(data.read_bytes()[:size])
    assert rescue.read_counts(data.parent) == saved, "the last page has entries"


@pytest.mark.parametrize("then", ["ets", "lmdb"])
def test_damaged_index_gives_readable_counts(tmp_path, then):
    """To itself, and to the index that takes its place."""
    write_three_times(tmp_path, TEN)
    damage_lmdb(tmp_path)
    with open_with(tmp_path, index=then) as store:
        assert counts(store) == dict.fromkeys(TEN, 3), "counts that can be read are lost"


def test_damaged_index_yields_to_brokers_counts(tmp_path):
    """The broker has stopped cleanly after our index was saved: its counts are exact, and ours are old."""
    real = RealDirectory.load("v1_clean")
    path = real.copy(tmp_path)
    with open_with(path, index="lmdb", adopt=True) as store:
        exact = counts(store)
    write_three_times(path, exact)
    damage_lmdb(path)
    for name in ("msg_store_index.ets", "file_summary.ets", "clean.dot"):
        shutil.copy(DATA / "msg-store" / real.name / "store" / name, path)
    with open_with(path, index="lmdb") as store:
        assert store.stats().recovery.counts == "msg_store_index.ets"
        assert counts(store) == exact, "old counts took the place of the broker's"


def test_damaged_index_of_before_gives_no_counts(tmp_path):
    """The counts of an index that the directory has left are older than one reference for each."""
    write_three_times(tmp_path, TEN)
    with open_with(tmp_path, index="ets") as store, store.client() as client:
        client.remove([*TEN, *TEN])
    damage_lmdb(tmp_path)
    store = open_with(tmp_path, index="ets")
    store.client().write(ONE, b"")
    store.flush()
    store.abandon()
    with open_with(tmp_path, index="lmdb") as store:
        assert {store.references(i) for i in TEN} == {1}, "an index that was left years ago has given its counts"
