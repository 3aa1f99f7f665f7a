"""The results as tables, or as JSON Lines: one object a line, told apart by ``kind``."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from figures import Bound, Figure, Figures, Measurement
from measure import Plan, Result, Results, file_system
from peers import RIVALS
from profiling import Profile
from ratios import Ratio, ratios
from rich.console import Console
from rich.table import Table

_LABELS = {
    ("get", "10k"): "get, 10,000 messages",
    ("get", "full"): "get, full set",
    ("lifecycle", "full"): "put, get, remove, lag 500",
}


def machine(plan: Plan) -> dict[str, Any]:
    """What the figures depend on."""
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
    """Nanoseconds and operations are a message; lists have one value a round."""
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
    """``required`` and ``met`` are null in ratios for information."""
    kind = "information" if ratio.required is None else "requirement"
    return {"kind": kind, "limit": "at least"} | asdict(ratio) | {"measured": round(ratio.measured, 3), "met": ratio.met}


def figure_object(figure: Figure) -> dict[str, Any]:
    """``value`` is the median of ``rounds``, in ``unit``."""
    return {"kind": "figure"} | asdict(figure) | {"value": _rounded(figure.value), "rounds": [*map(_rounded, figure.rounds)]}


def bound_object(bound: Bound) -> dict[str, Any]:
    return {"kind": "requirement"} | asdict(bound) | {"measured": _rounded(bound.measured), "met": bound.met}


def profile_object(profile: Profile) -> dict[str, Any]:
    """``lines``: ``what`` took ``value``, in ``unit``; see ``how``."""
    lines = [asdict(line) | {"value": _rounded(line.value)} for line in profile.lines]
    return {"kind": "profile"} | asdict(profile) | {"lines": lines}


def _rounded(value: float) -> float:
    """To five digits."""
    return float(f"{value:.5g}")


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
        if found := figures.of(measurement.NAME):
            console.print(f"\n{measurement.TITLE}; {_rounds(found)}", style="italic", highlight=False, soft_wrap=True)
            console.print(_figures(found))
    found_ratios = ratios(results)
    required = [ratio for ratio in found_ratios if ratio.required is not None]
    if required or bounds:
        console.print(_required(required, bounds))
    for profile in profiles:
        title = f"\n{profile.operation}, {profile.size} B, {profile.store}, {profile.what}: {profile.how}"
        console.print(title, style="italic", highlight=False, soft_wrap=True)
        for line in profile.lines:
            console.print(f"{_value(line.value, line.unit):>14}  {line.what}", highlight=False, soft_wrap=True, markup=False)
    if information := [ratio for ratio in found_ratios if ratio.required is None]:
        console.print(_information(information))


def _rounds(found: Sequence[Figure]) -> str:
    counts = sorted({len(figure.rounds) for figure in found})
    if counts[-1] == 1:
        return "measured once"
    return f"medians of {counts[0]} values" if len(counts) == 1 else f"medians of {counts[0]} to {counts[-1]} values"


def _place(store: str) -> tuple[int, str]:
    """Rows stand in the order of the peers; what is none of them comes last."""
    names = ["msgstore", *RIVALS, "floor"]
    return next((at for at, name in enumerate(names) if store.startswith(name)), len(names)), store


def _figures(found: Sequence[Figure]) -> Table:
    """A row for each size and store, a column for each name."""
    table = Table()
    names = list(dict.fromkeys(figure.name for figure in found))
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("store", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    cells = {(figure.size, figure.store, figure.name): figure for figure in found}
    for size in sorted({figure.size for figure in found}):
        for store in sorted({figure.store for figure in found if figure.size == size}, key=_place):
            values = [cells.get((size, store, name)) for name in names]
            table.add_row(f"{size:,} B", store, *[_value(figure.value, figure.unit) if figure else "-" for figure in values])
        table.add_section()
    return table


def _value(value: float, unit: str) -> str:
    """Three digits at least."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"
    return f"{number} {unit}" if unit else number


def _costs(plan: Plan, results: Results) -> Table:
    table = Table(
        title=f"Nanoseconds a message, wall / processor time of all threads; medians of {plan.rounds} rounds",
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


def _required(found: Sequence[Ratio], bounds: Sequence[Bound]) -> Table:
    table = Table(title="Required", title_justify="left")
    for name in ("store", "operation", "size", "what", "required", "measured", "met"):
        table.add_column(name, no_wrap=True)
    for ratio in found:
        store, label, size, other, clock = _ratio_cells(ratio)
        speed = f"speed / {other}'s, {clock} time"
        table.add_row(
            store, label, size, speed, f"at least {ratio.required:g}", f"{ratio.measured:.2f}", _verdict(bool(ratio.met))
        )
    for bound in bounds:
        least = f"{bound.limit} {bound.required:g} {bound.unit}"
        measured = _value(bound.measured, bound.unit)
        table.add_row(bound.store, bound.operation, f"{bound.size} B", bound.what, least, measured, _verdict(bound.met))
    return table


def _verdict(met: bool) -> str:
    return "[green]met[/green]" if met else "[bold red]MISSED[/bold red]"


def _information(found: Sequence[Ratio]) -> Table:
    table = _ratio_table("For information: nothing is required of these", "measured")
    for ratio in found:
        table.add_row(*_ratio_cells(ratio), f"{ratio.measured:.2f}")
    return table
