"""The collector in the background: space comes back while load goes on, nothing that was put off is forgotten, nobody hangs."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from support import failing, in_threads, until

LIMIT = 64 * 2**10
BODY = b"b" * 500
KEYS = {"file_size_limit": LIMIT, "sync_interval": "10ms", "gc_interval": "10ms"}
IDS = [number.to_bytes(16) for number in range(1000)]


def fill(store, ids=IDS):
    """Write these messages into sealed segments. Return the client."""
    client = store.client()
    client.write_many((msg_id, BODY) for msg_id in ids)
    store.roll()
    return client


def sizes(directory):
    """Of the segments, by the file system; some may go meanwhile."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name.removesuffix(".tmp").endswith((".sqs", ".rdq")):
                yield path.stat().st_size


@pytest.mark.parametrize(("policy", "at_once"), [("half-empty", False), ("combine", False), ("half-empty", True)])
def test_collector_reclaims_space_of_removed_messages(opened, policy, at_once):
    """Also if everything is removed while the collector is busy, and then nothing happens any more."""
    store = opened(gc=policy)
    client = fill(store)
    kept = set(random.Random(1).sample(IDS, 200))
    gone = [msg_id for msg_id in IDS if msg_id not in kept]
    for removed in [gone] if at_once else [[msg_id] for msg_id in gone]:
        client.remove(removed)
    until(lambda: store.stats().bytes_on_disk <= 2.2 * store.stats().live_bytes + 2 * LIMIT)
    assert all(client.read(msg_id) == BODY for msg_id in kept)
    assert store.stats().messages == 200


@pytest.mark.slow
@pytest.mark.parametrize("order", ["first in, first out", "random"])
def test_directory_at_full_speed_stays_small(opened, order, tmp_path):
    """Twice what is alive and four segments, at every moment, whatever the load; the files themselves are counted."""
    limit, size = 2**20, 4096
    store = opened(file_size_limit=limit, gc_interval="900ms", sync_interval="50ms")
    client, rng = store.client(), random.Random(2)
    alive: list[bytes] = []
    for number in range(30_000):
        client.write(number.to_bytes(16), b"b" * size)
        alive.append(number.to_bytes(16))
        if len(alive) > 6000:  # 24 MiB, more than is held back
            at = 0 if order == "first in, first out" else rng.randrange(len(alive))
            alive[at], alive[0] = alive[0], alive[at]
            client.remove([alive.pop(0)])
        if number % 500 == 0:  # of what is alive some is held back in memory
            assert sum(sizes(tmp_path / "store")) <= 2 * len(alive) * (size + 21) + 4 * limit
    assert store.stats().counters.collections or store.stats().counters.deleted_segments


def at_collection(files, act):
    """Call ``act`` when a segment is opened for compaction in place, or created for copies."""
    for operation, name in (("open_write", ""), ("create", ".rdq.tmp"), ("create", ".sqs.tmp")):
        files.before(operation, act, name, times=None)


def test_collector_after_full_disk_tries_again(store, files):
    refused = []
    client = fill(store)
    at_collection(files, lambda: (refused.append(1), failing()()))
    client.remove(IDS[1::2] + IDS[2::4])
    until(lambda: len(refused) > 2)
    before = store.stats().bytes_on_disk
    files.hooks.clear()
    until(lambda: store.stats().bytes_on_disk < before / 2)
    assert client.read(IDS[0]) == BODY


def test_store_without_gc_interval_has_no_collector(opened):
    store = opened(gc_interval=0)
    fill(store).remove(IDS[::2])
    store.flush()
    assert not any("collector" in thread.name for thread in threading.enumerate() if thread.is_alive())
    assert sum(s.garbage_bytes for s in store.segments()) > 1000


def test_confirm_callback_writes_while_collector_is_behind(store):
    """It has what the collector needs: it must not wait for it."""
    done = []

    def answer(ids):
        store._collector.is_behind = True
        store.client().write_many((bytes([number]) * 16, b"b" * 2**20) for number in range(40))
        done.append(ids)

    store.client(on_confirm=answer).write(b"i" * 16, BODY)
    in_threads(store.flush)
    assert done


def test_close_during_collection_preempts_it(opened, store, files):
    inside, go_on = threading.Event(), threading.Event()
    client = fill(store)
    at_collection(files, lambda: (inside.set(), go_on.wait(60)))
    client.remove(IDS[1::2] + IDS[2::4])
    assert inside.wait(60)
    in_threads(store.close, go_on.set)
    assert sorted(entry.msg_id for entry in opened(gc_interval=0).entries()) == IDS[::4]


def test_writers_do_not_wait_for_failed_or_stopped_collector(store, monkeypatch):
    """Writers would wait for ever for one that has ended."""
    total_bytes, failures, collector = store._accounting.total_bytes, [], store._collector

    def fail():
        if len(failures) < 3 and threading.current_thread() is collector.thread:
            failures.append(1)
            raise RuntimeError("dictionary changed size during iteration")
        return total_bytes()

    monkeypatch.setattr(store._accounting, "total_bytes", fail)
    fill(store).remove(IDS[1::2] + IDS[2::4])
    until(lambda: len(failures) == 3 and store.stats().bytes_on_disk < 6 * LIMIT)
    assert collector.thread.is_alive()
    collector.stop()
    collector.is_behind = True
    collector.wait_for_backlog()
