"""Commands ``detect``, ``queues`` and ``messages``: what a source has, without writing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from msgstore.cli import message_options, options, output
from msgstore.cli.output import count, plural
from msgstore.contract import STATES, MessageBatch, QueueInfo, SourceDamage
from msgstore.contract.messages import CERTAIN
from msgstore.jobs.detection import detect as find_sources
from msgstore.jobs.detection import not_recognised
from msgstore.jobs.messages.listing import CountedQueue, count_queues, list_messages, size_of
from msgstore.jobs.messages.rows import queue_as_json, rows_of
from msgstore.jobs.messages.selection import Selection
from msgstore.jobs.tasks import ProgressMeter
from msgstore.jobs.workers import worker_catalogue

View = Literal["table", "text", "hex", "json"]
_PREVIEW = 60
"""Characters of a body in a table."""
_HEX_LINE = 16


@click.command()
@options.inputs("path", "PATH")
@options.configuration(options.OMIT, value=False)
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
        for name, one in find_sources(worker_catalogue(), path)
    ]
    if not found:
        out.print(not_recognised(worker_catalogue(), path), "yellow")
        click.get_current_context().exit(1)
    out.rows(str(path), output.columns("source likelihood evidence"), found, as_json=dict)
    out.print()
    out.print(f"next: msgstore queues {path}", "dim")


@click.command()
@message_options.source_path
@message_options.from_source
@message_options.selected
@click.option("--times", is_flag=True, help="Show the time of the first and last message.")
@options.as_json
def queues(path: Path, source: message_options.SourceOptions, selection: Selection, times: bool, out: output.Output) -> None:
    """List the queues in SRC, with the number of messages in each. Writes nothing.

    Messages are those that a restart of the broker would deliver, and expired ones. "of these" says how many of them are not
    ready; "not counted" are messages in other states.
    Exit code 1 for damage, 3 if something was recognised and not read.

    \b
    Examples:
      msgstore queues /var/spool/kestrel
      msgstore queues store --queue 'order*' --times --json
    """
    spec = source.spec(path)
    with out.progress("counting") as bar:
        found, damage = count_queues(spec, selection, ProgressMeter(size_of(path), bar))
    read = [queue for queue in found if queue.info.read]
    out.emit(*(queue.as_json(times=times) for queue in found))
    columns = output.columns(
        "system vhost queue partition type messages bytes:bytes of_these not_counted notes damage"
        + (" first last" if times else ""),
        **message_options.name_columns(read),
        type=lambda queue: queue.info.type,
        of_these=lambda queue: _states(queue, selection.states),
        not_counted=lambda queue: _states(queue, set(STATES) - set(selection.states)),
        notes=_notes,
        damage=lambda queue: count(queue.damage, "bold red"),
        first=lambda queue: _time(queue.first_ms),
        last=lambda queue: _time(queue.last_ms),
    )
    out.rows(
        f"{path}: {spec.source.name}",
        columns,
        read,
        optional=("system", "vhost", "partition", "type", "of these", "not counted", "notes", "first", "last"),
    )
    out.print()
    out.print(f"{plural(sum(queue.messages for queue in read), 'message')} in {plural(len(read), 'queue')}")
    ending = "parquet" if find_spec("pyarrow") else "jsonl"
    out.print(f"next: msgstore messages {path}, or: msgstore convert {path} NAME.{ending}", "dim")
    message_options.finish(out, path, damage, [queue.info for queue in found if not queue.info.read])


def _states(queue: CountedQueue, states: Collection[str]) -> str:
    found = sorted((state, number) for state, number in queue.states.items() if state in states and state != "ready")
    return ", ".join(f"{number:,} {state}" for state, number in found)


def _notes(queue: CountedQueue) -> str:
    notes = [f"{number:,} {name}" for name, number in sorted(queue.certainties.items()) if name != CERTAIN]
    for key, value in queue.info.details.items():
        if isinstance(value, Mapping):
            notes += [f"{key} {name}: {inner}" for name, inner in value.items()]
        elif value not in (None, "", 0, []):
            notes.append(f"{key}: {value}")
    return ", ".join(notes)


@click.command()
@message_options.source_path
@message_options.from_source
@message_options.selected
@click.option("--as", "view", type=click.Choice(["table", "text", "hex", "json"]), default="table", help="How to show bodies.")
@click.option("--no-body", is_flag=True, help="With --json: without the bodies.")
@click.option("--raw", is_flag=True, help="With --json: also the records as stored.")
@message_options.accepted
@options.as_json
def messages(
    path: Path,
    source: message_options.SourceOptions,
    selection: Selection,
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
      msgstore messages store --as text --id 31323334353637383930616263646566
      msgstore messages store --all --json | jq -r .body
    """
    spec = source.spec(path, raw=raw, accepts=accepts)
    refused, others = Counter[str](), Counter[str]()
    damage: list[SourceDamage] = []
    not_read: list[QueueInfo] = []
    missing = set(selection.ids)

    def batches() -> Iterator[MessageBatch]:
        for item in list_messages(spec, selection, others):
            if isinstance(item, MessageBatch):
                missing.difference_update([one.lower() for one in item.ids or () if one] if missing else ())
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
    for wanted in sorted(missing) if selection.limit is None else ():
        out.print(f"no selected message has the id {wanted}", "yellow")
    for reason, number in refused.most_common(message_options.MAX_REASONS):
        out.emit({"kind": "refused", "reason": reason, "messages": number})
        out.print(f"no raw record, {number:,}: {reason}", "yellow")
    message_options.finish(out, path, damage, not_read, others=others, refused=refused.total())


def _with_bodies(batch: MessageBatch) -> Iterator[tuple[dict[str, Any], bytes]]:
    return zip(rows_of(batch, body=False), batch.bodies, strict=True)


_MESSAGES = output.columns(
    "vhost queue partition position state size:bytes time id note body",
    vhost=lambda row: output.one_line(row["vhost"]),
    queue=lambda row: output.one_line(row["queue"]),
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
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def _preview(body: bytes) -> str:
    """Return the begin of a body: text, with escapes for what cannot be printed, or else hexadecimal digits."""
    begin = body[: 4 * _PREVIEW]
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        is_cut = len(body) > len(begin) and error.start > len(begin) - 4
        text = begin[: error.start].decode() if is_cut else body[:_PREVIEW].hex(" ")
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 3]}..."


def _show(line: Any, row: Mapping[str, Any], body: bytes, view: View) -> None:
    name = "/".join(str(row[part]) for part in ("vhost", "queue", "partition") if row[part] is not None) or row["system"]
    time = _time(row["timestamp_ms"])
    facts = [f"{output.one_line(name)} {row['position']}", row["state"], output.size(row["size"]), time, row["id"] or ""]
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
