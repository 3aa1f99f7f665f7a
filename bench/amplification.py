"""Bytes written per byte stored, over the whole life of a message, collection included.

Each store runs in a separate process. The figure counts the bytes that the process passes to system calls, for all files, logs
and threads. LMDB runs without writemap here, because writes through a mapping are not counted.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import children
from figures import Bound, Figures, Progress
from measure import SEED, Plan, make_messages, new_directory
from ours import MsgStore
from peer import Pair, Peer, batches
from profiling import Line, TimedFiles
from rivals import LMDB, RocksDB, SQLite

import msgstore

NAME = "amplification"
TITLE = "Bytes written, first in first out and with 60 % removed at random, collected in the end"
FIFO, RANDOM = "FIFO", "60 % at random"
MOST = {FIFO: 1.05, RANDOM: 1.3}
"""Required maximum per byte of records, for msgstore with the index ets."""
MESSAGES = {64: 100_000, 1024: 30_000, 16384: 3_000}
SET_BYTES = 2**25
"""Bytes of all bodies, for sizes that are not in MESSAGES."""
LIVING = 0.25
"""Fraction of the set that is live at a time with FIFO."""
REMOVED = 0.6
SEGMENT = 2 * 2**20
"""msgstore's file_size_limit, so that small bodies fill several segments."""


class CountedMsgStore(MsgStore):
    """Store that is flushed only by the engine, and once at the end."""

    def __init__(self, directory: Path, files: TimedFiles | None = None, **options: Any) -> None:
        super().__init__(directory, files, file_size_limit=SEGMENT, **options)

    def put_all(self, pairs: Sequence[Any]) -> None:
        self.client.write_many(pairs)

    def remove_all(self, ids: Sequence[bytes]) -> None:
        self.client.remove(ids)


class LmdbIndexMsgStore(CountedMsgStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, index="lmdb")


class CountedLMDB(LMDB):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, writemap=False)


COUNTED: dict[str, tuple[str, Callable[[Path], Peer]]] = {
    "msgstore": ("msgstore", CountedMsgStore),
    "msgstore, lmdb": ("msgstore", LmdbIndexMsgStore),
    "RocksDB": ("RocksDB", RocksDB),
    "LMDB": ("LMDB", CountedLMDB),
    "SQLite": ("SQLite", SQLite),
}
"""Row to (its name in --stores, function that opens it)."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    """Count written bytes. One round is enough, because counts hardly vary."""
    for size in plan.messages:
        messages = _messages(plan, size)
        for name, (store, _) in COUNTED.items():
            if not plan.has(store):
                continue
            for how in (FIFO, RANDOM):
                progress(f"amplification, {size} B, {how}: {name}")
                with new_directory(plan.directory) as directory:
                    counted = children.call(count, name, str(directory), how, size, messages)
                for basis, share in counted.items():
                    figures.add(NAME, name, f"{how}: / {basis}", size, "", share)


def bounds(figures: Figures) -> list[Bound]:
    return [
        Bound("msgstore", NAME, f"{how}: bytes written / records", size, "", "at most", MOST[how], figure.value)
        for how in (FIFO, RANDOM)
        for size in figures.sizes(NAME)
        if (figure := figures.get(NAME, "msgstore", f"{how}: / records", size))
    ]


def _messages(plan: Plan, size: int) -> int:
    """Return the number of messages. --quick does not reduce it: a set that fits into one flush would never be written."""
    messages = MESSAGES.get(size, max(SET_BYTES // size, 1000))
    return min(messages, plan.most or messages)


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Return written bytes by kind of file, before and during the collection."""
    messages = _messages(plan, bound.size)
    whole = record_bytes(bound.size) * messages
    files = TimedFiles()
    with new_directory(plan.directory) as directory:
        peer = CountedMsgStore(directory, files)
        pairs = make_messages(bound.size, messages, random.Random(SEED))
        (_first_in_first_out if bound.what.startswith(FIFO) else _at_random)(peer, pairs)
        loaded = files.written_by_kind()
        _collect(peer)
        collected = files.written_by_kind()
        peer.close()
    lines = [Line(f"{kind}: puts and removals", size / whole, "") for kind, size in loaded.items()]
    lines += [Line(f"{kind}: collection", (size - loaded.get(kind, 0)) / whole, "") for kind, size in collected.items()]
    return f"{messages:,} messages; bytes written through Files, per byte of records", lines


def count(name: str, directory: str, how: str, size: int, messages: int) -> dict[str, float]:
    """Return bytes written per byte of bodies and of records; empty if the system does not count. Runs in a child process.

    Closing the store is not counted.
    """
    peer = COUNTED[name][1](Path(directory))
    pairs = make_messages(size, messages, random.Random(SEED))
    before = children.bytes_written()
    if how == FIFO:
        _first_in_first_out(peer, pairs)
    else:
        _at_random(peer, pairs)
    _collect(peer)
    after = children.bytes_written()
    if before is None or after is None:
        return {}
    shares = {"bodies": (after - before) / (size * messages)}
    if isinstance(peer, MsgStore):
        shares["records"] = (after - before) / (record_bytes(size) * messages)
    peer.close()
    return shares


def _first_in_first_out(peer: Peer, pairs: Sequence[Pair]) -> None:
    living = int(len(pairs) * LIVING)
    peer.put_all(pairs[:living])
    for old, new in zip(batches(pairs), batches(pairs[living:]), strict=False):
        peer.put_all(new)
        peer.remove_all([msg_id for msg_id, _ in old[: len(new)]])
    peer.wait_until_idle()  # the messages removed below must be on disk, not in a write buffer
    peer.remove_all([msg_id for msg_id, _ in pairs[len(pairs) - living :]])


def _at_random(peer: Peer, pairs: Sequence[Pair]) -> None:
    peer.put_all(pairs)
    peer.wait_until_idle()
    gone = random.Random(SEED).sample([msg_id for msg_id, _ in pairs], int(len(pairs) * REMOVED))
    peer.remove_all(gone)


def _collect(peer: Peer) -> None:
    """Reclaim space with the store's own call. LMDB and SQLite keep free pages in their files."""
    if isinstance(peer, MsgStore):
        peer.store.flush()
        peer.store.compact()
    elif isinstance(peer, RocksDB):
        peer.db.flush()
        peer.db.compact_range(None, None)
        peer.wait_until_idle()
    elif isinstance(peer, SQLite):
        peer.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def record_bytes(size: int) -> int:
    """Return the size of a record with a body of ``size`` bytes, measured with a store of one message."""
    with tempfile.TemporaryDirectory() as directory, msgstore.open_store(directory, format="v2") as store:
        with store.client() as client:
            client.write(bytes(16), bytes(size))
        return store.stats().live_bytes
