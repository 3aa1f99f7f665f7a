"""Single faults, and what goes on after them: nothing confirmed is lost, nothing removed returns, counts stay."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

import msgstore
from msgstore.files import Files
from msgstore.plugins.loader import Observer, Provider
from msgstore.testing import stores
from msgstore.testing.faults import Crash, RecordingFiles, UnsyncedFiles, copy_of
from support import FullDisk, HookedFiles, RealDirectory, catalogue, command, failing, flip, open_with, unchanged

KEPT, SHARED, REMOVED, LATER = (bytes([n]) * 16 for n in (1, 2, 3, 4))
KEYS = {"sync_interval": "1h", "gc_interval": 0}


class TornAppend(UnsyncedFiles):
    """While ``fail``, a write stops after ten bytes."""

    fail = False

    def pwrite(self, fd, data, offset):
        if self.fail:
            super().pwrite(fd, memoryview(data)[:10], offset)
            failing(errno.ENOSPC)()
        super().pwrite(fd, data, offset)


def small_store(path: Path, keys: dict) -> None:
    """One message, one with two references, one that was removed; stopped cleanly."""
    with open_with(path, **keys, sync_interval="1h") as store, store.client("c") as client:
        client.write_many((msg_id, msg_id * 5) for msg_id in (KEPT, SHARED, SHARED, REMOVED))
        store.flush()
        client.remove([REMOVED])


def references(store: msgstore.Store) -> tuple[int, ...]:
    return tuple(store.references(msg_id) for msg_id in (KEPT, SHARED, REMOVED))


def test_descriptor_after_failed_close_is_not_reused(opened, store, client, files, tmp_path, monkeypatch):
    """The next file that is opened may have its number: somebody else's."""
    client.write(KEPT, b"1")
    store.flush()
    close = files.close
    monkeypatch.setattr(files, "close", lambda fd: (close(fd), monkeypatch.undo(), failing()()))
    with pytest.raises(msgstore.StoreIOError):
        store.roll()
    with (tmp_path / "somebody else's").open("wb") as other:
        client.write(LATER, b"2" * 1000)
        store.flush()
        assert os.fstat(other.fileno()).st_size == 0
        store.close()
    assert opened().read_many([KEPT, LATER]) == {KEPT: b"1", LATER: b"2" * 1000}


@pytest.mark.parametrize("other", [False, True], ids=["same index", "other index"])
@pytest.mark.parametrize("durability", ["fsync", {"fsync_every": "1h"}], ids=["fsync", "fsync_every"])
def test_record_of_killed_process_is_synced_before_it_is_confirmed(cell, durability, other, tmp_path):
    """A second write of the message appends nothing: without a sync at opening, a power loss would take what it confirmed."""
    keys = cell.keys | {"durability": durability, "sync_interval": "1h"}
    small_store(tmp_path / "store", cell.keys)
    files, killed = HookedFiles(), tmp_path / "killed"
    with open_with(tmp_path / "store", files, **keys) as store, store.client() as client:
        client.write(LATER, b"body")
        if durability == "fsync":
            files.before("sync", lambda: copy_of(store.path, killed), f".{'rdq' if cell.format == 'v1' else 'sqs'}")
        store.flush()
        if durability != "fsync":
            copy_of(store.path, killed)
    files = RecordingFiles()
    if other:
        keys["index"] = "lmdb" if keys["index"] == "ets" else "ets"
    with open_with(killed, files, **keys) as store:
        (segment,) = [killed / s.file for s in store.segments() if s.number == store.entry(LATER).number]
        synced = [path for name, path, _ in files.operations if name == "sync"]
        assert segment.name in synced


