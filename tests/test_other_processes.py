"""A store that one process writes and others read: everything confirmed before a read began is read, nothing removed is."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import msgstore
from msgstore.engine.read import reader
from msgstore.engine.read import segment_file_cache as found_files
from msgstore.engine.read import writer_tracker as following
from msgstore.writer_lock import WriterLock
from other_process import KEPT, RECORD, SMALL, body_of
from support import Cell

PROGRAM = Path(__file__).with_name("other_process.py")
LIVE = [Cell("lmdb", "v1"), Cell("lmdb", "v2"), Cell("lmdb", "v2", "checksum")]
CONFIRMS = 4000
"""Of each writer at full speed."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="LMDB's readers and kill -9 are tried on POSIX only")


class Load:
    """A writer at full speed, and what it has told so far."""

    def __init__(self, path: Path, cell: Cell, *, confirms: int = CONFIRMS, seed: str = "0") -> None:
        command = [sys.executable, PROGRAM, "load", path, json.dumps(cell.keys), str(confirms), seed]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._rest = b""
        self.alive: set[bytes] = set()
        """Confirmed, and nobody was about to remove it."""
        self.dead: set[bytes] = set()
        """Removed, and a flush has returned since."""
        self._going: set[bytes] = set()
        self.confirmed = 0
        self.open = self.finished = False

    def hear(self) -> None:
        """Everything that was told before this call."""
        os.set_blocking(self._child.stdout.fileno(), False)
        while data := self._read():
            data = self._rest + data
            whole = len(data) // RECORD * RECORD
            self._rest = data[whole:]
            for at in range(0, whole, RECORD):
                self._note(data[at : at + 1], data[at + 1 : at + RECORD])

    def _read(self) -> bytes:
        try:
            return os.read(self._child.stdout.fileno(), 2**20)
        except BlockingIOError:
            return b""

    def _note(self, letter: bytes, msg_id: bytes) -> None:
        if letter == b"C":
            self.confirmed += 1
            if msg_id not in self._going and msg_id not in self.dead:
                self.alive.add(msg_id)
        elif letter == b"R":
            self.alive.discard(msg_id)
            self._going.add(msg_id)
        elif letter == b"D":
            self._going.discard(msg_id)
            self.dead.add(msg_id)
        self.open |= letter == b"O"
        self.finished |= letter == b"F"

    def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.hear()
            assert self._child.poll() is None or condition(), f"the writer ended: {self._child.returncode}"

    def hold_until(self, condition: Callable[[], bool]) -> None:
        """Without hearing anything."""
        latest = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < latest
            time.sleep(0.005)  # other processes need the time

    def check(self, client: msgstore.Client, chance: random.Random) -> None:
        """One of the three ways to read, of ids that were confirmed or removed before."""
        self.hear()
        alive = chance.sample(sorted(self.alive), min(len(self.alive), 20))
        dead = chance.sample(sorted(self.dead), min(len(self.dead), 3))
        way = chance.randrange(3)
        if way == 0:
            found = client.read_many(alive + dead)
        elif way == 1:
            found = {msg_id: body_of(msg_id) for msg_id in alive + dead if client.contains(msg_id)}
        else:
            found = {}
            for msg_id in alive + dead:
                with contextlib.suppress(msgstore.MessageNotFound):
                    found[msg_id] = client.read(msg_id)
        assert all(body == body_of(msg_id) for msg_id, body in found.items()), "wrong bytes"
        assert not found.keys() & set(dead), "a removed message was found"
        self.hear()  # who is about to remove something has said so before
        missing = (set(alive) - found.keys()) & self.alive
        assert not missing, f"{len(missing)} confirmed messages were not found"

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self.hear()

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._child.stdout.close()


