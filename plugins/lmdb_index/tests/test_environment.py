"""LMDB environments: damage, maps that grow while others read, an index that another process writes."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import pytest

from lmdb_support import MIB, commit, fill, ids, make, names, opened, stored
from msgstore.contract import StoreError
from msgstore.locations import pack_location
from msgstore_lmdb_index import live
from msgstore_lmdb_index.contents import DamagedError
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.index import DIRECTORY

KEY = {b"key": b"value"}


def test_map_grows_while_others_read(tmp_path: Path) -> None:
    index = opened(tmp_path)
    known = {msg_id: pack_location(1, number, 30) for number, msg_id in enumerate(ids(0, 50))}
    index.enter(list(known), known.values())
    commit(index)
    items, stop = index.items(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert {msg_id: index.get(msg_id) for msg_id in known} == known

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for begin in range(50, 60_050, 10_000):
                index.enter(ids(begin, begin + 10_000), range(10_000))
                commit(index, KEY)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    assert sorted(msg_id for msg_id, _, _ in items) == sorted(known)
    assert (tmp_path / DIRECTORY / "data.mdb").stat().st_size >= 4 * MIB
    index.close(None)
    last = ids(49, 50)[0]
    for map_size in (MIB, 64 * MIB):  # a smaller one than the file needs, and a larger one
        index = opened(tmp_path, KEY, map_size=map_size)
        assert (len(index), index.get(last)) == (60_050, known[last])
        index.close(None)


def test_commit_has_a_short_switch_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each call of LMDB next to a thread that computes would wait for 5 ms."""
    index, usual, seen = opened(tmp_path), sys.getswitchinterval(), []
    index.enter(ids(0, 1), [0])
    monkeypatch.setattr(Environment, "_write_state", lambda *_: seen.append(sys.getswitchinterval()))
    commit(index)
    assert (seen, sys.getswitchinterval()) == ([pytest.approx(1e-5)], usual)
    index.close(None)


# -- damage ---------------------------------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def changed(change: Callable[[bytes], bytes]) -> Damage:
    return lambda data: data.write_bytes(change(data.read_bytes()))


def wrong_version(data: bytes) -> bytes:
    pages = bytearray(data)
    for page in (0, 4096):
        pages[page + 20] ^= 0x7F
    return bytes(pages)


def cut(size: int) -> Damage:
    return lambda data: os.truncate(data, size)


