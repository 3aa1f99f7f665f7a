"""Tests of durability: damaged files, syncs, processes that end inside a commit, and readers of another process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from msgstore.contract import RESCUED_KEY, Capability, Index
from msgstore.files import Files
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore.testing.guard import skip_without
from msgstore.testing.index import place as places
from msgstore.testing.index.place import FIRST, IDS, LATER, NOTHING, SECOND, STATE, Committing, Place, PlaceTests, Saved


class SavingTests(PlaceTests):
    @pytest.mark.parametrize("how", ["cut", "flipped", "longer"])
    def test_a_damaged_snapshot_is_refused(self, place: Place, how: str) -> None:
        """A failure means that a snapshot that was cut off, or has a wrong bit, is used. Return no entries, or put
        ``RESCUED_KEY`` into the state: the store then reads its segments. Save a checksum of everything."""
        if place.subject.has(Capability.PERSISTENT):
            skip_without("a snapshot")
        index = place.open()
        places.enter_first(index)
        index.close(STATE)
        files = [path for path in place.directory.rglob("*") if path.is_file()]
        assert files, "nothing was saved"
        for path in files:
            whole = path.read_bytes()
            for damaged in _damaged(whole, how):
                path.write_bytes(damaged)
                index = place.make()
                state = index.load()
                found = Saved(state, places.entries_of(index))
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
        places.enter_first(index)
        index.close(STATE)
        names = [name for name, _, _ in files.changes()]
        if "pwrite" not in names:
            skip_without(places.OWN_FILES)
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
            skip_without(places.OWN_FILES)

    @pytest.mark.parametrize("seconds", [0.0, 0.03, 0.11])
    def test_a_killed_process_leaves_whole_commits(self, place: Place, seconds: float) -> None:
        """A failure means that a killed process leaves entries of one commit and state of another, or less than the last commit
        that returned. A run does not always hit the same commit: look at what was found."""
        place.subject.needs(Capability.PERSISTENT)
        with Committing(place) as process:
            process.wait_for(1)
            time.sleep(seconds)  # anywhere in its work
            done = process.kill()
        found = place.saved()
        assert found in (places.committed(done), places.committed(done + 1)), f"after commit {done}: {found.state}"

    def test_each_call_sees_the_last_commit(self, place: Place) -> None:
        """A failure means that a reader in another process sees what was committed when it began, or that its own changes are
        not seen on top, survive another ``load`` or reach the disk, or that it keeps the writer from committing."""
        place.subject.needs(Capability.LIVE_READS)
        mine = bytes(16)
        with Committing(place, step_by_step=True) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            for round_ in range(1, 5):
                process.wait_for(round_)
                expected = places.committed(round_)
                if round_ in (1, 3):
                    assert index.load() == expected.state
                places.agree(index, expected.entries, [*places.CHILD_IDS, mine])
                assert len(index) == len(expected.entries)
            index.enter([mine], [7])
            there, *_ = expected.entries
            index.release([there] * index.references(there))
            process.wait_for(5)
            assert (index.get(mine), index.get(there)) == (7, None)
            assert index.load() == places.committed(5).state
            places.agree(index, places.committed(5).entries, [mine])
            index.enter([mine], [7])
            index.close({b"not": b"saved"})
            process.wait_for(6)
        assert place.saved() == places.committed(6)

    def test_beside_a_writer_that_goes_on(self, place: Place) -> None:
        """A failure means that a reader sees half of a commit. One call sees one commit: all of ``items`` are of one round."""
        place.subject.needs(Capability.LIVE_READS)
        with Committing(place) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            state = index.load() or {}
            seen = {int(state[places.ROUND])}
            for _ in range(60):
                found = places.entries_of(index)
                (round_,) = {at >> 80 for at, _ in found.values()}
                assert found == places.committed(round_).entries
                assert round_ >= max(seen), "older than what was seen before"
                seen.add(round_)
            assert process.kill() >= max(seen) - 1
            index.close(None)
        assert len(seen) > 1, "the writer made no progress: the reader holds on to what it reads"

    def test_where_nothing_was_committed(self, place: Place) -> None:
        """A failure means that a reader that comes before the first writer fails, or creates files."""
        place.subject.needs(Capability.LIVE_READS)
        index = place.make(read_only=True, live=True)
        assert Saved(index.load(), places.entries_of(index)) == NOTHING
        index.close(None)
        assert list(place.directory.iterdir()) == []


def _with_second_frozen(place: Place, files: Files) -> Index:
    """An index that has loaded ``FIRST``, with ``SECOND`` frozen and not committed."""
    index = place.open()
    places.enter_first(index)
    index.close(STATE)
    index = place.make(files)
    assert index.load() == STATE
    places.make_second(index)
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
