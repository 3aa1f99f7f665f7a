"""``salvage``: every good record of a damaged directory, in a fresh store."""

from __future__ import annotations

from pathlib import Path

import click

from msgstore.cli import options, output
from msgstore.cli.inputs import bind_records
from msgstore.cli.scan import body_check, show_spots
from msgstore.contract import Damage
from msgstore.plugins.catalogue import load_catalogue
from msgstore.salvage import SETTINGS_DAMAGED, SalvageReport
from msgstore.salvage import salvage as run_salvage

_path = click.Path(path_type=Path)


@click.command()
@click.argument("source", metavar="SRC", type=_path)
@click.argument("destination", metavar="DEST", type=_path)
@click.option("--index", default="ets", metavar="NAME", show_default=True, help="Index of the new store.")
@click.option("--format", "form", default="v2", metavar="NAME", show_default=True, help="Format of the new store.")
@click.option("--record", default="message", metavar="NAME", show_default=True, help="Record type of the new store.")
@click.option("--body", metavar="NAME", help="Body codec: bodies must be valid for it, and the new store remembers it.")
@click.option(
    "--source-record",
    "records",
    type=options.binding,
    multiple=True,
    metavar="NAME=BYTE",
    help="A record type of the source that its directory does not remember.",
)
@options.as_json
def salvage(
    source: Path,
    destination: Path,
    index: str,
    form: str,
    record: str,
    body: str | None,
    records: tuple[tuple[str, int], ...],
    as_json: bool,
) -> None:
    """Copy every good record in SRC into a fresh store at DEST, and report every damaged span. SRC is only read.

    SRC is any directory of segments. Behind a corrupt spot the search goes on for records that hold together. Each message
    gets one reference. DEST must not exist, or be empty; it appears when it is complete.

    \b
    Examples:
      msgstore salvage msg_store_persistent rescued
      msgstore salvage broken rescued --index lmdb --record checksum --json
    """
    catalogue = load_catalogue()
    with output.progress("salvaging", quiet=as_json) as progress:
        report = run_salvage(
            source,
            destination,
            catalogue=catalogue,
            index=index,
            format=form,
            record=record,
            body=body,
            records=bind_records(catalogue, records, "--source-record"),
            check_body=body_check(catalogue, body),
            progress=progress,
        )
    if as_json:
        _emit(report)
    else:
        _show(report)
    if report.damage:
        click.get_current_context().exit(1)


def _emit(report: SalvageReport) -> None:
    for found in report.inputs:
        output.emit(found.as_json())
        for recovered in found.recovered_as_json():
            output.emit(recovered)
    for spot in report.damage:
        output.emit(spot.as_json())
    output.emit(report.as_json())


def _show(report: SalvageReport) -> None:
    console = output.Terminal()
    columns = ("file", "format", "size", "copied", "recovered", "good", "copies", "holes", "damaged")
    rows = output.table(f"{report.source} to {report.destination}", *columns, right=" ".join(columns[2:]))
    for found in reversed(report.inputs):
        rows.add_row(
            found.path.name,
            found.format,
            output.size(found.size),
            output.count(found.records),
            output.count(len(found.recovered), "yellow"),
            output.size(found.good),
            output.size(found.duplicates),
            output.size(found.holes),
            output.size(found.damaged),
        )
    console.print(rows)
    console.print()
    show_spots(console, [(spot.path, Damage(spot.offset, spot.size, spot.reason)) for spot in report.damage])
    if any(spot.reason == SETTINGS_DAMAGED for spot in report.damage):
        output.note("the source's bindings of record types are lost; give its third-party ones with --source-record NAME=BYTE")
    if report.ignored:
        console.print(f"left out, not segments: {', '.join(report.ignored)}", style="dim")
    recovered = f", {report.recovered:,} of them found again behind damage" if report.recovered else ""
    console.print(f"{output.plural(report.messages, 'message')} copied{recovered}")
