"""Command ``compact``: reclaim the space of removed messages. Also prints the results of segments that were rewritten in
place."""

from __future__ import annotations

from typing import Any

import attrs
import click

from msgstore.cli import options, output, stores
from msgstore.cli.commands.scan import span_reports
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport
from msgstore.scan import scan_file


@click.command()
@stores.changed
@click.option(
    "--all", "everything", is_flag=True, help="Compact every segment with garbage, not only those that the GC policy names."
)
@options.as_json
def compact(store: stores.StoreArgument, everything: bool, out: output.Output) -> None:
    """Reclaim the space of removed messages. Skips damaged segments, and without --all also the newest segment.

    \b
    Examples:
      msgstore compact data/orders
      msgstore compact data/orders --all --json
    """
    target = store.find()
    with target.open("rw") as opened, out.progress("compacting") as progress:
        spans = damage_at_opening(target, opened)
        if everything:
            opened.roll()
        results = opened.compact(everything=everything, progress=progress)
        quarantined = [segment.file for segment in opened.segments() if segment.quarantined]
    report(out, results, quarantined, spans, "compacted", "nothing to compact")


def damage_at_opening(target: stores.StoreTarget, store: Store) -> list[SpanReport]:
    """Return the damaged spans of the segments in which this opening found damage, and the missing segments. Call it before a
    collection."""
    formats = target.backends(target.settings()).formats
    recovery = store.stats().recovery
    names = dict.fromkeys(line.partition(" at offset ")[0] for line in recovery.damaged[: -len(recovery.lost) or None])
    spans = [
        SpanReport(str(target.path / lost.file), lost.found or 0, max(0, lost.size - (lost.found or 0)), lost.reason)
        for lost in recovery.lost
    ]
    for path in (target.path / name for name in names):
        spans += span_reports(scan_file(Files(), path, formats.by_extension(path.suffix)))
    return spans


def report(
    out: output.Output,
    results: list[CollectionResult],
    quarantined: list[str],
    spans: list[SpanReport],
    action: str,
    idle: str,
) -> None:
    """Print the result of each segment. Exits with 1 if a segment was skipped or damaged.

    ``action`` names what was done to a segment. ``idle`` is printed if there was nothing to do.
    """
    skipped = {result.file: result.skipped for result in results if result.skipped}
    skipped |= {file: "damage was found in it earlier" for file in quarantined if file not in skipped}
    out.emit(*({"kind": "segment", **attrs.asdict(result)} for result in results))
    if results:
        out.table(None, (_row(result, action) for result in results))
    else:
        out.print(idle)
    if spans:
        out.print()
        out.damage(spans)
    if not out.as_json:
        for file, reason in skipped.items():
            output.note(f"{file}: skipped: {reason}")
    summary = {
        "kind": "summary",
        "segments": len(results),
        "size_before": sum(result.size_before for result in results),
        "size_after": sum(result.size_after for result in results),
        "written": sum(result.written for result in results),
        "skipped": sorted(skipped),
        "damaged_spans": len(spans),
    }
    out.finish(damaged=bool(skipped or spans), summary=summary)


def _row(result: CollectionResult, action: str) -> dict[str, Any]:
    is_unchanged = result.size_after == result.size_before and not result.written
    return {
        "file": result.file,
        "before": output.size_cell(result.size_before),
        "after": output.size_cell(result.size_after) if result.size_after else output.right("deleted"),
        "moved": result.moved_records,
        "written": output.size_cell(result.written),
        "": "skipped" if result.skipped else "nothing to gain" if is_unchanged else action,
    }
