"""Clients and threads: counts that are exact whoever meets whom, confirms, bounds, shared syncs, clients that go."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from functools import partial

import pytest

import msgstore
from msgstore.engine.write import flusher, group_commit
from msgstore.files import Files
from support import opening

A, B, C, D = (bytes([number]) * 16 for number in range(1, 5))
KEYS = {"sync_interval": "1h"}


@pytest.fixture
def quick_switching():
    """Threads meet between any two instructions, not every 5 ms."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_threads(*calls, seconds=60):
    """All at once; what one raises is raised here."""
    errors = []
    barrier = threading.Barrier(len(calls))

    def run(call):
        try:
            barrier.wait(seconds)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[call], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


# -- counts ---------------------------------------------------------------------------------------------------------------


def test_a_message_that_many_clients_write_is_written_once(opened):
    store = opened()
    clients = [store.client() for _ in range(5)]
    for client in clients:
        client.write(A, b"body")
    assert store.references(A) == 5
    store.flush()
    assert store.references(A) == 5
    assert store.segments()[-1].live_count == 1
    for client in clients[:4]:
        client.remove([A])
    assert clients[0].read(A) == b"body"
    clients[4].remove([A])
    assert not clients[0].contains(A)


def test_references_before_and_after_the_flush_add_up(opened):
    store = opened()
    one, two = store.client(), store.client()
    one.write(A, b"body")
    store.flush()
    two.write(A, b"ignored")
    assert store.references(A) == 2
    assert store.stats().messages == 1
    assert one.read(A) in (b"body", b"ignored")  # one id names one body for ever: here somebody broke that
    store.flush()
    assert store.references(A) == 2
    assert one.read(A) == b"body"
    assert store.segments()[-1].live_count == 1


def test_a_write_and_a_remove_that_meet_reach_no_disk_and_are_confirmed(opened):
    confirmed = []
    store = opened()
    client = store.client(on_confirm=confirmed.extend)
    client.write(A, b"body")
    client.remove([A])
    client.write(B, b"body")
    client.remove([B])
    store.flush()
    assert confirmed == [A, B]
    assert store.stats().bytes_on_disk == 0


def test_removed_between_two_writes_a_message_lives(opened):
    store = opened()
    one, two = store.client(), store.client()
    one.write(A, b"body")
    one.remove([A])
    two.write(A, b"body")
    store.flush()
    assert store.references(A) == 1
    assert two.read(A) == b"body"


def test_a_dead_record_of_the_current_segment_is_revived_not_written_again(opened):
    store = opened()
    one, two = store.client(), store.client()
    one.write(A, b"body")
    store.flush()
    size = store.stats().bytes_on_disk
    one.remove([A])
    store.flush()
    two.write(A, b"body")
    two.write(A, b"body")
    store.flush()
    assert store.stats().bytes_on_disk == size
    assert store.references(A) == 2


def test_a_wrong_id_in_a_removal_costs_no_message(opened):
    """What was popped before the mistake was met is given back, or removed; nothing is half there."""
    store = opened()
    one, two = store.client(), store.client()
    for client in (one, two):
        client.write(A, b"1")
    one.write(B, b"2")
    for wrong in (b"short", [], 7):
        with pytest.raises(ValueError, match="16 bytes"):
            two.remove([A, B, wrong])
        assert store.references(A) >= 1
    store.flush()
    assert one.read(A) == b"1"
    assert store.stats().pending == 0
    assert store._buffer.shared == {}


def test_refused_removal_keeps_pending_messages(opened):
    store = opened()
    one, two = store.client(), store.client()
    one.write(A, b"1")
    with pytest.raises(ValueError, match="16 bytes"):
        two.remove([A, b"short"])
    assert one.read(A) == b"1"
    assert store.references(A) == 1


def test_three_references_before_a_flush_are_three(opened):
    store = opened()
    client = store.client()
    for _ in range(3):
        client.write(A, b"1")
    assert store.references(A) == 3
    store.flush()
    assert store.references(A) == 3


