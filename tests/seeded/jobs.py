"""Faults of jobs and of the scrub: salvage, new stores, reconciliation, checks of segments."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="message-without-references-is-alive",
        module="msgstore.jobs.inventory",
        function="live_of",
        fragment="counts.get(msg_id, 0) > 0",
        replacement="counts.get(msg_id, 0) >= 0",
        symptom="An analysis with counts says that nothing is dead.",
        caught_by="tests/test_inventory.py::test_with_counts_what_an_opening_would_find_alive",
    ),
    Fault(
        name="salvage-copies-a-changed-segment",
        module="msgstore.jobs.salvage",
        function="_copy_records",
        fragment="if checksum(data, len(data)) != pick.crc32:",
        replacement="if len(data) < pick.offsets[-1]:",
        symptom="A salvage of a segment that is being written copies bytes that are no records.",
        caught_by="core/tests/test_salvage.py::test_a_segment_that_changes_between_two_readings",
    ),
    Fault(
        name="new-store-is-not-synced",
        module="msgstore.jobs.output.staging_directory",
        function="sync_tree",
        fragment="files.sync(fd)",
        replacement="pass",
        symptom="A power loss right after a salvage leaves a store without content.",
        caught_by="tests/test_fresh_stores.py::test_every_file_is_synced_before_store_appears",
    ),
    Fault(
        name="last-rows-are-not-added-up",
        module="msgstore.jobs.columns.sums",
        function="IdAggregator._in_buckets",
        fragment=("        if together:\n            yield from _split(pa.Table.from_batches(together))"),
        replacement="        del together",
        symptom="The sums of a large file of counts miss its last rows.",
        caught_by="tests/test_reconcile.py::test_rows_are_added_up_in_buckets",
    ),
    Fault(
        name="scrub-does-not-look-again",
        module="msgstore.cli.checking",
        function="Checker.check",
        fragment="if not spans or self._files.list(path.parent).get(path.name) == content.state:",
        replacement="if spans or self._files.list(path.parent).get(path.name) == content.state:",
        symptom="A scrub reports damage in a segment that was compacted while it was read.",
        caught_by="core/tests/test_cli_scrub.py::test_a_segment_that_changes_meanwhile_is_read_again",
    ),
]
