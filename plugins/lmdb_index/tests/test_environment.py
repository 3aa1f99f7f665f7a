"""What happens around LMDB: damage, full disks, maps that grow while others read."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from msgstore.contract import IndexContext, Size, StoreError
from msgstore.locations import pack_location
from msgstore.testing.faults import UnsyncedFiles
from msgstore_lmdb_index.errors import DamagedError
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions

MIB = 2**20


def make(directory, *, map_size=MIB, read_only=False) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(map_size=Size(map_size)), directory, UnsyncedFiles(), read_only=read_only))


def opened(directory, state=None, **options) -> LmdbIndex:
    """A loaded index, with this state."""
    index = make(directory, **options)
    assert index.load() == state
    return index


def ids(begin, end) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(begin, end)]


def commit(index, **state):
    index.freeze({key.encode(): b"%d" % value for key, value in state.items()})
    index.commit()


def fill(directory) -> Path:
    """Save 3000 entries. Return the file that has them."""
    index = opened(directory)
    index.enter(ids(0, 3000), range(1, 3001))
    index.close({b"key": b"value"})
    return directory / DIRECTORY / "data.mdb"


def names(directory):
    return sorted(found.name for found in directory.iterdir())


def test_map_grows_while_others_read(tmp_path):
    index = opened(tmp_path)
    known = {msg_id: pack_location(1, number, 30) for number, msg_id in enumerate(ids(0, 50))}
    index.enter(list(known), known.values())
    commit(index)
    items, stop = index.items(), threading.Event()

    def read():
        while not stop.is_set():
            assert {msg_id: index.get(msg_id) for msg_id in known} == known

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for begin in range(50, 60_050, 10_000):
                index.enter(ids(begin, begin + 10_000), range(10_000))
                commit(index, tail=begin)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    assert sorted(msg_id for msg_id, _, _ in items) == sorted(known)
    assert len(index) == 60_050
    assert (tmp_path / DIRECTORY / "data.mdb").stat().st_size >= 4 * MIB
    index.close(None)

    last = ids(49, 50)[0]
    for map_size in (MIB, 64 * MIB):  # a smaller one than the file needs, and a larger one
        index = opened(tmp_path, {b"tail": b"50050"}, map_size=map_size)
        assert (len(index), index.get(last)) == (60_050, known[last])
        index.enter(ids(50, 60_050), range(60_000))
        commit(index)
        index.close(None)


def test_commit_beside_computing_thread_is_quick(tmp_path):
    index = opened(tmp_path)
    usual = sys.getswitchinterval()
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        index.enter(ids(0, 2000), range(2000))
        begin = time.process_time()  # the other thread's, too: what this one waits for that, it computes
        commit(index)
        assert time.process_time() - begin < 1.5  # 2 ms an entry and more, if every LMDB call waited for its turn
        assert sys.getswitchinterval() == usual
    finally:
        stop.set()
        thread.join()
    index.close(None)


def overwrite(content):
    return lambda data: data.write_bytes(content)


def cut(size):
    return lambda data: os.truncate(data, size)


def replace_data_by_a_directory(data):
    data.unlink()
    data.mkdir()


def replace_all_by_a_file(data):
    shutil.rmtree(data.parent)
    data.parent.write_text("not a directory")


def change_version(data):
    pages = bytearray(data.read_bytes())
    for page in (0, 4096):
        pages[page + 20] ^= 0x7F
    data.write_bytes(pages)


def change_layout(data):
    assert b"msgstore-lmdb1" in data.read_bytes()
    data.write_bytes(data.read_bytes().replace(b"msgstore-lmdb1", b"msgstore-lmdb9"))


DAMAGE = {
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
def test_damage_is_set_aside(tmp_path, damage, caplog):
    data = fill(tmp_path)
    damage(data)
    reader = opened(tmp_path, read_only=True)
    assert len(reader) == 0
    reader.close(None)
    assert names(tmp_path) == [DIRECTORY]

    caplog.clear()
    with caplog.at_level(logging.WARNING, "msgstore.index"):
        index = opened(tmp_path)
    assert (len(index), index.get(ids(0, 1)[0])) == (0, None)
    assert f"{DIRECTORY}.damaged-1" in caplog.text
    index.enter(ids(0, 3000), range(3000))
    index.close({b"key": b"new"})

    damage(data) if damage is not change_layout else overwrite(b"LMDB")(data)
    opened(tmp_path).close(None)
    assert names(tmp_path) == [DIRECTORY, f"{DIRECTORY}.damaged-1", f"{DIRECTORY}.damaged-2"]


def test_damage_met_later_is_set_aside_by_close(tmp_path):
    data = fill(tmp_path)
    pages = bytearray(data.read_bytes())
    for page in range(2 * 4096, len(pages), 4096):
        if b"value" not in pages[page : page + 4096] and any(msg_id in pages[page : page + 4096] for msg_id in ids(0, 100)):
            pages[page + 10 : page + 12] = bytes(2)  # the flags that say what kind of page it is
    data.write_bytes(pages)

    reader = opened(tmp_path, {b"key": b"value"}, read_only=True)
    with pytest.raises(DamagedError):
        reader.get(ids(0, 1)[0])
    reader.close(None)

    index = opened(tmp_path, {b"key": b"value"})
    for _ in range(2):
        with pytest.raises(OSError):
            index.get(ids(0, 1)[0])
    index.close({b"key": b"later"})
    assert names(tmp_path) == [f"{DIRECTORY}.damaged-1"]
    opened(tmp_path).close(None)


def test_file_cut_behind_last_page_is_read(tmp_path):
    data = fill(tmp_path)
    assert data.stat().st_size == MIB  # the whole map: LMDB alone may end its file before its last page
    used = len(data.read_bytes().rstrip(b"\0"))
    os.truncate(data, -(-used // 65536) * 65536)
    index = opened(tmp_path, {b"key": b"value"})
    assert len(list(index.items())) == 3000
    index.close(None)


def test_environment_in_use_is_not_set_aside(tmp_path):
    index = opened(tmp_path)
    with pytest.raises(StoreError, match="is already open in this process"):
        make(tmp_path).load()
    index.enter(ids(0, 10), range(10))
    commit(index)
    assert names(tmp_path) == [DIRECTORY]
    index.close(None)


NO_ROOM = """
import errno, os, resource, runpy, signal, sys
from pathlib import Path
globals().update(runpy.run_path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
index = opened(Path(sys.argv[2]))
index.enter(ids(0, 10), range(10), [3] * 10)
commit(index, tail=10)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
for entries in (1000, 30_000):  # within the map, and where it has to grow
    index.enter(ids(10, entries), range(10, entries))
    index.release(ids(0, 1))
    try:
        commit(index, tail=entries)
    except OSError as error:
        print(type(error).__name__, error.errno in (errno.EFBIG, errno.EIO))  # LMDB makes EIO of a short write
    print(len(index), index.references(ids(0, 1)[0]), index.get(ids(999, 1000)[0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
commit(index, tail=30000)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_commit_that_found_no_room_is_retried(tmp_path):
    command = [sys.executable, "-u", "-c", NO_ROOM, __file__, str(tmp_path)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout.splitlines() == ["OSError True", "1000 2 999", "OSError True", "30000 1 999"]
    index = opened(tmp_path, {b"tail": b"30000"})
    assert len(index) == len(list(index.items())) == 30_000
    assert (index.references(ids(0, 1)[0]), index.references(ids(1, 2)[0])) == (1, 3)
    index.close(None)
