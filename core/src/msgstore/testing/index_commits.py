"""What an index makes durable, when, and what is left by a process that ends inside it."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from msgstore.contract import Capability, Index
from msgstore.files import Files
from msgstore.testing import crash_process as killed
from msgstore.testing.concurrency import together
from msgstore.testing.faults import FailingFiles, RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore.testing.guard import KitTests
from msgstore.testing.index_fixtures import (
    FIRST,
    IDS,
    LATER,
    NOTHING,
    OWN_FILES,
    SECOND,
    STATE,
    Entries,
    Place,
    Saved,
    agree,
    enter_first,
    make_second,
)
from msgstore.testing.subjects import skip_without

A, B, C, D = IDS[:4]


class CommitTests(KitTests):
    def test_state_is_merged_key_by_key(self, place: Place) -> None:
        """A failure means that the store's knowledge of its segments is wrong after a crash: None takes a key away, another
        value replaces it, all others stay."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        for state in ({b"a": b"1", b"b": b"", b"c": bytes(100_000)}, {b"a": None, b"b": b"2", b"never": None}, {b"d": b"4"}):
            index.freeze(state)
            index.commit()
        expected = {b"b": b"2", b"c": bytes(100_000), b"d": b"4"}
        assert place.after_a_crash() == Saved(expected, {})
        index.freeze({b"c": None})
        index.freeze({b"c": b"again", b"d": b"5"})
        index.freeze({b"d": None})
        index.commit()
        assert place.after_a_crash() == Saved({b"b": b"2", b"c": b"again"}, {})
        index.close(None)

    def test_keys_of_state(self, place: Place) -> None:
        """A failure means that a key of 511 bytes is refused, or that one that cannot be stored is found only by the commit,
        which then fails for ever. ``freeze`` raises ValueError, and has changed nothing."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        for key in (b"", bytes(512)):
            with pytest.raises(ValueError):  # noqa: PT011 - the words are its own
                index.freeze({b"good": b"1", key: b"value"})
        index.freeze({bytes(511): b"value"})
        index.commit()
        state = place.after_a_crash().state or {}
        assert state[bytes(511)] == b"value"
        assert b"good" not in state
        index.close(None)

    def test_a_commit_is_what_was_frozen(self, place: Place) -> None:
        """A failure means that a commit writes changes of after ``freeze``: the entries speak of records that are not on disk
        yet, and of a state that is not theirs; or that it leaves out what was frozen."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        enter_first(index)
        index.freeze(STATE)
        make_second(index)
        assert place.after_a_crash() == NOTHING, "nothing was committed yet"
        index.commit()
        assert place.after_a_crash() == Saved(STATE, FIRST)
        index.commit()
        assert place.after_a_crash() == Saved(STATE, FIRST), "nothing was frozen since"
        index.freeze({**LATER, b"other": None})
        index.commit()
        assert place.after_a_crash() == Saved(LATER, SECOND)
        index.close(None)
        assert place.saved() == Saved(LATER, SECOND)

    def test_what_was_freed_and_entered_again(self, place: Place) -> None:
        """A failure means that a commit which has to take an entry away and put it back does only one of both, or that ``len``
        counts it wrong."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        enter_first(index)
        index.freeze({})
        index.commit()
        index.release([A])
        index.freeze({})
        index.enter([A], [7], [2])
        assert len(index) == 3
        index.commit()
        without = {msg_id: entry for msg_id, entry in FIRST.items() if msg_id != A}
        assert place.after_a_crash().entries == without
        index.freeze({})
        index.commit()
        assert len(index) == 3
        assert place.after_a_crash().entries == {**FIRST, A: (7, 2)}
        index.release([A, A, B, B])
        index.freeze({})
        index.commit()
        assert len(index) == 1
        index.close(None)
        assert place.saved().entries == {C: FIRST[C]}

    def test_a_commit_beside_other_threads(self, place: Place) -> None:
        """A failure means that a commit takes along what other threads change while it runs, or loses it: what is found after a
        crash is then not what was there at any ``freeze``."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        lock, frozen = threading.Lock(), dict[bytes, Entries]()
        entries: Entries = {}
        ids = [n.to_bytes(16) for n in range(600)]
        rounds = iter(range(1_000_000))
        commits = 0

        def change(stop: threading.Event) -> None:
            while not stop.is_set():
                with lock:
                    n = next(rounds)
                    batch = ids[n * 7 % 500 :][:60]
                    index.enter(batch, range(n + 1, n + 61))
                    gone = batch[::3]
                    index.release(gone)
                    index.add_reference(batch[1])
                    entries.update({msg_id: (n + 1 + at, 1) for at, msg_id in enumerate(batch)})
                    entries[batch[1]] = (n + 2, 2)
                    for msg_id in gone:
                        del entries[msg_id]
                    if n % 5 == 0:
                        index.freeze({b"round": b"%d" % n})
                        frozen[b"%d" % n] = entries.copy()
                stop.wait(0.0005)

        def commit(stop: threading.Event) -> None:
            nonlocal commits
            while not stop.is_set():
                with lock:
                    due = len(frozen)
                index.commit()
                with lock:  # nothing is written while it is copied
                    found = place.after_a_crash()
                if found.state:
                    round_ = found.state[b"round"]
                    assert found.entries == frozen[round_], "not what was there at the freeze whose state was committed"
                    assert list(frozen).index(round_) >= due - 1, "what was frozen before the commit began is not in it"
                    commits += 1

        together(0.5, change, commit, enough=lambda: commits > 0)
        assert commits
        index.close(None)

    def test_a_commit_that_fails_can_be_repeated(self, place: Place) -> None:
        """A failure means that after a full disk, or an I/O error, a commit that is made again has forgotten what was frozen,
        or has done half of it; or that it raises something else than OSError. What failed is still due, and more may be
        frozen."""
        for fail in range(100):
            place.clear()
            index, files = _served(place)
            goal = _committed(place, {**STATE, **LATER}, SECOND)
            files.fail, files.error = fail, errno.ENOSPC if fail % 2 else errno.EIO
            try:
                index.commit()
            except OSError:
                assert files.failed, "nothing failed, and yet it raises"
                agree(index, SECOND, IDS)
                assert place.after_a_crash() in (Saved(STATE, FIRST), goal)
                if fail % 2:
                    index.release([D])
                    index.freeze({b"more": b"1"})
                    goal = _committed(place, {**STATE, **LATER, b"more": b"1"}, {i: e for i, e in SECOND.items() if i != D})
                index.commit()
            files.fail = None
            assert place.after_a_crash() == goal, f"after {files.failed}"
            index.close(None)
            if not files.failed:
                break
        if fail == 0:
            skip_without(OWN_FILES)

    def test_a_crash_at_each_file_operation(self, place: Place) -> None:
        """A failure means that a process that is killed inside ``commit`` or ``close`` leaves half of it, or nothing at all:
        write under another name, and rename. Without PERSISTENT there is what was closed, whole, or nothing."""
        final = {b"final": b"1"}

        def run(files: Files) -> list[Saved]:
            """Until it is stopped. What may be found then."""
            place.clear()
            index, _ = _served(place, files)
            goal, closed = _committed(place, {**STATE, **LATER}, SECOND), Saved(final, SECOND)
            may_be = [Saved(STATE, FIRST), goal]
            if not stopped(index.commit):
                may_be = [goal, closed]
                if not stopped(lambda: index.close(final)):
                    return [closed]
            copies.append(place.copy())
            stopped(lambda: index.close(None))
            return may_be

        copies: list[Place] = []
        whole = RecordingFiles()
        assert run(whole) == [place.saved()]
        points = crash_points(whole, inside_sectors=True)
        for stop, torn in points:
            may_be = run(StoppingFiles(stop, torn))
            (copy,) = copies
            copies.clear()
            found = copy.saved()
            assert found in may_be, f"stopped at {whole.changes()[stop]}, {torn} bytes of it written: {found}"
            copy.remove()
        if not points:
            skip_without(OWN_FILES)

    @pytest.mark.parametrize("seconds", [0.0, 0.03, 0.11])
    def test_a_killed_process_leaves_whole_commits(self, place: Place, seconds: float) -> None:
        """A failure means that a process that was killed, anywhere, leaves entries of one commit and state of another, or less
        than the last commit that had come back. It is not always the same commit that is met: look at what was found."""
        place.subject.needs(Capability.PERSISTENT)
        with killed.committing(place.subject, place.directory) as process:
            said = process.wait_for(1)
            time.sleep(seconds)  # wherever in its work that finds it
            said = process.kill()
        found = place.saved()
        assert found in (killed.expected(said), killed.expected(said + 1)), f"after commit {said}: {found.state}"


def _served(place: Place, files: Files | None = None) -> tuple[Index, FailingFiles]:
    """An index that has loaded ``FIRST``, with ``SECOND`` frozen and not committed."""
    index = place.open()
    enter_first(index)
    index.close(STATE)
    failing = FailingFiles()
    index = place.make(files or failing)
    assert index.load() == STATE
    make_second(index)
    index.freeze(LATER)
    return index, failing


def _committed(place: Place, state: dict[bytes, bytes], entries: Entries) -> Saved:
    """What a commit leaves: of an index that is not PERSISTENT, nothing."""
    return Saved(state, entries) if place.subject.has(Capability.PERSISTENT) else NOTHING
