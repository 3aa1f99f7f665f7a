"""Writes of LMDB that the operating system refuses: a page, a meta page, a sync. The next commit has everything."""

from __future__ import annotations

import errno
import random
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from crash.files import unwritable
from lmdb_support import MIB, Entry, commit, ids, limited, opened, stored
from msgstore.testing import IndexTests
from msgstore.testing.index_model import IndexDirectory
from msgstore.testing.subjects import Subject
from msgstore_lmdb_index import plugin
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds LMDB's descriptors in /proc")

FAULTS = {"page": ("EIO", False), "page, synced": ("EIO", True), "meta page": ("SHORT", True), "sync": ("SYNC", True)}
"""Kind of a failure (see ``unwritable``), and whether commits are synced."""
methods = pytest.mark.parametrize("method", ["commit", "close"])
ROUND_2 = {b"round": b"2"}


def changed(index: LmdbIndex) -> list[Entry]:
    """Commit three entries, then add, remove and count others. Returns what the index must have now."""
    a, b, c, d, e = ids(0, 5)
    index.enter([a, b, c], [1, 2, 3])
    commit(index, {b"round": b"1"})
    index.add_reference(a)
    index.release([b])
    index.enter([c, d, e], [4, 5, 6], [1, 2, 1])
    index.release([d])
    return sorted([(a, 1, 2), (c, 4, 1), (d, 5, 1), (e, 6, 1)])


def fails(index: LmdbIndex, method: str, match: str) -> None:
    with pytest.raises(OSError, match=match):
        index.commit() if method == "commit" else index.close(ROUND_2)


@pytest.mark.parametrize(("kind", "sync"), FAULTS.values(), ids=FAULTS)
@methods
def test_next_write_after_failed_one_stores_everything(tmp_path: Path, kind: str, sync: bool, method: str) -> None:
    index = opened(tmp_path, sync=sync)
    expected = changed(index)
    index.freeze(ROUND_2 if method == "commit" else {})
    for _ in range(2):
        with unwritable(kind):
            fails(index, method, "commit")
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

    def stored_and_failed(environment: Environment, *arguments: Any, **options: bool) -> None:
        write(environment, *arguments, **options)
        environment.has_failed = True
        raise OSError(errno.EIO, "the write of the meta page was reported as failed")

    with mock.patch.object(Environment, "write", stored_and_failed):
        for round_ in range(3):
            index.freeze({b"round": b"%d" % round_})
            fails(index, method, "meta page")
            assert sorted(index.items()) == expected, "the changes were applied twice"
            assert len(index) == len(expected), "the number of entries counts the changes twice"
    index.add_reference(ids(0, 1)[0])
    index.close(ROUND_2)
    index = opened(tmp_path, ROUND_2)
    assert index.references(ids(0, 1)[0]) == 3, "the count of the message is wrong after the commit was repeated"
    index.close(None)


@pytest.mark.parametrize("vanishes", [False, True])
def test_reads_raise_until_environment_opens_again(tmp_path: Path, vanishes: bool) -> None:
    """LMDB cannot open its file again, or the file is gone: an empty environment in its place would be taken for everything
    that was stored."""
    index = opened(tmp_path, sync=True)
    expected = changed(index)
    index.freeze({})
    data = tmp_path / DIRECTORY / "data.mdb"
    with unwritable("SHORT"), limited(resource.RLIMIT_NOFILE, 10_000 if vanishes else 0):
        if vanishes:
            data.rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(OSError) as failure:
                index.commit()
            assert "MDB_PANIC" not in str(failure.value)
        for read in (lambda: index.get(bytes(16)), index.items):
            with pytest.raises(OSError, match="could not be reopened"):
                read()
        assert index.get(expected[0][0]) == expected[0][1], "an entry that is in memory cannot be read"
    if vanishes:
        assert not data.exists(), "an empty environment was made in the place of the one that is gone"
        (tmp_path / "elsewhere").rename(data)
    assert index.get(bytes(16)) is None, "the index cannot be read although the fault is lifted"
    index.commit()
    assert sorted(index.items()) == expected
    assert len(index) == len(expected)
    index.close({})
    assert stored(tmp_path) == ({}, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside",
    [
        IndexTests.test_changes_between_the_steps_of_a_read,
        partial(IndexTests.test_changes_while_a_commit_runs, fails=False),
    ],
    ids=["a read", "a commit"],
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

    place = IndexDirectory(Subject.of(*plugin.msgstore_indexes()), tmp_path)
    patch = mock.patch.object
    with patch(Environment, "write", write_or_fail), patch(LmdbIndex, "commit", commit_at_last):
        beside(IndexTests(), place)
    assert failures


def test_commit_that_found_no_room_is_retried(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.enter(ids(0, 10), range(10), [3] * 10)
    commit(index)
    with limited(resource.RLIMIT_FSIZE, 40_000):
        for entries, left in ((1000, 2), (30_000, 1)):  # within the map, and where it has to grow
            index.enter(ids(10, entries), range(10, entries))
            index.release(ids(0, 1))
            with pytest.raises(OSError) as failure:
                commit(index, {b"tail": b"%d" % entries})
            assert failure.value.errno in (errno.EFBIG, errno.EIO)  # LMDB makes EIO of a short write
            assert (len(index), index.references(ids(0, 1)[0]), index.get(ids(999, 1000)[0])) == (entries, left, 999)
    commit(index, {b"tail": b"30000"})
    index.close(None)
    index = opened(tmp_path, {b"tail": b"30000"}, map_size=2 * MIB)
    assert len(index) == len(list(index.items())) == 30_000
    assert (index.references(ids(0, 1)[0]), index.references(ids(1, 2)[0])) == (1, 3)
    index.close(None)
