"""The collector in the background: space comes back while load goes on, nothing that was put off is forgotten, nobody hangs."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from support import failing, until

LIMIT = 64 * 2**10
BODY = b"b" * 500
KEYS = {"file_size_limit": LIMIT, "sync_interval": "10ms", "gc_interval": "10ms"}


def fill(store, count):
    """Return the client, and the ids of so many messages in sealed segments."""
    client, ids = store.client(), [number.to_bytes(16) for number in range(count)]
    for msg_id in ids:
        client.write(msg_id, BODY)
    store.roll()
    return client, ids


def remove_most(client, ids):
    client.remove([msg_id for at, msg_id in enumerate(ids) if at % 4])


def sizes(directory):
    """Of the segments, by the file system; some may go meanwhile."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name.removesuffix(".tmp").endswith((".sqs", ".rdq")):
                yield path.stat().st_size


@pytest.mark.parametrize("policy", ["half-empty", "combine"])
def test_collector_reclaims_space_of_removed_messages(opened, policy):
    store = opened(gc=policy)
    client, ids = fill(store, 2000)
    kept = set(random.Random(1).sample(ids, 400))
    for msg_id in ids:
        if msg_id not in kept:
            client.remove([msg_id])
    until(lambda: store.stats().bytes_on_disk <= 2.2 * store.stats().live_bytes + 2 * LIMIT)
    assert all(client.read(msg_id) == BODY for msg_id in kept)
    assert store.stats().messages == 400


@pytest.mark.slow
@pytest.mark.parametrize("order", ["first in, first out", "random"])
def test_directory_at_full_speed_stays_small(opened, order, tmp_path):
    """Twice what is alive and four segments, at every moment, whatever the load; the files themselves are counted."""
    limit, size, worst = 2**20, 4096, 0.0
    store = opened(file_size_limit=limit, gc_interval="900ms", sync_interval="50ms")
    client, rng = store.client(), random.Random(2)
    alive: list[bytes] = []
    for number in range(30_000):
        msg_id = number.to_bytes(16)
        client.write(msg_id, b"b" * size)
        alive.append(msg_id)
        if len(alive) > 6000:  # 24 MiB, more than is held back
            at = 0 if order == "first in, first out" else rng.randrange(len(alive))
            alive[at], alive[0] = alive[0], alive[at]
            client.remove([alive.pop(0)])
        if number % 500 == 0:
            live = len(alive) * (size + 21)  # of which some are held back in memory
            worst = max(worst, sum(sizes(tmp_path / "store")) / (2 * live + 4 * limit))
    assert worst <= 1
    assert store.stats().counters.collections or store.stats().counters.deleted_segments


def at_collection(files, act, *, times=None):
    """Call ``act`` when a segment is opened for compaction in place, or created for copies."""
    files.before("open_write", act, times=times)
    files.before("create", act, ".rdq.tmp", times=times)
    files.before("create", act, ".sqs.tmp", times=times)


def test_collector_after_full_disk_tries_again(opened, files):
    store, refused = opened(files), []
    client, ids = fill(store, 1000)
    at_collection(files, lambda: (refused.append(1), failing()()))
    remove_most(client, ids)
    until(lambda: len(refused) > 2)
    before = store.stats().bytes_on_disk
    files.hooks.clear()
    until(lambda: store.stats().bytes_on_disk < before / 2)
    assert client.read(ids[0]) == BODY


def test_collector_finishes_without_further_removals(opened):
    """Everything is removed at once, while the collector is busy, and then nothing happens any more."""
    store = opened(gc_interval="20ms")
    client, ids = fill(store, 3000)
    client.remove(ids[:1400])
    client.remove(ids[1500:])
    until(lambda: store.stats().bytes_on_disk < 4 * LIMIT)


def test_store_without_gc_interval_collects_nothing(opened):
    store = opened(gc_interval=0)
    remove_most(*fill(store, 1000))
    store.flush()
    before = store.stats().bytes_on_disk
    assert not any("collector" in thread.name for thread in threading.enumerate() if thread.is_alive())
    assert store.stats().bytes_on_disk == before


def test_confirm_callback_writes_while_collector_is_behind(store):
    """It has what the collector needs: it must not wait for it."""
    done = threading.Event()

    def answer(ids):
        store._background_collector.is_behind = True
        store.client().write_many((bytes([number]) * 16, b"b" * 2**20) for number in range(40))
        done.set()

    store.client(on_confirm=answer).write(b"i" * 16, BODY)
    threading.Thread(target=store.flush, daemon=True).start()
    assert done.wait(60)


def test_close_during_collection_preempts_it(opened, files):
    inside, go_on = threading.Event(), threading.Event()
    store = opened(files)
    client, ids = fill(store, 1000)
    at_collection(files, lambda: (inside.set(), go_on.wait(60)))
    remove_most(client, ids)
    assert inside.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    store = opened(gc_interval=0)
    assert sorted(entry.msg_id for entry in store.entries()) == ids[::4]


def test_collector_after_failed_check_goes_on(store, monkeypatch):
    """Writers would wait for ever for one that has ended."""
    total_bytes, failures = store._accounting.total_bytes, []

    def fail():
        if len(failures) < 3 and threading.current_thread() is store._background_collector._thread:
            failures.append(1)
            raise RuntimeError("dictionary changed size during iteration")
        return total_bytes()

    monkeypatch.setattr(store._accounting, "total_bytes", fail)
    remove_most(*fill(store, 1000))
    until(lambda: len(failures) == 3 and store.stats().bytes_on_disk < 6 * LIMIT)
    assert store._background_collector._thread.is_alive()


def test_writers_do_not_wait_for_stopped_collector(store):
    store._background_collector.stop(wait=True)
    store._background_collector.is_behind = True
    store._background_collector.wait_for_backlog()


def test_total_bytes_beside_new_segments_is_computed(opened):
    """A segment is added without the lock, by whoever has ``flushing``."""
    store = opened(gc_interval=0)
    by_number, segment = store._segments.by_number, object()

    class Adding:
        size = live_bytes = 0

        def __getattribute__(self, name):
            by_number.setdefault(len(by_number) + 1000, segment)
            return 0

    by_number[999] = Adding()
    try:
        assert store._accounting.total_bytes() == (0, 0)
    finally:
        by_number.clear()
