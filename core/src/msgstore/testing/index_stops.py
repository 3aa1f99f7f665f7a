"""What an index saves at a clean stop, and what it refuses to read."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from msgstore.contract import RESCUED_KEY, Capability
from msgstore.testing.faults import FailingFiles, RecordingFiles, listing
from msgstore.testing.guard import KitTests
from msgstore.testing.index_fixtures import (
    FIRST,
    IDS,
    LATER,
    NOTHING,
    OWN_FILES,
    STATE,
    Place,
    Saved,
    agree,
    enter_first,
    entries_of,
)
from msgstore.testing.subjects import skip_without

A, B, C, D = IDS[:4]


class StopTests(KitTests):
    def test_a_clean_stop_saves_entries_and_state(self, place: Place) -> None:
        """A failure means that a store which was closed as it should be forgets messages, counts or what it knows of
        segments."""
        index = place.open()
        enter_first(index)
        index.close(STATE)
        assert place.saved() == Saved(STATE, FIRST)

    def test_closing_twice(self, place: Place) -> None:
        """A failure means that the second ``close`` raises, or saves the nothing that the first has left."""
        index = place.open()
        enter_first(index)
        index.close(STATE)
        index.close(STATE)
        index.close(None)
        assert place.saved() == Saved(STATE, FIRST)

    def test_the_state_of_a_clean_stop_is_the_whole(self, place: Place) -> None:
        """A failure means that keys of before, frozen or committed, come back beside those that ``close`` was given."""
        index = place.open()
        index.enter([A], [1])
        index.freeze({b"old": b"1"})
        index.commit()
        index.freeze({b"frozen": b"1"})
        index.close({b"new": b"2"})
        assert place.saved() == Saved({b"new": b"2"}, {A: (1, 1)})

    def test_only_shared_bodies_are_named_as_shared(self, place: Place) -> None:
        """A failure means that ids with one reference are put into the context's ``shared``: the store then caches bodies
        that are read once."""
        index = place.open()
        enter_first(index)
        index.close(STATE)
        shared: set[bytes] = set()
        index = place.make(shared=shared)
        index.load()
        for msg_id in IDS:
            index.get(msg_id)
        assert shared <= {msg_id for msg_id, (_, count) in FIRST.items() if count > 1}
        index.close(None)

    def test_files_are_its_own(self, place: Place) -> None:
        """A failure means that files of the index do not begin with ``msgstore-``: other programs, and the store itself, take
        them for segments."""
        (place.directory / "0.rdq").write_bytes(b"somebody's")
        index = place.open()
        enter_first(index)
        index.freeze(LATER)
        index.commit()
        index.close(STATE)
        found = {path.name for path in place.directory.iterdir()}
        assert all(name.startswith("msgstore-") for name in found - {"0.rdq"}), found
        assert (place.directory / "0.rdq").read_bytes() == b"somebody's"

    def test_the_first_commit_removes_the_snapshot(self, place: Place) -> None:
        """A failure means that after a crash the entries of the last clean stop are found, as if nothing had happened since:
        messages that were removed come back, and new ones are lost. An index that is PERSISTENT keeps what was committed."""
        index = place.open()
        enter_first(index)
        index.close(STATE)
        index = place.make()
        assert index.load() == STATE
        assert place.after_a_crash() == Saved(STATE, FIRST), "what was loaded, and not committed since, is still there"
        index.freeze({})
        index.commit()
        kept = Saved(STATE, FIRST) if place.subject.has(Capability.PERSISTENT) else NOTHING
        assert place.after_a_crash() == kept
        index.close(None)

    @pytest.mark.parametrize("how", ["cut", "flipped", "longer"])
    def test_a_damaged_snapshot_is_refused(self, place: Place, how: str) -> None:
        """A failure means that a snapshot that was cut off, or has a wrong bit, is believed: without entries, or with
        ``RESCUED_KEY`` in the state, the store reads its segments. A checksum over everything is the remedy."""
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
                index.enter([D], [4])
                index.close(LATER)
                assert D in place.saved().entries
                path.write_bytes(whole)

    # -- any index

    @pytest.mark.parametrize("found", ["nothing", "a clean stop"])
    def test_read_only_touches_nothing(self, place: Place, found: str) -> None:
        """A failure means that looking at a store changes it: on a read-only file system it cannot be looked at, and a running
        store is disturbed. Changes are in memory, and end with ``close``."""
        entries, state = {}, None
        if found == "a clean stop":
            index = place.open()
            enter_first(index)
            index.close(STATE)
            entries, state = dict(FIRST), STATE
        before = listing(place.directory)
        index = place.make(read_only=True)
        assert index.load() == state
        agree(index, entries, IDS)
        index.enter([D], [9])
        assert index.add_reference(D)
        index.release([A])
        index.freeze(LATER)
        index.commit()
        entries.pop(A, None)
        agree(index, {**entries, D: (9, 2)}, IDS)
        index.clear()
        index.freeze({})
        index.commit()
        assert len(index) == 0
        index.close(LATER)
        assert listing(place.directory) == before
        index = place.make(read_only=True)
        assert index.load() == state
        index.close(None)
        assert listing(place.directory) == before

    def test_what_cannot_be_read_is_an_error(self, place: Place) -> None:
        """A failure means that an I/O error, or a missing permission, is taken for a store that has no index: everything is
        rebuilt, and the counts are lost. ``load`` raises the OSError, and has changed nothing."""
        index = place.open()
        enter_first(index)
        index.close(STATE)
        files = FailingFiles(0)
        index = place.make(files)
        try:
            index.load()
        except OSError:
            assert files.failed
        else:
            assert not files.failed, f"{files.failed} failed, and load() did not say so"
            skip_without(OWN_FILES)
        finally:
            index.close(None)
        assert place.saved() == Saved(STATE, FIRST)

    def test_a_close_that_fails_can_be_repeated(self, place: Place) -> None:
        """A failure means that after a full disk, or an I/O error, an index lets go of its entries although they are not
        saved: the next close has nothing; or that it raises something else than OSError."""
        for fail in range(100):
            place.clear()
            files = FailingFiles()
            index = place.open(files)
            enter_first(index)
            before = place.after_a_crash()
            files.fail, files.error = fail, errno.ENOSPC if fail % 2 else errno.EIO
            try:
                index.close(STATE)
            except OSError:
                assert files.failed, "nothing failed, and yet it raises"
                agree(index, FIRST, IDS)
                assert place.after_a_crash() in (before, Saved(STATE, FIRST))
                index.close(STATE)
            files.fail = None
            assert place.saved() == Saved(STATE, FIRST), f"after {files.failed}"
            if not files.failed:
                break
        if fail == 0:
            skip_without(OWN_FILES)

    def test_it_waits_for_the_disk_when_told(self, place: Place) -> None:
        """A failure means that with ``sync`` a clean stop can be lost with the power, although the store says that it was
        one: the file is written, and neither synced before it gets its name nor is its directory synced then."""
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


def _damaged(whole: bytes, how: str) -> Iterator[bytes]:
    """Cut at some lengths, with single bits turned, or with something behind it."""
    size = len(whole)
    if how == "cut":
        yield from (whole[:keep] for keep in sorted({0, 1, *range(4, size, size // 10 or 1), size - 1}) if keep < size)
    elif how == "flipped":
        for at in sorted({*range(0, size, size // 40 or 1), *range(min(size, 12)), size - 1}):
            yield whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
    else:
        yield from (whole + b"\0", whole + whole)
