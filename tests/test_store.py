"""The store as its users meet it: what its calls promise, one by one."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import UnsyncedFiles
from support import A, B, C, FullDisk, RealDirectory, failing, flip, hashes, in_threads, open_with, play, slow, unchanged, until

KEYS = {"sync_interval": "1h"}
IDS = [bytes([n]) * 16 for n in range(10)]
WRONG_IDS = [b"", b"fifteen bytes..", b"seventeen bytes.!", "sixteen letters!", bytearray(16), None, 16]


def test_read_before_flush_and_after_restart_finds_body(opened, store):
    client = store.client("worker")
    client.write(A, b"body")
    client.write_many([(B, b""), (C, bytearray(b"mutable"))])
    for _ in range(2):
        assert [client.read(i) for i in (A, B, C)] == [b"body", b"", b"mutable"]
        assert client.read_many([C, A, bytes(16)]) == {A: b"body", C: b"mutable"}
        assert (client.contains(B), client.contains(bytes(16))) == (True, False)
        store.flush()
    store.close()
    with opened() as store, store.client() as client:
        assert client.read(C) == b"mutable"
        assert store.stats().recovery.how == "trust"


def test_confirms_come_once_per_flush_in_order(store):
    calls, seen = [], []
    with store.client("a", on_confirm=calls.append) as client, store.client("b") as other:
        client.write(A, b"1")
        client.write(B, b"2")
        client.write(A, b"1")
        client.remove([B])  # meets its write before the flush: never on disk, and confirmed
        other.write(C, b"3")
        assert calls == []
        for _ in range(2):
            store.flush()
            assert calls == [[A, B, A]]
        client.write(C, b"3")
    assert calls == [[A, B, A], [C]]  # closing the client confirms
    client = store.client("c", on_confirm=lambda ids: seen.extend(map(client.read, ids)))
    client.write(A, b"1")
    store.flush()
    assert seen == [b"1"], "a callback reads what is confirmed"


def test_idle_writer_is_confirmed_within_interval(opened, cell):
    """And at once without an interval; a removal, too."""
    confirmed = threading.Event()
    store = opened(sync_interval="10ms")
    store.client("idle", on_confirm=lambda ids: confirmed.set()).write(A, b"1")
    assert confirmed.wait(30)
    assert store.stats().pending == 0
    store.close()
    store = opened(sync_interval=0)
    play(store, "+B")
    assert store.stats().pending == 0
    play(store, "-AB")
    store.abandon()
    if cell.index == "lmdb":
        assert opened().stats().messages == 0


@pytest.mark.parametrize("clients", [1, 10])
def test_writes_above_buffer_target_drain_the_oldest(opened, clients):
    """Without a flush, the oldest messages reach the segments and the newest stay buffered."""
    # With these limits nothing asks for a flush. While one runs, writers may keep more in the buffer.
    store = opened(file_size_limit="1GiB", max_unconfirmed="1GiB")
    writers = [store.client() for _ in range(clients)]
    for number in range(40):
        writers[number % clients].write(bytes([number]) * 16, bytes([number]) * 2**20)
    stats = store.stats()
    assert stats.pending <= 16
    assert stats.live_bytes >= 24 * 2**20
    assert stats.messages == 40
    assert all(store.read(bytes([number]) * 16) == bytes([number]) * 2**20 for number in range(40))


@pytest.mark.parametrize("steps", ["+AAB", "+AAB f"], ids=["buffered", "on disk"])
def test_removal_of_absent_references_names_them(store, client, steps):
    play(store, steps)
    client.write(A, b"another body is ignored")
    client.remove([A])
    assert (client.read(A), store.references(A)) == (A * 3, 2)
    with pytest.raises(msgstore.MessageNotFound, match=A.hex()) as caught:
        client.remove([C, A, A, A, C])
    assert (sorted(caught.value.ids), isinstance(caught.value, KeyError)) == ([A, C, C], True)
    with pytest.raises(msgstore.MessageNotFound, match=A.hex()):
        client.read(A)
    assert (store.references(A), client.contains(A), client.contains(B)) == (0, False, True)


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_call_with_wrong_id_raises_valueerror(opened, mode):
    """It is a mistake, as it is to read it; not a message that is not there."""
    with opened() as store, store.client() as client:
        client.write(A, b"body")
    with opened(mode=mode) as store, store.client() as client:
        calls = [store.references, store.entry, client.read, client.contains, lambda wrong: client.read_many([wrong])]
        if mode == "rw":
            calls += [lambda wrong: client.write(wrong, b""), lambda wrong: client.remove([wrong])]
        for call, wrong in itertools.product(calls, WRONG_IDS):
            with pytest.raises(ValueError, match="a message id is 16 bytes, not"):
                call(wrong)
        assert (store.references(A), store.references(B), store.entry(B)) == (1, 0, None)


def test_calls_with_wrong_types_say_what_they_take(store, client):
    with pytest.raises(ValueError, match=r"remove\(\[msg_id\]\)"):
        client.remove(A)
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError, match="a body is bytes"):
            client.write(A, wrong)
    for wrong in (5, b"".join, object()):
        with pytest.raises(TypeError, match="text or bytes"):
            store.client(wrong)
    store.client("\udc80").close()


def test_close_twice_is_harmless_and_refuses_calls(store):
    confirmed = []
    client = store.client("c", on_confirm=confirmed.extend)
    write = client.write
    write(A, b"1")
    client.close()
    client.close()
    assert confirmed == [A]
    for call in (partial(write, B, b"2"), partial(client.write, B, b"2"), partial(client.remove, [A]), partial(client.read, A)):
        with pytest.raises(msgstore.StoreClosed, match="the client 'c' is closed"):
            call()
    late = store.client()
    store.close()
    store.close()
    late.close()
    for call in (store.flush, store.stats, store.segments, store.compact, store.client, lambda: late.read(A)):
        with pytest.raises(msgstore.StoreClosed):
            call()


@pytest.mark.parametrize("each", [20, 5], ids=["one flush", "many flushes"])
def test_segments_roll_at_limit_and_isolate_large(opened, each):
    store = opened(file_size_limit=1000, large_message=500)
    client = store.client()
    for begin in range(0, 40, each):
        client.write_many((bytes([n]) * 16, b"x" * 100) for n in range(begin, begin + each))
        store.flush()
    client.write_many([(b"L" * 16, b"L" * 600), (b"M" * 16, b"x" * 100)])
    store.flush()
    segments = store.segments()
    assert all(s.size < 1000 + 160 for s in segments), "a segment has more than one record above its limit"
    (large,) = [s for s in segments if s.live_bytes > 600 and s.live_count == 1]
    assert segments.index(large) == len(segments) - 2
    client.remove([b"L" * 16])
    store.flush()
    assert large.number not in [s.number for s in store.segments()]


def test_segment_emptied_before_sealing_is_deleted(opened):
    store = opened(gc_interval=0)
    play(store, "+A f")
    (emptied,) = store.segments()
    play(store, "-A f")
    assert [s.number for s in store.segments()] == [emptied.number], "the current segment is kept"
    play(store, "r +B f")
    assert emptied.number not in [s.number for s in store.segments()]
    assert not (store.path / emptied.file).exists()


def test_second_writer_is_refused_with_holders_pid(opened, store):
    with pytest.raises(msgstore.StoreLocked, match="this process") as caught:
        opened()
    assert caught.value.pid == os.getpid()


WRITER = """
import json, os, sys, msgstore
try:
    store = msgstore.open_store(sys.argv[1], **json.loads(sys.argv[2]))
