"""What happens around LMDB: crashes, damage, full disks, maps that grow while others read."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from msgstore.contract import IndexContext, Size, StoreError
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles
from msgstore_lmdb_index.errors import DamagedError
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions

MIB = 2**20


def make(directory: Path, *, map_size: int = MIB, read_only: bool = False) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(map_size=Size(map_size)), directory, UnsyncedFiles(), read_only=read_only))


def opened(directory: Path, **options: bool) -> LmdbIndex:
    index = make(directory, **options)
    index.load()
    return index


def ids(begin: int, end: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(begin, end)]


def fill(directory: Path, count: int = 3000) -> None:
    index = opened(directory)
    index.enter(ids(0, count), range(1, count + 1))
    index.close({b"key": b"value"})


def test_map_grows_while_others_read(tmp_path: Path) -> None:
    index = opened(tmp_path)
    known = ids(0, 50)
    index.enter(known, [pack_location(1, number, 30) for number in range(50)])
    index.freeze({})
    index.commit()
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                for number, msg_id in enumerate(known):
                    if (found := index.get(msg_id)) != pack_location(1, number, 30):
                        wrong.append((number, found))
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    items = index.items()
    try:
        for begin in range(50, 60_050, 10_000):
            index.enter(ids(begin, begin + 10_000), range(10_000))
            index.freeze({b"tail": b"%d" % begin})
            index.commit()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert sorted(msg_id for msg_id, _, _ in items) == sorted(known)
    assert len(index) == 60_050
    assert (tmp_path / DIRECTORY / "data.mdb").stat().st_size >= 4 * MIB
    index.close(None)

    for map_size in (MIB, 64 * MIB):  # a smaller one than the file needs, and a larger one
        index = make(tmp_path, map_size=map_size)
        assert index.load() == {b"tail": b"50050"}
        assert (len(index), index.get(known[49])) == (60_050, pack_location(1, 49, 30))
        index.enter(ids(50, 60_050), range(60_000))
        index.freeze({})
        index.commit()
        index.close(None)


def test_commit_beside_computing_thread_is_quick(tmp_path: Path) -> None:
    index = opened(tmp_path)
    usual = sys.getswitchinterval()
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        index.enter(ids(0, 2000), range(2000))
        begin = time.process_time()  # the other thread's, too: what this one waits for that, it computes
        index.freeze({})
        index.commit()
        assert time.process_time() - begin < 1.5  # 2 ms an entry and more, if every LMDB call waited for its turn
        assert sys.getswitchinterval() == usual
    finally:
        stop.set()
        thread.join()
    index.close(None)


def overwrite(content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / "data.mdb").write_bytes(content)


def cut(size: int) -> Callable[[Path], object]:
    return lambda path: os.truncate(path / "data.mdb", size)


def replace_data_by_a_directory(path: Path) -> None:
    (path / "data.mdb").unlink()
    (path / "data.mdb").mkdir()


def replace_all_by_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a directory")


def change_version(path: Path) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    for page in (0, 4096):
        data[page + 20] ^= 0x7F
    (path / "data.mdb").write_bytes(data)


def change_layout(path: Path) -> None:
    data = (path / "data.mdb").read_bytes()
    assert b"msgstore-lmdb1" in data
    (path / "data.mdb").write_bytes(data.replace(b"msgstore-lmdb1", b"msgstore-lmdb9"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "random bytes": overwrite(random.Random(0).randbytes(100_000)),
    "zeros": overwrite(bytes(100_000)),
    "short": overwrite(b"LMDB"),
    "version": change_version,
    "layout": change_layout,
    "directory": replace_data_by_a_directory,
    "file": replace_all_by_a_file,
    **{f"cut to {size}": cut(size) for size in (100, 4095, 4096, 5000, 8191, 8192, 8193, 12_288, 100_000)},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_set_aside(tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path)
    path = tmp_path / DIRECTORY
    damage(path)
    reader = make(tmp_path, read_only=True)
    assert reader.load() is None
    assert len(reader) == 0
    reader.close(None)
    assert [found.name for found in tmp_path.iterdir()] == [DIRECTORY]

    caplog.clear()
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        index = make(tmp_path)
        assert index.load() is None
    assert (len(index), index.get(ids(0, 1)[0])) == (0, None)
    assert f"{DIRECTORY}.damaged-1" in caplog.text
    index.enter(ids(0, 3000), range(3000))
    index.close({b"key": b"new"})

    damage(path) if damage is not change_layout else overwrite(b"LMDB")(path)
    opened(tmp_path).close(None)
    assert sorted(found.name for found in tmp_path.iterdir()) == [DIRECTORY, f"{DIRECTORY}.damaged-1", f"{DIRECTORY}.damaged-2"]


def test_damage_met_later_is_set_aside_by_close(tmp_path: Path) -> None:
    fill(tmp_path)
    data = tmp_path / DIRECTORY / "data.mdb"
    pages = bytearray(data.read_bytes())
    for page in range(2 * 4096, len(pages), 4096):
        if b"value" not in pages[page : page + 4096] and any(msg_id in pages[page : page + 4096] for msg_id in ids(0, 100)):
            pages[page + 10 : page + 12] = bytes(2)  # the flags that say what kind of page it is
    data.write_bytes(pages)

    reader = make(tmp_path, read_only=True)
    assert reader.load() == {b"key": b"value"}
    with pytest.raises(DamagedError):
        reader.get(ids(0, 1)[0])
    reader.close(None)

    index = make(tmp_path)
    assert index.load() == {b"key": b"value"}
    for _ in range(2):
        with pytest.raises(OSError):
            index.get(ids(0, 1)[0])
    index.close({b"key": b"later"})
    assert [found.name for found in tmp_path.iterdir()] == [f"{DIRECTORY}.damaged-1"]
    index = make(tmp_path)
    assert index.load() is None
    index.close(None)


def test_file_cut_behind_last_page_is_read(tmp_path: Path) -> None:
    fill(tmp_path)
    data = tmp_path / DIRECTORY / "data.mdb"
    assert data.stat().st_size == MIB  # the whole map: LMDB alone may end its file before its last page
    used = len(data.read_bytes().rstrip(b"\0"))
    os.truncate(data, -(-used // 65536) * 65536)
    index = make(tmp_path)
    assert index.load() == {b"key": b"value"}
    assert len(list(index.items())) == 3000
    index.close(None)


def test_environment_in_use_is_not_set_aside(tmp_path: Path) -> None:
    index = opened(tmp_path)
    with pytest.raises(StoreError, match="is already open in this process"):
        make(tmp_path).load()
    index.enter(ids(0, 10), range(10))
    index.freeze({})
    index.commit()
    assert [found.name for found in tmp_path.iterdir()] == [DIRECTORY]
    index.close(None)


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_commit_that_found_no_room_is_retried(tmp_path: Path) -> None:
    script = f"""
import errno, resource, runpy, signal
from pathlib import Path
globals().update(runpy.run_path({__file__!r}))
directory = Path({str(tmp_path)!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
index = opened(directory)
index.enter(ids(0, 10), range(10), [3] * 10)
index.freeze({{b"tail": b"10"}})
index.commit()
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
for entries in (1000, 30_000):  # within the map, and where it has to grow
    index.enter(ids(10, entries), range(10, entries))
    index.release(ids(0, 1))
    try:
        index.freeze({{b"tail": b"%d" % entries}})
        index.commit()
    except OSError as error:
        print(type(error).__name__, error.errno in (errno.EFBIG, errno.EIO))  # LMDB makes EIO of a short write
    print(len(index), index.references(ids(0, 1)[0]), index.get(ids(999, 1000)[0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
index.freeze({{b"tail": b"30000"}})
index.commit()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout.splitlines() == ["OSError True", "1000 2 999", "OSError True", "30000 1 999"]
    index = make(tmp_path)
    assert index.load() == {b"tail": b"30000"}
    assert len(index) == len(list(index.items())) == 30_000
    assert (index.references(ids(0, 1)[0]), index.references(ids(1, 2)[0])) == (1, 3)
    index.close(None)
