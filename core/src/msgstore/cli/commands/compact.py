"""Commands ``compact`` and ``migrate``: reclaim the space of removed messages, and rewrite segments in another format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.broker_codec import brokers_codec
from msgstore.cli.commands.salvage import run_salvage
from msgstore.cli.commands.scan import span_reports
from msgstore.cli.migration_counts import saved_counts
from msgstore.contract import ConfigError, StoreError
from msgstore.directory import has_settings
from msgstore.engine.compact.garbage_collector import DAMAGE_ADVICE
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.open.broker import LOCATION, read_rows
from msgstore.engine.state.clean_shutdown import SAVED_COUNTS
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.live_records import write_live
from msgstore.jobs.output.staging_directory import StagingDirectory
from msgstore.jobs.paths import absolute
from msgstore.jobs.reports import SpanReport, sums
from msgstore.jobs.salvage import SalvageJob, plan_salvage
from msgstore.option_values import Backend
from msgstore.scan import scan_file
from msgstore.scan.formats import OWN_RECORD


@click.command()
@options.changed
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Compact every segment with garbage, not only those that the GC policy names. Where no record fits into a gap, up to "
    "a fifth of a segment may stay garbage.",
)
@options.as_json
def compact(store: options.StoreTarget, everything: bool, out: output.Output) -> None:
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
        segments = list(opened.segments())
        quarantined = [segment.file for segment in segments if segment.quarantined]
    if store.config_file is None and not everything:
        output.note(f"a directory does not remember its policy: {target.config.gc.name}, the default, was asked. See --config")
    garbage = {segment.file: segment.garbage_bytes for segment in segments if segment.garbage_bytes and not segment.quarantined}
    idle = "nothing to compact"
    if garbage and not everything:
        idle += f": the policy {target.config.gc.name} names no segment now. --all compacts all with garbage, also the newest: "
        idle += f"{output.size(sum(garbage.values()))} in {output.plural(len(garbage), 'segment')}"
    _report(out, results, quarantined, spans, idle)


def _damage_at_opening(target: options.StoreTarget, store: Store) -> list[SpanReport]:
    """Return the damaged spans of the segments in which this opening found damage, and the missing segments. Call it before a
    collection."""
    formats, recovery = target.backends().formats, store.stats().recovery
    names = dict.fromkeys(line.partition(" at offset ")[0] for line in recovery.damaged[: -len(recovery.lost) or None])
    spans = [
        SpanReport(str(target.path / lost.file), lost.found or 0, max(0, lost.size - (lost.found or 0)), lost.reason)
        for lost in recovery.lost
    ]
    for path in (target.path / name for name in names):
        spans += span_reports(scan_file(Files(), path, formats.by_extension(path.suffix)))
    return spans


def _report(
    out: output.Output, results: list[CollectionResult], quarantined: list[str], spans: list[SpanReport], idle: str
) -> None:
    """Print the result of each segment, or ``idle`` if there is none. Exits with 1 if a segment was skipped or damaged."""
    if results:
        spec = "file before=size_before:bytes after moved=moved_records written:bytes _"
        columns = output.columns(
            spec,
            after=lambda result: output.right(output.size(result.size_after) if result.size_after else "deleted"),
            _=_outcome,
        )
        out.rows(None, columns, results, as_json=lambda result: {"kind": "segment", **attrs.asdict(result)})
    else:
        out.print(idle)
    if spans:
        out.print()
        out.damage(spans)
    now = {result.file: result.skipped for result in results if result.skipped}  # a warning has said why
    out.note_plugin_failures(now.values())
    for file in () if out.as_json else quarantined:
        if file not in now:
            output.note(f"{file}: skipped: damage was found in it earlier. {DAMAGE_ADVICE} into a new store")
    skipped = {*now, *quarantined}
    totals = sums(results, "size_before", "size_after", "written")
    rest = {"skipped": sorted(skipped), "damaged_spans": len(spans)}
    out.finish(damaged=bool(skipped or spans), summary={"kind": "summary", "segments": len(results), **totals, **rest})


def _outcome(result: CollectionResult) -> str:
    is_unchanged = result.size_after == result.size_before and not result.written
    return "skipped" if result.skipped else "unchanged" if is_unchanged else result.outcome


@click.command()
@options.changed
@click.argument("destination", metavar="[DEST]", required=False, type=options.FILE)
@options.named("--to", "to_format", metavar="FORMAT", required=True, text="The format of the new segments, such as v2.")
@options.runner
@options.as_json
def migrate(
    store: options.StoreTarget,
    destination: Path | None,
    to_format: str,
    runner: options.RunnerOptions,
    out: output.Output,
) -> None:
    """Rewrite a store's segments in FORMAT: in place, or into a new store at DEST.

    In place, each segment of another format is rewritten and then deleted, and new messages are written in FORMAT from then
    on. With DEST, the store is only read, by the chosen runner, and every message with a reference is copied with its count. If
    such a message is missing or damaged, or the store has lost its counts, the command fails without creating DEST. Bodies are
    copied as they are stored; DEST remembers their codec, also that of a broker. Fields of records, such as a time, are lost: a
    warning names them.

    \b
    Examples:
      msgstore migrate data/orders --to v2
      msgstore migrate msg_store_persistent --to v2 --adopt --refcounts counts.csv
      msgstore migrate msg_store_persistent new-store --to v2 --refcounts counts.csv --processes 8
    """
    if destination is not None:
        if store.config_file is not None and store.config.record != OWN_RECORD:
            output.note(
                f"copied records do not get record = {store.config.record!r}, which is for new ones: convert writes all anew"
            )
        _copy(attrs.evolve(store, adopt=False), destination, to_format, runner, out)
        return
    target = store.find()
    if runner != options.RunnerOptions():
        raise ConfigError(
            "migrate: options of runners apply only to copies. Omit them to migrate in place, or add DEST to copy."
        )
    form = target.config.format if target.config.format.name == to_format else Backend(to_format)
    # on_legacy: the opening must neither refuse segments to migrate, nor migrate them without a report.
    target = attrs.evolve(target, config=attrs.evolve(target.config, format=form, on_legacy="read"))
    _check_brokers_counts(target)
    with saved_counts(target, to_format), target.open("rw") as opened, out.progress("migrating") as progress:
        spans = _damage_at_opening(target, opened)
        results = opened.migrate(progress=progress)
    _report(out, results, [], spans, f"nothing to migrate: every segment is of format {to_format}")


def _copy(
    target: options.StoreTarget, destination: Path, to_format: str, runner: options.RunnerOptions, out: output.Output
) -> None:
    """Copy the store to DEST with a salvage job that fails unless every counted message is copied."""
    # Before the counts are read: the job notices a writer that comes after this.
    job = plan_salvage(
        target.catalogue,
        [target.path],
        destination,
        index=target.config.index.name,
        format=to_format,
        body=target.config.body if target.config.body.named else brokers_codec(target),
        records=target.backends().settings.records,
        counts=target.refcounts_file,
        complete=True,
    )
    with ExitStack() as stack:
        stores = [store for store, _ in job.found.lock_texts]
        counted = [store for store in stores if _has_counts(Path(store))] if job.counts is None else []
        if 0 < len(counted) < len(stores):
            other = next(store for store in stores if store not in counted)
            raise StoreError(f"{counted[0]}: has reference counts, and {other} has none. Migrate the stores one by one.")
        if counted:
            # Next to the destination, where every worker of a runner can read the counts.
            neighbour = absolute(destination).with_name(f"{destination.name}.counts")
            staging = stack.enter_context(StagingDirectory.create_locked(neighbour, publishes=False)).path
            counts = Path(staging, "counts.csv")
            _write_counts([target.at(Path(store)) for store in stores], job, counts)
            job = attrs.evolve(job, counts=str(counts), live=staging)
        run_salvage(job, target.catalogue, runner, out, "migrating")


def _has_counts(directory: Path) -> bool:
    return has_settings(directory) or (directory / SAVED_COUNTS).exists()


def _write_counts(targets: Sequence[options.StoreTarget], job: SalvageJob, file: Path) -> None:
    """Write the counts that stores, or a broker, saved, and where the live records are.

    Raises StoreError if counts are lost: with one reference each, dead messages would return, and losses would not be noticed.
    Also for a message that several stores have: they may be copies of one store.
    """
    seen: set[bytes] = set()
    with file.open("w", encoding="ascii") as lines:
        for target in targets:
            with target.open("r") as store:
                if not store.stats().recovery.counts_are_kept:
                    raise _counts_are_lost(target.path)
                inputs = [item for item in job.found.inputs if item.store == str(target.path)]
                for msg_id, references in write_live(file.parent, store, inputs):
                    lines.write(f"{msg_id.hex()},{references}\n")
                    if len(targets) > 1:
                        if msg_id in seen:
                            raise StoreError(
                                f"{target.path}: has the message {msg_id.hex()}, as another store of {job.sources[0]} has. "
                                "Migrate the stores one by one."
                            )
                        seen.add(msg_id)


def _check_brokers_counts(target: options.StoreTarget) -> None:
    """Raise StoreError if the file of counts that a broker saved is damaged: an adoption would lose them for good."""
    file = target.path / SAVED_COUNTS
    if target.refcounts_file is None and not has_settings(target.path) and file.exists():
        with suppress(OSError), Files().view(file) as data:  # the opening raises it
            problems: list[str] = []
            for _ in read_rows(data, LOCATION, problems.append):
                pass
            if problems:
                raise StoreError(
                    f"{file}: {problems[0]}. It has the reference counts: restore it, or give counts (--refcounts FILE). If "
                    "both are lost, move it away: then each message counts once, also removed ones."
                )


def _counts_are_lost(directory: Path) -> StoreError:
    reason = (
        "the index must be rebuilt from the segments, because a process was killed with the store open, or a file is missing "
        "or was changed"
    )
    if not has_settings(directory):
        reason = f"{SAVED_COUNTS}, in which the broker saved them, cannot be used in full. A warning says why"
    return StoreError(
        f"{directory}: its counts are lost: {reason}. Give counts (--refcounts FILE), or copy all messages with one reference "
        "each: msgstore salvage"
    )
