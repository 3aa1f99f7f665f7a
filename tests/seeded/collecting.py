"""Faults of collections: the ledger, compaction, copies, policies, hints."""

FAULTS = r"""
@ msgstore.engine.compact.in_place
compacted-segments-hint-is-stale: After a compaction and a crash moved messages are looked for where they were before.
  compact_in_place  tests/test_hints.py::test_compaction_rewrites_the_hint
  = hints.rewrite(segment, live.ids, plan.places, => hints.rewrite(segment, live.ids, live.offsets,
gaps-are-filled-before-the-index-is-committed: A crash in a compaction loses messages whose removal was not on disk yet.
  _rewrite  tests/test_collection.py::test_compaction_in_place_syncs_every_step
  = context.commit_locked() => pass
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
  = context.commit() => pass
records-move-onto-each-other: After a compaction messages have the places of others, and cannot be read.
  plan_moves  core/tests/test_moves.py::test_plan_of_known_segment
  = places[staying], end = place_end - size, => places[staying], end = gaps[gap][0],
cut-takes-the-last-record-that-stays: A compaction cuts off the last message that stayed where it was.
  plan_moves  core/tests/test_moves.py::test_plan_of_known_segment
  = end = max(end, starts[staying]) => end = max(end, offsets[staying - 1])
@ msgstore.engine.compact.garbage_collector
erased-store-compacts-in-place: With erase = true removed bodies stay readable in the gaps of a segment.
  GarbageCollector._collect  tests/test_erasing.py::test_collection_erases_removed_bodies
  -  and not self._segments.erase
  +
zeros-come-before-the-lost-name: After a power loss a segment of zeros has its name back.
  GarbageCollector.erase  tests/test_erasing.py::test_zeros_are_synced_before_unlink
  = self._segments.sync_directory() => pass
@ msgstore.engine.compact
quarantine-does-not-bind-policies: A policy may have a damaged segment rewritten.
  _refusal  core/tests/test_policies.py::test_impossible_action_is_refused
  = if found.quarantined: => if False:
combined-segment-is-too-large: Combined segments grow beyond file_size_limit.
  _refusal  core/tests/test_policies.py::test_impossible_action_is_refused
  = if size > left.size_limit: => if size > 4 * left.size_limit:
any-policy-may-drop-messages: A policy that never said so drops live messages.
  judge  core/tests/test_policies.py::test_store_carries_out_only_what_is_possible
  = isinstance(action, Drop) and not may_drop => isinstance(action, Drop) and may_drop is None
segment-is-collected-twice-in-one-plan: A plan that names a segment twice is carried out twice.
  judge  core/tests/test_policies.py::test_segment_named_twice_is_refused
  = taken.update(numbers_of(action)) => pass
@ msgstore.engine.segment.segment
zeros-are-not-synced: With erase = true removed bodies are still on the disk after a power loss.
  overwrite  tests/test_erasing.py::test_zeros_are_synced_before_unlink
  = files.sync(fd) => pass
"""
