"""Faults of reading: in one process, next to a writer in another process, and of the events that report it."""

FAULTS = r"""
@ msgstore.writer_lock
directory-is-not-locked: When somebody deletes msgstore.lock, a second writer opens the store and both write the same segments.
  _Directory.lock  tests/test_two_writers.py::test_removed_lock_file_lets_no_second_writer_in
  - fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
  + raise OSError
lock-follows-a-link: Opening a store empties the file that a link named msgstore.lock leads to.
  open_lock  tests/test_hostile_directory.py::test_link_in_place_of_own_file_is_refused
  - os.O_NOFOLLOW
  + 0
@ msgstore.engine.read.reader
moved-record-is-read-where-it-was: A reader in another process gets other bytes for a message that is moved while it is read.
  Reader._find  tests/test_other_processes.py::test_read_of_moving_message_raises_at_last
  - if location != before:
  + if location is None:
short-read-is-a-shorter-body: A message in a segment that was cut is read as a shorter body instead of an error.
  Reader._find  tests/test_store.py::test_read_of_cut_segment_names_its_relative_path
  - if len(data) != size:
  + if len(data) > size:
@ msgstore.engine.opening
half-rebuilt-index-is-read: A reader takes an index for whole whose rebuild was killed, and misses messages.
  LiveStore.make_view  tests/test_other_processes.py::test_reader_refuses_a_half_rebuilt_index
  - state.get(LAYOUT_KEY) != LAYOUT
  + state.get(LAYOUT_KEY, LAYOUT) != LAYOUT
@ msgstore.engine.state.accounting
shared-cache-grows-without-limit: The cache of shared bodies takes all memory.
  SharedBodies.put  tests/test_clients.py::test_cache_of_shared_bodies_is_bounded
  - self._bytes += len(body)
  + pass
@ msgstore.engine.events
same-damage-is-announced-again: Each read of a damaged message counts as new damage and raises another alarm.
  Telemetry.damage  core/tests/test_events.py::test_damage_event_fires_once_per_offset
  - if (file, offset) not in self._spans and len(self._spans)
  + if len(self._spans)
"""
