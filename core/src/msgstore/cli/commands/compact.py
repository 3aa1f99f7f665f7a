"""Command ``compact``: reclaim the space of removed messages. Also prints the results of segments that were rewritten in
place."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.checking import damage_at_opening
from msgstore.cli.commands.scan import show_damage
from msgstore.cli.stores import find_store
from msgstore.contract import Damage
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.jobs.reports import SpanReport


@click.command()
@options.store
@click.option(
    "--all", "everything", is_flag=True, help="Compact every segment with garbage, not only those that the GC policy names."
)
@options.config_file
@options.adopt
@options.refcounts
@options.as_json
def compact(
    store: str, everything: bool, config_file: Path | None, adopt: bool, refcounts_file: Path | None, as_json: bool
) -> None:
    """Reclaim the space of removed messages. Skips damaged segments, and without --all also the newest segment.

    \b
    Examples:
      msgstore compact data/orders
      msgstore compact data/orders --all --json
    """
    target = find_store(store, config_file, adopt=adopt)
    with (
        target.open("rw", options.read_refcounts(refcounts_file)) as opened,
        output.progress("compacting", quiet=as_json) as progress,
    ):
        spans = damage_at_opening(target, opened)
        if everything:
            opened.roll()
        results = opened.compact(everything=everything, progress=progress)
        quarantined = [segment.file for segment in opened.segments() if segment.quarantined]
    report(results, quarantined, spans, "compacted", "nothing to compact", as_json=as_json)


def report(
    results: list[CollectionResult], quarantined: list[str], spans: list[SpanReport], action: str, idle: str, *, as_json: bool
) -> None:
    """Print the result of each segment. Exits with 1 if a segment was skipped or damaged.

    ``action`` names what was done to a segment. ``idle`` is printed if there was nothing to do.
    """
    skipped = {result.file: result.skipped for result in results if result.skipped}
    skipped |= {file: "damage was found in it earlier" for file in quarantined if file not in skipped}
    if as_json:
        for result in results:
            output.emit({"kind": "segment", **attrs.asdict(result)})
        for span in spans:
            output.emit(span.as_json())
        output.emit(
            {
                "kind": "summary",
                "segments": len(results),
                "size_before": sum(result.size_before for result in results),
                "size_after": sum(result.size_after for result in results),
                "written": sum(result.written for result in results),
                "skipped": sorted(skipped),
                "damaged_spans": len(spans),
            }
        )
    else:
        _show(results, skipped, spans, action, idle)
    if skipped or spans:
        click.get_current_context().exit(1)


def _show(results: list[CollectionResult], skipped: dict[str, str], spans: list[SpanReport], action: str, idle: str) -> None:
    console = output.Terminal()
    rows = output.table(None, "file", "before", "after", "moved", "written", "", right="before after moved written")
    for result in results:
        after = "deleted" if not result.size_after else output.size(result.size_after)
        is_unchanged = result.size_after == result.size_before and not result.written
        outcome = "skipped" if result.skipped else "nothing to gain" if is_unchanged else action
        moved, written = output.count(result.moved_records), output.size(result.written)
        rows.add_row(result.file, output.size(result.size_before), after, moved, written, outcome)
    if results:
        console.print(rows)
    else:
        console.print(idle)
    if spans:
        console.print()
        show_damage(console, [(Path(span.path), Damage(span.offset, span.size, span.reason)) for span in spans])
    for file, reason in skipped.items():
        output.note(f"{file}: skipped: {reason}")