class Other:
    """A process that does what it is told."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, PROGRAM, "obey"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._child.pid

    def tell(self, code: str) -> None:
        self._child.stdin.write(json.dumps(code) + "\n")
        self._child.stdin.flush()

    def answer(self) -> Any:
        answer = json.loads(self._child.stdout.readline())
        assert not answer.startswith("raised"), answer
        return ast.literal_eval(answer)

    def do(self, code: str) -> Any:
        self.tell(code)
        return self.answer()

    def open(self, path: Path, **keys: Any) -> None:
        keys = {"gc_interval": 0} | keys  # it collects when it is told to
        self.do(f"store = msgstore.open_store({str(path)!r}, **{keys!r}); client = store.client(); None")

    def write(self, numbers: range, more: str = "") -> None:
        self.do(f"for n in {numbers!r}: client.write(n.to_bytes(16), body_of(n.to_bytes(16)))\nstore.flush(); None{more}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._child.wait()

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._child.stdin.close()
        self._child.stdout.close()


@pytest.fixture
def others() -> Iterator[Callable[[], Other]]:
    made: list[Other] = []

    def make() -> Other:
        made.append(Other())
        return made[-1]

    yield make
    for other in made:
        other.end()


@pytest.fixture
def loads() -> Iterator[Callable[..., Load]]:
    made: list[Load] = []

    def make(*arguments: Any, **options: Any) -> Load:
        made.append(Load(*arguments, **options))
        return made[-1]

    yield make
    for load in made:
        load.end()


def ids(numbers: range) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def bodies(numbers: range) -> dict[bytes, bytes]:
    return {msg_id: body_of(msg_id) for msg_id in ids(numbers)}


READ_ALL = """
def read_all():
    with msgstore.open_store({path!r}, mode="r", **{keys!r}) as store, store.client() as client:
        seen = 0
        while not os.path.exists({stop!r}):
            open({reading!r}, "w").close()
            found = client.read_many(entry.msg_id for entry in store.entries())
            assert all(body == body_of(msg_id) for msg_id, body in found.items())
            stats, segments = store.stats(), store.segments()
            assert stats.live_bytes >= 0 and stats.garbage_bytes >= 0 and len(segments) >= 0
            assert all(segment.live_bytes <= segment.size for segment in segments)
            seen += len(found)
        return seen
read_all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIVE, ids=str)
def test_readers_beside_fast_writer_find_confirmed_messages(kind, tmp_path, others, loads):
    load = loads(tmp_path / "store", kind)
    load.wait(lambda: load.open)
    path, stop = str(tmp_path / "store"), str(tmp_path / "stop")
    readers = {tmp_path / "reading-1": others(), tmp_path / "reading-2": others()}
    for reading, other in readers.items():
        other.tell(READ_ALL.format(path=path, keys=kind.keys, stop=stop, reading=str(reading)))
    # The writer does not get far before they are there: nobody hears what it has to tell, and the pipe is full.
    load.hold_until(lambda: all(reading.exists() for reading in readers))
    chance, checks = random.Random(str(kind)), 0
    with msgstore.open_store(path, mode="r", **kind.keys) as store, store.client() as client:
        while not load.finished:
            load.check(client, chance)
            checks += 1
        load.check(client, chance)
        assert {entry.msg_id for entry in store.entries()} == load.alive
        assert store.stats().messages == len(load.alive) <= KEPT
        assert len(files_of(store)._open) <= found_files.MAX_OPEN
    (tmp_path / "stop").touch()
    assert all(other.answer() > 0 for other in readers.values())
    assert load.confirmed >= CONFIRMS
    assert checks > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIVE[1:], ids=str)
def test_reader_survives_killed_writers(kind, tmp_path, loads, monkeypatch):
    """One reader, open all the time."""
    monkeypatch.setattr(following, "OPENING_TIMEOUT_SECONDS", 60)  # with one that is opening, on a machine that does much else
    chance = random.Random(str(kind))
    (tmp_path / "store").mkdir()
    alive: set[bytes] = set()
    dead: set[bytes] = set()
    with msgstore.open_store(tmp_path / "store", mode="r", **kind.keys) as store, store.client() as client:
        for round_ in range(8):
            load = loads(tmp_path / "store", kind, seed=str(round_), confirms=10**9 if round_ % 4 else 200)
            load.alive, load.dead = alive, dead
            enough = load.confirmed + chance.randrange(1, 400)
            while not load.finished and load.confirmed < enough:
                load.check(client, chance)
            if not load.finished:
                load.kill()
            for _ in range(5):  # nobody writes, and the lock names a dead process
                load.check(client, chance)
            assert load.alive <= {entry.msg_id for entry in store.entries()}
            alive, dead = load.alive, load.dead
            # What was about to be removed or confirmed may be there or not; from now on it is what it is.
            alive |= {entry.msg_id for entry in store.entries()}
            dead -= alive


