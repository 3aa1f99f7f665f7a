"""Command ``inventory``: measure any number of stores, their garbage, and what each GC policy would free."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.cli.commands.scan import show_types
from msgstore.jobs.inventory import InventoryReport, plan_inventory, totals
from msgstore.jobs.reports import SegmentStock
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records


@click.command()
@options.paths
@click.option(
    "--refcounts",
    "counts",
    type=options.FILE,
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
    runner: runners.RunnerOptions,
    out: output.Output,
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
        typed = _has_types(store.segments)
        rows = [
            {
                "file": Path(segment.path).name,
                "format": segment.format,
                **_numbers(totals([segment]), typed=typed),
                "state": output.state(segment.state),
            }
            for segment in reversed(store.segments)
        ]
        out.table(store.path, rows)
        out.print()
    if len(report.stores) > 1 or len(listed) > output.MAX_LISTED:
        typed = _has_types(listed)
        rows = []
        for path, segments in [*((store.path, list(store.segments)) for store in report.stores), ("total", listed)]:
            sums = totals(segments)
            states = ", ".join(f"{count:,} {state}" for state, count in sums["states"].items())
            rows.append({"store": path, "segments": len(segments), **_numbers(sums, typed=typed), "state": states})
        out.table(None, rows, bold_last=True)
        out.print()
    if policies := report.policies():
        rows = [
            {
                "policy": policy["name"],
                "options": policy["options"],
                "frees": output.size_cell(policy["gives_back"]),
                "messages lost": output.count(policy["messages_lost"], "bold red"),
                "steps": policy["errors"][0]
                if policy["errors"]
                else ", ".join(f"{action} {count:,}" for action, count in policy["steps"].items()) or "nothing",
            }
            for policy in policies
        ]
        out.table("what policies would do", rows)
        out.print()
    errors = [store.unasked for store in report.stores if store.unasked]
    if errors:
        out.print(f"no policy was asked about {output.plural(len(errors), 'store')}: {errors[0]}", "dim")
    unknown = output.plural(sum(not store.counts for store in report.stores), "store")
    if not all(store.counts for store in report.stores):
        out.print(f"no counts for {unknown}: every record is taken to be live (--refcounts gives counts)", "dim")


def _has_types(segments: Iterable[SegmentStock]) -> bool:
    """Return True if there are record types other than the format's own."""
    return bool(show_types(totals(segments)["types"]))


def _numbers(sums: dict[str, Any], *, typed: bool) -> dict[str, Any]:
    return {
        "size": output.size_cell(sums["size"]),
        "records": sums["records"],
        **({"types": show_types(sums["types"])} if typed else {}),
        "live": output.right("?") if sums["live"] is None else sums["live"],
        "garbage": output.size_cell(sums["garbage"]),
        "of it": f"{sums['fragmentation']:.0%}",
        "holes": sums["holes"],
        "copies": output.count(sums["duplicates"], "yellow"),
        "damaged": output.size_cell(sums["damaged"]),
    }
