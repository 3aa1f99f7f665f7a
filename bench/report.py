"""Output of the results as tables, or as JSON Lines: one object per line, with a ``kind``."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from figures import Bound, Figures, Measurement
from measure import Plan, Result, Results, file_system
from profiling import Profile
from ratios import Ratio, ratios
from rich.console import Console
from rich.table import Table
from tables import bound_object, figure_object, print_figures, print_profiles, print_required, profile_object, verdict

_LABELS = {
    ("get", "10k"): "get, 10,000 messages",
    ("get", "full"): "get, full set",
    ("lifecycle", "full"): "put, get, remove, lag 500",
}


def machine(plan: Plan) -> dict[str, Any]:
    """Return the properties of the machine and the run on which the figures depend."""
    return {
        "kind": "machine",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "file_system": file_system(plan.directory),
        "rounds": plan.rounds,
        "versions": {name: version(name) for name in ("msgstore", "rocksdict", "lmdb")} | {"sqlite": sqlite3.sqlite_version},
    }


def result_object(result: Result) -> dict[str, Any]:
    """Return the JSON object of a result. Nanoseconds are per message; lists have one value per round."""
    return {
        "kind": "result",
        "store": result.store,
        "operation": result.operation,
        "size": result.size,
        "working_set": result.working_set,
        "messages": result.messages,
        "wall_ns": round(result.wall_ns, 1),
        "cpu_ns": round(result.cpu_ns, 1),
        "ops_per_s": round(1e9 / result.wall_ns),
        "wall_ns_rounds": [round(value, 1) for value in result.wall],
        "cpu_ns_rounds": [round(value, 1) for value in result.cpu],
    }


def ratio_object(ratio: Ratio) -> dict[str, Any]:
    """Return the JSON object of a ratio. ``required`` and ``met`` are null in ratios for information."""
    kind = "information" if ratio.required is None else "requirement"
    return {"kind": kind, "limit": "at least"} | asdict(ratio) | {"met": ratio.met}


def json_lines(
    plan: Plan, results: Results, figures: Figures, bounds: Sequence[Bound], profiles: Sequence[Profile]
) -> Iterator[str]:
    rows = [machine(plan), *map(result_object, results), *map(figure_object, figures)]
    rows += [*map(ratio_object, ratios(results)), *map(bound_object, bounds), *map(profile_object, profiles)]
    return (json.dumps(row, separators=(",", ":")) for row in rows)


def print_tables(
    plan: Plan,
    results: Results,
    measured: Sequence[Measurement],
    figures: Figures,
    bounds: Sequence[Bound],
    profiles: Sequence[Profile],
    console: Console,
) -> None:
    about = machine(plan)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    console.print(f"Python {about['python']}, {about['system']}, {about['cores']} cores, {about['file_system']}; {versions}")
    if list(results):
        console.print(_costs(plan, results))
        for peer in plan.peers:
            console.print(f"  [bold]{peer.name}[/bold]: {peer.how}", highlight=False, soft_wrap=True)
    for measurement in measured:
        print_figures(measurement.TITLE, figures.of(measurement.NAME), console)
    found_ratios = ratios(results)
    required = [ratio for ratio in found_ratios if ratio.required is not None]
    if required or bounds:
        print_required(map(_required, required), bounds, console)
    print_profiles(profiles, console)
    if information := [ratio for ratio in found_ratios if ratio.required is None]:
        console.print(_information(information))


def _costs(plan: Plan, results: Results) -> Table:
    table = Table(
        title=f"Nanoseconds per message, wall / processor time of all threads; medians of {plan.rounds} rounds",
        title_justify="left",
    )
    table.add_column("operation")
    table.add_column("store")
    for size, count in plan.messages.items():
        table.add_column(f"{size} B x {count:,}", justify="right", no_wrap=True)
        table.add_column("ops/s", justify="right", no_wrap=True)
    for operation in plan.operations:
        for working_set in ("10k", "full"):
            rows = [
                (peer.name, [results.get(peer.name, operation, size, working_set) for size in plan.messages])
                for peer in plan.peers
            ]
            for name, cells in rows:
                if any(cells):
                    label = _LABELS.get((operation, working_set), operation)
                    table.add_row(label, name, *[text for cell in cells for text in _cell(cell)])
            if any(any(cells) for _, cells in rows):
                table.add_section()
    return table


def _cell(result: Result | None) -> tuple[str, str]:
    if result is None:
        return "-", "-"
    return f"{result.wall_ns:,.0f} / {result.cpu_ns:,.0f}", f"{1e9 / result.wall_ns:,.0f}"


def _ratio_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("store", "operation", "size", "of the speed of", "clock", *columns):
        table.add_column(name, no_wrap=True)
    return table


def _ratio_cells(ratio: Ratio) -> list[str]:
    label = _LABELS.get((ratio.operation, ratio.working_set), ratio.operation)
    return [ratio.store, label, f"{ratio.size} B", ratio.other, "processor" if ratio.clock == "cpu" else "wall"]


def _required(ratio: Ratio) -> tuple[str, ...]:
    store, label, size, other, clock = _ratio_cells(ratio)
    speed = f"speed / {other}'s, {clock} time"
    least = f"at least {ratio.required:g}"
    return store, label, size, speed, least, f"{ratio.measured:.2f}", verdict(met=bool(ratio.met))


def _information(found: Sequence[Ratio]) -> Table:
    table = _ratio_table("For information, without requirements", "measured")
    for ratio in found:
        table.add_row(*_ratio_cells(ratio), f"{ratio.measured:.2f}")
    return table