def test_removal_takes_the_clients_own_reference(opened):
    """What the other client has is forgotten with it, and nothing is left."""
    store = opened()
    one, two = store.client(), store.client()
    one.write(A, b"1")
    two.write(A, b"1")
    two.remove([A])
    assert store.references(A) == 1
    one.delete_and_close()
    assert store.references(A) == 0, "the reference that was removed was the other client's"


def test_reference_written_beside_a_remover_is_flushed(opened):
    """The remover has the entry of two references in its hand when a third one is written."""
    store = opened()
    client = store.client()
    client.write(A, b"1")
    client.write(A, b"1")
    store._buffer.pending.pop(A)
    client.write(A, b"1")
    store.flush()
    assert store.references(A) == 3


def test_id_removed_too_often_at_once_is_named(opened):
    store = opened()
    client = store.client()
    client.write(A, b"1")
    client.write(A, b"1")
    with pytest.raises(msgstore.MessageNotFound, match=A.hex()):
        client.remove([A, A, A])
    assert store.references(A) == 0


def test_removal_of_all_references_at_once_frees_the_segment(opened):
    """One reference is on disk, two are not."""
    store = opened()
    client = store.client()
    client.write(A, b"1")
    store.roll()
    client.write(A, b"1")
    client.write(A, b"1")
    client.remove([A, A, A])
    store.flush()
    assert store.stats().live_bytes == 0
    assert store.segments() == []


class Meeting(Files):
    """Calls ``meet`` once inside a write to disk: whatever is written then meets a flush under way."""

    def __init__(self):
        self.meet = None

    def pwrite(self, fd, data, offset):
        meet, self.meet = self.meet, None
        if meet:
            meet()
        super().pwrite(fd, data, offset)


def test_message_written_during_a_flush_is_confirmed_later(opened):
    files = Meeting()
    store = opened(files)
    confirmed = []
    client = store.client(on_confirm=confirmed.extend)
    client.write(A, b"1")
    files.meet = lambda: client.write(B, b"2")
    store.flush()
    assert confirmed == [A], "a flush confirmed a message that was written after it had begun"
    store.flush()
    assert confirmed == [A, B]


def test_flush_of_several_portions_writes_them_all(opened, monkeypatch):
    monkeypatch.setattr(flusher, "FLUSH_CHUNK", 1000)
    store = opened()
    confirmed = []
    client = store.client(on_confirm=confirmed.extend)
    ids = [bytes([number]) * 16 for number in range(1, 8)]
    for msg_id in ids:
        client.write(msg_id, b"x" * 900)
    store.flush()
    assert confirmed == ids
    assert store.stats().pending == 0, "messages are confirmed, and only in memory"


def test_what_is_removed_while_it_is_being_written_is_dead(opened):
    files = Meeting()
    store = opened(files)
    client = store.client()
    client.write(A, b"1")
    client.write(B, b"2")
    files.meet = lambda: client.remove([A])
    store.flush()
    assert not client.contains(A)
    assert client.read(B) == b"2"
    stats = store.segments()[-1]
    assert (stats.live_count, stats.garbage_bytes > 0) == (1, True)
    client.write(A, b"1")  # late, and revived
    store.flush()
    assert store.segments()[-1].size == stats.size
    assert client.read(A) == b"1"


def test_what_is_removed_and_written_anew_while_it_is_being_written_has_one_reference(opened):
    files = Meeting()
    store = opened(files)
    client = store.client()
    client.write(A, b"1")

    def meet():
        client.remove([A])
        client.write(A, b"1")

    files.meet = meet
    store.flush()
    store.flush()
    assert store.references(A) == 1
    client.remove([A])
    assert not client.contains(A)


