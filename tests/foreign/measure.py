"""The figures of docs/adr/0013-trailers.md: ``python tests/foreign/measure.py``. Some ten seconds, in a temporary directory."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import msgstore

SEGMENT = 16 * 2**20


def trailer(size: int) -> None:
    """A segment of 16 MiB with bodies of ``size`` bytes: its records are written, its trailer is made and written."""
    descriptor = msgstore.load_catalogue().format("ledger")
    form = descriptor.load_factory()(None)
    ids = [n.to_bytes(16, "big") for n in range(SEGMENT // (size + 25))]
    begin = time.perf_counter()
    data = form.header + form.encode(ids, [bytes(size)] * len(ids))[0]
    encoded = time.perf_counter()
    made = form.trailer(data)
    done = time.perf_counter()
    print(
        f"bodies of {size} B: {len(ids)} records encoded in {1000 * (encoded - begin):.0f} ms; "
        f"trailer of {len(made)} B ({100 * len(made) / len(data):.1f} %) in {1000 * (done - encoded):.0f} ms"
    )


def rolls(name: str) -> None:
    """Writing 100,000 messages of 1 KiB into a store: the whole of it, in µs a message."""
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as directory:
            begin = time.perf_counter()
            store = msgstore.open_store(Path(directory) / "s", index="ets", format=name)
            with store, store.client() as client:
                client.write_many((n.to_bytes(16, "big"), bytes(1024)) for n in range(100_000))
                store.flush()
                found.append(time.perf_counter() - begin)
    print(f"format {name}: {10 * median(found):.1f} µs a message of 1 KiB")


def index(name: str, count: int = 100_000) -> None:
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
            f"index {name}: flush {each * (flushed - begin):.1f} µs a message, "
            f"contains {10 * each * (present - flushed):.1f} µs if there, {10 * each * (absent - present):.1f} µs if not"
        )


if __name__ == "__main__":
    for size in (64, 1024, 16384):
        trailer(size)
    for name in ("ledger", "v2"):
        rolls(name)
    for name in ("sqlite", "lmdb"):
        index(name)
