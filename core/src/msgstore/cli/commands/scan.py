"""Command ``scan``: report the content of segments without an index, a lock or a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import click

from msgstore.cli import options, output
from msgstore.contract import CheckBody
from msgstore.files import Files
from msgstore.jobs.inputs import Found, find_inputs, open_input
from msgstore.jobs.reports import SETTINGS_DAMAGED, SpanReport
from msgstore.jobs.workers import body_check
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from msgstore.scan.formats import OWN_RECORD


@click.command()
@options.paths
@options.named("--body", None, "Body codec that every body must be valid for, such as erlang.")
@options.records
@options.as_json
def scan(paths: tuple[Path, ...], body: str | None, records: Mapping[str, int], out: output.Output) -> None:
    """Read segments record by record and report what is in them. Writes nothing, and needs no index.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob. Segments of a directory come in number
    order. Record types are those that the directory remembers, otherwise those of the format itself.

    \b
    Examples:
      msgstore scan data/orders
      msgstore scan --body erlang msg_store_persistent/0.rdq
      msgstore scan --record checksum=4 --json backup/*.sqs
    """
    found = find_inputs(load_catalogue(), paths, records=records)
    spans: list[SpanReport] = []
    damaged = bool(found.damage)

    def watched(reports: Iterable[SegmentReport]) -> Iterator[SegmentReport]:
        nonlocal damaged
        for report in reports:
            damaged |= report.is_damaged
            if not out.as_json:
                spans.extend(span_reports(report))
            yield report

    reports = watched(scan_inputs(found, body_check(body), fields=out.as_json))
    for directory, group in groupby(reports, key=lambda report: report.path.parent):
        out.rows(str(directory), _COLUMNS, group, as_json=lambda report: report.as_json(), optional=("types",))
        out.print()
    out.damage([*spans, *found.damage])
    note_damaged_settings(found)
    out.finish(damaged=damaged, not_read=found.not_read)


_COLUMNS = output.columns(
    "file=path:name format size:bytes records types holes duplicates damage end",
    format=lambda report: report.format.name,
    records=lambda report: len(report.scan.records),
    types=lambda report: show_types(report.count_types()),
    holes=lambda report: len(report.scan.hole_offsets),
    duplicates=lambda report: output.count(len(report.scan.duplicates), "yellow"),
    damage=lambda report: output.count(len(damaged_spans(report)), "bold red"),
    end=lambda report: output.state(report.scan.end.state),
)


def scan_inputs(found: Found, check_body: CheckBody | None = None, *, fields: bool = False) -> Iterator[SegmentReport]:
    """Yield a report of each segment, those of a directory in number order. Keeps none.

    Omits a segment that a collector has deleted since it was listed.
    """
    files = Files()
    for _, group in groupby(found.inputs, key=lambda segment: segment.store):
        for segment in reversed(list(group)):
            try:
                yield scan_file(files, Path(segment.path), open_input(segment), check_body, fields=fields)
            except FileNotFoundError:
                continue


def note_damaged_settings(found: Found) -> None:
    """Say on standard error what a damaged ``msgstore.json`` means for a scan."""
    for span in found.damage:
        if span.reason == SETTINGS_DAMAGED:
            output.note(
                f"{span.path}: cannot be used. Record types of third parties are unknown; --record NAME=BYTE binds them."
            )


def show_types(counts: Mapping[str, int]) -> str:
    """Return the number of records of each type as text. Empty if all have the format's own type."""
    return "" if counts.keys() <= {OWN_RECORD} else ", ".join(f"{count:,} {name}" for name, count in counts.items())


def span_reports(report: SegmentReport) -> list[SpanReport]:
    """Return the damaged spans of a segment."""
    return [SpanReport(str(report.path), span.offset, span.size, span.reason) for span in damaged_spans(report)]
