"""Two writers never share a directory, whatever is removed, moved or replaced below them."""

from __future__ import annotations

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


@pytest.fixture
def writing(index, tmp_path):
    """A store with one confirmed message, a client, and the list of what was confirmed."""
    confirmed: list[bytes] = []
    path = tmp_path / "store"
    store = open_with(path, UnsyncedFiles(), index=index, sync_interval="1h", gc_interval=0)
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
        before = sorted(path.name for path in store.path.iterdir())
        client.write(SECOND, b"second")
        for call in (store.flush, store.roll, store.close):
            with pytest.raises(msgstore.StoreIOError, match=f"{store.path}: was moved, deleted or replaced"):
                call()
        assert sorted(path.name for path in store.path.iterdir()) == before, "the first writer changed the second store"
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
    before = sorted(path.name for path in store.path.iterdir())
    with pytest.raises(msgstore.StoreIOError, match="was moved, deleted or replaced"):
        store.compact(everything=True)
    assert sorted(path.name for path in store.path.iterdir()) == before


def test_flush_in_a_moved_store_deletes_nothing(index, tmp_path):
    """Of removals only: it need not look at the current segment."""
    with open_with(tmp_path / "store", index=index, sync_interval="1h", gc_interval=0) as store:
        store.client().write(FIRST, b"first")
        store.roll()
        store.client().write(SECOND, b"second")
    store = open_with(tmp_path / "store", index=index, sync_interval="1h", gc_interval=0)
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
    for call in (store.flush, store.roll, store.flush, store.close):
        with pytest.raises(msgstore.StoreIOError, match=f"{path}: was moved, deleted or replaced"):
            call()
    assert confirmed == [FIRST]


class Deleting(UnsyncedFiles):
    """Deletes ``path`` after each write of records."""

    path: Path | None = None

    def pwrite(self, fd, data, offset):
        super().pwrite(fd, data, offset)
        if self.path is not None and offset:
            self.path.unlink(missing_ok=True)


def test_segment_deleted_within_a_flush_confirms_nothing(index, tmp_path):
    """After its records were written, and when the flush goes on in another one."""

    files, confirmed = Deleting(), []
    store = open_with(tmp_path, files, index=index, sync_interval="1h", gc_interval=0, file_size_limit=1000)
    client = store.client(on_confirm=confirmed.extend)
    client.write(FIRST, b"first")
    store.flush()
    files.path = segment_of(store)
    for number in range(10, 20):
        client.write(bytes([number]) * 16, bytes(300))
    for _ in range(2):
        with pytest.raises(msgstore.StoreIOError, match=f"{files.path}: was moved, deleted or replaced"):
            store.flush()
    store.abandon()
    assert confirmed == [FIRST]


def test_flush_looks_at_files_once(index, tmp_path):
    """A look costs a tenth of a small flush."""

    class Looking(UnsyncedFiles):
        looks = 0

        def identity(self, file):
            self.looks += 1
            return super().identity(file)

    files = Looking()
    with open_with(tmp_path, files, index=index, sync_interval="1h", gc_interval=0) as store:
        client = store.client()
        client.write(FIRST, b"first")
        store.flush()
        before = files.looks
        client.write(SECOND, b"second")
        store.flush()
        client.remove([FIRST])
        store.flush()
        assert files.looks - before == 1, "a flush looks at its files more than once, or for nothing"


def test_segment_deleted_behind_its_last_write_confirms_nothing(index, tmp_path):
    """The flush has looked at it before, and begins no other one."""

    files, confirmed = Deleting(), []
    store = open_with(tmp_path, files, index=index, sync_interval="1h", gc_interval=0)
    client = store.client(on_confirm=confirmed.extend)
    client.write(FIRST, b"first")
    store.flush()
    files.path = segment_of(store)
    client.write(SECOND, b"second")
    with pytest.raises(msgstore.StoreIOError, match=f"{files.path}: was moved, deleted or replaced"):
        store.flush()
    assert confirmed == [FIRST], "a message in a deleted segment was confirmed"
    store.abandon()