def test_reader_of_empty_directory_sees_first_writer(tmp_path, others):
    (tmp_path / "store").mkdir()
    with msgstore.open_store(tmp_path / "store", mode="r", index="lmdb") as store, store.client() as client:
        assert store.stats().messages == 0
        assert not client.contains(bytes(16))
        writer = others()
        writer.open(tmp_path / "store", index="lmdb")
        assert (store.stats().messages, store.stats().recovery.how) == (0, "live")
        writer.write(range(50))
        assert client.read_many(ids(range(60))) == bodies(range(50))
        assert [store.references(msg_id) for msg_id in ids(range(49, 51))] == [1, 0]
        writer.do("client.write(bytes(16), b'ignored'); client.write(bytes(16), b''); store.flush()")
        assert store.references(bytes(16)) == 3
    with pytest.raises(msgstore.StoreClosed):
        client.contains(bytes(16))
    with pytest.raises(msgstore.StoreClosed):
        store.stats()


def test_reader_follows_compaction_migration_and_reopening(tmp_path, others):
    path = tmp_path / "store"
    writer = others()
    writer.open(path, index="lmdb", format="v1", **SMALL)
    writer.write(range(500))
    with msgstore.open_store(path, mode="r", index="lmdb") as store, store.client() as client:
        with pytest.raises(msgstore.StoreReadOnly):
            client.write(bytes(16), b"")
        with pytest.raises(msgstore.StoreReadOnly):
            store.compact()
        writer.do("client.remove(n.to_bytes(16) for n in range(0, 500, 2)); store.flush()")
        kept = bodies(range(1, 500, 2))
        assert client.read_many(ids(range(500))) == kept
        before = store.stats().bytes_on_disk
        writer.do("store.roll(); store.compact(everything=True); None")
        assert client.read_many(ids(range(500))) == kept
        assert store.stats().bytes_on_disk < before - 100_000
        writer.do("store.close()")
        assert client.read_many(ids(range(500))) == kept
        writer.open(path, index="lmdb", format="v2", on_legacy="migrate", **SMALL)
        assert client.read_many(ids(range(500))) == kept
        assert {segment.format for segment in store.segments()} == {"v2"}
        writer.write(range(500, 600))
        assert client.read_many(ids(range(600))) == kept | bodies(range(500, 600))
        entries = list(store.entries())
        writer.do(
            "client.remove(n.to_bytes(16) for n in range(500)  if n % 2); store.roll(); store.compact(everything=True); None"
        )
        assert {entry.msg_id for entry in store.entries()} == set(ids(range(500, 600)))
        for entry in entries:  # where they were
            if entry.msg_id < (500).to_bytes(16):
                with pytest.raises(msgstore.MessageNotFound):
                    store.stored_body(entry)
            else:
                assert store.stored_body(entry) == body_of(entry.msg_id)
        writer.do("store.close()")
        assert store.stats().messages == 100
        assert sum(segment.live_count for segment in store.segments()) == 100
    with msgstore.open_store(path, mode="r", index="lmdb") as store:
        assert store.stats().recovery.how == "trust"


def files_of(store: msgstore.Store) -> Any:
    """The segments' files that a reader beside a writer has open."""
    live: Any = store
    return live._file_cache


