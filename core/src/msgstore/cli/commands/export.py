"""Command ``export``: write records as Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import not_read, options, output, runners
from msgstore.cli.commands.scan import show_damage
from msgstore.contract import Damage
from msgstore.jobs.export import ExportReport, plan_export
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan.bindings import bind_records

_path = click.Path(path_type=Path)
_MAX_LISTED_SEGMENTS = 40
"""Segments up to which people get one line per segment."""


@click.command()
@click.argument("sources", metavar="PATH...", nargs=-1, required=True, type=_path)
@click.argument("destination", metavar="DEST", type=_path)
@click.option(
    "--columns", default="", metavar="NAME,...", help="Columns of the files, instead of all. Fewer columns are faster."
)
@click.option("--partition-by", default="", metavar="NAME,...", help="Columns that become directories, as in DEST/format=v2.")
@click.option("--body", metavar="NAME", help="Body codec, such as erlang, that decodes bodies into additional columns.")
@options.records
@runners.options
@options.as_json
def export(
    sources: tuple[Path, ...],
    destination: Path,
    columns: str,
    partition_by: str,
    body: str | None,
    records: tuple[tuple[str, int], ...],
    runner_options: runners.RunnerOptions,
    as_json: bool,
) -> None:
    """Write the records in PATH as Parquet files into DEST: place, id, body, and the fields of each record.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob, and is only read. The rows are all whole
    records that scan reports, live or dead. Copies of an id in other segments are separate rows. Columns: store, file, format,
    offset, size, type, id, body, and those that record types and the codec declare. DEST must not exist or must be empty. It
    appears when it is complete.

    \b
    Examples:
      msgstore export msg_store_persistent messages --body erlang
      msgstore export data/orders ids --columns id,file,offset,size
      msgstore export '/backups/*/msg_store_persistent' all --partition-by store,format
    """
    catalogue = load_catalogue()
    job = plan_export(
        catalogue,
        sources,
        destination,
        columns=_names(columns),
        partition_by=_names(partition_by),
        body=body,
        records=bind_records(catalogue, records, "--record"),
    )
    runner = runner_options.make(catalogue, job.size)
    with output.progress("exporting", quiet=as_json) as progress:
        report = runner.export(job, progress)
    (_emit if as_json else _show)(report)
    not_read.leave(damaged=bool(report.damage), not_read=report.not_read)


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _emit(report: ExportReport) -> None:
    for found in report.inputs:
        output.emit(found.as_json())
    for span in report.damage:
        output.emit(span.as_json())
    not_read.emit(report.not_read)
    output.emit(report.as_json())


def _show(report: ExportReport) -> None:
    console = output.Terminal()
    if len(report.inputs) <= _MAX_LISTED_SEGMENTS:
        title = f"{', '.join(report.sources)} to {report.destination}"
        rows = output.table(title, "file", "format", "size", "rows", "bodies", right="size rows bodies")
        for found in reversed(report.inputs):
            rows.add_row(
                found.path, found.format, output.size(found.size), output.count(found.rows), output.size(found.body_bytes)
            )
        console.print(rows)
        console.print()
    show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in report.damage])
    files = output.plural(report.files, "file")
    console.print(f"{output.plural(report.rows, 'row')} in {files} of {output.size(report.written)}, {report.destination}")
    console.print(f"columns: {', '.join(report.columns)}", style="dim")
    not_read.show(console, report.not_read)
