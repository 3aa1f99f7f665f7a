"""Tables and JSON objects of figures, requirements and profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from figures import Bound, Figure
from profiling import Profile
from rich.console import Console
from rich.table import Table

FIRST = ("msgstore", "RocksDB", "LMDB", "SQLite", "floor")
"""Order of the rows."""


def figure_object(figure: Figure) -> dict[str, Any]:
    """Return the JSON object of a figure. ``value`` is the median of ``rounds``, in ``unit``."""
    return {"kind": "figure"} | asdict(figure) | {"value": _rounded(figure.value), "rounds": [*map(_rounded, figure.rounds)]}


def bound_object(bound: Bound) -> dict[str, Any]:
    """Return the JSON object of a requirement. ``measured`` is not rounded: the verdict ``met`` must follow from it."""
    return {"kind": "requirement"} | asdict(bound) | {"met": bound.met}


def profile_object(profile: Profile) -> dict[str, Any]:
    """Return the JSON object of a profile. Each of ``lines`` has ``what`` was measured, its ``value`` and ``unit``."""
    lines = [asdict(line) | {"value": _rounded(line.value)} for line in profile.lines]
    return {"kind": "profile"} | asdict(profile) | {"lines": lines}


def _rounded(value: float) -> float:
    """Round to five digits."""
    return float(f"{value:.5g}")


def print_figures(title: str, found: Sequence[Figure], console: Console) -> None:
    if found:
        console.print(f"\n{title}; {_rounds(found)}", style="italic", highlight=False, soft_wrap=True)
        console.print(_figures(found))


def print_required(rows: Iterable[Sequence[str]], bounds: Sequence[Bound], console: Console) -> None:
    """Print requirements. ``rows`` precede ``bounds``: store, operation, size, what, required, measured, met."""
    table = Table(title="Required", title_justify="left")
    for name in ("store", "operation", "size", "what", "required", "measured", "met"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    for bound in bounds:
        least = f"{bound.limit} {bound.required:g} {bound.unit}"
        measured = value_text(bound.measured, bound.unit)
        table.add_row(bound.store, bound.operation, size_text(bound.size), bound.what, least, measured, verdict(met=bound.met))
    console.print(table)


def print_profiles(profiles: Sequence[Profile], console: Console) -> None:
    for profile in profiles:
        title = f"\n{profile.operation}, {size_text(profile.size)}, {profile.store}, {profile.what}: {profile.how}"
        console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
        for line in profile.lines:
            console.print(
                f"{value_text(line.value, line.unit):>14}  {line.what}", highlight=False, soft_wrap=True, markup=False
            )


def _rounds(found: Sequence[Figure]) -> str:
    counts = sorted({len(figure.rounds) for figure in found})
    if counts[-1] == 1:
        return "measured once"
    return f"medians of {counts[0]} values" if len(counts) == 1 else f"medians of {counts[0]} to {counts[-1]} values"


def _place(store: str) -> tuple[int, str]:
    """Return the sort key of a row: rows have the order of FIRST, all others follow in their original order."""
    return next(((at, store) for at, name in enumerate(FIRST) if store.startswith(name)), (len(FIRST), ""))


def _figures(found: Sequence[Figure]) -> Table:
    """Return a table with a row for each size and store, and a column for each name."""
    table = Table()
    names = list(dict.fromkeys(figure.name for figure in found))
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("store", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    cells = {(figure.size, figure.store, figure.name): figure for figure in found}
    for size in sorted({figure.size for figure in found}):
        for store in sorted(dict.fromkeys(figure.store for figure in found if figure.size == size), key=_place):
            values = [cells.get((size, store, name)) for name in names]
            table.add_row(
                size_text(size), store, *[value_text(figure.value, figure.unit) if figure else "-" for figure in values]
            )
        table.add_section()
    return table


def value_text(value: float, unit: str) -> str:
    """Format a value with at least three digits, and its unit."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"
    return f"{number} {unit}" if unit else number


def size_text(size: int) -> str:
    return f"{size:,} B" if size else "-"


def verdict(*, met: bool) -> str:
    return "[green]met[/green]" if met else "[bold red]MISSED[/bold red]"
