"""Faults between ``write`` and the confirm: clients, the writer, flushes that several threads share."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="flush-confirms-before-it-writes",
        module="msgstore.engine.write.flusher",
        function="Flusher.flush_locked",
        fragment="self.deliver_confirms(self.write_out())",
        replacement=(
            "self.deliver_confirms([(client, len(client.unconfirmed or ())) for client in self.clients])\n"
            "                self.write_out()"
        ),
        symptom="A client is told that a message is safe, and the write then fails.",
        caught_by="tests/test_store.py::test_an_idle_writer_is_confirmed_within_the_interval",
    ),
    Fault(
        name="flush-confirms-one-too-many",
        module="msgstore.engine.write.flusher",
        function="Flusher.deliver_confirms",
        fragment="client.take_unconfirmed(count)",
        replacement="client.take_unconfirmed(count + 1)",
        symptom="A message that was written while a flush ran is confirmed by that flush, and lost by a crash.",
        caught_by="tests/test_clients.py::test_message_written_during_a_flush_is_confirmed_later",
    ),
    Fault(
        name="flush-skips-behind-the-first-portion",
        module="msgstore.engine.write.flusher",
        function="Flusher.write_out",
        fragment="at += result.looked_at",
        replacement="at += MAX_BATCH",
        symptom="Messages behind the first portion of a large flush are confirmed and not written.",
        caught_by="tests/test_clients.py::test_flush_of_several_portions_writes_them_all",
    ),
    Fault(
        name="flush-forgets-late-messages",
        module="msgstore.engine.write.flusher",
        function="Flusher.write_out",
        fragment="again += result.late",
        replacement="result.late",
        symptom="A message that dies on disk while its second reference waits is confirmed and not written.",
        caught_by="tests/test_clients.py::test_what_dies_on_disk_while_a_second_reference_waits_is_written_again",
    ),
    Fault(
        name="bound-of-unconfirmed-is-ignored",
        module="msgstore.engine.write.writer",
        function="Writer._pace",
        fragment=" or flusher.uncommitted_bytes > self._bound:",
        replacement=":",
        symptom="More bytes are unconfirmed than max_unconfirmed allows.",
        caught_by="tests/test_unconfirmed_bound.py::test_unconfirmed_bytes_stay_within_the_bound",
    ),
    Fault(
        name="absent-ids-named-late-are-not-told",
        module="msgstore.engine.write.writer",
        function="Writer._release",
        fragment="missing = missing + absent",
        replacement="pass",
        symptom="Removing an id more often than it has references raises nothing.",
        caught_by="tests/test_clients.py::test_id_removed_too_often_at_once_is_named",
    ),
    Fault(
        name="second-removal-leaves-live-bytes",
        module="msgstore.engine.write.writer",
        function="Writer._release",
        fragment="_, absent = self._release_indexed(late)",
        replacement="absent = self._index.release(late).missing",
        symptom="A segment whose last message was removed twice in one call is never deleted.",
        caught_by="tests/test_clients.py::test_removal_of_all_references_at_once_frees_the_segment",
    ),
    Fault(
        name="failing-writes-pile-up-in-memory",
        module="msgstore.engine.write.writer",
        function="Writer.set_failing",
        fragment="self._is_failing = is_failing",
        replacement="self._is_failing = False",
        symptom="On a full disk each write is taken, and memory grows until the process is killed.",
        caught_by="tests/test_faults.py::test_a_full_disk_fills_no_memory",
    ),
    Fault(
        name="error-denies-a-taken-write",
        module="msgstore.engine.write.writer",
        function="Writer._after_change",
        fragment="applied=True",
        replacement="applied=False",
        symptom="An error says that a write was not taken when it was: the retry adds a reference.",
        caught_by="tests/test_error_says_applied.py::test_calls_under_any_fault_say_what_they_did",
    ),
    Fault(
        name="error-claims-a-refused-write",
        module="msgstore.engine.write.writer",
        function="Writer._flush_first",
        fragment="applied=False",
        replacement="applied=True",
        symptom="An error says that a write was taken when it was refused: the caller does not repeat it.",
        caught_by="tests/test_error_says_applied.py::test_calls_under_any_fault_say_what_they_did",
    ),
    Fault(
        name="failing-commit-is-forgotten",
        module="msgstore.engine.write.flusher",
        function="Flusher.flush_locked",
        fragment="self.set_failing(self._lifecycle.refusal is None)",
        replacement="self.uncommitted_bytes, self._buffer.before_removals[:] = 0, ()",
        symptom="While commits fail, removals are taken without limit.",
        caught_by="tests/test_meetings.py::test_commits_that_fail_hold_writers_up_until_they_succeed",
    ),
    Fault(
        name="index-is-committed-ahead-of-syncs",
        module="msgstore.engine.write.flusher",
        function="Flusher.commit_and_reclaim",
        fragment="self._segments.sync_written()",
        replacement="pass",
        symptom="With fsync_every a power loss leaves index entries without records.",
        caught_by="tests/test_clients.py::test_with_fsync_every_the_flusher_syncs",
    ),
    Fault(
        name="interrupted-store-goes-on",
        module="msgstore.engine.state.lifecycle",
        function="Lifecycle.interrupt",
        fragment=(
            "self.refuse(self.interrupted)\n"
            "        self.release()"
        ),
        replacement="self.interrupted = None",
        symptom="After Ctrl-C in the middle of a change the store goes on with half of it in memory.",
        caught_by="tests/test_meetings.py::test_an_interrupt_behind_a_write_ends_the_store",
    ),
    Fault(
        name="large-messages-share-segments",
        module="msgstore.engine.write.writer",
        function="Writer.write_slow",
        fragment="self._appender.seen_large |=",
        replacement="_ =",
        symptom="A large body shares its segment, and its removal frees no space.",
        caught_by="tests/test_store.py::test_segments_roll_at_the_limit_and_large_messages_stand_alone",
    ),
    Fault(
        name="second-reference-is-never-confirmed",
        module="msgstore.engine.write.writer",
        function="Writer.write_slow",
        fragment="client.unconfirmed.append(msg_id)",
        replacement="pass",
        symptom="The second write of an id is never confirmed.",
        caught_by="tests/test_store.py::test_confirms_come_once_a_flush_in_the_order_of_writing",
    ),
    Fault(
        name="flush-joins-one-under-way",
        module="msgstore.engine.write.group_commit",
        function="GroupCommit.run",
        fragment=(
            "self._next = None\n"
            "                        work()"
        ),
        replacement=(
            "pass\n"
            "                        work()"
        ),
        symptom="A flush returns when one that began before the last writes has ended: they are not confirmed.",
        caught_by="tests/test_clients.py::test_each_write_is_confirmed_once_and_in_order",
    ),
    Fault(
        name="flush-hides-another-threads-failure",
        module="msgstore.engine.write.group_commit",
        function="GroupCommit.run",
        fragment="if run.succeeded:",
        replacement="if run:",
        symptom="A flush that waited for one that failed returns as if everything were confirmed.",
        caught_by="core/tests/test_group_commit.py::test_waiter_runs_the_work_if_run_failed",
    ),
    Fault(
        name="confirms-come-twice",
        module="msgstore.engine.client",
        function="Client.take_unconfirmed",
        fragment="del unconfirmed[: len(taken)]",
        replacement="del unconfirmed[: len(taken) - 1]",
        symptom="The last message of each flush is confirmed once more by the next one.",
        caught_by="tests/test_store.py::test_confirms_come_once_a_flush_in_the_order_of_writing",
    ),
    Fault(
        name="write-many-counts-the-failed-pair",
        module="msgstore.engine.client",
        function="Client.write_many",
        fragment="length_hint(rest) - 1",
        replacement="length_hint(rest)",
        symptom="After an error write_many says that one pair more was taken than was: the caller leaves it out.",
        caught_by="tests/test_error_says_applied.py::test_calls_under_any_fault_say_what_they_did",
    ),
]
