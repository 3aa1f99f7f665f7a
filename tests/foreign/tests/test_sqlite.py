"""Tests of the index ``sqlite`` against a dictionary: single calls, batches, commits, crashes, restarts, threads, damage."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from msgstore.contract import IndexContext
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.locations import LIMIT, pack_location
from msgstore.testing.faults import UnsyncedFiles

pytest.importorskip("foreign_backends", reason="pip install -e ./tests/foreign")

from foreign_backends.database import Database  # type: ignore[import-not-found]
from foreign_backends.plugin import SqliteOptions  # type: ignore[import-not-found]
from foreign_backends.sqlite import FILE, SqliteIndex  # type: ignore[import-not-found]

IDS = [bytes([n]) * 16 for n in range(8)]
some = st.lists(st.sampled_from(IDS), max_size=6)
locations = st.builds(pack_location, st.integers(0, 2**64 - 1), st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1))
states = st.dictionaries(st.sampled_from([b"a", b"b", b"c" * 511]), st.binary(max_size=4))
edits = st.dictionaries(st.sampled_from([b"a", b"b", b"c" * 511]), st.none() | st.binary(max_size=4))


def make(directory: Path, **keys: object) -> SqliteIndex:
    return SqliteIndex(IndexContext(SqliteOptions(), directory, UnsyncedFiles(), **keys))


def opened(directory: Path, **keys: object) -> SqliteIndex:
    index = make(directory, **keys)
    index.load()
    return index


def content(index: SqliteIndex) -> dict[bytes, tuple[int, int]]:
    return {msg_id: (at, count) for msg_id, at, count in index.items()}


class Model(RuleBasedStateMachine):
    """Model of the index: ``entries`` now, ``frozen`` at the last freeze, and ``saved`` at the last commit."""

    def __init__(self):
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        self.entries, self.frozen, self.saved = {}, None, {}
        self.state, self.saved_state = {}, None
        self.due = {}

    @initialize()
    def start(self):
        self.index = make(self.directory)
        assert self.index.load() is None

    @rule(ids=some, data=st.data())
    def enter(self, ids, data):
        ids = list(dict.fromkeys(ids))
        places = [data.draw(locations) for _ in ids]
        counts = data.draw(st.none() | st.lists(st.integers(1, MAX_REFERENCES), min_size=len(ids), max_size=len(ids)))
        self.index.enter(ids, places, counts)
        self.entries.update(zip(ids, zip(places, counts or [1] * len(ids), strict=True), strict=True))

    @rule(msg_id=st.sampled_from(IDS))
    def add_reference(self, msg_id):
        at, count = self.entries.get(msg_id, (0, 0))
        if count < MAX_REFERENCES:
            assert self.index.add_reference(msg_id) == (count > 0)
            if count:
                self.entries[msg_id] = at, count + 1

    @rule(ids=some)
    def release(self, ids):
        freed, missing = [], []
        for msg_id in ids:
            at, count = self.entries.get(msg_id, (0, 0))
            if count == 0:
                missing.append(msg_id)
            elif count == 1:
                freed.append((msg_id, at))
                del self.entries[msg_id]
            else:
                self.entries[msg_id] = at, count - 1
        released = self.index.release(ids)
        assert (released.freed, released.missing) == (freed, missing)

    @rule(ids=some, data=st.data())
    def relocate(self, ids, data):
        ids = list(dict.fromkeys(ids))
        old = [self.entries.get(i, (1, 0))[0] if data.draw(st.booleans()) else data.draw(locations) for i in ids]
        new = [data.draw(locations) for _ in ids]
        hits = [(i, n) for i, o, n in zip(ids, old, new, strict=True) if i in self.entries and self.entries[i][0] == o]
        assert self.index.relocate(ids, old, new) == len(hits)
        self.entries.update((i, (n, self.entries[i][1])) for i, n in hits)

    @rule(edit=edits)
    def freeze(self, edit):
        self.index.freeze(edit)
        self.frozen = dict(self.entries)
        self.due |= edit

    @rule(fails=st.booleans())
    def commit(self, fails):
        if fails:
            with mock.patch.object(Database, "write", side_effect=OSError(errno.ENOSPC, "full")):
                try:
                    self.index.commit()
                except OSError:
                    return
        self.index.commit()
        if self.frozen is not None:
            self.saved, self.frozen = self.frozen, None
        self.saved_state = dict(self.saved_state or {})
        for key, value in self.due.items():
            if value is None:
                self.saved_state.pop(key, None)
            else:
                self.saved_state[key] = value
        self.due = {}

    @rule(state=st.none() | states)
    def close_and_load(self, state):
        self.index.close(state)
        self.index.close(state)
        if state is not None:
            self.saved, self.saved_state = dict(self.entries), dict(state)
        self.reload()

    @rule()
    def kill_and_load(self):
        """Load a copy of the current files, the log included: the state that a killed process leaves."""
        copy = self.directory.with_name(self.directory.name + "-killed")
        shutil.copytree(self.directory, copy)
        for path in copy.glob("*-shm"):
            path.unlink()
        self.index.close(None)
        shutil.rmtree(self.directory)
        shutil.copytree(copy, self.directory)
        shutil.rmtree(copy)
        before = {path.name: path.read_bytes() for path in self.directory.iterdir()}
        reader = make(self.directory, read_only=True)
        assert reader.load() == self.saved_state
        assert content(reader) == self.saved
        reader.close(None)
        assert {path.name: path.read_bytes() for path in self.directory.iterdir()} == before
        self.reload()

    def reload(self):
        self.index = make(self.directory)
        assert self.index.load() == self.saved_state
        self.entries, self.frozen, self.due = dict(self.saved), None, {}

    @invariant()
    def index_equals_model(self):
        if hasattr(self, "index"):
            assert content(self.index) == self.entries
            assert len(self.index) == len(self.entries)
            for msg_id in IDS:
                at, count = self.entries.get(msg_id, (None, 0))
                assert self.index.get(msg_id) == at
                assert self.index.references(msg_id) == count

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close(None)
        self.scratch.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=25)


def test_clear_then_commit_is_durable(tmp_path):
    index = opened(tmp_path)
    index.enter(IDS, [1] * 8)
    index.freeze({b"a": b"1"})
    index.commit()
    index.enter(IDS[:1], [2])
    index.freeze({b"b": b"1"})
    index.clear()
    assert (len(index), content(index), index.get(IDS[0])) == (0, {}, None)
    index.freeze({b"c": b"1"})
    index.commit()
    index.close(None)
    index = make(tmp_path)
    assert (index.load(), content(index)) == ({b"c": b"1"}, {})
    index.close(None)


def test_items_returns_entries_at_call(tmp_path):
    index = opened(tmp_path)
    index.enter(IDS[:4], [1] * 4)
    index.freeze({})
    index.commit()
    items = index.items()
    index.release(IDS[:2])
    index.freeze({})
    index.commit()
    assert sorted(items) == [(msg_id, 1, 1) for msg_id in IDS[:4]]
    assert list(items) == []
    index.close(None)


@pytest.mark.parametrize("damage", [b"this is no database" * 300, b"SQLite format 3\0" + b"x" * 5000])
def test_load_damaged_file_sets_it_aside(damage, tmp_path):
    (tmp_path / FILE).write_bytes(damage)
    reader = make(tmp_path, read_only=True)
    assert reader.load() is None
    reader.close(None)
    assert (tmp_path / FILE).read_bytes() == damage
    index = make(tmp_path)
    assert index.load() is None
    index.enter(IDS, [1] * 8)
    index.close({b"a": b"1"})
    assert (tmp_path / f"{FILE}.damaged-1").read_bytes() == damage
    index = make(tmp_path)
    assert (index.load(), len(index)) == ({b"a": b"1"}, 8)
    index.close(None)


def test_load_database_of_another_program_sets_it_aside(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("CREATE TABLE entries (mine)")
        other.execute("PRAGMA user_version = 7")
    other.close()
    index = make(tmp_path)
    assert index.load() is None
    index.close(None)
    assert (tmp_path / f"{FILE}.damaged-1").exists()


def test_load_symbolic_link_raises_os_error(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        make(tmp_path).load()
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_load_sqlite_error_raises_os_error_with_path(tmp_path):
    with pytest.raises(OSError, match=FILE):
        make(tmp_path / "absent").load()


def test_freeze_invalid_key_size_raises_value_error(tmp_path):
    index = opened(tmp_path)
    for key in (b"", b"k" * 512):
        with pytest.raises(ValueError, match="511"):
            index.freeze({key: b""})
    index.close(None)


def test_get_during_commits_returns_current_location(tmp_path):
    """A location is a version that only grows. No reader may get an older version than the last completed change."""
    index = opened(tmp_path)
    lock, stop, wrong = threading.Lock(), threading.Event(), []
    entries = dict.fromkeys(IDS, 1)
    index.enter(IDS, [1] * 8)
    frozen = [dict(entries)]
    counts = {"reads": 0, "commits": 0}

    def watched(work):
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    def write():
        rng = random.Random(1)
        for version in itertools.count(2):
            if version >= 6000 and (min(counts.values()) > 10 or wrong):
                return  # only after the other threads have had enough turns
            msg_id = rng.choice(IDS)
            with lock:
                if rng.randrange(2):
                    index.enter([msg_id], [version])
                else:
                    assert index.relocate([msg_id], [entries[msg_id]], [version]) == 1
                entries[msg_id] = version
                if not version % 50:
                    assert len(index) == len(IDS)
                    assert {i: at for i, (at, _) in content(index).items()} == entries

    def read():
        rng = random.Random(2)
        while not stop.is_set():
            msg_id = rng.choice(IDS)
            minimum = entries[msg_id]
            found = index.get(msg_id)
            counts["reads"] += 1
            assert found is not None
            assert found >= minimum

    def commit():
        while not stop.is_set():
            with lock:
                index.freeze({})
                frozen[0] = dict(entries)
            index.commit()
            counts["commits"] += 1

    writer = threading.Thread(target=watched, args=(write,))
    others = [threading.Thread(target=watched, args=(work,)) for work in (read, read, commit)]
    for thread in (writer, *others):
        thread.start()
    writer.join()
    stop.set()
    for thread in others:
        thread.join()
    assert wrong == []
    assert min(counts.values()) > 10
    index.close(None)
    index = opened(tmp_path)
    assert {i: at for i, (at, _) in content(index).items()} == frozen[0]
    index.close(None)
