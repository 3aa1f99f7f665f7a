"""Benchmarks of msgstore against its peers in the same run: ``python bench/run.py --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import amplification
import compaction
import deletion
import fsync
import latency
import lifecycle
import memory
import reopen
import startup
from figures import Bound, Figures, Measurement, Progress
from measure import Plan, Results, profile, run
from ours import MappedMsgStore, MsgStore
from peer import OPERATIONS
from peers import PEERS
from profiling import Profile
from ratios import ratios
from report import json_lines, print_tables
from rich.console import Console

MESSAGES = {64: 200_000, 1024: 100_000, 16384: 10_000}
"""Body size to number of messages in a default run."""
SET_BYTES = 160 * 2**20
"""Bytes of all bodies, for sizes that are not in MESSAGES."""
QUICK = 4
"""Divisor of the number of messages with --quick."""

MEASUREMENTS: tuple[Measurement, ...] = (
    lifecycle, fsync, latency, reopen, compaction, deletion, amplification, memory, startup,
)  # fmt: skip
"""Measurements with their own tables, in the order of the output. ``lifecycle`` is also timed in the first table."""
NAMES = tuple(dict.fromkeys([*OPERATIONS, *[measurement.NAME for measurement in MEASUREMENTS]]))


def _names(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        if unknown := [name for name in chosen if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(allowed)}")
        return [name for name in allowed if name in chosen]

    return parse


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _sizes(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare msgstore with RocksDB, LMDB, SQLite and the raw floor in one run.")
    parser.add_argument("--json", action="store_true", help="JSON Lines on standard output instead of tables")
    about_quick = "3 rounds, a quarter of the messages; the requirements have no meaning"
    parser.add_argument("--quick", action="store_true", help=about_quick)
    parser.add_argument("--only", type=_names(NAMES), default=list(NAMES), help=f"operations to run, of {','.join(NAMES)}")
    parser.add_argument("--sizes", type=_sizes, default=list(MESSAGES), help="body sizes in bytes, such as 64,1024,16384")
    about_messages = "messages of each size (lifecycles: a quarter, at least 1000), and maximum for all other operations"
    parser.add_argument(
        "--messages",
        type=_positive,
        help=about_messages,
    )
    parser.add_argument("--rounds", type=_positive, help="number of rounds; default 5, with --quick 3")
    stores = tuple(peer.name for peer in PEERS)
    parser.add_argument("--stores", type=_names(stores), default=list(stores), help=f"stores to run, of {','.join(stores)}")
    about_profiles = "requirements whose operations are repeated under a profiler; default: missed"
    parser.add_argument("--profile", choices=["missed", "all", "none"], default="missed", help=about_profiles)
    parser.add_argument("--dir", type=Path, help="directory for the stores, which are deleted; default: temporary directory")
    return parser


def take_profiles(plan: Plan, results: Results, bounds: list[Bound], which: str, progress: Progress) -> list[Profile]:
    """Return profiles for the requirements that ``which`` selects, one per operation, store and size."""
    by_name = {measurement.NAME: measurement for measurement in MEASUREMENTS}
    found: dict[tuple[str, ...], Profile] = {}
    for ratio in ratios(results):
        key = ratio.store, ratio.operation, str(ratio.size)
        if ratio.required is not None and wanted(which, met=bool(ratio.met)) and key not in found:
            progress(f"profile of {ratio.operation}, {ratio.size} B")
            kind = MappedMsgStore if ratio.store == MappedMsgStore.name else MsgStore
            how, lines = profile(plan, kind, ratio.operation, ratio.size)
            found[key] = Profile(ratio.store, ratio.operation, ratio.size, "speed", how, lines)
    for bound in bounds:
        if wanted(which, met=bound.met):
            progress(f"profile of {bound.operation}, {bound.size} B")
            how, lines = by_name[bound.operation].profile(plan, bound)
            key = bound.store, bound.operation, str(bound.size), bound.what
            found[key] = Profile(bound.store, bound.operation, bound.size, bound.what, how, lines)
    return list(found.values())


def wanted(which: str, *, met: bool) -> bool:
    return which == "all" or (which == "missed" and not met)


def main() -> None:
    arguments = _parser().parse_args()
    counts = {}
    for size in arguments.sizes:
        default = MESSAGES.get(size, max(SET_BYTES // size, 1000)) // (QUICK if arguments.quick else 1)
        counts[size] = arguments.messages or min(default, max(MESSAGES.values()))
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="msgstore-bench-", dir=arguments.dir) as directory, progress.status("") as status:
        plan = Plan(
            peers=[peer for peer in PEERS if peer.name in arguments.stores],
            operations=arguments.only,
            messages=counts,
            rounds=arguments.rounds or (3 if arguments.quick else 5),
            directory=Path(directory),
            divisor=QUICK if arguments.quick else 1,
            most=arguments.messages,
        )
        results = run(plan, status.update)
        figures = Figures()
        chosen = [measurement for measurement in MEASUREMENTS if measurement.NAME in plan.operations]
        for measurement in chosen:
            measurement.run(plan, figures, status.update)
        bounds: list[Bound] = [bound for measurement in chosen for bound in measurement.bounds(figures)]
        profiles = take_profiles(plan, results, bounds, arguments.profile, status.update)
        status.stop()
        if arguments.json:
            sys.stdout.writelines(line + "\n" for line in json_lines(plan, results, figures, bounds, profiles))
        else:
            console = Console(width=None if sys.stdout.isatty() else 140)
            print_tables(plan, results, chosen, figures, bounds, profiles, console)


if __name__ == "__main__":
    main()
