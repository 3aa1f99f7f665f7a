"""Races of callbacks, removals, flushes, collections, interrupts and failing commits."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import msgstore
from msgstore.contract import Combine
from msgstore.engine.compact import copy_compaction
from msgstore.testing.faults import Crash, RecordingFiles
from support import A, B, C, D, collect, contents, failing, id_of, in_threads, open_with, play
from support import counts as on_disk

KEYS = {"sync_interval": "1h", "gc_interval": 0}
SECONDS = 20
MANY = 600
"""Calls that would be too deep for Python, if each were made inside the one before."""


def crash(*_: object) -> None:
    raise Crash


def interrupt() -> None:
    raise KeyboardInterrupt


def after(monkeypatch: pytest.MonkeyPatch, target: object, name: str, act: Callable[[], object]) -> None:
    """Call ``act`` once, after the next call of a method."""
    call, left = getattr(target, name), [act]

    def wrapped(*arguments: Any) -> Any:
        result = call(*arguments)
        while left:
            left.pop()()
        return result

    monkeypatch.setattr(target, name, wrapped)


# -- callbacks ------------------------------------------------------------------------------------------------------------


def test_confirm_callback_writing_gets_every_confirm(opened):
    store, told = opened(sync_interval=0), []

    def confirmed(ids):
        told.extend(ids)
        if len(told) < MANY:
            client.write(id_of(len(told)), b"body")

    client = store.client(on_confirm=confirmed)
    client.write(id_of(0), b"body")
    store.flush()
    assert set(told) <= on_disk(store).keys()
    assert (store.stats().callback_failures, len(told)) == (0, MANY)


def test_progress_callback_writes_while_collector_is_behind(opened):
    store = opened(file_size_limit="64KiB", gc_interval="1h", gc="never")
    client = store.client()
    client.write_many((id_of(number), bytes(1000)) for number in range(1000))
    store.roll()
    done = []

    def progress(at, total):
        if not done:
            done.append(1)
            store._collector.is_behind = True
            client.write_many((id_of(number), bytes(2**20)) for number in range(1000, 1020))

    client.remove([id_of(number) for number in range(1000) if number % 10])
    in_threads(partial(store.compact, everything=True, progress=progress))
    assert done


# -- removals and flushes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("end", [None, b"short"], ids=["done", "refused"])
def test_flush_inside_removal_writes_the_removed(store, references, end):
    """A removal that is refused leaves what the flush confirmed; one of two references is removed afterwards."""
    told = []
    store.client(on_confirm=told.extend).write_many([(A, b"a")] * references)

    def ids():
        yield A
        store.flush()
        assert told == [A] * references
        if end:
            yield end

    with pytest.raises(ValueError, match="16 bytes") if end else contextlib.nullcontext():
        store.client().remove(ids())
    if end:
        assert on_disk(store).keys() == {A}
    else:
        assert store.references(A) == references - 1


def test_client_deleted_inside_change_confirms_nothing(store, monkeypatch):
    """Inside a flush; and inside a removal that is refused, which revives nothing."""
    told = []
    client, other = store.client(on_confirm=told.extend), store.client()
    play(store, "+A", client)
    append = store._writer.batches.append
    monkeypatch.setattr(store._writer.batches, "append", lambda *columns: (client.delete_and_close(), append(*columns))[1])
    store.flush()
    assert (told, on_disk(store)) == ([], {})
    monkeypatch.undo()
    play(store, "+B", other)

    def ids():
        yield B
        other.delete_and_close()
        yield b"short"

    with pytest.raises(ValueError, match="16 bytes"):
        store.client().remove(ids())
    assert store.references(B) == 0


@pytest.mark.parametrize("how", ["closed client", "close", "abandon"])
def test_removal_of_closed_client_or_store_removes_nothing(opened, how, monkeypatch):
    """A store that is closed while the removal waits for the lock; a client whose method was taken before it was closed."""
    store, told = opened(), []
    client = store.client()
    remove = client.remove
    play(store, "+A f")
    play(store, "+B", store.client(on_confirm=told.extend))

    class Meeting:
        """The lock; the store is closed before the lock is taken for the first time."""

        lock, before = store._accounting.state_lock, [getattr(store, how, None)]

        def __enter__(self):
            while self.before:
                self.before.pop()()
            return self.lock.__enter__()

        def __exit__(self, *error):
            return self.lock.__exit__(*error)

    if how == "closed client":
        client.close()
    else:
        monkeypatch.setattr(store._accounting, "state_lock", Meeting())
    with pytest.raises(msgstore.StoreClosed):
        remove([A, B])
    if how == "closed client":
        store.flush()
        assert (told, on_disk(store)) == ([B], {A: 1, B: 1})
    else:
        assert on_disk(opened()).keys() >= {A}


def test_removal_that_a_closing_store_overtakes_is_done(opened):
    """The store has confirmed the message without a record, because the removal had it."""
    store, told = opened(sync_interval="1h"), []
    play(store, "+A", store.client(on_confirm=told.extend))

    def ids():
        yield A
        in_threads(store.close)

    store.client().remove(ids())
    assert told == [A]
    assert on_disk(opened()) == {}


def test_removal_that_a_failing_close_overtakes_is_done(opened, monkeypatch):
    """It had the message before the close began."""
    store, told, errors, refused = opened(sync_interval="1h"), [], [], threading.Event()
    play(store, "+A", store.client(on_confirm=told.extend))
    usual = store._lifecycle.check_writable

    def check_writable() -> None:
        try:
            usual()
        except msgstore.StoreClosed:
            refused.set()
            raise

    def remove() -> None:
        try:
            store.client().remove([A])
        except msgstore.StoreClosed as error:
            errors.append(error)

    other = threading.Thread(target=remove)
    with monkeypatch.context() as patch, store._accounting.flush_lock:  # as a close that cannot write what is left
        patch.setattr(store._lifecycle, "check_writable", check_writable)
        patch.setattr(store._lifecycle, "check_open", lambda: None)
        store._lifecycle.refuse(msgstore.StoreClosed("the store is being closed"), is_closing=True)
        other.start()
        assert refused.wait(30)
        other.join(30)  # it waits for no lock that a close holds
        store._lifecycle.refuse(None)
    store.flush()
    assert (errors, told, on_disk(store)) == ([], [A], {})


def test_refused_removal_puts_ids_back_as_bytes(opened):
    """A memoryview finds the entry of the bytes that it equals."""
    store, told = opened(), []
    play(store, "+AB", store.client(on_confirm=told.extend))
    with pytest.raises(ValueError, match="not memoryview"):
        store.client().remove([memoryview(A)])
    store.flush()
    assert (sorted(told), on_disk(store)) == ([A, B], {A: 1, B: 1})


def test_write_flushed_before_registered_is_confirmed(opened):
    """A flush comes between a message's entry in the write buffer and its id in the list of ids to confirm."""
    store, told = opened(sync_interval="1ms"), threading.Event()
    client = store.client(on_confirm=lambda ids: told.set())
    store.flush()

    def trace(frame, event, _):
        if frame.f_code is client.write.__code__ and event == "line" and A in store._buffer.pending:
            sys.settrace(None)
            in_threads(store.flush)
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        client.write(A, b"a")
    finally:
        sys.settrace(usual)
    assert told.wait(SECONDS)


