"""Faults of what frees space: live bytes, deletion, copy compaction, quarantine, retention, policies."""

FAULTS = r"""
@ msgstore.engine.state.accounting
removed-bytes-still-count-as-live: Segments full of removed messages are never collected.
  LiveAccounting.mark_dead  tests/test_collection.py::test_combine_of_two_segments_leaves_one
  = segment.live_bytes -= size => pass
removal-during-a-copy-is-forgotten: A message that is removed while its segment is copied is back afterwards.
  LiveAccounting.mark_dead  tests/test_collection.py::test_removal_during_collection_stays_removed
  = segment.died_since_pin.add(location) => pass
deletions-are-not-synced: After a power loss deleted segments are back, and the index does not know them.
  LiveAccounting.delete_empty  tests/test_meetings.py::test_deleted_segment_is_synced_before_commit
  = self.segments.sync_directory() => pass
empty-segment-goes-before-the-commit: A segment goes before the index commits that: a crash leaves entries without records.
  LiveAccounting._take_empty  tests/test_meetings.py::test_segment_emptied_after_commit_survives_until_next
  = self._empty & self._dirty if self.is_persistent else set() => set[Segment]()
damaged-segment-is-deleted: A damaged segment goes with its last known message, and with records that a salvage could find.
  LiveAccounting._take_empty  tests/test_collection.py::test_collection_of_damaged_segment_quarantines_only_it
  -  or segment.quarantined
  +
segment-emptied-while-current-stays: A segment emptied while it was written keeps its space until somebody collects.
  LiveAccounting.on_sealed  tests/test_store.py::test_segment_emptied_before_sealing_is_deleted
  = if segment.live_count == 0: => if segment.live_count < 0:
@ msgstore.engine.compact.copy_compaction
copies-are-named-before-their-rows-are-committed: A kill inside a copy compaction brings removed messages back.
  _Copies.publish  tests/test_collection.py::test_kill_after_copies_are_named_keeps_removals
  = self.context.commit() => pass
copies-are-not-synced: A power loss after a combination takes messages that were confirmed long ago.
  _Copies._sync  tests/test_collection.py::test_copies_are_synced_before_sources_are_deleted
  = files.sync(fd) => pass
names-of-copies-are-not-synced: A power loss takes the names of copies whose sources are deleted already.
  _Copies.publish  tests/test_collection.py::test_copies_are_synced_before_sources_are_deleted
  = segments.sync_directory() => pass
@ msgstore.engine.events
freed-bytes-of-copied-segments-count-twice: The counter of collected bytes shows more than the store ever held.
  describe  tests/test_collection.py::test_combine_of_two_segments_leaves_one
  = before - after if after else 0 => before - after
@ msgstore.engine.compact.gc_context
too-few-live-records-are-accepted: A compaction overwrites live records that a scan of the damaged segment does not find.
  PinnedSegment.live  tests/test_collection.py::test_collection_of_damaged_segment_quarantines_only_it
  = if known != self.count: => if known > self.count:
@ msgstore.engine.compact.garbage_collector
failed-collection-looks-successful: compact() returns normally although the disk refused to be read.
  GarbageCollector._carry_out  tests/test_collection.py::test_collection_of_unreadable_segment_is_repeated
  = failure = failure or error => pass
damage-is-not-quarantined: A damaged segment is scanned again by every collection, and its damage is not remembered.
  GarbageCollector._skip  tests/test_collection.py::test_collection_of_damaged_segment_quarantines_only_it
  = segment.quarantined = True => pass
retention-keeps-shared-messages: Retention drops no message with several references: the store exceeds max_bytes.
  GarbageCollector._drop  tests/test_collection.py::test_drop_reports_its_messages
  -  for _ in range(index.references(msg_id))
  +
@ msgstore.builtin.policies
retention-drops-everything: A store that is one segment over max_bytes loses every sealed segment.
  Retention.plan  core/tests/test_policies.py::test_retention_states_the_reason
  = total -= sizes[number] => pass
"""
