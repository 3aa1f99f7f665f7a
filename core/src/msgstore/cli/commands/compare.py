"""Commands ``diff`` and ``reconcile``: compare the messages of two stores, or records with changes of reference counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.reconcile import CLASSES, plan_reconcile
from msgstore.plugins.catalogue import load_catalogue

_MAX_DIFFERENT_IDS = 20
"""Ids of each difference that are listed for people."""
_MAX_CLASS_IDS = 5
"""Ids of each class that are listed for people."""
_MEANINGS = {"differing": "with another body", "only_a": "only in A", "only_b": "only in B"}
_CLASS_STYLES = {"orphan": "yellow", "dangling": "bold red", "negative": "bold red"}


@click.command()
@click.argument("a", metavar="A", type=options.FILE)
@click.argument("b", metavar="B", type=options.FILE)
@options.records
@runners.options
@options.as_json
def diff(a: Path, b: Path, records: Mapping[str, int], runner: runners.RunnerOptions, out: output.Output) -> None:
    """Compare the messages of A and B by id and hash of the body: list messages that only one has, and different bodies.

    Each is a segment, a directory of segments, a tree of such directories, or a glob, and is only read. Intact records count,
    also those after damage; of several copies of an id, the copy that salvage would take. Formats, record types and references
    may differ. Exit code 1: the stores differ, or something is damaged.

    \b
    Examples:
      msgstore diff data/orders backup/orders
      msgstore diff msg_store_persistent migrated --json
    """
    catalogue = load_catalogue()
    job = plan_diff(catalogue, a, b, records=records)
    report = runner.run(catalogue, job.size, out.progress("comparing"), lambda by, bar: by.diff(job, bar))
    rows = (
        (name, side.path, side.segments, output.size_cell(side.size), side.messages, output.count(len(side.damage), "bold red"))
        for name, side in (("A", report.a), ("B", report.b))
    )
    out.table(None, ("", "path", "segments", "size", "messages", "damage"), rows)
    out.print()
    if out.as_json:
        with out.lines() as line:
            for row in report.rows_as_json():
                line(output.as_line(row))
    for kind, meaning in _MEANINGS.items():
        ids = report.ids[kind]
        for msg_id in ids[:_MAX_DIFFERENT_IDS]:
            out.print(f"{meaning}: {msg_id.hex()}", "red")
        out.more(len(ids), _MAX_DIFFERENT_IDS, f"more {meaning}")
    counts = [f"{len(report.ids[kind]):,} {meaning}" for kind, meaning in _MEANINGS.items()]
    out.print(f"{report.same:,} the same, {', '.join(counts)}")
    out.damage([*report.a.damage, *report.b.damage])
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())


@click.command()
@options.paths
@options.file(
    "--deltas",
    multiple=True,
    required=True,
    help="Lines 'id,count', or Parquet, or a directory of Parquet. All counts of an id are added up. May be repeated.",
)
@options.file("--to", metavar="DIR", help="Write the ids of each class to DIR, as Parquet.")
@options.records
@runners.options
@options.as_json
def reconcile(paths: tuple[Path, ...], runner: runners.RunnerOptions, out: output.Output, **choices: Any) -> None:
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
    job = plan_reconcile(catalogue, paths, **choices)
    report = runner.run(catalogue, job.size, out.progress("reconciling"), lambda by, bar: by.reconcile(job, bar))
    title = f"{', '.join(report.sources)} with {output.plural(report.changes, 'change')} of {', '.join(report.deltas)}"
    rows = (
        (
            name,
            output.count(one.ids, _CLASS_STYLES.get(name, "")),
            one.references,
            one.records,
            output.size_cell(one.size),
            CLASSES[name],
        )
        for name, one in report.classes.items()
    )
    out.table(title, ("class", "ids", "references", "records", "size", "meaning"), rows)
    out.print()
    out.damage(report.damage)
    out.emit(*report.named_as_json())
    if any(report.named.values()):
        out.print()
    for name, named in report.named.items():
        if named:
            first = ", ".join(f"{msg_id.hex()} ({count:+,})" for msg_id, count in named[:_MAX_CLASS_IDS])
            more = report.classes[name].ids - _MAX_CLASS_IDS
            out.print(f"{name}: {first}{f' and {more:,} more' if more > 0 else ''}", _CLASS_STYLES[name])
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())
