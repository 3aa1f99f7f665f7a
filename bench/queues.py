"""Benchmark of msgstore's queues beside other queues: ``python bench/queues.py --help``.

Each row of each round is a process of its own. Rounds go through all queues in a newly shuffled order.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import children
import queue_rows as rows
from figures import Bound, Figure, Figures
from measure import file_system, new_directory
from rich.console import Console
from tables import bound_object, figure_object, print_figures, print_required, value_text

OURS = rows.MsgStoreQueue.name
OPERATIONS = {
    "publish": f"Messages published per second, {rows.BODY} bytes",
    "consume": f"Messages published, taken and acknowledged per second, at a lag of {rows.LAG:,}",
    "backlog": "A backlog: messages published per second, and peak memory of the process",
    "restart": "Seconds from opening a queue with this backlog to its first message",
    "fsync": "Messages per second, each publish and each acknowledgement synced",
}
"""Operation to the title of its table."""
COUNTS = {"publish": 50_000, "consume": 20_000, "backlog": 200_000, "backlog of msgstore": 5_000_000, "fsync": 300}
QUICK = {"publish": 2_000, "consume": 2_500, "backlog": 5_000, "backlog of msgstore": 50_000, "fsync": 30}
"""Numbers of messages with --quick, which show that everything works, and no more."""
ROUNDS, QUICK_ROUNDS, MOST_BACKLOGS = 5, 2, 3
"""MOST_BACKLOGS: rounds of backlogs and restarts, at most."""
RATE, PEAK, CLEAN, KILLED = "messages", "peak", "after a clean stop", "after a kill"
RATES = (
    ("publish", RATE, rows.publish, set[str]()),
    ("consume", RATE, rows.consume, set[str]()),
    ("fsync", "publish", rows.publish, {"publish"}),
    ("fsync", "publish, take, ack", rows.consume, {"publish", "ack"}),
)
"""Operation, column, function, and what a queue must be able to sync."""

LEAST_OF_SQLITE, LEAST_OF_QUEUELIB, LEAST_SYNCED = 5.0, 0.5, 1.0
"""Required speed of msgstore, as a multiple of that of each queue on SQLite, of queuelib, and of any with a sync a message."""
MOST_MIB, MOST_SECONDS = 200.0, 2.0
"""Required of msgstore's backlog: peak memory, and time of a restart."""

Progress = Callable[[str], object]


def measure(
    names: list[str], operations: list[str], counts: dict[str, int], rounds: int, directory: Path, progress: Progress
) -> tuple[Figures, list[str]]:
    """Run all rounds. Return the figures, and remarks on queues that lost their messages."""
    figures, remarks, order = Figures(), dict[str, None](), random.Random(rows.SEED)
    for number in range(rounds):
        for name in order.sample(names, len(names)):
            progress(f"round {number + 1} of {rounds}: {name}")
            for operation, column, call, syncs in RATES:
                if operation in operations and syncs <= set(rows.PEERS[name].syncs):
                    with new_directory(directory) as path:
                        rate = children.call(call, name, str(path), counts[operation], bool(syncs))
                    figures.add(operation, name, column, rows.BODY, "/s", rate)
            if "backlog" in operations and number < MOST_BACKLOGS:
                count = counts["backlog of msgstore" if name == OURS else "backlog"]
                with new_directory(directory) as path:
                    if not measure_backlog(name, count, path, figures):
                        remarks[f"{name}: after a kill its messages are lost"] = None
    return figures, list(remarks)


def measure_backlog(name: str, count: int, path: Path, figures: Figures) -> bool:
    """Publish a backlog, and restart after a kill and after a clean stop. Return False if the kill loses the messages."""
    queue = path / "queue"
    queue.mkdir()
    children.call_killed(rows.fill_and_kill, name, str(queue), count)
    found = json.loads((path / rows.FIGURES).read_text())
    figures.add("backlog", name, RATE, rows.BODY, "/s", found["rate"])
    if found["peak"] is not None:
        figures.add("backlog", name, PEAK, rows.BODY, "MiB", found["peak"] / 2**20)
    seconds = children.call(rows.restart, name, str(queue), str(path / "first"), 0)
    if seconds is not None:
        figures.add("restart", name, KILLED, rows.BODY, "s", seconds)
    else:
        queue = path / "again"
        queue.mkdir()
        children.call(rows.fill, name, str(queue), count)
    number = 0 if seconds is None else 1  # the restart after the kill has taken the first message
    clean = children.call(rows.restart, name, str(queue), str(path / "second"), number)
    figures.add("restart", name, CLEAN, rows.BODY, "s", clean)
    return seconds is not None


