"""A failed opening, and a failed close of a store in which nothing was changed, leave every count as it was."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from functools import partial

import pytest

import msgstore
from crash.files import FaultyFiles, every_fault
from msgstore.testing.faults import Crash, FailingFiles, RecordingFiles, copy_of, listing
from support import counts, open_with, unchanged

IDS = [bytes([n]) * 16 for n in range(1, 9)]
COUNTS = {msg_id: n for n, msg_id in enumerate(IDS[:6], 1)}
"""The last two ids are removed."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Of each index a store in several segments, with counts above one and removed messages; stopped cleanly."""
    made = {}
    for kind in ("ets", "lmdb"):
        made[kind] = tmp_path_factory.mktemp("faults") / kind
        with open_with(made[kind], index=kind, sync_interval="1h", file_size_limit=100) as store, store.client("c") as client:
            for at, msg_id in enumerate(IDS):
                for _ in range(COUNTS.get(msg_id, 1)):
                    client.write(msg_id, b"x" * (10 + 40 * (at % 2)))
                store.flush()
            client.remove(IDS[6:])
    return made


@pytest.fixture
def path(stores, kind, tmp_path):
    return copy_of(stores[kind], tmp_path / "store")


def failures(kind, act):
    """Call ``act(injector)`` once for each of its file operations, which fails. Yield what failed, after each call."""
    whole = FaultyFiles()
    act(whole)
    assert len(whole.operations) > 8
    for fault in every_fault(whole.operations, [kind]):
        injector = FaultyFiles(fault)
        act(injector)
        yield f"{kind} at {injector.failed}"


def attempt(path, injector, before_close=lambda store: None, **keys):
    """Open and close; a close that fails is tried again, and given up where it was interrupted."""
    store = None
    with suppress(msgstore.MsgStoreError, KeyboardInterrupt), injector.armed():
        store = open_with(path, injector, **keys)
        before_close(store)
        store.close()
    if store is not None:
        with suppress(msgstore.MsgStoreError):
            store.close()
        store.abandon()


@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "INT", "INT-AFTER"])
def test_opening_fault_at_any_operation_keeps_counts(path, kind, failure):
    """The next opening finds the counts, and need not read the segments. Then a close that has another client to remember."""
    keys = {"index": kind, "sync_interval": "1h", "file_size_limit": 100, "durability": "fsync"}
    for before_close in (lambda store: None, lambda store: store.client("another")):
        for failed in failures(failure, partial(attempt, path, before_close=before_close, **keys)):
            with open_with(path, **keys) as store:
                assert (store.stats().recovery.how, counts(store)) == ("trust", COUNTS), failed


def test_unchanged_store_opened_and_closed_is_untouched(path, kind):
    keys = {"index": kind, "sync_interval": "1h"}
    open_with(path, **keys).close()
    with unchanged(path, but=["msgstore.lock", "lock.mdb"]), open_with(path, **keys) as store:
        store.flush()


def test_killed_before_first_change_keeps_counts(path, kind):
    open_with(path, index=kind, sync_interval="1h").abandon()
    with open_with(path, index=kind) as store:
        assert (store.stats().recovery.how, counts(store)) == ("trust", COUNTS)


def test_killed_before_first_commit_scans_the_tail(path, kind, monkeypatch):
    """The marker is hidden, the record is on disk, and the index still says that the store is closed."""

    def stop():
        raise Crash

    new = bytes([77]) * 16
    store = open_with(path, index=kind, sync_interval="1h")
    store.client().write(new, b"new")
    with monkeypatch.context() as patch:
        patch.setattr(store._accounting.index, "commit", stop)
        with pytest.raises(Crash):
            store.flush()
    store.abandon()
    with open_with(path, index=kind) as store:
        assert (store.stats().recovery.how, counts(store)) == ("tail", COUNTS | {new: 1})


def test_removal_of_absent_messages_changes_nothing(path, kind):
    before = listing(path)
    with open_with(path, index=kind, sync_interval="1h") as store:
        with pytest.raises(msgstore.MessageNotFound):
            store.client().remove(IDS[6:])
        store.flush()
        assert listing(path).keys() == before.keys(), "a removal of nothing counts as a change"
        store.abandon()
    with open_with(path, index=kind) as store:
        assert counts(store) == COUNTS, "a process that was killed after a removal of nothing lost its counts"


@pytest.mark.parametrize("failure", ["EIO", "INT"])
@pytest.mark.parametrize("new", ["ets", "lmdb"])
def test_index_change_fault_keeps_counts(stores, tmp_path, failure, new):
    """The index of the last opening is taken over, however often the first attempts fail. An open store with ``ets`` has its
    counts in memory only, so its close does not fail here."""
    path = tmp_path / "store"

    def take_over(injector):
        shutil.rmtree(path, ignore_errors=True)
        copy_of(stores["lmdb" if new == "ets" else "ets"], path)
        with suppress(msgstore.MsgStoreError, KeyboardInterrupt):
            with injector.armed():
                store = open_with(path, injector, index=new, sync_interval="1h")
            store.close()

    for failed in failures(failure, take_over):
        with open_with(path, index=new, sync_interval="1h") as store:
            assert counts(store) == COUNTS, failed


def test_first_change_retires_the_marker(path, kind):
    """Only the references of one message change: also that is a change."""
    store = open_with(path, index=kind, sync_interval="1h")
    assert (path / "clean.dot").exists()
    store.client().remove([IDS[5]])
    store.flush()
    assert not (path / "clean.dot").exists()
    assert not (path / "msgstore-clean.dot").exists()
    store.close()
    with open_with(path, index=kind) as store:
        assert counts(store) == COUNTS | {IDS[5]: 5}


# -- the directory of a new store, with every parent that was made for it -------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync", {"fsync_every": "1h"}], ids=["os", "fsync", "fsync_every"])
def test_new_store_syncs_every_parent_it_made(durability, tmp_path):
    files = RecordingFiles()
    open_with(tmp_path / "a" / "b" / "store", files, durability=durability).close()
    synced = [path for name, path, _ in files.operations if name == "sync_directory"]
    assert synced[:3] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    files.operations.clear()
    (tmp_path / "there").mkdir()
    open_with(tmp_path / "there", files, durability=durability).close()
    assert ("sync_directory", str(tmp_path), 0) not in files.operations


def test_parents_that_cannot_be_synced_are_removed(tmp_path):
    """Or the next opening would find them, and take them for durable."""
    with pytest.raises(msgstore.StoreError, match=os.strerror(errno.EIO)):
        open_with(tmp_path / "a" / "store", FailingFiles(1))
    assert list(tmp_path.iterdir()) == []
    open_with(tmp_path / "a" / "store").close()


def test_plain_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(msgstore.StoreError, match=str(path)):
            open_with(path)
    assert (tmp_path / "file").read_bytes() == b""
