"""Faults between the write buffer and the disk: buffer, batches, segments, bodies that the codec rejects."""

FAULTS = r"""
@ msgstore.engine.write.write_buffer
same-client-loses-second-reference: A message that one client writes twice before a flush is gone after one removal.
  WriteBuffer.add  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  - owners[client] = owners.get(client, 0) + 1
  + owners[client] = 1
third-reference-is-lost: A message that is written three times before a flush is gone after two removals.
  WriteBuffer.add  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  - shared[1][client] = shared[1].get(client, 0) + 1
  + shared[1].setdefault(client, 1)
deleted-client-takes-confirmed-references: delete_and_close drops a reference to a message that is on disk.
  WriteBuffer.drop_client  tests/test_clients.py::test_delete_and_close_drops_own_buffered_messages
  - if entry[1] == client and not self._is_indexed(msg_id):
  + if entry[1] == client:
removal-takes-another-clients-reference: A client that removes its reference takes that of another, whose message goes with the
    first one.
  WriteBuffer.release_reference  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  - client if client in shared[1] else next(iter(shared[1]))
  + next(iter(shared[1]))
reference-written-anew-is-lost: A reference that is written while a remover has the message in its hand is lost by the flush.
  WriteBuffer._pop_shared  tests/test_clients.py::test_write_while_entry_is_popped_is_counted
  - _merge(shared[1], entry)
  + pass
small-messages-weigh-nothing: Millions of empty messages stay in memory because they are counted as no bytes.
  WriteBuffer.make_fast_path  tests/test_clients.py::test_unconfirmed_bytes_stay_within_the_bound
  - charged += size + OVERHEAD
  + charged += size
@ msgstore.engine.write.batch_writer
removed-while-written-stays-live: A message that is removed while it is written keeps its segment from ever being deleted.
  BatchWriter._enter  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  - self._accounting.mark_dead(dead)
  + pass
flush-counts-every-message-once: References that were written before a flush are one after it.
  BatchWriter._enter_mixed  tests/test_clients.py::test_reference_counts_after_sequence_are_exact
  - location, count_references(entry)
  + location, 1
revived-message-has-one-reference-more: A message that is revived needs one removal too many, and stays for ever.
  BatchWriter._add_references  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  - count -= 1
  + pass
dead-record-is-written-again: A message that is removed and written again is appended twice to the same segment.
  BatchWriter._known  tests/test_clients.py::test_dead_record_of_current_segment_is_revived
  - location is not None or msg_id in revivable for
  + location is not None for
failed-index-loses-the-batch: An index that fails once costs every message of the batch.
  BatchWriter._enter  tests/test_meetings.py::test_messages_refused_by_index_stay_buffered
  - self._buffer.reinsert(zip(ids, entries, strict=True))
  + pass
sealing-trusts-a-deleted-segment: Messages in a current segment that was deleted are confirmed when it is full.
  BatchWriter.seal  tests/test_two_writers.py::test_segment_deleted_within_flush_confirms_nothing
  - self._segments.check_current()
  + pass
@ msgstore.engine.segment.segments
failed-append-leaves-its-bytes: After a write that failed half-way the segment ends in garbage.
  Segments.append  tests/test_faults.py::test_append_failed_halfway_loses_nothing
  - self.files.truncate(fd, segment.size)
  + pass
appends-are-not-synced: With durability fsync a power loss takes confirmed messages.
  Segments.append  tests/test_clients.py::test_concurrent_flushes_share_their_syncs
  - self.files.sync(fd)
  + pass
failed-segment-leaves-a-file: After a segment that could not be begun, its file stays and no further segment can be begun.
  Segments.roll  tests/test_meetings.py::test_segment_not_begun_is_known_to_index
  -                     self.files.unlink(segment.path)
  -                 except OSError:
  +                     pass
  +                 except OSError:
sync-later-forgets-names: With fsync_every a power loss takes the name of a new segment.
  Segments.sync_written  tests/test_meetings.py::test_new_segment_name_is_synced_before_messages
  - self.sync_directory()
  + pass
sync-later-forgets-what-was-appended: With fsync_every nothing is ever synced.
  Segments.append  tests/test_clients.py::test_flusher_with_fsync_every_syncs
  - self.unsynced[segment.number] = segment
  + pass
moved-directory-is-not-noticed: A store whose directory was moved goes on confirming messages that nobody finds.
  Segments.check_directory  tests/test_two_writers.py::test_moved_directory_is_noticed_and_nothing_confirmed
  - self._identity_and_links(self.directory)[0] != self.place
  + not self._identity_and_links(self.directory)
resumed-segment-looks-sealed: A crash after an append to an old segment makes the opening distrust the whole index.
  Segments.resume  tests/test_recovery.py::test_killed_rebuild_begins_again
  - segment.sealed_mtime_ns = None
  + pass
deleted-segment-keeps-its-hint: The hint of a deleted segment stays in the directory.
  Segments.delete  tests/test_hints.py::test_deleted_segment_loses_its_hint
  - self.hints.drop(segment)
  + pass
@ msgstore.engine.segment.segment
descriptors-pile-up: A store with many segments runs out of descriptors.
  ReadFiles.open  tests/test_store.py::test_many_segments_need_few_descriptors
  - >= MAX_OPEN
  + >= 100 * MAX_OPEN
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
refused-body-is-taken: write raises BodyRefused, and the message is there: a second write of the id adds a reference, and no
    body.
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
  - if len(stored) > max_body:
  + if len(body) > max_body:
"""
