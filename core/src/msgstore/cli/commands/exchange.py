"""Commands ``export`` and ``import``: write records as Parquet, and make a new store of Parquet rows or JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.export import plan_export
from msgstore.jobs.importing import plan_import
from msgstore.plugins.catalogue import load_catalogue


def _names(option: str, text: str) -> options.Decorator[Any]:
    """Return an option with names that are separated by commas."""
    return click.option(
        option, default="", metavar="NAME,...", help=text,
        callback=lambda _, __, given: [name.strip() for name in given.split(",") if name.strip()],
    )  # fmt: skip


@click.command()
@click.argument("sources", metavar="PATH...", nargs=-1, required=True, type=options.FILE)
@click.argument("destination", metavar="DEST", type=options.FILE)
@_names("--columns", "Columns of the files, instead of all. Fewer columns are faster.")
@_names("--partition-by", "Columns that become directories, as in DEST/format=v2.")
@click.option("--body", metavar="NAME", help="Body codec, such as erlang, that decodes bodies into additional columns.")
@options.records
@runners.options
@options.as_json
def export(
    sources: tuple[Path, ...], destination: Path, runner: runners.RunnerOptions, out: output.Output, **choices: Any
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
    job = plan_export(catalogue, sources, destination, **choices)
    report = runner.run(catalogue, job.size, out.progress("exporting"), lambda by, bar: by.export(job, bar))
    out.emit(*(found.as_json() for found in report.inputs))
    if len(report.inputs) <= output.MAX_LISTED:
        rows = (
            (one.path, one.format, output.size_cell(one.size), one.rows, output.size_cell(one.body_bytes))
            for one in reversed(report.inputs)
        )
        title = f"{', '.join(report.sources)} to {report.destination}"
        out.table(title, ("file", "format", "size", "rows", "bodies"), rows)
        out.print()
    out.damage(report.damage)
    files = output.plural(report.files, "file")
    out.print(f"{output.plural(report.rows, 'row')} in {files} of {output.size(report.written)}, {report.destination}")
    out.print(f"columns: {', '.join(report.columns)}", "dim")
    out.finish(damaged=bool(report.damage), not_read=report.not_read, summary=report.as_json())


@click.command("import")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--index", default="ets", metavar="NAME", show_default=True, help="Index of the new store.")
@click.option("--format", default="v2", metavar="NAME", show_default=True, help="Format of the new store.")
@click.option("--record", default="message", metavar="NAME", show_default=True, help="Record type of the new store.")
@options.bindings("--bind", "The type byte of a record type.")
@click.option("--body", default="raw", metavar="NAME", show_default=True, help="Body codec: bodies must be valid for it.")
@click.option("--ignore-others", is_flag=True, help="Omit columns and members that a store does not keep.")
@runners.options
@options.as_json
def import_(
    sources: tuple[str, ...], destination: Path, runner: runners.RunnerOptions, out: output.Output, **choices: Any
) -> None:
    """Make a new store at DEST of messages in Parquet files or JSON Lines.

    SRC is a file, a directory of files, or a glob. Parquet (*.parquet, needs pyarrow): columns id (16 bytes, or 32 hexadecimal
    digits), body (binary), optionally references. JSON Lines (*.jsonl, *.ndjson, *.json): id, body (base64) or text, optionally
    references. The default is one reference. Equal rows are one message. DEST appears when it is complete.

    \b
    Examples:
      msgstore import exported rescued
      msgstore import messages.jsonl store --index lmdb --json
    """
    catalogue = load_catalogue()
    job = plan_import(catalogue, sources, destination, **choices)
    report = runner.run(catalogue, job.size, out.progress("importing"), lambda by, bar: by.import_messages(job, bar))
    out.emit(report.as_json())
    repeated = f", {report.rows - report.messages:,} repeated rows" if report.rows > report.messages else ""
    out.print(
        f"{output.plural(report.messages, 'message')} imported from {output.plural(report.files, 'file')}{repeated}; "
        f"{report.destination}: {output.size(report.bytes)}",
        soft_wrap=True,
    )
