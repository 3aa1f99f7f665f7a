"""Memory of a store under a load that does not grow: ``python bench/soak.py --help``.

Threads keep a fixed number of messages alive: each writes, reads and removes, at a fixed rate, while the store collects. Once
a minute a line says how much memory the process has (RSS), how much of it the C library has given out and holds free
(``mallinfo2``), and how much Python's objects take (``tracemalloc``, with ``--trace``: a third of the speed). The last line has
the growth of each in KiB a minute, from the end of the warm-up on, by least squares.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import tempfile
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from children import resident_bytes

import msgstore

MIB = 2**20


class MallInfo2(ctypes.Structure):
    """Statistics of glibc's heap in bytes: ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a store under a load that does not grow.")
    parser.add_argument("--index", default="ets")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=5, help="minutes that do not count")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second that each thread writes and removes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--living", type=int, default=20_000, help="messages that each thread keeps alive")
    parser.add_argument("--trace", action="store_true", help="also trace Python's objects")
    parser.add_argument("--json", action="store_true", help="JSON Lines")
    arguments = parser.parse_args()
    if arguments.trace:
        tracemalloc.start()
    rows = []
    for row in soak(arguments):
        rows.append(row)
        show(row, as_json=arguments.json)
    counted = rows[min(arguments.warm_up, len(rows) - 2) :]
    growth = {name: slope([row[name] for row in counted]) / 1024 for name in rows[0] if name not in ("minute", "messages")}
    show({"minute": "KiB/min", "messages": rows[-1]["messages"]} | growth, as_json=arguments.json)


def soak(arguments: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Run the load, and yield a row each minute."""
    ended = threading.Event()
    written = [0] * arguments.threads
    with tempfile.TemporaryDirectory(prefix="msgstore-soak-") as directory:
        path = Path(directory, "store")
        with msgstore.open_store(path, index=arguments.index, file_size_limit="4MiB") as store:

            def work(number: int) -> None:
                rng, living = random.Random(number), deque[bytes]()
                with store.client(f"worker-{number}") as client:
                    while not ended.wait(0.1):
                        messages = [
                            (rng.randbytes(16), rng.randbytes(rng.choice((64, 256, 1024)))) for _ in range(arguments.rate // 10)
                        ]
                        client.write_many(messages)
                        living.extend(msg_id for msg_id, _ in messages)
                        client.read_many(rng.sample(living, min(50, len(living))))
                        client.remove([living.popleft() for _ in range(max(0, len(living) - arguments.living))])
                        written[number] += len(messages)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(arguments.threads)]
            for thread in threads:
                thread.start()
            try:
                for minute in range(1, arguments.minutes + 1):
                    time.sleep(60)
                    gc.collect()
                    yield {"minute": float(minute), "messages": float(sum(written))} | memory()
            finally:
                ended.set()
                for thread in threads:
                    thread.join()


def memory() -> dict[str, float]:
    """Return the memory of this process in bytes."""
    found = {"resident": float(resident_bytes() or 0)}
    with_info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if with_info is not None:
        with_info.restype = MallInfo2
        info = with_info()
        found |= {"malloc_used": float(info.uordblks + info.hblkhd), "malloc_free": float(info.fordblks)}
    if tracemalloc.is_tracing():
        found["python"] = float(tracemalloc.get_traced_memory()[0])
    return found


def slope(values: list[float]) -> float:
    """Return the growth from one value to the next, by least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    squares = sum((at - middle) ** 2 for at in range(len(values)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / squares


def show(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    scale, unit = (MIB, " MiB") if isinstance(row["minute"], float) else (1, "")
    sizes = "  ".join(f"{name} {value / scale:8.2f}{unit}" for name, value in list(row.items())[2:])
    minute = f"{row['minute']:g}" if isinstance(row["minute"], float) else row["minute"]
    print(f"{minute:>7}  {row['messages']:>12,.0f}  {sizes}", flush=True)


if __name__ == "__main__":
    main()
