"""A store against a dictionary: random operations, clean and dirty stops, and another program's changes in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import msgstore
from msgstore.scan import FormatSet
from support import Cell, UnsyncedFiles, catalogue, open_with

IDS = [bytes([n]) * 16 for n in range(1, 25)]


def body_of(msg_id: bytes) -> bytes:
    """An id names one body for ever. Among them: nothing, zeros, 255s, and what looks like records of both formats."""
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
    cell: Cell

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.references: dict[bytes, int] = {}
        self.committed: dict[bytes, int] = {}
        self.confirmed: list[bytes] = []
        self.written: list[bytes] = []

    @initialize(durability=st.sampled_from(["os", "fsync"]), reads=st.sampled_from(["pread", "mmap"]))
    def start(self, durability, reads):
        self.durability = durability
        self.reads = reads
        self.open()

    def open(self, refcounts: dict[bytes, int] | None = None) -> None:
        self.store = open_with(
            self.path,
            UnsyncedFiles(),
            **self.cell.keys,
            durability=self.durability,
            reads=self.reads,
            file_size_limit=1500,
            large_message=700,
            sync_interval="1h",
            refcounts=None if refcounts is None else refcounts.items(),
        )
        self.client = self.store.client("model", on_confirm=self.confirmed.extend)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=8))
    def write(self, ids):
        for msg_id in ids:
            self.client.write(msg_id, body_of(msg_id))
            self.references[msg_id] = self.references.get(msg_id, 0) + 1
            self.written.append(msg_id)

    @rule(ids=st.lists(st.sampled_from(IDS), max_size=8))
    def remove(self, ids):
        missing = []
        for msg_id in ids:
            if self.references.get(msg_id, 0) == 0:
                missing.append(msg_id)
            elif self.references[msg_id] == 1:
                del self.references[msg_id]
            else:
                self.references[msg_id] -= 1
        if missing:
            with pytest.raises(msgstore.MessageNotFound) as caught:
                self.client.remove(ids)
            assert sorted(caught.value.ids) == sorted(missing)
        else:
            self.client.remove(ids)

    @rule(ids=st.lists(st.sampled_from(IDS), max_size=8))
    def read_many(self, ids):
        assert self.client.read_many(ids) == {i: body_of(i) for i in ids if i in self.references}

    @rule()
    def flush(self):
        self.store.flush()
        self.was_committed()

    def was_committed(self) -> None:
        self.committed = dict(self.references)
        assert self.confirmed == self.written

    @rule()
    def roll(self):
        self.store.roll()
        self.was_committed()

    @rule(everything=st.booleans())
    def compact(self, everything):
        done = self.store.compact(everything=everything)
        assert not any(segment.skipped for segment in done)
        self.was_committed()

    @rule()
    def close_and_reopen(self):
        self.store.close()
        self.store.close()
        self.was_committed()
        self.open()
        assert self.store.stats().recovery.how in ("trust", "new")

    @rule()
    def stop_dirty_and_reopen(self):
        self.store.abandon()
        self.forget_what_was_not_committed()
        self.open(self.committed)

    def forget_what_was_not_committed(self) -> None:
        self.references = dict(self.committed)
        self.confirmed.clear()
        self.written.clear()

    @rule(msg_id=st.sampled_from(IDS), clean=st.booleans(), remove_marks=st.booleans())
    def another_program_appends_in_between(self, msg_id, clean, remove_marks):
        self.stop(clean=clean)
        form = FormatSet(catalogue()).by_name(self.cell.format)
        record, _ = form.format.encode([msg_id], [body_of(msg_id)])
        segments = sorted(self.path.glob(f"*{form.descriptor.extension}"), key=lambda path: int(path.stem))
        if segments:
            with segments[-1].open("ab") as stream:
                stream.write(record)
        else:
            (self.path / f"0{form.descriptor.extension}").write_bytes(form.format.header + record)
        (self.path / "msg_store_index.ets").write_bytes(b"what the other program saved")
        if remove_marks:
            (self.path / "clean.dot").unlink(missing_ok=True)
        self.references = {**self.committed, msg_id: 3}
        self.committed = dict(self.references)
        self.open(self.references)
        assert self.store.stats().recovery.how == "rebuild"

    @rule(choice=st.integers(0, 7))
    def another_program_deletes_a_segment_in_between(self, choice):
        self.stop(clean=True)
        lost: set[bytes] = set()
        if segments := sorted(self.path.glob("[0-9]*")):
            victim = segments[choice % len(segments)]
            with open_with(self.path, mode="r", index=self.cell.index, format=self.cell.format) as store:
                lost = {entry.msg_id for entry in store.entries() if entry.number == int(victim.stem)}
            victim.unlink()
        self.references = {i: n for i, n in self.committed.items() if i not in lost}
        self.committed = dict(self.references)
        self.open(self.references)

    @rule()
    def another_program_copies_the_directory(self):
        """New times on every file, the same bytes: the counts must not be lost."""
        self.stop(clean=True)
        for path in self.path.glob("[0-9]*"):
            os.utime(path, ns=(1, 1))
        self.open()
        assert self.store.stats().recovery.how in ("trust", "new")

    def stop(self, *, clean: bool) -> None:
        if clean:
            self.store.close()
            self.was_committed()
        else:
            self.store.abandon()
        self.forget_what_was_not_committed()

    def check(self) -> None:
        assert self.store.stats().messages == len(self.references)
        for msg_id in IDS:
            assert self.store.references(msg_id) == self.references.get(msg_id, 0)
            if msg_id in self.references:
                assert self.client.read(msg_id) == body_of(msg_id)
                assert self.client.contains(msg_id)
            else:
                with pytest.raises(msgstore.MessageNotFound):
                    self.client.read(msg_id)
                assert not self.client.contains(msg_id)

    @rule()
    def check_everything(self):
        self.check()
        for stats in self.store.segments():
            entries = [entry for entry in self.store.entries() if entry.number == stats.number]
            assert (stats.live_count, stats.live_bytes) == (len(entries), sum(entry.size for entry in entries))
            assert stats.size == (self.path / stats.file).stat().st_size

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.check_everything()
            finally:
                self.store.abandon()
        shutil.rmtree(self.path, ignore_errors=True)


def test_a_store_is_a_dictionary_that_survives(cell, request):
    machine = type("Machine", (StoreAgainstDictionary,), {"cell": cell})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=request.config.getoption("--examples"),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
