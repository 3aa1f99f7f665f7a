"""Command ``salvage``: copy every intact record of damaged directories into a new store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from msgstore.cli import not_read, options, output, runners
from msgstore.cli.commands.scan import show_damage
from msgstore.contract import Damage
from msgstore.jobs.reports import SETTINGS_DAMAGED, InputReport, SalvageReport
from msgstore.jobs.salvage import plan_salvage
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records

_path = click.Path(path_type=Path)
_MAX_LISTED_SEGMENTS = 40
"""Segments up to which people get one line per segment instead of one per store."""


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=_path)
@click.argument("destination", metavar="DEST", type=_path)
@click.option("--index", default="ets", metavar="NAME", show_default=True, help="Index of the new store.")
@click.option("--format", "form", default="v2", metavar="NAME", show_default=True, help="Format of the new store.")
@click.option("--record", metavar="NAME", help="Record type that all records are encoded as. Default: their own type.")
@click.option("--body", metavar="NAME", help="Body codec of the new store. Every body must be valid for it.")
@click.option(
    "--source-record",
    "records",
    type=options.binding,
    multiple=True,
    metavar="NAME=BYTE",
    help="A record type of the sources that their directories do not remember.",
)
@click.option(
    "--refcounts",
    "counts",
    type=_path,
    metavar="FILE",
    help="Lines 'id,count', or Parquet. Other ids are dead and omitted. The new store has these counts.",
)
@runners.options
@options.as_json
def salvage(
    sources: tuple[Path, ...],
    destination: Path,
    index: str,
    form: str,
    record: str | None,
    body: str | None,
    records: tuple[tuple[str, int], ...],
    counts: Path | None,
    runner_options: runners.RunnerOptions,
    as_json: bool,
) -> None:
    """Copy every intact record in SRC into a new store at DEST, and report every damaged span. SRC is only read.

    SRC is a segment, a directory of segments, a tree of such directories, or a glob; several may be copies of one store. After
    a damaged span, the search continues for chains of intact records. Of several copies of an id one is kept: from the first
    SRC, and there from the highest segment. Each message gets one reference, unless counts are given. DEST must not exist or
    must be empty. It appears when it is complete.

    \b
    Examples:
      msgstore salvage msg_store_persistent rescued
      msgstore salvage broken backup rescued --index lmdb --record checksum --json
      msgstore salvage /backups/node1 rescued --runner spark --master 'local[4]'
    """
    catalogue = load_catalogue()
    job = plan_salvage(
        catalogue,
        sources,
        destination,
        index=index,
        format=form,
        record=record,
        body=body,
        check_body=body,
        records=bind_records(catalogue, records, "--source-record"),
        counts=counts,
    )
    runner = runner_options.make(catalogue, job.size)
    with output.progress("salvaging", quiet=as_json) as progress:
        report = runner.salvage(job, progress)
    (emit if as_json else show)(report)
    not_read.leave(damaged=bool(report.damage or report.missing), not_read=report.not_read)


def emit(report: SalvageReport) -> None:
    """Print one line per input, per record recovered after damage and per damaged span, and finally a summary."""
    for found in report.inputs:
        output.emit(found.as_json())
        for recovered in found.recovered_as_json():
            output.emit(recovered)
    for span in report.damage:
        output.emit(span.as_json())
    not_read.emit(report.not_read)
    output.emit(report.as_json())


def show(report: SalvageReport) -> None:
    """Print a table, the damaged spans, and one line with the totals."""
    console = output.Terminal()
    stores = {directory: list(found) for directory, found in groupby(report.inputs, lambda found: str(Path(found.path).parent))}
    several, counted = len(stores) > 1, any(found.dead for found in report.inputs)
    numbers = ["size", "copied", "recovered", "intact", "copies", *(["dead"] if counted else []), "holes", "damaged"]
    title = f"{', '.join(report.sources)} to {report.destination}"
    if len(report.inputs) > _MAX_LISTED_SEGMENTS:
        rows = output.table(title, "store", "segments", *numbers, right=" ".join(["segments", *numbers]))
        for directory, found in stores.items():
            rows.add_row(directory, f"{len(found):,}", *_numbers(found, counted=counted))
        rows.add_row("total", f"{len(report.inputs):,}", *_numbers(report.inputs, counted=counted), style="bold")
    else:
        rows = output.table(title, "file", "format", *numbers, right=" ".join(numbers))
        for one in reversed(report.inputs):
            rows.add_row(one.path if several else Path(one.path).name, one.format, *_numbers([one], counted=counted))
    console.print(rows)
    console.print()
    show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in report.damage])
    if any(span.reason == SETTINGS_DAMAGED for span in report.damage):
        loss = "bindings of record types and the name of the body codec are lost. Give those of third parties with"
        output.note(f"{loss} --source-record NAME=BYTE and --body NAME.")
    if report.ignored:
        ignored = report.ignored if several else [Path(name).name for name in report.ignored]
        console.print(f"omitted, not segments: {_abbreviate(ignored)}", style="dim")
    if report.missing:
        console.print(f"{output.plural(report.missing, 'message')} with counts have no intact record", style="bold red")
    recovered = f", {report.recovered:,} of them recovered after damage" if report.recovered else ""
    console.print(f"{output.plural(report.messages, 'message')} copied{recovered}")
    not_read.show(console, report.not_read)


def _numbers(inputs: Sequence[InputReport], *, counted: bool) -> list[Any]:
    return [
        output.size(sum(found.size for found in inputs)),
        output.count(sum(found.records for found in inputs)),
        output.count(sum(len(found.recovered) for found in inputs), "yellow"),
        output.size(sum(found.good for found in inputs)),
        output.size(sum(found.duplicates for found in inputs)),
        *([output.size(sum(found.dead for found in inputs))] if counted else []),
        output.size(sum(found.holes for found in inputs)),
        output.size(sum(found.damaged for found in inputs)),
    ]


def _abbreviate(names: list[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit:,} more (--json lists them)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
