"""Two writers never share a directory, whatever is removed, moved or replaced below them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

import pytest

import msgstore
from msgstore import writer_lock as lock
from msgstore.testing.faults import UnsyncedFiles
from msgstore.writer_lock import check_no_writer
from support import A, B, C, contents, open_with, play, unchanged

LOCK = "msgstore.lock"
KEYS = {"sync_interval": "1h", "gc_interval": 0}


def refused(path, *calls):
    for call in calls:
        with pytest.raises(msgstore.StoreIOError, match=f"{path}: was moved, deleted or replaced"):
            call()


@pytest.fixture
def start(index, tmp_path):
    """``start(**keys)`` opens a store with one confirmed message. Returns it, a client, and the list of confirmed ids."""
    with contextlib.ExitStack() as stack:

        def open_it(files=None, **keys):
            confirmed: list[bytes] = []
            store = open_with(tmp_path / "store", files or UnsyncedFiles(), index=index, **KEYS | keys)
            stack.callback(store.abandon)
            client = store.client(on_confirm=confirmed.extend)
            play(store, "+A f", client)
            return store, client, confirmed

        yield open_it


@pytest.fixture
def writing(start):
    return start()


def segment_of(store) -> Path:
    return store.path / store.segments()[-1].file


def test_removed_lock_file_lets_no_second_writer_in(writing, index, monkeypatch):
    monkeypatch.setattr(lock, "_ATTEMPTS", 2)
    store, client, confirmed = writing
    for remake in (lambda: None, (store.path / LOCK).touch):
        (store.path / LOCK).unlink(missing_ok=True)
        remake()
        with pytest.raises(msgstore.StoreLocked):
            check_no_writer(store.path)
    (store.path / LOCK).unlink()
    with pytest.raises(msgstore.StoreLocked):
        open_with(store.path, index=index)
    client.write(B, b"second")
    store.close()
    check_no_writer(store.path)
    assert confirmed == [A, B]
    with open_with(store.path, index=index) as again:
        assert again.stats().messages == 2


def test_file_is_locked_where_locks_of_directories_are_local(writing, index, monkeypatch):
    """As on NFS: there only locks of files reach the server."""
    flock = lock.fcntl.flock
    monkeypatch.setattr(lock.fcntl, "flock", lambda fd, kind: None if stat.S_ISDIR(os.fstat(fd).st_mode) else flock(fd, kind))
    monkeypatch.setattr(lock, "_ATTEMPTS", 2)
    store, _, _ = writing
    with pytest.raises(msgstore.StoreLocked):
        check_no_writer(store.path)
    with pytest.raises(msgstore.StoreLocked):
        open_with(store.path, index=index)


def test_moved_directory_is_noticed_and_nothing_confirmed(writing, index, tmp_path):
    """A second store of that name is not touched; moved back, the first one goes on."""
    store, client, confirmed = writing
    play(store, "r +C f", client)
    store.path.rename(tmp_path / "moved")
    with open_with(store.path, index=index) as other:
        other.client().write(A, b"of the other")
        other.flush()  # not in the background, while the test looks
        client.write(B, b"second")
        client.remove([A])
        with unchanged(store.path):
            refused(store.path, store.flush, store.roll, lambda: store.compact(everything=True), store.close)
    assert confirmed == [A, C]
    shutil.rmtree(store.path)
    (tmp_path / "moved").rename(store.path)
    store.close()
    assert confirmed == [A, C, B]


@pytest.mark.parametrize("how", ["moved", "copied", "copied, and it empties a segment"])
def test_flush_of_removal_in_moved_directory_fails(start, how, tmp_path):
    """Of removals only: it need not look at the current segment."""
    store, client, _ = start()
    if how.endswith("segment"):
        play(store, "r +B", client)
        store.close()
        store, client, _ = start()
        play(store, "+C -A f", client)
    else:
        play(store, "+B f", client)
    store.path.rename(tmp_path / "moved")
    if how != "moved":
        shutil.copytree(tmp_path / "moved", store.path)
    client.remove([A])
    refused(store.path, store.flush, store.flush)
    assert how == "moved" or (store.path / "0.sqs").exists(), "a segment of another store was deleted"


def replace(path):
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy)


CHANGES = {"removed": Path.unlink, "renamed": lambda path: path.rename(path.with_name("elsewhere")), "replaced": replace}


@pytest.mark.parametrize(("change", "durability"), [*((name, "os") for name in CHANGES), ("removed", "fsync")])
def test_deleted_current_segment_is_never_confirmed(start, change, durability):
    """However often it is tried, and whether or not another segment would follow."""
    store, client, confirmed = start(durability=durability)
    client.write(B, b"second")
    path = segment_of(store)
    CHANGES[change](path)
    refused(path, store.flush, store.roll, store.flush, client.close, store.flush, store.close)
    assert confirmed == [A]
    with pytest.raises(msgstore.StoreIOError) as caught:
        store.client().write(C, b"third")
    assert not caught.value.applied, "a write behind a failed flush takes its message"


@pytest.mark.parametrize("limit", [None, 1000], ids=["last write", "another segment follows"])
def test_segment_deleted_within_flush_confirms_nothing(start, files, limit):
    """After its records were written, whether or not the flush begins another segment."""
    store, client, confirmed = start(files, **{"file_size_limit": limit} if limit else {})
    path = segment_of(store)
    files.after("pwrite", lambda: path.unlink(missing_ok=True), times=None)
    client.write_many((bytes([number]) * 16, bytes(300)) for number in range(10, 20 if limit else 11))
    refused(path, *[store.flush] * (2 if limit else 1))
    assert confirmed == [A], "a message in a deleted segment was confirmed"


def test_copy_by_hard_links_has_own_writer(start, index, tmp_path):
    """Both directories have the same segments; the second writer does not write into them, the first one notices the move."""
    first, client, _ = start()
    path, copy, confirmed = first.path, tmp_path / "copy", []
    shutil.copytree(path, copy, copy_function=os.link, ignore=shutil.ignore_patterns("msgstore.lock", "msgstore-lmdb"))
    path.rename(tmp_path / "old")
    copy.rename(path)
    with open_with(path, index=index, **KEYS) as second:
        other = second.client(on_confirm=confirmed.extend)
        client.write(B, b"of the first")
        for number in range(110, 115):
            refused(path, first.flush)
            other.write(bytes([number]) * 16, b"of the second")
            second.flush()
    refused(path, first.close)
    assert len(confirmed) == 5
    with open_with(path, index=index) as store:
        assert all(map(store.client().contains, [A, *confirmed]))


@pytest.mark.parametrize("erase", [False, True])
def test_writer_of_hard_links_leaves_original(start, index, tmp_path, erase, caplog):
    """Whatever is written, removed, compacted or erased in a copy of a closed store, and in the original afterwards."""
    store, client, _ = start()
    client.write_many((bytes([number]) * 16, bytes([number]) * 300) for number in range(10, 60))
    store.close()
    path, copy = store.path, tmp_path / "copy"
    shutil.copytree(path, copy, copy_function=os.link)
    with unchanged(path), open_with(copy, index=index, erase=erase, **KEYS) as other:
        assert erase or any(file.stat().st_nlink > 1 for file in copy.glob("*.sqs"))
        other.client().remove([bytes([number]) * 16 for number in range(10, 40)])
        (done,) = other.compact(everything=True)
        assert (done.outcome, done.size_after) == ("compacted", 0)
    assert ("not erased" in caplog.text) == erase
    with open_with(path, index=index, **KEYS) as store:
        assert store.client().read(bytes([10]) * 16) == bytes([10]) * 300
        store.client().remove([bytes([number]) * 16 for number in range(20, 60)])
    with open_with(copy, index=index, mode="r") as other:
        assert [bytes([number]) * 16 in contents(other) for number in (10, 39, 40, 59)] == [False, False, True, True]
