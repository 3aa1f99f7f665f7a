"""Faults of what frees space: live bytes, deletion, compaction, copies, quarantine, retention, policies."""

FAULTS = r"""
@ msgstore.engine.compact.in_place
compacted-segments-hint-is-stale: After a compaction and a crash moved messages are looked for where they were before.
  compact_in_place  tests/test_hints.py::test_compaction_rewrites_the_hint
  = hints.rewrite(segment, live.ids, plan.places, => hints.rewrite(segment, live.ids, live.offsets,
gaps-are-filled-before-the-index-is-committed: A crash in a compaction loses messages whose removal was not on disk yet.
  _rewrite  tests/test_collection.py::test_compaction_in_place_syncs_every_step
  - context.commit()
  -             with accounting
  + with accounting
moved-records-appear-before-they-are-written: A crash in a compaction leaves records with the bytes of others in them.
  _rehearse  tests/test_compaction_crash.py::test_compaction_killed_anywhere_loses_nothing
  = (fill.prepare, fill.inside, fill.seal) => (fill.prepare, fill.seal, fill.inside)
steps-of-a-compaction-are-not-synced: A power loss in a compaction damages messages that were confirmed long ago.
  _rewrite  tests/test_collection.py::test_compaction_in_place_syncs_every_step
  - if writes:
  -                     files.sync(fd)
  + pass
compaction-cuts-a-byte-too-much: The last message of a compacted segment cannot be read.
  _rewrite  tests/test_collection.py::test_compaction_keeps_the_age_of_segments
  = files.truncate(fd, end) => files.truncate(fd, end - 1)
moves-are-not-entered-into-the-index: After a compaction messages are looked for where they were before.
  _rewrite  tests/test_compaction_crash.py::test_compaction_killed_anywhere_loses_nothing
  = relocate(context, moved) => pass
swap-is-not-committed-before-the-cut: With a persistent index a crash behind a compaction loses every message that was moved.
  _rewrite  tests/test_collection.py::test_compaction_in_place_syncs_every_step
  = context.commit()  # with the old size in the row => pass
records-move-onto-each-other: After a compaction messages have the places of others, and cannot be read.
  plan_moves  core/tests/test_moves.py::test_plan_of_known_segment
  = places[staying] = offset - room => places[staying] = offset - rooms[gap]
cut-takes-the-last-record-that-stays: A compaction cuts off the last message that stayed where it was.
  plan_moves  core/tests/test_moves.py::test_plan_of_known_segment
  = end = max(end, starts[staying]) => end = max(end, offsets[staying - 1])
@ msgstore.engine.compact.garbage_collector
erased-store-compacts-in-place: With erase = true removed bodies stay readable in the gaps of a segment.
  GarbageCollector._may_change  tests/test_erasing.py::test_collection_erases_removed_bodies
  -  or self._segments.erase
  +
copy-of-hard-links-is-compacted-in-place: A compaction in a copy made by cp -al takes messages from the original.
  GarbageCollector._may_change  tests/test_two_writers.py::test_writer_of_hard_links_leaves_original
  = [1] == 1 => [1] >= 1
zeros-come-before-the-lost-name: After a power loss a segment of zeros has its name back.
  GarbageCollector.erase  tests/test_erasing.py::test_zeros_are_synced_before_unlink
  = self._segments.sync_directory() => pass
@ msgstore.engine.compact.policy_actions
quarantine-does-not-bind-policies: A policy may have a damaged segment rewritten.
  _refusal  core/tests/test_policies.py::test_impossible_action_is_refused
  = if found.quarantined: => if False:
combined-segment-is-too-large: Combined segments grow beyond file_size_limit.
  _refusal  core/tests/test_policies.py::test_impossible_action_is_refused
  = if size > left.size_limit: => if size > 4 * left.size_limit:
any-policy-may-drop-messages: A policy that never said so drops live messages.
  validate_actions  core/tests/test_policies.py::test_store_carries_out_only_what_is_possible
  = isinstance(action, Drop) and not may_drop => isinstance(action, Drop) and may_drop is None
segment-is-collected-twice-in-one-plan: A plan that names a segment twice is carried out twice.
  validate_actions  core/tests/test_policies.py::test_segment_named_twice_is_refused
  = taken.update(numbers_of(action)) => pass
@ msgstore.engine.segment.segment
zeros-are-not-synced: With erase = true removed bodies are still on the disk after a power loss.
  _overwrite  tests/test_erasing.py::test_zeros_are_synced_before_unlink
  = files.sync(fd) => pass
@ msgstore.engine.state.accounting
failed-index-keeps-a-part: What an index has entered before it raised is written again with one reference more.
  LiveAccounting.enter  tests/test_races.py::test_messages_refused_by_index_stay_buffered
  = self.index.release( => list(
removed-bytes-still-count-as-live: Segments full of removed messages are never collected.
  LiveAccounting.mark_dead  tests/test_collection.py::test_combine_of_two_segments_leaves_one
  = segment.live_bytes -= size => pass
removal-during-a-copy-is-forgotten: A message that is removed while its segment is copied is back afterwards.
  LiveAccounting.mark_dead  tests/test_collection.py::test_removal_during_collection_stays_removed
  = segment.died_since_pin.add(location) => pass
deletions-are-not-synced: After a power loss deleted segments are back, and the index does not know them.
  LiveAccounting.delete_empty  tests/test_races.py::test_deleted_segment_is_synced_before_commit
  = self.segments.sync_directory() => pass
empty-segment-goes-before-the-commit: A segment goes before the index commits that: a crash leaves entries without records.
  LiveAccounting._take_empty  tests/test_races.py::test_segment_emptied_after_commit_survives_until_next
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
