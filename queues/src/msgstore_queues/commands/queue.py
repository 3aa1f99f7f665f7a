"""Commands ``queue publish|get|purge|ls|top``."""

from __future__ import annotations

import contextlib
import io
import os
import queue as stdlib_queue
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from msgstore.cli import options, output
from msgstore.contract import StoreError
from msgstore_queues.commands.counting import CountedQueue, count_all
from msgstore_queues.commands.messages import TakenMessage, browse, facts_of, take
from msgstore_queues.commands.target import Where, in_vhost, queue_of


@click.group()
def queue() -> None:
    """Work with queues. WHERE is a directory, or with --config FILE the name of a table [vhosts.NAME].

    publish, get and purge open the vhost, so no other process may have it open; ls and top read beside one. With --config, the
    options of the table apply. In a directory each queue has the defaults, but for what the directory remembers.
    """


def _header(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    headers = dict[str, str]()
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE")
        headers[name] = value
    return headers


@queue.command()
@in_vhost
@click.argument("name", metavar="QUEUE")
@click.argument("body", required=False)
@options.file("--file", "file", help="The body is the content of FILE.")
@click.option("--lines", is_flag=True, help="Each line of the input is a message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_header, help="A header of each message.")
@click.option("--priority", type=click.IntRange(0, 255), metavar="N", help="The priority of each message.")
@click.option("--ttl", type=options.seconds, metavar="TIME", help="Time after which a message is not delivered.")
@click.option("--delay", type=options.seconds, metavar="TIME", help="Time before which a message is not delivered.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Publish each N times.")
@options.as_json
def publish(
    where: Where,
    name: str,
    body: str | None,
    file: Path | None,
    lines: bool,
    headers: Mapping[str, str],
    priority: int | None,
    ttl: float | None,
    delay: float | None,
    count: int,
    out: output.Output,
) -> None:
    """Publish a message, and return when it is on disk. BODY is its text; without it, or with -, standard input is read.

    A queue that is not there is made. A full queue is an error, unless it drops its first message.

    \b
    Examples:
      msgstore queue publish data jobs "resize 17"
      seq 1000 | msgstore queue publish data jobs --lines
      msgstore queue publish work jobs --config msgstore.toml --delay 10min --header kind=report "daily"
    """
    if body is not None and file is not None:
        raise click.UsageError("give BODY or --file FILE, not both")
    target = where.target()
    target.find()
    published = size = 0
    with _input(body, file) as stream, target.open(out) as vhost:
        made = name not in vhost.queues()
        wanted = vhost.queue(name)
        properties = None if priority is None else {"priority": priority}
        for content in _bodies(stream, lines):
            for _ in range(count):
                try:
                    wanted.publish(
                        content, headers=headers or None, properties=properties, ttl=ttl,
                        delay=delay or 0.0, block=False,
                    )  # fmt: skip
                except stdlib_queue.Full:
                    full = f"the queue {name!r} is full. Before, {output.plural(published, 'message')} got in"
                    raise StoreError(f"{target.path}: {full}.") from None
                published, size = published + 1, size + len(content)
        vhost.flush()
    out.emit({"kind": "published", "queue": name, "messages": published, "bytes": size, "made": made})
    out.print(f"{name}: {output.plural(published, 'message')}, {output.size(size)}{' (a new queue)' if made else ''}")


def _input(body: str | None, file: Path | None) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Return what has the bodies: BODY itself, the file, or standard input."""
    if file is not None:
        return file.open("rb")
    if body is None or body == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return io.BytesIO(os.fsencode(body))


def _bodies(stream: IO[bytes], lines: bool) -> Iterator[bytes]:
    if lines:
        yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in stream)
    else:
        yield stream.read()


@queue.command()
@in_vhost
@click.argument("name", metavar="QUEUE")
@click.option("--ack/--keep", default=False, show_default=True, help="Take the messages away, or only look at them.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="At most N messages.")
@click.option("--raw", is_flag=True, help="Write the bodies to standard output, and nothing else.")
@options.as_json
def get(where: Where, name: str, ack: bool, count: int, raw: bool, out: output.Output) -> None:
    """Show the first messages of a queue. Exit code 1 if there is none.

    With --ack they are acknowledged after they were printed, so an interrupt leaves at worst one that was printed.

    \b
    Examples:
      msgstore queue get data jobs
      msgstore queue get data jobs --ack --count 10 --json
    """
    target = where.target()
    target.find()
    shown = 0
    with target.open(out) as vhost:
        wanted = queue_of(vhost, name)
        for message in take(wanted, count) if ack else browse(wanted, count):
            shown += 1
            _show(message, raw, out)
    if not shown:
        output.note(f"{target.path}: the queue {name!r} has no message")
        click.get_current_context().exit(1)


def _show(message: TakenMessage, raw: bool, out: output.Output) -> None:
    if raw:
        left = memoryview(message.received.body)
        while left:  # with PYTHONUNBUFFERED, a write may take a part
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
        return
    out.emit(message.as_json())
    if not out.as_json:
        out.print(output.facts(f"{message.queue}, position {message.received.position}", facts_of(message)))
        out.print(message.preview())
        out.print()


@queue.command()
@in_vhost
@click.argument("name", metavar="QUEUE")
@options.as_json
def purge(where: Where, name: str, out: output.Output) -> None:
    """Remove all messages of a queue that are ready. Delayed ones stay.

    \b
    Examples:
      msgstore queue purge data jobs
    """
    target = where.target()
    target.find()
    with target.open(out) as vhost:
        number = queue_of(vhost, name).purge()
        vhost.flush()
    out.emit({"kind": "purged", "queue": name, "messages": number})
    out.print(f"{name}: {output.plural(number, 'message')} removed")


COLUMNS: output.Columns[CountedQueue] = {
    "vhost": lambda one: one.vhost.name,
    "queue": lambda one: one.queue.name,
    "messages": lambda one: _number(one.messages),
    "bytes": lambda one: _unknown() if one.bytes is None else output.right(output.size(one.bytes)),
    "unacked": lambda one: _number(one.unacked),
    "delayed": lambda one: _number(one.delayed),
    "backing": lambda one: one.queue.backing,
    "vhost is": lambda one: one.vhost.state,
}


def _number(number: int | None) -> Text:
    return _unknown() if number is None else output.count(number)


def _unknown() -> Text:
    return output.right("?", "dim")


@queue.command()
@in_vhost
@options.as_json
def ls(where: Where, out: output.Output) -> None:
    """List the queues with their messages. Locks nothing, and writes nothing.

    While a process has the vhost open, and after a crash, the files are counted, and messages contains unacked ones. Exit code
    3 if messages could not be counted: msgstore-rabbitmq-source is needed for that.

    \b
    Examples:
      msgstore queue ls data
      msgstore queue ls work --config msgstore.toml --json
    """
    found, reasons = count_all(where.find_all())
    out.rows(where.where, COLUMNS, found, CountedQueue.as_json)
    for reason in reasons:
        output.note(reason)
    if reasons or any(one.messages is None for one in found):
        click.get_current_context().exit(output.NOT_READ)


@queue.command()
@in_vhost
@click.option(
    "--interval", type=options.seconds, default="2s", show_default=True, metavar="TIME", help="Time between two refreshes."
)
@options.as_json
def top(where: Where, interval: float, out: output.Output) -> None:
    """Watch the queues: the table of ls, and messages more or less per second. Ctrl-C ends the command.

    Prints once if standard output is not a terminal. Locks nothing, and writes nothing.

    \b
    Examples:
      msgstore queue top data --interval 5s
    """
    if out.as_json or not out.console.is_terminal:
        found, _ = count_all(where.find_all())
        out.rows(where.where, COLUMNS, found, CountedQueue.as_json)
        return
    before: tuple[float, Sequence[CountedQueue]] | None = None
    with (
        contextlib.suppress(KeyboardInterrupt),  # the usual end of the command
        Live(console=out.console, auto_refresh=False, screen=True) as live,
    ):
        while True:
            at, (found, reasons) = time.monotonic(), count_all(where.find_all())
            columns = {**COLUMNS, "a second": _rates(before, at)}
            shown = output.table(f"{where.where}  {time.strftime('%H:%M:%S')}", columns, found)
            live.update(Group(shown, *map(Text, reasons)), refresh=True)
            before = at, found
            time.sleep(interval)


def _rates(before: tuple[float, Sequence[CountedQueue]] | None, at: float) -> Any:
    """Return a column: how many messages a queue has gained or lost a second since ``before``."""
    earlier = {} if before is None else {(one.vhost.name, one.queue.name): one.messages for one in before[1]}

    def rate(one: CountedQueue) -> Text:
        old = earlier.get((one.vhost.name, one.queue.name))
        if before is None or old is None or one.messages is None:
            return _unknown()
        return output.right(f"{(one.messages - old) / (at - before[0]):+,.0f}")

    return rate
