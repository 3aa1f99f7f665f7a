"""A store that one process writes and others read: everything confirmed before a read began is read, nothing removed is."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import msgstore
from msgstore.engine.read import live_reader as following
from msgstore.engine.read import reader
from msgstore.engine.segment import segment as read_files
from msgstore.writer_lock import WriterLock
from other_process import SMALL, body_of, load, obey
from support import Cell, flip, in_threads, until

LIVE = [Cell("lmdb", "v1"), Cell("lmdb", "v2"), Cell("lmdb", "v2", "checksum")]
SPAWN = multiprocessing.get_context("spawn")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="LMDB's readers and kill -9 are tried on POSIX only"),
]


class Child:
    """A process that runs a function of other_process.py, and this end of its pipe."""

    def __init__(self, target: Callable[..., None], *arguments: object, duplex: bool) -> None:
        self.pipe, theirs = SPAWN.Pipe(duplex)
        self._process = SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class Load(Child):
    """A writer at full speed, and what it has told so far. It never removes ids that end in an even byte."""

    def __init__(self, path: Path, cell: Cell, alive: set[bytes], dead: set[bytes], *, confirms: int, seed: str) -> None:
        """``alive``: confirmed, and never removed. ``dead``: removed, and a flush has returned since."""
        super().__init__(load, path, cell.keys, confirms, seed, duplex=False)
        self._alive, self._dead = alive, dead
        self.confirmed = 0
        self.is_finished = False

    def hear(self) -> None:
        """Everything that was told before this call."""
        with contextlib.suppress(EOFError):
            while self.pipe.poll():
                what, told = self.pipe.recv()
                self.is_finished |= what == "closed"
                if what == "confirmed":
                    self.confirmed += len(told)
                    self._alive.update(msg_id for msg_id in told if not msg_id[-1] % 2)
                else:
                    self._dead.update(told)

    def check(self, client: msgstore.Client, chance: random.Random) -> None:
        """One of the three ways to read, of ids that were confirmed or removed before."""
        self.hear()
        alive = chance.sample(sorted(self._alive), min(len(self._alive), 20))
        dead = chance.sample(sorted(self._dead), min(len(self._dead), 3))
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
        assert found.keys() >= set(alive), "a confirmed message was not found"


class Other(Child):
    """A process that does what it is told."""

    def __init__(self) -> None:
        super().__init__(obey, duplex=True)

    def tell(self, code: str) -> None:
        self.pipe.send(code)

    def answer(self) -> Any:
        raised, value = self.pipe.recv()
        assert not raised, raised
        return value

    def do(self, code: str) -> Any:
        self.tell(code)
        return self.answer()

    def open(self, path: Path, **keys: Any) -> None:
        keys = {"gc_interval": 0} | keys  # it collects when it is told to
        self.do(f"store = msgstore.open_store({str(path)!r}, **{keys!r}); client = store.client(); None")

    def write(self, numbers: range) -> None:
        self.do(f"for n in {numbers!r}: client.write(n.to_bytes(16), body_of(n.to_bytes(16)))\nstore.flush(); None")


@pytest.fixture
def children() -> Iterator[Callable[[Child], Any]]:
    """Ends these processes when the test ends."""
    made: list[Child] = []
    yield lambda child: (made.append(child), child)[1]
    for child in made:
        child.kill()
        child.pipe.close()


@pytest.fixture
def others(children: Callable[[Child], Any]) -> Callable[[], Other]:
    return lambda: children(Other())


@pytest.fixture
def writer(others: Callable[[], Other]) -> Other:
    return others()


def reading(path: Path, index: str = "lmdb") -> msgstore.Store:
    return msgstore.open_store(path, mode="r", index=index)


@pytest.fixture
def beside_ten(tmp_path: Path, writer: Other) -> Iterator[tuple[Other, msgstore.Store, msgstore.Client]]:
    """A writer of ten messages, a reader of its store, and the reader's client."""
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    with reading(tmp_path) as store, store.client() as client:
        assert client.read_many(ids(range(10))) == bodies(range(10))
        yield writer, store, client


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
            assert stats.live_bytes >= 0 and stats.garbage_bytes >= 0
            assert all(segment.live_bytes <= segment.size for segment in segments)
            seen += len(found)
        return seen
