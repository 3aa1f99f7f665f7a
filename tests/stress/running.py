"""A whole run on one store: threads, the end of it, and the comparisons with the model."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.testing.concurrency import eager_switching
from msgstore.testing.faults import UnsyncedFiles
from stress.worker import LARGE_MESSAGE, Board, Findings, Task, Worker, body_of, open_descriptors
from support import command, in_threads, open_with

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
USUAL = {"file_size_limit": 32 * 2**10, "large_message": LARGE_MESSAGE, "sync_interval": "5ms", "gc_interval": "100ms"}
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
class Outcome:
    findings: Findings = attrs.field(factory=Findings)
    counts: Counter[str] = attrs.field(factory=Counter)
    """Of all workers, and of files; the names are those of ``Worker.counts`` and ``StressFiles.counts``."""

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.counts.items())


def run(path: Path, messages: int, **keys: Any) -> Outcome:
    """One run on a new store at ``path``. What was found is in the outcome; only a hang is raised, with all stacks."""
    outcome = Outcome()
    in_threads(lambda: _run(path, messages, USUAL | keys, outcome), seconds=SECONDS + SECONDS_A_MESSAGE * messages)
    return outcome


def _run(path: Path, messages: int, keys: dict[str, Any], outcome: Outcome) -> None:
    begun, files, findings = time.monotonic(), StressFiles(), outcome.findings
    try:
        with eager_switching(SWITCH_INTERVAL):
            store = open_with(path, files, **keys)
            model = _load(store, messages, keys, outcome)
        outcome.counts.update(files.counts)
        if findings:
            store.abandon()
        else:
            _end(store, path, keys, model, outcome)
            outcome.counts["left"] = len(model)
    except BaseException:
        findings.error("the run failed")
    outcome.counts["seconds"] = int(time.monotonic() - begun)


def _load(store: msgstore.Store, messages: int, keys: dict[str, Any], outcome: Outcome) -> Counter[bytes]:
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


def _end(store: msgstore.Store, path: Path, keys: dict[str, Any], model: Counter[bytes], outcome: Outcome) -> None:
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


def compare(store: msgstore.Store, model: Counter[bytes], findings: Findings, when: str) -> None:
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
