"""Faults of openings and stops: recovery, adoption, clean markers, hint files, the files of a directory."""

FAULTS = r"""
@ msgstore.engine.state.checkpoint
damaged-row-is-trusted: A flipped bit in the index's row of a segment is not noticed, and the segment is deleted with live
    messages in it.
  rows  tests/test_hostile_directory.py::test_checkpoint_row_with_flipped_bit_is_refused
  - checksum not in (b"", _CHECKSUM.pack(zlib.crc32(row, zlib.crc32(key))))
  + len(checksum) not in (0, _CHECKSUM.size)
@ msgstore.engine.open.recovery_plan
hidden-marker-is-not-recognised: A store that was killed between its first change and its first commit says that another program
    has changed it.
  compare_with_index  tests/test_opening.py::test_killed_before_first_commit_scans_the_tail
  - saved in (shutdown_files.clean, shutdown_files.pending)
  + saved == shutdown_files.clean
flipped-size-passes-for-a-torn-write: One flipped bit in a size lets a compaction cut off every message after it.
  RecoveryRun.scan  tests/test_faults.py::test_compaction_keeps_records_behind_flipped_size
  -  or behind is not None
  +
@ msgstore.engine.open.recovery
tail-scan-resets-counts: After a crash a message with several references has one, because a second record of it was found.
  _scan_tail  tests/test_recovery.py::test_records_behind_the_last_commit_keep_older_counts
  -  if index.get(i) is None]
  + ]
@ msgstore.engine.open.reconcile
lost-messages-stay-in-the-index: A message whose segment is missing is still said to be there, and reading it raises an error.
  reconcile  tests/test_opening.py::test_damaged_directory_keeps_what_records_confirm
  - index.release(list(gone))
  + pass
moved-records-lose-their-counts: Messages that another program has moved have one reference each, and go with the first removal.
  reconcile  tests/test_opening.py::test_damaged_directory_keeps_what_records_confirm
  - copies.values(), [gone[msg_id] for msg_id in copies])
  + copies.values())
first-record-after-the-row-is-dead: The first message that was appended after the last clean stop is lost when the index is
    reconciled.
  _find_new  tests/test_opening.py::test_damaged_directory_keeps_what_records_confirm
  - is_new = offset >= size or
  + is_new = offset > size or
@ msgstore.engine.open.broker_counts
grown-segment-passes-the-brokers-summary: Saved counts that are older than the segments are believed, and newer messages are
    dropped.
  BrokerCounts.compare_summary  tests/test_broker_counts.py::test_stale_counts_lose_no_newer_message
  - if size != segment.size:
  + if size > segment.size:
@ msgstore.engine.open.startup
failed-opening-keeps-the-lock: After an opening that failed the same process cannot open the store again.
  open_directory  tests/test_recovery.py::test_killed_rebuild_begins_again
  - undo.callback(lock.release)
  + pass
empty-segment-survives-a-crash: A segment that was empty when the process was killed keeps its space until somebody collects.
  _begin_writing  tests/test_meetings.py::test_empty_segment_of_killed_store_is_deleted
  - accounting.queue_deletion(segment)
  + pass
store-appends-after-a-torn-record: After a crash the store appends after a torn record, and nothing that it writes there is
    found by a scan.
  can_resume  tests/test_recovery.py::test_segment_with_torn_end_takes_no_records
  - newest.appendable and newest.form.name
  + newest.form.name
@ msgstore.engine.open.clean_shutdown
first-change-deletes-the-marker: After a kill before the first commit the saved counts are distrusted: a start reads whole
    segments, and warns of another program.
  CleanStopMarker.retire  tests/test_opening.py::test_killed_before_first_commit_scans_the_tail
  - files.replace(directory / CLEAN, directory / PENDING_CLEAN)
  + files.unlink(directory / CLEAN)
broker-counts-are-deleted: An opening that is killed half-way has destroyed the only counts of a broker's directory.
  CleanStopMarker.finish  tests/test_broker_counts.py::test_first_opening_killed_anywhere_keeps_counts
  - files.replace(directory / name, directory / (KEPT + name))
  + files.unlink(directory / name)
@ msgstore.directory
settings-are-not-synced: After a power loss a new store has segments and no msgstore.json, and is taken for a broker's.
  write_settings  tests/test_adoption.py::test_settings_reach_disk_before_first_segment
  - sync=True)
  + sync=False)
@ msgstore.engine.segment.hints
end-of-a-hinted-segment-is-not-checked: After a power loss that took the end of a segment its messages are listed, and cannot be
    read.
  Hints.load  tests/test_hints.py::test_hint_of_segment_with_lost_end_is_refused
  - segment.form.format.decode(bytes(hint.ids[-_ID:]), record)
  + pass
hint-ignores-the-time-of-its-segment: A segment that another program changed without changing its size is not read again.
  read_hint  tests/test_hints.py::test_hint_after_same_time_change_is_refused
  - if (of_size, of_time) != (segment_size, mtime_ns):
  + if of_size != segment_size:
"""