DAMAGE: dict[str, Damage] = {
    "random bytes": changed(lambda _: random.Random(0).randbytes(100_000)),
    "zeros": changed(lambda _: bytes(100_000)),
    "short": changed(lambda _: b"LMDB"),
    "version": changed(wrong_version),
    "layout": changed(lambda data: data.replace(b"msgstore-lmdb1", b"msgstore-lmdb9")),
    "directory": lambda data: (data.unlink(), data.mkdir()),
    "file": lambda data: (shutil.rmtree(data.parent), data.parent.write_text("not a directory")),
    **{f"cut to {size}": cut(size) for size in (100, 4095, 4096, 5000, 8191, 8192, 8193, 12_288, 100_000)},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_set_aside(tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture) -> None:
    """But not by who only reads; and what is set aside later gets another name."""
    data = fill(tmp_path)
    damage(data)
    for context in ({"read_only": True}, {"read_only": True, "live": True}):
        reader = opened(tmp_path, **context)
        assert (len(reader), reader.get(bytes(16))) == (0, None)
        reader.close(None)
        assert names(tmp_path) == [DIRECTORY]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        index = opened(tmp_path)
    assert (len(index), index.get(ids(0, 1)[0])) == (0, None)
    assert f"{DIRECTORY}.damaged-1" in caplog.text
    index.close({b"key": b"new"})
    changed(lambda _: b"LMDB")(data)
    opened(tmp_path).close(None)
    assert names(tmp_path) == [DIRECTORY, f"{DIRECTORY}.damaged-1", f"{DIRECTORY}.damaged-2"]


def test_damage_met_later_is_set_aside_by_close(tmp_path: Path) -> None:
    data = fill(tmp_path)
    pages = bytearray(data.read_bytes())
    for page in range(2 * 4096, len(pages), 4096):
        if b"value" not in pages[page : page + 4096] and any(msg_id in pages[page : page + 4096] for msg_id in ids(0, 100)):
            pages[page + 10 : page + 12] = bytes(2)  # the flags that say what kind of page it is
    data.write_bytes(pages)
    for read_only in (True, False):
        index = opened(tmp_path, KEY, read_only=read_only)
        for _ in range(2):
            with pytest.raises(OSError if _ else DamagedError):
                index.get(ids(0, 1)[0])
        index.close({b"key": b"later"})
        assert names(tmp_path) == [DIRECTORY if read_only else f"{DIRECTORY}.damaged-1"]
    opened(tmp_path).close(None)


@pytest.mark.parametrize("kind", [0, 1, 4], ids=["none", "branch", "overflow"])
def test_page_of_wrong_kind_is_reported_when_all_is_read(tmp_path: Path, kind: int) -> None:
    """LMDB would end the process (SIGABRT) when it goes from the page before to this one."""
    data = fill(tmp_path)
    pages = bytearray(data.read_bytes())
    middle = sorted(ids(0, 3000))[1500]
    page = pages.index(middle) // 4096
    while pages[page * 4096 + 10] != 2 or bytes(pages[page * 4096 : page * 4096 + 8]) != page.to_bytes(8, "little"):
        page = pages.index(middle, (page + 1) * 4096) // 4096  # the id is in a branch, too
    pages[page * 4096 + 10 : page * 4096 + 12] = kind.to_bytes(2, "little")
    data.write_bytes(pages)
    for context in ({"read_only": True}, {}):
        index = opened(tmp_path, KEY, **context)
        with pytest.raises(DamagedError, match="database entries has pages of a wrong kind"):
            index.items()
        index.close(None)
    assert names(tmp_path) == [f"{DIRECTORY}.damaged-1"]


def test_file_cut_behind_last_page_is_read(tmp_path: Path) -> None:
    data = fill(tmp_path)
    assert data.stat().st_size == MIB  # the whole map: LMDB alone may end its file before its last page
    used = len(data.read_bytes().rstrip(b"\0"))
    os.truncate(data, -(-used // 65536) * 65536)
    index = opened(tmp_path, KEY)
    assert len(list(index.items())) == 3000
    index.close(None)


def test_environment_in_use_is_not_set_aside(tmp_path: Path) -> None:
    index = opened(tmp_path)
    with pytest.raises(StoreError, match="is already open in this process"):
        make(tmp_path).load()
    assert names(tmp_path) == [DIRECTORY]
    index.close(None)


# -- written by another process; the conformance kit has the rest, tests/test_other_processes.py whole stores -------------

LIVE = {"read_only": True, "live": True}
WRITER = """
import sys
sys.path.insert(0, {tests!r})
from lmdb_support import *
index = make(Path({directory!r}))
index.load()
index.enter(ids(10, 30_000), range(10, 30_000))  # the map grows twice
commit(index, {{b"key": b"value"}})
index.close(None)
"""


def test_map_grown_by_another_process_is_read(tmp_path: Path) -> None:
    fill(tmp_path, 10, {})
    index = opened(tmp_path, {}, **LIVE)
    assert [index.get(msg_id) for msg_id in ids(0, 11)] == [*range(10), None]
    writer = WRITER.format(tests=str(Path(__file__).parent), directory=str(tmp_path))
    subprocess.run([sys.executable, "-c", writer], check=True)
    assert (index.get(ids(29_999, 30_000)[0]), len(index)) == (29_999, 30_000)
    assert sorted(index.items()) == sorted(zip(ids(0, 30_000), range(30_000), [1] * 30_000, strict=True))
    assert index.load() == KEY
    index.close(None)
    index.close(None)
    assert index.get(ids(9, 10)[0]) is None


def test_another_file_under_its_name_is_opened(tmp_path: Path) -> None:
    path = fill(tmp_path, 10, {}).parent
    index = opened(tmp_path, {}, **LIVE)
    assert len(index) == 10
    path.rename(tmp_path / "aside")
    assert index.load() is None
    assert len(index) == 0
    fill(tmp_path, 10, {})
    assert index.load() == {}
    assert len(index) == 10
    index.close(None)


def test_environment_without_databases_is_read_as_empty(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / DIRECTORY)).close()
    index = opened(tmp_path, **LIVE)
    assert (len(index), index.load(), list(index.items())) == (0, None, [])
    index.close(None)


@pytest.mark.parametrize("fails", [False, True])
def test_hard_links_are_not_written_to(tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the directory (``cp -al``) has the same files. A copy that fails leaves everything as it was."""
    (tmp_path / "a").mkdir()
    path, copy = fill(tmp_path / "a", 10).parent, tmp_path / "b"
    before = {name: (path / name).stat() for name in ("data.mdb", "lock.mdb")}
    shutil.copytree(path.parent, copy, copy_function=os.link)
    (path / "data.mdb").chmod(0o660)
    (copy / DIRECTORY / "data.mdb.tmp").write_bytes(b"of an opening that was killed")
    if fails:
        monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="No space"):
            make(copy).load()
        monkeypatch.undo()
        assert names(copy / DIRECTORY) == ["data.mdb"]
    index = opened(copy, KEY)
    index.release(ids(0, 3))
    index.close({})
    assert {name: (path / name).stat().st_ino for name in before} == {name: status.st_ino for name, status in before.items()}
    assert {(path / name).stat().st_nlink for name in before} == {1}
    assert stat.S_IMODE((copy / DIRECTORY / "data.mdb").stat().st_mode) == 0o660
    assert names(copy / DIRECTORY) == ["data.mdb", "lock.mdb"]
    assert (copy / DIRECTORY / "data.mdb").stat().st_blocks < 4 * before["data.mdb"].st_blocks, "it is not sparse any more"
    assert (len(stored(tmp_path / "a")[1]), len(stored(copy)[1])) == (10, 7)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
@pytest.mark.parametrize("context", [{}, LIVE], ids=["writer", "live"])
def test_links_are_refused(tmp_path: Path, context: dict[str, bool]) -> None:
    path = fill(tmp_path, 10).parent
    (path / "lock.mdb").rename(tmp_path / "lock")
    (path / "lock.mdb").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic link"):
        make(tmp_path, **context).load()


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_pipe_in_place_of_file_is_refused(tmp_path: Path, name: str) -> None:
    """LMDB would wait for its other end."""
    path = fill(tmp_path, 10).parent
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(OSError, match=f"{name}.* is a pipe, a socket or a device; remove it|is a pipe.*{name}"):
        make(tmp_path).load()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="LMDB creates the file sparse there")
@pytest.mark.parametrize("context", [{}, LIVE], ids=["writer", "live"])
def test_lock_file_without_room_is_refused(tmp_path: Path, context: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB maps it: a page of it without room on the disk would end the process."""
    lock = fill(tmp_path, 10, {}).with_name("lock.mdb")
    lock.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(OSError, match=r"No space left on device.*lock.mdb"):
            make(tmp_path, **context).load()
    assert lock.stat().st_size == 0
    index = opened(tmp_path, {}, **context)
    assert len(index) == 10
    status = lock.stat()
    assert status.st_blocks * 512 >= status.st_size == 128 + 64 * 1024, "not sparse"
    index.close(None)


def test_reader_that_cannot_be_registered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 10)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="must be registered there"):
        make(tmp_path, **LIVE).load()


def test_full_table_of_readers_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 10, {})
    monkeypatch.setattr(live, "_PAUSE_SECONDS", 0)
    index = opened(tmp_path, {}, **LIVE)
    environment: Any = index._environment
    env, full = environment._env, lmdb.ReadersFullError("full")
    environment._env = mock.Mock(wraps=env, begin=mock.Mock(side_effect=[full] * 5 + [env.begin(environment._entries)]))
    assert index.get(ids(3, 4)[0]) == 3
    environment._env.begin.side_effect = full
    with pytest.raises(OSError, match="too many processes are reading"):
        index.get(ids(3, 4)[0])
    environment._env = env
    index.close(None)