def bounds(figures: Figures) -> list[Bound]:
    """Return the requirements that can be judged."""
    found = []
    for operation, column, name, ratio in ratios(figures):
        peer = rows.PEERS[name]
        least = LEAST_SYNCED if operation == "fsync" else LEAST_OF_SQLITE if peer.is_sqlite else None
        if peer is rows.QueueLib:
            least = LEAST_OF_QUEUELIB
        if least is not None:
            what = f"{column}, of {name}" if operation == "fsync" else f"of {name}"
            found.append(Bound(OURS, operation, what, rows.BODY, "", "at least", least, ratio))
    for operation, column, unit, most in (
        ("backlog", PEAK, "MiB", MOST_MIB), ("restart", CLEAN, "s", MOST_SECONDS), ("restart", KILLED, "s", MOST_SECONDS),
    ):  # fmt: skip
        if figure := figures.get(operation, OURS, column, rows.BODY):
            found.append(Bound(OURS, operation, column, rows.BODY, unit, "at most", most, figure.value))
    return found


def ratios(figures: Figures) -> Iterator[tuple[str, str, str, float]]:
    """Yield operation, column, name of another queue, and the speed of msgstore as a multiple of that of the other."""
    for figure in in_order(figures):
        ours = figures.get(figure.operation, OURS, figure.name, figure.size)
        if figure.unit == "/s" and ours is not None and ours is not figure:
            yield figure.operation, figure.name, figure.store, ours.over(figure)


def in_order(found: Iterable[Figure]) -> list[Figure]:
    """Return figures by operation, then in the order of the queues: rounds are shuffled."""
    operations, peers = list(OPERATIONS), list(rows.PEERS)
    return sorted(found, key=lambda figure: (operations.index(figure.operation), peers.index(figure.store)))


def names_of(allowed: list[str]) -> Callable[[str], list[str]]:
    """Return a parser of names, with commas between; a name of a queue is enough up to its comma."""

    def parse(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        found = [name for name in allowed if {name, name.partition(",")[0]} & set(chosen)]
        if unknown := set(chosen) - {form for name in found for form in (name, name.partition(",")[0])}:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {'; '.join(allowed)}")
        return found

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare msgstore's queues with other queues.")
    parser.add_argument("--json", action="store_true", help="JSON Lines on standard output instead of tables")
    parser.add_argument("--quick", action="store_true", help="few messages and rounds; the figures have no meaning")
    chosen = [name for name in OPERATIONS if name != "restart"]
    about_only = f"operations to run, of {','.join(chosen)}; backlog includes restart"
    parser.add_argument("--only", type=names_of(chosen), default=chosen, help=about_only)
    peers = list(rows.PEERS)
    about_queues = f"queues to run, of {'; '.join(peers)}: what is before a comma selects both"
    parser.add_argument("--queues", type=names_of(peers), default=peers, help=about_queues)
    parser.add_argument(
        "--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}; backlogs {MOST_BACKLOGS} at most"
    )
    parser.add_argument("--dir", type=Path, help="directory for the queues, which are deleted; default: temporary directory")
    given = parser.parse_args()
    names = [name for name in given.queues if rows.is_installed(rows.PEERS[name])]
    missing = [name for name in given.queues if name not in names]
    console, counts = Console(width=None if sys.stdout.isatty() else 140), QUICK if given.quick else COUNTS
    rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="msgstore-bench-", dir=given.dir) as directory, progress.status("") as status:
        where = file_system(Path(directory))
        figures, remarks = measure(names, given.only, counts, rounds, Path(directory), status.update)
    remarks = [f"not installed, and left out: {name}" for name in missing] + remarks
    required = bounds(figures)
    judged = {(bound.operation, bound.what.rpartition("of ")[2]) for bound in required}
    other = [found for found in ratios(figures) if (found[0], found[2]) not in judged]
    machine = {
        "kind": "machine", "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(), "file_system": where, "rounds": rounds, "messages": counts, "remarks": remarks,
    }  # fmt: skip
    if given.json:
        information = [
            {"kind": "information", "operation": operation, "what": f"{column}, of {name}", "measured": ratio}
            for operation, column, name, ratio in other
        ]
        for row in [machine, *map(figure_object, in_order(figures)), *information, *map(bound_object, required)]:
            print(json.dumps(row, separators=(",", ":")))
        return
    console.print(f"Python {machine['python']}, {machine['cores']} cores, {where}; messages: {counts}", highlight=False)
    for remark in remarks:
        console.print(remark, highlight=False)
    for operation, title in OPERATIONS.items():
        print_figures(title, in_order(figures.of(operation)), console)
    without = [
        (OURS, operation, f"{rows.BODY} B", f"{column}, of {name}", "", value_text(ratio, ""), "")
        for operation, column, name, ratio in other
    ]
    print_required(without, required, console)


if __name__ == "__main__":
    main()
