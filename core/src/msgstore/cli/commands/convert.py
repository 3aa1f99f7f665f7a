"""Commands ``detect``, ``queues``, ``messages`` and ``convert``: messages of any system, by sources and sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.output import count, plural
from msgstore.config import Backend
from msgstore.contract import LISTED, STATES, MessageBatch, QueueInfo, SourceDamage
from msgstore.contract.messages import CERTAIN
from msgstore.jobs.detection import detect as find_sources
from msgstore.jobs.detection import not_recognised
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.convert import plan_convert
from msgstore.jobs.messages.listing import CountedQueue, count_queues, list_messages, size_of
from msgstore.jobs.messages.rows import damage_as_json, queue_as_json, rows_of
from msgstore.jobs.messages.selection import Selection, select
from msgstore.jobs.messages.sources import SourceSpec, parse_options, source_spec
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.tasks import ProgressMeter
from msgstore.plugins.catalogue import load_catalogue

View = Literal["table", "text", "hex", "json"]
_PREVIEW = 60
"""Characters of a body in a table."""
_HEX_LINE = 16
_MAX_REASONS = 10


@attrs.frozen
class SourceOptions:
    """Values of the options that select and configure a source."""

    source: str | None = None
    source_options: tuple[str, ...] = ()
    max_age: str | None = None
    group: str | None = None

    def backend(self) -> Backend | None:
        """Return the source, or None if it is to be detected. With options alone, it has no name."""
        given = parse_options(self.source_options, "--source-option")
        given |= {name: value for name, value in (("max_age", self.max_age), ("group", self.group)) if value is not None}
        return Backend(self.source or "", given, base=Path()) if self.source or given else None

    def spec(self, path: Path, *, raw: bool = False, accepts: tuple[str, ...] = ()) -> SourceSpec:
        return source_spec(load_catalogue(), path, self.backend(), raw=raw, accepts=accepts or None)


@attrs.frozen
class SelectionOptions:
    """Values of the options that select messages."""

    vhost: str | None = None
    queue: str | None = None
    states: tuple[str, ...] = ()
    everything: bool = False
    first: int = 0
    limit: int | None = None

    def selection(self) -> Selection:
        return select(**attrs.asdict(self))


from_source = options.bundle(
    "source",
    SourceOptions,
    source=click.option("--source", metavar="NAME", help="The source. Default: the one that recognises SRC."),
    source_options=click.option(
        "--source-option",
        "source_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the source. May be repeated.",
    ),
    max_age=click.option("--max-age", metavar="TIME", help="Kestrel: the queue's maxAge, by which messages expire."),
    group=click.option("--group", metavar="NAME", help="RocketMQ: what this consumer group has consumed is 'consumed'."),
)
selected = options.bundle(
    "selection",
    SelectionOptions,
    vhost=click.option("--vhost", metavar="GLOB", help="Virtual hosts. Default: all."),
    queue=click.option("--queue", metavar="GLOB", help="Queues. Default: all."),
    states=click.option(
        "--state", "states", multiple=True, metavar="NAME",
        help=f"Messages in this state: {', '.join(STATES)}. May be repeated. Default: {', '.join(LISTED)}.",
    ),
    everything=click.option("--all", "everything", is_flag=True, help="Messages in every state."),
    first=click.option("--from-position", "first", type=int, default=0, metavar="N", help="Skip N positions of each queue."),
    limit=click.option("--limit", type=int, metavar="N", help="At most N messages in all."),
)  # fmt: skip
accepted = click.option(
    "--accepts", multiple=True, metavar="LAYOUT",
    help="With raw records: one in another layout is written in this one or the plain one, or refused. May be repeated.",
)  # fmt: skip
_source_path = click.argument("path", metavar="SRC", type=options.FILE)


@click.command()
@click.argument("path", metavar="PATH", type=options.FILE)
@options.as_json
def detect(path: Path, out: output.Output) -> None:
    """Say which sources can read PATH, and why. Reads little, and writes nothing.

    A Kestrel journal has no mark, so for it the answer may be "perhaps". Exit code 1 if there is none.

    \b
    Examples:
      msgstore detect /var/spool/kestrel
      msgstore detect store --json
    """
    found = [
        {"kind": "candidate", "source": name, "likelihood": one.likelihood, "evidence": one.evidence}
        for name, one in find_sources(load_catalogue(), path)
    ]
    out.emit(*found)
    if found:
        out.rows(str(path), output.columns("source likelihood evidence"), found)
        out.print()
        out.print(f"next: msgstore queues {path}", "dim")
    else:
        out.print(not_recognised(load_catalogue(), path), "yellow")
        click.get_current_context().exit(1)


@click.command()
@_source_path
@from_source
@selected
@click.option("--times", is_flag=True, help="Show the time of the first and last message.")
@options.as_json
def queues(path: Path, source: SourceOptions, selection: SelectionOptions, times: bool, out: output.Output) -> None:
    """List the queues in SRC, with the number of messages in each. Writes nothing.

    Messages are those that a restart of the broker would deliver, and expired ones; others are counted apart, by their state.
    Exit code 1 for damage, 3 if something was recognised and not read.

    \b
    Examples:
      msgstore queues /var/spool/kestrel
      msgstore queues store --queue 'order*' --times --json
    """
    spec = source.spec(path)
    with out.progress("counting") as bar:
        found, damage = count_queues(spec, selection.selection(), ProgressMeter(size_of(path), bar))
    read = [queue for queue in found if queue.info.read]
    out.emit(*(queue.as_json(times=times) for queue in found))
    columns = output.columns(
        "vhost queue partition type messages bytes:bytes others notes damage" + (" first last" if times else ""),
        vhost=lambda queue: queue.info.name.vhost or "",
        queue=lambda queue: queue.info.name.queue or queue.info.name.system,
        partition=lambda queue: "" if queue.info.name.partition is None else queue.info.name.partition,
        type=lambda queue: queue.info.type,
        others=_others,
        notes=_notes,
        damage=lambda queue: count(queue.damage, "bold red"),
        first=lambda queue: _time(queue.first_ms),
        last=lambda queue: _time(queue.last_ms),
    )
    out.rows(
        f"{path}: {spec.source.name}",
        columns,
        read,
        optional=("vhost", "partition", "type", "others", "notes", "first", "last"),
    )
    out.print()
    out.print(f"{plural(sum(queue.messages for queue in read), 'message')} in {plural(len(read), 'queue')}")
    _finish(out, damage, [queue.info for queue in found if not queue.info.read])


def _others(queue: CountedQueue) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in sorted(queue.states.items()) if state != "ready")


def _notes(queue: CountedQueue) -> str:
    notes = [f"{number:,} {name}" for name, number in sorted(queue.certainties.items()) if name != CERTAIN]
    notes += [f"{key}: {value}" for key, value in queue.info.details.items() if value not in (None, "", 0, {}, [])]
    return ", ".join(notes)


@click.command()
@_source_path
@from_source
@selected
@click.option("--as", "view", type=click.Choice(["table", "text", "hex", "json"]), default="table", help="How to show bodies.")
@click.option("--no-body", is_flag=True, help="With --json: without the bodies.")
@click.option("--raw", is_flag=True, help="With --json: also the records as stored.")
@accepted
@options.as_json
def messages(
    path: Path,
    source: SourceOptions,
    selection: SelectionOptions,
    view: View,
    no_body: bool,
    raw: bool,
    accepts: tuple[str, ...],
    out: output.Output,
) -> None:
    """List the messages in SRC: those that a restart of the broker would deliver, and expired ones. Writes nothing.

    \b
    Examples:
      msgstore messages /var/spool/kestrel --queue work --limit 10
      msgstore messages store --as text
      msgstore messages store --all --json | jq -r .body
    """
    spec, chosen = source.spec(path, raw=raw, accepts=accepts), selection.selection()
    refused = Counter[str]()
    damage: list[SourceDamage] = []
    not_read: list[QueueInfo] = []

    def batches() -> Iterator[MessageBatch]:
        for item in list_messages(spec, chosen):
            if isinstance(item, MessageBatch):
                refused.update(reason for reason in item.refusals or () if reason)
                yield item
            elif isinstance(item, SourceDamage):
                damage.append(item)
            else:
                not_read.append(item)

    if out.as_json:
        with out.lines() as line:
            for batch in batches():
                for row in rows_of(batch, body=not no_body):
                    line(row)
        out.emit(*map(queue_as_json, not_read))
    elif view == "table":
        rows = (row | {"content": body} for batch in batches() for row, body in _with_bodies(batch))
        out.rows(f"{path}: {spec.source.name}", _MESSAGES, rows, optional=("vhost", "queue", "partition", "id", "time", "note"))
        out.print()
    else:
        with out.lines() as line:
            for batch in batches():
                for row, body in _with_bodies(batch):
                    _show(line, row, body, view)
    for reason, number in refused.most_common(_MAX_REASONS):
        out.emit({"kind": "refused", "reason": reason, "messages": number})
        out.print(f"no raw record, {number:,}: {reason}", "yellow")
    _finish(out, damage, not_read, refused=refused.total())


def _with_bodies(batch: MessageBatch) -> Iterator[tuple[dict[str, Any], bytes]]:
    return zip(rows_of(batch, body=False), batch.bodies, strict=True)


_MESSAGES = output.columns(
    "vhost queue partition position state size:bytes time id note body",
    vhost=lambda row: row["vhost"] or "",
    queue=lambda row: row["queue"] or "",
    partition=lambda row: "" if row["partition"] is None else row["partition"],
    time=lambda row: _time(row["timestamp_ms"]),
    id=lambda row: row["id"] or "",
    note=lambda row: "" if row["certainty"] == CERTAIN else row["certainty"],
    body=lambda row: _preview(row["content"]),
)


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def _preview(body: bytes) -> str:
    """Return the begin of a body: text if it is printable, else hexadecimal digits."""
    try:
        text = body[: 4 * _PREVIEW].decode("utf-8", "strict" if len(body) <= 4 * _PREVIEW else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        text = body[:_PREVIEW].hex(" ")
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 3]}..."


def _show(line: Any, row: Mapping[str, Any], body: bytes, view: View) -> None:
    name = "/".join(str(row[part]) for part in ("vhost", "queue", "partition") if row[part] is not None) or row["system"]
    facts = [f"{name} {row['position']}", row["state"], output.size(row["size"]), _time(row["timestamp_ms"]), row["id"] or ""]
    if view == "json":
        line(dict(row) | {"text": body.decode("utf-8", "backslashreplace")})
        return
    line("--- " + "  ".join(fact for fact in facts if fact))
    if view == "text":
        line(body.decode("utf-8", "backslashreplace"))
    else:
        for at in range(0, len(body), _HEX_LINE):
            part = body[at : at + _HEX_LINE]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            line(f"{at:08x}  {part.hex(' '):<{3 * _HEX_LINE}} {text}")


@click.command("convert")
@_source_path
@click.argument("destination", metavar="DEST")
@from_source
@selected
@click.option("--sink", metavar="NAME", help="The sink. Default: the one of DEST's ending.")
@click.option(
    "--sink-option", "sink_options", multiple=True, metavar="NAME=VALUE", help="An option of the sink. May be repeated."
)  # fmt: skip
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Give a queue another name. May be repeated.")
@click.option("--raw", is_flag=True, help="Keep the records as stored, for a conversion back.")
@accepted
@click.option("--mark-duplicates", is_flag=True, help="After a kill: mark what was perhaps sent twice.")
@options.file("--journal", help="Journal of a conversion into a URL. Default: msgstore-convert.jsonl here.")
@click.option("--restart", is_flag=True, help="Begin anew instead of continuing an interrupted conversion.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, and write nothing.")
@options.bundle(
    "runner",
    options.RunnerOptions,
    runner=click.option("--runner", default="local", metavar="NAME", show_default=True, help="local or spark."),
    master=options.master,
)
@options.as_json
def convert_(
    path: Path,
    destination: str,
    source: SourceOptions,
    selection: SelectionOptions,
    sink: str | None,
    sink_options: tuple[str, ...],
    rename: tuple[str, ...],
    accepts: tuple[str, ...],
    dry_run: bool,
    runner: options.RunnerOptions,
    out: output.Output,
    **choices: Any,
) -> None:
    """Copy the messages in SRC to DEST, each queue in its order. SRC is only read.

    DEST selects the sink: *.jsonl, *.parquet, or --sink store, files, or one of a plugin. It appears when it is complete. After
    a kill, the same command continues; with --runner spark, it begins anew. Exit code 1: damage was found, or DEST refused a
    message.

    \b
    Examples:
      msgstore convert /var/spool/kestrel messages.parquet
      msgstore convert store saved --sink store --sink-option index=lmdb
      msgstore convert messages.jsonl journals --sink kestrel --rename a/b=a_b
      msgstore convert store messages.parquet --runner spark --master 'local[4]'
    """
    catalogue = load_catalogue()
    given = parse_options(sink_options, "--sink-option")
    job = plan_convert(
        catalogue,
        path,
        destination,
        selection.selection(),
        source=source.backend(),
        sink=Backend(sink or "", given, base=Path()) if sink or given else None,
        rename=dict(_renamed(pair) for pair in rename),
        accepts=accepts or None,
        **choices,
    )

    def refused(info: QueueInfo, position: int, reason: str) -> None:
        out.emit({"kind": "refused", "queue": str(info.name), "position": position, "reason": reason})

    report = runner.run(out, "converting", catalogue, 0, lambda by, bar: by.convert(job, bar, refused, dry_run=dry_run))
    out.emit(*(queue.as_json() for queue in report.queues))
    _show_report(out, report, f"{path} to {destination}", dry_run=dry_run)
    _finish(out, report.damage, report.not_read, refused=report.total("refused"), summary=report.as_json())


def _renamed(pair: str) -> tuple[str, str]:
    old, equals, new = pair.partition("=")
    if not (old and equals and new):
        raise click.BadParameter(f"--rename: {pair!r} is not of the form OLD=NEW")
    return old, new


def _show_report(out: output.Output, report: ConvertReport, title: str, *, dry_run: bool) -> None:
    columns = output.columns(
        "queue selected written refused:yellow damaged bytes:bytes",
        queue=lambda one: str(one.info.name),
        damaged=lambda one: count(one.damaged, "bold red"),
    )
    out.rows(title, columns, report.queues)
    out.print()
    for reason, number in report.reasons.most_common(_MAX_REASONS):
        out.print(f"refused, {number:,}: {reason}", "yellow")
    out.more(len(report.reasons), _MAX_REASONS, "reasons")
    names = ("written", "refused", "damaged")
    sums = " + ".join(f"{report.total(name):,} {name}" for name in names)
    what = "dry run, nothing was written: " if dry_run else "continued: " if report.resumed else ""
    out.print(f"{what}{plural(report.total('selected'), 'message')} selected = {sums}")


def _finish(
    out: output.Output,
    damage: list[SourceDamage],
    not_read: list[QueueInfo],
    *,
    refused: int = 0,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Print damage and what was not read, and exit with the code."""
    if out.as_json:
        out.emit(*map(damage_as_json, damage))
    else:
        out.damage([SpanReport(span.file or ".", span.offset, span.size, span.reason) for span in damage])
    if not_read and not out.as_json:
        out.print()
        spec = output.columns("what type reason", what=lambda info: str(info.name))
        out.rows("not read, may contain messages", spec, not_read, style="yellow")
    out.finish(damaged=bool(damage or refused), summary=summary)
    if not_read:
        click.get_current_context().exit(output.NOT_READ)
