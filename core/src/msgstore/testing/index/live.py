"""Tests of LIVE_READS: an index shows the commits of another process."""

from __future__ import annotations

from msgstore.contract import Capability
from msgstore.testing.index import child
from msgstore.testing.index.place import NOTHING, Place, PlaceTests, Saved, agree, entries_of


class LiveTests(PlaceTests):
    def test_each_call_sees_the_last_commit(self, place: Place) -> None:
        """A failure means that a reader in another process sees what was committed when it began, or that its own changes are
        not seen on top, survive another ``load`` or reach the disk, or that it keeps the writer from committing."""
        place.subject.needs(Capability.LIVE_READS)
        mine = bytes(16)
        with child.committing(place.subject, place.directory, step_by_step=True) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            for round_ in range(1, 5):
                process.wait_for(round_)
                expected = child.expected(round_)
                if round_ in (1, 3):
                    assert index.load() == expected.state
                agree(index, expected.entries, [*child.IDS, mine])
                assert len(index) == len(expected.entries)
            index.enter([mine], [7])
            there, *_ = expected.entries
            index.release([there] * index.references(there))
            process.wait_for(5)
            assert (index.get(mine), index.get(there)) == (7, None)
            assert index.load() == child.expected(5).state
            agree(index, child.expected(5).entries, [mine])
            index.enter([mine], [7])
            index.close({b"not": b"saved"})
            process.wait_for(6)
            process.kill()
        assert place.saved() == child.expected(6)

    def test_beside_a_writer_that_goes_on(self, place: Place) -> None:
        """A failure means that a reader sees half of a commit. One call sees one commit: all of ``items`` are of one round."""
        place.subject.needs(Capability.LIVE_READS)
        with child.committing(place.subject, place.directory) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            state = index.load() or {}
            seen = {int(state[child.ROUND])}
            for _ in range(60):
                found = entries_of(index)
                (round_,) = {at >> 80 for at, _ in found.values()}
                assert found == child.expected(round_).entries
                assert round_ >= max(seen), "older than what was seen before"
                seen.add(round_)
            assert process.kill() >= max(seen) - 1
            index.close(None)
        assert len(seen) > 1, "the writer made no progress: the reader holds on to what it reads"

    def test_where_nothing_was_committed(self, place: Place) -> None:
        """A failure means that a reader that comes before the first writer fails, or creates files."""
        place.subject.needs(Capability.LIVE_READS)
        index = place.make(read_only=True, live=True)
        assert Saved(index.load(), entries_of(index)) == NOTHING
        index.close(None)
        assert list(place.directory.iterdir()) == []