def test_what_becomes_shared_while_it_is_being_written_keeps_its_references(opened):
    files = Meeting()
    store = opened(files)
    clients = [store.client() for _ in range(3)]
    clients[0].write(A, b"1")

    def meet():
        for client in clients:
            client.write(A, b"1")
        clients[0].remove([A])

    files.meet = meet
    store.flush()
    assert store.references(A) == 3
    store.flush()
    assert store.references(A) == 3


def test_what_dies_on_disk_while_a_second_reference_waits_is_written_again(opened):
    """The flush found the id in the index and wrote nothing; before it can add a reference the record is gone."""
    store = opened()
    client = store.client()
    client.write(A, b"1")
    store.flush()
    store.roll()
    client.write(A, b"1")
    known = store._flusher._batches._known

    def known_and_gone(ids):
        found = known(ids)
        with store._accounting.state_lock:
            store._accounting.mark_dead(store._index.release([A]).freed)
            store._accounting.revivable.clear()
        store._flusher._batches._known = known
        return found

    store._flusher._batches._known = known_and_gone
    store.flush()
    assert client.read(A) == b"1"
    assert store.references(A) == 1
    assert store.stats().pending == 0


@pytest.mark.usefixtures("quick_switching")
def test_counts_are_exact_whoever_meets_whom(opened):
    """Threads write and remove the same few ids, the same body objects too, while others flush and read."""
    store = opened()
    ids = [bytes([number]) * 16 for number in range(8)]
    bodies = {msg_id: msg_id * 3 for msg_id in ids}
    outcomes: list[Counter[bytes]] = []
    going = [True]

    def work(seed):
        """What it has removed it has written before, so no removal can miss."""
        rng = random.Random(seed)
        client = store.client()
        mine: Counter[bytes] = Counter()
        for _ in range(3000):
            msg_id = rng.choice(ids)
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
        while going[0]:
            store.flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        in_threads(*(lambda seed=seed: work(seed) for seed in range(6)))
    finally:
        going[0] = False
        flusher.join()
    store.flush()
    wanted = sum(outcomes, Counter())
    assert {msg_id: store.references(msg_id) for msg_id in ids} == {msg_id: wanted[msg_id] for msg_id in ids}
    assert store._buffer.shared == {}
    client = store.client()
    for msg_id, count in wanted.items():
        client.remove([msg_id] * count)
    assert store.stats().messages == 0
    assert sum(s.live_count for s in store.segments()) == 0


@pytest.mark.usefixtures("quick_switching")
def test_one_of_many_first_writes_of_the_same_object_is_the_first(opened):
    store = opened()
    for round_number in range(200):
        msg_id = round_number.to_bytes(16)
        body = b"the very same object"
        clients = [store.client() for _ in range(3)]
        in_threads(*(partial(client.write, msg_id, body) for client in clients))
        assert store.references(msg_id) == 3


# -- confirms -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_switching")
def test_each_write_is_confirmed_once_and_in_order(opened):
    store = opened()
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

    in_threads(*(lambda number=number: work(number) for number in range(4)))
    store.flush()
    assert told == written


def test_a_client_that_raises_harms_nobody(opened):
    def fail(ids):
        raise RuntimeError("mine")

    confirmed = []
    store = opened()
    store.client("bad", on_confirm=fail).write(A, b"1")
    store.client("good", on_confirm=confirmed.extend).write(B, b"2")
    store.flush()
    assert confirmed == [B]
    assert store.stats().callback_failures == 1


# -- bounds, and who waits for whom ----------------------------------------------------------------------------------------


class Held(Files):
    """Syncs wait until they are let go."""

    def __init__(self):
        self.syncs = 0
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def sync(self, fd):
        self.syncs += 1
        self.inside.set()
        assert self.go_on.wait(60)
        super().sync(fd)


