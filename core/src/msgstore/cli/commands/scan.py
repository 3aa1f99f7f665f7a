"""Commands ``scan``, ``inventory``, ``reconcile`` and ``diff``: read segments without an index or a lock, and report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.option_texts import note_missing_keys, print_doubt, print_unbound_type
from msgstore.cli.output import count, plural
from msgstore.contract import CheckBody
from msgstore.files import Files
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.inputs import JobInputs, find_inputs, open_input
from msgstore.jobs.inventory import InventoryReport, plan_inventory, totals
from msgstore.jobs.reconcile import CLASSES, plan_reconcile
from msgstore.jobs.reports import SETTINGS_DAMAGED, SpanReport
from msgstore.jobs.workers import body_check, disabled_plugins
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from msgstore.scan.formats import OWN_RECORD

_MAX_DIFFERENT_IDS = 20
"""Ids of each difference that are listed for people."""
_MAX_CLASS_IDS = 5
"""Ids of each class that are listed for people."""
_MEANINGS = {"differing": "with another body", "only_a": "only in A", "only_b": "only in B"}
_CLASS_STYLES = {"orphan": "yellow", "dangling": "bold red", "negative": "bold red"}

_REST = "A scan stops at a corrupt end. 'msgstore salvage' also finds the intact records after it."
_SCANNED = output.columns(
    "file=path:name format size:bytes records types holes duplicates damage end",
    format=lambda report: report.format.name,
    records=lambda report: len(report.scan.records),
    types=lambda report: show_types(report.count_types()),
    holes=lambda report: len(report.scan.hole_offsets),
    duplicates=lambda report: count(len(report.scan.duplicates), "yellow"),
    damage=lambda report: count(len(damaged_spans(report)), "bold red"),
    end=lambda report: output.state(report.scan.end.state),
)
_SUMS = "size:bytes records types live garbage:bytes of_it holes copies=duplicates:yellow damaged:bytes"
_SHOWN: dict[str, Any] = {
    "types": lambda row: show_types(row["types"]),
    "live": lambda row: output.right("?") if row["live"] is None else row["live"],
    "of_it": lambda row: f"{row['fragmentation']:.0%}",
}
_SEGMENTS = output.columns(f"file=path:name format {_SUMS} state:state", **_SHOWN)
_STORES = output.columns(
    f"store=path segments {_SUMS} state",
    state=lambda row: ", ".join(f"{number:,} {state}" for state, number in row["states"].items()),
    **_SHOWN,
)


@click.command()
@options.paths
@options.body("Body codec that every body must be valid for, such as erlang.")
@options.records
@options.as_json
def scan(paths: tuple[Path, ...], body: Backend | None, records: Mapping[str, int], out: output.Output) -> None:
    """Read segments record by record and report what is in them. Writes nothing, and needs no index.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob. Segments of a directory come in number
    order. Record types are those that the directory remembers, otherwise those of the format itself.

    \b
    Examples:
      msgstore scan data/orders
      msgstore scan --body erlang msg_store_persistent/0.rdq
      msgstore scan --record checksum=4 --json backup/*.sqs
    """
    catalogue = load_catalogue(disabled_plugins())
    found = find_inputs(catalogue, paths, records=records)
    spans: list[SpanReport] = []
    damaged, has_rest = bool(found.damage), False

    def watched(reports: Iterable[SegmentReport]) -> Iterator[SegmentReport]:
        nonlocal damaged, has_rest
        for report in reports:
            damaged |= report.is_damaged
            has_rest |= report.scan.end.state == "corrupt"
            if not out.as_json:
                spans.extend(span_reports(report))
            yield report

    reports = watched(scan_inputs(found, body_check(body), fields=out.as_json))
    directories = 0
    for directory, group in groupby(reports, key=lambda report: report.path.parent):
        out.rows(str(directory), _SCANNED, group, as_json=lambda report: report.as_json(), optional=("types",))
        out.print()
        directories += 1
    out.damage([*spans, *found.damage], directories)
    print_doubt(out, body, spans, catalogue)
    if has_rest:
        out.print(_REST, "dim")
    print_unbound_type(out, spans, catalogue, "--record")
    note_missing_keys(catalogue, found.bound_types(), "'msgstore verify NAME --config FILE' checks it")
    note_damaged_settings(found)
    out.finish(damaged=damaged, not_read=found.not_read)


def scan_inputs(found: JobInputs, check_body: CheckBody | None = None, *, fields: bool = False) -> Iterator[SegmentReport]:
    """Yield a report of each segment, those of a directory in number order. Keeps none.

    Omits a segment that a collector has deleted since it was listed.
    """
    for _, group in groupby(found.inputs, key=lambda segment: segment.store):
        for segment in reversed(list(group)):
            try:
                yield scan_file(Files(), Path(segment.path), open_input(segment), check_body, fields=fields)
            except FileNotFoundError:
                continue


def note_damaged_settings(found: JobInputs) -> None:
    """Say on standard error what a damaged ``msgstore.json`` means for a scan."""
    for span in found.damage:
        if span.reason == SETTINGS_DAMAGED:
            text = "cannot be used. Record types of third parties are unknown; --record NAME=BYTE binds them."
            output.note(f"{span.path}: {text}")


def show_types(counts: Mapping[str, int]) -> str:
    """Return the number of records of each type as text. Empty if all have the format's own type."""
    return "" if counts.keys() <= {OWN_RECORD} else ", ".join(f"{number:,} {name}" for name, number in counts.items())


def span_reports(report: SegmentReport) -> list[SpanReport]:
    """Return the damaged spans of a segment."""
    return [SpanReport(str(report.path), span.offset, span.size, span.reason) for span in damaged_spans(report)]


@click.command()
@options.paths
@options.file(
    "--refcounts",
    "counts",
    help="Lines 'id,count', or Parquet, for all stores: other ids are dead. Default: the saved counts of each store, if any.",
)
@options.records
@options.configuration(f"{options.OMIT} The GC policies of its tables [stores.NAME] are asked, too.", value=False)
@options.runner
@options.as_json
def inventory(paths: tuple[Path, ...], runner: options.RunnerOptions, out: output.Output, **choices: Any) -> None:
    """Measure PATH: records by type, live and dead, holes, copies, damage, and what each GC policy would free.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob. It is only read, and may be in use. All
    installed policies are asked, with the options that they declare as examples. Without counts, every record is taken to be
    live.

    \b
    Examples:
      msgstore inventory data/orders
      msgstore inventory /var/lib/rabbitmq/mnesia --refcounts classes/class=live
      msgstore inventory '/backups/*/msg_store_persistent' --json
    """
    catalogue = load_catalogue(disabled_plugins())
    config = options.given_config()
    policies = dict.fromkeys(store.gc for store in config.stores.values() if store.gc.named) if config else ()
    for error in config.wrong.values() if config else ():
        output.note(f"{error}. The policy of this store is not asked")
    job = plan_inventory(catalogue, paths, time.time(), policies=policies, **choices)
    report = runner.run(out, "counting", catalogue, job.size, lambda by, bar: by.inventory(job, bar))
    for store in report.stores:
        out.emit(*(segment.as_json() for segment in store.segments), store.as_json())
    if not out.as_json:
        _show_inventory(out, report)
    out.damage(report.damage, len(report.stores))
    if any(segment.state == "corrupt" for segment in report.segments()):
        out.print(_REST, "dim")
    out.finish(damaged=bool(report.damage), not_read=report.not_read, summary=report.as_json())


def _show_inventory(out: output.Output, report: InventoryReport) -> None:
    listed = list(report.segments())
    is_long = len(listed) > output.MAX_LISTED
    for store in () if is_long else report.stores:
        rows = ({**attrs.asdict(segment), **totals([segment])} for segment in reversed(store.segments))
        out.rows(store.path, _SEGMENTS, rows, optional=("types",))
        out.print()
    if len(report.stores) > 1 or is_long:
        groups = [*((store.path, list(store.segments)) for store in report.stores), ("total", listed)]
        sums = [{"path": path, "segments": len(segments), **totals(segments)} for path, segments in groups]
        out.rows(None, _STORES, sums, optional=("types",), bold_last=True)
        out.print()
    if policies := report.policies():
        spec = "policy=name options frees=gives_back:bytes messages_lost=messages_lost:red steps"
        out.rows("what policies would do", output.columns(spec, steps=_steps), policies)
        out.print()
    if errors := [store.unasked for store in report.stores if store.unasked]:
        out.print(f"no policy was asked about {plural(len(errors), 'store')}: {errors[0]}", "dim")
    if unknown := sum(not store.counts for store in report.stores):
        text = f"no counts for {plural(unknown, 'store')}: every record is taken to be live (--refcounts gives counts)"
        out.print(text, "dim")


def _steps(policy: dict[str, Any]) -> str:
    if policy["errors"]:
        return str(policy["errors"][0])
    return ", ".join(f"{action} {number:,}" for action, number in policy["steps"].items()) or "nothing"


@click.command()
@options.paths
@options.file(
    "--deltas",
    multiple=True,
    required=True,
    help="Lines 'id,count', or Parquet, or a directory of Parquet. All counts of an id are added up. May be repeated.",
)
@options.file("--to", metavar="DIR", help="Write the ids of each class to DIR, as Parquet.")
@options.records
@options.configuration(options.OMIT, value=False)
@options.runner
@options.as_json
def reconcile(paths: tuple[Path, ...], runner: options.RunnerOptions, out: output.Output, **choices: Any) -> None:
    """Compare the records in PATH with changes of reference counts: find live, garbage, lost and wrongly counted messages.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob, and is only read. The records are those
    that salvage would copy, also those after damage. DIR must not exist or must be empty. DIR/class=live can be passed to
    --refcounts of other commands. Exit code 1: damage, lost messages, or negative counts.

    \b
    Examples:
      msgstore reconcile msg_store_persistent --deltas counts.csv
      msgstore reconcile /backups/node1 --deltas monday.parquet --deltas tuesday.parquet --to classes
      msgstore salvage /backups/node1 rescued --refcounts classes/class=live
    """
    catalogue = load_catalogue(disabled_plugins())
    job = plan_reconcile(catalogue, paths, **choices)
    report = runner.run(out, "reconciling", catalogue, job.size, lambda by, bar: by.reconcile(job, bar))
    columns = output.columns(
        "class=name ids references records size:bytes meaning",
        ids=lambda row: count(row["ids"], _CLASS_STYLES.get(row["name"], "")),
        meaning=lambda row: CLASSES[row["name"]],
    )
    title = f"{', '.join(report.sources)} with {plural(report.changes, 'change')} of {', '.join(report.deltas)}"
    out.rows(title, columns, ({"name": name, **attrs.asdict(one)} for name, one in report.classes.items()))
    out.print()
    out.damage(report.damage, len(report.sources))
    out.emit(*report.named_as_json())
    if any(report.named.values()):
        out.print()
    for name, named in report.named.items():
        if named:
            first = ", ".join(f"{msg_id.hex()} ({number:+,})" for msg_id, number in named[:_MAX_CLASS_IDS])
            more = report.classes[name].ids - _MAX_CLASS_IDS
            out.print(f"{name}: {first}{f' and {more:,} more' if more > 0 else ''}", _CLASS_STYLES[name])
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())


@click.command()
@options.inputs("a", "A")
@options.inputs("b", "B")
@options.body("Compare what this body codec decodes on both sides. raw: compare stored bodies.")
@options.records
@options.runner
@options.as_json
def diff(a: Path, b: Path, runner: options.RunnerOptions, out: output.Output, **choices: Any) -> None:
    """Compare the messages of A and B by id and hash of the body: list messages that only one has, and different bodies.

    Each is a segment, a directory of segments, a tree of such directories, or a glob, and is only read. Intact records count,
    also those after damage; of several copies of an id, the copy that salvage would take. Formats, record types and references
    may differ. Stored bodies are compared. If A and B remember different body codecs, each side is decoded by its own instead,
    with the options that its store has in FILE; if one of the two is raw and the other a broker's, stored bodies are compared.
    --body decodes both sides with one codec: use it for a codec with a random part, such as an encryption, which stores one
    body in many ways. Exit code 1: the stores differ, or something is damaged.

    \b
    Examples:
      msgstore diff data/orders backup/orders
      msgstore diff msg_store_persistent migrated --json
    """
    catalogue = load_catalogue(disabled_plugins())
    job = plan_diff(catalogue, a, b, config=options.given_config(), **choices)
    report = runner.run(out, "comparing", catalogue, job.size, lambda by, bar: by.diff(job, bar))
    columns = output.columns(
        "_ path segments size:bytes messages damage",
        _=lambda side: "A" if side is report.a else "B",
        damage=lambda side: count(len(side.damage), "bold red"),
    )
    out.rows(None, columns, (report.a, report.b))
    out.print()
    if job.body_a and job.body_b and job.body_a != job.body_b:
        out.print(f"bodies of A are decoded by {job.body_a.name}, those of B by {job.body_b.name}", "dim")
    if out.as_json:
        with out.lines() as line:
            for row in report.rows_as_json():
                line(row)
    for kind, meaning in _MEANINGS.items():
        ids = report.ids[kind]
        for msg_id in ids[:_MAX_DIFFERENT_IDS]:
            out.print(f"{meaning}: {msg_id.hex()}", "red")
        out.more(len(ids), _MAX_DIFFERENT_IDS, f"more {meaning}")
    counts = [f"{len(report.ids[kind]):,} {meaning}" for kind, meaning in _MEANINGS.items()]
    dead = "; removed messages count until their segment is compacted"
    only_one_has = report.ids["only_a"] or report.ids["only_b"]
    out.print(f"{report.same:,} the same, {', '.join(counts)}{dead if only_one_has else ''}")
    out.damage([*report.a.damage, *report.b.damage], 2)
    out.finish(damaged=not report.agrees, not_read=report.not_read, summary=report.as_json())
