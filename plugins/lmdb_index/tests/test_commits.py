"""Commits that fail, alone and beside threads that read and write. ``test_index.py`` has what a crash around one leaves."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from msgstore.contract import IndexContext
from msgstore.files import Files
from msgstore.testing import IndexTests
from msgstore.testing.index.place import Place
from msgstore.testing.subjects import Subject
from msgstore_lmdb_index import plugin
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.index import LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions


def make(directory: Path) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(), directory, Files()))


def failing(point: str, should_fail: Callable[[], bool]) -> Any:
    """Let a method of the environment raise OSError instead, when it should."""
    method = getattr(Environment, point)

    def call(environment: Environment, *arguments: object, **options: bool) -> None:
        if should_fail():
            raise OSError(errno.ENOSPC, "no room")
        method(environment, *arguments, **options)

    return mock.patch.object(Environment, point, call)


@pytest.mark.parametrize("point", ["write", "renew"])
def test_commits_that_fail_add_up(tmp_path: Path, point: str) -> None:
    """Before the transaction, and behind it. Look-ups stay as fast as after the first one: there is one frozen layer."""
    index = make(tmp_path)
    index.load()
    known = [random.Random(number).randbytes(16) for number in range(40)]
    failures = iter(range(10))
    with failing(point, lambda: next(failures, None) is not None):
        for round_ in range(10):
            index.enter(known[round_ * 3 : round_ * 3 + 5], range(round_ * 3, round_ * 3 + 5))
            index.release(known[round_ : round_ + 1])
            index.freeze({b"round": b"%d" % round_, b"%d" % round_: b""})
            assert len(index._layers) == 2
            with pytest.raises(OSError, match="no room"):
                index.commit()
            assert len(index) == len(list(index.items())) == round_ * 2 + 4
            assert index.get(known[round_]) is None
        index.commit()
    expected = sorted((known[number], number, 1) for number in range(10, 32))
    assert sorted(index.items()) == expected
    assert len(index) == 22
    index.close(None)
    index = make(tmp_path)
    assert index.load() == {b"round": b"9", **{b"%d" % round_: b"" for round_ in range(10)}}
    assert sorted(index.items()) == expected
    index.close(None)


def test_commits_that_fail_beside_changes(tmp_path: Path) -> None:
    """A test of the conformance kit in which commits fail, and are tried again while another thread changes entries."""
    chance, commit, failures = random.Random(2), LmdbIndex.commit, []  # the first one fails

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
    with failing("write", lambda: not chance.randrange(4)), mock.patch.object(LmdbIndex, "commit", commit_at_last):
        IndexTests().test_changes_while_a_commit_runs(place)
    assert failures