@pytest.mark.parametrize(("kind", "messages"), [("ets", 10), ("lmdb", 10), ("ets", 20_000)], ids=["ets", "lmdb", "hinted"])
def test_opening_that_cannot_sync_commits_nothing(kind, messages, tmp_path):
    """The records of the killed process are found again by the next one, and synced then."""
    files, killed = HookedFiles(), tmp_path / "killed"
    ids = [number.to_bytes(16, "big") for number in range(messages)]
    with open_with(tmp_path / "store", files, index=kind, durability={"fsync_every": "1h"}, sync_interval="1h") as store:
        store.client().write_many((msg_id, bytes(50)) for msg_id in ids)
        files.before("sync", lambda: copy_of(store.path, killed), ".sqs")
        store.roll()
    files = HookedFiles()
    files.before("sync", failing(), ".sqs")
    with pytest.raises(msgstore.StoreIOError, match="Input/output error"):
        open_with(killed, files, index=kind, durability="fsync")
    files = HookedFiles()
    with open_with(killed, files, index=kind, durability="fsync") as store:
        recovery = store.stats().recovery
    assert (len(recovery.hinted), recovery.entered) == (int(messages > 10), messages)
    assert ("sync", "0.sqs", 0) in files.operations


def test_reader_with_fsync_syncs_no_index(tmp_path):
    """A killed process with another durability left it: that is for the next writer."""
    with open_with(tmp_path, index="lmdb") as store:
        store.client().write(KEPT, b"body")
        store.flush()
        store.abandon()
    with unchanged(tmp_path), open_with(tmp_path, index="lmdb", mode="r", durability="fsync") as reader:
        assert reader.read(KEPT) == b"body"


def test_command_syncs_what_it_changes(tmp_path, monkeypatch):
    """Also a store that a killed process left, and whose application has another durability."""
    small_store(tmp_path, {})
    synced = []
    monkeypatch.setattr(Files, "sync", lambda self, fd: synced.append(os.fstat(fd).st_ino))
    command("put", tmp_path, LATER.hex(), stdin=b"body")
    assert (tmp_path / "0.sqs").stat().st_ino in synced


def fill_disk(files: HookedFiles) -> None:
    """Writes find no room until the first segment is deleted."""
    files.before("pwrite", failing(errno.ENOSPC), times=None)
    files.after("unlink", files.hooks.clear, "0.")


def test_removals_free_a_full_disk(opened, store, files):
    """Though writes that came before them wait for room."""
    confirmed = []
    client = store.client(on_confirm=confirmed.extend)
    client.write_many([(KEPT, b"1"), (REMOVED, b"2")])
    store.roll()
    client.write(LATER, b"3")
    fill_disk(files)
    client.remove([REMOVED])
    with pytest.raises(msgstore.StoreIOError, match="No space left"):
        store.flush()
    client.remove([KEPT])  # the last message of its segment
    store.flush()
    assert (confirmed, files.hooks) == ([KEPT, REMOVED, LATER], [])
    store.abandon()
    assert opened().read_many([KEPT, REMOVED, LATER]) == {LATER: b"3"}


def test_repeated_append_counts_uncommitted_bytes_once(tmp_path, files):
    """They would be subtracted a second time at the next commit, and the limit of unconfirmed bytes would no longer hold."""
    store = open_with(tmp_path, files, **KEYS, index="lmdb", durability={"fsync_every": "1h"})
    client = store.client()
    client.write_many([(KEPT, b"1"), (REMOVED, b"2")])
    store.roll()
    client.write(LATER, b"3")
    store.flush()
    client.remove([REMOVED])
    store.flush()
    assert store._flusher._bytes_to_commit > 0
    client.write(bytes(16), b"4")
    client.remove([KEPT])
    fill_disk(files)
    store.flush()
    assert not files.hooks
    store._flusher.sync_and_commit()
    assert store._flusher.uncommitted_bytes == 0
    store.abandon()


def test_full_disk_deletes_nothing_of_a_store_that_was_replaced(store, client, files, tmp_path):
    client.write(KEPT, b"1")
    store.roll()
    client.write(LATER, b"3")
    store.flush()
    client.write(REMOVED, b"2")
    client.remove([KEPT])
    fill_disk(files)
    first, current = (store.path / segment.file for segment in store.segments())
    current.rename(tmp_path / "gone")
    with pytest.raises(msgstore.StoreIOError, match="was moved, deleted or replaced"):
        store.flush()
    assert first.exists()


