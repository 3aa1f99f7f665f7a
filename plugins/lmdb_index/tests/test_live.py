"""An index that is read while another process writes it, beside the tests of whole stores in tests/test_other_processes.py."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
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
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Has another process carry out a line, and commit."""
    script = WRITER.format(module=__file__, directory=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def carry_out(line: str) -> None:
            process.stdin.write(f"{line}; index.freeze({{b'key': b'value'}}); index.commit()\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert process.stdout.readline() == "done\n"  # type: ignore[union-attr]

        yield carry_out
        process.stdin.close()


def test_what_another_process_commits_is_seen(tmp_path: Path, write: Callable[[str], None]) -> None:
    index = make(tmp_path)
    assert index.load() in (None, {})
    write("index.enter(ids(0, 10), range(1, 11), [2] * 10)")
    assert index.load() == {b"key": b"value"}
    assert [index.get(msg_id) for msg_id in ids(0, 11)] == [*range(1, 11), None]
    write("index.release(ids(0, 10)); index.release(ids(0, 5)); index.relocate(ids(9, 10), [10], [20])")
    assert len(index) == 5
    assert sorted(index.items()) == sorted(zip(ids(5, 10), [6, 7, 8, 9, 20], [1] * 5, strict=True))
    assert [index.references(msg_id) for msg_id in ids(4, 6)] == [0, 1]
    index.enter(ids(20, 21), [7])
    assert (len(index), index.get(ids(20, 21)[0])) == (6, 7)
    write("index.enter(ids(10, 30_000), range(10, 30_000))")  # the map grows twice
    assert index.get(ids(29_999, 30_000)[0]) == 29_999
    assert index.load() == {b"key": b"value"}  # drops what was only here
    assert (len(index), index.get(ids(20, 21)[0])) == (29_995, 20)
    index.freeze({b"key": b"other"})
    index.commit()
    index.close({b"key": b"other"})
    index.close(None)
    assert index.get(ids(9, 10)[0]) is None
    again = make(tmp_path)
    assert again.load() == {b"key": b"value"}
    again.close(None)


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    index = make(tmp_path)
    assert index.load() is None
    assert (len(index), list(index.items()), index.get(bytes(16)), index.references(bytes(16))) == (0, [], None, 0)
    assert list(tmp_path.iterdir()) == []
    writer = make(tmp_path, live=False)
    writer.load()
    writer.close({b"key": b"value"})
    assert index.load() == {b"key": b"value"}
    index.close(None)


def closed(directory: Path) -> Path:
    writer = make(directory, live=False)
    writer.load()
    writer.enter(ids(0, 10), range(10))
    writer.close({})
    return directory / DIRECTORY


def test_another_file_under_the_name_is_opened(tmp_path: Path) -> None:
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


def test_a_reader_that_cannot_be_noted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="must be registered there"):
        make(tmp_path).load()


def test_a_full_table_of_readers_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
