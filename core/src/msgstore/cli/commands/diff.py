"""Command ``diff``: compare the messages of two stores."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.diff import plan_diff
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_MAX_LISTED_IDS = 20
"""Ids of each difference that are listed for people."""

_MEANINGS = {"differing": "with another body", "only_a": "only in A", "only_b": "only in B"}


@click.command()
@click.argument("a", metavar="A", type=options.FILE)
@click.argument("b", metavar="B", type=options.FILE)
@options.records
@runners.options
@options.as_json
def diff(a: Path, b: Path, records: tuple[tuple[str, int], ...], runner: runners.RunnerOptions, out: output.Output) -> None:
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
    report = runner.run(catalogue, job.size, out.progress("comparing"), lambda by, bar: by.diff(job, bar))
    rows = (
        {
            "": name,
            "path": side.path,
            "segments": side.segments,
            "size": output.size_cell(side.size),
            "messages": side.messages,
            "damage": output.count(len(side.damage), "bold red"),
        }
        for name, side in (("A", report.a), ("B", report.b))
    )
    out.table(None, rows)
    out.print()
    if out.as_json:
        with out.lines() as line:
            for row in report.rows_as_json():
                line(output.as_line(row))
    for kind, meaning in _MEANINGS.items():
        ids = report.ids[kind]
        for msg_id in ids[:_MAX_LISTED_IDS]:
            out.print(f"{meaning}: {msg_id.hex()}", "red")
        out.more(len(ids), _MAX_LISTED_IDS, f"more {meaning}")
    counts = [f"{len(report.ids[kind]):,} {meaning}" for kind, meaning in _MEANINGS.items()]
    out.print(f"{report.same:,} the same, {', '.join(counts)}")
    out.damage([*report.a.damage, *report.b.damage])
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())
