"""Memory that the local job runner needs per message: ``python bench/job_memory.py --help``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import children
import pipeline_data as data
from pipeline_jobs import memory_of
from rich.console import Console
from rich.table import Table

BODY = 100
JOBS = ("salvage", "salvage with counts", "diff", "inventory")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how many more bytes a job needs for each additional message.")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="messages of the larger store; the smaller one has a fifth of them"
    )
    most = parser.parse_args().messages
    table = Table("job", "bytes per message")
    with tempfile.TemporaryDirectory(prefix="msgstore-bench-") as directory, Console(stderr=True).status("creating stores"):
        stores = {messages: str(Path(directory, str(messages))) for messages in (most // 5, most)}
        for messages, store in stores.items():
            children.call(data.make_store, store, BODY, messages)
        for job in JOBS:
            less, more = (children.call(memory_of, job, store) for store in stores.values())
            table.add_row(job, f"{(more - less) / (most - most // 5):.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