# -- segments that become empty -------------------------------------------------------------------------------------------


def test_empty_segment_of_killed_store_is_deleted(tmp_path, files):
    """The commit that emptied the segment is on disk, and the deletion is not."""
    keys = {"index": "lmdb", **KEYS}
    store = open_with(tmp_path, files, **keys)
    play(store, "+A r +B f -A")
    files.before("unlink", crash)
    with pytest.raises(Crash):
        store.flush()
    store.abandon()
    (left,) = tmp_path.glob("0.*")
    with open_with(tmp_path, **keys) as again:
        play(again, "+C f")
        assert not left.exists()


def test_segment_emptied_after_commit_survives_until_next(opened, store, client, files, cell, monkeypatch):
    play(store, "+AB r +C r -A f")

    def remove():
        client.remove([C])
        files.after("unlink", crash)

    after(monkeypatch, store._accounting.index, "commit", remove)
    play(store, "+D")
    store._accounting._committed = False  # with an index that is not persistent, too
    with contextlib.suppress(Crash):
        store.flush()
    store.abandon()
    store = opened()
    if cell.index == "lmdb":
        assert store.stats().recovery.lost == [], "the index on disk still has a message in it"
        assert A not in on_disk(store)
    assert on_disk(store).keys() >= {B, D}


def test_copy_emptied_for_a_moment_is_kept(opened, monkeypatch):
    store = opened(file_size_limit="1MiB")
    client = store.client()
    monkeypatch.setattr(copy_compaction, "_AT_ONCE", 1000)
    for numbers in (range(3), range(3, 6)):
        client.write_many((id_of(number), bytes(600)) for number in numbers)
        store.roll()
    relocate, batches = copy_compaction.relocate, []

    def relocate_and_remove(context, moved):
        relocate(context, moved)
        batches.append(moved.ids)
        if len(batches) == 1:
            client.remove(moved.ids)
            store.flush()

    monkeypatch.setattr(copy_compaction, "relocate", relocate_and_remove)
    collect(store, Combine((0, 1)))
    assert len(batches) > 1
    left = [id_of(number) for number in range(6) if id_of(number) not in batches[0]]
    assert client.read_many(left) == dict.fromkeys(left, bytes(600))


