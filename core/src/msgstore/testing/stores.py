"""Tests of a whole store with the subject in it. The index ``ets`` and the format ``v2`` take the other places."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import msgstore
from msgstore.config import store_config
from msgstore.contract import Capability
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.testing.faults import RecordingFiles, StoppingFiles, UnsyncedFiles, copy_of, crash_points, stopped
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import tried
from msgstore.testing.segments import made
from msgstore.testing.subjects import Subject

IDS = [bytes([n]) * 16 for n in range(1, 25)]
SMALL = {"file_size_limit": 1500, "large_message": 700, "sync_interval": "1h", "gc_interval": 0}
"""With these keys a few operations lead to a compaction and to the segment of a large message. Only rules flush and collect,
so that the model knows what a killed process leaves."""
some_ids = st.lists(st.sampled_from(IDS), max_size=8)


def open_with(
    path: Path,
    catalogue: Catalogue,
    files: Files | None = None,
    *,
    mode: Any = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    **keys: Any,
) -> msgstore.Store:
    """Open a store with the file layer of a test."""
    config = store_config({"path": path, **keys}, "test", Path())
    return open_configured(config, catalogue, mode=mode, refcounts=refcounts, files=files)


@attrs.define
class StoreFactory:
    """Opens stores in one directory, with the subject's observers only."""

    subject: Subject
    path: Path

    def open(self, files: Files | None = None, **keys: Any) -> msgstore.Store:
        subject = self.subject
        selected: dict[str, Any] = {"index": "ets", "format": "v2", "sync_interval": "1h", "gc_interval": 0}
        if subject.kind == "record":
            bound = {subject.name: subject.descriptor.assigned_byte or 128}
            selected |= {"format": {"use": subject.descriptor.format, "records": bound}, "record": subject.name}
        elif subject.descriptor is not None:
            selected[subject.kind] = {"use": subject.name, **subject.options}
        if subject.kind == "format" and "file_size_limit" in keys:
            keys["file_size_limit"] += len(made(subject).header)
        catalogue = attrs.evolve(subject.catalogue, observers=subject.observers)
        return open_with(self.path, catalogue, files or UnsyncedFiles(), **selected | keys)


def body_of(msg_id: bytes) -> bytes:
    """At most 1000 bytes, among them: empty bodies, zeros, 255s, and bytes that look like records of v1 and v2."""
    n = msg_id[0]
    shapes = [
        b"",
        b"\0" * (n * 40),
        b"\xff" * (n * 30),
        (17).to_bytes(8, "big") + bytes([n + 100]) * 17 + b"\xff" + b"tail" * n,
        b"\x03" + (40).to_bytes(4, "big") + bytes([n + 100]) * 35,
        msg_id * (n * 2),
    ]
    return shapes[n % len(shapes)]


class StoreAgainstDictionary(RuleBasedStateMachine):
    """Store against a dictionary: random operations with clean and dirty stops in between. An id names one body permanently.

    Subclasses open the store, and may add rules. ``references`` is what the store holds, ``committed`` what a process would
    leave that is killed now.
    """

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

    @initialize(durability=st.sampled_from(["os", "fsync"]), reads=st.sampled_from(["pread", "mmap"]), erase=st.booleans())
    def start(self, **keys: Any) -> None:
        """With ``erase``, segments are compacted by copying them."""
        self.keys = SMALL | keys
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

    @rule(operation=st.sampled_from(["flush", "roll"]))
    def flush(self, operation: str = "flush") -> None:
        getattr(self.store, operation)()
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


class CombinationTests(KitTests):
    kinds = ("format", "record", "index", "gc", "body")

    def test_a_store_is_a_dictionary_that_survives(self, subject: Subject) -> None:
        """A failure shows the shortest list of operations after which a removed message is present, a written one missing, or
        one has other bytes or another count. If the tests of the backend alone pass, look at what happens only here: second
        writes of an id, compaction between two stops, bodies that look like records."""
        machine: Any = partial(_Machine, subject)
        run_state_machine_as_test(machine, settings=settings(tried(40), stateful_step_count=30))

    @pytest.mark.parametrize("erase", [False, True], ids=["in place", "by copy"])
    def test_a_crash_at_each_file_operation(self, subject: Subject, erase: bool) -> None:
        """A failure means that a process that is killed before, or inside, a file operation leaves a store in which a confirmed
        message is missing or has other bytes: old data is overwritten or removed before the new data is written and entered
        into the index."""
        whole = RecordingFiles()
        _Machine(subject, whole).check_life(erase, "at the end")
        points = crash_points(whole)
        assert len(points) > 20
        for stop, torn in points:
            where = f"stopped at {whole.changes()[stop]}, {torn} bytes of it written"
            _Machine(subject, StoppingFiles(stop, torn)).check_life(erase, where)


class _Machine(StoreAgainstDictionary):
    """The model, in a store of the subject."""

    def __init__(self, subject: Subject, files: Files | None = None) -> None:
        super().__init__()
        self.stores = StoreFactory(subject, self.path)
        self.files = files
        self.may_drop = subject.has(Capability.DROPS_MESSAGES)

    def make(self, **keys: Any) -> msgstore.Store:
        return self.stores.open(self.files, **keys)

    def live(self, erase: bool) -> None:
        """Run a short life of a store with each kind of operation, to its end or a crash."""
        self.start(durability="os" if erase else "fsync", erase=erase, file_size_limit=900)
        self.write([*IDS[:12], IDS[2]])
        self.flush()
        self.remove(IDS[:12:3])
        self.flush()
        self.flush("roll")
        self.write(IDS[12:18])
        self.flush()
        self.compact(everything=False)
        self.close_and_reopen()
        self.remove([msg_id for msg_id in IDS[8:12] if msg_id in self.references])
        self.compact(everything=True)

    def check_life(self, erase: bool, where: str) -> None:
        """Check what a life has left."""
        assert stopped(partial(self.live, erase)) == isinstance(self.files, StoppingFiles), f"{where}: it was not stopped"
        required = set() if self.is_dropping else {*self.committed, *self.confirmed} & self.references.keys()
        with tempfile.TemporaryDirectory() as left:
            stores = attrs.evolve(self.stores, path=copy_of(self.path, Path(left, "store")))
            self.end()
            for _ in range(2):  # the first opening must leave as much
                with stores.open(refcounts=[(msg_id, self.references[msg_id]) for msg_id in required]) as store:
                    there = {entry.msg_id for entry in store.entries()}
                    missing = required - there
                    assert not missing, f"{where}: {sorted(msg_id[0] for msg_id in missing)} were confirmed and are missing"
                    for msg_id in there:
                        assert store.read(msg_id) == body_of(msg_id), f"{where}: {msg_id[0]} has other bytes"
                    assert store.stats().quarantined == 0, f"{where}: a crash looks like damage"
