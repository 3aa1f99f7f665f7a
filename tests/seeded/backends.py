"""Faults of indexes, formats, record types, body codecs and jobs, where what is promised depends on them."""

FAULTS = r"""
@ msgstore_ets_index.index
message-with-two-references-goes-with-one: A message with three references is gone after two removals.
  EtsIndex._release_shared  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  = if left > 1: => if left > 2:
@ msgstore_format_v1.scan
phantom-hides-a-v1-record: The first message after a hole of a v1 segment is not found.
  find_record  plugins/format_v1/tests/test_v1_format.py::test_scan_of_known_bytes
  = range(at + 1, at + SIZE_FIELD) => range(at + 1, at + 2)
@ msgstore_format_v2.scan
v2-copies-count-as-records: A message that stands twice in a segment counts as two: the segment is never deleted.
  scan_segment  plugins/format_v2/tests/test_v2_format.py::test_many_batches_and_copies_across_them
  = scan.separate_copies() => pass
@ msgstore_format_v2.format
seal-may-cross-a-sector: A power loss in a compaction leaves half of a record's head, and every message after it is lost.
  SegmentFormatV2.gap_room  plugins/format_v2/tests/test_v2_format.py::test_room
  = _SECTOR - HOLE_SIZE => _SECTOR
v2-decode-ignores-the-id: A wrong location in the index gives the body of another message.
  SegmentFormatV2.decode  plugins/format_v2/tests/test_v2_format.py::test_decode_refuses_what_is_not_the_record
  = record[_HEAD] == _pack_head(MESSAGE, len(record), msg_id) => record[:5] == _pack_head(MESSAGE, len(record), msg_id)[:5]
@ msgstore_checksum_record.record
checksum-is-not-compared-on-read: A body with a flipped bit is read without an error.
  ChecksumRecord.decode  plugins/checksum_record/tests/test_checksum_record.py::test_every_flipped_bit_is_noticed
  = raise RecordError(MISMATCH) => pass
@ msgstore_erlang_body.codec
erlang-body-of-exact-size-is-not-decoded: Clients read Erlang terms instead of the bodies that they wrote.
  ErlangBody.decode  plugins/erlang_body/tests/test_codec.py::test_bytes_come_back
  = size <= len(stored) - 6 => size < len(stored) - 6
@ msgstore_ets_index.snapshot
damaged-snapshot-is-loaded: A flipped bit in the snapshot moves a message, and it cannot be read.
  read  plugins/ets_index/tests/test_ets_index.py::test_every_truncation_and_every_changed_byte_is_noticed
  -         state[RESCUED_KEY] = b""
  +         pass
@ msgstore_lmdb_index.index
unsynced-commit-leaves-no-mark: After a power loss LMDB maps a damaged file and ends the process.
  LmdbIndex._write  plugins/lmdb_index/tests/test_power_loss.py::test_no_commit_goes_without_a_mark
  = self._mark.set() => pass
cleared-entries-come-back: After a rebuild entries of the index before are there again.
  LmdbIndex._write  plugins/lmdb_index/tests/test_index.py::test_clear_reaches_disk_with_the_next_commit
  = drop_entries=cleared, => drop_entries=False,
@ msgstore.jobs.inventory
message-without-references-is-alive: An analysis with counts says that nothing is dead.
  live_of  tests/test_inventory.py::test_counts_show_what_an_opening_finds_alive
  = counts.get(msg_id, 0) > 0 => counts.get(msg_id, 0) >= 0
@ msgstore.jobs.salvage
salvage-copies-a-changed-segment: A salvage of a segment that is being written copies bytes that are no records.
  _copy_records  core/tests/test_salvage.py::test_salvage_that_fails_leaves_nothing
  = if checksum(data, len(data)) != pick.crc32: => if len(data) < pick.records.offsets[-1]:
dead-copy-replaces-the-message: A migration copies a removed copy of a message, which may be damaged.
  _select  tests/test_migrate.py::test_only_the_live_copy_is_copied
  = msg_id in taken or not is_live => msg_id in taken
@ msgstore.jobs.inputs
later-writer-goes-unnoticed: What a writer confirms during a salvage is missing in the new store.
  JobInputs.check_no_writer_since  tests/test_reconcile.py::test_writer_after_the_plan_fails_the_job
  = check_no_writer_since(self.lock_texts) => pass
@ msgstore.jobs.output.staging_directory
new-store-is-not-synced: A power loss right after a salvage leaves a store without content.
  sync_tree  tests/test_store_output.py::test_every_file_is_synced_before_store_appears
  = files.sync(fd) => pass
@ msgstore.jobs.columns.sums
last-rows-are-not-added-up: The sums of a large file of counts miss its last rows.
  IdAggregator.totals  tests/test_reconcile.py::test_rows_are_added_up_in_buckets
  -         self._divide()
  +         self._waiting.clear()
@ msgstore.cli.checking
scrub-does-not-look-again: A scrub reports damage in a segment that was compacted while it was read.
  Checker.check  core/tests/test_cli_verify.py::test_segment_changed_meanwhile_is_read_again
  - if not check.spans or self._state(path) == state:
  + if check.spans or self._state(path) == state:
"""
