"""Meetings of things that are fine alone: callbacks in flushes, removals in flushes, flushes in collections, interrupts."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import msgstore
from msgstore.contract import Combine
from msgstore.engine.compact import copy_compaction as rewriting
from msgstore.engine.write import group_commit
from msgstore.engine.write.writer import BUFFER_TARGET
from msgstore.files import Files
from msgstore.testing.faults import Crash, RecordingFiles
from support import open_with, opening

A, B, C, D = (bytes([number]) * 16 for number in range(1, 5))
KEYS = {"sync_interval": "1h", "gc_interval": 0}
SECONDS = 20


def on_disk(store):
    return {entry.msg_id: entry.references for entry in store.entries()}


def beside(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "a thread hangs"


def id_of(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


class Says:
    def __init__(self, *actions):
        self.actions = list(actions)

    def plan(self, segments, now):
        return self.actions


def test_a_client_that_exits_on_the_flushers_thread_does_not_end_it(opened):
    store, told = opened(sync_interval="1ms"), threading.Event()
    exiting, other = store.client(on_confirm=lambda ids: sys.exit()), store.client(on_confirm=lambda ids: told.set())
    exiting.write(A, b"a")
    deadline = threading.Event()
    deadline.wait(0.2)
    other.write(B, b"b")
    assert told.wait(SECONDS)


def test_a_client_that_writes_the_next_message_whenever_it_is_told(opened):
    store, told = opened(sync_interval=0), []

    def confirmed(ids):
        told.extend(ids)
        if len(told) < 2000:
            client.write(id_of(len(told)), b"body")

    client = store.client(on_confirm=confirmed)
    client.write(id_of(0), b"body")
    store.flush()
    assert set(told) <= on_disk(store).keys()
    assert store.stats().callback_failures == 0
    assert len(told) == 2000


def test_a_flush_writes_what_a_remover_has_in_its_hand(opened):
    store, told = opened(), []
    client = store.client(on_confirm=told.extend)
    client.write(A, b"a")
    client.write(A, b"a")

    def ids():
        yield A
        store.flush()
        assert told == [A, A]
        assert on_disk(store) == {A: 2}

    client.remove(ids())
    assert store.references(A) == 1


def test_a_removal_that_is_stopped_loses_no_message(opened):
    store = opened()
    client = store.client()
    client.write(A, b"a")
    client.write(A, b"a")

    def ids():
        yield A
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.remove(ids())
    store.flush()
    assert on_disk(store).keys() == {A}


def test_a_client_that_is_closed_removes_nothing(opened):
    store, told = opened(), []
    closed, other = store.client(), store.client(on_confirm=told.extend)
    remove = closed.remove
    closed.close()
    other.write(A, b"a")
    with pytest.raises(msgstore.StoreClosed):
        remove([A])
    store.flush()
    assert told == [A]
    assert on_disk(store) == {A: 1}


def test_what_is_forgotten_while_it_is_flushed_is_not_confirmed(opened, monkeypatch):
    store, told = opened(), []
    client = store.client(on_confirm=told.extend)
    client.write(A, b"a")
    append = store._appender.append

    def forget_first(ids, bodies):
        client.delete_and_close()
        return append(ids, bodies)

    monkeypatch.setattr(store._appender, "append", forget_first)
    store.flush()
    assert on_disk(store) == {}
    assert told == []


def test_a_message_that_its_client_has_forgotten_does_not_come_back_from_a_failed_removal(opened):
    store = opened()
    one, other = store.client(), store.client()
    one.write(A, b"a")

    def ids():
        yield A
        one.delete_and_close()
        yield b"short"

    with pytest.raises(ValueError, match="16 bytes"):
        other.remove(ids())
    assert store.references(A) == 0


class KilledAtUnlink(Files):
    """The process ends behind the deletion of a segment."""

    armed = False

    def unlink(self, path):
        super().unlink(path)
        if self.armed and path.suffix in (".sqs", ".rdq"):
            raise Crash


class KilledBeforeUnlink(Files):
    """The process ends before it deletes a segment."""

    armed = False

    def unlink(self, path):
        if self.armed and path.suffix in (".sqs", ".rdq"):
            raise Crash
        super().unlink(path)


def test_empty_segment_of_a_killed_store_is_deleted(tmp_path):
    """The commit that emptied the segment is on disk, and the deletion is not."""
    keys = {"index": "lmdb", "sync_interval": "1h", "gc_interval": 0}
    files = KilledBeforeUnlink()
    store = open_with(tmp_path, files, **keys)
    client = store.client()
    client.write(A, b"a")
    store.roll()
    client.write(B, b"b")
    store.flush()
    client.remove([A])
    files.armed = True
    with pytest.raises(Crash):
        store.flush()
    store.abandon()
    (left,) = tmp_path.glob("0.*")
    with open_with(tmp_path, **keys) as again:
        again.client().write(C, b"c")
        again.flush()
        assert not left.exists()


def test_a_segment_that_becomes_empty_behind_a_commit_is_deleted_behind_the_next(opened, cell, monkeypatch):
    files = KilledAtUnlink()
    store = opened(files)
    client = store.client()
    client.write(A, b"a")
    client.write(B, b"b")
    store.roll()
    client.write(C, b"c")
    store.roll()
    client.remove([A])
    store.flush()
    index = store._accounting.index
    commit = index.commit

    def and_remove():
        commit()
        monkeypatch.undo()
        client.remove([C])
        files.armed = True

    monkeypatch.setattr(index, "commit", and_remove)
    client.write(D, b"d")
    store._accounting._committed = False  # with an index that is not persistent, too
    with contextlib.suppress(Crash):
        store.flush()
    store.abandon()
    store = opened()
    if cell.index == "lmdb":
        assert store.stats().recovery.how != "rebuild"
        assert A not in on_disk(store)
    assert on_disk(store).keys() >= {B, D}


def test_a_copy_that_is_empty_for_a_moment_is_not_deleted(opened, cell, monkeypatch):
    store = opened(file_size_limit="1MiB")
    client = store.client()
    monkeypatch.setattr(rewriting, "_AT_ONCE", 1000)
    for number in range(6):
        client.write(id_of(number), bytes(600))
        if number == 2:
            store.roll()
    store.roll()
    swap, calls = rewriting._swap, []

    def swap_and_remove(site, batch):
        swap(site, batch)
        calls.append(batch)
        if len(calls) == 1:

            def remove():
                client.remove(batch.ids)
                store.flush()

            site.state_lock.release()
            try:
                beside(remove)
            finally:
                site.state_lock.acquire()

    monkeypatch.setattr(rewriting, "_swap", swap_and_remove)
    store._collector._policy = Says(Combine((0, 1)))
    store.compact()
    assert len(calls) > 1
    left = [id_of(number) for number in range(6) if id_of(number) not in calls[0].ids]
    assert client.read_many(left) == dict.fromkeys(left, bytes(600))


def test_a_commit_that_failed_is_tried_again_by_the_flusher(opened, monkeypatch):
    store, told = opened(sync_interval="1ms"), threading.Event()
    client = store.client(on_confirm=lambda ids: told.set())
    index = store._accounting.index
    store._accounting._committed = False
    commit, failures = index.commit, []

    def failing():
        if len(failures) < 3:
            failures.append(1)
            raise OSError(errno.ENOSPC, "no space")
        commit()

    monkeypatch.setattr(index, "commit", failing)
    client.write(A, b"a")
    assert told.wait(SECONDS)


def test_a_write_that_is_confirmed_late_is_confirmed_all_the_same(opened):
    """A flush comes between a message's entry in the intake and its id in the list of those to be confirmed."""
    store, told = opened(sync_interval="1ms"), threading.Event()
    client = store.client(on_confirm=lambda ids: told.set())
    store.flush()

    def trace(frame, event, arg):
        if frame.f_code is client.write.__code__:
            if event == "line" and A in store._buffer.pending:
                beside(store.flush)
            return trace
        return None

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        client.write(A, b"a")
    finally:
        sys.settrace(usual)
    assert told.wait(SECONDS)


