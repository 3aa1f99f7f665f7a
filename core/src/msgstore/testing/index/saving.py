"""Tests of durability: damaged files, syncs, commits next to other threads, and processes that end inside one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from msgstore.contract import RESCUED_KEY, Capability, Index
from msgstore.files import Files
from msgstore.testing.concurrency import together
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore.testing.index import child
from msgstore.testing.index.place import (
    FIRST,
    IDS,
    LATER,
    NOTHING,
    OWN_FILES,
    SECOND,
    STATE,
    Entries,
    Place,
    PlaceTests,
    Saved,
    enter_first,
    entries_of,
    make_second,
)
from msgstore.testing.subjects import skip_without


class SavingTests(PlaceTests):
    @pytest.mark.parametrize("how", ["cut", "flipped", "longer"])
    def test_a_damaged_snapshot_is_refused(self, place: Place, how: str) -> None:
        """A failure means that a snapshot that was cut off, or has a wrong bit, is used. Return no entries, or put
        ``RESCUED_KEY`` into the state: the store then reads its segments. Save a checksum of everything."""
        if place.subject.has(Capability.PERSISTENT):
            skip_without("a snapshot")
        index = place.open()
        enter_first(index)
        index.close(STATE)
        files = [path for path in place.directory.rglob("*") if path.is_file()]
        assert files, "nothing was saved"
        for path in files:
            whole = path.read_bytes()
            for damaged in _damaged(whole, how):
                path.write_bytes(damaged)
                index = place.make()
                state = index.load()
                found = Saved(state, entries_of(index))
                refused = (found == NOTHING and len(index) == 0) or (state is not None and RESCUED_KEY in state)
                assert refused or found == Saved(STATE, FIRST), f"{path.name}, {len(damaged)} of {len(whole)} bytes"
                index.freeze({})
                index.commit()
                index.enter([IDS[3]], [4])
                index.close(LATER)
                assert IDS[3] in place.saved().entries
                path.write_bytes(whole)

    def test_it_waits_for_the_disk_when_told(self, place: Place) -> None:
        """A failure means that with ``sync`` a power loss can undo a clean shutdown. Sync the file before it gets its name, and
        its directory afterwards."""
        files = RecordingFiles()
        index = place.make(files, sync=True)
        index.load()
        enter_first(index)
        index.close(STATE)
        names = [name for name, _, _ in files.changes()]
        if "pwrite" not in names:
            skip_without(OWN_FILES)
        last = len(names) - names[::-1].index("pwrite")
        assert "sync" in names[last:], names
        if "replace" in names:
            renamed = names.index("replace")
            assert "sync" in names[last:renamed], names
            assert "sync_directory" in names[renamed:], names

    def test_keys_of_state(self, place: Place) -> None:
        """A failure means that a key of 511 bytes is refused, or that a key that cannot be stored fails every later commit.
        ``freeze`` must raise ValueError for it, and change nothing."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.open()
        for key in (b"", bytes(512)):
            with pytest.raises(ValueError):  # noqa: PT011 - the words are its own
                index.freeze({b"good": b"1", key: b"value"})
        index.freeze({bytes(511): b"value"})
        index.commit()
        assert place.after_a_crash().state == {bytes(511): b"value"}
        index.close(None)

    def test_a_commit_beside_other_threads(self, place: Place) -> None:
        """A failure means that a commit writes changes that other threads make while it runs, or loses them: after a crash the
        entries are not those of any ``freeze``."""
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
                    assert found.entries == frozen[round_], "entries and state are not of the same freeze"
                    assert list(frozen).index(round_) >= due - 1, "the last freeze before the commit is not in it"
                    commits += 1

        together(0.5, change, commit, enough=lambda: commits > 0)
        assert commits
        index.close(None)

    def test_a_crash_at_each_file_operation(self, place: Place) -> None:
        """A failure means that a process that is killed inside ``commit`` or ``close`` leaves half of it, or nothing at all:
        write under another name, and rename. Without PERSISTENT only a whole close, or nothing, may be found."""
        final = {b"final": b"1"}

        def run(files: Files) -> list[Saved]:
            """Run until stopped; return what may be found then."""
            place.clear()
            index = _with_second_frozen(place, files)
            is_persistent = place.subject.has(Capability.PERSISTENT)
            goal, closed = Saved({**STATE, **LATER}, SECOND) if is_persistent else NOTHING, Saved(final, SECOND)
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
        """A failure means that a killed process leaves entries of one commit and state of another, or less than the last commit
        that returned. A run does not always hit the same commit: look at what was found."""
        place.subject.needs(Capability.PERSISTENT)
        with child.committing(place.subject, place.directory) as process:
            process.wait_for(1)
            time.sleep(seconds)  # anywhere in its work
            done = process.kill()
        found = place.saved()
        assert found in (child.expected(done), child.expected(done + 1)), f"after commit {done}: {found.state}"


def _with_second_frozen(place: Place, files: Files) -> Index:
    """An index that has loaded ``FIRST``, with ``SECOND`` frozen and not committed."""
    index = place.open()
    enter_first(index)
    index.close(STATE)
    index = place.make(files)
    assert index.load() == STATE
    make_second(index)
    index.freeze(LATER)
    return index


def _damaged(whole: bytes, how: str) -> Iterator[bytes]:
    """Cut at some lengths, with single bits flipped, or with something appended."""
    size = len(whole)
    if how == "cut":
        yield from (whole[:keep] for keep in sorted({0, 1, *range(4, size, size // 10 or 1), size - 1}) if keep < size)
    elif how == "flipped":
        for at in sorted({*range(0, size, size // 40 or 1), *range(min(size, 12)), size - 1}):
            yield whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
    else:
        yield from (whole + b"\0", whole + whole)
