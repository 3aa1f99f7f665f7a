"""Commits beside threads that read and write, commits that fail, and what a crash around one leaves."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from msgstore.contract import IndexContext
from msgstore.files import Files
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.index import LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions

Entry = tuple[bytes, int, int]


def make(directory: Path) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(), directory, Files()))


def opened(directory: Path) -> LmdbIndex:
    index = make(directory)
    index.load()
    return index


def ids(begin: int, end: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(begin, end)]


def crash_copy(directory: Path, number: int) -> tuple[dict[bytes, bytes] | None, list[Entry]]:
    """State and entries that a process would find which starts after this one was killed now."""
    copy = directory.with_name(f"{directory.name}-{number}")
    shutil.copytree(directory, copy)
    index = make(copy)
    state = index.load()
    found = sorted(index.items())
    index.close(None)
    shutil.rmtree(copy)
    return state, found


def test_a_crash_around_a_commit(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    a, b, c = sorted(ids(0, 3))
    index = opened(directory)
    index.enter([a, b], [1, 2])
    index.freeze({b"row": b"1"})
    index.commit()
    index.release([a])
    index.relocate([b], [2], [3])
    index.freeze({b"row": b"2"})
    assert crash_copy(directory, 1) == ({b"row": b"1"}, [(a, 1, 1), (b, 2, 1)])
    index.enter([c], [4])
    index.add_reference(b)
    inside = []
    write = Environment.write

    def looked_at(environment: Environment, *arguments: object, **options: bool) -> None:
        inside.append(crash_copy(directory, 2))
        write(environment, *arguments, **options)  # type: ignore[arg-type]
        inside.append(crash_copy(directory, 3))

    with mock.patch.object(Environment, "write", looked_at):
        index.commit()
    assert inside == [({b"row": b"1"}, [(a, 1, 1), (b, 2, 1)]), ({b"row": b"2"}, [(b, 3, 1)])]
    assert crash_copy(directory, 4) == ({b"row": b"2"}, [(b, 3, 1)])
    assert sorted(index.items()) == [(b, 3, 2), (c, 4, 1)]
    index.commit()  # nothing was frozen
    assert crash_copy(directory, 5) == ({b"row": b"2"}, [(b, 3, 1)])
    index.freeze({b"row": None})
    index.commit()
    assert crash_copy(directory, 6) == ({}, [(b, 3, 2), (c, 4, 1)])
    index.close(None)


def failing(method: Callable[..., None], times: int) -> Callable[..., None]:
    """``method``, which raises the first ``times`` times."""
    left = [times]

    def call(environment: Environment, *arguments: object, **options: bool) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ENOSPC, "no room")
        method(environment, *arguments, **options)

    return call


@pytest.mark.parametrize("point", ["write", "renew"])
def test_commits_that_fail_add_up(tmp_path: Path, point: str) -> None:
    """Before the transaction, and behind it. Look-ups stay as fast as after the first one: there is one frozen layer."""
    index = opened(tmp_path)
    known = ids(0, 40)
    with mock.patch.object(Environment, point, failing(getattr(Environment, point), 10)):
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


class Beside:
    """Threads that write under a lock of theirs, as a store's do, and readers without it.

    A location is a version, and versions only grow: ``said[n]`` is the newest one of an id that a writer is done with, ``next``
    the newest one that any may have given.
    """

    OPERATIONS = 8000
    KEPT, ALL = 24, 48
    """Of ids: the first ones are never removed."""

    def __init__(self, index: LmdbIndex) -> None:
        self.index = index
        self.ids = ids(0, self.ALL)
        self.lock = threading.Lock()
        self.entries: dict[bytes, tuple[int, int]] = {}
        self.frozen: dict[bytes, tuple[int, int]] = {}
        self.said = [1] * self.ALL
        self.next = 1
        self.stop = threading.Event()
        self.wrong: list[object] = []
        self.reads = self.commits = self.failures = 0
        index.enter(self.ids, [1] * self.ALL)
        self.entries = dict.fromkeys(self.ids, (1, 1))

    def write(self, seed: int) -> None:
        rng = random.Random(seed)
        done = 0
        while done < self.OPERATIONS or not (self.has_met_enough or self.wrong):
            done += 1
            number = rng.randrange(self.ALL)
            msg_id = self.ids[number]
            with self.lock:
                at, count = self.entries.get(msg_id, (0, 0))
                choice = rng.randrange(4)
                if choice == 0:
                    assert self.index.add_reference(msg_id) == (count > 0)
                    if count:
                        self.entries[msg_id] = (at, count + 1)
                elif choice == 1 and (number >= self.KEPT or count > 1):
                    released = self.index.release([msg_id])
                    assert (released.freed, released.missing) == ([(msg_id, at)] * (count == 1), [msg_id] * (count == 0))
                    self.entries[msg_id] = (at, count - 1)
                    if count <= 1:
                        del self.entries[msg_id]
                else:
                    self.next += 1
                    if choice == 2 and count:
                        assert self.index.relocate([msg_id], [at], [self.next]) == 1
                        self.entries[msg_id] = (self.next, count)
                    else:
                        self.index.enter([msg_id], [self.next])
                        self.entries[msg_id] = (self.next, 1)
                    self.said[number] = self.next
                if not rng.randrange(20):
                    assert len(self.index) == len(self.entries)
                if not rng.randrange(50):
                    assert {msg_id: (at, count) for msg_id, at, count in self.index.items()} == self.entries

    @property
    def has_met_enough(self) -> bool:
        """However seldom the others came to the lock."""
        return min(self.reads, self.commits, self.failures) > 10

    def read(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stop.is_set():
            number = rng.randrange(self.ALL)
            least = self.said[number]
            found = self.index.get(self.ids[number])
            self.reads += 1
            if found is None:
                assert number >= self.KEPT
            else:
                assert least <= found <= self.next, (number, least, found)

    def commit(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stop.is_set():
            with self.lock:
                for _ in range(rng.randrange(1, 3)):
                    self.index.freeze({b"next": b"%d" % self.next})
                self.frozen = self.entries.copy()
            try:
                self.index.commit()
                self.commits += 1
            except OSError:
                self.failures += 1
            assert len(self.index._layers) <= 2  # or look-ups would become slower

    def run(self, directory: Path) -> None:
        write = Environment.write
        rng = random.Random(0)

        def now_and_then(environment: Environment, *arguments: object, **options: bool) -> None:
            if not rng.randrange(4):
                raise OSError(errno.EIO, "injected")
            write(environment, *arguments, **options)  # type: ignore[arg-type]

        def watched(work: Callable[[int], None], seed: int) -> None:
            try:
                work(seed)
            except BaseException as error:
                self.wrong.append(error)

        others = [threading.Thread(target=watched, args=job) for job in ((self.read, 1), (self.read, 2), (self.commit, 3))]
        writers = [threading.Thread(target=watched, args=(self.write, seed)) for seed in (4, 5)]
        with mock.patch.object(Environment, "write", now_and_then):
            for thread in writers + others:
                thread.start()
            for thread in writers:
                thread.join()
            self.stop.set()
            for thread in others:
                thread.join()


def test_commits_beside_threads(tmp_path: Path) -> None:
    index = opened(tmp_path)
    beside = Beside(index)
    beside.run(tmp_path)
    assert beside.wrong == []
    assert beside.has_met_enough
    index.commit()  # whatever the last one froze
    index.add_reference(beside.ids[0])  # nobody freezes this
    index.close(None)
    index = opened(tmp_path)
    assert {msg_id: (at, count) for msg_id, at, count in index.items()} == beside.frozen
    assert len(index) == len(beside.frozen)
    index.close(None)
