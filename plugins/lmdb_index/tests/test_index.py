"""The index against a plain dictionary, as the conformance kit tries it, with commits that fail or while others go on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lmdb_support import commit, make, opened
from msgstore.testing.faults import listing
from msgstore.testing.index_model import IDS, NOTHING, IndexAgainstDictionary, batches
from msgstore.testing.subjects import Subject
from msgstore_lmdb_index import plugin
from msgstore_lmdb_index.environment import Environment


class Model(IndexAgainstDictionary):
    def __init__(self) -> None:
        super().__init__(Subject.of(*plugin.msgstore_indexes()))

    def change(self) -> None:
        """Give a commit something to do."""
        self.enter({IDS[1]: 1})
        self.freeze({b"a": b"now"})

    @rule(meanwhile=st.none() | batches, is_written=st.booleans())
    def a_commit_fails(self, meanwhile: dict[bytes, int] | None, is_written: bool) -> None:
        """Before the transaction, where the writers go on, and freeze; or after it."""

        def fail(*_: object, **__: object) -> NoReturn:
            if meanwhile is not None and not is_written:
                self.enter(meanwhile)
                self.release(list(meanwhile)[:1])
                self.freeze({b"a": b"late"})
            raise OSError(errno.ENOSPC, "no room")

        self.change()
        due = self.due or NOTHING
        operation = "renew" if is_written else "write"
        with mock.patch.object(Environment, operation, fail), pytest.raises(OSError, match="no room"):
            self.index.commit()
        if is_written:
            self.durable = [due]
        assert len(self.index._layers) <= 2  # type: ignore[attr-defined]  # or look-ups would become slower
        self.check_durable()

    @rule(meanwhile=batches, freeze=st.booleans())
    def a_commit_while_others_go_on(self, meanwhile: dict[bytes, int], freeze: bool) -> None:
        """What they do, and freeze, is not part of it, wherever in the commit it happens."""
        write = Environment.write

        def go_on(environment: Environment, *arguments: Any, **options: Any) -> None:
            self.enter(meanwhile)
            self.add_reference(IDS[0])
            self.agrees()
            self.length()
            if freeze:
                self.freeze({b"key": b"meanwhile"})
            self.check_durable()
            write(environment, *arguments, **options)
            self.durable = [due]
            self.check_durable()
            self.release(list(meanwhile)[:2])
            self.agrees()

        self.change()
        due = self.due or NOTHING
        with mock.patch.object(Environment, "write", go_on):
            self.index.commit()
        self.due = self.due if freeze else None
        self.check_durable()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=30)


@pytest.mark.parametrize("found", ["nothing", "an empty directory", "an empty file", "an environment without content"])
def test_read_only_without_environment_writes_nothing(tmp_path: Path, found: str) -> None:
    environment = tmp_path / "msgstore-lmdb"
    if found != "nothing":
        environment.mkdir()
    if found == "an empty file":
        (environment / "data.mdb").touch()
    if found == "an environment without content":
        lmdb.open(str(environment)).close()
    before = listing(tmp_path)
    index = make(tmp_path, read_only=True)
    assert index.load() is None
    for columns in ([1, 2],), ([1], [1, 2]):
        with pytest.raises(ValueError):
            index.enter([bytes(16)], *columns)
    index.enter([bytes(16)], [7])
    index.freeze({b"key": b"value"})
    index.commit()
    assert (index.get(bytes(16)), len(index)) == (7, 1)
    index.close({})
    assert listing(tmp_path) == before


def test_clear_reaches_disk_with_the_next_commit(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.enter([bytes(16)], [7])
    commit(index, {b"key": b"value"})
    index.clear()
    index.close(None)
    index = opened(tmp_path, {b"key": b"value"})
    assert len(index) == 1
    index.clear()
    commit(index)
    index.close(None)
    index = opened(tmp_path, {})
    assert len(index) == 0
    index.close(None)


def test_release_that_cannot_read_releases_nothing(tmp_path: Path) -> None:
    """The error tells the store that no reference was taken."""
    read, damaged = Environment.read, set[bytes]()

    def reading(self: Environment, key: bytes) -> bytes:
        if key in damaged:
            raise OSError(errno.EIO, "cannot be read")
        return read(self, key)

    with mock.patch.object(Environment, "read", reading):
        index = opened(tmp_path)
        index.enter(IDS[:3], [1, 2, 3], [2, 1, 1])
        commit(index)
        damaged.add(IDS[2])
        with pytest.raises(OSError, match="cannot be read"):
            index.release([IDS[0], IDS[0], IDS[0], IDS[1], IDS[2]])
        damaged.clear()
        assert sorted(index.items()) == sorted(zip(IDS, [1, 2, 3], [2, 1, 1], strict=False)), "it took references"
        index.close(None)
