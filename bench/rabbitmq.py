"""Benchmark of the source ``rabbitmq`` beside a bare loop that decodes the same terms: ``python bench/rabbitmq.py``.

A node of a million messages in 200 queues is made, a tenth of them in the shared store. ``queues`` and ``convert`` to Parquet
run as commands of their own, whose wall time and peak memory are measured. The loop reads the same messages, in one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from rabbitmq_files import index_v1, index_v2
from rabbitmq_files.terms import decode
from rabbitmq_generator import make_node

MAX_QUEUES_SECONDS = 30
MIN_MESSAGES_PER_SECOND = 10_000
MAX_MEMORY = 300 * 2**20


def decode_all(node: Path) -> int:
    """Decode the term of each message in a queue, and nothing else of it."""
    store = {}
    for file in node.rglob("*.rdq"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "big")
            store[data[at + 8 : at + 24]] = data[at + 24 : at + 8 + size]
            at += size + 9
    count = 0
    for file in node.rglob("*.idx"):
        data = file.read_bytes()
        found = index_v1.read_segment(data)
        for number, publish in found.publishes.items():
            if number not in found.acknowledged:
                count += bool(decode(data, publish.term_offset) if publish.term_size else decode(store[publish.msg_id]))
    for file in node.rglob("*.qi"):
        stored = file.with_suffix(".qs").read_bytes()
        for entry in index_v2.read_index(file.read_bytes()).entries:
            own = entry.place == "own"
            count += bool(decode(stored, entry.stored_offset + index_v2.STORED_SIZE) if own else decode(store[entry.msg_id]))
    return count


def run(*arguments: str) -> tuple[float, int]:
    """Run a command. Return its seconds, and its peak memory in bytes."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "msgstore", *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"msgstore {' '.join(arguments)} ended with {process.returncode}")
    scale = 1 if platform.system() == "Darwin" else 1024
    return time.perf_counter() - began, usage.ru_maxrss * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--dir", type=Path, help="Where the node is made. Default: the directory for temporary files.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        node = make_node(Path(directory, "rabbit@bench"), queues=given.queues, messages=given.messages)
        listing, listing_memory = run("queues", str(node))
        converting, converting_memory = run("convert", str(node), str(Path(directory, "out.parquet")))
        began = time.perf_counter()  # last: a child's peak memory is not below that of its parent when it starts
        assert decode_all(node) == given.messages
        loop = time.perf_counter() - began
    speed = given.messages / converting
    figures = [
        ("queues", "seconds", listing, listing <= MAX_QUEUES_SECONDS, f"at most {MAX_QUEUES_SECONDS}"),
        ("queues", "peak memory, MiB", listing_memory / 2**20, listing_memory <= MAX_MEMORY, "at most 300"),
        ("convert to Parquet", "messages a second", speed, speed >= MIN_MESSAGES_PER_SECOND, "at least 10,000"),
        ("convert to Parquet", "peak memory, MiB", converting_memory / 2**20, converting_memory <= MAX_MEMORY, "at most 300"),
        ("bare loop", "messages a second", given.messages / loop, None, ""),
    ]
    if given.json:
        print(json.dumps({f"{what}, {unit}": round(value, 1) for what, unit, value, _, _ in figures}))
        return
    table = Table(title=f"{given.messages:,} messages in {given.queues} queues; Python {platform.python_version()}")
    for heading in ("what", "unit", "measured", "required", "met"):
        table.add_column(heading)
    for what, unit, value, is_met, required in figures:
        table.add_row(what, unit, f"{value:,.1f}", required, "" if is_met is None else "met" if is_met else "MISSED")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
