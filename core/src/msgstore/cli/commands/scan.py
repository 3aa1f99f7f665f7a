"""Command ``scan``: report the content of segments without an index, a lock or a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path

import attrs
import click

from msgstore.cli import not_read, options, output
from msgstore.cli.inputs import Input, Inputs
from msgstore.config import structure
from msgstore.contract import BodyCodec, CheckBody, Damage
from msgstore.files import Files
from msgstore.jobs.workers import is_valid
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from msgstore.scan.bindings import OWN_RECORD, bind_records

MAX_LISTED_SPANS = 40
"""Damaged spans that are listed for people. ``--json`` lists all."""


@attrs.frozen
class ScanSummary:
    """Summary of one segment for people: numbers only, so that a long scan keeps no records."""

    path: Path
    format: str
    size: int
    records: int
    types: str
    """Number of records of each type. Empty if all have the format's own type."""
    holes: int
    duplicates: int
    end: str
    spans: list[Damage]

    @classmethod
    def of(cls, report: SegmentReport) -> ScanSummary:
        """Summarise the report of one segment."""
        found = report.scan
        return cls(
            report.path,
            report.format.name,
            report.size,
            len(found.records),
            show_types(report.count_types()),
            len(found.hole_offsets),
            len(found.duplicates),
            found.end.state,
            damaged_spans(report),
        )


@click.command()
@options.paths
@click.option("--body", metavar="NAME", help="Body codec that every body must be valid for, such as erlang.")
@options.records
@options.as_json
def scan(paths: tuple[Path, ...], body: str | None, records: tuple[tuple[str, int], ...], as_json: bool) -> None:
    """Read segments record by record and report what is in them. Writes nothing, and needs no index.

    PATH is a segment, a directory with segments, or a broker's directory with stores. Segments of a directory come in number
    order. Record types are those that the directory remembers, otherwise those of the format itself.

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
    for report in scan_inputs(inputs.find(paths), check_body, fields=as_json):
        damaged |= report.is_damaged
        if as_json:
            output.emit(report.as_json())
        else:
            summaries.append(ScanSummary.of(report))
    for problem in inputs.damaged_settings:
        output.note(f"{problem} Only the format's own record types were read; --record NAME=BYTE binds others.")
    if as_json:
        not_read.emit(inputs.not_read)
    else:
        console = output.Terminal()
        show(console, summaries)
        not_read.show(console, inputs.not_read)
    not_read.leave(damaged=damaged or bool(inputs.damaged_settings), not_read=inputs.not_read)


def scan_inputs(
    inputs: Iterable[Input], check_body: CheckBody | None = None, *, fields: bool = False
) -> Iterator[SegmentReport]:
    """Yield a report of each segment. Omits a segment that a collector has deleted since it was listed."""
    files = Files()
    for found in inputs:
        try:
            report = scan_file(files, found.path, found.form, check_body, fields=fields)
        except FileNotFoundError:
            if not found.listed:
                raise
            continue
        yield report


def show_types(counts: Mapping[str, int]) -> str:
    """Return the number of records of each type as text. Empty if all have the format's own type."""
    return "" if counts.keys() <= {OWN_RECORD} else ", ".join(f"{count:,} {name}" for name, count in counts.items())


def body_check(catalogue: Catalogue, name: str | None) -> CheckBody | None:
    """Return the body check of the codec ``name``, or None without a name."""
    if name is None:
        return None
    descriptor = catalogue.body_codec(name)
    codec: BodyCodec = catalogue.make(descriptor, structure(descriptor.options, {}, f"--body {name}"))
    return partial(is_valid, codec)


def show(console: output.Terminal, summaries: Iterable[ScanSummary]) -> None:
    """Print one table per directory, then the damaged spans."""
    spans: list[tuple[Path, Damage]] = []
    for directory, members in groupby(summaries, key=lambda summary: summary.path.parent):
        group = list(members)
        typed = any(found.types for found in group)
        rows = output.table(
            str(directory),
            *("file", "format", "size", "records", *(["types"] if typed else []), "holes", "duplicates", "damage", "end"),
            right="size records holes duplicates damage",
        )
        for found in group:
            spans += [(found.path, span) for span in found.spans]
            rows.add_row(
                found.path.name,
                found.format,
                output.size(found.size),
                output.count(found.records),
                *([found.types] if typed else []),
                output.count(found.holes),
                output.count(found.duplicates, "yellow"),
                output.count(len(found.spans), "bold red"),
                output.state(found.end),
            )
        console.print(rows)
        console.print()
    show_damage(console, spans)


def show_damage(console: output.Terminal, spans: list[tuple[Path, Damage]]) -> None:
    """Print the damaged spans, one line each; with directories if there are several."""
    if not spans:
        console.print("no damage", style="green")
        return
    rows = output.table("damaged spans", "file", "offset", "size", "reason", right="offset size")
    several = len({path.parent for path, _ in spans}) > 1
    for path, span in spans[:MAX_LISTED_SPANS]:
        rows.add_row(str(path) if several else path.name, f"{span.offset:,}", output.size(span.size), span.reason, style="red")
    console.print(rows)
    if len(spans) > MAX_LISTED_SPANS:
        console.print(f"... and {len(spans) - MAX_LISTED_SPANS:,} more; --json lists them all")
