"""``compact``: the space of dead messages; and what is said of segments that were rewritten in place."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.checking import found_damage
from msgstore.cli.scan import show_damage
from msgstore.cli.stores import find_store
from msgstore.contract import Damage
from msgstore.engine.compact.collection_result import CollectionResult
from msgstore.jobs.reports import SpanReport


@click.command()
@options.store
@click.option("--all", "everything", is_flag=True, help="Every segment with garbage, not only those that the GC policy names.")
@options.config_file
@options.adopt
@options.refcounts
@options.as_json
def compact(
    store: str, everything: bool, config_file: Path | None, adopt: bool, refcounts_file: Path | None, as_json: bool
) -> None:
    """Give the space of dead messages back. Damaged segments are left alone, and without --all the newest one, too.

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
        spots = found_damage(target, opened)
        if everything:
            opened.roll()
        done = opened.compact(everything=everything, progress=progress)
        quarantined = [segment.file for segment in opened.segments() if segment.quarantined]
    report(done, quarantined, spots, "compacted", "nothing to compact", as_json=as_json)


def report(
    done: list[CollectionResult], quarantined: list[str], spots: list[SpanReport], verb: str, nothing: str, *, as_json: bool
) -> None:
    """Print what became of each segment; exit code 1 if something was left as it is."""
    skipped = {found.file: found.skipped for found in done if found.skipped}
    skipped |= {file: "damage was found in it before" for file in quarantined if file not in skipped}
    if as_json:
        for found in done:
            output.emit({"kind": "segment", **attrs.asdict(found)})
        for spot in spots:
            output.emit(spot.as_json())
        output.emit(
            {
                "kind": "summary",
                "segments": len(done),
                "size_before": sum(found.size_before for found in done),
                "size_after": sum(found.size_after for found in done),
                "written": sum(found.written for found in done),
                "skipped": sorted(skipped),
                "damaged_spans": len(spots),
            }
        )
    else:
        _show(done, skipped, spots, verb, nothing)
    if skipped or spots:
        click.get_current_context().exit(1)


def _show(done: list[CollectionResult], skipped: dict[str, str], spots: list[SpanReport], verb: str, nothing: str) -> None:
    console = output.Terminal()
    rows = output.table(None, "file", "before", "after", "moved", "written", "", right="before after moved written")
    for found in done:
        after = "deleted" if not found.size_after else output.size(found.size_after)
        idle = found.size_after == found.size_before and not found.written
        what = "left as it is" if found.skipped else "nothing to gain" if idle else verb
        moved, written = output.count(found.moved_records), output.size(found.written)
        rows.add_row(found.file, output.size(found.size_before), after, moved, written, what)
    if done:
        console.print(rows)
    else:
        console.print(nothing)
    if spots:
        console.print()
        show_damage(console, [(Path(spot.path), Damage(spot.offset, spot.size, spot.reason)) for spot in spots])
    for file, reason in skipped.items():
        output.note(f"{file}: left as it is: {reason}")
