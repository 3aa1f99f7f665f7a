"""Command ``convert``: messages of any system into any other form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from msgstore.builtin.plugin import StoreSinkOptions
from msgstore.cli import message_options, options, output
from msgstore.cli.option_texts import note_defaults
from msgstore.cli.output import count, plural
from msgstore.contract import QueueInfo
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.selection import Selection, select
from msgstore.jobs.workers import worker_catalogue
from msgstore.option_values import Backend, backend_of
from msgstore.plugins.catalogue import Catalogue

to_runner = options.bundle(
    "runner",
    options.RunnerOptions,
    runner=click.option("--runner", default="local", metavar="NAME", show_default=True, help="local or spark."),
    master=options.master,
)


@click.command("convert")
@message_options.source_path
@click.argument("destination", metavar="DEST")
@message_options.from_source
@message_options.selected
@message_options.to_sink
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Give a queue another name.")
@click.option("--raw", is_flag=True, help="Keep the records as stored, for a conversion back.")
@message_options.accepted
@click.option("--mark-duplicates", is_flag=True, help="After a kill: mark what was perhaps sent twice.")
@options.file("--journal", help="Journal of a conversion into a URL. Default: msgstore-convert.jsonl here.")
@click.option("--restart", is_flag=True, help="Begin anew instead of continuing an interrupted conversion.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, and write nothing.")
@to_runner
@options.as_json
def convert_(
    path: Path, source: message_options.SourceOptions, rename: tuple[str, ...], accepts: tuple[str, ...], **choices: Any
) -> None:
    """Copy the messages in SRC to DEST, each queue in its order. SRC is only read.

    DEST selects the sink: *.jsonl, *.parquet, amqp://USER@HOST, or --sink store, files, or one of a plugin. A file or directory
    appears when it is complete. After a kill, the same command continues; with --runner spark, it begins anew. Exit code 1:
    damage was found, or DEST refused a message.

    \b
    Examples:
      msgstore convert /var/spool/kestrel messages.parquet
      msgstore convert store saved --sink store --sink-option index=lmdb
      msgstore convert messages.jsonl journals --sink kestrel --rename a/b=a_b
      msgstore convert store messages.parquet --runner spark --master 'local[4]'
    """
    names = dict(_renamed(pair) for pair in rename)
    _convert(path, source=source.backend(path), rename=names, accepts=accepts or None, **choices)


def _convert(
    path: Path,
    destination: str,
    runner: options.RunnerOptions,
    out: output.Output,
    *,
    selection: Selection | None = None,
    dry_run: bool = False,
    **choices: Any,
) -> None:
    catalogue = worker_catalogue()
    selection = selection or select()
    job = plan_convert(catalogue, path, destination, selection, dry_run=dry_run, **choices)
    if job.sink.name == "store":
        _note_defaults(catalogue, job.sink.structure(StoreSinkOptions, "the sink store", "--sink-option"))

    def refused(info: QueueInfo, position: int, reason: str) -> None:
        out.emit({"kind": "refused", "queue": str(info.name), "position": position, "reason": reason})

    try:
        report = runner.run(out, "converting", catalogue, 0, lambda by, bar: by.convert(job, bar, refused))
    except KeyboardInterrupt:
        if runner.runner == "local" and not dry_run:
            output.note("what was confirmed is kept; the same command continues")
        raise
    out.emit(*(queue.as_json() for queue in report.queues))
    _show_report(out, report, selection, f"{path} to {report.destination}", dry_run=dry_run)
    refusals = report.total("refused")
    summary = report.as_json()
    message_options.finish(out, path, report.damage, report.not_read, others=report.others, refused=refusals, summary=summary)


@click.command("export", deprecated="Use convert --sink parquet.")
@message_options.source_path
@click.argument("destination", metavar="DEST")
@click.option("--columns", metavar="NAME,...", help="Columns of the files, instead of all.")
@click.option("--body", metavar="NAME", help="Codec that reads the bodies: its name, or a table with its options.")
@to_runner
@options.as_json
def export(columns: str | None, body: str | None, **choices: Any) -> None:
    """Copy the messages of the store SRC to Parquet files in DEST."""
    _convert(source=_backend("store", body=body), sink=_backend("parquet", columns=columns), **choices)


@click.command("import", deprecated="Use convert --sink store.")
@message_options.source_path
@click.argument("destination", metavar="DEST")
@options.named("--index", default="ets", text="Index of the new store.")
@options.named("--format", default="v2", text="Format of the new store.")
@options.named("--record", default="message", text="Record type of the new store.")
@options.bindings("--bind", "The type byte of a record type.")
@click.option("--ignore-others", is_flag=True, help="Omit columns and members that a message does not have.")
@click.option("--body", default="raw", metavar="NAME", help="Codec of the new store: its name, or a table.")
@to_runner
@options.as_json
def import_(
    path: Path,
    destination: str,
    ignore_others: bool,
    runner: options.RunnerOptions,
    out: output.Output,
    **sink_options: Any,
) -> None:
    """Copy the messages in Parquet or JSON Lines to a new store at DEST."""
    source = _backend("", ignore_others=True) if ignore_others else None
    _convert(path, destination, runner, out, source=source, sink=_backend("store", **sink_options))


def _backend(name: str, **given: Any) -> Backend:
    """Return a backend with the options that are given."""
    given = {option: value for option, value in given.items() if value}
    if "body" in given:
        codec = backend_of(given["body"])
        given["body"] = {"use": codec.name, **codec.options}
    return Backend(name, given, base=Path())


def _note_defaults(catalogue: Catalogue, sink: StoreSinkOptions) -> None:
    """Say that new records have the defaults of the options of their type, unless some are given."""
    given = sink.records.get(sink.record)
    if isinstance(given, Mapping) and set(given) - {"byte"}:
        return
    table = f"""--sink-option 'records={{"{sink.record}": {{"byte": 128, ...}}}}'"""
    note_defaults(catalogue, sink.format, sink.record, f"{table} gives others")


def _renamed(pair: str) -> tuple[str, str]:
    old, equals, new = pair.partition("=")
    if not (old and equals and new):
        raise click.BadParameter(f"--rename: {pair!r} is not of the form OLD=NEW")
    return old, new


def _show_report(out: output.Output, report: ConvertReport, selection: Selection, title: str, *, dry_run: bool) -> None:
    names = message_options.name_columns(report.queues)
    columns = output.columns(
        "system vhost queue partition selected written refused:yellow damaged bytes:bytes",
        **names,
        damaged=lambda one: count(one.damaged, "bold red"),
    )
    out.rows(title, columns, report.queues, optional=tuple(names))
    out.print()
    for reason, number in report.reasons.most_common(message_options.MAX_REASONS):
        out.print(f"refused, {number:,}: {output.one_line(reason)}", "yellow")
    out.more(len(report.reasons), message_options.MAX_REASONS, "reasons")
    ends = ("written", "refused", "damaged")
    if selection.ids and not report.total("selected"):
        out.print(f"no selected message has the id {', '.join(selection.ids)}", "yellow")
    sums = " + ".join(f"{report.total(end):,} {end}" for end in ends)
    what = "dry run, nothing was written: " if dry_run else "" if report.kept is None else f"continued after {report.kept:,}: "
    out.print(f"{what}{plural(report.total('selected'), 'message')} selected = {sums}")