def test_segment_not_begun_is_known_to_index(opened, store, files, cell):
    """A new segment gets no header, and cannot be deleted again."""
    play(store, "+AD r +B")
    files.before("pwrite unlink", failing(), times=None)
    with pytest.raises(msgstore.StoreIOError):
        store.flush()
    files.hooks.clear()
    play(store, "f -D f")
    store.abandon()
    store = opened()
    assert on_disk(store).keys() >= {A, B}
    if cell.index == "lmdb":
        assert store.stats().recovery.how != "rebuild"
        assert D not in on_disk(store)


def test_empty_segments_after_undeletable_one_are_deleted(store, files):
    play(store, "+A r +B r +C r +D r")
    names = [segment.file for segment in store.segments()]
    files.before("unlink", failing(), names[0], times=None)
    with pytest.raises(msgstore.StoreIOError):
        play(store, "-ABCD f")
    files.hooks.clear()
    store.flush()
    assert not [name for name in names if (store.path / name).exists()]


# -- interrupts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync"])
def test_interrupt_beginning_a_segment_leaves_no_message(opened, files, operation):
    store = opened(files, durability="fsync")
    files.after(operation, interrupt)
    with pytest.raises(KeyboardInterrupt):
        play(store, "+A f")
    store.abandon()
    with opened() as again:
        play(again, "+B f")
        assert on_disk(again) == {B: 1}


# -- commits that fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["write", "remove"])
def test_flusher_failed_commit_is_tried_again(cell, opened, change, monkeypatch):
    if change == "remove" and cell.index != "lmdb":
        pytest.skip("this index does not commit a removal")
    store, done = opened(sync_interval="1ms"), threading.Event()
    client = store.client(on_confirm=lambda ids: change == "write" and done.set())
    if change == "remove":
        play(store, "+A f")
    index = store._accounting.index
    store._accounting._committed = False
    commit, failures = index.commit, []

    def commit_later():
        if len(failures) < 3:
            failures.append(1)
            failing(errno.ENOSPC)()
        commit()
        if change == "remove":
            done.set()

    monkeypatch.setattr(index, "commit", commit_later)
    play(store, "+A" if change == "write" else "-A", client)
    assert done.wait(SECONDS)


@pytest.fixture
def limited(tmp_path):
    """A store of 200 messages that allows about 100 uncommitted removals, and a client."""
    with open_with(tmp_path, index="lmdb", max_unconfirmed="100KiB", **KEYS) as store, store.client() as client:
        client.write_many((id_of(number), b"a") for number in range(200))
        store.flush()
        yield store, client


def test_removals_with_failing_commits_are_refused(limited, monkeypatch):
    store, client = limited
    monkeypatch.setattr(store._accounting.index, "commit", failing(errno.ENOSPC))
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


def test_removal_during_slow_failing_commit_is_refused(limited, monkeypatch):
    store, client = limited
    begun, raised = threading.Event(), threading.Event()

    def commit():
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            raised.wait(0.2)  # at most: the removal waits for this commit
        failing(errno.ENOSPC)()

    monkeypatch.setattr(store._accounting.index, "commit", commit)
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