class Interrupting(Files):
    """KeyboardInterrupt at the end of an operation, once."""

    def __init__(self):
        self.armed = None

    def _may_interrupt(self, name):
        if self.armed == name:
            self.armed = None
            raise KeyboardInterrupt

    def pwrite(self, fd, data, offset):
        super().pwrite(fd, data, offset)
        self._may_interrupt("pwrite")

    def sync(self, fd):
        super().sync(fd)
        self._may_interrupt("sync")

    def create(self, path):
        fd = super().create(path)
        self._may_interrupt("create")
        return fd


def test_an_interrupt_behind_a_write_ends_the_store(opened, cell):
    """tests/test_interrupts.py has more of them."""
    files = Interrupting()
    store = opened(files)
    client = store.client()
    client.write(A, b"same size")
    store.flush()
    client.write(B, b"same size")
    client.write(C, b"same size")
    files.armed = "pwrite"
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    for call in (store.flush, lambda: client.remove([C]), lambda: client.read(A), store.close):
        with pytest.raises(msgstore.StoreClosed, match="KeyboardInterrupt came in the middle of a change"):
            call()
    assert on_disk(opened()).items() >= {A: 1}.items()


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync"])
def test_an_interrupt_while_a_segment_is_begun(opened, operation):
    files = Interrupting()
    store = opened(files, durability="fsync")
    client = store.client()
    client.write(A, b"a")
    files.armed = operation
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    store.abandon()
    again = opened()
    again.client().write(B, b"b")
    again.flush()
    assert on_disk(again) == {B: 1}
    again.close()


