"""Faults of openings, stops and reads: recovery, adoption, clean markers, hint files, reading next to a writer."""

FAULTS = r"""
@ msgstore.engine.state.checkpoint
damaged-row-is-trusted: A flipped bit in the index's row of a segment deletes the segment with live messages in it.
  rows  tests/test_hostile_directory.py::test_checkpoint_row_with_flipped_bit_is_refused
  = checksum not in (b"", _CHECKSUM.pack(zlib.crc32(row, zlib.crc32(key)))) => len(checksum) not in (0, _CHECKSUM.size)
@ msgstore.engine.segment.segments
found-records-are-not-synced: A record of a killed process that only the page cache has is confirmed by a second write.
  Segments.sync_found  tests/test_faults.py::test_record_of_killed_process_is_synced_before_it_is_confirmed
  = self.sync_written() => pass
@ msgstore.engine.state.lifecycle
exception-of-a-handler-is-a-failure: A handler that raises in a relocation leaves messages whose copies are deleted.
  Lifecycle.refuse_after  tests/test_interrupts.py::test_handler_that_raises_in_relocation_ends_the_store
  = isinstance(error, Exception) and not comes_from_outside(error) => isinstance(error, Exception)
@ msgstore.engine.open.recovery_plan
hidden-marker-is-not-recognised: A store killed before its first commit says that another program has changed it.
  compare_with_index  tests/test_opening.py::test_killed_before_first_commit_scans_the_tail
  = saved in (shutdown_files.clean, shutdown_files.pending) => saved == shutdown_files.clean
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
  = index.release(list(gone)) => pass
moved-records-lose-their-counts: Messages that another program has moved have one reference each, and go with the first removal.
  reconcile  tests/test_opening.py::test_damaged_directory_keeps_what_records_confirm
  = copies.values(), [gone[msg_id] for msg_id in copies]) => copies.values())
first-record-after-the-row-is-dead: A reconciled index loses the first message that was appended after the last clean stop.
  _find_new  tests/test_opening.py::test_damaged_directory_keeps_what_records_confirm
  = is_new = offset >= size or => is_new = offset > size or
@ msgstore.engine.open.broker
grown-segment-passes-the-brokers-summary: Saved counts older than the segments are believed, and drop newer messages.
  BrokerCounts.compare_summary  tests/test_broker_counts.py::test_stale_counts_lose_no_newer_message
  = if size != segment.size: => if size > segment.size:
@ msgstore.engine.open.startup
failed-opening-keeps-the-lock: After an opening that failed the same process cannot open the store again.
  open_directory  tests/test_recovery.py::test_killed_rebuild_begins_again
  = resources.callback(lock.release) => pass
empty-segment-survives-a-crash: A segment that was empty when the process was killed keeps its space until somebody collects.
  _begin_writing  tests/test_races.py::test_empty_segment_of_killed_store_is_deleted
  = accounting.queue_deletion(segment) => pass
store-appends-after-a-torn-record: After a crash the store appends after a torn record, and no scan finds what it writes.
  can_resume  tests/test_recovery.py::test_segment_with_torn_end_takes_no_records
  = newest.appendable and newest.form.name => newest.form.name
@ msgstore.engine.state.clean_shutdown
first-change-deletes-the-marker: After a kill before the first commit a start reads whole segments, and warns.
  ShutdownFiles.retire  tests/test_opening.py::test_killed_before_first_commit_scans_the_tail
  = files.replace(directory / CLEAN, directory / PENDING_CLEAN) => files.unlink(directory / CLEAN)
broker-counts-are-deleted: An opening that is killed half-way has destroyed the only counts of a broker's directory.
  ShutdownFiles.finish  tests/test_broker_counts.py::test_first_opening_killed_anywhere_keeps_counts
  = files.replace(directory / name, directory / (KEPT + name)) => files.unlink(directory / name)
@ msgstore.directory
settings-are-not-synced: After a power loss a new store has segments and no msgstore.json, and is taken for a broker's.
  write_settings  tests/test_adoption.py::test_settings_reach_disk_before_first_segment
  = sync=True) => sync=False)
@ msgstore.engine.segment.hints
end-of-a-hinted-segment-is-not-checked: Messages in a lost end of a segment are listed, and cannot be read.
  Hints.load  tests/test_hints.py::test_hint_of_segment_with_lost_end_is_refused
  = segment.form.format.decode(bytes(hint.ids[-_ID:]), record) => pass
hint-ignores-the-time-of-its-segment: A segment that another program changed without changing its size is not read again.
  read_hint  tests/test_hints.py::test_hint_after_same_time_change_is_refused
  = if (of_size, of_time) != (segment_size, mtime_ns): => if of_size != segment_size:
@ msgstore.writer_lock
directory-is-not-locked: When somebody deletes msgstore.lock, a second writer opens the store and both write the same segments.
  _Directory.lock  tests/test_two_writers.py::test_removed_lock_file_lets_no_second_writer_in
  = fcntl.flock(self.fd, kind | fcntl.LOCK_NB) => raise OSError
lock-follows-a-link: Opening a store empties the file that a link named msgstore.lock leads to.
  open_lock  tests/test_hostile_directory.py::test_link_in_place_of_own_file_is_refused
  = os.O_NOFOLLOW => 0
@ msgstore.engine.read.reader
moved-record-is-read-where-it-was: A reader in another process gets other bytes for a message that is moved while it is read.
  Reader._find  tests/test_other_processes.py::test_read_of_moving_message_raises_at_last
  = if location != before: => if location is None:
short-read-is-a-shorter-body: A message in a segment that was cut is read as a shorter body instead of an error.
  Reader._find  tests/test_store.py::test_read_of_damaged_record_names_place
  = if len(data) != size: => if len(data) > size:
@ msgstore.engine.live_store
half-rebuilt-index-is-read: A reader takes an index for whole whose rebuild was killed, and misses messages.
  LiveStore.make_view  tests/test_other_processes.py::test_reader_refuses_a_half_rebuilt_index
  = state.get(LAYOUT_KEY) != LAYOUT => state.get(LAYOUT_KEY, LAYOUT) != LAYOUT
@ msgstore.engine.state.accounting
shared-cache-grows-without-limit: The cache of shared bodies takes all memory.
  SharedBodies.put  tests/test_clients.py::test_read_of_shared_body_returns_one_object
  = self._bytes += len(body) => pass
@ msgstore.engine.events
same-damage-is-announced-again: Each read of a damaged message counts as new damage and raises another alarm.
  Telemetry.damage  core/tests/test_events.py::test_damage_event_fires_once_per_offset
  = if (file, offset) not in self._spans and len(self._spans) => if len(self._spans)
"""
