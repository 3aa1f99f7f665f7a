"""Writes of LMDB that the operating system refuses: a page, a meta page, a sync. The next commit has everything."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

import msgstore
from msgstore.contract import IndexContext
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index.place import Place
from msgstore.testing.index.readers import ReaderTests
from msgstore.testing.subjects import Subject
from msgstore_lmdb_index import plugin
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds LMDB's descriptors in /proc")

Entry = tuple[bytes, int, int]


@attrs.frozen
class Fault:
    """What LMDB's descriptors of its data file are replaced by."""

    sync: bool
    """Whether commits are synced; then LMDB has a descriptor of its own for meta pages."""
    meta: bool
    """Whether the one for meta pages is replaced, or all others."""
    takes_writes: bool = False
    """True if writes succeed and a sync fails."""

    def inject(self, data: Path) -> None:
        """Until LMDB opens the file again."""
        path, flags = (os.devnull, os.O_RDWR) if self.takes_writes else (data, os.O_RDONLY)
        found = [fd for fd, is_synced in descriptors(data) if is_synced == self.meta]
        assert found, f"LMDB has no descriptor of {data} open"
        other = os.open(path, flags)
        for fd in found:
            os.dup2(other, fd)
        os.close(other)


FAULTS = {
    "page": Fault(sync=False, meta=False),
    "page-synced": Fault(sync=True, meta=False),
    "meta page": Fault(sync=True, meta=True),
    "sync": Fault(sync=True, meta=False, takes_writes=True),
}
faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
methods = pytest.mark.parametrize("method", ["commit", "close"])
ROUND_2 = {b"round": b"2"}


def descriptors(data: Path) -> list[tuple[int, bool]]:
    """(descriptor, whether its writes are synced) of each that this process has of a file."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if link.readlink() == data:
                fd = int(link.name)
                found.append((fd, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC)))
    return found


def make(directory: Path, *, sync: bool = False) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(), directory, UnsyncedFiles(), sync=sync))


def opened(directory: Path, *, sync: bool = False) -> LmdbIndex:
    index = make(directory, sync=sync)
    index.load()
    return index


def stored(directory: Path) -> tuple[object, list[Entry]]:
    """State and entries that are on disk."""
    index = make(directory)
    state, entries = index.load(), sorted(index.items())
    index.close(None)
    return state, entries


def ids(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(count)]


def body(msg_id: bytes) -> bytes:
    return b"body of " + msg_id


def changed(index: LmdbIndex) -> list[Entry]:
    """Commit three entries, then add, remove and count others. Returns what the index must have now."""
    a, b, c, d, e = ids(5)
    index.enter([a, b, c], [1, 2, 3])
    index.freeze({b"round": b"1"})
    index.commit()
    index.add_reference(a)
    index.release([b])
    index.enter([c, d, e], [4, 5, 6], [1, 2, 1])
    index.release([d])
    return sorted([(a, 1, 2), (c, 4, 1), (d, 5, 1), (e, 6, 1)])


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """No file can be opened: LMDB cannot open its own again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@faults
@methods
def test_next_write_after_failed_one_stores_everything(tmp_path: Path, fault: Fault, method: str) -> None:
    index = opened(tmp_path, sync=fault.sync)
    expected = changed(index)
    if method == "commit":
        index.freeze(ROUND_2)
    for _ in range(2):
        fault.inject(tmp_path / DIRECTORY / "data.mdb")
        with pytest.raises(OSError, match="commit"):
            index.commit() if method == "commit" else index.close(ROUND_2)
        assert sorted(index.items()) == expected, "entries that could not be written are gone from the index"
        assert len(index) == len(expected), "the number of entries is wrong after a failed write"
    index.commit() if method == "commit" else index.close(ROUND_2)
    index.close(None)
    assert stored(tmp_path) == (ROUND_2, expected), "entries of the write that failed are not in the next one"


@methods
def test_counts_are_kept_when_reported_failure_was_stored(tmp_path: Path, method: str) -> None:
    """A meta page may be on disk although its write was reported as failed."""
    index = opened(tmp_path)
    expected = changed(index)
    write = Environment.write

    def stored_and_failed(environment: Environment, *arguments: object, **options: bool) -> None:
        write(environment, *arguments, **options)  # type: ignore[arg-type]
        environment.has_failed = True
        raise OSError(errno.EIO, "the write of the meta page was reported as failed")

    with mock.patch.object(Environment, "write", stored_and_failed):
        for round_ in range(3):
            index.freeze({b"round": b"%d" % round_})
            with pytest.raises(OSError, match="meta page"):
                index.commit() if method == "commit" else index.close(ROUND_2)
            assert sorted(index.items()) == expected, "the changes were applied twice"
            assert len(index) == len(expected), "the number of entries counts the changes twice"
    index.add_reference(ids(1)[0])
    index.close(ROUND_2)
    index = make(tmp_path)
    assert index.load() == ROUND_2
    assert index.references(ids(1)[0]) == 3, "the count of the message is wrong after the commit was repeated"
    index.close(None)


