"""Command ``export``: write records as Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.export import plan_export
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan.bindings import bind_records


@click.command()
@click.argument("sources", metavar="PATH...", nargs=-1, required=True, type=options.FILE)
@click.argument("destination", metavar="DEST", type=options.FILE)
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
    runner: runners.RunnerOptions,
    out: output.Output,
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
    report = runner.run(catalogue, job.size, out.progress("exporting"), lambda by, bar: by.export(job, bar))
    out.emit(*(found.as_json() for found in report.inputs))
    if len(report.inputs) <= output.MAX_LISTED:
        rows = (
            {
                "file": found.path,
                "format": found.format,
                "size": output.size_cell(found.size),
                "rows": found.rows,
                "bodies": output.size_cell(found.body_bytes),
            }
            for found in reversed(report.inputs)
        )
        out.table(f"{', '.join(report.sources)} to {report.destination}", rows)
        out.print()
    out.damage(report.damage)
    files = output.plural(report.files, "file")
    out.print(f"{output.plural(report.rows, 'row')} in {files} of {output.size(report.written)}, {report.destination}")
    out.print(f"columns: {', '.join(report.columns)}", "dim")
    out.finish(damaged=bool(report.damage), not_read=report.not_read, summary=report.as_json())


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]