def test_nobody_who_writes_waits_for_the_disk(opened):
    files = Held()
    store = opened(files, durability="fsync")
    client = store.client()
    client.write(A, b"1")
    files.inside.clear()
    files.go_on.clear()
    flushing = threading.Thread(target=store.flush)
    flushing.start()
    assert files.inside.wait(30)
    for number in range(10, 200):
        client.write(bytes([number]) * 16, b"2" * 100_000)
    assert client.read(A) == b"1"
    client.remove([A])
    assert store.stats().pending == 190
    files.go_on.set()
    flushing.join(30)
    store.flush()
    assert client.contains(bytes([199]) * 16)
    assert not client.contains(A)


def test_at_the_bound_of_unconfirmed_bytes_a_writer_waits(opened):
    files = Held()
    store = opened(files, durability="fsync", max_unconfirmed="1MiB")
    client = store.client()
    files.go_on.clear()
    done = threading.Event()

    def fill():
        for number in range(100):
            client.write(bytes([number]) * 16, b"2" * 100_000)
        done.set()

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    assert files.inside.wait(30)
    assert not done.wait(0.2)
    assert store._buffer.charged_bytes() < 3 * 2**20
    files.go_on.set()
    assert done.wait(30)
    filling.join(30)


def test_threads_that_flush_together_share_their_syncs(opened):
    files = Held()
    store = opened(files, durability="fsync")
    store.client().write(A, b"the segment is there")
    store.flush()
    files.inside.clear()
    files.go_on.clear()
    before = files.syncs

    def one(number):
        store.client().write(bytes([number]) * 16, b"body")
        store.flush()

    threads = [threading.Thread(target=one, args=[number]) for number in range(10, 26)]
    threads[0].start()
    assert files.inside.wait(30)  # the others come while the first one's sync is under way
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 30
    while store.stats().pending < 16 and time.monotonic() < deadline:
        time.sleep(0.001)
    files.go_on.set()
    for thread in threads:
        thread.join(30)
    assert store.stats().pending == 0
    # The first one's, and one for all others; a commit of a persistent index syncs in LMDB, not here.
    assert files.syncs - before == 2


def test_a_flush_that_began_later_serves_those_who_waited(opened, monkeypatch):
    """Sixteen flushes at once, two runs: the one under way, which lasts until all have come, and one for all the others."""
    store = opened()
    monkeypatch.setattr(group_commit, "_RETRY_SECONDS", 60)
    flush, run, taken, come = store._flusher.flush_locked, store._flusher._group.run, [], []

    def counted(work):
        come.append(1)
        run(work)

    def held():
        taken.append(1)
        latest = time.monotonic() + 30
        while len(taken) == 1 and len(come) < 16 and time.monotonic() < latest:
            time.sleep(0.001)  # the others need the interpreter
        time.sleep(0.02)  # the last of them is between two lines
        flush()

    monkeypatch.setattr(store._flusher, "flush_locked", held)
    monkeypatch.setattr(store._flusher._group, "run", counted)
    in_threads(*(store.flush for _ in range(16)))
    assert len(taken) == 2


def test_with_fsync_every_the_flusher_syncs(opened):
    files = Held()
    store = opened(files, durability={"fsync_every": "10ms"}, sync_interval="10ms", gc_interval=0)
    confirmed = threading.Event()
    files.inside.clear()
    store.client(on_confirm=lambda ids: confirmed.set()).write(A, b"1")
    assert confirmed.wait(30)
    assert files.inside.wait(30)
    deadline = time.monotonic() + 30
    while store._segments.unsynced and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not store._segments.unsynced


# -- clients that go ------------------------------------------------------------------------------------------------------


def test_close_waits_until_everything_is_confirmed(opened):
    confirmed = []
    store = opened()
    client = store.client(on_confirm=confirmed.extend)
    write = client.write
    write(A, b"1")
    client.close()
    assert confirmed == [A]
    for call in (lambda: write(B, b"2"), lambda: client.write(B, b"2"), lambda: client.remove([A]), lambda: client.read(A)):
        with pytest.raises(msgstore.StoreClosed):
            call()
    assert store.client().read(A) == b"1"


