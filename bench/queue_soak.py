"""Soak of msgstore's queues: ``python bench/queue_soak.py --help``.

A process publishes with 8 threads into 4 queues, and consumes with 8. Consumers end without acknowledging. The process is
killed, or stopped, and started again. The disk seems full for a while: writes beyond a random size of a file fail, after a part
is written. In the end all queues are drained. Every confirmed message must have been taken, in the order of its producer, and
memory and the number of files must not grow. Prints a table, and exits with 1 if one of these fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table
from tables import verdict

SERVER = Path(__file__).with_name("queue_soak_server.py")
SAMPLES = 40
"""Rows of the table."""
LIMITS = (0, 4096, 2**16, 2**20)
"""Sizes of files beyond which writes fail while the disk seems full."""
STEP = 10**9
"""The first number of each producer in a life of the process, as a multiple of the number of the life."""
FULL, FREE, KILL, STOP = "disk full", "disk free", "kill", "stop"
EVENTS = {2: FULL, 3: FREE, 4: KILL, 5: FULL, 6: KILL, 0: STOP}
"""Number of a sample, modulo 8, to what happens after it. A new process has a disk that is not full."""
MOST_MORE = {"memory, MiB": 16.0, "files": 8.0, "descriptors": 8.0}
"""Growth that counts as none, from the second quarter of the samples to the last."""


class Journal:
    """Messages that the processes report, as (queue, producer, number)."""

    def __init__(self) -> None:
        self.owed: dict[str, set[str]] = defaultdict(set)
        """Queue and producer to the numbers of confirmed messages that were not taken yet."""
        self.early: dict[str, set[str]] = defaultdict(set)
        """Likewise of messages that were taken, and are not confirmed, or were taken before."""
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.is_ready = threading.Event()

    def read(self, lines: IO[str]) -> None:
        """Read all lines of a process."""
        for line in lines:
            letter, _, rest = line.rstrip("\n").partition(" ")
            self.counts[letter] += 1
            place, _, number = rest.rpartition(" ")
            if letter == "c" and number in self.early[place]:
                self.early[place].remove(number)
            elif letter == "c":
                self.owed[place].add(number)
            elif letter == "t" and number in self.owed[place]:
                self.owed[place].remove(number)
            elif letter == "t":
                self.early[place].add(number)
            elif letter == "e":
                self.errors.append(rest)
            elif letter == "ready":
                self.is_ready.set()

    @property
    def lost(self) -> int:
        return sum(map(len, self.owed.values()))


class Life:
    """One process, from its start to its end."""

    def __init__(self, directory: Path, number: int, rate: float, journal: Journal) -> None:
        journal.is_ready.clear()
        command = [sys.executable, str(SERVER), str(directory), str(number * STEP), str(rate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=journal.read, args=(self.process.stdout,))
        self.reader.start()
        while not journal.is_ready.wait(0.1):
            if self.process.poll() is not None:
                raise SystemExit(f"the process did not start: {journal.errors[-1:]}")

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def end(self, *, is_killed: bool = False) -> None:
        """Wait for the end of the process, and of what it has said."""
        if is_killed:
            self.process.kill()
        if self.process.wait(600) != (-9 if is_killed else 0):
            raise SystemExit(f"the process ended with {self.process.returncode}")
        self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def soak(arguments: argparse.Namespace, directory: Path, journal: Journal) -> list[dict[str, float | str]]:
    """Run the load, and return the samples."""
    rows: list[dict[str, float | str]] = []
    number, life = 0, Life(directory, 0, arguments.rate, journal)
    chance, began = random.Random(20), time.monotonic()
    try:
        for sample in range(1, SAMPLES + 1):
            time.sleep(arguments.minutes * 60 / SAMPLES)
            event = EVENTS.get(sample % 8, "")
            rows.append({
                "seconds": round(time.monotonic() - began, 1), "confirmed": journal.counts["c"], "taken": journal.counts["t"],
                "memory, MiB": round(life.memory(), 1), "files": sum(1 for path in directory.rglob("*") if path.is_file()),
                "descriptors": life.descriptors(), "then": event,
            })  # fmt: skip
            if arguments.json:
                print(json.dumps(rows[-1]), flush=True)
            if event == FULL:
                life.tell(f"limit {chance.choice(LIMITS)}")
            elif event == FREE:
                life.tell("free")
            elif event:
                if event == STOP:
                    life.tell("stop")
                life.end(is_killed=event == KILL)
                number += 1
                life = Life(directory, number, arguments.rate, journal)
        life.tell("drain")
        life.end()
    finally:
        life.process.kill()
    return rows


def growth(rows: list[dict[str, float | str]], name: str) -> float:
    """Return how much a figure has grown from the second quarter of the samples to the last."""
    values = [float(row[name]) for row in rows]
    quarter = len(values) // 4
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])


def main() -> None:
    parser = argparse.ArgumentParser(description="Load queues, with kills and full disks; exit with 1 if something is lost.")
    parser.add_argument("--minutes", type=float, default=10, help="minutes under load; restarts come on top")
    parser.add_argument("--rate", type=float, default=200, help="messages a second that each of 8 threads publishes, at most")
    parser.add_argument("--dir", type=Path, help="where the directory is made, which is deleted; default: temporary directory")
    parser.add_argument("--json", action="store_true", help="JSON Lines")
    arguments, journal = parser.parse_args(), Journal()
    with tempfile.TemporaryDirectory(prefix="msgstore-soak-", dir=arguments.dir) as directory:
        rows = soak(arguments, Path(directory, "vhost"), journal)
    results = [
        ("confirmed, and lost", journal.lost, 0),
        ("out of order, and other errors", len(journal.errors), 0),
        *[(f"growth: {name}", growth(rows, name), most) for name, most in MOST_MORE.items()],
    ]
    is_met = all(value <= most for _, value, most in results) and journal.counts["c"] > 0
    if arguments.json:
        counts = {"confirmed": journal.counts["c"], "taken": journal.counts["t"], "consumers ended": journal.counts["b"]}
        print(json.dumps({**counts, **{name: value for name, value, _ in results}, "errors": journal.errors, "met": is_met}))
    else:
        show(rows, results, journal)
    raise SystemExit(0 if is_met else 1)


def show(rows: list[dict[str, float | str]], results: list[tuple[str, float, float]], journal: Journal) -> None:
    console = Console(width=120)
    samples, verdicts = Table(*rows[0]), Table("what", "measured", "at most", "")
    for row in rows:
        samples.add_row(*(value if isinstance(value, str) else f"{value:,}" for value in row.values()))
    for name, value, most in results:
        verdicts.add_row(name, f"{value:,.1f}", f"{most:g}", verdict(met=value <= most))
    console.print(samples)
    console.print(f"{journal.counts['b']:,} consumers ended", highlight=False)
    console.print(verdicts)
    for error in journal.errors[:20]:
        console.print(error, highlight=False, markup=False)


if __name__ == "__main__":
    main()
