"""A whole run on one store: threads, the end of it, and the comparisons with the model."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner

import msgstore
from msgstore.cli.main import main
from msgstore.testing.concurrency import eager_switching
from msgstore.testing.faults import UnsyncedFiles
from stress.account import LARGE_MESSAGE, Board, Findings, body_of
from stress.worker import Task, Worker, open_descriptors
from support import in_threads, open_with

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
SEGMENTS = (".rdq", ".sqs")
LIMIT = 32 * 2**10
"""Bytes of a segment."""
SECONDS, SECONDS_A_MESSAGE = 120, 0.0025
"""A run that takes longer hangs."""
SWITCH_INTERVAL = 2e-4
"""Seconds; the interpreter's own is 5e-3: threads change places more often."""


@attrs.frozen
class Options:
    messages: int
    keys: dict[str, Any]
    """The cell's, and others of the configuration."""
    seed: str = "stress"

    @property
    def all_keys(self) -> dict[str, Any]:
        usual = {"file_size_limit": LIMIT, "large_message": LARGE_MESSAGE, "sync_interval": "5ms", "gc_interval": "100ms"}
        return usual | self.keys


class StressFiles(UnsyncedFiles):
    """Counts what collections do to files. Nothing is synced: no crash is tested here, and a sync only costs time."""

    def __init__(self) -> None:
        self.cuts = 0
        self.deletions = 0
        self.segments = 0
        """The most that there were at a time."""
        self._there: set[str] = set()
        self._lock = threading.Lock()

    def create(self, path):
        fd = super().create(path)
        if path.suffix in SEGMENTS:
            with self._lock:
                self._there.add(path.name)
                self.segments = max(self.segments, len(self._there))
        return fd

    def truncate(self, fd, size):
        with self._lock:
            self.cuts += 1
        super().truncate(fd, size)

    def unlink(self, path):
        super().unlink(path)
        with self._lock:
            self.deletions += path.name in self._there
            self._there.discard(path.name)


@attrs.define
class Outcome:
    findings: Findings = attrs.field(factory=Findings)
    counts: Counter[str] = attrs.field(factory=Counter)
    """Of all workers; the names are those of ``Worker.counts``."""
    descriptors: int = 0
    """The most that the process had open, besides those of the beginning."""
    cuts: int = 0
    """Segments that a collection shortened."""
    deletions: int = 0
    segments: int = 0
    """The most that there were at a time."""
    left: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        c, found = self.counts, self.findings.kinds
        return (
            f"{c['messages']:,} messages of {THREADS} threads, {c['writes']:,} writes, {c['confirmed']:,} confirms, "
            f"{c['reads']:,} reads verified, {c['removes']:,} removes, {c['flushes']:,} flushes; "
            f"collected {c['collections']:,} times, "
            f"{self.cuts:,} cut, {self.deletions:,} deleted, of at most {self.segments:,} segments; "
            f"{self.descriptors} descriptors; {self.left:,} left; {found['mismatch']} mismatches, {found['lost']} lost, "
            f"{found['ghost']} ghosts; {self.seconds:.0f} s"
        )


def run(path: Path, options: Options) -> Outcome:
    """One run on a new store at ``path``. What was found is in the outcome; only a hang is raised, with all stacks."""
    outcome = Outcome()
    in_threads(lambda: _run(path, options, outcome), seconds=SECONDS + SECONDS_A_MESSAGE * options.messages)
    return outcome


def _run(path: Path, options: Options, outcome: Outcome) -> None:
    begun, files = time.monotonic(), StressFiles()
    try:
        with eager_switching(SWITCH_INTERVAL):
            store = open_with(path, files, **options.all_keys)
            model = _load(store, options, outcome)
        outcome.cuts, outcome.deletions, outcome.segments = files.cuts, files.deletions, files.segments
        if not outcome.findings:
            _end(store, path, options, model, outcome)
        else:
            store.abandon()
    except BaseException:
        outcome.findings.error("the run failed")
    outcome.left = len(model) if not outcome.findings else 0
    outcome.seconds = time.monotonic() - begun