def test_delete_and_close_drops_what_only_it_has_in_flight(opened):
    confirmed = []
    store = opened()
    going, staying = store.client(on_confirm=confirmed.extend), store.client()
    going.write(A, b"known")
    store.flush()
    going.write(A, b"known")  # a second reference to a message that the store knows
    going.write(B, b"in flight")
    going.write(C, b"in flight, and somebody else's too")
    staying.write(C, b"in flight, and somebody else's too")
    staying.write(D, b"somebody else's")
    size = store.stats().bytes_on_disk
    going.delete_and_close()
    assert not staying.contains(B)
    assert store.references(C) == 1
    store.flush()
    assert confirmed == [A]  # of before
    assert {i: store.references(i) for i in (A, B, C, D)} == {A: 2, B: 0, C: 1, D: 1}
    assert store.stats().bytes_on_disk > size
    assert [e.msg_id for e in store.entries()] == [A, C, D]


def test_the_sequence_of_the_essay(opened):
    """W1 W2 W1 R1 T W3 R2 W2 R1 R2 R3 W4, where T, the client's end, overtakes what comes behind it.

    At T 1 and 2 have one reference each. What comes behind is applied to them and ignored for 3 and 4, which are unknown.
    """
    store = opened()
    client = store.client()
    client.write(A, b"1")
    client.write(B, b"2")
    client.write(A, b"1")
    client.remove([A])
    store.flush()
    assert (store.references(A), store.references(B)) == (1, 1)
    client.write(C, b"3")
    client.remove([B])
    client.write(B, b"2")
    client.remove([A])
    client.remove([B])
    client.remove([C])
    client.write(D, b"4")
    size = store.stats().bytes_on_disk
    client.delete_and_close()
    store.flush()
    assert store.stats().messages == 0
    assert store.stats().bytes_on_disk == size


@pytest.mark.usefixtures("quick_switching")
def test_clients_that_go_while_others_write_the_same_ids(opened):
    store = opened()
    ids = [bytes([number]) * 16 for number in range(4)]

    def come_and_go(seed):
        rng = random.Random(seed)
        for _ in range(150):
            client = store.client()
            for msg_id in rng.sample(ids, 3):
                client.write(msg_id, b"body")
            client.delete_and_close()

    def stay():
        client = store.client()
        for _ in range(1500):
            for msg_id in ids:
                client.write(msg_id, b"body")
                assert client.read(msg_id) == b"body"
                client.remove([msg_id])

    in_threads(*(lambda seed=seed: come_and_go(seed) for seed in range(3)), stay, stay)
    assert store._buffer.pending == {}
    assert store._buffer.shared == {}


# -- one object for many readers ------------------------------------------------------------------------------------------


def test_readers_of_a_shared_body_get_one_object(opened):
    store = opened()
    one, two = store.client(), store.client()
    for client in (one, two):
        client.write(A, b"shared" * 100)
    one.write(B, b"alone" * 100)
    store.flush()
    assert one.read(A) is two.read(A)
    assert two.read_many([A, B])[A] is one.read(A)
    assert one.read(B) is not two.read(B)
    one.remove([A])
    two.remove([A])
    with pytest.raises(msgstore.MessageNotFound):
        one.read(A)
    assert not store._accounting.shared.ids


def test_the_cache_of_shared_bodies_is_bounded(opened):
    store = opened(shared_cache="10KiB")
    one, two = store.client(), store.client()
    for number in range(30):
        for client in (one, two):
            client.write(bytes([number]) * 16, bytes([number]) * 1000)
    store.flush()
    for number in range(30):
        assert one.read(bytes([number]) * 16) == bytes([number]) * 1000
    shared = store._accounting.shared
    assert shared._bytes == sum(map(len, shared._bodies.values())) <= 10 * 1024
    assert len(shared._bodies) == 10
    assert one.read(bytes([29]) * 16) is two.read(bytes([29]) * 16)
