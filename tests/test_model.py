"""A store against the kit's dictionary, with another program's changes in between."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from msgstore.scan import FormatSet
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.stores import IDS, StoreAgainstDictionary, body_of
from support import Cell, catalogue, open_with


class StoreBesideOtherPrograms(StoreAgainstDictionary):
    cell: Cell

    def make(self, **keys):
        keys["file_size_limit"] += self.cell.header
        return open_with(self.path, UnsyncedFiles(), **self.cell.keys, **keys)

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


def test_store_after_random_history_equals_dictionary(cell, examples):
    machine = type("Machine", (StoreBesideOtherPrograms,), {"cell": cell})
    given = settings(max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=given)
