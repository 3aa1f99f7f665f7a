"""Faults of openings and stops: recovery, adoption, clean markers, hint files, the files of a directory."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="damaged-row-is-trusted",
        module="msgstore.engine.state.checkpoint",
        function="rows",
        fragment='checksum not in (b"", _CHECKSUM.pack(zlib.crc32(row, zlib.crc32(key))))',
        replacement="len(checksum) not in (0, _CHECKSUM.size)",
        symptom=(
            "A flipped bit in the index's row of a segment is not noticed, and the segment is deleted with live messages in it."
        ),
        caught_by="tests/test_hostile_directory.py::test_checkpoint_row_with_flipped_bit_is_refused",
    ),
    Fault(
        name="hidden-marker-is-not-recognised",
        module="msgstore.engine.open.recovery_plan",
        function="compare_with_index",
        fragment="saved in (shutdown_files.clean, shutdown_files.pending)",
        replacement="saved == shutdown_files.clean",
        symptom=(
            "A store that was killed between its first change and its first commit says that another program has changed it."
        ),
        caught_by="tests/test_opening_faults.py::test_killed_before_first_commit_scans_the_tail",
    ),
    Fault(
        name="tail-scan-resets-counts",
        module="msgstore.engine.open.recovery",
        function="scan_tail",
        fragment=" if index.get(i) is None]",
        replacement="]",
        symptom=("After a crash a message with several references has one, because a second record of it was found."),
        caught_by="tests/test_recovery.py::test_records_behind_the_last_commit_keep_older_counts",
    ),
    Fault(
        name="flipped-size-passes-for-a-torn-write",
        module="msgstore.engine.open.recovery",
        function="RecoveryRun.scan",
        fragment=" or behind is not None",
        replacement="",
        symptom="One flipped bit in a size lets a compaction cut off every message after it.",
        caught_by="tests/test_faults.py::test_compaction_keeps_records_behind_flipped_size",
    ),
    Fault(
        name="lost-messages-stay-in-the-index",
        module="msgstore.engine.open.reconcile",
        function="_replace",
        fragment="index.release(list(gone))",
        replacement="pass",
        symptom="A message whose segment is missing is still said to be there, and reading it raises an error.",
        caught_by="tests/test_recovery.py::test_lost_segment_is_reported_other_counts_stay",
    ),
    Fault(
        name="moved-records-lose-their-counts",
        module="msgstore.engine.open.reconcile",
        function="_replace",
        fragment="copies.values(), [gone[msg_id] for msg_id in copies])",
        replacement="copies.values())",
        symptom="Messages that another program has moved have one reference each, and go with the first removal.",
        caught_by="tests/test_small_damage.py::test_moved_records_keep_their_counts",
    ),
    Fault(
        name="first-record-after-the-row-is-dead",
        module="msgstore.engine.open.reconcile",
        function="_unknown",
        fragment="is_new = offset >= size or",
        replacement="is_new = offset > size or",
        symptom=("The first message that was appended after the last clean stop is lost when the index is reconciled."),
        caught_by="tests/test_small_damage.py::test_grown_segment_enters_only_what_is_new",
    ),
    Fault(
        name="grown-segment-passes-the-brokers-summary",
        module="msgstore.engine.open.broker_counts",
        function="_compare_summary",
        fragment="if size != segment.size:",
        replacement="if size > segment.size:",
        symptom="Saved counts that are older than the segments are believed, and newer messages are dropped.",
        caught_by="tests/test_broker_counts.py::test_stale_counts_lose_no_newer_message",
    ),
    Fault(
        name="failed-opening-keeps-the-lock",
        module="msgstore.engine.open.startup",
        function="open_directory",
        fragment="undo.callback(lock.release)",
        replacement="pass",
        symptom="After an opening that failed the same process cannot open the store again.",
        caught_by="tests/test_recovery.py::test_killed_rebuild_begins_again",
    ),
    Fault(
        name="empty-segment-survives-a-crash",
        module="msgstore.engine.open.startup",
        function="_begin_writing",
        fragment="accounting.queue_deletion(segment)",
        replacement="pass",
        symptom="A segment that was empty when the process was killed keeps its space until somebody collects.",
        caught_by="tests/test_meetings.py::test_empty_segment_of_killed_store_is_deleted",
    ),
    Fault(
        name="store-appends-after-a-torn-record",
        module="msgstore.engine.open.startup",
        function="can_resume",
        fragment="newest.appendable and ",
        replacement="",
        symptom="After a crash the store appends after a torn record, and nothing that it writes there is found by a scan.",
        caught_by="tests/test_recovery.py::test_segment_with_torn_end_takes_no_records",
    ),
    Fault(
        name="first-change-deletes-the-marker",
        module="msgstore.engine.open.clean_shutdown",
        function="CleanStopMarker.retire",
        fragment="files.replace(directory / CLEAN, directory / PENDING_CLEAN)",
        replacement="files.unlink(directory / CLEAN)",
        symptom=(
            "After a kill before the first commit the saved counts are distrusted: a start reads whole segments, "
            "and warns of another program."
        ),
        caught_by="tests/test_opening_faults.py::test_killed_before_first_commit_scans_the_tail",
    ),
    Fault(
        name="broker-counts-are-deleted",
        module="msgstore.engine.open.clean_shutdown",
        function="CleanStopMarker.finish",
        fragment="files.replace(directory / name, directory / (KEPT + name))",
        replacement="files.unlink(directory / name)",
        symptom="An opening that is killed half-way has destroyed the only counts of a broker's directory.",
        caught_by="tests/test_broker_counts.py::test_first_opening_killed_anywhere_keeps_counts",
    ),
    Fault(
        name="settings-are-not-synced",
        module="msgstore.directory",
        function="write_settings",
        fragment="sync=True)",
        replacement="sync=False)",
        symptom="After a power loss a new store has segments and no msgstore.json, and is taken for a broker's.",
        caught_by="tests/test_adoption.py::test_settings_reach_disk_before_first_segment",
    ),
    Fault(
        name="end-of-a-hinted-segment-is-not-checked",
        module="msgstore.engine.segment.hints",
        function="Hints.load",
        fragment="self._look(segment, hint)",
        replacement="pass",
        symptom="After a power loss that took the end of a segment its messages are listed, and cannot be read.",
        caught_by="tests/test_hints.py::test_hint_of_segment_with_lost_end_is_refused",
    ),
    Fault(
        name="hint-ignores-the-time-of-its-segment",
        module="msgstore.engine.segment.hint_file",
        function="read",
        fragment="if (of_size, of_time) != (segment_size, mtime_ns):",
        replacement="if of_size != segment_size:",
        symptom="A segment that another program changed without changing its size is not read again.",
        caught_by="tests/test_hints.py::test_hint_after_same_time_change_is_refused",
    ),
]
