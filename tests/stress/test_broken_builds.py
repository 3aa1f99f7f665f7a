"""The stress test can fail: builds that are broken on purpose are caught by it, and so is one that hangs.

What is replaced is the contract's or public: an index's methods, a format's, a file operation, a call of the store or a client.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

import pytest

import msgstore
from msgstore.engine.write.flusher import Flusher
from stress.running import Options, StressFiles
from stress.watchdog import bounded
from support import CELLS, catalogue

pytestmark = pytest.mark.crash

MESSAGES = 6_000
CELL = CELLS["ets-v2"]
A_FEW = 4
"""Calls of ``on_confirm``. All clients together may be called fewer than thirty times: a flush confirms what is there."""


def factory(descriptor: Any) -> type:
    module, _, attribute = str(descriptor.factory).partition(":")
    return getattr(importlib.import_module(module), attribute)


def index_class() -> type:
    return factory(catalogue().index(CELL.index))


@contextmanager
def replaced(kind: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """``kind.name`` is what ``make`` makes of it."""
    with mock.patch.object(kind, name, make(getattr(kind, name))):
        yield


def now_and_then(every: int) -> Callable[[], bool]:
    turns = count(1)
    return lambda: next(turns) % every == 0


def a_removal_forgets():
    due = now_and_then(20)
    return replaced(index_class(), "release", lambda sound: lambda index, ids: sound(index, ids[1:] if due() else ids))


def a_second_reference_is_not_counted():
    due = now_and_then(5)
    return replaced(
        index_class(),
        "add_reference",
        lambda sound: lambda index, msg_id: index.references(msg_id) > 0 if due() else sound(index, msg_id),
    )


def a_move_is_not_entered():
    due = now_and_then(5)
    return replaced(
        index_class(),
        "relocate",
        lambda sound: lambda index, ids, old, new: len(ids) if due() else sound(index, ids, old, new),
    )


def a_reader_returns_what_another_read():
    last, due = [b""], now_and_then(300)

    def make(sound):
        def decode(form, msg_id, record):
            before, last[0] = last[0], sound(form, msg_id, record)
            return before if due() else last[0]

        return decode

    return replaced(factory(catalogue().format(CELL.format)), "decode", make)


def telling(tell):
    """Clients are told what ``tell`` makes of the ids."""

    def make(sound):
        def client(store, name=None, on_confirm=None):
            return sound(store, name, on_confirm and (lambda ids: on_confirm(tell(ids))))

        return client

    return replaced(msgstore.Store, "client", make)


def told_twice():
    due = now_and_then(A_FEW)
    return telling(lambda ids: ids + ids[-1:] if due() else ids)


def told_in_another_order():
    due = now_and_then(A_FEW)
    return telling(lambda ids: ids[::-1] if due() else ids)


def one_is_never_told():
    due = now_and_then(A_FEW)
    return telling(lambda ids: ids[:-1] if due() else ids)


def a_flush_returns_early():
    due = now_and_then(3)
    return replaced(Flusher, "flush", lambda sound: lambda flusher: None if due() else sound(flusher))


class CutsTooMuch(StressFiles):
    def truncate(self, fd, size):
        super().truncate(fd, size - 30)


class WritesBesides(StressFiles):
    """Every hundredth write lands a byte further on than it should."""

    def __init__(self) -> None:
        super().__init__()
        self._due = now_and_then(100)

    def pwrite(self, fd, data, offset):
        super().pwrite(fd, data, offset + self._due())


@contextmanager
def as_it_is():
    yield


@pytest.mark.parametrize(
    ("build", "files", "symptoms"),
    [
        (a_removal_forgets, StressFiles, {"ghost"}),
        (a_second_reference_is_not_counted, StressFiles, {"lost", "mismatch"}),
        (a_move_is_not_entered, StressFiles, {"error", "mismatch", "skipped"}),
        (a_reader_returns_what_another_read, StressFiles, {"mismatch"}),
        (told_twice, StressFiles, {"confirm"}),
        (told_in_another_order, StressFiles, {"confirm"}),
        (one_is_never_told, StressFiles, {"confirm"}),
        (a_flush_returns_early, StressFiles, {"confirm"}),
        (as_it_is, CutsTooMuch, {"error", "mismatch", "skipped"}),
        (as_it_is, WritesBesides, {"error", "mismatch", "skipped"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_build_is_caught(build, files, symptoms, need_cell, tmp_path, run_bounded):
    need_cell(CELL)
    with build():
        outcome = run_bounded(tmp_path / "store", Options(MESSAGES, CELL.keys), files())
    assert outcome.findings.kinds.keys() & symptoms, str(outcome.findings)


def test_a_sound_build_is_not(need_cell, tmp_path, run_bounded):
    need_cell(CELL)
    outcome = run_bounded(tmp_path / "store", Options(MESSAGES, CELL.keys))
    assert not outcome.findings, str(outcome.findings)


def test_a_hang_is_a_failure_with_the_stacks_of_all_threads():
    let_go = threading.Event()

    def where_it_hangs():
        let_go.wait()

    stuck = threading.Thread(target=where_it_hangs)

    def run():
        stuck.start()
        stuck.join()

    try:
        with pytest.raises(AssertionError, match="no end after") as caught:
            bounded(run, 0.5, 2)
        assert "where_it_hangs" in str(caught.value)
    finally:
        let_go.set()
        stuck.join()


def test_what_a_bounded_action_returns_or_raises():
    assert bounded(os.getpid, 60, 2) == os.getpid()
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 60, 2)
