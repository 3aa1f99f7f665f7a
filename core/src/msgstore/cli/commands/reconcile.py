"""Command ``reconcile``: compare records with changes of reference counts."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.reconcile import CLASSES, plan_reconcile
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_MAX_LISTED_IDS = 5
"""Ids of each class that are listed for people."""
_STYLES = {"orphan": "yellow", "dangling": "bold red", "negative": "bold red"}


@click.command()
@options.paths
@click.option(
    "--deltas",
    type=options.FILE,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Lines 'id,count', or Parquet, or a directory of Parquet. All counts of an id are added up. May be repeated.",
)
@click.option("--to", type=options.FILE, metavar="DIR", help="Write the ids of each class to DIR, as Parquet.")
@options.records
@runners.options
@options.as_json
def reconcile(
    paths: tuple[Path, ...],
    deltas: tuple[Path, ...],
    to: Path | None,
    records: tuple[tuple[str, int], ...],
    runner: runners.RunnerOptions,
    out: output.Output,
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
    report = runner.run(catalogue, job.size, out.progress("reconciling"), lambda by, bar: by.reconcile(job, bar))
    rows = (
        {
            "class": name,
            "ids": output.count(found.ids, _STYLES.get(name, "")),
            "references": found.references,
            "records": found.records,
            "size": output.size_cell(found.size),
            "meaning": CLASSES[name],
        }
        for name, found in report.classes.items()
    )
    out.table(f"{', '.join(report.sources)} with {output.plural(report.changes, 'change')} of {', '.join(report.deltas)}", rows)
    out.print()
    out.damage(report.damage)
    out.emit(*report.named_as_json())
    if any(report.named.values()):
        out.print()
    for name, named in report.named.items():
        if named:
            first = ", ".join(f"{msg_id.hex()} ({count:+,})" for msg_id, count in named[:_MAX_LISTED_IDS])
            more = report.classes[name].ids - _MAX_LISTED_IDS
            out.print(f"{name}: {first}{f' and {more:,} more' if more > 0 else ''}", _STYLES[name])
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())
