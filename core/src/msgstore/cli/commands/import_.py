"""Command ``import``: make a new store of Parquet rows or JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, runners
from msgstore.jobs.importing import plan_import
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import bind_records


@click.command("import")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--index", default="ets", metavar="NAME", show_default=True, help="Index of the new store.")
@click.option("--format", default="v2", metavar="NAME", show_default=True, help="Format of the new store.")
@click.option("--record", default="message", metavar="NAME", show_default=True, help="Record type of the new store.")
@click.option(
    "--bind", "records", type=options.binding, multiple=True, metavar="NAME=BYTE", help="The type byte of a record type."
)
@click.option("--body", default="raw", metavar="NAME", show_default=True, help="Body codec: bodies must be valid for it.")
@click.option("--ignore-others", is_flag=True, help="Omit columns and members that a store does not keep.")
@runners.options
@options.as_json
def import_(
    sources: tuple[str, ...],
    destination: Path,
    records: tuple[tuple[str, int], ...],
    runner: runners.RunnerOptions,
    out: output.Output,
    **choices: Any,
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
    job = plan_import(catalogue, sources, destination, records=bind_records(catalogue, records, "--bind"), **choices)
    report = runner.run(catalogue, job.size, out.progress("importing"), lambda by, bar: by.import_messages(job, bar))
    out.emit(report.as_json())
    repeated = f", {report.rows - report.messages:,} repeated rows" if report.rows > report.messages else ""
    out.print(
        f"{output.plural(report.messages, 'message')} imported from {output.plural(report.files, 'file')}{repeated}; "
        f"{report.destination}: {output.size(report.bytes)}",
        soft_wrap=True,
    )
