"""The stress test can fail: builds that are broken on purpose are caught by it, and so is one that hangs.

What is replaced is the contract's or public: an index's methods, a format's, a file operation, a call of the store or a client.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest import mock

import attrs
import pytest

import msgstore
from msgstore.engine.write.flusher import Flusher
from stress.running import Options, StressFiles, run
from support import CELLS, catalogue, in_threads

pytestmark = pytest.mark.crash

MESSAGES = 6_000
CELL = CELLS["ets-v2"]
A_FEW = 4
"""Calls of ``on_confirm``. All clients together may be called fewer than thirty times: a flush confirms what is there."""
Make = Callable[[Callable[..., Any], Callable[[], bool]], Callable[..., Any]]
"""Makes the broken function of the sound one, and of a call that says whether it fails this time."""


@attrs.frozen
class Build:
    """A method that fails every ``every``-th time."""

    name: str
    every: int
    make: Make
    symptoms: frozenset[str] = attrs.field(converter=lambda names: frozenset(names.split()))


def now_and_then(every: int) -> Callable[[], bool]:
    turns = count(1)
    return lambda: next(turns) % every == 0


def factory(descriptor: Any) -> type:
    module, _, attribute = str(descriptor.factory).partition(":")
    return getattr(importlib.import_module(module), attribute)


def owner(name: str) -> type:
    """The class that has the method."""
    if name in ("release", "add_reference"):
        return factory(catalogue().index(CELL.index))
    if name == "decode":
        return factory(catalogue().format(CELL.format))
    return {"client": msgstore.Store, "flush": Flusher}.get(name, StressFiles)


def lose_reference(sound, due):
    return lambda index, msg_id: index.references(msg_id) > 0 if due() else sound(index, msg_id)


def cut_more(sound, due):
    return lambda files, fd, size: sound(files, fd, size - 30 * due())


def what_another_read(sound, due):
    last = [b""]

    def decode(form, msg_id, record):
        before, last[0] = last[0], sound(form, msg_id, record)
        return before if due() else last[0]

    return decode


def telling(spoil: Callable[[list[bytes]], list[bytes]]) -> Make:
    """Clients are told what ``spoil`` makes of the ids."""
    return lambda sound, due: (
        lambda store, name=None, on_confirm=None: sound(
            store, name, on_confirm and (lambda ids: on_confirm(spoil(ids) if due() else ids))
        )
    )


BUILDS = {
    "a removal forgets": Build("release", 20, lambda sound, due: lambda it, ids: sound(it, ids[1:] if due() else ids), "ghost"),
    "a second reference is not counted": Build("add_reference", 5, lose_reference, "lost mismatch"),
    "a reader returns what another read": Build("decode", 300, what_another_read, "mismatch"),
    "told in another order": Build("client", A_FEW, telling(lambda ids: ids[::-1]), "confirm"),
    "one is never told": Build("client", A_FEW, telling(lambda ids: ids[:-1]), "confirm"),
    "a flush returns early": Build("flush", 3, lambda sound, due: lambda it: None if due() else sound(it), "confirm"),
    "a truncation cuts too much": Build("truncate", 1, cut_more, "error mismatch skipped"),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_broken_build_is_caught(build, need_cell, tmp_path):
    need_cell(CELL)
    kind = owner(build.name)
    with mock.patch.object(kind, build.name, build.make(getattr(kind, build.name), now_and_then(build.every))):
        outcome = run(tmp_path / "store", Options(MESSAGES, CELL.keys))
    assert outcome.findings.kinds.keys() & build.symptoms, str(outcome.findings)


def test_a_sound_build_is_not(need_cell, tmp_path):
    need_cell(CELL)
    outcome = run(tmp_path / "store", Options(MESSAGES, CELL.keys))
    assert not outcome.findings, str(outcome.findings)


def test_a_hang_is_a_failure_with_the_stacks_of_all_threads():
    let_go = threading.Event()

    def where_it_hangs():
        let_go.wait()

    try:
        with pytest.raises(AssertionError, match="a thread hangs") as caught:
            in_threads(where_it_hangs, seconds=0.5)
        assert "where_it_hangs" in str(caught.value)
    finally:
        let_go.set()
