"""Time to confirm a message while segments are collected: with two background threads, and as with one.

``python bench/one_thread.py`` prints milliseconds from ``write`` to ``on_confirm`` of an idle client, which writes one
message at a time. With one thread a flush by the clock waits for the running action of the collector.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgstore
from msgstore.contract import Action
from msgstore.engine.compact.garbage_collector import GarbageCollector
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.store import Store
from msgstore.engine.write.flusher import BackgroundFlusher

SEED = 1
BODY = 16 * 2**10
PORTIONS = 24
"""Number of 16 MiB that are written. Three fifths of the messages are removed at random."""
SYNC_SECONDS = 0.02


def fill(store: Store) -> None:
    """Write segments, and remove three fifths of their messages."""
    chosen = random.Random(SEED)
    ids = [chosen.randbytes(16) for _ in range(PORTIONS * 2**24 // BODY)]
    with store.client() as client:
        client.write_many((msg_id, msg_id * (BODY // 16)) for msg_id in ids)
        store.roll()
        client.remove(chosen.sample(ids, len(ids) * 3 // 5))
        store.flush()


def confirm_times(store: Store) -> list[float]:
    """Return the milliseconds from write to confirm, one message after the other, while everything is compacted."""
    confirmed, times, chosen = threading.Event(), list[float](), random.Random(SEED + 1)
    client = store.client(on_confirm=lambda _: confirmed.set())
    collecting = threading.Thread(target=lambda: store.compact(everything=True))
    collecting.start()
    while collecting.is_alive():
        confirmed.clear()
        begin = time.perf_counter()
        client.write(chosen.randbytes(16), b"body")
        confirmed.wait()
        times.append(1000 * (time.perf_counter() - begin))
    collecting.join()
    return sorted(times)


class OneThread:
    """Makes flushes by the clock and actions of the collector take turns, as on one thread: a waiting flush comes next."""

    def __init__(self) -> None:
        self._acting = threading.Lock()
        self._is_flush_waiting = False
        self._flush, self._act = BackgroundFlusher._flush, GarbageCollector._act

    def __enter__(self) -> None:
        def flush(flusher: BackgroundFlusher) -> None:
            self._is_flush_waiting = True
            with self._acting:
                self._is_flush_waiting = False
                self._flush(flusher)

        def act(collector: GarbageCollector, action: Action) -> list[CollectionResult]:
            while self._is_flush_waiting:
                time.sleep(0)
            with self._acting:
                return self._act(collector, action)

        BackgroundFlusher._flush, GarbageCollector._act = flush, act  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        BackgroundFlusher._flush, GarbageCollector._act = self._flush, self._act  # type: ignore[method-assign]


def measure(threads: AbstractContextManager[object], segment: str) -> list[float]:
    """Return the confirm times of one run with segments of this size."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, threads:
        options = {"index": "ets", "format": "v2", "sync_interval": SYNC_SECONDS, "gc_interval": 0}
        with msgstore.open_store(directory, file_size_limit=segment, **options) as store:
            fill(store)
            return confirm_times(store)


def main() -> None:
    print("milliseconds from write to on_confirm, sync_interval 20 ms, while 384 MiB are compacted")
    for segment in ("16MiB", "128MiB"):
        for name, threads in (("two threads", nullcontext()), ("one thread", OneThread())):
            times = measure(threads, segment)
            at = [times[min(int(share * len(times)), len(times) - 1)] for share in (0.5, 0.99)]
            row = f"{segment:>7} segments, {name:<11}  {len(times):>4} messages"
            print(f"{row}   p50 {at[0]:7.1f}   p99 {at[1]:7.1f}   worst {times[-1]:7.1f}")


if __name__ == "__main__":
    main()
