"""Faults between ``write`` and the confirm: clients, the writer, flushes that several threads share."""

FAULTS = r"""
@ msgstore.engine.write.flusher
flush-confirms-before-it-writes: A client is told that a message is safe, and the write then fails.
  Flusher.flush_locked  tests/test_store.py::test_idle_writer_is_confirmed_within_interval
  - self.deliver_confirms(self.write_out())
  + self.deliver_confirms([(client, len(client.unconfirmed or ())) for client in self.clients])
  +                 self.write_out()
flush-confirms-one-too-many: A message that was written while a flush ran is confirmed by that flush, and lost by a crash.
  Flusher.deliver_confirms  tests/test_clients.py::test_write_during_flush_is_confirmed_later
  - client.unconfirmed[:number]
  + client.unconfirmed[: number + 1]
flush-skips-behind-the-first-portion: Messages behind the first portion of a large flush are confirmed and not written.
  Flusher.write_out  tests/test_clients.py::test_flush_of_several_chunks_writes_all
  - at += processed
  + at += MAX_BATCH
flush-forgets-late-messages: A message that dies on disk while its second reference waits is confirmed and not written.
  Flusher.write_out  tests/test_clients.py::test_record_dying_while_reference_waits_is_rewritten
  - again += rewrite
  + pass
failing-commit-is-forgotten: While commits fail, removals are taken without limit.
  Flusher.flush_locked  tests/test_meetings.py::test_removals_with_failing_commits_are_refused
  - self.set_failing(self._lifecycle.refusal is None)
  + self.set_failing(self._lifecycle.refusal is None)
  +             self.uncommitted_bytes, self._buffer.before_removals[:] = 0, ()
index-is-committed-ahead-of-syncs: With fsync_every a power loss leaves index entries without records.
  Flusher.commit_and_reclaim  tests/test_clients.py::test_flusher_with_fsync_every_syncs
  - self._segments.sync_written()
  + pass
flush-joins-one-under-way: A flush returns when one that began before the last writes has ended: they are not confirmed.
  GroupCommit.run  tests/test_clients.py::test_each_write_is_confirmed_once_in_order
  - self._close(mine)
  -                         work()
  + work()
flush-hides-another-threads-failure: A flush that waited for one that failed returns as if everything were confirmed.
  GroupCommit.run  tests/test_clients.py::test_waiting_flushes_are_served_by_one_run
  - if done.get(timeout=_RETRY_SECONDS):
  + if done.get(timeout=_RETRY_SECONDS) is not None:
confirms-come-twice: The last message of each flush is confirmed once more by the next one.
  Flusher.deliver_confirms  tests/test_store.py::test_confirms_come_once_per_flush_in_order
  - del client.unconfirmed[: len(ids)]
  + del client.unconfirmed[: len(ids) - 1]
@ msgstore.engine.write.writer
bound-of-unconfirmed-is-ignored: More bytes are unconfirmed than max_unconfirmed allows.
  Writer._after_change  tests/test_clients.py::test_unconfirmed_bytes_stay_within_the_bound
  -  or flusher.uncommitted_bytes > self._bound:
  + :
absent-ids-are-not-told: Removing an id more often than it has references raises nothing.
  Writer._release  tests/test_store.py::test_removal_of_absent_references_names_them
  - return len(ids), released.missing
  + return len(ids), []
removal-leaves-live-bytes: A segment whose messages were all removed is never deleted.
  Writer._release  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  - self._accounting.mark_dead(released.freed)
  + pass
failed-removal-names-no-ids: A caller that repeats what a failed removal left repeats nothing.
  Writer._release  tests/test_refused_calls.py::test_remove_of_unreadable_entries_removes_none
  - ids=ids) from error
  + ) from error
failing-writes-pile-up-in-memory: On a full disk each write is taken, and memory grows until the process is killed.
  Writer.set_failing  tests/test_faults.py::test_writes_on_full_disk_are_bounded
  - self._is_failing = is_failing
  + self._is_failing = False
error-denies-a-taken-write: An error says that a write was not taken when it was: the retry adds a reference.
  Writer._after_change  tests/test_refused_calls.py::test_write_that_flushes_says_it_was_taken
  - applied=True
  + applied=False
error-claims-a-refused-write: An error says that a write was taken when it was refused: the caller does not repeat it.
  Writer._flush_first  tests/test_refused_calls.py::test_write_that_flushes_says_it_was_taken
  - applied=False
  + applied=True
large-messages-share-segments: A large body shares its segment, and its removal frees no space.
  Writer.write_slow  tests/test_store.py::test_segments_roll_at_limit_and_isolate_large
  - self.batches.seen_large |=
  + _ =
second-reference-is-never-confirmed: The second write of an id is never confirmed.
  Writer.write_slow  tests/test_store.py::test_confirms_come_once_per_flush_in_order
  - client.unconfirmed.append(msg_id)
  + pass
@ msgstore.engine.state.lifecycle
interrupted-store-goes-on: After Ctrl-C in the middle of a change the store goes on with half of it in memory.
  Lifecycle.end_if_interrupted  tests/test_interrupts.py::test_interrupt_in_flush_ends_the_store
  - self.refuse(self.interrupted)
  -         self.release()
  + self.interrupted = None
@ msgstore.engine.client
write-many-counts-the-failed-pair: After an error write_many says that one pair more was taken than was: the caller leaves it
    out.
  Client.write_many  tests/test_refused_calls.py::test_write_many_says_how_many_were_taken
  - length_hint(rest) - 1
  + length_hint(rest)
"""
