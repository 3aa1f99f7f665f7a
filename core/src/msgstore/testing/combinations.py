"""Tests of a whole store with the subject in it; the kit's own small backends take all other places."""

from __future__ import annotations

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
from msgstore.testing.faults import Crash, RecordingFiles, StoppingFiles, crash_points
from msgstore.testing.guard import KitTests
from msgstore.testing.reference import HOLED, PLAIN
from msgstore.testing.store_model import StoreAgainstDictionary, body_of
from msgstore.testing.stores import StoreFactory
from msgstore.testing.subjects import Subject, skip_without

SHARED = bytes([3]) * 16
"""An id that is written twice."""
FORMATS = (PLAIN, HOLED)
"""The first is compacted by copying segments, the second in place."""


class CombinationTests(KitTests):
    kinds = ("format", "record", "index", "gc", "body")

    @pytest.mark.parametrize("beside", FORMATS)
    def test_a_store_is_a_dictionary_that_survives(self, subject: Subject, beside: str) -> None:
        """A failure shows the shortest list of operations after which a removed message is present, a written one missing, or
        one has other bytes or another count. If the tests of the backend alone pass, look at what happens only here: second
        writes of an id, compaction between two stops, bodies that look like records."""
        _skip_twice(subject, beside)
        stores = StoreFactory(subject, Path(), format_name=beside)

        class Machine(StoreAgainstDictionary):
            may_drop = subject.has(Capability.DROPS_MESSAGES)

            def make(self, **keys: Any) -> msgstore.Store:
                return attrs.evolve(stores, path=self.path).open(**keys)

        run_state_machine_as_test(Machine, settings=settings(tried(25), stateful_step_count=30))

    @pytest.mark.parametrize(("beside", "durability"), [(PLAIN, "os"), (HOLED, "fsync")])
    def test_a_crash_at_each_file_operation(self, subject: Subject, beside: str, durability: str, tmp_path: Path) -> None:
        """A failure means that a process that is killed before, or inside, a file operation leaves a store in which a confirmed
        message is missing or has other bytes: old data is overwritten or removed before the new data is written and entered
        into the index."""
        _skip_twice(subject, beside)
        whole = RecordingFiles()
        walk = _Walk(StoreFactory(subject, tmp_path / "whole", format_name=beside), durability)
        walk.go(whole)
        walk.check_what_is_left(walk.stores.open(), "at the end")
        points = crash_points(whole)
        assert len(points) > 20
        for at, (stop, torn) in enumerate(points):
            stopped = _Walk(StoreFactory(subject, tmp_path / str(at), format_name=beside), durability)
            with pytest.raises(Crash):
                stopped.go(StoppingFiles(stop, torn))
            where = f"stopped at {whole.changes()[stop]}, {torn} bytes of it written"
            left = stopped.stores.copied(tmp_path / f"{at}-left")
            for _ in range(2):  # the first opening must leave as much
                store = left.open(refcounts=stopped.refcounts)
                stopped.check_what_is_left(store, where)


def _skip_twice(subject: Subject, beside: str) -> None:
    if subject.kind in ("format", "record") and beside != HOLED:
        skip_without("another format beside it")


@attrs.define
class _Walk:
    """A short life of a store with each kind of operation."""

    stores: StoreFactory
    durability: str
    written: dict[bytes, int] = attrs.field(factory=dict)
    """References that were written, without the ids whose removal has begun."""
    required: set[bytes] = attrs.field(factory=set)
    """Those ids of ``written`` that were confirmed."""

    @property
    def refcounts(self) -> list[tuple[bytes, int]]:
        """The confirmed references."""
        return [(msg_id, self.written[msg_id]) for msg_id in self.required]

    def go(self, files: Files) -> None:
        store = None
        try:
            store = self._open(files)
            self._use(store)
            store.close()
            store = self._open(files)
            with store.client() as client:
                client.remove(self._removing(range(9, 13)))
            self._compact(store, everything=True)
        finally:
            if store is not None:
                store.abandon()

    def _open(self, files: Files) -> msgstore.Store:
        return self.stores.open(files, durability=self.durability, file_size_limit=900)

    def _use(self, store: msgstore.Store) -> None:
        with store.client(on_confirm=self.required.update) as client:
            self._write(client, range(1, 13))
            client.write(SHARED, body_of(SHARED))
            self.written[SHARED] += 1
            store.flush()
            client.remove(self._removing(range(1, 13, 3)))
            store.flush()
            store.roll()
            self._write(client, range(13, 19))
            store.flush()
        self._compact(store)

    def _write(self, client: msgstore.Client, numbers: range) -> None:
        for msg_id in (bytes([n]) * 16 for n in numbers):
            client.write(msg_id, body_of(msg_id))
            self.written[msg_id] = 1

    def _removing(self, numbers: range) -> list[bytes]:
        """Note that these ids may be present or absent from now on."""
        ids = [msg_id for msg_id in (bytes([n]) * 16 for n in numbers) if self.written.pop(msg_id, 0)]
        self.required.difference_update(ids)
        return ids

    def _compact(self, store: msgstore.Store, *, everything: bool = False) -> None:
        if self.stores.subject.has(Capability.DROPS_MESSAGES):
            self.required.clear()
        store.compact(everything=everything)

    def check_what_is_left(self, store: msgstore.Store, where: str) -> None:
        with store.client() as client:
            there = {entry.msg_id for entry in store.entries()}
            missing = self.required - there
            assert not missing, f"{where}: {sorted(msg_id[0] for msg_id in missing)} were confirmed and are missing"
            for msg_id in there:
                assert client.read(msg_id) == body_of(msg_id), f"{where}: {msg_id[0]} has other bytes"
            assert store.stats().quarantined == 0, f"{where}: a crash looks like damage"
        store.close()
