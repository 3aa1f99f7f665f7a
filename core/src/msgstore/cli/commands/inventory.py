"""Command ``inventory``: measure any number of stores, their garbage, and what each GC policy would free."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.cli.commands.scan import show_types
from msgstore.jobs.inventory import InventoryReport, plan_inventory, totals
from msgstore.plugins.catalogue import load_catalogue

_NUMBERS = ("size", "records", "types", "live", "garbage", "of it", "holes", "copies", "damaged")


@click.command()
@options.paths
@options.file(
    "--refcounts",
    "counts",
    help="Lines 'id,count', or Parquet, for all stores: other ids are dead. Default: the saved counts of each store, if any.",
)
@options.records
@runners.options
@options.as_json
def inventory(paths: tuple[Path, ...], runner: runners.RunnerOptions, out: output.Output, **choices: Any) -> None:
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
    job = plan_inventory(catalogue, paths, time.time(), **choices)
    report = runner.run(catalogue, job.size, out.progress("counting"), lambda by, bar: by.inventory(job, bar))
    for store in report.stores:
        out.emit(*(segment.as_json() for segment in store.segments), store.as_json())
    if not out.as_json:
        _show(out, report)
    out.damage(report.damage)
    out.finish(damaged=bool(report.damage), not_read=report.not_read, summary=report.as_json())


def _show(out: output.Output, report: InventoryReport) -> None:
    listed = list(report.segments())
    for store in report.stores if len(listed) <= output.MAX_LISTED else ():
        rows: list[tuple[Any, ...]] = [
            (Path(segment.path).name, segment.format, *_numbers(totals([segment])), output.state(segment.state))
            for segment in reversed(store.segments)
        ]
        out.table(store.path, ("file", "format", *_NUMBERS, "state"), rows, optional=("types",))
        out.print()
    if len(report.stores) > 1 or len(listed) > output.MAX_LISTED:
        rows = []
        for path, segments in [*((store.path, list(store.segments)) for store in report.stores), ("total", listed)]:
            sums = totals(segments)
            states = ", ".join(f"{count:,} {state}" for state, count in sums["states"].items())
            rows.append((path, len(segments), *_numbers(sums), states))
        out.table(None, ("store", "segments", *_NUMBERS, "state"), rows, optional=("types",), bold_last=True)
        out.print()
    if policies := report.policies():
        rows = []
        for policy in policies:
            steps = ", ".join(f"{action} {count:,}" for action, count in policy["steps"].items()) or "nothing"
            frees, lost = output.size_cell(policy["gives_back"]), output.count(policy["messages_lost"], "bold red")
            rows.append((policy["name"], policy["options"], frees, lost, policy["errors"][0] if policy["errors"] else steps))
        out.table("what policies would do", ("policy", "options", "frees", "messages lost", "steps"), rows)
        out.print()
    errors = [store.unasked for store in report.stores if store.unasked]
    if errors:
        out.print(f"no policy was asked about {output.plural(len(errors), 'store')}: {errors[0]}", "dim")
    unknown = output.plural(sum(not store.counts for store in report.stores), "store")
    if not all(store.counts for store in report.stores):
        out.print(f"no counts for {unknown}: every record is taken to be live (--refcounts gives counts)", "dim")


def _numbers(sums: dict[str, Any]) -> tuple[Any, ...]:
    """Return the cells of the columns ``_NUMBERS``."""
    return (
        output.size_cell(sums["size"]),
        sums["records"],
        show_types(sums["types"]),
        output.right("?") if sums["live"] is None else sums["live"],
        output.size_cell(sums["garbage"]),
        f"{sums['fragmentation']:.0%}",
        sums["holes"],
        output.count(sums["duplicates"], "yellow"),
        output.size_cell(sums["damaged"]),
    )
