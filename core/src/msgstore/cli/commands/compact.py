"""Commands ``compact`` and ``migrate``: reclaim the space of removed messages, and rewrite segments in another format."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import click

from msgstore.cli import options, output, stores
from msgstore.cli.commands.copies import run_salvage
from msgstore.cli.commands.scan import span_reports
from msgstore.config import Backend
from msgstore.contract import ConfigError, MsgStoreError, StoreError
from msgstore.directory import SETTINGS
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.open.clean_shutdown import SAVED_COUNTS
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.output.staging_directory import check_destination, working_directory
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.salvage import plan_salvage
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
        spans = _damage_at_opening(target, opened)
        if everything:
            opened.roll()
        results = opened.compact(everything=everything, progress=progress)
        skipped = {one.file: "damage was found in it earlier" for one in opened.segments() if one.quarantined}
    _report(out, results, skipped, spans, "compacted", "nothing to compact")


def _damage_at_opening(target: stores.StoreTarget, store: Store) -> list[SpanReport]:
    """Return the damaged spans of the segments in which this opening found damage, and the missing segments. Call it before a
    collection."""
    formats = target.backends().formats
    recovery = store.stats().recovery
    names = dict.fromkeys(line.partition(" at offset ")[0] for line in recovery.damaged[: -len(recovery.lost) or None])
    spans = [
        SpanReport(str(target.path / lost.file), lost.found or 0, max(0, lost.size - (lost.found or 0)), lost.reason)
        for lost in recovery.lost
    ]
    for path in (target.path / name for name in names):
        spans += span_reports(scan_file(Files(), path, formats.by_extension(path.suffix)))
    return spans


def _report(
    out: output.Output,
    results: list[CollectionResult],
    skipped: Mapping[str, str],
    spans: list[SpanReport],
    action: str,
    idle: str,
) -> None:
    """Print the result of each segment. Exits with 1 if a segment was skipped or damaged.

    ``skipped``: reasons of segments without a result. ``action`` names what was done to a segment. ``idle`` is printed if there
    was nothing to do.
    """

    def outcome(result: CollectionResult) -> str:
        is_unchanged = result.size_after == result.size_before and not result.written
        return "skipped" if result.skipped else "nothing to gain" if is_unchanged else action

    columns = output.columns(
        "file before=size_before:bytes after moved=moved_records written:bytes _",
        after=lambda result: output.size_cell(result.size_after) if result.size_after else output.right("deleted"),
        _=outcome,
    )
    skipped = {**skipped, **{result.file: result.skipped for result in results if result.skipped}}
    if results:
        out.rows(None, columns, results, as_json=lambda result: {"kind": "segment", **attrs.asdict(result)})
    else:
        out.print(idle)
    if spans:
        out.print()
        out.damage(spans)
    for file, reason in () if out.as_json else skipped.items():
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


@click.command()
@stores.changed
@click.argument("destination", metavar="[DEST]", required=False, type=options.FILE)
@click.option("--to", "to_format", metavar="FORMAT", required=True, help="The format of the new segments, such as v2.")
@options.runner
@options.as_json
def migrate(
    store: stores.StoreArgument,
    destination: Path | None,
    to_format: str,
    runner: options.RunnerOptions,
    out: output.Output,
) -> None:
    """Rewrite a store's segments in FORMAT: in place, or into a new store at DEST.

    In place, each segment of an older format is rewritten and then deleted, and new messages are written in FORMAT from then
    on. With DEST, the store is only read, by the chosen runner, and every message with a reference is copied with its count. If
    such a message is missing or damaged, or the store has lost its counts, the command fails without creating DEST.

    \b
    Examples:
      msgstore migrate data/orders --to v2
      msgstore migrate msg_store_persistent --to v2 --adopt --refcounts counts.csv
      msgstore migrate msg_store_persistent new-store --to v2 --refcounts counts.csv --processes 8
    """
    if destination is not None:
        _copy(attrs.evolve(store, adopt=False).resolve(), destination, to_format, runner, out)
        return
    target = store.find()
    if runner != options.RunnerOptions():
        raise ConfigError(
            "migrate: options of runners apply only to copies. Omit them to migrate in place, or add DEST to copy."
        )
    form = target.config.format if target.config.format.name == to_format else Backend(to_format)
    # on_legacy: the opening must neither refuse segments to migrate, nor migrate them without a report.
    target = attrs.evolve(target, config=attrs.evolve(target.config, format=form, on_legacy="read"))
    with target.open("rw") as opened, out.progress("migrating") as progress:
        spans = _damage_at_opening(target, opened)
        results = opened.migrate(progress=progress)
    _report(out, results, {}, spans, "migrated", f"nothing to migrate: no segment is older than {to_format}")


def _copy(
    target: stores.StoreTarget, destination: Path, to_format: str, runner: options.RunnerOptions, out: output.Output
) -> None:
    """Copy the store to DEST with a salvage job that fails unless every counted message is copied."""
    with _counts(target, destination) as counts:
        job = plan_salvage(
            target.catalogue,
            [target.path],
            destination,
            index=target.config.index.name,
            format=to_format,
            body=target.config.body.name,
            records=target.backends().settings.records,
            counts=counts,
            complete=True,
        )
        run_salvage(job, target.catalogue, runner, out, "migrating")


@contextlib.contextmanager
def _counts(target: stores.StoreTarget, destination: Path) -> Iterator[Path | None]:
    """Yield a file with the counts of the copy: the given one, else one with the counts that the store or a broker saved.

    The file is next to the destination, where every worker of a runner can read it. Raises StoreError if the store has lost its
    counts: with one reference each, dead messages would return, and losses would not be noticed.
    """
    is_adopted = (target.path / SETTINGS).exists()
    if target.refcounts_file is not None or not (is_adopted or (target.path / SAVED_COUNTS).exists()):
        yield target.refcounts_file
        return
    check_destination(destination, [target.path])
    neighbour = Path(os.path.abspath(destination)).with_name(f"{destination.name}.counts")  # noqa: PTH100 - links stay links
    with working_directory(Files(), neighbour) as directory:
        counts: Path | None = directory / "counts.csv"
        try:
            with target.open("r") as store, (directory / "counts.csv").open("w", encoding="ascii") as file:
                if is_adopted and not store.stats().recovery.counts_are_kept:
                    raise StoreError(
                        f"{target.path}: its counts are lost: the index must be rebuilt from the segments, because a process "
                        "was killed with the store open, or a file is missing or was changed. Give counts (--refcounts FILE), "
                        "or copy all messages with one reference each: msgstore salvage"
                    )
                file.writelines(f"{entry.msg_id.hex()},{entry.references}\n" for entry in store.entries())
        except MsgStoreError:
            if is_adopted:
                raise
            counts = None  # the job reports, file by file, why a broker's directory cannot be opened
        yield counts
