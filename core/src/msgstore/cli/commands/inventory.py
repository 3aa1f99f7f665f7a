"""Command ``inventory``: measure any number of stores, their garbage, and what each GC policy would free."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from msgstore.cli import not_read, options, output, runners
from msgstore.cli.commands.scan import show_damage, show_types
from msgstore.contract import Damage
from msgstore.jobs.inventory import plan_inventory
from msgstore.jobs.inventory_report import InventoryReport, PolicyStock, totals
from msgstore.jobs.reports import SegmentStock
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_MAX_LISTED_SEGMENTS = 40
"""Segments up to which people get one line per segment."""


@click.command()
@options.paths
@click.option(
    "--refcounts",
    "counts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Lines 'id,count', or Parquet, for all stores: other ids are dead. Default: the saved counts of each store, if any.",
)
@options.records
@runners.options
@options.as_json
def inventory(
    paths: tuple[Path, ...],
    counts: Path | None,
    records: tuple[tuple[str, int], ...],
    runner_options: runners.RunnerOptions,
    as_json: bool,
) -> None:
    """Measure PATH: records by type, live and dead, holes, copies, damage, and what each GC policy would free.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob. It is only read, and may be in use. All
    installed policies are asked, with the options that they declare as examples. Without counts, every record is taken to be
    live.

    \b
    Examples:
      msgstore inventory data/orders
      msgstore inventory /var/lib/rabbitmq/mnesia --refcounts classes/class=live
      msgstore inventory '/backups/*/msg_store_persistent' --json
    """
    catalogue = load_catalogue()
    bound = bind_records(catalogue, records, "--record")
    job = plan_inventory(catalogue, paths, time.time(), counts=counts, records=bound)
    runner = runner_options.make(catalogue, job.size)
    with output.progress("counting", quiet=as_json) as progress:
        report = runner.inventory(job, progress)
    (_emit if as_json else _show)(report)
    not_read.leave(damaged=bool(report.damage), not_read=report.not_read)


def _emit(report: InventoryReport) -> None:
    for store in report.stores:
        for segment in store.segments:
            output.emit(segment.as_json())
        output.emit(store.as_json())
    for span in report.damage:
        output.emit(span.as_json())
    not_read.emit(report.not_read)
    output.emit(report.as_json())


def _show(report: InventoryReport) -> None:
    console = output.Terminal()
    listed = list(report.segments())
    for store in report.stores if len(listed) <= _MAX_LISTED_SEGMENTS else ():
        typed = _has_types(store.segments)
        rows = _table(store.path, "file", "format", typed=typed)
        for segment in reversed(store.segments):
            numbers = _numbers(totals([segment]), typed=typed)
            rows.add_row(Path(segment.path).name, segment.format, *numbers, _state(segment))
        console.print(rows)
        console.print()
    if len(report.stores) > 1 or len(listed) > _MAX_LISTED_SEGMENTS:
        typed = _has_types(listed)
        rows = _table(None, "store", "segments", typed=typed)
        stores = [(store.path, list(store.segments)) for store in report.stores]
        for path, segments in [*stores, ("total", listed)]:
            sums = totals(segments)
            states = ", ".join(f"{count:,} {state}" for state, count in sums["states"].items())
            rows.add_row(path, f"{len(segments):,}", *_numbers(sums, typed=typed), states)
        rows.rows[-1].style = "bold"
        console.print(rows)
        console.print()
    _show_policies(console, report.policies())
    errors = [store.unasked for store in report.stores if store.unasked]
    if errors:
        console.print(f"no policy was asked about {output.plural(len(errors), 'store')}: {errors[0]}", style="dim")
    unknown = sum(not store.counts for store in report.stores)
    if unknown:
        console.print(
            f"no counts for {output.plural(unknown, 'store')}: every record is taken to be live (--refcounts gives counts)",
            style="dim",
        )
    show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in report.damage])
    not_read.show(console, report.not_read)


def _has_types(segments: Iterable[SegmentStock]) -> bool:
    """Return True if there are record types other than the format's own."""
    return bool(show_types(totals(segments)["types"]))


def _table(title: str | None, *first: str, typed: bool) -> Any:
    numbers = ("live", "garbage", "of it", "holes", "copies", "damaged", "state")
    columns = (*first, "size", "records", *(["types"] if typed else []), *numbers)
    return output.table(title, *columns, right="segments size records live garbage holes copies damaged")


def _numbers(sums: dict[str, Any], *, typed: bool) -> list[Any]:
    return [
        output.size(sums["size"]),
        output.count(sums["records"]),
        *([show_types(sums["types"])] if typed else []),
        "?" if sums["live"] is None else output.count(sums["live"]),
        output.size(sums["garbage"]),
        f"{sums['fragmentation']:.0%}",
        output.count(sums["holes"]),
        output.count(sums["duplicates"], "yellow"),
        output.size(sums["damaged"]),
    ]


def _state(segment: SegmentStock) -> Any:
    return output.state(segment.state) if segment.state in output.STATE_STYLES else segment.state


def _show_policies(console: output.Terminal, policies: list[PolicyStock]) -> None:
    if not policies:
        return
    rows = output.table("what policies would do", "policy", "options", "frees", "messages lost", "steps", right="frees")
    for policy in policies:
        steps = ", ".join(f"{action} {count:,}" for action, count in policy.steps.items()) or "nothing"
        rows.add_row(
            policy.name,
            policy.options,
            output.size(policy.gives_back),
            output.count(policy.messages_lost, "bold red"),
            policy.errors[0] if policy.errors else steps,
        )
    console.print(rows)
    console.print()
