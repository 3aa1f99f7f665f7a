"""Eight threads write, read and remove on one store while it is collected: nothing is lost, nothing returns, no byte is wrong.

``--stress N`` sets the number of messages; with two million a run takes minutes a cell. Formats and record types other than the
default's are run with the ordinary number at most: they do not differ in what threads can do to each other.

The stress test can fail: builds that are broken on purpose are caught by it, and so is one that hangs. What is replaced is the
contract's or public: an index's methods, a format's, a file operation, a call of the store or a client.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

import msgstore
from msgstore.contract import Capability
from msgstore.engine.write.flusher import Flusher
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.probes import eager_switching
from stress.worker import USUAL, Board, Task, Worker, WorkerReport, body_of, open_descriptors
from support import CELLS, catalogue, command, in_threads, open_with

pytestmark = pytest.mark.crash

THREADS = 8
LIVING = 12_000
"""Ids that a thread keeps alive at a time, at most."""
KEPT = 150
"""Ids that a thread leaves in the end."""
REMOVED = 500
"""References that are given back between two collections, about."""
DESCRIPTORS = 400
"""A run has fewer open, whatever the number of segments."""
MAPPED = 256
"""With ``reads = "mmap"`` so many more: Python duplicates the descriptor of what it maps."""
SECONDS, SECONDS_A_MESSAGE = 120, 0.0025
"""A run that takes longer hangs."""
SWITCH_INTERVAL = 2e-4
"""Seconds; the interpreter's own is 5e-3: threads change places more often."""


