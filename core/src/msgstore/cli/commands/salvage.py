"""Command ``salvage``: copy every intact record of damaged directories into a new store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.salvage import InputReport, SalvageJob, plan_salvage
from msgstore.plugins.catalogue import Catalogue, load_catalogue

_NUMBERS = ("size", "copied", "recovered", "intact", "copies", "dead", "holes", "damaged")


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=options.FILE)
@click.argument("destination", metavar="DEST", type=options.FILE)
@click.option("--index", default="ets", metavar="NAME", show_default=True, help="Index of the new store.")
@click.option("--format", default="v2", metavar="NAME", show_default=True, help="Format of the new store.")
@click.option("--record", metavar="NAME", help="Record type that all records are encoded as. Default: their own type.")
@click.option("--body", metavar="NAME", help="Body codec of the new store. Every body must be valid for it.")
@options.bindings("--source-record", "A record type of the sources that their directories do not remember.")
@options.file(
    "--refcounts",
    "counts",
    help="Lines 'id,count', or Parquet. Other ids are dead and omitted. The new store has these counts.",
)
@runners.options
@options.as_json
def salvage(
    sources: tuple[Path, ...], destination: Path, runner: runners.RunnerOptions, out: output.Output, **choices: Any
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
    job = plan_salvage(catalogue, sources, destination, check_body=choices["body"], **choices)
    run(job, catalogue, runner, out, "salvaging")


def run(job: SalvageJob, catalogue: Catalogue, runner: runners.RunnerOptions, out: output.Output, what: str) -> None:
    """Run the job and print its report."""
    report = runner.run(catalogue, job.size, out.progress(what), lambda by, bar: by.salvage(job, bar))
    for found in report.inputs:
        out.emit(found.as_json(), *found.recovered_as_json())
    stores = {directory: list(found) for directory, found in groupby(report.inputs, lambda found: str(Path(found.path).parent))}
    several, counted = len(stores) > 1, any(found.dead for found in report.inputs)
    title = f"{', '.join(report.sources)} to {report.destination}"
    if len(report.inputs) > output.MAX_LISTED:
        groups = [*stores.items(), ("total", report.inputs)]
        rows = [(name, len(found), *_numbers(found, counted=counted)) for name, found in groups]
        out.table(title, ("store", "segments", *_NUMBERS), rows, optional=("dead",), bold_last=True)
    else:
        names = {one.path: one.path if several else Path(one.path).name for one in report.inputs}
        rows = [(names[one.path], one.format, *_numbers([one], counted=counted)) for one in reversed(report.inputs)]
        out.table(title, ("file", "format", *_NUMBERS), rows, optional=("dead",))
    out.print()
    out.damage(report.damage)
    if not out.as_json and any(span.reason == SETTINGS_DAMAGED for span in report.damage):
        loss = "bindings of record types and the name of the body codec are lost. Give those of third parties with"
        output.note(f"{loss} --source-record NAME=BYTE and --body NAME.")
    if report.ignored:
        ignored = report.ignored if several else [Path(name).name for name in report.ignored]
        out.print(f"omitted, not segments: {_abbreviate(ignored)}", "dim")
    if report.missing:
        out.print(f"{output.plural(report.missing, 'message')} with counts have no intact record", "bold red")
    recovered = f", {report.recovered:,} of them recovered after damage" if report.recovered else ""
    out.print(f"{output.plural(report.messages, 'message')} copied{recovered}")
    out.finish(damaged=bool(report.damage or report.missing), not_read=report.not_read, summary=report.as_json())


def _numbers(inputs: Sequence[InputReport], *, counted: bool) -> tuple[Any, ...]:
    """Return the cells of the columns ``_NUMBERS``."""
    size, good, duplicates, dead, holes, damaged = (
        output.size_cell(sum(getattr(found, name) for found in inputs))
        for name in ("size", "good", "duplicates", "dead", "holes", "damaged")
    )
    recovered = output.count(sum(len(found.recovered) for found in inputs), "yellow")
    copied = sum(found.records for found in inputs)
    return size, copied, recovered, good, duplicates, dead if counted else "", holes, damaged


def _abbreviate(names: list[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit:,} more (--json lists them)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