class BadBirth(Files):
    """A new segment gets no header, and cannot be deleted again; once."""

    armed = False

    def pwrite(self, fd, data, offset):
        if self.armed:
            raise OSError(errno.EIO, "injected")
        super().pwrite(fd, data, offset)

    def unlink(self, path):
        if self.armed:
            raise OSError(errno.EIO, "injected")
        super().unlink(path)


def test_a_segment_that_could_not_be_begun_is_known_to_the_index(opened, cell):
    files = BadBirth()
    store = opened(files)
    client = store.client()
    client.write(A, b"a")
    client.write(D, b"d")
    store.roll()
    client.write(B, b"b")
    files.armed = True
    with pytest.raises(msgstore.StoreIOError):
        store.flush()
    files.armed = False
    store.flush()
    client.remove([D])
    store.flush()
    store.abandon()
    store = opened()
    assert on_disk(store).keys() >= {A, B}
    if cell.index == "lmdb":
        assert store.stats().recovery.how != "rebuild"
        assert D not in on_disk(store)


class Undeletable(Files):
    refused: frozenset[str] = frozenset()

    def unlink(self, path):
        if path.name in self.refused:
            raise OSError(errno.EIO, "injected")
        super().unlink(path)


def test_empty_segments_behind_one_that_cannot_be_deleted_are_not_forgotten(opened, tmp_path):
    files = Undeletable()
    store = opened(files)
    client = store.client()
    for number in range(4):
        client.write(id_of(number), b"body")
        store.roll()
    names = [segment.file for segment in store.segments()]
    files.refused = frozenset(names[:1])
    client.remove([id_of(number) for number in range(4)])
    with pytest.raises(msgstore.StoreIOError):
        store.flush()
    files.refused = frozenset()
    store.flush()
    assert not [name for name in names if (tmp_path / "store" / name).exists()]


def test_who_is_told_of_a_collections_progress_may_write_however_far_behind_the_collector_is(opened):
    store = opened(file_size_limit="64KiB", gc_interval="1h", gc="never")
    client = store.client()
    for number in range(1000):
        client.write(id_of(number), bytes(1000))
    store.roll()
    done = []

    def progress(at, total):
        if not done:
            done.append(1)
            store._background_collector.is_behind = True
            for number in range(1000, 1020):
                client.write(id_of(number), bytes(2**20))

    client.remove([id_of(number) for number in range(1000) if number % 10])
    beside(partial(store.compact, everything=True, progress=progress))
    assert done