read_all()
"""


@pytest.mark.parametrize("kind", LIVE, ids=str)
def test_readers_follow_fast_and_killed_writers(kind, tmp_path, others, children, monkeypatch):
    """Two readers that are open all the time: one in another process, and one with threads that share two open files. Most
    writers are killed."""
    monkeypatch.setattr(following, "OPENING_TIMEOUT_SECONDS", 60)  # with one that is opening, on a machine that does much else
    monkeypatch.setattr(read_files, "MAX_OPEN", 2)  # files are closed under each other's hands
    path, stop, chance = tmp_path / "store", tmp_path / "stop", random.Random(str(kind))
    path.mkdir()
    other, ready = others(), tmp_path / "reading"
    other.tell(READ_ALL.format(path=str(path), keys=kind.keys, stop=str(stop), reading=str(ready)))
    until(ready.exists)
    alive: set[bytes] = set()
    dead: set[bytes] = set()
    with msgstore.open_store(path, mode="r", **kind.keys) as store, store.client() as client:

        def read() -> None:
            while not stop.exists():
                for msg_id in {entry.msg_id for entry in store.entries()}:
                    with contextlib.suppress(msgstore.MessageNotFound):
                        assert client.read(msg_id) == body_of(msg_id)

        def check() -> None:
            try:
                for round_ in range(6):
                    confirms = 10**9 if round_ % 3 else 500
                    writing = children(Load(path, kind, alive, dead, confirms=confirms, seed=str(round_)))
                    enough = chance.randrange(1, 400)
                    while not writing.is_finished and (writing.confirmed < enough or not round_ % 3):
                        writing.check(client, chance)
                    if not writing.is_finished:
                        writing.kill()
                    for _ in range(5):  # nobody writes, and the lock may name a dead process
                        writing.check(client, chance)
                    assert alive <= {entry.msg_id for entry in store.entries()}
            finally:
                stop.touch()

        in_threads(check, read, read, seconds=300)
        assert store.stats().messages == len(list(store.entries())) >= len(alive)
        assert len(store._segments.read_files.readers) <= 2
    assert other.answer() > 0


def test_reader_of_empty_directory_sees_first_writer(tmp_path, writer):
    (tmp_path / "store").mkdir()
    with reading(tmp_path / "store") as store, store.client() as client:
        assert store.stats().messages == 0
        assert not client.contains(bytes(16))
        writer.open(tmp_path / "store", index="lmdb")
        assert (store.stats().messages, store.stats().recovery.how) == (0, "live")
        writer.write(range(50))
        assert client.read_many(ids(range(60))) == bodies(range(50))
        assert [store.references(msg_id) for msg_id in ids(range(49, 51))] == [1, 0]
        writer.do("client.write(bytes(16), b'ignored'); client.write(bytes(16), b''); store.flush()")
        assert store.references(bytes(16)) == 3
    for call in (lambda: client.contains(bytes(16)), store.stats):
        with pytest.raises(msgstore.StoreClosed):
            call()


def test_reader_follows_compaction_migration_and_reopening(tmp_path, writer):
    path = tmp_path / "store"
    writer.open(path, index="lmdb", format="v1", **SMALL)
    writer.write(range(500))
    with reading(path) as store, store.client() as client:
        for call in (lambda: client.write(bytes(16), b""), store.compact):
            with pytest.raises(msgstore.StoreReadOnly):
                call()
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
    with reading(path) as store:
        assert store.stats().recovery.how == "trust"


def in_between(store: msgstore.Store, action: Callable[[], object]):
    """``action`` between the look-up and the ``pread`` of the next read."""
    fetch, left = store._reader._fetch, [action]
    return mock.patch.object(store._reader, "_fetch", lambda *arguments: (left and left.pop()(), fetch(*arguments))[1])


@pytest.fixture
def beside(tmp_path, writer):
    """A writer with 20 messages of 300 bytes, of which the even ones are removed, and a reader."""
    writer.open(tmp_path, index="lmdb")
    writer.do("for n in range(20): client.write(bytes([n, 3]) * 8, body_of(bytes([n, 3]) * 8))\nstore.roll()")
    writer.do("client.remove(bytes([n, 3]) * 8 for n in range(0, 20, 2)); store.flush()")
    with reading(tmp_path) as store, store.client() as client:
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


def test_damage_beside_writer_names_place(beside, monkeypatch):
    _, store, client = beside
    (entry,) = (entry for entry in store.entries() if entry.msg_id == LAST)
    flip(store.path / "0.sqs", entry.offset + 8)
    for read in (client.read, lambda msg_id: client.read_many([msg_id])):
        with pytest.raises(msgstore.CorruptRecord, match=rf"0\.sqs at offset {entry.offset}: ") as caught:
            read(LAST)
        assert (caught.value.offset, caught.value.msg_id) == (entry.offset, LAST)
    monkeypatch.setattr(reader, "_MAX_RETRIES", 2)
    (store.path / "0.sqs").unlink()
    with pytest.raises(msgstore.StoreError, match="it points to segment 0, which does not exist"):
        client.read(LAST)


def last_page(path: Path) -> int:
    """Of the index, as the writer sees it; by a look of its own that holds nothing."""
    data = (path / "msgstore-lmdb" / "data.mdb").read_bytes()[: 2 * 4096]
    return max(int.from_bytes(data[at + 136 : at + 144], "little") for at in (0, 4096))


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


def test_reader_with_another_index_is_refused(tmp_path, beside_ten):
    """Also one that was opened before; it goes on when the index is that of the writer again."""
    writer, store, client = beside_ten
    writer.do("store.close()")
    writer.open(tmp_path, index="ets")
    writer.do("client.remove([bytes(16)]); store.flush()")
    told = f'process {writer.pid} .* A store with index = "lmdb" can be read'
    with pytest.raises(msgstore.StoreLocked, match=told) as caught:
        reading(tmp_path, "ets")
    assert caught.value.pid == writer.pid
    for call in (lambda: client.contains(bytes(16)), store.stats, lambda: client.read_many([])):
        with pytest.raises(msgstore.StoreMismatch, match="kept with the index 'ets' now"):
            call()
    writer.do("store.close()")
    with reading(tmp_path, "ets") as alone:
        assert alone.stats().messages == 9
    writer.open(tmp_path, index="lmdb")
    assert client.read_many(ids(range(10))) == bodies(range(1, 10))


def test_reader_follows_a_replaced_index(tmp_path, beside_ten, others):
    writer, _, client = beside_ten
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


def test_reader_waits_for_an_opening_writer(tmp_path, beside_ten, monkeypatch):
    writer, _, client = beside_ten
    writer.do(f"from msgstore.writer_lock import WriterLock; path = Path({str(tmp_path)!r})")
    writer.do("store.close(); lock = WriterLock(path)")
    monkeypatch.setattr(following, "OPENING_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(msgstore.StoreLocked, match=f"process {writer.pid} has been opening the store") as caught:
        client.contains(bytes(16))
    assert caught.value.pid == writer.pid
    with pytest.raises(msgstore.StoreLocked, match="has been opening"):
        reading(tmp_path)
    monkeypatch.undo()
    waited = tmp_path.with_name("waited")
    writer.tell(f"import time; time.sleep(0.2); Path({str(waited)!r}).touch(); lock.opened()")  # longer than a reader asks
    assert client.contains(bytes(16))
    assert waited.exists()
    writer.answer()
    # Killed while it was opening: what it found is still right.
    writer.do("lock.release(); lock = WriterLock(path)")
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


def test_reader_refuses_a_half_rebuilt_index(tmp_path, writer, others):
    writer.open(tmp_path, index="lmdb", **SMALL)
    writer.write(range(200))
    with reading(tmp_path) as store, store.client() as client:
        assert len(client.read_many(ids(range(200)))) == 200
        writer.do("store.close()")
        (tmp_path / "file_summary.ets").touch()  # RabbitMQ was here
        writer.do(STOP_AFTER_THREE_COMMITS)
        writer.tell(f"msgstore.open_store({str(tmp_path)!r}, index='lmdb')")
        writer._process.join(30)
        with pytest.raises(msgstore.StoreError, match="the last writer was stopped while it rebuilt it"):
            client.read(bytes(16))
        others().open(tmp_path, index="lmdb")
        assert len(client.read_many(ids(range(200)))) == 200


def test_reader_without_lock_permission_is_refused(tmp_path, writer, monkeypatch):
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(msgstore.StoreIOError, match=r"readers must be registered there"):
        reading(tmp_path)
    writer.do("store.close()")
    with reading(tmp_path) as store, store.client() as client:
        assert client.read_many(ids(range(10))) == bodies(range(10))
        writer.open(tmp_path, index="lmdb")
        with pytest.raises(msgstore.StoreError, match=r"cannot read beside it: .* readers must be registered there"):
            client.read(bytes(16))


def test_reading_verbs_beside_writer_work(tmp_path, writer, others):
    tool = others()
    writer.open(tmp_path, index="lmdb")
    writer.write(range(10))
    tool.do("from support import command")

    def run(*arguments: object, code: int = 0) -> str:
        return tool.do(f"command(*{list(map(str, arguments))!r}, code={code}).output")

    assert json.loads(run("info", "--json", tmp_path))["recovery"]["how"] == "live"
    assert len(run("ls", tmp_path).splitlines()) == 11
    run("get", tmp_path, ids(range(3, 4))[0].hex())
    assert f"process {writer.pid} has the store open for writing" in run("verify", tmp_path, code=2)


def test_second_store_in_process_is_refused(tmp_path):
    """LMDB cannot be opened twice in one process; and a writer in this process is no other process."""
    with msgstore.open_store(tmp_path, index="lmdb"), pytest.raises(msgstore.StoreLocked, match="this process"):
        reading(tmp_path)
    lock = WriterLock(tmp_path)
    with pytest.raises(msgstore.StoreLocked, match="this process"):
        reading(tmp_path)
    lock.release()
