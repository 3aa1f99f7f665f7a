"""The directory of a new store is there after a power loss, with every parent that was made for it."""

from __future__ import annotations

import errno
import os

import pytest

import msgstore
from msgstore.testing.faults import FailingFiles, RecordingFiles
from support import open_with


@pytest.mark.parametrize("durability", ["os", "fsync", {"fsync_every": "1h"}], ids=["os", "fsync", "fsync_every"])
def test_new_store_syncs_every_parent_it_made(durability, tmp_path):
    files = RecordingFiles()
    open_with(tmp_path / "a" / "b" / "store", files, durability=durability).close()
    synced = [path for name, path, _ in files.operations if name == "sync_directory"]
    assert synced[:3] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_existing_directory_syncs_no_parents(tmp_path):
    files = RecordingFiles()
    open_with(tmp_path, files).close()
    assert ("sync_directory", str(tmp_path.parent), 0) not in files.operations


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
