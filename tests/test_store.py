"""The store as its users meet it: what its calls promise, one by one."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import UnsyncedFiles
from support import DATA, failing, hashes, in_threads, open_with

KEYS = {"sync_interval": "1h"}
ID, OTHER, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))


def test_read_before_flush_and_after_restart_finds_body(opened):
    store = opened()
    client = store.client("worker")
    client.write(ID, b"body")
    client.write_many([(OTHER, b""), (THIRD, bytearray(b"mutable"))])
    for _ in range(2):
        assert [client.read(i) for i in (ID, OTHER, THIRD)] == [b"body", b"", b"mutable"]
        assert client.read_many([THIRD, ID, bytes(16)]) == {ID: b"body", THIRD: b"mutable"}
        assert client.contains(OTHER)
        assert not client.contains(bytes(16))
        store.flush()
    store.close()
    with opened() as store, store.client() as client:
        assert client.read(THIRD) == b"mutable"
        assert store.stats().recovery.how == "trust"


def test_confirms_come_once_per_flush_in_order(opened):
    calls = []
    store = opened()
    with store.client("a", on_confirm=calls.append) as client, store.client("b") as other:
        client.write(ID, b"1")
        client.write(OTHER, b"2")
        client.write(ID, b"1")
        client.remove([OTHER])  # meets its write before the flush: never on disk, and confirmed
        other.write(THIRD, b"3")
        assert calls == []
        store.flush()
        assert calls == [[ID, OTHER, ID]]
        store.flush()
        assert calls == [[ID, OTHER, ID]]
        client.write(THIRD, b"3")
    assert calls == [[ID, OTHER, ID], [THIRD]]  # closing the client confirms


def test_confirm_callback_reading_gets_body(opened):
    store = opened()
    seen = []
    client = store.client("c", on_confirm=lambda ids: seen.extend(client.read(i) for i in ids))
    client.write(ID, b"1")
    store.flush()
    assert seen == [b"1"]


def test_idle_writer_is_confirmed_within_interval(opened):
    confirmed = threading.Event()
    store = opened(sync_interval="10ms")
    store.client("idle", on_confirm=lambda ids: confirmed.set()).write(ID, b"1")
    assert confirmed.wait(30)
    assert store.stats().pending == 0


def test_calls_without_sync_interval_are_flushed(opened):
    store = opened(sync_interval=0)
    client = store.client()
    client.write(ID, b"")
    assert store.stats().pending == 0
    client.remove([ID])
    store.abandon()
    if store._opened.backends.settings.index == "lmdb":
        assert opened().stats().messages == 0


def test_writes_above_buffer_target_drain_the_oldest(opened):
    """Nobody flushes here; the oldest messages go to the segments, the youngest are held back."""
    store = opened(file_size_limit="1GiB")
    client = store.client()
    for number in range(40):
        client.write(bytes([number]) * 16, bytes([number]) * 2**20)
    stats = store.stats()
    assert stats.pending <= 32  # a persistent index may be committing: then the window is twice as large
    assert stats.live_bytes >= 7 * 2**20
    assert stats.messages == 40
    assert all(client.read(bytes([number]) * 16) == bytes([number]) * 2**20 for number in range(40))


def test_removal_of_last_reference_removes_message(opened):
    store = opened()
    client = store.client()
    for _ in range(3):
        client.write(ID, b"body")
    store.flush()
    client.write(ID, b"another body is ignored")
    assert store.references(ID) == 4
    client.remove([ID, ID])
    client.remove([ID])
    assert client.read(ID) == b"body"
    client.remove([ID])
    with pytest.raises(msgstore.MessageNotFound, match=ID.hex()):
        client.read(ID)


def test_removal_of_absent_ids_names_only_them(opened):
    store = opened()
    client = store.client()
    client.write(ID, b"1")
    client.write(OTHER, b"2")
    store.flush()
    with pytest.raises(msgstore.MessageNotFound) as caught:
        client.remove([THIRD, ID, THIRD])
    assert caught.value.ids == (THIRD, THIRD)
    assert isinstance(caught.value, KeyError)
    assert not client.contains(ID)
    assert client.contains(OTHER)


@pytest.mark.parametrize("wrong", [b"short", b"x" * 17, "x" * 16, 16, None, bytearray(16)])
def test_call_with_wrong_id_raises_valueerror(opened, wrong):
    client = opened().client()
    for call in (
        lambda: client.write(wrong, b""),
        lambda: client.read(wrong),
        lambda: client.read_many([wrong]),
        lambda: client.remove([wrong]),
        lambda: client.contains(wrong),
    ):
        with pytest.raises(ValueError, match="16 bytes"):
            call()


def test_removal_of_single_id_raises_valueerror(opened):
    with pytest.raises(ValueError, match=r"remove\(\[msg_id\]\)"):
        opened().client().remove(ID)


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_write_of_wrong_body_raises_typeerror(opened, wrong):
    with pytest.raises(TypeError, match="a body is bytes"):
        opened().client().write(ID, wrong)


def test_close_twice_is_harmless_and_refuses_calls(opened):
    store = opened()
    client = store.client("c")
    client.write(ID, b"1")
    client.close()
    client.close()
    with pytest.raises(msgstore.StoreClosed, match="the client 'c' is closed"):
        client.read(ID)
    late = store.client()
    store.close()
    store.close()
    late.close()
    for call in (store.flush, store.stats, store.segments, store.compact, store.client, lambda: late.read(ID)):
        with pytest.raises(msgstore.StoreClosed):
            call()


def test_segments_roll_at_limit_and_isolate_large(opened):
    store = opened(file_size_limit=1000, large_message=500)
    client = store.client()
    for n in range(20):
        client.write(bytes([n]) * 16, b"x" * 100)
    client.write(ID[:15] + b"L", b"L" * 600)
    client.write(ID[:15] + b"M", b"x" * 100)
    store.flush()
    segments = store.segments()
    assert all(s.size < 1000 + 160 for s in segments)
    (large,) = [s for s in segments if s.live_bytes > 600 and s.live_count == 1]
    assert segments.index(large) == len(segments) - 2
    client.remove([ID[:15] + b"L"])
    store.flush()
    assert large.number not in [s.number for s in store.segments()]


def test_segments_over_many_flushes_keep_limit(opened):
    store = opened(file_size_limit=1000)
    client = store.client()
    for begin in range(0, 40, 5):
        for n in range(begin, begin + 5):
            client.write(bytes([n]) * 16, b"x" * 100)
        store.flush()
    assert all(s.size < 1000 + 160 for s in store.segments()), "a segment has more than one record above its limit"


def test_segment_emptied_before_sealing_is_deleted(opened):
    store = opened(gc_interval=0)
    client = store.client()
    client.write(ID, b"body")
    store.flush()
    (emptied,) = store.segments()
    client.remove([ID])
    store.flush()
    assert [s.number for s in store.segments()] == [emptied.number], "the current segment is kept"
    store.roll()
    client.write(OTHER, b"body")
    store.flush()
    assert emptied.number not in [s.number for s in store.segments()]
    assert not (store.path / emptied.file).exists()


def test_second_writer_is_refused_with_holders_pid(opened, tmp_path, cell):
    opened()
    with pytest.raises(msgstore.StoreLocked, match="this process") as caught:
        opened()
    assert caught.value.pid == os.getpid()
    code = f"import msgstore; msgstore.open_store({str(tmp_path / 'store')!r}, index={cell.index!r}, format={cell.format!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"process {os.getpid()} has the store open for writing" in done.stderr


def test_lock_of_killed_process_is_taken_over(tmp_path, cell):
    code = f"""if True:
        import msgstore, os
        store = msgstore.open_store({str(tmp_path)!r}, **{cell.keys!r})
        store.client().write(bytes(16), b"confirmed")
        store.flush()
        os._exit(9)"""
    subprocess.run([sys.executable, "-c", code], check=False)
    with open_with(tmp_path, **cell.keys) as store, store.client() as client:
        assert client.read(bytes(16)) == b"confirmed"
        assert store.stats().recovery.how == ("tail" if cell.index == "lmdb" else "rebuild")


def test_read_only_store_refuses_and_writes_nothing(opened, cell, tmp_path):
    with opened() as store, store.client() as client:
        client.write(ID, b"1")
    before = _fingerprint(tmp_path)
    with opened(mode="r") as store, store.client() as client:
        assert client.read(ID) == b"1"
        for call in (lambda: client.write(ID, b""), lambda: client.remove([ID]), store.flush, store.compact, store.roll):
            with pytest.raises(msgstore.StoreReadOnly):
                call()
    assert _fingerprint(tmp_path) == before
    with pytest.raises(msgstore.StoreError, match="no such directory"):
        open_with(tmp_path / "absent", mode="r", **cell.keys)
    writer = opened()
    with pytest.raises(msgstore.StoreLocked):
        opened(mode="r")
    writer.close()


def _fingerprint(path: Path) -> dict[str, tuple[int, int]]:
    """But for the file in which LMDB notes who reads."""
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in path.rglob("*") if p.name != "lock.mdb"}


class FullDisk(UnsyncedFiles):
    """Refuses to write segments while ``full``, after half of the bytes."""

    full = False

    def pwrite(self, fd, data, offset):
        if self.full:
            super().pwrite(fd, memoryview(data)[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, offset)


def test_full_disk_loses_nothing_and_writing_resumes(opened, tmp_path):
    files, confirmed = FullDisk(), []
    store = opened(files)
    client = store.client("c", on_confirm=confirmed.extend)
    client.write(ID, b"before")
    store.flush()
    files.full = True
    client.write(OTHER, b"x" * 5000)
    with pytest.raises(msgstore.StoreIOError, match=r"0\.\w+ at offset \d+: No space left on device"):
        store.flush()
    with pytest.raises(msgstore.StoreIOError):
        store.close()
    assert confirmed == [ID]
    assert client.read(ID) == b"before"
    assert client.read(OTHER) == b"x" * 5000
    files.full = False
    store.flush()
    assert confirmed == [ID, OTHER]
    store.close()
    with opened() as store:
        assert len(hashes(store)) == 2
        assert sum(s.garbage_bytes for s in store.segments()) == 0


def test_many_segments_need_few_descriptors(opened, monkeypatch):
    monkeypatch.setattr("msgstore.engine.segment.read_files.MAX_OPEN", 8)
    store = opened(UnsyncedFiles(), file_size_limit=200)
    client = store.client()
    ids = [bytes([n]) * 16 for n in range(100)]
    for msg_id in ids:
        client.write(msg_id, msg_id * 20)
    store.flush()
    assert len(store.segments()) == 100
    for msg_id in ids + ids[::-1]:
        assert client.read(msg_id) == msg_id * 20
    assert len(store._segments.read_files.readers) <= 8


def test_read_of_damaged_record_names_place(opened, tmp_path, cell):
    with opened() as store, store.client() as client:
        client.write(ID, b"x" * 50)
        client.write(OTHER, b"y" * 50)
    (segment,) = (tmp_path / "store").glob("0.*")
    data = bytearray(segment.read_bytes())
    stat = segment.stat()
    data[data.index(ID)] ^= 1
    segment.write_bytes(data)
    os.utime(segment, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with opened() as store, store.client() as client:
        with pytest.raises(msgstore.CorruptRecord, match=rf"{segment.name} at offset \d+: .*{ID.hex()}") as caught:
            client.read(ID)
        assert caught.value.msg_id == ID
        assert client.read(OTHER) == b"y" * 50
        with pytest.raises(msgstore.CorruptRecord):
            client.read_many([OTHER, ID])


def test_read_of_cut_segment_raises_corruptrecord(opened, tmp_path, cell):
    store = opened()
    client = store.client()
    client.write(ID, b"x" * 50)
    client.write(OTHER, b"y" * 50)
    store.flush()
    (segment,) = (tmp_path / "store").glob("0.*")
    os.truncate(segment, segment.stat().st_size - 10)
    with pytest.raises(msgstore.CorruptRecord, match="size_mismatch"):
        client.read(OTHER)
    with pytest.raises(msgstore.CorruptRecord, match="size_mismatch"):
        client.read_many([ID, OTHER])
    assert client.read(ID) == b"x" * 50


def test_wrong_refcounts_raise_valueerror(tmp_path, cell):
    for wrong in ([(b"short", 1)], [(ID, "1")]):
        real = DATA / "msg-store" / ("v1_clean" if cell.format == "v1" else "v2_clean") / "store"
        path = tmp_path / "store"
        if not path.exists():
            path.mkdir()
            for file in real.iterdir():
                (path / file.name).write_bytes(file.read_bytes())
        with pytest.raises(ValueError, match="refcounts"):
            open_with(path, refcounts=wrong, **cell.keys)
        assert (path / "clean.dot").exists(), "an opening that failed leaves RabbitMQ's files alone"


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
            for turn in range(30):
                extra = [(1000 + turn).to_bytes(2, "big") * 7 + bytes([n, 0]) for n in range(100)]
                client.write_many((i, i * 5) for i in extra)
                store.flush()
                client.remove(extra)
                store.compact(everything=True)
        finally:
            stop.set()

    in_threads(read, read, read, change)


def test_mapped_reads_follow_writes_and_compaction(cell, opened):
    class Cutting(UnsyncedFiles):
        def truncate(self, fd, size):
            at_the_cut.append(dict(store._segments.read_files.maps))
            super().truncate(fd, size)

    at_the_cut = []
    store = opened(Cutting(), reads="mmap")
    client = store.client()
    bodies = {n.to_bytes(16, "big"): n.to_bytes(2, "big") * 100 for n in range(1, 200)}
    for msg_id, body in bodies.items():
        client.write(msg_id, body)
        store.flush()
        assert client.read(msg_id) == body
    assert all(client.read(msg_id) == body for msg_id, body in bodies.items())
    assert len(store._segments.read_files.maps) == 1  # which the reads came from, as its length tells
    assert len(store._segments.read_files.maps[0][0]) == store.segments()[0].size
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
    assert len(store._segments.read_files.maps) == 1
    store.close()
    with pytest.raises(msgstore.StoreClosed):
        client.read(next(iter(bodies)))


def test_read_only_store_never_maps(opened, tmp_path):
    with opened() as store, store.client() as client:
        client.write(ID, b"body")
    store = opened(reads="mmap", mode="r")
    assert store.client().read(ID) == b"body"
    assert not store._segments.read_files.maps


def test_stale_entry_is_found_or_messagenotfound(opened):
    """It is a message that is asked for: wherever it is by now, or nowhere. Nothing of it is damage."""
    store = opened(gc_interval=0)
    client = store.client()
    ids = [bytes([n]) * 16 for n in range(10)]
    client.write_many((msg_id, b"body of %d" % msg_id[0]) for msg_id in ids)
    store.flush()
    entries = list(store.entries())
    client.remove(ids[:9])
    store.roll()
    store.compact(everything=True)
    assert store.stored_body(entries[9]) == store.record(entries[9]).body == b"body of 9"
    client.remove(ids[9:])
    store.flush()
    for entry in entries:
        for ask in (store.stored_body, store.record):
            with pytest.raises(msgstore.MessageNotFound) as caught:
                ask(entry)
            assert caught.value.ids == (entry.msg_id,)
    assert store.stats().counters.corruptions == 0


_COLLECTS = """
import sys, msgstore
with msgstore.open_store(sys.argv[1], index=sys.argv[2], format=sys.argv[3], gc_interval=0) as store, store.client() as client:
    client.remove([bytes([n]) * 16 for n in range(9)])
    store.roll()
    assert store.compact(everything=True)
