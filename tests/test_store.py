"""The store as its users meet it: what its calls promise, one by one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import RecordingFiles, UnsyncedFiles
from support import DATA, hashes, open_with

ID, OTHER, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))


@pytest.fixture
def opened(cell, tmp_path):
    """Opens the store of the test, with other keys if given; closes what is still open."""
    stores = []

    def open_it(files=None, **keys):
        stores.append(open_with(tmp_path / "store", files, **{**cell.keys, "sync_interval": "1h", **keys}))
        return stores[-1]

    yield open_it
    for store in stores:
        store.abandon()


def test_what_was_written_is_read_before_and_after_the_flush_and_after_a_restart(opened):
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


def test_confirms_come_once_a_flush_in_the_order_of_writing(opened):
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


def test_a_callback_that_raises_is_contained_and_counted(opened, caplog):
    def fail(ids):
        raise RuntimeError("the user's own mistake")

    store = opened()
    store.client("bad", on_confirm=fail).write(ID, b"1")
    store.flush()
    assert store.stats().callback_failures == 1
    assert "the user's own mistake" in caplog.text


def test_a_callback_may_use_the_store(opened):
    store = opened()
    seen = []
    client = store.client("c", on_confirm=lambda ids: seen.extend(client.read(i) for i in ids))
    client.write(ID, b"1")
    store.flush()
    assert seen == [b"1"]


def test_an_idle_writer_is_confirmed_within_the_interval(opened):
    confirmed = threading.Event()
    store = opened(sync_interval="10ms")
    store.client("idle", on_confirm=lambda ids: confirmed.set()).write(ID, b"1")
    assert confirmed.wait(30)
    assert store.stats().pending == 0


def test_without_an_interval_each_call_is_flushed(opened):
    store = opened(sync_interval=0)
    client = store.client()
    client.write(ID, b"")
    assert store.stats().pending == 0
    client.remove([ID])
    store.abandon()
    if store._opened.backends.settings.index == "lmdb":
        assert opened().stats().messages == 0


def test_what_is_above_the_window_is_written_by_whoever_writes(opened):
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


def test_the_last_reference_takes_the_message_away(opened):
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


def test_removing_absent_ids_names_them_and_removes_the_others(opened):
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


def test_a_late_second_write_revives_a_record_of_the_current_segment(opened):
    files = RecordingFiles()
    store = opened(files)
    client = store.client()
    client.write(ID, b"x" * 100)
    store.flush()
    client.remove([ID])
    before = files.count("pwrite")
    client.write(ID, b"x" * 100)
    store.flush()
    assert files.count("pwrite") == before
    assert client.read(ID) == b"x" * 100
    assert [s.live_count for s in store.segments()] == [1]


@pytest.mark.parametrize("wrong", [b"short", b"x" * 17, "x" * 16, 16, None, bytearray(16)])
def test_an_id_is_sixteen_bytes(opened, wrong):
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


def test_remove_takes_several_ids(opened):
    with pytest.raises(ValueError, match=r"remove\(\[msg_id\]\)"):
        opened().client().remove(ID)


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_a_body_is_bytes(opened, wrong):
    with pytest.raises(TypeError, match="a body is bytes"):
        opened().client().write(ID, wrong)


def test_everything_is_closed_twice_without_harm_and_refuses_afterwards(opened):
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


def test_segments_roll_at_the_limit_and_large_messages_stand_alone(opened):
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


def test_segments_keep_their_limit_over_many_flushes(opened):
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


def test_a_second_writer_is_refused_with_the_holders_pid(opened, tmp_path, cell):
    opened()
    with pytest.raises(msgstore.StoreLocked, match="this process") as caught:
        opened()
    assert caught.value.pid == os.getpid()
    code = f"import msgstore; msgstore.open_store({str(tmp_path / 'store')!r}, index={cell.index!r}, format={cell.format!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"process {os.getpid()} has the store open for writing" in done.stderr


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, cell):
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


def test_read_only_writes_nothing_and_refuses_changes(opened, cell, tmp_path):
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


def test_a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room(opened, tmp_path):
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


def test_a_damaged_record_names_file_offset_and_id(opened, tmp_path, cell):
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


def test_a_segment_that_was_cut_is_an_error_not_a_shorter_body(opened, tmp_path, cell):
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


def test_garbage_in_the_place_of_counts_is_a_value_error(tmp_path, cell):
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


def test_threads_read_while_others_write_remove_and_compact(opened):
    """Not a stress test; it holds the promise that calls from several threads take turns."""
    store = opened(UnsyncedFiles(), file_size_limit=20_000)
    client = store.client()
    keep = [n.to_bytes(2, "big") * 8 for n in range(300)]
    client.write_many((i, i * 9) for i in keep)
    errors: list[BaseException] = []
    stop = threading.Event()

    def read():
        try:
            while not stop.is_set():
                for msg_id in keep:
                    assert client.read(msg_id) == msg_id * 9
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(30):
        extra = [(1000 + turn).to_bytes(2, "big") * 7 + bytes([n, 0]) for n in range(100)]
        client.write_many((i, i * 5) for i in extra)
        store.flush()
        client.remove(extra)
        store.compact(everything=True)
    stop.set()
    for reader in readers:
        reader.join()
    assert not errors


def test_reads_through_mappings_follow_what_is_written_and_never_outlive_a_cut(cell, opened):
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


def test_a_reader_that_is_read_only_never_maps(opened, tmp_path):
    with opened() as store, store.client() as client:
        client.write(ID, b"body")
    store = opened(reads="mmap", mode="r")
    assert store.client().read(ID) == b"body"
    assert not store._segments.read_files.maps


def test_an_entry_that_was_moved_or_removed_since(opened):
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


def test_a_writer_that_came_is_no_damage(opened, cell, tmp_path):
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
def test_what_is_not_an_id_has_no_entry_and_no_references(opened, cell, tmp_path, mode, wrong):
    """It is a mistake, as it is to read it; not a message that is not there."""
    with opened() as store, store.client() as client:
        client.write(ID, b"body")
    with msgstore.open_store(tmp_path / "store", mode=mode, **cell.keys) as store, store.client() as client:
        for ask in (store.references, store.entry, client.read, client.contains):
            with pytest.raises(ValueError, match="a message id is 16 bytes, not"):
                ask(wrong)
        assert (store.references(ID), store.references(OTHER), store.entry(OTHER)) == (1, 0, None)


def test_an_index_that_cannot_be_read_says_which_store(opened, monkeypatch):
    store = opened()

    def fail(index, msg_id):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(type(store._index), "references", fail)
    with pytest.raises(msgstore.StoreIOError, match=str(store.path)):
        store.references(ID)
