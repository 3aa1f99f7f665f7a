"""Tests of a whole store with the subject in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import msgstore
from msgstore.contract import Capability
from msgstore.files import Files
from msgstore.testing.data import tried
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore.testing.guard import KitTests, skip_without
from msgstore.testing.store_model import IDS, StoreAgainstDictionary, body_of
from msgstore.testing.stores import StoreFactory
from msgstore.testing.subjects import Subject


class CombinationTests(KitTests):
    kinds = ("format", "record", "index", "gc", "body")

    @pytest.fixture(params=[False, True], ids=["by copy", "in place"])
    def stores(self, subject: Subject, request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
        if subject.kind in ("format", "record") and not request.param:
            skip_without("another format beside it")
        return StoreFactory(subject, tmp_path, in_place=request.param)

    def test_a_store_is_a_dictionary_that_survives(self, stores: StoreFactory) -> None:
        """A failure shows the shortest list of operations after which a removed message is present, a written one missing, or
        one has other bytes or another count. If the tests of the backend alone pass, look at what happens only here: second
        writes of an id, compaction between two stops, bodies that look like records."""
        machine: Any = partial(_Machine, stores)
        run_state_machine_as_test(machine, settings=settings(tried(25), stateful_step_count=30))

    def test_a_crash_at_each_file_operation(self, stores: StoreFactory) -> None:
        """A failure means that a process that is killed before, or inside, a file operation leaves a store in which a confirmed
        message is missing or has other bytes: old data is overwritten or removed before the new data is written and entered
        into the index."""
        whole = RecordingFiles()
        _Machine(stores, whole).check_life("at the end")
        points = crash_points(whole)
        assert len(points) > 20
        for stop, torn in points:
            where = f"stopped at {whole.changes()[stop]}, {torn} bytes of it written"
            _Machine(stores, StoppingFiles(stop, torn)).check_life(where)


class _Machine(StoreAgainstDictionary):
    """The model, in a store of the subject."""

    def __init__(self, stores: StoreFactory, files: Files | None = None) -> None:
        super().__init__()
        self.stores = attrs.evolve(stores, path=self.path)
        self.left = stores.path / "left"
        self.files = files
        self.may_drop = stores.subject.has(Capability.DROPS_MESSAGES)

    def make(self, **keys: Any) -> msgstore.Store:
        return self.stores.open(self.files, **keys)

    def live(self) -> None:
        """Run a short life of a store with each kind of operation, to its end or a crash."""
        self.start("fsync" if self.stores.in_place else "os", "pread", file_size_limit=900)
        self.write([*IDS[:12], IDS[2]])
        self.flush()
        self.remove(IDS[:12:3])
        self.flush()
        self.roll()
        self.write(IDS[12:18])
        self.flush()
        self.compact(everything=False)
        self.close_and_reopen()
        self.remove([msg_id for msg_id in IDS[8:12] if msg_id in self.references])
        self.compact(everything=True)

    def check_life(self, where: str) -> None:
        """Check what a life has left."""
        assert stopped(self.live) == isinstance(self.files, StoppingFiles), f"{where}: it was not stopped"
        required = set() if self.is_dropping else {*self.committed, *self.confirmed} & self.references.keys()
        left = self.stores.copied(self.left)
        self.end()
        for _ in range(2):  # the first opening must leave as much
            with left.open(refcounts=[(msg_id, self.references[msg_id]) for msg_id in required]) as store:
                there = {entry.msg_id for entry in store.entries()}
                missing = required - there
                assert not missing, f"{where}: {sorted(msg_id[0] for msg_id in missing)} were confirmed and are missing"
                for msg_id in there:
                    assert store.read(msg_id) == body_of(msg_id), f"{where}: {msg_id[0]} has other bytes"
                assert store.stats().quarantined == 0, f"{where}: a crash looks like damage"
