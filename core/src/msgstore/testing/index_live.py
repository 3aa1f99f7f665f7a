"""What an index with LIVE_READS shows while another process commits."""

from __future__ import annotations

import pytest

from msgstore.contract import Capability
from msgstore.testing import crash_process as killed
from msgstore.testing.guard import KitTests
from msgstore.testing.index_fixtures import NOTHING, Place, Saved, agree, entries_of


class LiveTests(KitTests):
    def test_each_call_sees_the_last_commit(self, place: Place) -> None:
        """A failure means that a reader in another process is shown what was true when it began, or the half of a commit, or
        keeps the writer from committing."""
        place.subject.needs(Capability.LIVE_READS)
        with killed.committing(place.subject, place.directory, step_by_step=True) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            for round_ in range(1, 5):
                process.wait_for(round_)
                expected = killed.expected(round_)
                if round_ in (1, 3):
                    assert index.load() == expected.state
                agree(index, expected.entries, killed.IDS)
                assert len(index) == len(expected.entries)
            index.close(None)
            process.wait_for(5)

    def test_changes_stay_in_memory(self, place: Place) -> None:
        """A failure means that what a reader changes for itself is not seen on top of what is committed, survives another
        ``load``, or reaches the disk."""
        place.subject.needs(Capability.LIVE_READS)
        mine = bytes(16)
        with killed.committing(place.subject, place.directory, step_by_step=True) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            index.load()
            index.enter([mine], [7])
            there, *_ = killed.expected(1).entries
            index.release([there] * index.references(there))
            process.wait_for(2)
            assert (index.get(mine), index.get(there)) == (7, None)
            assert index.load() == killed.expected(2).state
            agree(index, killed.expected(2).entries, [mine])
            index.enter([mine], [7])
            index.close({b"not": b"saved"})
            process.kill()
        assert place.saved() == killed.expected(2)

    def test_beside_a_writer_that_goes_on(self, place: Place) -> None:
        """A failure means that a reader meets a commit half done. One call sees one commit: all of ``items`` are of one
        round."""
        place.subject.needs(Capability.LIVE_READS)
        with killed.committing(place.subject, place.directory) as process:
            process.wait_for(1)
            index = place.make(read_only=True, live=True)
            state = index.load() or {}
            seen = {int(state[killed.ROUND])}
            for _ in range(60):
                found = entries_of(index)
                (round_,) = {at >> 80 for at, _ in found.values()}
                assert found == killed.expected(round_).entries
                assert round_ >= max(seen), "older than what was seen before"
                seen.add(round_)
            assert process.kill() >= max(seen) - 1
            index.close(None)
        if len(seen) == 1:
            pytest.fail("the writer has not come on: a reader that holds on to what it reads?")

    def test_where_nothing_was_committed(self, place: Place) -> None:
        """A failure means that a reader that comes before the first writer fails, or makes files."""
        place.subject.needs(Capability.LIVE_READS)
        index = place.make(read_only=True, live=True)
        assert Saved(index.load(), entries_of(index)) == NOTHING
        index.close(None)
        assert list(place.directory.iterdir()) == []