@pytest.mark.parametrize("undone", [True, False], ids=["undone", "not undone"])
def test_append_failed_halfway_loses_nothing(undone, opened, cell, tmp_path, monkeypatch):
    """And leaves no bytes, if the file can be cut; and confirms nothing."""
    small_store(tmp_path / "store", cell.keys)
    files, confirmed = TornAppend(), []
    store = opened(files)
    size = {segment.file: segment.size for segment in store.segments()}
    store.client(on_confirm=confirmed.extend).write(LATER, b"x" * 100)
    files.fail = True
    with monkeypatch.context() as patch:
        if not undone:
            patch.setattr(files, "truncate", failing())
        with pytest.raises(msgstore.StoreIOError):
            store.flush()
    assert confirmed == []
    if undone:
        assert {file: (store.path / file).stat().st_size for file in size} == size
    files.fail = False
    store.close()
    store = opened()
    assert references(store) == (1, 2, 0)
    assert store.read(LATER) == b"x" * 100


def test_segment_number_after_kill_is_not_reused(opened, cell):
    """Killed between an append and the index's commit, after the newest segment had been deleted."""

    class Killed(UnsyncedFiles):
        def pwrite(self, fd, data, offset):
            super().pwrite(fd, data, offset)
            if b"LAST" in bytes(data):
                raise Crash

        def truncate(self, fd, size):
            raise Crash  # nothing undoes the write

    store = opened(Killed(), large_message=5000)
    client = store.client()
    client.write_many((msg_id, b"a") for msg_id in (KEPT, SHARED, SHARED, REMOVED))
    store.flush()
    client.remove([REMOVED])
    client.write(bytes(16), bytes(9000))
    store.flush()
    client.remove([bytes(16)])
    store.flush()
    client.write(LATER, b"LAST")
    with pytest.raises(Crash):
        store.flush()
    store.abandon()
    counts = [(KEPT, 1), (SHARED, 2), (LATER, 1)] if cell.index == "ets" else []
    store = opened(refcounts=counts or None)
    assert references(store) == (1, 2, 0)
    assert store.read(LATER) == b"LAST"


@pytest.mark.parametrize("counts", ["given", "saved", "none"])
def test_compaction_keeps_records_behind_flipped_size(tmp_path, index, counts):
    """Counts tell of missing records, which keeps a segment from being changed too; without any, its bytes must be enough."""
    real = RealDirectory.load("v2_clean")
    path = real.copy(tmp_path)
    if counts == "none":
        (path / "msg_store_index.ets").unlink()
    segment = path / "2.sqs"
    records = real.manifest["segments"][2]["records"]
    data = flip(segment, records[-5]["offset"] + 1, 1)  # size of the fifth from the end: it runs past the end of the file
    segment.write_bytes(data + b"\x03\0\0\1")  # and behind it all the write that the crash cut off
    refcounts = real.refcounts.items() if counts == "given" else None
    with open_with(path, adopt=True, index=index, format="v2", refcounts=refcounts) as store:
        store.roll()
        store.compact(everything=True)
        store.flush()
    assert segment.read_bytes() == data + b"\x03\0\0\1"


def test_migration_on_full_disk_keeps_counts(tmp_path, index):
    files = HookedFiles()
    files.before("create", failing(errno.ENOSPC), ".sqs", times=None)
    small_store(tmp_path, {"index": index, "format": "v1"})
    with pytest.raises(msgstore.StoreIOError, match="No space left"):
        open_with(tmp_path, files, index=index, format="v2", on_legacy="migrate")
    with open_with(tmp_path, index=index, format="v2", on_legacy="migrate") as store:
        assert references(store) == (1, 2, 0)
        assert not list(tmp_path.glob("*.rdq"))


