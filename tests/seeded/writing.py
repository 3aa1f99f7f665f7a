"""Faults between ``write`` and the confirm: clients, flushes that several threads share, buffer, batches, segments."""

FAULTS = r"""
@ msgstore.engine.write.flusher
flush-confirms-before-it-writes: A client is told that a message is safe, and the write then fails.
  Flusher.flush_locked  tests/test_faults.py::test_append_failed_halfway_loses_nothing
  - self.deliver_confirms(self.write_out())
  + self.deliver_confirms([(client, len(client.unconfirmed or ())) for client in self.clients])
  +                 self.write_out()
flush-confirms-one-too-many: A message that was written while a flush ran is confirmed by that flush, and lost by a crash.
  Flusher.deliver_confirms  tests/test_clients.py::test_write_during_flush_is_confirmed_later
  = client.unconfirmed[:number] => client.unconfirmed[: number + 1]
waiting-thread-flushes-half-a-change: After Ctrl-C in a flush, another thread confirms what the flush has half written.
  Flusher.flush_locked  tests/test_interrupts.py::test_thread_that_waits_for_an_interrupted_flush_is_refused
  = self._lifecycle.refuse_after(error) => pass
revived-message-is-confirmed-too-early: With fsync_every, a kill loses a message that was removed and written again.
  Flusher.write_out  tests/test_clients.py::test_revived_message_is_committed_before_it_is_confirmed
  = or accounting.is_revived => or False
flush-skips-behind-the-first-portion: Messages behind the first portion of a large flush are confirmed and not written.
  Flusher.write_out  tests/test_clients.py::test_flush_of_several_chunks_writes_all
  = at += processed => at += IDS_OFFERED
flush-forgets-late-messages: A message that dies on disk while its second reference waits is confirmed and not written.
  Flusher.write_out  tests/test_clients.py::test_record_dying_while_reference_waits_is_rewritten
  = again += rewrite => pass
failing-commit-is-forgotten: While commits fail, removals are taken without limit.
  Flusher.flush_locked  tests/test_races.py::test_removals_with_failing_commits_are_refused
  - self.set_failing(self._lifecycle.refusal is None)
  + self.set_failing(self._lifecycle.refusal is None)
  +             self.uncommitted_bytes, self._buffer.before_removals[:] = 0, ()
index-is-committed-ahead-of-syncs: With fsync_every a power loss leaves index entries without records.
  Flusher.commit_and_reclaim  tests/test_clients.py::test_flusher_with_fsync_every_syncs
  = self._segments.sync_written() => pass
flush-joins-one-under-way: A flush returns when one that began before the last writes has ended: they are not confirmed.
  GroupCommit.run  tests/test_clients.py::test_each_write_is_confirmed_once_in_order
  - self._stop_joining(mine)
  -                         work()
  + work()
flush-hides-another-threads-failure: A flush that waited for one that failed returns as if everything were confirmed.
  GroupCommit.run  tests/test_clients.py::test_waiting_flushes_are_served_by_one_run
  = if done.get(timeout=_RETRY_SECONDS): => if done.get(timeout=_RETRY_SECONDS) is not None:
confirms-come-twice: The last message of each flush is confirmed twice.
  Flusher.deliver_confirms  tests/test_store.py::test_confirms_come_once_per_flush_in_order
  = client.on_confirm(ids) => client.on_confirm([*ids, ids[-1]])
@ msgstore.engine.write.writer
bound-of-unconfirmed-is-ignored: More bytes are unconfirmed than max_unconfirmed allows.
  Writer._after_change  tests/test_clients.py::test_unconfirmed_bytes_stay_within_the_bound
  -  or flusher.uncommitted_bytes > self._flush_at
  +
absent-ids-are-not-told: Removing an id more often than it has references raises nothing.
  Writer._release  tests/test_store.py::test_removal_of_absent_references_names_them
  = return len(ids), released.missing => return len(ids), []
removal-leaves-live-bytes: A segment whose messages were all removed is never deleted.
  Writer._release  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  = self._accounting.mark_dead(released.freed) => pass
failed-removal-names-no-ids: A caller that repeats what a failed removal left repeats nothing.
  Writer._release  tests/test_refused_calls.py::test_remove_of_unreadable_entries_removes_none
  = ids=ids) from error => ) from error
failing-writes-pile-up-in-memory: On a full disk each write is taken, and memory grows until the process is killed.
  Writer.set_failing  tests/test_faults.py::test_writes_on_full_disk_are_bounded
  = self._is_failing = is_failing => self._is_failing = False
error-denies-a-taken-write: An error says that a write was not taken when it was: the retry adds a reference.
  Writer._after_change  tests/test_refused_calls.py::test_write_that_flushes_says_it_was_taken
  = applied=True => applied=False
error-claims-a-refused-write: An error says that a write was taken when it was refused: the caller does not repeat it.
  Writer._flush_first  tests/test_refused_calls.py::test_write_that_flushes_says_it_was_taken
  = applied=False => applied=True
large-messages-share-segments: A large body shares its segment, and its removal frees no space.
  Writer.write_slow  tests/test_store.py::test_segments_roll_at_limit_and_isolate_large
  = self.batches.seen_large |= => _ =
second-reference-is-never-confirmed: The second write of an id is never confirmed.
  Writer.write_slow  tests/test_store.py::test_confirms_come_once_per_flush_in_order
  = client.unconfirmed.append(msg_id) => pass
client-closes-before-its-callback-is-done: What on_confirm writes while the client is being closed is never confirmed.
  Writer.close_client  tests/test_clients.py::test_closing_client_confirms_what_its_callback_writes
  = while client.unconfirmed and client in self.flusher.clients: => while False:
@ msgstore.engine.state.lifecycle
half-a-change-is-committed: After Ctrl-C in a compaction, another thread deletes segments whose messages it was moving.
  _Change.__exit__  tests/test_interrupts.py::test_no_thread_goes_on_with_half_of_a_change
  = self._lifecycle.refuse_after(error) => pass
dead-store-lives-again: A close that fails because of an interrupt takes the store for open, and its directory is unlocked.
  Lifecycle.refuse  tests/test_interrupts.py::test_thread_that_waits_for_an_interrupted_flush_is_refused
  = self.interrupted or error => error
interrupted-store-goes-on: After Ctrl-C in the middle of a change the store goes on with half of it in memory.
  Lifecycle.refuse_after  tests/test_interrupts.py::test_interrupt_in_flush_ends_the_store
  - self.refuse(self.interrupted)
  + self.interrupted = None
@ msgstore.engine.client
write-many-counts-the-failed-pair: After an error write_many counts one pair too many as taken: the caller leaves it out.
  Client.write_many  tests/test_refused_calls.py::test_write_many_says_how_many_were_taken
  = length_hint(rest) - 1 => length_hint(rest)
@ msgstore.engine.write.write_buffer
same-client-loses-second-reference: A message that one client writes twice before a flush is gone after one removal.
  WriteBuffer.add  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  = owners[client] = owners.get(client, 0) + 1 => owners[client] = 1
third-reference-is-lost: A message that is written three times before a flush is gone after two removals.
  WriteBuffer.add  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  = shared[1][client] = shared[1].get(client, 0) + 1 => shared[1].setdefault(client, 1)
deleted-client-takes-confirmed-references: delete_and_close drops a reference to a message that is on disk.
  WriteBuffer.drop_client  tests/test_clients.py::test_delete_and_close_drops_own_buffered_messages
  = set(filter(self._is_indexed, => set(filter(lambda _: False,
removal-takes-another-clients-reference: Removing a reference takes that of another client, whose message goes too early.
  WriteBuffer.release_reference  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  = client if client in shared[1] else next(iter(shared[1])) => next(iter(shared[1]))
reference-written-anew-is-lost: A reference that is written while a remover has the message in its hand is lost by the flush.
  WriteBuffer._pop_shared  tests/test_clients.py::test_write_while_entry_is_popped_is_counted
  = _merge(shared[1], entry) => pass
small-messages-weigh-nothing: Millions of empty messages stay in memory because they are counted as no bytes.
  WriteBuffer.make_fast_path  tests/test_clients.py::test_unconfirmed_bytes_stay_within_the_bound
  = charged += size + OVERHEAD => charged += size
message-of-wrong-type-is-put-back: A removal of a memoryview is refused, and the message then stops every flush.
  WriteBuffer.restore_popped  tests/test_races.py::test_refused_removal_puts_ids_back_as_bytes
  = msg_id = bytes(key) => msg_id = key
interrupted-write-is-never-confirmed: After a Ctrl-C in a write, its message is stored, and no callback names it.
  WriteBuffer.make_fast_path  tests/test_interrupts.py::test_write_interrupted_at_any_line_confirms_what_it_took
  = on_error(error) => pass
@ msgstore.engine.write.batch_writer
removed-while-written-stays-live: A message that is removed while it is written keeps its segment from ever being deleted.
  BatchWriter._enter_mixed  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  = self._accounting.mark_dead(dead) => pass
flush-counts-every-message-once: References that were written before a flush are one after it.
  BatchWriter._enter_mixed  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  = location, count_references(entry) => location, 1
half-added-references-are-kept: An index that fails once gives a message that was revived one reference too many.
  BatchWriter._add_references  tests/test_clients.py::test_failed_reference_to_a_revived_message_is_not_counted_twice
  = [msg_id] * (added + is_dead) => [msg_id] * added
revived-message-has-one-reference-more: A message that is revived needs one removal too many, and stays for ever.
  BatchWriter._add_references  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  = count -= is_dead => pass
dead-record-is-written-again: A message that is removed and written again is appended twice to the same segment.
  BatchWriter._known  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  = location is not None or msg_id in revivable for => location is not None for
failed-index-loses-the-batch: An index that fails once costs every message of the batch.
  BatchWriter._enter  tests/test_races.py::test_messages_refused_by_index_stay_buffered
  = self._buffer.reinsert(zip(ids, entries, strict=True)) => pass
sealing-trusts-a-deleted-segment: Messages in a current segment that was deleted are confirmed when it is full.
  BatchWriter.seal  tests/test_two_writers.py::test_segment_deleted_within_flush_confirms_nothing
  = self._segments.check_current() => pass
@ msgstore.engine.segment.segments
failed-append-leaves-its-bytes: After a write that failed half-way the segment ends in garbage.
  Segments.append  tests/test_faults.py::test_append_failed_halfway_loses_nothing
  = self.files.truncate(fd, segment.size) => pass
appends-are-not-synced: With durability fsync a power loss takes confirmed messages.
  Segments.append  tests/test_clients.py::test_concurrent_flushes_share_their_syncs
  = self.files.sync(fd) => pass
failed-segment-leaves-a-file: After a segment that could not be begun, its file stays and no further segment can be begun.
  Segments.roll  tests/test_races.py::test_segment_not_begun_is_known_to_index
  -                     self.files.unlink(segment.path)
  -                 except OSError:
  +                     pass
  +                 except OSError:
sync-later-forgets-names: With fsync_every a power loss takes the name of a new segment.
  Segments.sync_written  tests/test_races.py::test_new_segment_name_is_synced_before_messages
  = self.sync_directory() => pass
sync-later-forgets-what-was-appended: With fsync_every nothing is ever synced.
  Segments.append  tests/test_clients.py::test_flusher_with_fsync_every_syncs
  = self.unsynced[segment.number] = segment => pass
moved-directory-is-not-noticed: A store whose directory was moved goes on confirming messages that nobody finds.
  Segments.check_directory  tests/test_two_writers.py::test_moved_directory_is_noticed_and_nothing_confirmed
  = self._identity_and_links(self.directory)[0] != self.place => not self._identity_and_links(self.directory)
resumed-segment-looks-sealed: A crash after an append to an old segment makes the opening distrust the whole index.
  Segments.resume  tests/test_recovery.py::test_killed_rebuild_begins_again
  = segment.sealed_mtime_ns = None => pass
deleted-segment-keeps-its-hint: The hint of a deleted segment stays in the directory.
  Segments.delete  tests/test_hints.py::test_deleted_segment_loses_its_hint
  = self.hints.drop(segment) => pass
@ msgstore.engine.segment.segment
descriptors-pile-up: A store with many segments runs out of descriptors.
  ReadFiles.open  tests/test_store.py::test_many_segments_need_few_descriptors
  = >= MAX_OPEN => >= 100 * MAX_OPEN
@ msgstore.engine.write.writer
refused-body-is-confirmed: A message that the codec refused, and that was not taken, is confirmed.
  Writer.write_slow  tests/test_refused_calls.py::test_write_of_refused_body_takes_nothing
  - body = self._encode_body(msg_id, body)
  + try:
  +                 body = self._encode_body(msg_id, body)
  +             except MsgStoreError:
  +                 if client.unconfirmed is not None:
  +                     client.unconfirmed.append(msg_id)
  +                 raise
refused-body-is-taken: write raises BodyRefused, and the message is there: the next write of the id adds no body.
  Writer.write_slow  tests/test_refused_calls.py::test_write_of_refused_body_takes_nothing
  - body = self._encode_body(msg_id, body)
  + try:
  +                 body = self._encode_body(msg_id, body)
  +             except MsgStoreError:
  +                 self.buffer.add(msg_id, (body, client.number))
  +                 raise
@ msgstore.engine.backends
encoded-body-may-be-too-large: A body that its codec makes larger than a record is taken, and no flush succeeds any more.
  _encoder  tests/test_refused_calls.py::test_write_of_refused_body_takes_nothing
  = if len(stored) > max_body: => if len(body) > max_body:
"""
