"""Benchmark of jobs on a plain loop, on local processes and on Spark: ``python bench/pipeline.py --help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import children
import pipeline_data as data
import pipeline_jobs as jobs
import pipeline_profiles as profiles
from figures import Bound, Figure, Figures, Progress
from measure import SEED, file_system
from pipeline_jobs import ALL_COLUMNS, BARE, COUNT, DEDUPE, LARGER, RECONCILE, SALVAGE, SMALL
from processor import JVM, PYTHON
from profiling import Profile
from rich.console import Console
from tables import bound_object, figure_object, print_figures, print_profiles, print_required, profile_object

GIB = 2**30
TIMES = 8
"""Size of the larger input, as a multiple of the smaller one. The difference of their times is the cost without fixed costs."""
CORES = 2
PLAIN, LOCAL, ONE, TWO = "plain Python", "local, 2 processes", "Spark local[1]", f"Spark local[{CORES}]"
MASTERS = {ONE: "local[1]", TWO: f"local[{CORES}]"}
PARQUET = {jobs.PARQUET_COUNT: COUNT, jobs.PARQUET_DEDUPE: DEDUPE}
SMALL_SEGMENTS = 20_000
IDS, CHANGES, BODY = 5_000_000, 12_000_000, 64
"""Input of reconcile: number of messages, number of changes of their counts, bytes of a body."""
JOBS = (COUNT, DEDUPE, SALVAGE, RECONCILE)
SLOPE = "per additional GiB"
WALL, CPU = "pipeline, wall", "pipeline, processor"
TITLES = {
    WALL: "Wall time in seconds; count, dedupe and salvage of {size}",
    CPU: "Processor time in seconds, the JVM's compiler and collector included",
    RECONCILE: "Reconcile of {ids:,} ids with {changes:,} changes: seconds",
    "fixed": "Fixed cost of a session, wall time",
}
PER_CORE, SPEED_UP, JOIN = 0.6, 1.7, 1.3
TIMES_PLAIN = {1024: 2.5, 100: 2.0}
"""Size of a body to how many times a plain loop's time a warm count may take on two cores."""
TIMES_PLAIN_DEDUPE, TIMES_LOCAL_SALVAGE, SMALL_SECONDS = 1.3, 2.5, 4.0