class StressFiles(UnsyncedFiles):
    """Counts what collections do to files. Nothing is synced: no crash is tested here, and a sync only costs time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """``cuts``, ``deletions``, and ``segments``, the most that there were at a time."""
        self._there: set[str] = set()
        self._lock = threading.Lock()

    def create(self, path):
        fd = super().create(path)
        if path.suffix in (".rdq", ".sqs"):
            with self._lock:
                self._there.add(path.name)
                self.counts["segments"] = max(self.counts["segments"], len(self._there))
        return fd

    def truncate(self, fd, size):
        with self._lock:
            self.counts["cuts"] += 1
        super().truncate(fd, size)

    def unlink(self, path):
        super().unlink(path)
        with self._lock:
            self.counts["deletions"] += path.name in self._there
            self._there.discard(path.name)


@attrs.define
class StressOutcome:
    findings: WorkerReport = attrs.field(factory=WorkerReport)
    counts: Counter[str] = attrs.field(factory=Counter)
    """Of all workers, and of files; the names are those of ``Worker.counts`` and ``StressFiles.counts``."""

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.counts.items())


def run(path: Path, messages: int, **keys: Any) -> StressOutcome:
    """One run on a new store at ``path``. What was found is in the outcome; only a hang is raised, with all stacks."""
    begun, files, outcome, keys = time.monotonic(), StressFiles(), StressOutcome(), USUAL | keys

    def load_and_compare() -> None:
        try:
            with eager_switching(SWITCH_INTERVAL):
                store = open_with(path, files, **keys)
                model = _load(store, messages, keys, outcome)
            outcome.counts.update(files.counts)
            if outcome.findings:
                store.abandon()
            else:
                _end(store, path, keys, model, outcome)
                outcome.counts["left"] = len(model)
        except BaseException:
            outcome.findings.error("the run failed")

    in_threads(load_and_compare, seconds=SECONDS + SECONDS_A_MESSAGE * messages)
    outcome.counts["seconds"] = int(time.monotonic() - begun)
    return outcome


def _load(store: msgstore.Store, messages: int, keys: dict[str, Any], outcome: StressOutcome) -> Counter[bytes]:
    """All threads, from their start to their end. Returns the references that they have left."""
    board, opened, quota = Board(THREADS), open_descriptors(), -(-messages // THREADS)
    living, kept = min(LIVING, max(quota // 3, 1)), min(KEPT, max(quota // 20, 1))
    tasks = [Task(number, f"stress {number}", quota, living, kept, REMOVED) for number in range(THREADS)]
    workers = [Worker(task, store, board, outcome.findings) for task in tasks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        outcome.counts += worker.counts
    outcome.counts["descriptors"] = most = max(worker.descriptors - opened for worker in workers)
    if most >= DESCRIPTORS + (MAPPED if keys.get("reads") == "mmap" else 0):
        outcome.findings.add("descriptors", f"{most} were open")
    return sum((worker.kept for worker in workers), Counter())


def _end(store: msgstore.Store, path: Path, keys: dict[str, Any], model: Counter[bytes], outcome: StressOutcome) -> None:
    """Everything is quiet: compare, close, verify, reopen, compare again."""
    findings, counts = outcome.findings, outcome.counts
    store.flush()
    if counts["confirms"] != counts["writes"]:
        findings.add("confirm", f"{counts['confirms']} confirms of {counts['writes']} writes")
    compare(store, model, findings, "before closing")
    skipped = [done.skipped for done in store.compact(everything=True) if done.skipped]
    if skipped:
        findings.add("skipped", f"in the end: {skipped[0]}")
    compare(store, model, findings, "collected")
    store.close()
    verified = command("verify", path, "--json", code=None)
    sound = {"unreachable": 0, "damaged_segments": 0, "missing": 0, "ok": True}
    expected = {"messages": len(model), "verified": len(model), **sound}
    if verified.exit_code or not expected.items() <= json.loads(verified.stdout.splitlines()[-1]).items():
        findings.add("verify", verified.output[-2000:])
    with open_with(path, StressFiles(), **keys) as again:
        if (how := again.stats().recovery.how) != "trust":
            findings.add("recovery", f"after an orderly close the store came up by {how!r}")
        compare(again, model, findings, "reopened")


def compare(store: msgstore.Store, model: Counter[bytes], findings: WorkerReport, when: str) -> None:
    """Ids, references and bytes of everything that the store has, with what it should have."""
    found = Counter({entry.msg_id: entry.references for entry in store.entries()})
    for msg_id in found.keys() | model.keys():
        if found[msg_id] != model[msg_id]:
            kind = "lost" if not found[msg_id] else "ghost" if not model[msg_id] else "mismatch"
            findings.add(kind, f"{when}: {msg_id.hex()} has {found[msg_id]} references instead of {model[msg_id]}")
    with store.client() as client:
        for msg_id, body in client.read_many(found.keys() & model.keys()).items():
            if body != body_of(msg_id) or client.read(msg_id) != body:
                findings.add("mismatch", f"{when}: {msg_id.hex()} has other bytes")
    stats = store.stats()
    live = sum(segment.live_count for segment in store.segments())
    if (stats.messages, live, stats.quarantined, stats.callback_failures) != (len(model), len(model), 0, 0):
        findings.add("stats", f"{when}: {live} live records, {stats}")


# -- tests -----------------------------------------------------------------------------------------------------------------

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
def test_with_other_keys_of_the_configuration(name, keys, messages, tmp_path, report):
    messages = min(messages, ORDINARY) // 3
    outcome = run(tmp_path / "store", messages, **CELLS[name].keys | keys)
    report("stress", f"{name} {keys}: {outcome}")
    check(outcome, CELLS[name], messages)


# -- broken builds --------------------------------------------------------------------------------------------------------

CELL = CELLS["ets-v2"]
A_FEW = 4
"""Calls of ``on_confirm``. All clients together may be called fewer than thirty times: a flush confirms what is there."""


def owner(name: str) -> Any:
    """The class that has the method."""
    if name in ("release", "add_reference", "decode"):
        return (catalogue().format(CELL.format) if name == "decode" else catalogue().index(CELL.index)).load_factory()
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
def test_a_broken_build_is_caught(name, every, make, symptoms, tmp_path):
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
