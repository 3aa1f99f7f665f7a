"""Command ``reconcile``: compare records with changes of reference counts."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import not_read, options, output, runners
from msgstore.cli.commands.scan import show_damage
from msgstore.contract import Damage
from msgstore.jobs.reconcile import CLASSES, ReconcileReport, plan_reconcile
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_path = click.Path(path_type=Path)
_MAX_LISTED_IDS = 5
"""Ids of each class that are listed for people."""
_STYLES = {"orphan": "yellow", "dangling": "bold red", "negative": "bold red"}


@click.command()
@options.paths
@click.option(
    "--deltas",
    type=_path,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Lines 'id,count', or Parquet, or a directory of Parquet. All counts of an id are added up. May be repeated.",
)
@click.option("--to", type=_path, metavar="DIR", help="Write the ids of each class to DIR, as Parquet.")
@options.records
@runners.options
@options.as_json
def reconcile(
    paths: tuple[Path, ...],
    deltas: tuple[Path, ...],
    to: Path | None,
    records: tuple[tuple[str, int], ...],
    runner_options: runners.RunnerOptions,
    as_json: bool,
) -> None:
    """Compare the records in PATH with changes of reference counts: find live, garbage, lost and wrongly counted messages.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob, and is only read. The records are those
    that salvage would copy, also those after damage. DIR must not exist or must be empty. DIR/class=live can be passed to
    --refcounts of other commands. Exit code 1: damage, lost messages, or negative counts.

    \b
    Examples:
      msgstore reconcile msg_store_persistent --deltas counts.csv
      msgstore reconcile /backups/node1 --deltas monday.parquet --deltas tuesday.parquet --to classes
      msgstore salvage /backups/node1 rescued --refcounts classes/class=live
    """
    catalogue = load_catalogue()
    job = plan_reconcile(catalogue, paths, deltas, to=to, records=bind_records(catalogue, records, "--record"))
    runner = runner_options.make(catalogue, job.size)
    with output.progress("reconciling", quiet=as_json) as progress:
        report = runner.reconcile(job, progress)
    (_emit if as_json else _show)(report)
    not_read.leave(damaged=not report.agrees, not_read=report.not_read)


def _emit(report: ReconcileReport) -> None:
    for span in report.damage:
        output.emit(span.as_json())
    for named in report.named_as_json():
        output.emit(named)
    not_read.emit(report.not_read)
    output.emit(report.as_json())


def _show(report: ReconcileReport) -> None:
    console = output.Terminal()
    title = f"{', '.join(report.sources)} with {output.plural(report.changes, 'change')} of {', '.join(report.deltas)}"
    rows = output.table(title, "class", "ids", "references", "records", "size", "meaning", right="ids references records size")
    for name, found in report.classes.items():
        rows.add_row(
            name,
            output.count(found.ids, _STYLES.get(name, "")),
            output.count(found.references),
            output.count(found.records),
            output.size(found.size),
            CLASSES[name],
        )
    console.print(rows)
    console.print()
    for name, named in report.named.items():
        if named:
            first = ", ".join(f"{msg_id.hex()} ({count:+,})" for msg_id, count in named[:_MAX_LISTED_IDS])
            more = report.classes[name].ids - _MAX_LISTED_IDS
            console.print(f"{name}: {first}{f' and {more:,} more' if more > 0 else ''}", style=_STYLES[name])
    show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in report.damage])
    not_read.show(console, report.not_read)