def main() -> None:
    arguments = _parser().parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="msgstore-bench-", dir=arguments.dir) as directory, console.status("") as status:
        inputs = create_inputs(Path(directory), arguments, status.update)
        raw = run(inputs, arguments, status.update)
        figures = figures_of(raw, arguments.size)
        bounds = list(bounds_of(figures))
        missed = [
            profile(bound, inputs, raw, status.update)
            for bound in bounds
            if bound.operation in (COUNT, RECONCILE)
            if arguments.profile == "all" or (arguments.profile == "missed" and not bound.met)
        ]
        status.stop()
        about = machine(Path(directory), arguments)
        if arguments.json:
            rows = [about, *map(figure_object, figures), *map(bound_object, bounds), *map(profile_object, missed)]
            sys.stdout.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        else:
            show(about, figures, bounds, missed, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Time jobs over segments in plain Python, on processes, and on Spark.")
    parser.add_argument("--json", action="store_true", help="JSON Lines on standard output instead of tables")
    about_size = "size of the input in GiB; below 1, reconcile is smaller too, and the requirements have no meaning"
    parser.add_argument("--size", type=float, default=1.0, help=about_size)
    parser.add_argument("--bodies", type=_numbers, default=[1024, 100], help="sizes of a body in bytes, such as 1024,100")
    parser.add_argument("--only", type=_jobs, default=list(JOBS), help=f"jobs to run, of {','.join(JOBS)}")
    parser.add_argument("--rounds", type=int, default=3)
    about_profiles = "requirements for which a profile is taken; default: missed"
    parser.add_argument("--profile", choices=["missed", "all", "none"], default="missed", help=about_profiles)
    parser.add_argument(
        "--dir",
        type=Path,
        help="directory for the inputs (8 times --size), which are deleted; default: temporary directory",
    )
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _jobs(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(JOBS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(JOBS)}")
    return chosen


# -- running ------------------------------------------------------------------------------------------------------------------

Raw = dict[tuple[int, str, str], list[tuple[float, dict[str, float]]]]
"""(body, peer, job) to (wall seconds, processor seconds by kind) of each round."""


def create_inputs(directory: Path, arguments: argparse.Namespace, progress: Progress) -> dict[int, dict[str, Any]]:
    """Create the inputs, and return their paths and numbers by size of body."""
    inputs: dict[int, dict[str, Any]] = {}
    for body in arguments.bodies if set(arguments.only) - {RECONCILE} else ():
        progress(f"creating {arguments.size:g} GiB of messages of {body} B")
        store, larger, parquet = (str(directory / f"{name}-{body}") for name in ("store", "larger", "parquet"))
        messages = int(arguments.size * GIB) // (body + data.HEAD)
        children.call(data.make_store, store, body, messages)
        data.link(store, larger, TIMES)
        children.call(data.export, store, parquet)
        inputs[body] = {"store": store, "larger": larger, "times": TIMES, "parquet": parquet, "messages": messages}
        inputs[body]["no changes"] = str(directory / "none")
        Path(inputs[body]["no changes"]).touch()
        inputs[body]["small"] = str(directory / f"small-{body}")
        inputs[body]["small segments"] = count = max(1, int(SMALL_SEGMENTS * min(1.0, arguments.size)))
        children.call(data.make_small, inputs[body]["small"], count)
    if RECONCILE in arguments.only:
        ids, changes = reconcile_size(arguments.size)
        progress(f"creating {ids:,} messages and {changes:,} changes")
        paths = {name: str(directory / name) for name in ("reconciled", "records", "changes")}
        children.call(data.make_store, paths["reconciled"], BODY, ids)
        children.call(data.export, paths["reconciled"], paths["records"], "id", "size")
        children.call(data.make_changes, paths["records"], paths["changes"], changes)
        inputs[BODY] = inputs.get(BODY, {}) | paths
        inputs[BODY]["classes"] = children.call(jobs.classes, inputs[BODY])
    return inputs


def reconcile_size(size: float) -> tuple[int, int]:
    """Return (ids, changes) of the input of reconcile."""
    return int(IDS * min(1.0, size)), int(CHANGES * min(1.0, size))


def run(inputs: dict[int, dict[str, Any]], arguments: argparse.Namespace, progress: Progress) -> Raw:
    """Run all rounds. Each round goes through all peers in a newly shuffled order, each peer in a separate process."""
    raw: Raw = {}
    order = random.Random(SEED)
    for number in range(arguments.rounds):
        for body, input_ in inputs.items():
            chosen = [name for name in arguments.only if ("classes" if name == RECONCILE else "store") in input_]
            for peer in order.sample(list(PEERS), len(PEERS)):
                progress(f"round {number + 1} of {arguments.rounds}, {body} B: {peer}")
                function, settings = PEERS[peer]
                for job, wall, cpu in children.call(function, input_, chosen, *settings):
                    raw.setdefault((body, peer, job), []).append((wall, cpu))
    return raw


PEERS: dict[str, tuple[Callable[..., list[jobs.Row]], tuple[Any, ...]]] = {
    PLAIN: (jobs.plain_python, ()),
    LOCAL: (jobs.local, (2,)),
    **{name: (jobs.spark, (master,)) for name, master in MASTERS.items()},
}


# -- figures ------------------------------------------------------------------------------------------------------------------


def figures_of(raw: Raw, size: float) -> Figures:
    """Convert the raw times into figures: a row per peer, a column per job."""
    figures = Figures()
    for body in dict.fromkeys(body for body, _, _ in raw):
        for peer in PEERS:
            found = {key[2]: rounds for key, rounds in raw.items() if key[:2] == (body, peer)}
            for table, value in ((WALL, lambda row: row[0]), (CPU, lambda row: sum(row[1].values()))):
                for job in (COUNT, ALL_COLUMNS, LARGER, DEDUPE, SALVAGE, SMALL):
                    for row in found.get(job, ()):
                        figures.add(table, peer, job, body, "s", value(row))
                    if job == LARGER:
                        for less, more in zip(found.get(COUNT, ()), found.get(LARGER, ()), strict=True):
                            figures.add(table, peer, SLOPE, body, "s", (value(more) - value(less)) / (size * (TIMES - 1)))
                for job, shown in PARQUET.items():
                    for row in found.get(job, ()):
                        figures.add(table, f"{peer}, Parquet", shown, body, "s", value(row))
            for job, shown in ((RECONCILE, peer), (BARE, f"{peer}, bare join of Parquet")):
                for wall, cpu in found.get(job, ()):
                    figures.add(RECONCILE, shown, "wall", body, "s", wall)
                    figures.add(RECONCILE, shown, "processor", body, "s", sum(cpu.values()))
            for job in (jobs.SESSION, jobs.FIRST, jobs.STOP):
                for row in found.get(job, ()):
                    figures.add("fixed", peer, job, 0, "s", row[0])
    return figures


def bounds_of(figures: Figures) -> Iterator[Bound]:
    for body in figures.sizes(WALL):

        def slope(table: str, peer: str, body: int = body) -> Figure | None:
            return figures.get(table, peer, SLOPE, body)

        for table, peer, cores in ((WALL, ONE, 1), (WALL, TWO, CORES), (CPU, ONE, 1), (CPU, TWO, 1)):
            plain, theirs = slope(table, PLAIN), slope(table, peer)
            if plain and theirs:
                clock = "wall time" if table == WALL else "processor time"
                what = f"speed per core / plain Python's, {clock}"
                yield Bound(peer, COUNT, what, body, "", "at least", PER_CORE, plain.over(theirs) / cores)
        one, two = slope(WALL, ONE), slope(WALL, TWO)
        if one and two:
            yield Bound(TWO, COUNT, "speed / local[1]'s", body, "", "at least", SPEED_UP, one.over(two))
        for job, peer, limit in (
            (COUNT, PLAIN, TIMES_PLAIN.get(body)),
            (DEDUPE, PLAIN, TIMES_PLAIN_DEDUPE),
            (SALVAGE, LOCAL, TIMES_LOCAL_SALVAGE),
        ):
            ours, theirs = figures.get(WALL, TWO, job, body), figures.get(WALL, peer, job, body)
            if ours and theirs and limit:
                yield Bound(TWO, job, f"time / that of {peer}", body, "", "at most", limit, ours.over(theirs))
        if small := figures.get(WALL, TWO, SMALL, body):
            yield Bound(TWO, SMALL, "wall time", body, "s", "at most", SMALL_SECONDS, small.value)
    for body in figures.sizes(RECONCILE):
        for peer in MASTERS:
            ours = figures.get(RECONCILE, peer, "wall", body)
            bare = figures.get(RECONCILE, f"{peer}, bare join of Parquet", "wall", body)
            if ours and bare:
                yield Bound(peer, RECONCILE, "time / bare join's", body, "", "at most", JOIN, ours.over(bare))


def profile(bound: Bound, inputs: dict[int, dict[str, Any]], raw: Raw, progress: Progress) -> Profile:
    progress(f"profile of {bound.operation}, {bound.size} B, {bound.store}")
    if bound.operation == RECONCILE:
        how, lines = profiles.reconcile_profile(inputs[bound.size], MASTERS[bound.store])
    else:
        slopes = {peer: _slopes(raw, bound.size, peer) for peer in (PLAIN, *MASTERS)}
        how, lines = profiles.count_profile(inputs[bound.size], slopes)
    return Profile(bound.store, bound.operation, bound.size, bound.what, how, lines)


def _slopes(raw: Raw, body: int, peer: str) -> dict[str, list[float]]:
    """Return the additional seconds of the larger count in each round: wall time, and processor time by kind of process."""
    pairs = list(zip(raw[body, peer, COUNT], raw[body, peer, LARGER], strict=True))
    by_kind = {kind: [more[1][kind] - less[1][kind] for less, more in pairs] for kind in (JVM, PYTHON)}
    return {"clock": [more[0] - less[0] for less, more in pairs]} | by_kind


# -- output -------------------------------------------------------------------------------------------------------------------


def machine(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "kind": "machine",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[2],
        "file_system": file_system(directory),
        "rounds": arguments.rounds,
        "size": arguments.size,
        "versions": {name: version(name) for name in ("msgstore", "msgstore-spark", "pyspark", "pyarrow")},
    }


def show(
    about: dict[str, Any], figures: Figures, bounds: list[Bound], missed: list[Profile], arguments: argparse.Namespace
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    console.print(
        f"Python {about['python']}, {about['system']}, {about['cores']} cores (load of the last 15 minutes "
        f"{about['load']:.1f}), {about['file_system']}; {versions}",
        highlight=False,
        soft_wrap=True,
    )
    ids, changes = reconcile_size(arguments.size)
    for name, title in TITLES.items():
        print_figures(title.format(size=f"{arguments.size:g} GiB", ids=ids, changes=changes), figures.of(name), console)
    print_required([], bounds, console)
    print_profiles(missed, console)


if __name__ == "__main__":
    main()
