"""Measurement of the format ``ledger`` and the index ``sqlite`` next to msgstore's own: ``python tests/foreign/measure.py``.

Takes some ten seconds, in a temporary directory. The figures of docs/adr/0013-trailers.md come from an earlier version.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import msgstore


def measure_format(name: str) -> None:
    """Print the time of writing and flushing 100,000 messages of 1 KiB, in µs per message."""
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as directory:
            begin = time.perf_counter()
            store = msgstore.open_store(Path(directory) / "s", index="ets", format=name)
            with store, store.client() as client:
                client.write_many((n.to_bytes(16, "big"), bytes(1024)) for n in range(100_000))
                store.flush()
                seconds.append(time.perf_counter() - begin)
    print(f"format {name}: {10 * median(seconds):.1f} µs per message of 1 KiB")


def measure_index(name: str, count: int = 100_000) -> None:
    """Print the times of a flush, and of ``contains`` for present and absent ids, in µs per message."""
    with tempfile.TemporaryDirectory() as directory:
        ids = [n.to_bytes(16, "big") for n in range(count)]
        store = msgstore.open_store(Path(directory) / "s", index=name, format="v2", sync_interval=3600)
        with store, store.client() as client:
            client.write_many((i, b"x" * 64) for i in ids)
            begin = time.perf_counter()
            store.flush()
            flushed = time.perf_counter()
            for msg_id in ids[::10]:
                client.contains(msg_id)
            present = time.perf_counter()
            for n in range(count, count + count // 10):
                client.contains(n.to_bytes(16, "big"))
            absent = time.perf_counter()
        each = 1e6 / count
        print(
            f"index {name}: flush {each * (flushed - begin):.1f} µs per message, "
            f"contains {10 * each * (present - flushed):.1f} µs if present, {10 * each * (absent - present):.1f} µs if absent"
        )


if __name__ == "__main__":
    for name in ("ledger", "v2"):
        measure_format(name)
    for name in ("sqlite", "lmdb"):
        measure_index(name)