def test_a_removal_that_is_refused_leaves_what_a_flush_confirmed_meanwhile_on_disk(opened):
    store, told = opened(), []
    one, other = store.client(on_confirm=told.extend), store.client()
    one.write(A, b"a")

    def ids():
        yield A
        store.flush()
        assert told == [A]
        yield b"short"

    with pytest.raises(ValueError, match="16 bytes"):
        other.remove(ids())
    assert on_disk(store) == {A: 1}


def test_a_generator_of_ids_that_fails_loses_no_message_of_another_client(opened):
    store = opened()
    one, other = store.client(), store.client()
    one.write(A, b"a")
    one.write(B, b"b")
    one.write(B, b"b")

    def ids(error):
        yield B
        raise error

    for error in (KeyError("mine"), TypeError("mine")):
        with pytest.raises(type(error), match="mine"):
            other.remove(ids(error))

    def nothing():
        raise TypeError("mine")
        yield

    with pytest.raises(TypeError, match="mine"):
        other.remove(nothing())
    assert store.references(A) == 1
    assert store.references(B) == 0


def test_removals_whose_commit_failed_are_committed_by_the_flusher(opened, cell, monkeypatch):
    store, done = opened(sync_interval="1ms"), threading.Event()
    client = store.client()
    client.write(A, b"a")
    store.flush()
    if cell.index == "ets":
        return  # it commits nothing
    index = store._accounting.index
    commit, failures = index.commit, []

    def failing():
        if len(failures) < 3:
            failures.append(1)
            raise OSError(errno.ENOSPC, "no space")
        commit()
        done.set()

    monkeypatch.setattr(index, "commit", failing)
    client.remove([A])
    assert done.wait(SECONDS)


def with_200_messages(opened):
    """A store that has as many uncommitted removals as it bears when about a half of them are removed, and a client."""
    store = opened(max_unconfirmed="100KiB")
    client = store.client()
    for number in range(200):
        client.write(id_of(number), b"a")
    store.flush()
    return store, client


def test_commits_that_fail_hold_writers_up_until_they_succeed(opened, cell, monkeypatch):
    store, client = with_200_messages(opened)
    if cell.index == "ets":
        return  # it commits nothing

    def failing():
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(store._accounting.index, "commit", failing)
    refused = 0
    for number in range(200):
        try:
            client.remove([id_of(number)])
        except msgstore.StoreIOError:
            refused += 1
    assert refused >= 99
    monkeypatch.undo()
    store.flush()
    assert store.stats().messages == refused, "a removal that was refused took effect"


def test_a_disk_that_takes_its_time_to_fail_lets_nobody_by_meanwhile(opened, cell, monkeypatch):
    store, client = with_200_messages(opened)
    if cell.index == "ets":
        return  # it commits nothing
    begun = threading.Event()
    raised = threading.Event()

    def failing():
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            raised.wait(0.2)  # at most: who is held up waits for this commit
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(store._accounting.index, "commit", failing)
    ids = iter(map(id_of, range(200)))
    with pytest.raises(msgstore.StoreIOError):
        deque(client.remove([msg_id]) for msg_id in ids)  # until the bound
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(store.flush)
        assert begun.wait(SECONDS)
        with pytest.raises(msgstore.StoreIOError):
            client.remove([next(ids)])
        raised.set()
        with pytest.raises(msgstore.StoreIOError):
            flush.result(SECONDS)
    monkeypatch.undo()
    store.flush()
    assert store.stats().messages == len(list(ids)) + 2, "a removal that was refused took effect"


def test_what_an_index_refuses_stays_in_the_intake(opened, monkeypatch):
    store, told = opened(), []
    client = store.client(on_confirm=told.extend)
    index = store._accounting.index

    def refuse(*columns):
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(index, "enter", refuse)
    client.write(A, b"a")
    client.write(B, b"b")
    with pytest.raises(MemoryError):
        store.flush()
    assert told == []
    assert client.read_many([A, B]) == {A: b"a", B: b"b"}
    store.flush()
    assert told == [A, B]
    assert on_disk(store) == {A: 1, B: 1}


