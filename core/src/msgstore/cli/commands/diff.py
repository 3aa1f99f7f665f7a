"""Command ``diff``: compare the messages of two stores."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import not_read, options, output, runners
from msgstore.cli.commands.scan import show_damage
from msgstore.contract import Damage
from msgstore.jobs.diff import DiffReport, plan_diff
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_path = click.Path(path_type=Path)
_MAX_LISTED_IDS = 20
"""Ids of each difference that are listed for people."""

_MEANINGS = {"differing": "with another body", "only_a": "only in A", "only_b": "only in B"}


@click.command()
@click.argument("a", metavar="A", type=_path)
@click.argument("b", metavar="B", type=_path)
@options.records
@runners.options
@options.as_json
def diff(a: Path, b: Path, records: tuple[tuple[str, int], ...], runner_options: runners.RunnerOptions, as_json: bool) -> None:
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
    job = plan_diff(catalogue, a, b, records=bind_records(catalogue, records, "--record"))
    runner = runner_options.make(catalogue, job.size)
    with output.progress("comparing", quiet=as_json) as progress:
        report = runner.diff(job, progress)
    (_emit if as_json else _show)(report)
    not_read.leave(damaged=not report.agrees, not_read=report.not_read)


def _emit(report: DiffReport) -> None:
    with output.lines() as line:
        for row in report.rows_as_json():
            line(output.as_line(row))
    for span in (*report.a.damage, *report.b.damage):
        output.emit(span.as_json())
    not_read.emit(report.not_read)
    output.emit(report.as_json())


def _show(report: DiffReport) -> None:
    console = output.Terminal()
    rows = output.table(None, "", "path", "segments", "size", "messages", "damage", right="segments size messages damage")
    for name, side in (("A", report.a), ("B", report.b)):
        damage = output.count(len(side.damage), "bold red")
        rows.add_row(name, side.path, f"{side.segments:,}", output.size(side.size), output.count(side.messages), damage)
    console.print(rows)
    console.print()
    for kind, meaning in _MEANINGS.items():
        ids = report.ids[kind]
        for msg_id in ids[:_MAX_LISTED_IDS]:
            console.print(f"{meaning}: {msg_id.hex()}", style="red")
        if len(ids) > _MAX_LISTED_IDS:
            console.print(f"... and {len(ids) - _MAX_LISTED_IDS:,} more {meaning}; --json lists them all")
    counts = [f"{len(report.ids[kind]):,} {meaning}" for kind, meaning in _MEANINGS.items()]
    console.print(f"{report.same:,} the same, {', '.join(counts)}")
    spans = [*report.a.damage, *report.b.damage]
    show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in spans])
    not_read.show(console, report.not_read)
