"""The contract of a persistent index, against a plain dictionary, with commits, crashes and restarts in between."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from msgstore.contract import Capability, Index, IndexContext
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.index.model import EntriesAgainstDictionary, batches, counted
from msgstore.testing.index.place import IDS
from msgstore_lmdb_index import plugin
from msgstore_lmdb_index.environment import Environment

KEYS = st.sampled_from([b"a", b"b", b"c"])
STATES = st.dictionaries(KEYS, st.binary(max_size=4))


def make(directory: Path, *, read_only: bool = False) -> Index:
    (descriptor,) = plugin.msgstore_indexes()
    context = IndexContext(descriptor.options(), directory, UnsyncedFiles(), read_only=read_only)
    index: Index = descriptor.load_factory()(context)
    return index


class Model(EntriesAgainstDictionary):
    """``entries`` is what the index must hold, id -> (location, references); ``frozen`` what it held at the last freeze, and
    ``saved`` what the last commit made durable of it."""

    in_order = True

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        self.entries: dict[bytes, tuple[int, int]] = {}
        self.state: dict[bytes, bytes] | None = None
        self.saved = self.frozen = self.entries.copy()
        self.frozen_state = self.state
        self.index = make(self.directory)
        assert self.index.load() is None

    def teardown(self) -> None:
        self.index.close(None)
        self.scratch.cleanup()

    @initialize(batch=counted)
    def begin(self, batch: dict[bytes, tuple[int, int]]) -> None:
        self.enter_with_references(batch)
        self.freeze({b"begun": b""})
        self.commit()

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.entries.clear()
        self.cleared = True
        self.frozen, self.frozen_state = self.saved.copy(), self.state

    cleared = False

    @rule(state=st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=4))))
    def freeze(self, state: dict[bytes, bytes | None]) -> None:
        self.index.freeze(state)
        kept = {} if self.cleared or self.frozen_state is None else self.frozen_state
        if state or self.cleared or self.entries != self.frozen:
            self.frozen_state = {key: value for key, value in {**kept, **state}.items() if value is not None}
        self.frozen, self.cleared = self.entries.copy(), False

    @rule()
    def commit(self) -> None:
        self.index.commit()
        self.saved = self.frozen.copy()
        self.state = {} if self.frozen_state is None else self.frozen_state.copy()
        self.frozen_state = self.state.copy()

    @rule(meanwhile=st.one_of(st.none(), batches), operation=st.sampled_from(["begin", "write"]))
    def a_commit_fails(self, meanwhile: dict[bytes, int] | None, operation: str) -> None:
        """In the middle of it the writers go on, and freeze."""

        def fail(*_: object, **__: object) -> NoReturn:
            if meanwhile is not None:
                self.enter(meanwhile)
                self.release(list(meanwhile)[:1])
                self.freeze({b"a": b"late"})
            raise OSError(errno.ENOSPC, operation)

        if self.cleared or (self.frozen_state == self.state and self.frozen == self.saved):
            return  # there may be nothing to commit
        with mock.patch.object(Environment, "write", fail), pytest.raises(OSError, match=operation):
            self.index.commit()

    @rule(meanwhile=batches, freeze=st.booleans())
    def a_commit_while_others_go_on(self, meanwhile: dict[bytes, int], freeze: bool) -> None:
        """What they do, and freeze, is not part of it, wherever in the commit it happens."""
        frozen, frozen_state = self.frozen.copy(), self.frozen_state

        def go_on(point: Callable[..., None]) -> Callable[..., None]:
            def call(environment: Environment, *arguments: Any, **options: Any) -> None:
                self.enter(meanwhile)
                self.add_reference(IDS[0])
                self.agrees()
                self.length()
                if freeze:
                    self.freeze({b"b": b"meanwhile"})
                point(environment, *arguments, **options)
                self.release(list(meanwhile)[:2])
                self.agrees()

            return call

        with mock.patch.object(Environment, "write", go_on(Environment.write)):
            self.index.commit()
        self.saved = frozen
        self.state = {} if frozen_state is None else frozen_state.copy()
        if self.frozen_state is None:
            self.frozen_state = {}

    @rule(state=STATES)
    def restart(self, state: dict[bytes, bytes]) -> None:
        self.index.close(state)
        self.index.close(None)
        self.state, self.saved = state, self.entries.copy()
        self.reopen()

    @rule()
    def crash(self) -> None:
        self.index.close(None)
        self.entries = self.saved.copy()
        self.reopen()

    def reopen(self) -> None:
        self.index = make(self.directory)
        self.cleared = False
        self.frozen, self.frozen_state = self.saved.copy(), self.state
        assert self.index.load() == self.state

    @rule(more=batches)
    def items_are_as_of_the_call(self, more: dict[bytes, int]) -> None:
        items = self.index.items()
        expected = sorted((msg_id, at, count) for msg_id, (at, count) in self.entries.items())
        self.enter(more)
        self.release(list(more)[::2])
        self.freeze({})
        self.commit()
        self.crash()
        assert sorted(items) == expected


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=30)


def listing(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in [directory, *directory.rglob("*")])


def test_the_descriptor() -> None:
    (descriptor,) = plugin.msgstore_indexes()
    assert descriptor.name == "lmdb"
    assert descriptor.capabilities == {Capability.PERSISTENT, Capability.LIVE_READS}


def test_read_only_writes_nothing(tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.load()
    writer.enter([b"a" * 16, b"b" * 16], [1, 2])
    writer.close({b"key": b"value"})
    before = listing(tmp_path)

    reader = make(tmp_path, read_only=True)
    assert reader.load() == {b"key": b"value"}
    assert len(reader.release([b"a" * 16]).freed) == 1
    reader.enter([b"c" * 16], [3])
    reader.freeze({b"key": b"other"})
    reader.commit()
    assert sorted(reader.items()) == [(b"b" * 16, 2, 1), (b"c" * 16, 3, 1)]
    reader.clear()
    assert (len(reader), reader.get(b"b" * 16)) == (0, None)
    reader.freeze({})
    reader.commit()
    reader.close({b"key": b"third"})
    assert listing(tmp_path) == before

    again = make(tmp_path, read_only=True)
    assert again.load() == {b"key": b"value"}
    assert len(again) == 2
    again.close(None)


@pytest.mark.parametrize("found", ["nothing", "an empty directory", "an empty file", "an environment without content"])
def test_read_only_without_an_environment(tmp_path: Path, found: str) -> None:
    environment = tmp_path / "msgstore-lmdb"
    if found != "nothing":
        environment.mkdir()
    if found == "an empty file":
        (environment / "data.mdb").touch()
    if found == "an environment without content":
        lmdb = pytest.importorskip("lmdb")
        lmdb.open(str(environment)).close()
    before = listing(tmp_path)
    index = make(tmp_path, read_only=True)
    assert index.load() is None
    index.enter([bytes(16)], [7])
    index.freeze({b"key": b"value"})
    index.commit()
    assert (index.get(bytes(16)), len(index)) == (7, 1)
    index.close({})
    assert listing(tmp_path) == before


def test_clear_reaches_disk_with_the_next_commit(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.load()
    index.enter([bytes(16)], [7])
    index.freeze({b"key": b"value"})
    index.commit()
    index.clear()
    index.close(None)

    index = make(tmp_path)
    assert index.load() == {b"key": b"value"}
    assert index.get(bytes(16)) == 7
    index.clear()
    index.freeze({})
    index.commit()
    index.close(None)

    index = make(tmp_path)
    assert index.load() == {}
    assert len(index) == 0
    index.close(None)


def test_the_length_of_what_was_removed_and_entered_again(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.load()
    for _ in range(2):  # the second time they are stored
        index.enter([b"a" * 16, b"b" * 16], [1, 2])
        assert len(index) == 2
        index.release([b"a" * 16])
        assert len(index) == 1
        index.enter([b"a" * 16], [3])
        assert len(index) == 2
        index.freeze({})
        index.commit()
    assert len(index) == 2
    index.close(None)


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    index = make(tmp_path)
    with pytest.raises(ValueError):
        index.enter([bytes(16)], [1, 2])
    with pytest.raises(ValueError):
        index.enter([bytes(16)], [1], [1, 2])
    assert len(index) == 0


def test_a_key_that_lmdb_cannot_store_is_refused(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.load()
    for key in (b"", bytes(512)):
        with pytest.raises(ValueError):
            index.freeze({key: b"value"})
    index.freeze({bytes(511): b"value"})
    index.commit()
    index.close(None)


def test_release_that_cannot_read_releases_nothing(tmp_path: Path) -> None:
    """The error tells the store that no reference was taken."""
    damaged: list[bytes] = []
    read = Environment.read

    def reading(self: Environment, key: bytes) -> bytes:
        if key in damaged:
            raise OSError(errno.EIO, "cannot be read")
        return read(self, key)

    with mock.patch.object(Environment, "read", reading):
        index = make(tmp_path)
        index.load()
        index.enter(IDS[:3], [1, 2, 3], [2, 1, 1])
        index.freeze({})
        index.commit()
        damaged.append(IDS[2])
        with pytest.raises(OSError, match="cannot be read"):
            index.release([IDS[0], IDS[0], IDS[0], IDS[1], IDS[2]])
        damaged.clear()
        assert [index.get(msg_id) for msg_id in IDS[:3]] == [1, 2, 3]
        assert [index.references(msg_id) for msg_id in IDS[:3]] == [2, 1, 1], "a release that failed took references"
        index.close(None)