def test_writes_on_full_disk_are_bounded(opened):
    """From the bound on a write that raises has taken nothing; with room again all goes on, and what was taken is there."""
    files = FullDisk()
    store = opened(files, max_unconfirmed="128KiB")
    client = store.client()
    client.write(bytes(16), b"first")
    store.flush()
    files.full = True
    taken, refused = [], []
    for number in range(1, 300):
        try:
            client.write(number.to_bytes(16), b"body")
            taken.append(number)
        except msgstore.StoreIOError:
            (taken if client.contains(number.to_bytes(16)) else refused).append(number)
    assert len(taken) * 1024 < 2 * 2**17
    assert len(refused) > 100
    assert store.stats().pending == len(taken)
    files.full = False
    client.write(b"5" * 16, b"body")
    store.flush()
    for number in refused:
        client.write(number.to_bytes(16), b"body")
    assert store.stats().messages == 301
    store.close()
    assert opened().stats().messages == 301


def test_flush_waits_for_running_confirm_callbacks(opened):
    telling, go_on, confirmed = threading.Event(), threading.Event(), []
    store = opened(sync_interval="1ms")
    store.client("slow", on_confirm=lambda _: (telling.set(), go_on.wait(30))).write(KEPT, b"1")
    other = store.client("other", on_confirm=confirmed.extend)
    assert telling.wait(30)
    other.write(LATER, b"2")
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(store.flush)
        with pytest.raises(TimeoutError):
            flushing.result(0.05)
        go_on.set()
        flushing.result(30)
    assert confirmed == [LATER]


def test_write_in_callback_of_close_is_kept(opened, store):
    """By a client that answers each confirm with a write: the last one is refused, none is lost."""
    confirmed: list[bytes] = []

    def answer(ids):
        confirmed.extend(ids)
        number = len(confirmed) + 10
        client.write(bytes([number]) * 16, b"%d" % number)

    client = store.client("c", on_confirm=answer)
    client.write(KEPT, b"1")
    store.close()
    assert confirmed == [KEPT, bytes([11]) * 16]
    assert set(opened().read_many(confirmed)) == set(confirmed)


@pytest.mark.parametrize("kind", ["on_confirm", "progress", "observer"])
def test_callback_calling_change_raises_runtimeerror(tmp_path, kind):
    raised, done = [], threading.Event()

    def call_all(*_):
        for call in ("flush", "roll", "compact", "migrate", "close", "abandon"):
            with pytest.raises(RuntimeError, match=rf"{call}\(\) was called in a callback"):
                getattr(store, call)()
            raised.append(call)
        done.set()

    observers = (Observer("msgstore_segment_rolled", call_all, Provider("acme", "1", "watch", "acme")),)
    known = attrs.evolve(catalogue(), observers=observers if kind == "observer" else ())
    with stores.open_with(tmp_path, known, **KEYS) as store:
        client = store.client(on_confirm=call_all if kind == "on_confirm" else None)
        client.write_many([(KEPT, b"1"), (LATER, b"2")])
        store.roll()
        if kind == "progress":
            client.remove([KEPT])
            store.compact(everything=True, progress=lambda *_: raised or call_all())
        assert done.wait(30)
    assert len(raised) == 6


def test_write_of_too_large_body_is_refused(opened, monkeypatch):
    store = opened(large_message="8GiB")
    monkeypatch.setattr(store._opened.backends.write_format.format, "max_body", 1000)
    monkeypatch.setattr(store._writer, "_max_body", 1000)
    monkeypatch.setattr(store._writer, "_fast_body_limit", 500)
    client = store.client()
    with pytest.raises(msgstore.MessageTooLarge, match="at most 1000"):
        client.write(KEPT, b"x" * 1001)
    client.write(KEPT, b"x" * 1000)
    store.flush()
    assert client.read(KEPT) == b"x" * 1000


@pytest.mark.parametrize(
    "keys",
    [{"format": "v1"}, {"on_legacy": "refuse"}, {"body": "nope"}, {"index": "nope"}, {"record": "nope"}, {"gc": "nope"}],
)
def test_refused_opening_changes_nothing(tmp_path, keys):
    path = RealDirectory.load("mixed_upgrade").copy(tmp_path)
    with unchanged(path), pytest.raises(msgstore.MsgStoreError):
        open_with(path, adopt=True, **keys)
