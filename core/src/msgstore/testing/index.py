"""Tests of every index. They follow :mod:`msgstore.contract.indexes`; behaviour that it leaves open is not tested."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from msgstore.contract import RESCUED_KEY, Capability, Index, IndexContext, IndexDescriptor
from msgstore.locations import NUMBER_SHIFT, pack_location
from msgstore.testing.faults import (
    OPENINGS,
    FailingFiles,
    RecordingFiles,
    copy_of,
    fail_syncs,
    listing,
    no_more_files,
)
from msgstore.testing.index_commits import CHILD_IDS, ENTRIES, ROUND, STATE, A, B, C, D, IndexCommitTests, enter_all, opened
from msgstore.testing.index_model import (
    IDS,
    NOTHING,
    IndexAgainstDictionary,
    IndexDirectory,
    Saved,
    assert_index_equals,
    entries_of,
    loaded,
)  # fmt: skip
from msgstore.testing.plugin import skip_without
from msgstore.testing.probes import LineInterleaver, damaged_at, tree, tried
from msgstore.testing.processes import ChildProcess
from msgstore.testing.subjects import Subject

OPERATIONS: dict[str, Callable[[Index], object]] = {
    "enter": lambda index: index.enter([A, D], [4, 5]),
    "enter with references": lambda index: index.enter([A, B, D], [4, 5, 6], [2, 1, 7]),
    "add a reference": lambda index: index.add_reference(B),
    "release": lambda index: index.release([A, B, C, C]),
    "relocate": lambda index: index.relocate([A, B, C], [ENTRIES[A][0], ENTRIES[B][0], 9], [4, 5, 6]),
    "items": lambda index: list(index.items()),
    "clear": lambda index: index.clear(),
    "freeze": lambda index: index.freeze({b"key": b"later"}),
    "commit": lambda index: index.commit(),
}


class IndexTests(IndexCommitTests):
    kinds = ("index",)

    def test_it_is_a_dictionary_that_is_saved(self, subject: Subject) -> None:
        """A failure shows the shortest list of calls after which the index differs from a dictionary, or finds something else
        after a stop, a crash or a failed commit than was saved. Run this test alone to debug an index."""
        machine: Any = partial(IndexAgainstDictionary, subject)
        run_state_machine_as_test(machine, settings=settings(tried(120), stateful_step_count=30))

    @pytest.mark.parametrize("what", OPERATIONS)
    def test_a_reader_between_any_two_lines(self, place: IndexDirectory, what: str) -> None:
        """A failure means that a reader, who holds no lock, sees a state that is neither before nor after the change: no entry
        where one is only changed, or an entry for an instant. Change what a reader can see in one step."""
        index = opened(place)
        index.freeze(STATE)
        before = [index.get(msg_id) for msg_id in IDS]
        seen = [{location} for location in before]

        def look() -> None:
            for locations, msg_id in zip(seen, IDS, strict=True):
                locations.add(index.get(msg_id))

        LineInterleaver(look).run(lambda: OPERATIONS[what](index))
        for was, msg_id, locations in zip(before, IDS, seen, strict=True):
            assert locations <= {was, index.get(msg_id)}, f"{what}: get({msg_id.hex()}) was {locations}"
        index.close(None)

    def test_changes_between_the_steps_of_a_read(self, place: IndexDirectory) -> None:
        """A failure means that a read, which takes no lock, breaks, or gives a location that was never set, if a second thread
        moves its entry and commits in the midst of it."""
        index = opened(place)
        locations = [ENTRIES[A][0]]
        found: list[Any] = []

        def change() -> None:
            locations.append(len(locations))
            index.relocate([A], locations[-2:-1], locations[-1:])
            index.freeze({})
            index.commit()

        LineInterleaver(change).run(lambda: found.extend(index.get(A) for _ in range(9)))
        assert set(found) <= set(locations), f"get gave {found}, of {locations}"
        assert found == sorted(found, key=locations.index), "get gave a location from before the last one"
        index.close(None)

    def test_files_that_cannot_be_read_are_kept(self, place: IndexDirectory) -> None:
        """A failure means that a store opens, and its index is rebuilt, as if its files were damaged, when they only cannot be
        read: another program has them locked, or, as here, the process can open no more files. References would be lost."""
        place.subject.needs(Capability.PERSISTENT)
        index = opened(place)
        index.freeze(STATE)
        index.commit()
        index.close(None)
        before, saved, index = tree(place.directory), place.copy().saved(), place.make()
        with no_more_files(), pytest.raises(OSError):  # noqa: PT011 - the text is the index's own
            index.load()
        with contextlib.suppress(OSError):
            index.close(None)
        assert tree(place.directory) == before, "load has changed files that it could not read"
        assert place.saved() == saved

    def test_a_file_that_cannot_be_opened(self, place: IndexDirectory) -> None:
        """A failure means that an index takes a file that it cannot open for one that is not there, such as the newest of
        several: the store opens without its last commits. Only for an index that opens files by its context."""
        persistent, index = place.subject.has(Capability.PERSISTENT), opened(place)
        for number in range(3):
            index.enter([D], [number])
            index.freeze({b"round": b"%d" % number})
            index.commit()
        index.close(None if persistent else STATE)
        for number in range(9):
            index = place.copy().make(files := FailingFiles(number))
            with contextlib.suppress(OSError):
                index.load()
                assert not files.failed.startswith(OPENINGS), f"{files.failed} fails, and load does not"
            files.fail = None
            index.close(None)

    @pytest.mark.parametrize("fails", ["locations", "references"])
    def test_an_enter_that_raises(self, place: IndexDirectory, fails: str) -> None:
        """A failure means that an ``enter`` that raises has entered a part: an id of the batch would have a location that the
        engine counts as free. Read both iterables to their ends before the first change. Or that the next one, which replaces
        entries, leaves some with the references that they had, more or fewer."""
        index = opened(place)
        given = {"locations": iter([5, 6, 7]), "references": iter([2, 3, 4])}
        given[fails] = (8 // at for at in (2, 1, 0))
        with pytest.raises(ZeroDivisionError):
            index.enter([A, D, B], given["locations"], given["references"])
        assert_index_equals(index, ENTRIES, IDS)
        assert len(index) == len(ENTRIES), "len counts an entry of an enter that has raised"
        index.enter([A, D, B], [5, 6, 7], [2, 3, 1])
        assert_index_equals(index, ENTRIES | {A: (5, 2), D: (6, 3), B: (7, 1)})
        index.close(None)

    def test_a_damaged_snapshot_is_refused(self, place: IndexDirectory) -> None:
        """A failure means that a snapshot that was cut off, or has a wrong bit, is used. Return no entries, or put
        ``RESCUED_KEY`` into the state: the store then reads its segments. Save a checksum of everything."""
        if place.subject.has(Capability.PERSISTENT):
            skip_without("a snapshot")
        opened(place).close(STATE)
        files = [path for path in place.directory.rglob("*") if path.is_file()]
        assert files, "nothing was saved"
        rng = random.Random(1)
        for path in files:
            whole = path.read_bytes()
            last = range(max(0, len(whole) - 64), len(whole))
            spots = {*range(min(len(whole), 12)), *last, *(rng.randrange(len(whole)) for _ in range(9))}
            cases = [whole + b"\0", whole + whole, *(damaged for at in sorted(spots) for damaged in damaged_at(whole, at))]
            sectors = range(0, len(whole), 512)  # a tree of pages has one that is damaged among others that are not
            cases += [whole[:at] + bytes(512) + whole[at + 512 :] for at in sectors[:: len(sectors) // 40 + 1]]
            for damaged in cases:
                path.write_bytes(damaged)
                before = listing(place.directory)
                reader = place.make(read_only=True)
                reader.load()
                reader.freeze({})
                reader.commit()
                reader.close(None)
                assert listing(place.directory) == before, "read_only: a damaged file is left as it is"
                index = place.make()
                found = loaded(index)
                refused = (found == NOTHING and len(index) == 0) or RESCUED_KEY in found[0]
                changed = [
                    f"byte {at} is changed" for at, pair in enumerate(zip(damaged, whole, strict=False)) if len({*pair}) > 1
                ]
                what = (*changed, f"there are {len(damaged)} of {len(whole)} bytes")[0]
                has = f"load has returned {found[0] or None}, and {len(found[1])} entries are there"
                assert refused or found == (STATE, ENTRIES), f"{path.name}, {what}: {has}"
                index.freeze({})
                index.commit()
                index.enter([D], [4])
                index.close({})
                assert D in place.saved()[1]
                path.write_bytes(whole)

    def test_damage_in_any_sector(self, place: IndexDirectory) -> None:
        """A failure means that an index whose files are damaged raises what is no OSError, or ends the process, so that the
        store does not open; or that ``load`` returns None, and some entries stay. Read all before you keep any of it."""
        place.subject.needs(Capability.PERSISTENT)
        index = place.make()
        index.load()
        index.enter([n.to_bytes(16) for n in range(2000)], range(2000))
        index.freeze(STATE)
        index.commit()
        index.close(None)
        with ChildProcess(place, _load_damaged) as child:
            last = child.wait()
            assert last is None, last

    def test_it_waits_for_the_disk_when_told(self, place: IndexDirectory, tmp_path: Path) -> None:
        """A failure means that with ``sync`` a power loss can undo a commit or a clean shutdown: they succeed in a process in
        which every fsync, fdatasync, msync and syncfs fails. Or, for a file that is renamed, sync it before it gets its name,
        and its directory afterwards."""
        with ChildProcess(place, _save_without_syncs, sync=True) as child:
            assert not child.last, f"{child.last}: no error, although no sync succeeds"
        files = RecordingFiles()
        index = IndexDirectory(place.subject, tmp_path).make(files, sync=True)
        index.load()
        enter_all(index, ENTRIES)
        index.close(STATE)
        names = [name for name, _, _ in files.changes()]
        if child.last is None and "pwrite" not in names:
            skip_without("files of its own, in a system that can fail their syncs")
        if "pwrite" not in names:
            return
        behind = names[len(names) - names[::-1].index("pwrite") :]
        assert "sync" in behind, names
        if "replace" in names:
            renamed = behind.index("replace")
            assert "sync" in behind[:renamed], names
            assert "sync_directory" in behind[renamed:], names

    def test_a_killed_process_leaves_whole_commits(self, place: IndexDirectory) -> None:
        """A failure means that a killed process leaves entries of one commit and state of another, or less than the last commit
        that returned. A run does not always hit the same commit: look at what was found. The process is stopped many times,
        anywhere in its work, and the directory is copied as it is. Or that ``read_only`` repairs the files that it reads."""
        place.subject.needs(Capability.PERSISTENT)
        with ChildProcess(place, _commit_rounds) as child:
            for number in range(40):
                time.sleep(number / 5000)  # so that the child is stopped at 40 different moments
                with child.stopped() as done:
                    copy = place.copy()
                before, reader = tree(copy.directory), copy.make(read_only=True)
                read = loaded(reader)
                reader.close(None)
                assert tree(copy.directory) == before, f"after commit {done}: an index that is read-only changes files"
                assert read in (committed(done), committed(done + 1)), f"after commit {done}, read-only: {read[0]}"
                found = copy.saved()
                assert found in (committed(done), committed(done + 1)), f"after commit {done}: {found[0]}"
            done = child.kill()
        assert place.saved() in (committed(done), committed(done + 1)), f"killed after commit {done}"

    def test_a_reader_in_another_process(self, place: IndexDirectory) -> None:
        """A failure means that a reader fails or creates files before the first commit; that one of its calls sees half of a
        commit, or less than the call before; that it keeps the writer from committing; that its own changes are not seen on
        top, survive another ``load``, or reach the disk; or that it stays with files that a new writer has set aside."""
        place.subject.needs(Capability.LIVE_READS)
        index = place.make(read_only=True, live=True)
        assert loaded(index) == NOTHING
        assert list(place.directory.iterdir()) == []
        mine, gone = bytes(16), CHILD_IDS[1]
        with ChildProcess(place, _commit_rounds) as child:
            first, newest = 0, int((index.load() or {})[ROUND])
            latest = time.monotonic() + 30
            for call in itertools.count():
                found = entries_of(index)
                (round_,) = {at >> NUMBER_SHIFT for at, _ in found.values()}
                assert found == committed(round_)[1], "one call sees two commits"
                assert round_ >= newest, "older than what was seen before"
                newest = round_
                first = first or round_  # not that of the load: on a loaded machine the writer is far ahead by now
                is_enough = newest > first + 3 or child.progress() > first + 100 or time.monotonic() > latest
                if call >= 60 and is_enough:
                    break
            assert newest > first + 3, "the writer makes no progress, or the reader does not see it"
            index.enter([mine], [7])
            done = child.kill()
        index.release([gone] * index.references(gone))
        assert (index.get(mine), index.get(gone)) == (7, None), "its own changes are not on top"
        state = index.load() or {}
        last = committed(int(state[ROUND]))
        assert last in (committed(done), committed(done + 1))
        assert_index_equals(index, last[1], [mine])
        assert len(index) == len(last[1])
        for path in place.directory.iterdir():
            path.rename(path.with_name(f"aside-{path.name}"))
        with ChildProcess(place, _commit_rounds) as child:
            done = child.kill()
        last = committed(int((index.load() or {})[ROUND]))
        assert last in (committed(done), committed(done + 1)), "a load does not open the files of the new writer"
        assert_index_equals(index, last[1], [mine])
        index.enter([mine], [7])
        index.close({b"not": b"saved"})
        assert place.saved() == last, "a reader's changes reach the disk"


def committed(round_: int) -> Saved:
    """After a commit of the child: every third id is absent in every other round; the others have a location of this round."""
    there = [msg_id for n, msg_id in enumerate(CHILD_IDS) if n % 3 or round_ % 2]
    return {ROUND: b"%d" % round_}, {i: (pack_location(round_, n, 100), 1 + round_ % 3) for n, i in enumerate(there)}


def _commit_rounds(descriptor: IndexDescriptor, context: IndexContext, parent: Any) -> None:
    index: Index = descriptor.load_factory()(context)
    index.load()
    for round_ in range(1, 2**63):
        state, goal = committed(round_)
        enter_all(index, goal)
        index.release([msg_id for msg_id in CHILD_IDS if msg_id not in goal for _ in range(index.references(msg_id))])
        index.freeze(state)
        index.commit()
        parent.send(round_)


def _load_damaged(descriptor: IndexDescriptor, context: IndexContext, parent: Any) -> None:
    """Send what is damaged before each ``load``, or what is wrong after it; and None at the end."""
    target = context.directory.with_name("damaged")
    for path in [path for path in sorted(context.directory.rglob("*")) if path.is_file()]:
        whole, name = path.read_bytes(), path.relative_to(context.directory)
        sectors = [at for at in range(0, len(whole), 512) if any(whole[at : at + 512])]
        for at in sectors[:: len(sectors) // 24 + 1]:
            shutil.rmtree(target, ignore_errors=True)
            with (copy_of(context.directory, target) / name).open("r+b") as file:
                file.seek(at)
                file.write(bytes(len(whole[at : at + 512])))
            where = f"{name}, zeros from byte {at} to {at + 512}"
            parent.send(f"{where}: the process has ended")
            index: Index = descriptor.load_factory()(attrs.evolve(context, directory=target))
            try:
                is_kept = index.load() is None and (len(index) or list(index.items()))
                index.close(None)
            except OSError:
                continue
            except Exception as error:
                parent.send(f"{where}: {error!r}")
                return
            if is_kept:
                parent.send(f"{where}: load has returned None, and keeps entries")
                return
    parent.send(None)


def _save_without_syncs(descriptor: IndexDescriptor, context: IndexContext, parent: Any) -> None:
    """Send the calls that succeed although each sync fails, or None if the system cannot let syncs fail."""
    index: Index = descriptor.load_factory()(context)
    index.load()
    index.freeze({})
    index.commit()
    enter_all(index, ENTRIES)
    index.freeze(STATE)
    is_possible, unsynced = fail_syncs(), []
    with contextlib.suppress(OSError):
        index.commit()
        unsynced += ["commit"] * (Capability.PERSISTENT in descriptor.capabilities)
    with contextlib.suppress(OSError):
        index.close(STATE)
        unsynced.append("close")
    parent.send(unsynced if is_possible else None)
