"""Command ``scan``: report the content of segments without an index, a lock or a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output
from msgstore.cli.inputs import InputArgument, Inputs
from msgstore.contract import CheckBody
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import body_check
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from msgstore.scan.bindings import OWN_RECORD

_COLUMNS = ("file", "format", "size", "records", "types", "holes", "duplicates", "damage", "end")


@click.command()
@options.paths
@click.option("--body", metavar="NAME", help="Body codec that every body must be valid for, such as erlang.")
@options.records
@options.as_json
def scan(paths: tuple[Path, ...], body: str | None, records: Mapping[str, int], out: output.Output) -> None:
    """Read segments record by record and report what is in them. Writes nothing, and needs no index.

    PATH is a segment, a directory with segments, or a broker's directory with stores. Segments of a directory come in number
    order. Record types are those that the directory remembers, otherwise those of the format itself.

    \b
    Examples:
      msgstore scan data/orders
      msgstore scan --body erlang msg_store_persistent/0.rdq
      msgstore scan --record checksum=4 --json backup/*.sqs
    """
    inputs = Inputs(load_catalogue(), records)
    damaged = show(out, scan_inputs(inputs.find(paths), body_check(body), fields=out.as_json))
    for problem in inputs.damaged_settings:
        output.note(f"{problem} Only the format's own record types were read; --record NAME=BYTE binds others.")
    out.finish(damaged=damaged or bool(inputs.damaged_settings), not_read=inputs.not_read)


def scan_inputs(
    inputs: Iterable[InputArgument], check_body: CheckBody | None = None, *, fields: bool = False
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


def span_reports(report: SegmentReport) -> list[SpanReport]:
    """Return the damaged spans of a segment."""
    return [SpanReport(str(report.path), span.offset, span.size, span.reason) for span in damaged_spans(report)]


def show(out: output.Output, reports: Iterable[SegmentReport]) -> bool:
    """Print one object per report, or for people one table per directory and the damaged spans. Returns True for damage.

    Of each report only its row is kept, so that a long scan keeps no records.
    """
    damaged, spans, rows = False, [], []
    for report in reports:
        damaged |= report.is_damaged
        if out.as_json:
            out.emit(report.as_json())
        else:
            spans += span_reports(report)
            rows.append((report.path.parent, _row(report)))
    if not out.as_json:
        for directory, group in groupby(rows, key=lambda row: row[0]):
            out.table(str(directory), _COLUMNS, (row for _, row in group), optional=("types",))
            out.print()
        out.damage(spans)
    return damaged


def _row(report: SegmentReport) -> tuple[Any, ...]:
    """Return the cells of the columns ``_COLUMNS``."""
    found = report.scan
    return (
        report.path.name,
        report.format.name,
        output.size_cell(report.size),
        len(found.records),
        show_types(report.count_types()),
        len(found.hole_offsets),
        output.count(len(found.duplicates), "yellow"),
        output.count(len(damaged_spans(report)), "bold red"),
        output.state(found.end.state),
    )
