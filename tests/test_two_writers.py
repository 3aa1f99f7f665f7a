"""Two writers never share a directory, whatever is removed, moved or replaced below them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import msgstore
from msgstore import writer_lock as lock
from msgstore.testing.faults import UnsyncedFiles
from msgstore.writer_lock import check_no_writer
from support import open_with

FIRST, SECOND, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))
LOCK = "msgstore.lock"
KEYS = {"sync_interval": "1h", "gc_interval": 0}


def refused(path, *calls):
    for call in calls:
        with pytest.raises(msgstore.StoreIOError, match=f"{path}: was moved, deleted or replaced"):
            call()


def names_in(path):
    return sorted(file.name for file in path.iterdir())


class Deleting(UnsyncedFiles):
    """Deletes ``path`` after each write of records."""

    path: Path | None = None

    def pwrite(self, fd, data, offset):
        super().pwrite(fd, data, offset)
        if self.path is not None and offset:
            self.path.unlink(missing_ok=True)


@pytest.fixture
def writing(index, tmp_path):
    """A store with one confirmed message, a client, and the list of confirmed ids."""
    confirmed: list[bytes] = []
    store = open_with(tmp_path / "store", Deleting(), index=index, **KEYS)
    client = store.client(on_confirm=confirmed.extend)
    client.write(FIRST, b"first")
    store.flush()
    yield store, client, confirmed
    store.abandon()


def test_removed_lock_file_lets_no_second_writer_in(writing, index, monkeypatch):
    monkeypatch.setattr(lock, "_ATTEMPTS", 2)
    store, client, confirmed = writing
    (store.path / LOCK).unlink()
    with pytest.raises(msgstore.StoreLocked):
        open_with(store.path, index=index)
    client.write(SECOND, b"second")
    store.close()
    assert confirmed == [FIRST, SECOND]
    with open_with(store.path, index=index) as again:
        assert again.stats().messages == 2


def test_removed_lock_file_hides_no_writer_from_readers(writing):
    store, _, _ = writing
    (store.path / LOCK).unlink()
    with pytest.raises(msgstore.StoreLocked):
        check_no_writer(store.path)
    (store.path / LOCK).write_bytes(b"")
    with pytest.raises(msgstore.StoreLocked):
        check_no_writer(store.path)
    store.close()
    check_no_writer(store.path)


def test_moved_directory_is_noticed_and_nothing_confirmed(writing, index, tmp_path):
    """A second store of that name is not touched; moved back, the first one goes on."""
    store, client, confirmed = writing
    store.path.rename(tmp_path / "moved")
    with open_with(store.path, index=index) as other:
        other.client().write(THIRD, b"third")
        before = names_in(store.path)
        client.write(SECOND, b"second")
        refused(store.path, store.flush, store.roll, store.close)
        assert names_in(store.path) == before, "the first writer changed the second store"
    assert confirmed == [FIRST]
    shutil.rmtree(store.path)
    (tmp_path / "moved").rename(store.path)
    store.close()
    assert confirmed == [FIRST, SECOND]


def test_collection_of_a_moved_store_deletes_nothing(writing, index, tmp_path):
    store, client, _ = writing
    store.roll()
    client.write(SECOND, b"second")
    store.flush()
    store.path.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", store.path)
    client.remove([FIRST])
    before = names_in(store.path)
    refused(store.path, lambda: store.compact(everything=True))
    assert names_in(store.path) == before


def test_flush_in_a_moved_store_deletes_nothing(index, tmp_path):
    """Of removals only: it need not look at the current segment."""
    with open_with(tmp_path / "store", index=index, **KEYS) as store:
        store.client().write(FIRST, b"first")
        store.roll()
        store.client().write(SECOND, b"second")
    store = open_with(tmp_path / "store", index=index, **KEYS)
    store.client().write(THIRD, b"third")
    store.flush()
    store.path.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", store.path)
    store.client().remove([FIRST])
    with pytest.raises(msgstore.StoreIOError, match="was moved, deleted or replaced"):
        store.flush()
    assert (store.path / "0.sqs").exists(), "a segment of another store was deleted"
    store.abandon()


def segment_of(store) -> Path:
    return store.path / store.segments()[-1].file


def remove(path):
    path.unlink()


def rename(path):
    path.rename(path.with_name("elsewhere"))


def replace(path):
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy)


@pytest.mark.parametrize("change", [remove, rename, replace])
def test_deleted_current_segment_is_never_confirmed(writing, change):
    """However often it is tried, and whether or not another segment would follow."""
    store, client, confirmed = writing
    client.write(SECOND, b"second")
    path = segment_of(store)
    change(path)
    refused(path, store.flush, store.roll, store.flush, store.close)
    assert confirmed == [FIRST]


@pytest.mark.parametrize("file_size_limit", [None, 1000], ids=["last write", "another segment follows"])
def test_segment_deleted_within_flush_confirms_nothing(index, file_size_limit, tmp_path):
    """After its records were written, whether or not the flush begins another segment."""
    files, confirmed = Deleting(), []
    limit = {"file_size_limit": file_size_limit} if file_size_limit else {}
    store = open_with(tmp_path, files, index=index, **KEYS, **limit)
    client = store.client(on_confirm=confirmed.extend)
    client.write(FIRST, b"first")
    store.flush()
    files.path = segment_of(store)
    for number in range(10, 20 if limit else 11):
        client.write(bytes([number]) * 16, bytes(300))
    refused(files.path, *[store.flush] * (2 if limit else 1))
    store.abandon()
    assert confirmed == [FIRST], "a message in a deleted segment was confirmed"


def test_flush_looks_at_files_once(index, tmp_path):
    """A look costs a tenth of a small flush."""

    class Looking(UnsyncedFiles):
        looks = 0

        def identity_and_links(self, file):
            self.looks += 1
            return super().identity_and_links(file)

    files = Looking()
    with open_with(tmp_path, files, index=index, **KEYS) as store:
        client = store.client()
        client.write(FIRST, b"first")
        store.flush()
        before = files.looks
        client.write(SECOND, b"second")
        store.flush()
        assert files.looks - before == 1, "a flush looks at its files more than once"
        client.remove([FIRST])
        store.flush()
        assert files.looks - before == 2, "a flush of a removal does not look at its files once"
        store.flush()
        assert files.looks - before == 2, "a flush without work looks at its files"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_flush_of_a_lost_segment_fails(index, durability, tmp_path):
    """Without on_confirm: nothing but the flush says that the message is safe."""
    store = open_with(tmp_path, index=index, durability=durability, **KEYS)
    client = store.client()
    client.write(FIRST, b"first")
    store.flush()
    client.write(SECOND, b"second")
    path = segment_of(store)
    path.unlink()
    refused(path, store.flush, store.flush, client.close, store.flush, store.close)
    with pytest.raises(msgstore.StoreIOError) as caught:
        store.client().write(THIRD, b"third")
    assert not caught.value.applied, "a write behind a failed flush takes its message"
    store.abandon()


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_flush_of_removal_in_moved_directory_fails(writing, how, tmp_path):
    store, client, _ = writing
    client.write(SECOND, b"second")
    store.flush()
    store.path.rename(tmp_path / "old")
    if how == "replaced":
        shutil.copytree(tmp_path / "old", store.path)
    client.remove([FIRST])
    refused(store.path, store.flush, store.flush)


def test_copy_by_hard_links_has_own_writer(index, tmp_path):
    """Both directories have the same segments; the second writer does not write into them, the first one notices the move."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    first = open_with(path, index=index, **KEYS)
    client = first.client()
    client.write(FIRST, b"first" * 100)
    first.flush()
    shutil.copytree(path, copy, copy_function=os.link, ignore=shutil.ignore_patterns("msgstore.lock", "msgstore-lmdb"))
    path.rename(tmp_path / "old")
    copy.rename(path)
    confirmed = []
    with open_with(path, index=index, **KEYS) as second:
        other = second.client(on_confirm=confirmed.extend)
        for number in range(10, 15):
            if number == 10:
                client.write(bytes([number]) * 16, b"of the first")
            with pytest.raises(msgstore.StoreIOError, match="was moved, deleted or replaced"):
                first.flush()
            other.write(bytes([number + 100]) * 16, b"of the second")
            second.flush()
    with pytest.raises(msgstore.StoreIOError, match="was moved, deleted or replaced"):
        first.close()
    first.abandon()
    assert len(confirmed) == 5
    with open_with(path, index=index) as store:
        assert all(map(store.client().contains, [FIRST, *confirmed]))


def test_relative_path_elsewhere_says_where_the_process_is(index, tmp_path, monkeypatch):
    """A store that was opened by a relative path, in a process that has changed its working directory since."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_with(Path("store"), index=index, **KEYS)
    store.client().write(FIRST, b"first")
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(msgstore.StoreIOError, match=f"This path is relative, and the process is in {tmp_path / 'there'} now"):
        store.flush()
    assert not list((tmp_path / "there").iterdir())
    monkeypatch.chdir(tmp_path)
    store.flush()
    store.close()


def test_close_in_replaced_directory_leaves_it_alone(writing, index, tmp_path):
    """Nothing was changed since the last flush: the check belongs to the close."""
    store, _, _ = writing
    store.path.rename(tmp_path / "old")
    with open_with(store.path, index=index) as other, other.client() as theirs:
        theirs.write(SECOND, b"second")
    before = {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()}
    refused(store.path, store.close)
    store.abandon()
    assert {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()} == before