@pytest.mark.parametrize("line", range(1, 22))
def test_a_run_that_is_interrupted_leaves_the_next_one_free(line, monkeypatch):
    """Interrupted at each line, as by a signal handler."""
    monkeypatch.setattr(group_commit, "_RETRY_SECONDS", 0.1)
    group, done, usual, lines = group_commit.GroupCommit(threading.Lock()), [], sys.gettrace(), []

    def trace(frame, event, arg):
        if frame.f_code is not group_commit.GroupCommit.run.__code__:
            return None
        if event == "line" and frame.f_lineno not in lines:  # the end of a with block is not interrupted
            lines.append(frame.f_lineno)
            if len(lines) == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            group.run(lambda: None)
    finally:
        sys.settrace(usual)
    beside(partial(group.run, lambda: done.append(1)))
    assert done


class Order(RecordingFiles):
    def add(self, name):
        self.operations.append((name, "", 0))


def test_deleted_segment_is_synced_before_the_index_forgets_it(opened, cell, monkeypatch):
    files = Order()
    store = opened(files, durability={"fsync_every": "1h"})
    client = store.client()
    client.write(A, b"a")
    store.roll()
    client.write(B, b"b")
    store.roll()
    index = store._accounting.index
    commit = index.commit
    monkeypatch.setattr(index, "commit", lambda: (files.add("commit"), commit()))
    client.remove([A])
    files.operations.clear()
    store.roll()
    names = [name for name, _, _ in files.operations if name in ("unlink", "sync_directory", "commit")]
    assert names[names.index("unlink") + 1] == "sync_directory", "a power loss would bring the segment back as a stranger"
    files.operations.clear()
    store.close()
    operations = [name for name, _, _ in files.operations if name != "overwrite"]  # that is the text of the lock file
    assert operations[-1] == "sync_directory"


@pytest.mark.parametrize("durability", ["fsync", {"fsync_every": "1h"}], ids=["at once", "later"])
def test_new_segments_name_is_synced_before_its_messages_are(opened, durability):
    files = Order()
    store = opened(files, durability=durability)
    client = store.client()
    client.write(A, b"a")
    store.flush()
    files.operations.clear()
    store.roll()
    client.write(B, b"b")
    store.flush()
    with store._accounting.flush_lock:
        store._flusher.commit_and_reclaim()
    names = [name for name, _, _ in files.operations if name in ("create", "sync_directory", "commit")]
    assert "sync_directory" in names[names.index("create") :], "a power loss would take the segment with all that is in it"


def test_what_is_synced_later_is_bounded_all_the_same(opened, cell):
    store = opened(durability={"fsync_every": "1h"}, max_unconfirmed="1MiB")
    client = store.client()
    if cell.index == "lmdb":
        for number in range(3000):
            client.write(id_of(number), b"body")
        store.flush()
        client.remove([id_of(number) for number in range(3000)])
        assert store._flusher.uncommitted_bytes <= 2**20


def test_many_clients_hold_back_little_more_together_than_one(opened):
    store = opened(max_unconfirmed="1GiB")
    for client_number in range(100):
        client = store.client()
        for number in range(4):
            client.write(id_of(4 * client_number + number), bytes(100 * 2**10))
    assert store._buffer.charged_bytes() < BUFFER_TARGET + 12 * 2**20


class Meeting:
    """A lock; before it is taken for the first time, something happens."""

    def __init__(self, lock, before):
        self._lock = lock
        self._before = [before]

    def __enter__(self):
        while self._before:
            self._before.pop()()
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_a_removal_that_meets_a_close_is_told_so(opened, how):
    store = opened()
    client = store.client()
    client.write(A, b"a")
    store.flush()
    store._accounting.state_lock = Meeting(store._accounting.state_lock, getattr(store, how))
    with pytest.raises(msgstore.StoreClosed):
        client.remove([A])
    assert on_disk(opened()) == {A: 1}
