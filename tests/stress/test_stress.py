"""Eight threads write, read and remove on one store while it is collected: nothing is lost, nothing returns, no byte is wrong.

``--stress N`` sets the number of messages; with two million a run takes minutes a cell. Formats and record types other than the
default's are run with the ordinary number at most: they do not differ in what threads can do to each other.

The stress test can fail: builds that are broken on purpose are caught by it, and so is one that hangs. What is replaced is the
contract's or public: an index's methods, a format's, a file operation, a call of the store or a client.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest import mock

import pytest

import msgstore
from msgstore.contract import Capability
from msgstore.engine.write.flusher import Flusher
from stress.running import StressFiles, run
from support import CELLS, catalogue, in_threads

pytestmark = pytest.mark.crash

ORDINARY = 60_000
FULL = ("ets-v2", "lmdb-v2")
VARIANTS = [
    ("ets-v2", {"reads": "mmap"}),
    ("ets-v2", {"durability": "fsync"}),
    ("lmdb-v2", {"durability": "fsync"}),
    ("lmdb-v2", {"sync_interval": "1h"}),
]


@pytest.fixture
def messages(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--stress")


def check(outcome, cell, messages):
    assert not outcome.findings, str(outcome.findings)
    counts = outcome.counts
    assert counts["messages"] >= messages
    assert counts["reads"] > messages, "too little was read to say anything"
    assert counts["writes"] == counts["confirms"] > counts["messages"]
    assert counts["removes"] > counts["messages"] // 2
    in_place = Capability.SELF_DESCRIBING in catalogue().format(cell.format).capabilities
    assert counts["cuts"] > 2 or not in_place, "the collector had too little to do to say anything"
    assert counts["cuts"] + counts["deletions"] > 20


def test_threads_write_read_remove_and_collect(cell, messages, tmp_path, report):
    if str(cell) not in FULL:
        messages = min(messages, ORDINARY)
    outcome = run(tmp_path / "store", messages, **cell.keys)
    report("stress", f"{cell}: {outcome}")
    check(outcome, cell, messages)
    if messages >= ORDINARY:
        assert outcome.counts["segments"] > 200


@pytest.mark.parametrize(("name", "keys"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_with_other_keys_of_the_configuration(name, keys, need_cell, messages, tmp_path, report):
    need_cell(CELLS[name])
    messages = min(messages, ORDINARY) // 3
    outcome = run(tmp_path / "store", messages, **CELLS[name].keys | keys)
    report("stress", f"{name} {keys}: {outcome}")
    check(outcome, CELLS[name], messages)


# -- broken builds --------------------------------------------------------------------------------------------------------

CELL = CELLS["ets-v2"]
A_FEW = 4
"""Calls of ``on_confirm``. All clients together may be called fewer than thirty times: a flush confirms what is there."""


def owner(name: str) -> type:
    """The class that has the method."""
    if name in ("release", "add_reference", "decode"):
        descriptor = catalogue().format(CELL.format) if name == "decode" else catalogue().index(CELL.index)
        module, _, attribute = str(descriptor.factory).partition(":")
        return getattr(importlib.import_module(module), attribute)
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


def telling(spoil: Callable[[list[bytes]], list[bytes]]) -> Callable[..., Any]:
    """Clients are told what ``spoil`` makes of the ids."""
    return lambda sound, due: (
        lambda store, name=None, on_confirm=None: sound(
            store, name, on_confirm and (lambda ids: on_confirm(spoil(ids) if due() else ids))
        )
    )


BUILDS = {
    "a removal forgets": ("release", 20, lambda sound, due: lambda it, ids: sound(it, ids[1:] if due() else ids), "ghost"),
    "a second reference is not counted": ("add_reference", 5, lose_reference, "lost mismatch"),
    "a reader returns what another read": ("decode", 300, what_another_read, "mismatch"),
    "told in another order": ("client", A_FEW, telling(lambda ids: ids[::-1]), "confirm"),
    "one is never told": ("client", A_FEW, telling(lambda ids: ids[:-1]), "confirm"),
    "a flush returns early": ("flush", 3, lambda sound, due: lambda it: None if due() else sound(it), "confirm"),
    "a truncation cuts too much": ("truncate", 1, cut_more, "error mismatch skipped"),
    "a sound build": ("truncate", 1, lambda sound, due: sound, ""),
}
"""A method that fails every so many times; what makes it of the sound one, and of a call that says whether it fails this time;
and the kinds of findings, one of which is expected."""


@pytest.mark.parametrize(("name", "every", "make", "symptoms"), BUILDS.values(), ids=BUILDS)
def test_a_broken_build_is_caught(name, every, make, symptoms, need_cell, tmp_path):
    need_cell(CELL)
    kind, turns = owner(name), count(1)
    with mock.patch.object(kind, name, make(getattr(kind, name), lambda: next(turns) % every == 0)):
        found = run(tmp_path / "store", 6_000, **CELL.keys).findings
    assert found.kinds.keys() & set(symptoms.split()) or found.kinds.keys() == set(symptoms.split()), str(found)


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
