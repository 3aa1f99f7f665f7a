"""What an index holds while it serves: every method, batches, and readers beside them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from msgstore.contract import Index, ReleaseResult
from msgstore.contract.locations import LIMIT, MAX_REFERENCES, pack_location
from msgstore.testing.concurrency import BetweenLines, Versions, together
from msgstore.testing.data import tried
from msgstore.testing.guard import KitTests
from msgstore.testing.index_fixtures import (
    FIRST,
    IDS,
    LATER,
    NOTHING,
    STATE,
    Place,
    Saved,
    agree,
    batches,
    enter_first,
    entries_of,
    some_ids,
)
from msgstore.testing.index_model import IndexAgainstDictionary
from msgstore.testing.subjects import Subject

A, B, C, D = IDS[:4]


OPERATIONS: dict[str, Callable[[Index], object]] = {
    "enter": lambda index: index.enter([A, D], [4, 5]),
    "enter with references": lambda index: index.enter([A, B, D], [4, 5, 6], [2, 1, 7]),
    "add a reference": lambda index: index.add_reference(B),
    "release": lambda index: index.release([A, B, C, C]),
    "relocate": lambda index: index.relocate([A, B, C], [FIRST[A][0], FIRST[B][0], 9], [4, 5, 6]),
    "items": lambda index: list(index.items()),
    "clear": lambda index: index.clear(),
    "freeze": lambda index: index.freeze(LATER),
    "commit": lambda index: index.commit(),
}


@contextmanager
def _two(subject: Subject) -> Iterator[tuple[Index, Index]]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        indexes = Place(subject, Path(one)).open(), Place(subject, Path(other)).open()
        yield indexes
        for index in indexes:
            index.close(None)


class EntryTests(KitTests):
    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> Place:
        directory = tmp_path / "store"
        directory.mkdir()
        return Place(subject, directory)

    def test_it_is_a_dictionary_that_is_saved(self, subject: Subject) -> None:
        """A failure shows the shortest list of calls after which the index is not what a dictionary would be, or finds other
        things after a stop, a crash or a commit that failed than were saved. Run by itself, it is your debugging session."""
        machine: Any = partial(IndexAgainstDictionary, subject)
        run_state_machine_as_test(machine, settings=settings(tried(60), stateful_step_count=25))

    def test_a_new_one_is_empty(self, place: Place) -> None:
        """A failure means that a store which never was is taken for one that was: ``load`` is None, nothing has an entry."""
        index = place.make()
        assert index.load() is None
        assert len(index) == 0
        agree(index, {}, IDS)
        index.close(None)

    @given(batch=batches, counts=st.lists(st.integers(1, 3), min_size=6, max_size=6), ids=some_ids, moved=batches)
    @tried(40)
    def test_a_batch_does_what_its_parts_do(
        self, subject: Subject, batch: dict[bytes, int], counts: list[int], ids: list[bytes], moved: dict[bytes, int]
    ) -> None:
        """A failure means that a flush, or a removal, of many messages leaves other entries than the same one by one: often
        an id that stands twice in ``release``, or a location that is compared with that of before the batch."""
        with _two(subject) as (whole, single):
            whole.enter(list(batch), list(batch.values()), counts[: len(batch)])
            for (msg_id, at), count in zip(batch.items(), counts, strict=False):
                single.enter([msg_id], [at], [count])
            released = whole.release(ids)
            singly = [single.release([msg_id]) for msg_id in ids]
            assert sorted(released.freed) == sorted(pair for one in singly for pair in one.freed)
            assert released.missing == [msg_id for one in singly for msg_id in one.missing]
            old = [batch.get(msg_id, 1) for msg_id in moved]
            new = list(moved.values())
            hits = sum(single.relocate([i], [at], [to]) for i, at, to in zip(moved, old, new, strict=True))
            assert whole.relocate(list(moved), old, new) == hits
            assert entries_of(whole) == entries_of(single)

    def test_what_is_removed_several_times_at_once(self, place: Place) -> None:
        """A failure means that one removal of many ids counts an id once, however often it stands there: then messages stay for
        ever; or that it frees one that still has references: then one is lost."""
        index = place.open()
        index.enter([A, B], [1, 2], [3, 2])
        released = index.release([A, B, A, C, B, C])
        assert (released.freed, released.missing) == ([(B, 2)], [C, C])
        agree(index, {A: (1, 1)}, IDS)
        assert len(index) == 1
        released = index.release([A, A, B])
        assert (released.freed, released.missing) == ([(A, 1)], [A, B])
        assert len(index) == 0
        index.close(None)

    def test_entering_again_counts_anew(self, place: Place) -> None:
        """A failure means that an entry that is replaced keeps the references of before: a message that never goes."""
        index = place.open()
        index.enter([A, B], [1, 2], [5, 5])
        index.enter([A], [3])
        index.enter([B], [4], [2])
        agree(index, {A: (3, 1), B: (4, 2)})
        assert len(index) == 2
        index.close(None)

    def test_only_what_has_not_moved_since_is_relocated(self, place: Place) -> None:
        """A failure means that compaction and a writer meet, and the writer's newer copy is forgotten: a message that cannot be
        read, once the older segment is gone."""
        index = place.open()
        index.enter([A, B, C], [1, 2, 3], [1, 4, 1])
        index.release([C])
        assert index.relocate([A, B, C, D], [9, 2, 3, 4], [11, 12, 13, 14]) == 1
        agree(index, {A: (1, 1), B: (12, 4)}, IDS)
        index.close(None)

    def test_absent_ids_are_asked_for_like_others(self, place: Place) -> None:
        """A failure means that ``get`` raises for an id that is not there. Half of all questions are about such ids."""
        index = place.open()
        index.enter([A], [1])
        assert index.get(B) is None
        assert index.references(B) == 0
        assert index.add_reference(B) is False
        for msg_id in (bytes(16), b"\xff" * 16):
            assert index.get(msg_id) is None
        assert index.release([]) == ReleaseResult([], [])
        index.enter([], [])
        assert index.relocate([], [], []) == 0
        index.close(None)

    @pytest.mark.parametrize("key", [[], {}, [b"a" * 16]], ids=["list", "dict", "list-of-id"])
    def test_what_cannot_be_a_key_is_a_type_error(self, place: Place, key: object) -> None:
        """A failure means that ``client.read([...])`` ends in an error of a library's own, or in "no such message"."""
        index = place.open()
        with pytest.raises(TypeError):
            index.get(key)  # type: ignore[arg-type]
        index.close(None)

    @pytest.mark.parametrize("closed", [False, True], ids=["in memory", "reopened"])
    def test_the_largest_locations_and_counts(self, place: Place, closed: bool) -> None:
        """A failure means that a location or a count is stored in too few bytes: wrong from some number of segments, or some
        size of a segment, on. See :mod:`msgstore.contract.locations`."""
        index = place.open()
        wide = [
            pack_location(2**64 - 1, LIMIT - 1, LIMIT - 1),
            pack_location(0, 0, 1),
            pack_location(0, LIMIT - 1, 1),
            pack_location(2**63, 0, 1),
            pack_location(1, 0, LIMIT - 1),
        ]
        counts = [MAX_REFERENCES, MAX_REFERENCES - 1, 1, 2**32, 2**31]
        entries = dict(zip(IDS, zip(wide, counts, strict=True), strict=False))
        index.enter(list(entries), wide, counts)
        assert index.add_reference(IDS[1])
        assert index.release([IDS[0]]).freed == []
        entries |= {IDS[0]: (wide[0], MAX_REFERENCES - 1), IDS[1]: (wide[1], MAX_REFERENCES)}
        if closed:
            index.close({})
            index = place.make()
            assert index.load() == {}
        agree(index, entries)
        index.close(None)

    def test_clear_drops_everything(self, place: Place) -> None:
        """A failure means that a rebuild begins with entries, or with state, of before: messages that no segment holds."""
        index = place.open()
        enter_first(index)
        index.freeze({b"key": b"frozen"})
        index.clear()
        assert len(index) == 0
        agree(index, {}, IDS)
        index.freeze({})
        index.commit()
        assert place.after_a_crash() == NOTHING
        index.enter([A], [1])
        agree(index, {A: (1, 1)}, IDS)
        index.close(STATE)
        assert place.saved() == Saved(STATE, {A: (1, 1)})

    @pytest.mark.parametrize("what", OPERATIONS)
    def test_a_reader_between_any_two_lines(self, place: Place, what: str) -> None:
        """A failure means that a reader, who asks without a lock, is shown what is neither before nor after: nothing, where an
        entry is only changed, or an entry for an instant. What a reader can meet must be changed in one step."""
        index = place.open()
        enter_first(index)
        index.freeze(STATE)
        before = [index.get(msg_id) for msg_id in IDS]
        seen = [{location} for location in before]

        def look() -> None:
            for locations, msg_id in zip(seen, IDS, strict=True):
                locations.add(index.get(msg_id))

        BetweenLines(look).run(lambda: OPERATIONS[what](index))
        for was, msg_id, locations in zip(before, IDS, seen, strict=True):
            assert locations <= {was, index.get(msg_id)}, f"{what}: get({msg_id.hex()}) was {locations}"
        index.close(None)

    def test_readers_see_what_was_or_what_is(self, place: Place) -> None:
        """A failure means that a reader, who asks without a lock, finds nothing where there always is something, or a location
        that nobody gave, or raises: a change is made in two steps, or something is iterated that another thread changes."""
        index = place.open()
        versions = Versions(index)
        tasks = versions.write, versions.read, versions.read, versions.commit
        together(0.5, *tasks, enough=lambda: versions.reads > 100)
        assert versions.reads > 100
        index.close(None)
