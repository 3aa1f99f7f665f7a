"""Tests of an index in use: all methods against a dictionary, with readers on other threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from msgstore.contract import Capability, Index
from msgstore.locations import NUMBER_SHIFT, pack_location
from msgstore.testing.concurrency import BetweenLines, together
from msgstore.testing.data import tried
from msgstore.testing.index.model import IndexAgainstDictionary
from msgstore.testing.index.place import FIRST, IDS, LATER, ROUND, STATE, Entries, Place, PlaceTests, enter_first, entries_of
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


class ReaderTests(PlaceTests):
    def test_it_is_a_dictionary_that_is_saved(self, subject: Subject) -> None:
        """A failure shows the shortest list of calls after which the index differs from a dictionary, or finds something else
        after a stop, a crash or a failed commit than was saved. Run this test alone to debug an index."""
        machine: Any = partial(IndexAgainstDictionary, subject)
        run_state_machine_as_test(machine, settings=settings(tried(120), stateful_step_count=30))

    @pytest.mark.parametrize("key", [[], {}, [b"a" * 16]], ids=["list", "dict", "list-of-id"])
    def test_what_cannot_be_a_key_is_a_type_error(self, place: Place, key: object) -> None:
        """A failure means that ``client.read([...])`` ends in an error of a library's own, or in "no such message"."""
        index = place.open()
        with pytest.raises(TypeError):
            index.get(key)  # type: ignore[arg-type]
        index.close(None)

    @pytest.mark.parametrize("what", OPERATIONS)
    def test_a_reader_between_any_two_lines(self, place: Place, what: str) -> None:
        """A failure means that a reader, who holds no lock, sees a state that is neither before nor after the change: no entry
        where one is only changed, or an entry for an instant. Change what a reader can see in one step."""
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
        """A failure means that a reader, who holds no lock, finds no entry where there always is one, or a location that was
        never set, or raises: a change is made in two steps, or a container is iterated while another thread changes it."""
        traffic = _Traffic(place)
        together(0.5, traffic.write, traffic.read, traffic.read, traffic.commit, enough=lambda: traffic.reads > 100)
        assert traffic.reads > 100
        traffic.index.close(None)

    def test_a_commit_beside_other_threads(self, place: Place) -> None:
        """A failure means that a commit writes changes that other threads make while it runs, or loses them: after a crash the
        entries are not those of any ``freeze``."""
        place.subject.needs(Capability.PERSISTENT)
        traffic = _Traffic(place)
        together(0.5, traffic.write, traffic.commit_and_crash, enough=lambda: traffic.commits > 4)
        assert traffic.commits
        traffic.index.close(None)


class _Traffic:
    """Threads with one index. A location is a version that only grows: a reader knows the oldest and the newest that it may
    see. The first half of the ids always has entries; entries of the others come and go.
    """

    def __init__(self, place: Place, count: int = 96) -> None:
        self.place = place
        self.index = place.open()
        self.ids = [random.Random(n).randbytes(16) for n in range(count)]
        self.kept = count // 2
        self.lock = threading.Lock()
        self.done = [1] * count
        """The newest version of each id whose write has returned."""
        self.newest = 1
        self.round = 0
        """Number of the last ``freeze``."""
        self.frozen: dict[int, Entries] = {}
        """Entries at each ``freeze`` that the next commit can make durable, by number."""
        self.reads = self.commits = 0
        self._enter(range(count))
        self._freeze([])

    def write(self, stop: threading.Event) -> None:
        rng = random.Random(1)
        while not stop.is_set():
            for _ in range(10):
                with self.lock:
                    change = rng.choice([self._enter, self._relocate, self._count, self._remove, self._freeze])
                    change(rng.sample(range(len(self.ids)), 40))
            time.sleep(0)  # lets other threads take the lock

    def _enter(self, chosen: Sequence[int]) -> None:
        self._move(chosen, lambda ids, locations: self.index.enter(ids, locations))

    def _relocate(self, chosen: Sequence[int]) -> None:
        there = [n for n in chosen if self.index.references(self.ids[n])]
        self._move(there, lambda ids, new: self.index.relocate(ids, [self.index.get(msg_id) or 0 for msg_id in ids], new))

    def _move(self, chosen: Sequence[int], change: Callable[[list[bytes], list[int]], object]) -> None:
        self.newest += 1
        change([self.ids[n] for n in chosen], [pack_location(self.newest, n, 1) for n in chosen])
        for n in chosen:
            self.done[n] = self.newest

    def _count(self, chosen: Sequence[int]) -> None:
        ids = [self.ids[n] for n in chosen if n < self.kept]
        for msg_id in ids:
            self.index.add_reference(msg_id)
        self.index.release(ids)

    def _remove(self, chosen: Sequence[int]) -> None:
        ids = [self.ids[n] for n in chosen if n >= self.kept]
        self.index.release([msg_id for msg_id in ids for _ in range(self.index.references(msg_id))])

    def _freeze(self, _: Sequence[int]) -> None:
        if len(self.frozen) < 100:  # a commit makes room: it may wait long for the lock
            self.index.freeze({ROUND: b"%d" % (self.round + 1)})
            self.frozen[self.round + 1] = entries_of(self.index)
            self.round += 1

    def read(self, stop: threading.Event) -> None:
        rng = random.Random(2)
        while not stop.is_set():
            n = rng.randrange(len(self.ids))
            before = self.done[n]
            location = self.index.get(self.ids[n])
            after = self.newest
            self.reads += 1
            if location is None:
                assert n >= self.kept, "an entry that is never removed was absent for an instant"
            else:
                version = location >> NUMBER_SHIFT
                assert location == pack_location(version, n, 1), f"get gave a location that was never set: {location:#x}"
                assert before <= version <= after, f"get gave version {version}, not one from {before} to {after}"

    def commit(self, stop: threading.Event) -> None:
        while not stop.wait(0.002):  # the writer needs the lock, too
            self.index.commit()
            self.frozen.clear()

    def commit_and_crash(self, stop: threading.Event) -> None:
        while not stop.is_set():
            due = self.round
            self.index.commit()
            with self.lock:  # nothing is written while it is copied
                found = self.place.after_a_crash()
                round_ = int((found.state or {})[ROUND])
                assert round_ >= due, "the last freeze before the commit is not in it"
                assert found.entries == self.frozen[round_], "entries and state are not of the same freeze"
                self.frozen = {number: entries for number, entries in self.frozen.items() if number >= round_}
            self.commits += 1
