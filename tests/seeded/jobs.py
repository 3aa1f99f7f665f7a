"""Faults of jobs and of the scrub: salvage, new stores, reconciliation, checks of segments."""

FAULTS = r"""
@ msgstore.jobs.inventory
message-without-references-is-alive: An analysis with counts says that nothing is dead.
  live_of  tests/test_inventory.py::test_counts_show_what_an_opening_finds_alive
  - counts.get(msg_id, 0) > 0
  + counts.get(msg_id, 0) >= 0
@ msgstore.jobs.salvage
salvage-copies-a-changed-segment: A salvage of a segment that is being written copies bytes that are no records.
  _copy_records  core/tests/test_salvage.py::test_salvage_that_fails_leaves_nothing
  - if checksum(data, len(data)) != pick.crc32:
  + if len(data) < pick.records.offsets[-1]:
@ msgstore.jobs.output.staging_directory
new-store-is-not-synced: A power loss right after a salvage leaves a store without content.
  sync_tree  tests/test_fresh_stores.py::test_every_file_is_synced_before_store_appears
  - files.sync(fd)
  + pass
@ msgstore.jobs.columns.sums
last-rows-are-not-added-up: The sums of a large file of counts miss its last rows.
  IdAggregator.totals  tests/test_reconcile.py::test_rows_are_added_up_in_buckets
  -         self._divide()
  +         self._waiting.clear()
@ msgstore.cli.checking
scrub-does-not-look-again: A scrub reports damage in a segment that was compacted while it was read.
  Checker.check  core/tests/test_cli_verify.py::test_segment_changed_meanwhile_is_read_again
  - if not check.spans or self.files.list(path.parent).get(path.name) == state:
  + if check.spans or self.files.list(path.parent).get(path.name) == state:
"""
