"""Store against a dictionary: random operations with clean and dirty stops in between.

Subclasses open the store, and may add rules. An id names one body permanently.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import msgstore

IDS = [bytes([n]) * 16 for n in range(1, 25)]
SMALL = {"file_size_limit": 1500, "large_message": 700, "sync_interval": "1h", "gc_interval": 0}
"""With these keys a few operations lead to a compaction and to the segment of a large message. Only rules flush and collect,
so that the model knows what a killed process leaves."""
some_ids = st.lists(st.sampled_from(IDS), max_size=8)


def body_of(msg_id: bytes) -> bytes:
    """Among them: empty bodies, zeros, 255s, and bytes that look like records of v1 and v2."""
    n = msg_id[0]
    shapes = [
        b"",
        b"\0" * (n * 40),
        b"\xff" * (n * 30),
        (17).to_bytes(8, "big") + bytes([n + 100]) * 17 + b"\xff" + b"tail" * n,
        b"\x03" + (40).to_bytes(4, "big") + bytes([n + 100]) * 35,
        msg_id * (n * 4),
    ]
    return shapes[n % len(shapes)]


class StoreAgainstDictionary(RuleBasedStateMachine):
    """``references`` is what the store holds, ``committed`` what a process would leave that is killed now."""

    may_drop = False
    """True if the store's policy may drop live messages."""
    is_dropping = False
    """True in a compaction that may drop them."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.references: dict[bytes, int] = {}
        self.committed: dict[bytes, int] = {}
        self.confirmed: list[bytes] = []
        self.written: list[bytes] = []

    def make(self, **keys: Any) -> msgstore.Store:
        """Open the store of ``path``."""
        raise NotImplementedError

    @initialize(durability=st.sampled_from(["os", "fsync"]), reads=st.sampled_from(["pread", "mmap"]))
    def start(self, durability: str, reads: str, **keys: int) -> None:
        self.keys = {**SMALL, "durability": durability, "reads": reads, **keys}
        self.open()

    def open(self, refcounts: dict[bytes, int] | None = None) -> None:
        self.store = self.make(**self.keys, refcounts=None if refcounts is None else refcounts.items())
        self.client = self.store.client("model", on_confirm=self.confirmed.extend)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=8))
    def write(self, ids: Sequence[bytes]) -> None:
        for msg_id in ids:
            self.client.write(msg_id, body_of(msg_id))
            self.references[msg_id] = self.references.get(msg_id, 0) + 1
            self.written.append(msg_id)

    @rule(ids=some_ids)
    def remove(self, ids: Sequence[bytes]) -> None:
        missing = []
        for msg_id in ids:
            count = self.references.pop(msg_id, 0)
            if count > 1:
                self.references[msg_id] = count - 1
            elif count == 0:
                missing.append(msg_id)
        if missing:
            with pytest.raises(msgstore.MessageNotFound) as caught:
                self.client.remove(ids)
            assert sorted(caught.value.ids) == sorted(missing)
        else:
            self.client.remove(ids)

    @rule(ids=some_ids)
    def read_many(self, ids: Sequence[bytes]) -> None:
        assert self.client.read_many(ids) == {i: body_of(i) for i in ids if i in self.references}

    def was_committed(self) -> None:
        self.committed = dict(self.references)
        assert self.confirmed == self.written

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.was_committed()

    @rule()
    def roll(self) -> None:
        self.store.roll()
        self.was_committed()

    @rule(everything=st.booleans())
    def compact(self, everything: bool) -> None:
        self.is_dropping = self.may_drop
        done = self.store.compact(everything=everything)
        assert not any(segment.skipped for segment in done)
        dropped = sum(segment.dropped for segment in done)
        assert self.may_drop or not dropped
        if dropped:
            there = {i: count for i, count in self.references.items() if self.client.contains(i)}
            assert len(there) == len(self.references) - dropped
            self.references = there
        self.is_dropping = False
        self.was_committed()

    @rule()
    def close_and_reopen(self) -> None:
        self.stop(clean=True)
        self.open()
        assert self.store.stats().recovery.how in ("trust", "new")

    @rule()
    def stop_dirty_and_reopen(self) -> None:
        self.stop(clean=False)
        self.open(self.committed)

    def stop(self, *, clean: bool) -> None:
        if clean:
            self.store.close()
            self.store.close()
            self.was_committed()
        else:
            self.store.abandon()
        self.references = dict(self.committed)
        self.confirmed.clear()
        self.written.clear()

    @rule()
    def check_everything(self) -> None:
        assert self.store.stats().messages == len(self.references)
        for msg_id in IDS:
            assert self.store.references(msg_id) == self.references.get(msg_id, 0)
            assert self.client.contains(msg_id) is (msg_id in self.references)
            if msg_id in self.references:
                assert self.client.read(msg_id) == body_of(msg_id)
            else:
                with pytest.raises(msgstore.MessageNotFound):
                    self.client.read(msg_id)
        for stats in self.store.segments():
            sizes = [entry.size for entry in self.store.entries() if entry.number == stats.number]
            assert (stats.live_count, stats.live_bytes) == (len(sizes), sum(sizes))
            assert stats.size == (self.path / stats.file).stat().st_size

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.check_everything()
        finally:
            self.end()

    def end(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
        shutil.rmtree(self.path, ignore_errors=True)
