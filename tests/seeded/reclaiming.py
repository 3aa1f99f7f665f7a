"""Faults of what frees space: live bytes, deletion, copy compaction, quarantine, retention, policies."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="removed-bytes-still-count-as-live",
        module="msgstore.engine.ledger",
        function="Ledger.bury",
        fragment="segment.live_bytes -= location & MASK",
        replacement="pass",
        symptom="Segments full of removed messages are never collected.",
        caught_by="tests/test_collection.py::test_two_segments_become_one",
    ),
    Fault(
        name="removal-during-a-copy-is-forgotten",
        module="msgstore.engine.ledger",
        function="Ledger.bury",
        fragment="segment.died.add(location)",
        replacement="pass",
        symptom="A message that is removed while its segment is copied is back afterwards.",
        caught_by="tests/test_collection.py::test_what_is_removed_while_it_is_copied_stays_removed",
    ),
    Fault(
        name="deletions-are-not-synced",
        module="msgstore.engine.ledger",
        function="Ledger.delete_empty",
        fragment="self.segments.sync_directory()",
        replacement="pass",
        symptom="After a power loss deleted segments are back, and the index does not know them.",
        caught_by="tests/test_meetings.py::test_deleted_segment_is_synced_before_the_index_forgets_it",
    ),
    Fault(
        name="empty-segment-goes-before-the-commit",
        module="msgstore.engine.ledger",
        function="Ledger._take_empty",
        fragment="self._empty & self._touched if self.persistent else set()",
        replacement="set[Segment]()",
        symptom=(
            "A segment is deleted before the index on disk knows that it is empty: a crash leaves entries without records."
        ),
        caught_by=("tests/test_meetings.py::test_a_segment_that_becomes_empty_behind_a_commit_is_deleted_behind_the_next"),
    ),
    Fault(
        name="damaged-segment-is-deleted",
        module="msgstore.engine.ledger",
        function="Ledger._take_empty",
        fragment=" or segment.quarantined",
        replacement="",
        symptom=(
            "A damaged segment is deleted when its last known message goes, with records that a salvage could have found."
        ),
        caught_by="tests/test_collection.py::test_quarantined_segment_without_live_messages_is_kept",
    ),
    Fault(
        name="segment-emptied-while-current-stays",
        module="msgstore.engine.ledger",
        function="Ledger.sealed",
        fragment="if segment.live_count == 0:",
        replacement="if segment.live_count < 0:",
        symptom=("A segment whose messages were all removed while it was written keeps its space until somebody collects."),
        caught_by="tests/test_store.py::test_segment_emptied_before_sealing_is_deleted",
    ),
    Fault(
        name="copies-are-not-synced",
        module="msgstore.engine.rewriting",
        function="_Copying._end",
        fragment="self._files.sync(fd)",
        replacement="pass",
        symptom="A power loss after a combination takes messages that were confirmed long ago.",
        caught_by="tests/test_collection.py::test_copies_are_synced_before_sources_are_deleted",
    ),
    Fault(
        name="names-of-copies-are-not-synced",
        module="msgstore.engine.rewriting",
        function="_publish",
        fragment="segments.sync_directory()",
        replacement="pass",
        symptom="A power loss takes the names of copies whose sources are deleted already.",
        caught_by="tests/test_collection.py::test_copies_are_synced_before_sources_are_deleted",
    ),
    Fault(
        name="too-few-live-records-are-accepted",
        module="msgstore.engine.sources",
        function="Source.live",
        fragment="if known != self.count:",
        replacement="if known > self.count:",
        symptom="A compaction overwrites live records that a scan of the damaged segment does not find.",
        caught_by="tests/test_collection.py::test_damage_is_quarantined_and_stops_nobody_else",
    ),
    Fault(
        name="failed-collection-looks-successful",
        module="msgstore.engine.collection",
        function="Collection._carry_out",
        fragment="failure = failure or error",
        replacement="pass",
        symptom="compact() returns normally although the disk refused to be read.",
        caught_by="tests/test_collection.py::test_what_cannot_be_read_now_is_left_for_later",
    ),
    Fault(
        name="damage-is-not-quarantined",
        module="msgstore.engine.collection",
        function="Collection._leave",
        fragment="segment.quarantined = True",
        replacement="pass",
        symptom="A damaged segment is scanned again by every collection, and its damage is not remembered.",
        caught_by="tests/test_collection.py::test_damage_is_quarantined_and_stops_nobody_else",
    ),
    Fault(
        name="retention-keeps-shared-messages",
        module="msgstore.engine.retention",
        function="_release",
        fragment=" for _ in range(index.references(msg_id))",
        replacement="",
        symptom=("Retention does not drop messages that have several references, and the store grows beyond max_bytes."),
        caught_by="tests/test_collection.py::test_dropping_is_reported",
    ),
    Fault(
        name="retention-drops-everything",
        module="msgstore.builtin.policies",
        function="Retention.plan",
        fragment="total -= sizes[number]",
        replacement="pass",
        symptom="A store that is one segment over max_bytes loses every sealed segment.",
        caught_by="core/tests/test_policies.py::test_retention_says_why",
    ),
]