"""


def test_snapshot_after_other_writer_reports_no_damage(opened, cell, tmp_path):
    """What reads a snapshot cannot know where messages are by now; it says so, and counts nothing as damaged."""
    with opened() as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body of %d" % n) for n in range(10))
    with msgstore.open_store(tmp_path / "store", mode="r", **cell.keys) as store, store.client() as client:
        entries = list(store.entries())
        subprocess.run([sys.executable, "-c", _COLLECTS, tmp_path / "store", cell.index, cell.format], check=True)
        if cell.index == "lmdb":
            assert client.read(bytes([9]) * 16) == store.stored_body(entries[9]) == b"body of 9"
        else:
            for ask in (
                lambda: client.read(bytes([9]) * 16),
                lambda: client.read_many([bytes([9]) * 16]),
                lambda: store.stored_body(entries[9]),
                lambda: store.record(entries[9]),
            ):
                with pytest.raises(
                    msgstore.StoreError, match=r"another process has opened the store .* open it again"
                ) as caught:
                    ask()
                assert type(caught.value) is msgstore.StoreError
        assert store.stats().counters.corruptions == 0


@pytest.mark.parametrize("wrong", [b"", b"fifteen bytes..", b"seventeen bytes.!", "sixteen letters!", bytearray(16), None, 16])
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_lookup_of_wrong_id_raises_valueerror(opened, cell, tmp_path, mode, wrong):
    """It is a mistake, as it is to read it; not a message that is not there."""
    with opened() as store, store.client() as client:
        client.write(ID, b"body")
    with msgstore.open_store(tmp_path / "store", mode=mode, **cell.keys) as store, store.client() as client:
        for ask in (store.references, store.entry, client.read, client.contains):
            with pytest.raises(ValueError, match="a message id is 16 bytes, not"):
                ask(wrong)
        assert (store.references(ID), store.references(OTHER), store.entry(OTHER)) == (1, 0, None)


def test_unreadable_index_error_names_the_store(opened, monkeypatch):
    store = opened()

    monkeypatch.setattr(type(store._index), "references", failing())
    with pytest.raises(msgstore.StoreIOError, match=str(store.path)):
        store.references(ID)


def test_damaged_record_of_relative_store_names_its_path(cell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with msgstore.open_store("data/orders", **cell.keys) as store, store.client() as client:
        client.write(bytes(16), b"body")
        store.flush()
        (segment,) = store.segments()
        path = Path("data/orders", segment.file)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(msgstore.CorruptRecord, match=rf"^{re.escape(str(path))} at offset"):
            client.read(bytes(16))
        store.abandon()


def test_abandon_with_failing_file_ends_threads(opened, tmp_path):
    class Failing(UnsyncedFiles):
        is_failing = False

        def size_and_mtime(self, file):
            if self.is_failing:
                raise OSError(errno.EIO, "injected")
            return super().size_and_mtime(file)

    files = Failing()
    store = opened(files)
    store.client().write(bytes(16), b"body")
    store.flush()
    files.is_failing = True
    with pytest.raises(msgstore.StoreIOError):
        store.abandon()
    assert not [thread.name for thread in threading.enumerate() if str(tmp_path) in thread.name]
    store.abandon()
