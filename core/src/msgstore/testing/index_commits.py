"""Tests of what an index sets aside and commits, also if a commit fails, or is cut short. The base of ``IndexTests``."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import Capability, Index
from msgstore.locations import pack_location
from msgstore.testing.faults import FailingFiles, Listing, file_size_limit, listing
from msgstore.testing.index_model import IDS, NOTHING, Dictionary, Entries, IndexDirectory, entries_of, loaded
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import LineInterleaver, open_files, tree
from msgstore.testing.processes import in_a_process
from msgstore.testing.subjects import Subject

ROUND = b"round"
CHILD_IDS = [random.Random(n).randbytes(16) for n in range(300)]
A, B, C, D = IDS[:4]
ENTRIES: Entries = {msg_id: (pack_location(1, 10 * n, 10), 1 + n) for n, msg_id in enumerate((A, B, C))}
STATE = {b"key": b"value", b"other": b""}
MANY = [random.Random(n).randbytes(16) for n in range(9000)]
"""More ids than a library fetches, or binds to one statement, at once."""
LARGE_STATE = {b"large %d" % n: bytes([n]) * 300_000 for n in range(9)}
"""More bytes than SQLite keeps in memory: it writes a part of them before the commit."""
CHANGES: dict[str, Callable[[Any, list[bytes]], object]] = {
    "nothing": lambda *_: None,
    "enter": lambda index, ids: index.enter(ids, range(len(ids))),
    "enter with references": lambda index, ids: index.enter(tuple(ids), range(9, 9 + len(ids)), [3] * len(ids)),
    "add a reference": lambda index, ids: [index.add_reference(msg_id) for msg_id in ids],
    "release": lambda index, ids: index.release(tuple(ids)),
    "release all": lambda index, ids: index.release([msg_id for msg_id in ids for _ in range(index.references(msg_id))]),
    "relocate": lambda index, ids: relocate_all(index, [msg_id for msg_id in ids if index.references(msg_id)]),
}
"""Each thing that can become of an entry."""
SEQUENCES = dict(zip(MANY, itertools.product(CHANGES, repeat=4), strict=False))
"""Id to the changes that it has one after the other."""
STATES = [None, b"", b"old", b"new"]


class IndexCommitTests(KitTests):
    kinds = ("index",)

    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> IndexDirectory:
        directory = tmp_path / "store"
        directory.mkdir()
        return IndexDirectory(subject, directory)

    @pytest.mark.parametrize("between", ["nothing", "a commit", "a commit that fails", "a clear"])
    def test_any_changes_between_freezes(self, place: IndexDirectory, between: str) -> None:
        """A failure means that a commit or a close writes something else than what the entries and the state are at the last
        ``freeze``: several came before it, and what one of them sets aside changes what another has set aside in a wrong way,
        such as an entry that is changed, then removed. Or that an entry becomes another one than in a dictionary. Each sequence
        of four changes is tried, of one entry each."""
        index, persistent = opened(place), place.subject.has(Capability.PERSISTENT)
        values = dict(zip((b"%d" % n for n in range(999)), itertools.product(STATES, repeat=4), strict=False))
        state: dict[bytes, bytes] = {}
        expected = Dictionary(entries_of(index))
        for step in range(4):
            for name, change in CHANGES.items():
                ids = [msg_id for msg_id, names in SEQUENCES.items() if names[step] == name]
                change(index, ids)
                change(expected, ids)
            entries = entries_of(index)
            ids = [*entries, *expected.entries]
            wrong = [SEQUENCES.get(i, (i.hex(),)) for i in ids if entries.get(i) != expected.entries.get(i)]
            assert not wrong, f"an entry is another one than in a dictionary after: {', '.join(wrong[0][: step + 1])}"
            index.freeze({key: given[step] for key, given in values.items()})
            is_same = entries_of(index) == entries
            assert is_same, "freeze has changed an entry"
            state |= {key: value for key, given in values.items() if (value := given[step]) is not None}
            state = {key: value for key, value in state.items() if values[key][step] is not None}
            frozen = state, entries
            if step == 0 or between == "a commit":
                index.commit()  # the first is what later ones change
            elif between == "a commit that fails":
                with file_size_limit(0), contextlib.suppress(OSError):
                    index.commit()
            elif between == "a clear" and step == 2:
                index.clear()
                state, expected = {}, Dictionary()
        index.release([A, *MANY[::7]])
        index.commit()
        assert len(index) == len(entries_of(index))
        found = place.copy().saved()
        differ = [SEQUENCES.get(i, (i.hex(),)) for i in {*frozen[1], *found[1]} if frozen[1].get(i) != found[1].get(i)]
        assert not (persistent and differ), f"the commit has written another entry after: {', '.join(differ[0])}"
        assert found[0] == (frozen[0] if persistent else {}), "the commit has written another state"
        closed = {b"closed": b"1"}, entries_of(index)
        index.close(closed[0])
        is_saved = place.saved() == closed
        assert is_saved, "close has saved something else than all entries and its state"

    def test_many_entries(self, place: IndexDirectory) -> None:
        """A failure means that some of many entries are left out or come twice: those behind a limit of a library, such as the
        number of values of one statement, or behind a count of 16 bits. Or that ``items``, which is read bit by bit, has
        changes that came after its call."""
        index, persistent = opened(place), place.subject.has(Capability.PERSISTENT)
        many = [number.to_bytes(16) for number in range(1, 2**16 + 5)]
        index.enter(many, range(len(many)))
        items, expected = index.items(), entries_of(index)
        first = next(items)
        index.freeze({})
        index.commit()
        assert index.relocate(many, range(len(many)), range(1, len(many) + 1)) == len(many)
        released = index.release(many[::2] + CHILD_IDS)
        assert (len(released.freed), released.missing) == (len(many[::2]), CHILD_IDS)
        found = {msg_id: (at, count) for msg_id, at, count in (first, *items)}
        is_as_of_the_call = found == expected
        assert is_as_of_the_call, "items() shows changes made after the call"
        entries = {**ENTRIES, **{msg_id: (at + 1, 1) for at, msg_id in enumerate(many) if at % 2}}
        assert len(index) == len(entries)
        index.freeze(STATE)
        index.commit()
        is_committed = place.copy().saved() == (STATE if persistent else {}, entries if persistent else {})
        assert is_committed, "a commit has left some out"
        index.close(STATE)
        is_saved = place.saved() == (STATE, entries)
        assert is_saved, "a close has left some out"

    @pytest.mark.parametrize("what", ["commit", "close"])
    def test_a_kill_inside_a_write(self, place: IndexDirectory, what: str) -> None:
        """A failure means that a process that is killed in the midst of a write, also by a library in C, leaves a part of a
        commit or of a close; or that an index that is ``read_only``, which must not repair such files, reads them otherwise
        than one that may, such as without the journal of a half transaction. The system kills the process at the first write
        beyond some offset of a file."""
        persistent = place.subject.has(Capability.PERSISTENT)
        index = opened(place)
        enter_all(index, dict.fromkeys(MANY[:2000], (1, 1)))
        index.close(STATE)
        before, entries = place.saved(), dict.fromkeys(MANY[:8000:3], (2, 2))
        after = {**STATE, **LARGE_STATE}, {**before[1], **entries}

        def work(directory: IndexDirectory, limit: int) -> None:
            index = directory.make()
            index.load()
            enter_all(index, entries)
            index.freeze(LARGE_STATE)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # the signal dumps one
            index.commit() if what == "commit" else index.close(after[0])

        for limit in (0, *(2**power for power in range(12, 24))):
            found = place.copy()
            killed = killed_in(partial(work, found, limit))
            allowed = [before, after] if killed else [after]
            if what == "commit" and not persistent:
                allowed = [before, NOTHING] if killed else [NOTHING]
            files, reader = tree(found.directory), found.make(read_only=True)
            read = loaded(reader)
            reader.close(None)
            where = f"killed at a write beyond {limit} bytes of a file" if killed else "after the end of the process"
            assert tree(found.directory) == files, f"{where}: an index that is read-only changes files"
            is_whole, is_same = read in allowed, found.saved() == read
            assert is_whole, f"{where}: read-only, there are {len(read[1])} entries, a part of a {what}"
            assert is_same, f"{where}: an index that may write finds something else than one that is read-only"
            if not killed:
                break

    @pytest.mark.parametrize("fails", [False, True], ids=["to its end", "and fails"])
    def test_changes_while_a_commit_runs(self, place: IndexDirectory, fails: bool) -> None:
        """A failure means that a commit writes changes that other threads make while it runs, or loses them: after a crash the
        entries and the state are not those of any ``freeze``. A second thread changes entries in the midst of the commit. Or
        that one that fails, because no file can grow, drops what is frozen meanwhile, up to any of its steps: the next one
        writes it, too."""
        place.subject.needs(Capability.PERSISTENT)
        index = opened(place)
        index.freeze(STATE)
        frozen = [(STATE, ENTRIES)]
        changes, last_frozen = 0, 2**63

        def change() -> None:
            nonlocal changes
            changes += 1
            index.enter([A, CHILD_IDS[changes % 9]], [changes, changes])
            index.relocate([A], [changes], [changes + 1])
            index.release([A, *CHILD_IDS[changes % 9 :: 5], C])
            index.add_reference(B)
            if changes % 2 == 0 and changes <= last_frozen:
                newer = {b"%d" % (changes % 400): b"%d" % changes}
                index.freeze(newer)
                frozen.append(({**frozen[-1][0], **newer}, entries_of(index)))

        change()
        for steps in (2**63, 8, 32, 128) if fails else ():
            last_frozen = changes + steps
            index.freeze({})
            frozen.append((frozen[-1][0], entries_of(index)))
            with file_size_limit(0), contextlib.suppress(OSError):
                LineInterleaver(change).run(index.commit)
            index.commit()
            assert place.copy().saved() == frozen[-1], "what was frozen while a commit failed is not written by the next one"
        if not fails:
            LineInterleaver(change).run(index.commit)
        assert place.copy().saved() in frozen, "what a commit has written are not the entries and the state of one freeze"
        index.freeze({})
        last = {**frozen[-1][0]}, entries_of(index)
        index.commit()
        assert place.copy().saved() == last, "the next commit does not write what was changed during the one before"
        index.freeze({ROUND: b"again"})
        index.freeze({ROUND: None})
        index.commit()
        assert ROUND not in place.copy().saved()[0], "a key that was set and then removed before one commit is there again"
        index.close(None)

    def test_other_calls_go_on_while_a_commit_runs(self, place: IndexDirectory) -> None:
        """A failure means that reads and writes of a store wait until the disk has finished: a commit holds a lock from its
        begin to its end, and ``get``, ``enter`` or ``freeze`` want it. Hold one for what is set aside, not for the writing."""
        place.subject.needs(Capability.PERSISTENT)
        calls: dict[str, tuple[object, ...]] = {"get": (A,), "enter": ([D], [4]), "freeze": ({},)}
        for name, arguments in calls.items():
            index = opened(place)
            index.freeze(STATE)
            interleaver = LineInterleaver(partial(getattr(index, name), *arguments), 0.1, 0.005)
            interleaver.run(index.commit)
            where = f"{name} waits for a commit at {interleaver.longest} of its {interleaver.steps} steps"
            is_short = interleaver.steps < 20 and not interleaver.waits  # a few lines under a lock, and one call without it
            assert is_short or interleaver.longest * 2 < interleaver.steps, where
            index.close(None)

    def test_close_releases_everything(self, place: IndexDirectory) -> None:
        """A failure means that each store that is closed leaves a file open, or a thread running."""
        for state in (STATE, None, STATE, None):  # the first may load a library, which keeps what it likes
            were_open, were_running = open_files(), threading.active_count()
            index = opened(place)
            index.freeze({})
            index.commit()
            index.close(state)
            left = open_files() - were_open, threading.active_count() - were_running
            reader = place.make(read_only=True)
            reader.load()
            reader.close(None)
            left_of_reader = open_files() - were_open, threading.active_count() - were_running
        assert max(left) <= 0, f"close leaves {left[0]} files open, and {left[1]} threads running"
        assert max(left_of_reader) <= 0, "read-only, close leaves files open, or threads running"

    def test_a_commit_that_has_failed_is_repeated(self, place: IndexDirectory) -> None:
        """A failure means that a commit takes what has failed for done: the next one leaves it out, such as the deletion of the
        snapshot, which is then taken for the truth after a crash."""
        written = ({**STATE, ROUND: b"1"}, {**ENTRIES, D: (4, 1)})
        for number in range(7):
            opened(place).close(STATE)
            index = place.make(files := FailingFiles())
            index.load()
            index.enter([D], [4])
            index.freeze({ROUND: b"1"})
            files.fail = number
            with contextlib.suppress(OSError):
                index.commit()
            files.fail = None
            index.commit()
            found = place.copy().saved()
            assert found == (written if place.subject.has(Capability.PERSISTENT) else NOTHING), f"after {files.failed} failed"
            index.close(None)

    def test_what_freeze_sets_aside(self, place: IndexDirectory) -> None:
        """A failure means that ``freeze`` keeps the mapping that it is given instead of a copy, or that ``clear`` leaves to the
        next commit what is set aside."""
        place.subject.needs(Capability.PERSISTENT)
        index, given = opened(place), dict(STATE)
        index.freeze(given)
        given[b"key"] = b"later"
        index.commit()
        assert place.copy().saved() == (STATE, ENTRIES), "a change of the mapping after freeze is written"
        index.freeze({b"key": b"later"})
        index.clear()
        index.commit()
        assert place.copy().saved() in (NOTHING, (STATE, ENTRIES)), "a commit after clear writes what was set aside before it"
        index.close(None)

    def test_a_crash_between_two_lines_of_a_commit(self, place: IndexDirectory) -> None:
        """A failure means that a process that is killed in the midst of a commit leaves a part of it: entries and state are
        written one after the other. Use one transaction."""
        place.subject.needs(Capability.PERSISTENT)
        index = opened(place)
        index.freeze(STATE)
        seen: list[Listing] = []

        def look() -> None:
            if seen[-1:] != [listing(place.directory)]:
                seen.append(listing(place.directory))
                assert place.copy().saved() in (NOTHING, (STATE, ENTRIES)), "there is a part of a commit on disk"
                time.sleep(0.02)  # for another time of the next change

        LineInterleaver(look, 30).run(index.commit)
        index.close(None)


def enter_all(index: Index, entries: Entries) -> None:
    index.enter(list(entries), [at for at, _ in entries.values()], [count for _, count in entries.values()])


def opened(place: IndexDirectory) -> Index:
    """A loaded index after its first commit, as in an open store, with ``ENTRIES``."""
    index: Index = place.make()
    index.load()
    index.freeze({})
    index.commit()
    enter_all(index, ENTRIES)
    return index


def relocate_all(index: Index | Dictionary, ids: list[bytes]) -> None:
    old = [index.get(msg_id) or 0 for msg_id in ids]
    assert index.relocate(ids, old, [at + 1 for at in old]) == len(ids)


def killed_in(work: Callable[[], object]) -> bool:
    """Run ``work`` in a process of its own. Return True if a signal has ended it, or it raised OSError instead."""

    def run() -> None:
        try:
            work()
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)

    code, raised = in_a_process(run)
    assert code in (0, -signal.SIGXFSZ, -signal.SIGKILL), f"it fails in a process of its own: {raised}"
    return code != 0
