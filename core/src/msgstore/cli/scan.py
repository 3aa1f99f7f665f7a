"""``scan``: what stands in segments, without an index, a lock, or a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.inputs import Input, Inputs, bind_records
from msgstore.config import structure
from msgstore.contract import BodyCodec, Damage
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import SegmentReport, scan_file

MAX_SPOTS = 40
"""Damaged spans that are listed for people; --json lists all."""


@attrs.frozen
class Summary:
    """What a person is told of one segment: numbers, so that a long scan keeps no records."""

    path: Path
    format: str
    size: int
    records: int
    holes: int
    duplicates: int
    end: str
    spots: list[Damage]

    @classmethod
    def of(cls, report: SegmentReport) -> Summary:
        found = report.scan
        return cls(
            report.path,
            report.format.name,
            report.size,
            len(found.records),
            len(found.hole_offsets),
            len(found.duplicates),
            found.end.state,
            damaged_spans(report),
        )


@click.command()
@options.paths
@click.option("--body", metavar="NAME", help="Body codec that every body must be valid for, such as erlang.")
@click.option(
    "--record", "records", type=options.binding, multiple=True, metavar="NAME=BYTE", help="Bind a record type to a type byte."
)
@options.as_json
def scan(paths: tuple[Path, ...], body: str | None, records: tuple[tuple[str, int], ...], as_json: bool) -> None:
    """Read segments record by record and report what is in them. Writes nothing, and needs no index.

    PATH is a segment, or a directory: its segments in number order. Record types are those that the directory remembers, else
    those of the format itself.

    \b
    Examples:
      msgstore scan data/orders
      msgstore scan --body erlang msg_store_persistent/0.rdq
      msgstore scan --record checksum=4 --json backup/*.sqs
    """
    catalogue = load_catalogue()
    check_body = body_check(catalogue, body)
    inputs = Inputs(catalogue, bind_records(catalogue, records, "--record"))
    summaries = []
    damaged = False
    for report in scan_inputs(inputs.find(paths), check_body):
        damaged |= report.is_damaged
        if as_json:
            output.emit(report.as_json())
        else:
            summaries.append(Summary.of(report))
    for problem in inputs.damaged_settings:
        output.note(f"{problem} Only the format's own record types were read; --record NAME=BYTE binds others.")
    if not as_json:
        show(output.Terminal(), summaries)
    if damaged or inputs.damaged_settings:
        click.get_current_context().exit(1)


def scan_inputs(inputs: Iterable[Input], check_body: Callable[[bytes], bool] | None = None) -> Iterator[SegmentReport]:
    files = Files()
    for found in inputs:
        yield scan_file(files, found.path, found.form, check_body)


def body_check(catalogue: Catalogue, name: str | None) -> Callable[[bytes], bool] | None:
    """The test of a stored body that the codec ``name`` makes; None for none."""
    if name is None:
        return None
    descriptor = catalogue.body_codec(name)
    codec: BodyCodec = catalogue.make(descriptor, structure(descriptor.options, {}, f"--body {name}"))
    return codec.is_valid


def damaged_spans(report: SegmentReport) -> list[Damage]:
    """Every span of a segment that is not what was written; behind a bad end nothing was read."""
    found = report.scan
    spots = list(found.damage)
    if found.header not in (None, "ok"):
        spots.insert(0, Damage(0, min(len(report.format.format.header), report.size), str(found.header)))
    if found.end.state != "clean":
        spots.append(Damage(found.end.offset, report.size - found.end.offset, found.end.reason or found.end.state))
    return spots


def show(console: output.Terminal, summaries: Iterable[Summary]) -> None:
    """A table a directory, then the damaged spans."""
    spots: list[tuple[Path, Damage]] = []
    for directory, group in groupby(summaries, key=lambda summary: summary.path.parent):
        rows = output.table(
            str(directory),
            *("file", "format", "size", "records", "holes", "duplicates", "damage", "end"),
            right="size records holes duplicates damage",
        )
        for found in group:
            spots += [(found.path, spot) for spot in found.spots]
            rows.add_row(
                found.path.name,
                found.format,
                output.size(found.size),
                output.count(found.records),
                output.count(found.holes),
                output.count(found.duplicates, "yellow"),
                output.count(len(found.spots), "bold red"),
                output.state(found.end),
            )
        console.print(rows)
        console.print()
    show_spots(console, spots)


def show_spots(console: output.Terminal, spots: list[tuple[Path, Damage]]) -> None:
    """The damaged spans, a line each."""
    if not spots:
        console.print("no damage", style="green")
        return
    rows = output.table("damaged spans", "file", "offset", "size", "reason", right="offset size")
    for path, spot in spots[:MAX_SPOTS]:
        rows.add_row(path.name, f"{spot.offset:,}", output.size(spot.size), spot.reason, style="red")
    console.print(rows)
    if len(spots) > MAX_SPOTS:
        console.print(f"... and {len(spots) - MAX_SPOTS:,} more; --json lists them all")