@pytest.mark.parametrize(("entered", "release"), [(0, True), (1, True), (9, True), (0, False)])
@pytest.mark.parametrize(
    ("history", "counts"),
    [
        ("+AB", {A: 1, B: 1}),
        ("+AB +B", {A: 1, B: 2}),
        ("+AB f -AB +AB +B", {A: 1, B: 2}),
        ("+AB f -B +BC +C", {A: 1, B: 1, C: 2}),
    ],
)
def test_messages_refused_by_index_stay_buffered(history, counts, entered, release, store, monkeypatch):
    """Also those that it has ``entered`` before it raises: each counts once, and no segment with an entry is deleted. Where its
    ``release`` fails, too, and nothing was entered, nothing is counted."""
    told, enter = [], store._accounting.index.enter
    client = store.client(on_confirm=told.extend)
    play(store, history, client)
    told.clear()

    def fail(ids, *columns):
        enter(ids[:entered], *(column and column[:entered] for column in columns))
        failing()()

    with monkeypatch.context() as patch:
        patch.setattr(store._accounting.index, "enter", fail)
        if not release:
            patch.setattr(store._accounting.index, "release", failing())
        for _ in range(2):
            with pytest.raises(msgstore.StoreIOError):
                store.flush()
    assert told == []
    assert client.read_many(counts) == {msg_id: msg_id * 3 for msg_id in counts}
    store.roll()
    assert {B} <= set(told) <= set(counts)
    assert on_disk(store) == counts
    assert sum(segment.live_count for segment in store.segments()) == len(counts)
    assert contents(store) == {msg_id: msg_id * 3 for msg_id in counts}


def test_reference_that_the_index_refuses_is_added_once(store, monkeypatch):
    client = store.client()
    play(store, "+AB f -B +A +A", client)
    add, calls = store._accounting.index.add_reference, []

    def fail_at_second(msg_id):
        calls.append(msg_id)
        if len(calls) == 2:
            failing()()
        return add(msg_id)

    with monkeypatch.context() as patch:
        patch.setattr(store._accounting.index, "add_reference", fail_at_second)
        with pytest.raises(msgstore.StoreIOError):
            store.flush()
    store.flush()
    assert on_disk(store) == {A: 3}


# -- order of file operations, and bounds ---------------------------------------------------------------------------------


def names_of(files: RecordingFiles, *wanted: str) -> list[str]:
    return [name for name, _, _ in files.operations if name in wanted]


def test_deleted_segment_is_synced_before_commit(opened, files, monkeypatch):
    store = opened(files, durability={"fsync_every": "1h"})
    play(store, "+A r +B r")
    index = store._accounting.index
    commit = index.commit
    monkeypatch.setattr(index, "commit", lambda: (files.operations.append(("commit", "", 0)), commit()))
    play(store, "-A")
    files.operations.clear()
    store.roll()
    names = names_of(files, "unlink", "sync_directory", "commit")
    assert names[names.index("unlink") + 1] == "sync_directory", "a power loss would bring the segment back as a stranger"
    files.operations.clear()
    store.close()
    operations = [name for name, _, _ in files.operations if name != "overwrite"]  # that is the text of the lock file
    assert operations[-1] == "sync_directory"


def test_collection_of_nothing_syncs_nothing(opened, files):
    store = opened(files, durability={"fsync_every": "1h"})
    play(store, "+A f")
    files.operations.clear()
    store.compact()
    assert not names_of(files, "sync", "sync_directory")
    assert store._segments.unsynced


@pytest.mark.parametrize("durability", ["fsync", {"fsync_every": "1h"}], ids=["at once", "later"])
def test_new_segment_name_is_synced_before_messages(opened, files, durability):
    store = opened(files, durability=durability)
    play(store, "+A f")
    files.operations.clear()
    play(store, "r +B f")
    with store._accounting.flush_lock:
        store._flusher.commit_and_reclaim()
    names = names_of(files, "create", "sync_directory")
    assert "sync_directory" in names[names.index("create") :], "a power loss would take the segment with all that is in it"
