"""An index that is read while another process writes it, beside the tests of whole stores in tests/test_other_processes.py."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

from msgstore.contract import IndexContext, Size
from msgstore.files import Files
from msgstore_lmdb_index import live
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions


def make(directory: Path, *, live: bool = True) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(map_size=Size(2**20)), directory, Files(), read_only=live, live=live))


def ids(begin: int, end: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(begin, end)]


WRITER = """
import runpy, sys
globals().update(runpy.run_path({module!r}))
index = make(Path({directory!r}), live=False)
index.load()
index.release(ids(0, 5))
index.relocate(ids(9, 10), [9], [20])
index.enter(ids(10, 30_000), range(10, 30_000))  # the map grows twice
index.freeze({{b"key": b"value"}})
index.commit()
index.close(None)
"""


def test_map_grown_by_another_process_is_read(tmp_path: Path) -> None:
    """The conformance kit has the rest of what another process does."""
    closed(tmp_path)
    index = make(tmp_path)
    assert index.load() == {}
    assert [index.get(msg_id) for msg_id in ids(0, 11)] == [*range(10), None]
    subprocess.run([sys.executable, "-c", WRITER.format(module=__file__, directory=str(tmp_path))], check=True)
    assert index.get(ids(29_999, 30_000)[0]) == 29_999
    assert len(index) == 29_995
    assert [index.references(msg_id) for msg_id in ids(4, 6)] == [0, 1]
    assert sorted(index.items()) == sorted(zip(ids(5, 30_000), [5, 6, 7, 8, 20, *range(10, 30_000)], [1] * 29_995, strict=True))
    assert index.load() == {b"key": b"value"}
    index.close(None)
    index.close(None)
    assert index.get(ids(9, 10)[0]) is None


def closed(directory: Path) -> Path:
    writer = make(directory, live=False)
    writer.load()
    writer.enter(ids(0, 10), range(10))
    writer.close({})
    return directory / DIRECTORY


def test_another_file_under_its_name_is_opened(tmp_path: Path) -> None:
    path = closed(tmp_path)
    index = make(tmp_path)
    index.load()
    assert len(index) == 10
    path.rename(tmp_path / "aside")
    assert index.load() is None
    assert len(index) == 0
    closed(tmp_path)
    assert index.load() == {}
    assert len(index) == 10
    index.close(None)


def test_damage_is_no_index_and_stays(tmp_path: Path) -> None:
    data = closed(tmp_path) / "data.mdb"
    data.write_bytes(b"not LMDB's" * 1000)
    index = make(tmp_path)
    assert index.load() is None
    assert index.get(bytes(16)) is None
    index.close(None)
    assert data.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_links_are_refused(tmp_path: Path) -> None:
    path = closed(tmp_path)
    (path / "lock.mdb").rename(tmp_path / "lock")
    (path / "lock.mdb").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic link"):
        make(tmp_path).load()


def test_reader_that_cannot_be_registered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="must be registered there"):
        make(tmp_path).load()


def test_full_table_of_readers_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path)
    monkeypatch.setattr(live, "_PAUSE_SECONDS", 0)
    index = make(tmp_path)
    index.load()
    environment: Any = index._environment
    env, full = environment._env, [5]

    class Full:
        """As if others had all the slots, ``full[0]`` times."""

        def begin(self, *arguments: Any) -> Any:
            full[0] -= 1
            if full[0] >= 0:
                raise lmdb.ReadersFullError("full")
            return env.begin(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(env, name)

    environment._env = Full()
    assert index.get(ids(3, 4)[0]) == 3
    assert full[0] < 0
    full[0] = 10**9
    with pytest.raises(OSError, match="too many processes are reading"):
        index.get(ids(3, 4)[0])
    environment._env = env
    index.close(None)
