"""Clients and threads: reference counts, confirms, bounds, shared syncs, clients that are closed."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import msgstore
from msgstore.config import store_config
from msgstore.contract import StoreClosed, StoreIOError
from msgstore.engine.write import flusher
from msgstore.testing.faults import UnsyncedFiles
from msgstore.testing.probes import eager_switching
from support import LETTERS, A, B, C, D, HookedFiles, counts, failing, in_threads, open_with, play, until

KEYS = {"sync_interval": "1h"}
IDS = list(LETTERS.values())


# -- counts ---------------------------------------------------------------------------------------------------------------

SEQUENCES = {
    "five clients": ("1+A 2+A 3+A 4+A 5+A f 1-A 2-A 3-A 4-A", {A: 1}),
    "before and after a flush": ("1+A f 2+A", {A: 2}),
    "three before a flush": ("1+A 1+A 1+A", {A: 3}),
    "removed between two writes": ("1+A 1-A 2+A", {A: 1}),
    "removed before the flush": ("1+A 1-A 1+B 1-B", {}),
    "removed from the current segment, and written": ("1+A f 1-A f 2+A 2+A", {A: 2}),
    "removed by its own client": ("1+A 2+A 2-A", {A: 1}),
    "removed by another client": ("1+A 2+A 2-A 1x", {}),
    "all references in one removal": ("1+A r 1+A 1+A 1-AAA", {}),
    "removed during a flush": ("1+A 1+B f{1-A}", {B: 1}),
    "removed during a flush, and written late": ("1+A 1+B f{1-A} 1+A", {A: 1, B: 1}),
    "removed and written during a flush": ("1+A f{1-A 1+A}", {A: 1}),
    "shared during a flush": ("1+A f{1+A 2+A 3+A 1-A}", {A: 3}),
    "a client that goes": ("1+A f 1+A 1+B 1+C 2+C 2+D 1x", {A: 2, C: 1, D: 1}),
    # W1 W2 W1 R1 T W3 R2 W2 R1 R2 R3 W4 of the essay on RabbitMQ's store, where T, the client's end, overtakes what follows.
    "the sequence of the essay": ("1+A 1+B 1+A 1-A f 1+C 1-B 1+B 1-A 1-B 1-C 1+D 1x", {}),
}
"""Histories, as ``support.play`` has them, and the counts afterwards."""


@pytest.mark.parametrize(("sequence", "expected"), SEQUENCES.values(), ids=SEQUENCES)
def test_reference_counts_after_sequence_are_exact(store, files, sequence, expected):
    """Before and after the last flush; when the rest is removed, nothing is left."""
    play(store, sequence, defaultdict(store.client), files)
    for _ in range(2):
        assert {i: n for i in (A, B, C, D) if (n := store.references(i))} == expected
        assert store.client().read_many([A, B, C, D]) == {msg_id: msg_id * 3 for msg_id in expected}
        store.flush()
    assert counts(store) == expected
    assert (store.stats().pending, store._buffer.shared) == (0, {})
    assert sum(segment.live_count for segment in store.segments()) == len(expected)
    store.client().remove([msg_id for msg_id, count in expected.items() for _ in range(count)])
    store.roll()
    assert (store.stats().live_bytes, store.segments()) == (0, [])


@pytest.mark.parametrize("steps", ["+AB f -A f", "+AB f{-A}"], ids=["after a flush", "during the flush"])
def test_dead_record_of_current_segment_is_revived(store, files, client, steps):
    play(store, steps, client, files)
    assert (client.contains(A), store.segments()[-1].garbage_bytes > 0) == (False, True)
    before = files.count("pwrite")
    play(store, "+AA f")
    assert files.count("pwrite") == before
    assert (store.references(A), client.read(A)) == (2, A * 3)


def test_removal_with_wrong_id_keeps_messages(store):
    """What was popped before the mistake was found is given back or removed; nothing is half there."""

    def raising(error, *before):
        yield from before
        raise error

    one, two = store.client(), store.client()
    play(store, "1+A 2+A 1+BC", {"1": one, "2": two})
    for ids in ([B, b"short"], [A, B, 7], [C, b""], [C, []]):
        with pytest.raises(ValueError, match="16 bytes"):
            two.remove(ids)
    for error in (KeyError("mine"), TypeError("mine")):
        with pytest.raises(type(error), match="mine"):
            two.remove(raising(error, B))
    with pytest.raises(KeyboardInterrupt):
        one.remove(raising(KeyboardInterrupt()))
    assert store.references(A) >= 1
    store.flush()
    assert one.read(A) == A * 3
    assert (store.stats().pending, store._buffer.shared) == (0, {})


def test_write_while_entry_is_popped_is_counted(store, client):
    """A removal has popped the entry of two references when a third one is written."""
    play(store, "+AA", client)
    store._buffer.pending.pop(A)
    play(store, "+A f", client)
    assert store.references(A) == 3


def test_message_removed_by_its_first_writer_stays_buffered(store, client):
    """A second client has written it, too: it is counted, read, and drained."""
    play(store, "1+A 2+A 1-A", {"1": client, "2": store.client()})
    assert (store.stats().pending, store.references(A), client.contains(A)) == (1, 1, True)
    assert client.read(A) == client.read_many([A])[A] == A * 3
    store._flusher.drain()
    assert (store.stats().pending, store.references(A), client.read(A)) == (0, 1, A * 3)


def test_two_removals_at_once_take_their_own_references(store):
    """One has popped the entry when the other looks for it. The client of the other one has no reference any more."""
    two, one = store.client(), store.client()
    play(store, "1+A 2+A 2+A", {"1": one, "2": two})
    popped = store._buffer.pending.pop(A)
    one.remove([A])
    store._writer.remove_slow(two, [(A, popped)])
    one.delete_and_close()
    assert (store.references(A), two.contains(A)) == (1, True)
    store.flush()
    assert (store.references(A), two.contains(A)) == (1, True)


def test_message_of_another_client_outlasts_deletion_during_removal(store):
    """A client is deleted while its removal has popped the message."""
    staying, leaving = store.client(), store.client()
    play(store, "1+A 2+A", {"1": staying, "2": leaving})
    popped = store._buffer.pending.pop(A)
    leaving.delete_and_close()
    store.flush()
    assert (staying.contains(A), store.references(A)) == (True, 1)
    with pytest.raises(StoreClosed):
        store._writer.remove_slow(leaving, [(A, popped)])
    assert (staying.contains(A), store.references(A)) == (True, 1)


def test_deleted_client_keeps_nothing_that_it_wrote_during_a_removal(store):
    """Its removal has popped a shared entry, so its next write makes an entry beside that one."""
    staying, leaving = store.client(), store.client()
    play(store, "1+A 2+A", {"1": staying, "2": leaving})
    store._buffer.pending.pop(A)
    play(store, "2+A", {"2": leaving})
    leaving.delete_and_close()
    assert (store.references(A), staying.contains(A)) == (1, True)


def test_removal_during_deletion_keeps_references_to_a_message_on_disk(store):
    """A deleted client keeps its reference to a message that the index has. Another removal has popped that entry."""
    one, leaving, two = store.client(), store.client(), store.client()
    play(store, "1+A f 2+A", {"1": one, "2": leaving})
    leaving.delete_and_close()
    popped = store._buffer.pending.pop(A)
    play(store, "1+A 3+A", {"1": one, "3": two})
    store._writer.remove_slow(one, [(A, popped)])
    store.flush()
    assert store.references(A) == 3


def test_write_during_flush_is_confirmed_later(store, files):
    confirmed = []
    play(store, "+A f{+B}", store.client(on_confirm=confirmed.extend), files)
    assert confirmed == [A], "a flush confirmed a message that was written after it had begun"
    store.flush()
    assert confirmed == [A, B]


def test_flush_of_several_chunks_writes_all(store, monkeypatch):
    monkeypatch.setattr(flusher, "FLUSH_CHUNK", 1000)
    confirmed = []
    store.client(on_confirm=confirmed.extend).write_many((msg_id, b"x" * 900) for msg_id in IDS)
    store.flush()
    assert confirmed == IDS
    assert store.stats().pending == 0, "messages are confirmed, and only in memory"


def test_record_dying_while_reference_waits_is_rewritten(store, client, monkeypatch):
    """The flush finds the id in the index and writes nothing; before it can add a reference the record is gone."""
    play(store, "+A r +A")
    known = store._writer.batches._known

    def known_and_gone(ids):
        found = known(ids)
        with store._accounting.state_lock:
            store._accounting.mark_dead(store._index.release([A]).freed)
            store._accounting.revivable.clear()
        monkeypatch.undo()
        return found

    monkeypatch.setattr(store._writer.batches, "_known", known_and_gone)
    store.flush()
    assert (client.read(A), store.references(A), store.stats().pending) == (A * 3, 1, 0)


def test_counts_after_concurrent_changes_are_exact(store, client):
    """Threads write and remove the same few ids, the same body objects too, while others flush and read."""
    bodies = {msg_id: msg_id * 3 for msg_id in IDS}
    outcomes: list[Counter[bytes]] = []

    def work(seed):
        """What it has removed it has written before, so no removal can miss."""
        rng, client, mine = random.Random(seed), store.client(), Counter()
        for _ in range(1500):
            msg_id = rng.choice(IDS)
            if mine[msg_id] and rng.random() < 0.5:
                client.remove([msg_id])
                mine[msg_id] -= 1
            else:
                client.write(msg_id, bodies[msg_id])
                mine[msg_id] += 1
            if mine[msg_id]:
                assert client.read(msg_id) == bodies[msg_id]
        outcomes.append(mine)

    def flush():
        while len(outcomes) < 6:
            store.flush()

    with eager_switching():
        in_threads(flush, *(partial(work, seed) for seed in range(6)))
    store.flush()
    wanted = sum(outcomes, Counter())
    assert {msg_id: store.references(msg_id) for msg_id in IDS} == {msg_id: wanted[msg_id] for msg_id in IDS}
    assert store._buffer.shared == {}
    client.remove(wanted.elements())
    assert store.stats().messages == sum(s.live_count for s in store.segments()) == 0


# -- confirms -------------------------------------------------------------------------------------------------------------


def test_each_write_is_confirmed_once_in_order(store):
    told: list[list[bytes]] = [[] for _ in range(4)]
    written: list[list[bytes]] = [[] for _ in range(4)]

    def work(number):
        client = store.client(on_confirm=told[number].extend)
        for count in range(2000):
            msg_id = bytes([number]) * 8 + count.to_bytes(8)
            client.write(msg_id, b"body")
            written[number].append(msg_id)
            if count % 300 == 299:
                store.flush()
                assert told[number] == written[number]

    with eager_switching():
        in_threads(*(partial(work, number) for number in range(4)))
    store.flush()
    assert told == written


def test_confirm_callback_raising_is_logged_and_counted(store, caplog):
    def fail(ids):
        raise RuntimeError("the client's own mistake")

    confirmed = []
    store.client("bad", on_confirm=fail).write(A, b"1")
    store.client("good", on_confirm=confirmed.extend).write(B, b"2")
    store.flush()
    assert (confirmed, store.stats().callback_failures) == ([B], 1)
    assert "the client's own mistake" in caplog.text


def test_exit_in_background_confirm_is_counted_and_others_are_confirmed(opened):
    """In that flush, and in those after it."""
    store, confirmed = opened(sync_interval=0.01), []
    exiting, other = store.client(on_confirm=lambda _: sys.exit(1)), store.client(on_confirm=confirmed.extend)
    for number, msg_id in enumerate([A, B], 1):
        exiting.write(msg_id, b"1")
        other.write(msg_id, b"1")
        until(lambda: confirmed == [A, B][:number] and store.stats().callback_failures == number)  # noqa: B023


# -- bounds, and who waits for whom ----------------------------------------------------------------------------------------


class Held(HookedFiles):
    """Syncs wait while ``go_on`` is not set."""

    def __init__(self):
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.before("sync", self._wait, times=None)

    def _wait(self):
        self.inside.set()
        assert self.go_on.wait(60)

    def hold(self):
        self.inside.clear()
        self.go_on.clear()


def test_write_during_sync_does_not_wait(opened):
    files = Held()
    store = opened(files, durability="fsync")
    client = store.client()
    client.write(A, b"1")
    files.hold()
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(store.flush)
        assert files.inside.wait(30)
        client.write_many((bytes([number]) * 16, b"2" * 100_000) for number in range(10, 200))
        assert client.read(A) == b"1"
        client.remove([A])
        assert store.stats().pending == 190
        files.go_on.set()
        flushing.result(30)
    store.flush()
    assert (client.contains(bytes([199]) * 16), client.contains(A)) == (True, False)


def test_write_at_unconfirmed_bound_waits(opened):
    files = Held()
    store = opened(files, durability="fsync", max_unconfirmed="1MiB")
    files.hold()
    with ThreadPoolExecutor(1) as pool:
        messages = [(bytes([number]) * 16, b"2" * 100_000) for number in range(100)]
        filling = pool.submit(store.client().write_many, messages)
        assert files.inside.wait(30)
        with pytest.raises(TimeoutError):
            filling.result(0.2)
        assert sum(len(body) for body, _ in store._buffer.pending.values()) < 3 * 2**20
        files.go_on.set()
        filling.result(30)


BOUND = {"sync_interval": "1h", "max_unconfirmed": "64KiB", "gc_interval": 0}


@pytest.mark.parametrize("durability", ["os", "fsync", {"fsync_every": "1h"}], ids=["os", "fsync", "fsync_every"])
@pytest.mark.parametrize(("clients", "sizes"), [(1, [10, 500, 3000, 9000]), (5, [10, 500, 3000, 9000]), (100, [0])])
def test_unconfirmed_bytes_stay_within_the_bound(durability, clients, sizes, index, tmp_path):
    """One message more of each client, since a writer looks behind it."""
    unconfirmed: dict[bytes, int] = {}

    def confirmed(ids):
        for msg_id in ids:
            del unconfirmed[msg_id]

    store = open_with(tmp_path, UnsyncedFiles(), index=index, durability=durability, **BOUND)
    writers = [store.client(on_confirm=confirmed) for _ in range(clients)]
    most = 0
    for number in range(300):
        msg_id, body = number.to_bytes(16), bytes(sizes[number % len(sizes)])
        unconfirmed[msg_id] = 1024 + len(body) if sizes == [0] else len(body)
        writers[number % clients].write(msg_id, body)
        most = max(most, sum(unconfirmed.values()))
    store.abandon()
    assert most <= 2**16 + (clients * 1024 if sizes == [0] else max(sizes)), f"{most} bytes were unconfirmed"


@pytest.mark.parametrize("each", [100, 4000], ids=["flushes between", "at once"])
def test_removals_with_delayed_sync_commit_at_the_bound(cell, each, tmp_path, monkeypatch):
    """Flushes that do not commit leave the changes uncommitted."""
    if cell.index != "lmdb":
        pytest.skip("this index commits nothing")
    keys = BOUND | {"index": "lmdb", "durability": {"fsync_every": "1h"}, "max_unconfirmed": "1MiB"}
    ids = [number.to_bytes(16) for number in range(4000)]
    with open_with(tmp_path, UnsyncedFiles(), **keys) as store, store.client() as client:
        client.write_many((msg_id, b"x") for msg_id in ids)
        store.flush()
        commits, usual = [], store._index.commit
        monkeypatch.setattr(store._index, "commit", lambda: (commits.append(None), usual()))
        for at in range(0, len(ids), each):
            client.remove(ids[at : at + each])
            assert store._flusher.uncommitted_bytes <= 2**20
            store.flush()
    assert len(commits) >= (3 if each == 100 else 1)


def test_concurrent_flushes_share_their_syncs(opened):
    files = Held()
    store = opened(files, durability="fsync")
    store.client().write(A, b"the segment is there")
    store.flush()
    files.hold()
    before = files.count("sync")

    def one(number):
        store.client().write(bytes([number]) * 16, b"body")
        store.flush()

    with ThreadPoolExecutor(16) as pool:
        flushes = [pool.submit(one, 10)]
        assert files.inside.wait(30)  # the others come while the first one's sync is under way
        flushes += [pool.submit(one, number) for number in range(11, 26)]
        until(lambda: store.stats().pending == 16)
        files.go_on.set()
        for flush in flushes:
            flush.result(30)
    # The first one's, and one for all others; a commit of a persistent index syncs in LMDB, not here.
    assert (store.stats().pending, files.count("sync") - before) == (0, 2)


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_flushes_are_served_by_one_run(store, client, monkeypatch, fails):
    """If it fails, the others do not end with it: they try it themselves."""
    flush, group, runs = store._flusher.flush_locked, store._flusher._group, []

    def run():
        runs.append(1)
        if fails and len(runs) == 1:
            failing()()
        flush()

    play(store, "+A", client)
    monkeypatch.setattr(store._flusher, "flush_locked", run)
    with ThreadPoolExecutor(16) as pool:
        with store._accounting.flush_lock:
            flushes = [pool.submit(store.flush) for _ in range(16)]
            until(lambda: group.waiting and len(group.waiting) == 15)
        failed = [flush for flush in flushes if isinstance(flush.exception(30), OSError)]
    assert (len(failed), store.stats().pending) == (fails, 0)
    assert len(runs) > 1 if fails else len(runs) == 1


def test_flusher_with_fsync_every_syncs(opened):
    files, confirmed = Held(), threading.Event()
    store = opened(files, durability={"fsync_every": "10ms"}, sync_interval="10ms", gc_interval=0)
    files.inside.clear()
    store.client(on_confirm=lambda ids: confirmed.set()).write(A, b"1")
    assert confirmed.wait(30)
    assert files.inside.wait(30)
    until(lambda: not store._segments.unsynced)


@pytest.mark.parametrize(("passes", "syncs"), [([0.25], 0), ([0.31], 1), ([0.25, 0.55], 1), ([9.0, 9.3, 9.55], 2)])
def test_flusher_syncs_before_fsync_every_has_passed(tmp_path, monkeypatch, passes, syncs):
    """A pass syncs if the next one, 100 ms later, would come more than 400 ms after the last sync."""
    keys = {"path": tmp_path, "durability": {"fsync_every": "400ms"}, "sync_interval": "100ms"}
    config, calls, clock = store_config(keys, "a test", Path()), mock.MagicMock(), mock.Mock(return_value=0.0)
    monkeypatch.setattr(flusher.time, "monotonic", clock)
    background = flusher.BackgroundFlusher(calls, mock.MagicMock(), config)
    for clock.return_value in passes:
        background._flush()
    assert calls.sync_and_commit.call_count == syncs


def test_confirmed_messages_are_synced_although_flush_fails(tmp_path):
    config = store_config({"path": tmp_path, "durability": {"fsync_every": "1ms"}, "sync_interval": "1ms"}, "a test", Path())
    calls = mock.MagicMock()
    calls.flush_or_defer.side_effect = StoreIOError("a full disk")
    with pytest.raises(StoreIOError, match="a full disk"):
        flusher.BackgroundFlusher(calls, mock.MagicMock(), config)._flush()
    assert calls.sync_and_commit.call_count == 1


def test_nothing_is_committed_after_abandon(opened):
    """The lock is free then, and another process may write."""
    store = opened(durability={"fsync_every": "1h"})
    play(store, "+A f")
    store.abandon()
    with pytest.raises(StoreClosed):
        store._flusher.sync_and_commit()


@pytest.mark.parametrize("fails", [False, True], ids=["plain", "failed commit"])
def test_revived_message_is_committed_before_it_is_confirmed(opened, monkeypatch, fails):
    """Its record is before the tail that a crash leaves, and the last commit has it as dead."""
    confirmed = []
    store = opened(durability={"fsync_every": "1h"})
    client = store.client(on_confirm=confirmed.extend)
    play(store, "+AB f -A f", client)
    store._flusher.sync_and_commit()
    play(store, "+A", client)
    if fails and store._accounting.is_persistent:
        with monkeypatch.context() as patch:
            patch.setattr(store._accounting.index, "commit", failing())
            with pytest.raises(StoreIOError):
                store.flush()
        assert confirmed == [A, B]
    store.flush()
    assert (confirmed, store.stats().counters.revived_messages) == ([A, B, A], 1)
    store.abandon()
    assert counts(opened()) == {A: 1, B: 1}


@pytest.mark.parametrize("seed", range(46, 54))
def test_kill_with_fsync_every_keeps_what_is_confirmed(cell, tmp_path, seed):
    """In a random history of six messages, with syncs and kills. Four of these find a commit that is missing."""
    if cell.index != "lmdb":
        pytest.skip("this index commits nothing")
    rng, confirmed = random.Random(seed), set[bytes]()
    for _ in range(8):
        keys = {"durability": {"fsync_every": "1h"}, "sync_interval": "1h", "file_size_limit": 4000, "gc_interval": 0}
        store = open_with(tmp_path, **cell.keys, **keys)
        assert confirmed <= counts(store).keys()
        client = store.client()
        for _ in range(40):
            msg_id = bytes([rng.randrange(6)]) * 16
            step = rng.choice(["write"] * 5 + ["remove"] * 5 + ["flush"] * 5 + ["sync", "sync", "roll"])
            if step == "write":
                client.write(msg_id, msg_id * 3)
            elif step == "remove" and store.references(msg_id):
                client.remove([msg_id])
                confirmed.discard(msg_id)
            elif step == "sync":
                store._flusher.sync_and_commit()
            elif step in ("flush", "roll"):
                getattr(store, step)()
                confirmed = set(counts(store))
        store.abandon()


def test_failed_reference_to_a_revived_message_is_not_counted_twice(store, monkeypatch):
    play(store, "+AB f -A f +A +A")
    with monkeypatch.context() as patch:
        patch.setattr(store._accounting.index, "add_reference", failing())
        with pytest.raises(StoreIOError):
            store.flush()
    store.flush()
    assert counts(store) == {A: 2, B: 1}


# -- clients that go ------------------------------------------------------------------------------------------------------


def test_closing_client_confirms_what_its_callback_writes(store):
    """Later writes are refused: a callback that always writes would keep the client open."""
    told, refused, left = [], [], [C, B]

    def confirm(ids: list[bytes]) -> None:
        told.extend(ids)
        try:
            client.write(left.pop(), b"next")
        except StoreClosed as error:
            refused.append(error)

    client = store.client(on_confirm=confirm)
    client.write(A, A)
    client.close()
    assert (told, len(refused), left) == ([A, B], 1, [])


def test_client_that_is_deleted_in_a_flush_is_not_told_of_nothing(store):
    calls = []
    first = store.client(on_confirm=lambda ids: second.delete_and_close())
    second = store.client(on_confirm=calls.append)
    play(store, "1+A 2+B f", {"1": first, "2": second})
    assert calls == []


def test_client_that_could_not_be_deleted_goes_on(store, monkeypatch):
    """With all that it has written, also before the index failed."""
    told, calls = [], iter([lambda _: False, failing()])
    client = store.client(on_confirm=told.extend)
    play(store, "+AB", client)
    with monkeypatch.context() as patch:
        patch.setattr(store._buffer, "_is_indexed", lambda msg_id: next(calls)(msg_id))
        with pytest.raises(StoreIOError):
            client.delete_and_close()
    client.write(C, C)
    store.flush()
    assert (told, counts(store)) == ([A, B, C], {A: 1, B: 1, C: 1})


def test_closing_client_flushes_what_another_callback_writes_with_it(store):
    """It has no callback of its own, so nothing is noted for it."""
    closing = store.client()
    store.client(on_confirm=lambda ids: closing.write(B, B) if A in ids else None).write(A, A)
    closing.close()
    assert counts(store) == {A: 1, B: 1}


def test_client_that_could_not_be_closed_takes_writes(store, monkeypatch):
    left = [B]
    client = store.client(on_confirm=lambda ids: client.write(left.pop(), b"next") if left else None)
    client.write(A, A)
    usual = store._flusher.flush
    calls = iter([usual, failing()])
    monkeypatch.setattr(store._flusher, "flush", lambda: next(calls)())
    with pytest.raises(OSError, match="Input/output error"):
        client.close()
    monkeypatch.undo()
    client.write(C, C)
    client.close()
    assert counts(store) == {A: 1, B: 1, C: 1}


def test_each_client_learns_that_writing_fails(store):
    """Also if one before it in the list goes away meanwhile."""
    first, second = store.client(), store.client()
    first.set_size_limit, second.set_size_limit = lambda _: store._flusher.clients.remove(first), mock.Mock()
    store._writer.set_failing(True)
    assert second.set_size_limit.mock_calls == [mock.call(0)]


def test_delete_and_close_drops_own_buffered_messages(store):
    confirmed = []
    going, staying = store.client(on_confirm=confirmed.extend), store.client()
    # A second reference to a message that the store knows, a message of its own, and one that is shared.
    play(store, "1+A f 1+A 1+B 1+C 2+C 1x", {"1": going, "2": staying})
    assert not staying.contains(B)
    store.flush()
    assert confirmed == [A]  # of before
    assert counts(store) == {A: 2, C: 1}


def test_delete_and_close_beside_writers_leaves_nothing(store):
    def come_and_go(seed):
        rng = random.Random(seed)
        for _ in range(150):
            client = store.client()
            client.write_many((msg_id, b"body") for msg_id in rng.sample(IDS[:4], 3))
            client.delete_and_close()

    def stay():
        client = store.client()
        for _ in range(1500):
            for msg_id in IDS[:4]:
                client.write(msg_id, b"body")
                assert client.read(msg_id) == b"body"
                client.remove([msg_id])

    with eager_switching():
        in_threads(*(partial(come_and_go, seed) for seed in range(3)), stay, stay)
    assert (store._buffer.pending, store._buffer.shared) == ({}, {})


# -- one object for many readers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["read", "read_many"])
def test_local_read_takes_no_lock_and_follows_compaction(opened, files, call):
    store = opened(files, reads="pread")
    client = store.client()
    ids = [bytes([number]) * 16 for number in range(1, 21)]
    client.write_many((msg_id, msg_id * 20) for msg_id in ids)
    store.roll()
    client.remove(ids[::2])
    client.read(ids[1])  # opens the descriptor, under the lock
    done = []

    def compact():
        assert not store._accounting.state_lock.locked()
        done.extend(store.compact(everything=True))

    files.before("pread", compact)  # after the reader has looked the location up
    bodies = client.read_many(ids[1::2]) if call == "read_many" else {msg_id: client.read(msg_id) for msg_id in ids[1::2]}
    assert bodies == {msg_id: msg_id * 20 for msg_id in ids[1::2]}
    assert done, "the segment was compacted between the look-up and the read"


def test_contains_of_present_id_takes_no_lock(store, client):
    client.write(A, b"on disk")
    store.flush()
    client.write(B, b"buffered")
    with ThreadPoolExecutor(1) as pool, store._accounting.state_lock:
        assert [pool.submit(client.contains, msg_id).result(timeout=10) for msg_id in (A, B)] == [True, True]
    assert not client.contains(C)
    with pytest.raises(ValueError, match="16 bytes, not memoryview"):
        client.contains(memoryview(A))
    store.close()
    with pytest.raises(StoreClosed):
        store.contains(A)


def test_read_of_shared_body_returns_one_object(opened):
    """From a bounded cache; a message that is removed leaves it."""
    store = opened(shared_cache="10KiB")
    one, two = store.client(), store.client()
    bodies = {bytes([number]) * 16: bytes([number]) * 1000 for number in range(30)}
    for client in (one, two):
        client.write_many(bodies.items())
    one.write(b"alone" * 3 + b".", b"alone" * 100)
    store.flush()
    assert one.read(b"alone" * 3 + b".") is not two.read(b"alone" * 3 + b".")
    assert {msg_id: one.read(msg_id) for msg_id in bodies} == bodies
    shared, last = store._accounting.shared, bytes([29]) * 16
    assert shared._bytes == sum(map(len, shared._bodies.values())) <= 10 * 1024
    assert len(shared._bodies) == 10
    assert one.read(last) is two.read(last) is two.read_many([last, A])[last]
    one.remove(bodies)
    two.remove(bodies)
    with pytest.raises(msgstore.MessageNotFound):
        one.read(last)
    assert (shared.ids, shared._bytes) == (set(), 0)