def in_between(store: msgstore.Store, action: Callable[[], object], *, times: int = 1):
    """``action`` between the look-up and the ``pread`` of the next reads."""
    files = files_of(store)
    read, left = files.read, [times]

    def acting(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            action()
        return read(*arguments)

    return mock.patch.object(files, "read", acting)


@pytest.fixture
def beside(tmp_path, others):
    """A writer with 20 messages of 300 bytes, of which the even ones are removed, and a reader."""
    writer = others()
    writer.open(tmp_path, index="lmdb")
    writer.do("for n in range(20): client.write(bytes([n, 3]) * 8, body_of(bytes([n, 3]) * 8))\nstore.roll()")
    writer.do("client.remove(bytes([n, 3]) * 8 for n in range(0, 20, 2)); store.flush()")
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        assert client.contains(LAST)
        yield writer, store, client


LAST = bytes([19, 3]) * 8


@pytest.mark.parametrize("way", ["read", "read_many"])
def test_change_between_lookup_and_read_is_followed(beside, way):
    writer, store, client = beside

    def read() -> bytes | None:
        if way == "read_many":
            return client.read_many([LAST]).get(LAST)
        try:
            return client.read(LAST)
        except msgstore.MessageNotFound:
            return None

    def place() -> int:
        return next(entry.location for entry in store.entries() if entry.msg_id == LAST)

    before = place()
    with in_between(store, lambda: writer.do("store.compact(everything=True); None")):
        assert read() == body_of(LAST)
    assert place() < before
    with in_between(store, lambda: writer.do("store.close()")):
        assert read() == body_of(LAST)
    with in_between(store, lambda: writer.open(store.path, index="lmdb")):
        assert read() == body_of(LAST)
    writer.do("store.roll()")
    remove = "client.remove([bytes([n, 3]) * 8 for n in range(1, 20, 2)]); store.flush()"
    with in_between(store, lambda: writer.do(remove)):
        assert read() is None
    assert list(store.path.glob("0.*")) == []  # the whole segment went


def test_read_of_moving_message_raises_at_last(beside, monkeypatch):
    _, store, client = beside
    monkeypatch.setattr(reader, "_MAX_MOVES", 5)
    places = iter(range(10**6))
    store._reader._locate = lambda _: next(places)
    with pytest.raises(msgstore.StoreError, match="was moved 5 times"):
        client.read(LAST)


def test_read_of_missing_segment_names_it(beside, monkeypatch):
    _, store, client = beside
    monkeypatch.setattr(reader, "_MAX_RETRIES", 2)
    (store.path / "0.sqs").unlink()
    with pytest.raises(msgstore.StoreError, match="it points to segment 0, which does not exist"):
        client.read(LAST)


def test_damaged_record_beside_writer_names_place(beside):
    _, store, client = beside
    (entry,) = (entry for entry in store.entries() if entry.msg_id == LAST)
    with (store.path / "0.sqs").open("r+b") as file:
        file.seek(entry.offset + 8)
        file.write(b"\xff")
    for read in (client.read, lambda msg_id: client.read_many([msg_id])):
        with pytest.raises(msgstore.CorruptRecord, match=rf"0\.sqs at offset {entry.offset}: ") as caught:
            read(LAST)
        assert (caught.value.offset, caught.value.msg_id) == (entry.offset, LAST)


@pytest.mark.slow
def test_threads_of_one_reader_find_bodies(tmp_path, loads):
    cell = LIVE[1]
    load = loads(tmp_path / "store", cell, confirms=CONFIRMS // 2)
    load.wait(lambda: load.open)
    wrong: list[object] = []
    with msgstore.open_store(tmp_path / "store", mode="r", **cell.keys) as store, store.client() as client:

        def read() -> None:
            try:
                while not load.finished:
                    found = {entry.msg_id for entry in store.entries()}
                    for msg_id in found:
                        with contextlib.suppress(msgstore.MessageNotFound):
                            assert client.read(msg_id) == body_of(msg_id)
            except BaseException as error:
                wrong.append(error)

        with mock.patch.object(found_files, "MAX_OPEN", 2):  # files are closed under each other's hands
            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            load.wait(lambda: load.finished)
            for thread in threads:
                thread.join()
    assert wrong == []


def test_growing_lmdb_map_is_followed(tmp_path, others):
    keys = {"index": {"use": "lmdb", "map_size": "1MiB"}}
    writer = others()
    writer.open(tmp_path, **keys)
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        for begin in range(0, 40_000, 10_000):
            writer.do(f"for n in range({begin}, {begin + 10_000}): client.write(n.to_bytes(16, 'little'), b'x')\nstore.flush()")
            newest = (begin + 9_999).to_bytes(16, "little")
            assert client.read(newest) == b"x"
            assert store.stats().messages == begin + 10_000
    assert (tmp_path / "msgstore-lmdb" / "data.mdb").stat().st_size > 2 * 2**20


def last_page(path: Path) -> int:
    """Of the index, as the writer sees it; by a look of its own that holds nothing."""
    data = (path / "msgstore-lmdb" / "data.mdb").read_bytes()[: 2 * 4096]
    return max(int.from_bytes(data[at + 136 : at + 144], "little") for at in (0, 4096))


@pytest.mark.slow
def test_killed_reader_holds_no_lmdb_pages(tmp_path, others):
    """A reader that stands inside a look-up holds pages, as it must; killed there, it holds none after the next commit."""
    writer, reader = others(), others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(1000))
    churn = """for _ in range(40):
    client.write_many((n.to_bytes(16), b"") for n in range(1000))
    store.flush()
    client.remove(n.to_bytes(16) for n in range(1000))
    store.flush()"""
    writer.do(churn)
    at_rest = last_page(tmp_path)
    writer.do(churn)
    assert last_page(tmp_path) <= at_rest + 10
    reader.do(f"store = msgstore.open_store({str(tmp_path)!r}, mode='r', index='lmdb'); store.client().contains(bytes(16))")
    writer.do(churn)
    assert last_page(tmp_path) <= at_rest + 10  # between look-ups nothing is held
    reader.do("held = store._index._environment._begin(); None")
    writer.do(churn)
    held = last_page(tmp_path)
    assert held > at_rest + 100
    reader.kill()
    writer.do(churn)
    writer.do(churn)
    assert last_page(tmp_path) <= held + 10
    for _ in range(5):  # killed wherever it is
        reader = others()
        reader.do(f"client = msgstore.open_store({str(tmp_path)!r}, mode='r', index='lmdb').client(); None")
        reader.tell("while True: client.contains(bytes(16))")
        writer.do(churn)
        reader.kill()
    writer.do(churn)
    assert last_page(tmp_path) <= held + 20


@pytest.mark.slow
def test_writer_lock_excludes_and_outlives_no_process(tmp_path, others):
    first, second, prober = others(), others(), others()
    first.open(tmp_path, index="lmdb")
    with pytest.raises(msgstore.StoreLocked, match=f"process {first.pid} has the store open for writing") as caught:
        msgstore.open_store(tmp_path, index="lmdb")
    assert caught.value.pid == first.pid
    first.write(range(10))
    # Somebody who looks all the time whether there is a writer must not look like one, whatever the file says.
    prober.do("from msgstore.writer_lock import check_no_writer; from pathlib import Path; import contextlib")
    prober.tell(f"while True:\n  with contextlib.suppress(msgstore.StoreLocked): check_no_writer(Path({str(tmp_path)!r}))")
    for _ in range(20):
        first.kill()
        second.open(tmp_path, index="lmdb")
        assert second.do("len(list(store.entries()))") == 10
        first, second = second, others()


def test_reader_with_ets_index_is_refused(tmp_path, others):
    writer = others()
    writer.open(tmp_path, index="ets")
    with pytest.raises(
        msgstore.StoreLocked, match=f'process {writer.pid} .* A store with index = "lmdb" can be read'
    ) as caught:
        msgstore.open_store(tmp_path, mode="r", index="ets")
    assert caught.value.pid == writer.pid
    with pytest.raises(msgstore.StoreMismatch, match="kept with the index 'ets' now"):
        msgstore.open_store(tmp_path, mode="r", index="lmdb")
    writer.do("store.close()")
    with msgstore.open_store(tmp_path, mode="r", index="ets") as store:
        assert store.stats().messages == 0


def test_writer_with_another_index_stops_reader(tmp_path, others):
    writer = others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        assert client.read_many(ids(range(10))) == bodies(range(10))
        writer.do("store.close()")
        writer.open(tmp_path, index="ets")
        writer.do("client.remove([bytes(16)]); store.flush()")
        for call in (lambda: client.contains(bytes(16)), store.stats, lambda: client.read_many([])):
            with pytest.raises(msgstore.StoreMismatch, match="kept with the index 'ets' now"):
                call()
        writer.do("store.close()")
        writer.open(tmp_path, index="lmdb")
        assert client.read_many(ids(range(10))) == bodies(range(1, 10))


def test_reader_follows_a_replaced_index(tmp_path, others):
    writer = others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        assert client.read_many(ids(range(10))) == bodies(range(10))
        writer.kill()
        data = tmp_path / "msgstore-lmdb" / "data.mdb"
        damaged = data.with_name("damaged")
        damaged.write_bytes(b"not LMDB's" * 1000)
        damaged.replace(data)
        writer = others()
        writer.open(tmp_path, index="lmdb")
        assert (tmp_path / "msgstore-lmdb.damaged-1").is_dir()
        writer.write(range(10, 20))
        assert client.read_many(ids(range(20))) == bodies(range(20))


def test_reader_waits_for_an_opening_writer(tmp_path, others, monkeypatch):
    writer = others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        writer.do("store.close(); from pathlib import Path; from msgstore.writer_lock import WriterLock")
        writer.do(f"lock = WriterLock(Path({str(tmp_path)!r}))")
        monkeypatch.setattr(following, "OPENING_TIMEOUT_SECONDS", 0.05)
        with pytest.raises(msgstore.StoreLocked, match=f"process {writer.pid} has been opening the store") as caught:
            client.contains(bytes(16))
        assert caught.value.pid == writer.pid
        with pytest.raises(msgstore.StoreLocked, match="has been opening"):
            msgstore.open_store(tmp_path, mode="r", index="lmdb")
        monkeypatch.undo()
        begin = time.monotonic()
        writer.tell("import time; time.sleep(0.2); lock.opened()")  # it is opening for longer than a reader takes to ask
        assert client.contains(bytes(16))
        assert time.monotonic() - begin > 0.1
        writer.answer()
        # Killed while it was opening: what it found is still right.
        writer.do(f"lock.release(); lock = WriterLock(Path({str(tmp_path)!r})); None")
        writer.kill()
        assert client.contains(bytes(16))


STOP_AFTER_THREE_COMMITS = """
from msgstore_lmdb_index.index import LmdbIndex
commit, left = LmdbIndex.commit, [3]
def stop(self):
    commit(self)
    left[0] -= 1
    if not left[0]:
        os._exit(9)
LmdbIndex.commit = stop
"""


def test_reader_refuses_a_half_rebuilt_index(tmp_path, others):
    writer = others()
    writer.open(tmp_path, index="lmdb", **SMALL)
    writer.write(range(200))
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        assert len(client.read_many(ids(range(200)))) == 200
        writer.do("store.close()")
        (tmp_path / "file_summary.ets").touch()  # RabbitMQ was here
        writer.do(STOP_AFTER_THREE_COMMITS)
        writer.tell(f"msgstore.open_store({str(tmp_path)!r}, index='lmdb')")
        writer._child.wait(30)
        with pytest.raises(msgstore.StoreError, match="the last writer was stopped while it rebuilt it"):
            client.read(bytes(16))
        second = others()
        second.open(tmp_path, index="lmdb")
        assert len(client.read_many(ids(range(200)))) == 200


def test_reader_without_lock_permission_is_refused(tmp_path, others, monkeypatch):
    writer = others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(msgstore.StoreIOError, match=r"readers must be registered there"):
        msgstore.open_store(tmp_path, mode="r", index="lmdb")
    writer.do("store.close()")
    with msgstore.open_store(tmp_path, mode="r", index="lmdb") as store, store.client() as client:
        assert client.read_many(ids(range(10))) == bodies(range(10))
        writer.open(tmp_path, index="lmdb")
        with pytest.raises(msgstore.StoreError, match=r"cannot read beside it: .* readers must be registered there"):
            client.read(bytes(16))


def test_reading_verbs_beside_writer_work(tmp_path, others):
    writer, tool = others(), others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    tool.do("from click.testing import CliRunner; from msgstore.cli.main import main")

    def run(*arguments: str) -> tuple[int, str]:
        return tool.do(f"r = CliRunner().invoke(main, {list(arguments)!r}); (r.exit_code, r.output)")

    path = str(tmp_path)
    assert json.loads(run("info", "--json", path)[1])["recovery"]["how"] == "live"
    assert len(run("ls", path)[1].splitlines()) == 11
    assert run("get", path, ids(range(3, 4))[0].hex())[0] == 0
    code, said = run("verify", path)
    assert (code, f"process {writer.pid} has the store open for writing" in said) == (2, True)


def test_second_store_in_process_is_refused(tmp_path):
    """LMDB cannot be opened twice in one process; and a writer in this process is no other process."""
    with msgstore.open_store(tmp_path, index="lmdb"), pytest.raises(msgstore.StoreLocked, match="this process"):
        msgstore.open_store(tmp_path, mode="r", index="lmdb")
    lock = WriterLock(tmp_path)
    with pytest.raises(msgstore.StoreLocked, match="this process"):
        msgstore.open_store(tmp_path, mode="r", index="lmdb")
    lock.release()
