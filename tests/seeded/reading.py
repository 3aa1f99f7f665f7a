"""Faults of reading: in one process, next to a writer in another process, and of the events that report it."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="directory-is-not-locked",
        module="msgstore.writer_lock",
        function="WriterLock.__init__",
        fragment="self._directory.lock()",
        replacement="pass",
        symptom=("When somebody deletes msgstore.lock, a second writer opens the store and both write the same segments."),
        caught_by="tests/test_two_writers.py::test_removed_lock_file_lets_no_second_writer_in",
    ),
    Fault(
        name="lock-follows-a-link",
        module="msgstore.lock_file",
        function="open_lock",
        fragment='getattr(os, "O_NOFOLLOW", 0)',
        replacement="0",
        symptom="Opening a store empties the file that a link named msgstore.lock leads to.",
        caught_by="tests/test_hostile_directory.py::test_link_in_place_of_own_file_is_refused",
    ),
    Fault(
        name="moved-record-is-read-where-it-was",
        module="msgstore.engine.read.reader",
        function="Reader._find",
        fragment="if here != before:",
        replacement="if here is None:",
        symptom="A reader in another process gets other bytes for a message that is moved while it is read.",
        caught_by="tests/test_other_processes.py::test_read_of_moving_message_raises_at_last",
    ),
    Fault(
        name="half-rebuilt-index-is-read",
        module="msgstore.engine.live_opening",
        function="LiveViews.make",
        fragment="state.get(LAYOUT_KEY) != LAYOUT",
        replacement="state.get(LAYOUT_KEY, LAYOUT) != LAYOUT",
        symptom="A reader takes an index for whole whose rebuild was killed, and misses messages.",
        caught_by="tests/test_other_processes.py::test_reader_refuses_a_half_rebuilt_index",
    ),
    Fault(
        name="short-read-is-a-shorter-body",
        module="msgstore.engine.read.reader",
        function="_decode",
        fragment="if len(record) != size:",
        replacement="if len(record) > size:",
        symptom="A message in a segment that was cut is read as a shorter body instead of an error.",
        caught_by="tests/test_store.py::test_read_of_cut_segment_raises_corruptrecord",
    ),
    Fault(
        name="shared-cache-grows-without-limit",
        module="msgstore.engine.state.accounting",
        function="SharedBodies.put",
        fragment="self._bytes += len(body)",
        replacement="pass",
        symptom="The cache of shared bodies takes all memory.",
        caught_by="tests/test_clients.py::test_cache_of_shared_bodies_is_bounded",
    ),
    Fault(
        name="same-damage-is-announced-again",
        module="msgstore.engine.events.telemetry",
        function="Telemetry.damage",
        fragment="if span in self._spans or ",
        replacement="if ",
        symptom="Each read of a damaged message counts as new damage and raises another alarm.",
        caught_by="core/tests/test_events.py::test_damage_event_fires_once_per_offset",
    ),
]