except msgstore.StoreLocked as error:
    sys.exit(str(error))
with store, store.client() as client:
    if sys.argv[3] == "is killed":
        client.write(bytes(16), b"confirmed")
        store.flush()
        os._exit(9)
    client.remove([bytes([n]) * 16 for n in range(9)])
    store.roll()
    assert store.compact(everything=True)
"""


def other_writer(path: Path, keys: dict[str, object], how: str) -> str:
    """Open a store in another process, which writes and "is killed", or "compacts". Return its last words."""
    arguments = [sys.executable, "-c", WRITER, str(path), json.dumps(keys | {"gc_interval": 0}), how]
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("wanted", ["ets", slow("lmdb")])
def test_other_writer_is_refused_until_killed(wanted, cells, tmp_path):
    """With a cell of this index, or the first one: the lock knows nothing of formats."""
    path, keys = tmp_path / "store", next((cell.keys for cell in cells if cell.index == wanted), cells[0].keys)
    with open_with(path, **keys):
        assert f"process {os.getpid()} has the store open for writing" in other_writer(path, keys, "is killed")
    assert other_writer(path, keys, "is killed") == ""
    with open_with(path, **keys) as store:
        assert store.read(bytes(16)) == b"confirmed"
        assert store.stats().recovery.how == ("tail" if keys["index"] == "lmdb" else "rebuild")


def test_read_only_store_refuses_and_writes_nothing(opened, cell, tmp_path):
    with opened() as store, store.client() as client:
        client.write(A, b"1")
    with unchanged(tmp_path), opened(mode="r", reads="mmap") as store, store.client() as client:
        assert client.read(A) == b"1"
        assert not store._segments.read_files.maps, "a read-only store maps no file"
        for call in (lambda: client.write(A, b""), lambda: client.remove([A]), store.flush, store.compact, store.roll):
            with pytest.raises(msgstore.StoreReadOnly):
                call()
    with pytest.raises(msgstore.StoreError, match="no such directory"):
        open_with(tmp_path / "absent", mode="r", **cell.keys)
    with opened(), pytest.raises(msgstore.StoreLocked):
        opened(mode="r")


def test_full_disk_loses_nothing_and_writing_resumes(opened):
    files, confirmed = FullDisk(), []
    store = opened(files)
    client = store.client("c", on_confirm=confirmed.extend)
    play(store, "+A f", client)
    files.full = True
    client.write(B, b"x" * 5000)
    for call in (store.flush, store.close):
        with pytest.raises(msgstore.StoreIOError, match=r"0\.\w+ at offset \d+: No space left on device"):
            call()
    assert confirmed == [A]
    assert client.read_many([A, B]) == {A: A * 3, B: b"x" * 5000}
    files.full = False
    store.close()
    assert confirmed == [A, B]
    with opened() as store:
        assert len(hashes(store)) == 2


def test_client_close_while_store_is_closed_raises(opened):
    """It cannot say that its messages are confirmed: the last write of the store may fail yet."""
    store, raised = opened(sync_interval="1h"), []
    other = store.client()

    def close_other():
        with pytest.raises(msgstore.StoreClosed, match="is being closed"):
            other.close()
        raised.append(1)

    def confirmed(ids):
        if ids == [A]:
            client.write(B, b"late")
            other.write(C, b"late")
        else:  # in the last write of the close
            in_threads(close_other)

    client = store.client(on_confirm=confirmed)
    client.write(A, b"1")
    store.close()
    assert raised
    other.close()


def test_flusher_after_failed_close_confirms(opened, files):
    """It comes while the store is being closed, and is refused; then the disk is full, and the store stays open."""
    confirmed, refused = [], []
    store = opened(files, sync_interval="1h")
    client = store.client(on_confirm=lambda ids: (confirmed.extend(ids), ids == [A] and client.write(B, b"late")))
    client.write(A, b"1")
    background = store._writer.background
    flush = background._flush

    def flush_later():
        try:
            flush()
        except msgstore.StoreClosed:
            refused.append(1)
            raise

    def fail():
        if B in store._buffer.pending:  # the last write of the close
            background._interval = 0.001
            background.request()
            until(lambda: refused, 5)
            failing()()

    background._flush = flush_later
    files.before("pwrite", fail, times=None)
    with pytest.raises(msgstore.StoreIOError):
        store.close()
    files.hooks.clear()
    client.write(C, b"3")
    until(lambda: confirmed == [A, B, C], 5)


def test_many_segments_need_few_descriptors(opened, monkeypatch):
    monkeypatch.setattr("msgstore.engine.segment.segment.MAX_OPEN", 8)
    store = opened(UnsyncedFiles(), file_size_limit=200)
    client = store.client()
    ids = [bytes([n]) * 16 for n in range(100)]
    client.write_many((msg_id, msg_id * 20) for msg_id in ids)
    store.flush()
    assert len(store.segments()) == 100
    for msg_id in ids + ids[::-1]:
        assert client.read(msg_id) == msg_id * 20
    assert len(store._segments.read_files.readers) <= 8


def test_read_of_damaged_record_names_place(cell, tmp_path, monkeypatch):
    """Also of one that a segment is too short for; with the path as the store was opened by."""
    monkeypatch.chdir(tmp_path)
    with msgstore.open_store("data/orders", **cell.keys) as store:
        play(store, "+ABC")
    (segment,) = Path("data/orders").glob("0.*")
    stat = segment.stat()
    flip(segment, segment.read_bytes().index(A), 1)
    os.utime(segment, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with msgstore.open_store("data/orders", **cell.keys) as store:
        client = store.client()
        with pytest.raises(msgstore.CorruptRecord, match=rf"^{segment} at offset \d+: .*{A.hex()}") as caught:
            client.read(A)
        assert caught.value.msg_id == A
        os.truncate(segment, stat.st_size - 10)
        for read in (partial(client.read, C), partial(client.read_many, [B, C])):
            with pytest.raises(msgstore.CorruptRecord, match=rf"^{segment} at offset .*size_mismatch.*the file ends 10 bytes"):
                read()
        assert client.read(B) == B * 3
        store.abandon()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([(b"short", 1)], "not a 16-byte id and an integer"),
        ([(A, "1")], "refcounts"),
        ([(A, 1.5)], "an integer"),
        ([(A, 2**48)], "at most"),
        ([(A, 2**47)] * 2, "at most 281474976710655"),
    ],
)
def test_wrong_refcounts_raise_valueerror(tmp_path, cell, wrong, said):
    path = RealDirectory.load(f"{cell.format}_clean").copy(tmp_path)
    with unchanged(path), pytest.raises(ValueError, match=said):
        open_with(path, refcounts=wrong, adopt=True, **cell.keys)
    with pytest.raises(ValueError, match=said):
        open_with(tmp_path / "new", refcounts=wrong, **cell.keys)
    assert not (tmp_path / "new").exists()


def test_reads_beside_writers_and_compaction_find_bodies(opened):
    """Not a stress test; it holds the promise that calls from several threads take turns."""
    store = opened(UnsyncedFiles(), file_size_limit=20_000)
    client = store.client()
    keep = [n.to_bytes(2, "big") * 8 for n in range(300)]
    client.write_many((i, i * 9) for i in keep)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            for msg_id in keep:
                assert client.read(msg_id) == msg_id * 9

    def change():
        try:
            for turn in range(15):
                extra = [(1000 + turn).to_bytes(2, "big") * 7 + bytes([n, 0]) for n in range(100)]
                client.write_many((i, i * 5) for i in extra)
                store.flush()
                client.remove(extra)
                store.compact(everything=True)
        finally:
            stop.set()

    in_threads(read, read, read, change)


def test_mapped_reads_follow_writes_and_compaction(cell, opened, files):
    store = opened(files, reads="mmap")
    at_the_cut, maps = [], store._segments.read_files.maps
    files.before("truncate", lambda: at_the_cut.append(dict(maps)), times=None)
    client = store.client()
    bodies = {n.to_bytes(16, "big"): n.to_bytes(2, "big") * 100 for n in range(1, 200)}
    for msg_id, body in bodies.items():
        client.write(msg_id, body)
        store.flush()
        assert client.read(msg_id) == body
    assert {msg_id: client.read(msg_id) for msg_id in bodies} == bodies
    assert len(maps) == 1  # which the reads came from, as its length tells
    assert len(maps[0][0]) == store.segments()[0].size
    store.roll()
    removed = [msg_id for n, msg_id in enumerate(bodies) if n % 3]
    client.remove(removed)
    store.compact(everything=True)
    assert at_the_cut == ([] if cell.format == "v1" else [{}])  # v1 is copied
    for msg_id in removed:
        with pytest.raises(msgstore.MessageNotFound):
            client.read(msg_id)
        del bodies[msg_id]
    for _ in range(2):
        assert {msg_id: client.read(msg_id) for msg_id in bodies} == bodies
    assert len(maps) == 1
    store.close()
    with pytest.raises(msgstore.StoreClosed):
        client.read(next(iter(bodies)))


def test_stale_entry_is_found_or_messagenotfound(opened):
    """It is a message that is asked for: wherever it is by now, or nowhere. Nothing of it is damage."""
    store = opened(gc_interval=0)
    client = store.client()
    client.write_many((msg_id, b"body of %d" % msg_id[0]) for msg_id in IDS)
    store.flush()
    entries = list(store.entries())
    client.remove(IDS[:9])
    store.roll()
    store.compact(everything=True)
    assert store.stored_body(entries[9]) == store.record(entries[9]).body == b"body of 9"
    client.remove(IDS[9:])
    store.flush()
    for entry in entries:
        for ask in (store.stored_body, store.record):
            with pytest.raises(msgstore.MessageNotFound) as caught:
                ask(entry)
            assert caught.value.ids == (entry.msg_id,)
    assert store.stats().counters.corruptions == 0


def test_snapshot_after_other_writer_reports_no_damage(index, cells, tmp_path):
    """What reads a snapshot cannot know where messages are by now; it says so, and counts nothing as damaged."""
    path, keys = tmp_path / "store", next(cell.keys for cell in cells if cell.index == index)
    with open_with(path, **keys) as store:
        store.client().write_many((msg_id, b"body of %d" % msg_id[0]) for msg_id in IDS)
    with open_with(path, mode="r", **keys) as store, store.client() as client:
        last = list(store.entries())[9]
        assert other_writer(path, keys, "compacts") == ""
        if index == "lmdb":
            assert client.read(IDS[9]) == store.stored_body(last) == b"body of 9"
        else:
            for ask, argument in (
                (client.read, IDS[9]), (client.read_many, IDS[9:]), (store.stored_body, last), (store.record, last),
            ):  # fmt: skip
                with pytest.raises(msgstore.StoreError, match=r"another process has opened the store .* again") as caught:
                    ask(argument)
                assert type(caught.value) is msgstore.StoreError
        assert store.stats().counters.corruptions == 0


def test_unreadable_index_error_names_the_store(store, monkeypatch):
    monkeypatch.setattr(type(store._index), "references", failing())
    with pytest.raises(msgstore.StoreIOError, match=str(store.path)):
        store.references(A)


def test_abandon_with_failing_file_ends_threads(opened, monkeypatch, tmp_path):
    files = UnsyncedFiles()
    store = opened(files)
    store.client().write(bytes(16), b"body")
    store.flush()
    monkeypatch.setattr(files, "size_and_mtime", failing())
    with pytest.raises(msgstore.StoreIOError):
        store.abandon()
    assert not [thread.name for thread in threading.enumerate() if str(tmp_path) in thread.name]
    store.abandon()