def _load(store: msgstore.Store, options: Options, outcome: Outcome) -> Counter[bytes]:
    """All threads, from their start to their end. Returns the references that they have left."""
    findings, board, barrier = outcome.findings, Board(THREADS), threading.Barrier(THREADS)
    opened = open_descriptors()
    quota = -(-options.messages // THREADS)
    workers = []
    for number in range(THREADS):
        living, kept = min(LIVING, max(quota // 3, 1)), min(KEPT, max(quota // 20, 1))
        task = Task(number, f"{options.seed} {number}", quota, living, kept, REMOVED)
        workers.append(Worker(task, store, board, barrier, findings))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        outcome.counts += worker.counts
    outcome.descriptors = max(0, *(worker.descriptors - opened for worker in workers))
    if outcome.descriptors >= DESCRIPTORS + (MAPPED if options.keys.get("reads") == "mmap" else 0):
        findings.add("descriptors", f"{outcome.descriptors} were open")
    return sum((worker.kept for worker in workers), Counter())


def _end(store: msgstore.Store, path: Path, options: Options, model: Counter[bytes], outcome: Outcome) -> None:
    """Everything is quiet: compare, close, verify, reopen, compare again."""
    findings, counts = outcome.findings, outcome.counts
    store.flush()
    if counts["confirmed"] != counts["writes"]:
        findings.add("confirm", f"{counts['confirmed']} confirms of {counts['writes']} writes")
    compare(store, model, findings, "before closing")
    skipped = [done.skipped for done in store.compact(everything=True) if done.skipped]
    if skipped:
        findings.add("skipped", f"in the end: {skipped[0]}")
    compare(store, model, findings, "collected")
    store.close()
    verify(path, model, findings)
    with open_with(path, StressFiles(), **options.all_keys) as again:
        if (how := again.stats().recovery.how) != "trust":
            findings.add("recovery", f"after an orderly close the store came up by {how!r}")
        compare(again, model, findings, "reopened")


def compare(store: msgstore.Store, model: Counter[bytes], findings: Findings, when: str) -> None:
    """Ids, references and bytes of everything that the store has, with what it should have."""
    found = {entry.msg_id: entry.references for entry in store.entries()}
    for msg_id in model.keys() - found.keys():
        findings.add("lost", f"{when}: {msg_id.hex()} is not in the store")
    for msg_id in found.keys() - model.keys():
        findings.add("ghost", f"{when}: {msg_id.hex()} was removed and is in the store")
    for msg_id in found.keys() & model.keys():
        if found[msg_id] != model[msg_id]:
            text = f"{when}: {msg_id.hex()} has {found[msg_id]} references instead of {model[msg_id]}"
            findings.add("mismatch", text)
    with store.client() as client:
        for msg_id, body in client.read_many(found.keys() & model.keys()).items():
            if body != body_of(msg_id) or client.read(msg_id) != body:
                findings.add("mismatch", f"{when}: {msg_id.hex()} has other bytes")
    stats = store.stats()
    if (stats.messages, stats.quarantined, stats.callback_failures) != (len(model), 0, 0):
        findings.add("stats", f"{when}: {stats}")
    live = sum(segment.live_count for segment in store.segments())
    if live != len(model):
        findings.add("stats", f"{when}: the segments count {live} live records instead of {len(model)}")


def verify(path: Path, model: Counter[bytes], findings: Findings) -> None:
    """``msgstore verify --json`` finds nothing, and as many messages as there are."""
    result = CliRunner().invoke(main, ["verify", str(path), "--json"])
    if result.exit_code:
        findings.add("verify", f"exit code {result.exit_code}: {result.output[-2000:]}")
        return
    summary = json.loads(result.stdout.splitlines()[-1])
    expected: dict[str, Any] = dict.fromkeys(("messages", "verified"), len(model))
    expected |= {"unreachable": 0, "damaged_segments": 0, "missing": 0, "ok": True}
    if {name: summary[name] for name in expected} != expected:
        findings.add("verify", f"{summary}")