def test_reads_raise_until_environment_opens_again(tmp_path: Path) -> None:
    index = opened(tmp_path, sync=True)
    expected = changed(index)
    index.freeze({})
    FAULTS["meta page"].inject(tmp_path / DIRECTORY / "data.mdb")
    with no_descriptors_left():
        for _ in range(2):
            with pytest.raises(OSError) as failure:
                index.commit()
            assert "MDB_PANIC" not in str(failure.value)
        with pytest.raises(OSError, match="could not be reopened"):
            index.get(bytes(16))
        with pytest.raises(OSError, match="could not be reopened"):
            index.items()
        assert index.get(expected[0][0]) == expected[0][1], "an entry that is in memory cannot be read"
    assert index.get(bytes(16)) is None, "the index cannot be read although the fault is lifted"
    assert len(index) == len(expected)
    index.commit()
    assert sorted(index.items()) == expected
    index.close({})
    assert stored(tmp_path) == ({}, expected)


def test_store_flushes_once_index_opens_again(tmp_path: Path) -> None:
    a, b = ids(2)
    store = msgstore.open_store(tmp_path, index="lmdb", durability="fsync", sync_interval="1h")
    with contextlib.ExitStack() as stack:
        stack.callback(store.abandon)
        client = store.client()
        client.write(a, body(a))
        store.flush()
        client.write(b, body(b))
        FAULTS["meta page"].inject(tmp_path / DIRECTORY / "data.mdb")
        with no_descriptors_left():
            for _ in range(2):
                with pytest.raises(msgstore.StoreIOError):
                    store.flush()
            with pytest.raises(msgstore.StoreIOError, match="could not be reopened"):
                client.read(a)
            with pytest.raises(msgstore.StoreIOError):
                store.close()
        store.flush()
        assert [client.read(msg_id) for msg_id in (a, b)] == [body(a), body(b)], "messages are lost"
        store.close()


@pytest.mark.parametrize(
    "beside",
    [ReaderTests.test_readers_see_what_was_or_what_is, ReaderTests.test_a_commit_beside_other_threads],
    ids=["readers", "writers"],
)
def test_commits_that_fail_beside_threads(tmp_path: Path, beside: Callable[..., None]) -> None:
    """Tests of the conformance kit in which each fourth commit fails, and is tried again while the others go on. LMDB crashes
    the process if an environment is closed under a transaction that reads."""
    chance, write, commit, failures = random.Random(2), Environment.write, LmdbIndex.commit, []  # the first one fails

    def write_or_fail(environment: Environment, *arguments: Any, **options: bool) -> None:
        if not chance.randrange(4):
            raise OSError(errno.ENOSPC, "no room")
        write(environment, *arguments, **options)

    def commit_at_last(index: LmdbIndex) -> None:
        for _ in range(100):
            assert len(index._layers) <= 2  # or look-ups would become slower
            try:
                return commit(index)
            except OSError as error:
                failures.append(error)
        raise AssertionError("no commit succeeds")

    (descriptor,) = plugin.msgstore_indexes()
    place = Place(Subject.of(descriptor), tmp_path / "store")
    place.directory.mkdir()
    patch = mock.patch.object
    with patch(Environment, "write", write_or_fail), patch(LmdbIndex, "commit", commit_at_last):
        beside(None, place)
    assert failures


def test_environment_that_vanished_is_not_made_anew(tmp_path: Path) -> None:
    """An empty environment in its place would be taken for everything that was stored."""
    index = opened(tmp_path, sync=True)
    expected = changed(index)
    index.freeze({})
    data = tmp_path / DIRECTORY / "data.mdb"
    FAULTS["meta page"].inject(data)
    data.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(OSError):
            index.commit()
    assert not data.exists(), "an empty environment was made in the place of the one that is gone"
    (tmp_path / "elsewhere").rename(data)
    index.commit()
    assert sorted(index.items()) == expected
    index.close(None)
