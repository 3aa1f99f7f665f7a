"""Options of the commands for messages of any system, and the end of their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.cli import options, output
from msgstore.config import read_config
from msgstore.contract import LISTED, STATES, QueueInfo, QueueName, SourceDamage
from msgstore.directory import has_settings
from msgstore.jobs.messages.rows import damage_as_json, each_once
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import SourceSpec, parse_options, source_spec
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import worker_catalogue
from msgstore.option_values import Backend, GivenText

_VALUE = 'VALUE is text, a number, true or false, or a table, such as { env = "NAME" }.'
MAX_REASONS = 10


def _queue_or_system(name: QueueName) -> str | None:
    return name.system if name.queue is None and not name.vhost else name.queue


def name_columns(queues: Iterable[Any]) -> dict[str, Callable[[Any], Any]]:
    """Return the columns of the names in a table with a row for each queue. The system has text only if there are several."""
    several = len({one.info.name.system for one in queues}) > 1
    return {
        "system": lambda one: output.one_line(one.info.name.system) if several else "",
        "vhost": lambda one: output.one_line(one.info.name.vhost),
        "queue": lambda one: output.one_line(_queue_or_system(one.info.name)),
        "partition": lambda one: "" if one.info.name.partition is None else one.info.name.partition,
    }


@attrs.frozen
class SourceOptions:
    """Values of the options that select and configure a source."""

    source: str | None = None
    source_options: tuple[str, ...] = ()
    max_age: str | None = None
    group: str | None = None
    config_file: Path | None = None
    """The plugins that it disables are omitted since it was parsed."""

    def backend(self, path: Path) -> Backend | None:
        """Return the source, or None if it is to be detected. With options alone, it has no name. If ``path`` is a store in the
        configuration, its codec and its record types have the options that they have there."""
        given: dict[str, object] = {**parse_options(self.source_options, "--source-option")}
        if self.config_file is not None and self.source in (None, "store"):
            config = read_config(self.config_file)
            if (store := config.find(path)) is None and (has_settings(path) or config.is_vhost(path)):
                output.note(f"{self.config_file}: has no table [stores.NAME] of {path}: bodies and records are read without it")
            for key in ("body", "format") if store is not None else ():
                backend: Backend = getattr(store, key)
                if backend.options and key not in given:
                    given[key] = backend  # with its base: paths in it are relative to the file
        max_age = None if self.max_age is None else GivenText(self.max_age)  # a number is seconds
        return _backend(self.source, given, max_age=max_age, group=self.group)

    def spec(self, path: Path, *, raw: bool = False, accepts: tuple[str, ...] = ()) -> SourceSpec:
        return source_spec(worker_catalogue(), path, self.backend(path), raw=raw, accepts=accepts or None)


def sink_backend(
    *,
    sink: str | None = None,
    sink_options: tuple[str, ...] = (),
    to_exchange: bool = False,
    declare: bool = False,
    mandatory: bool = True,
    rate: float | None = None,
    anyway: bool = False,
) -> Backend | None:
    """Return the sink, or None if DEST selects it. With options alone, it has no name."""
    return _backend(
        sink,
        parse_options(sink_options, "--sink-option"),
        to="exchange" if to_exchange else None,
        mandatory=None if mandatory else False,
        rate=rate,
        declare=declare or None,
        anyway=anyway or None,
    )


_WORDS = {"max_age": "--max-age", "to": "--to-exchange", "mandatory": "--no-mandatory"}
"""Options of some sources and sinks to their words, if these are others than their names."""


def _backend(name: str | None, given: Mapping[str, object], **short: object) -> Backend | None:
    """Return a source or sink; None if nothing is given. ``short``: options with words of their own, None if not given."""
    short = {option: value for option, value in short.items() if value is not None}
    if not (name or given or short):
        return None
    words = {option: _WORDS.get(option, f"--{option}") for option in short}
    return Backend(name or "", {**given, **short}, base=Path(), shorthands=words)


configured = options.configuration(f"{options.OMIT} Its codec and record types have the options that FILE gives them.")
from_source = options.bundle(
    "source",
    SourceOptions,
    source=click.option("--source", metavar="NAME", help="The source. Default: the one that recognises SRC."),
    source_options=click.option(
        "--source-option", "source_options", multiple=True, metavar="NAME=VALUE", help=f"An option of the source. {_VALUE}"
    ),
    max_age=click.option("--max-age", metavar="TIME", help="Kestrel: the queue's maxAge, by which messages expire."),
    group=click.option("--group", metavar="NAME", help="RocketMQ: what this consumer group has consumed is 'consumed'."),
    config_file=configured,
)
to_sink = options.bundle(
    "sink",
    sink_backend,
    sink=click.option("--sink", metavar="NAME", help="The sink. Default: the one of DEST's ending or scheme."),
    sink_options=click.option(
        "--sink-option", "sink_options", multiple=True, metavar="NAME=VALUE", help=f"An option of the sink. {_VALUE}"
    ),
    to_exchange=click.option("--to-exchange", is_flag=True, help="AMQP: to the original exchange, not straight to the queue."),
    declare=click.option("--declare", is_flag=True, help="AMQP: declare queues that are missing, as durable ones."),
    mandatory=click.option(
        "--mandatory/--no-mandatory", default=True, show_default=True, help="AMQP: refuse what the broker routes to no queue."
    ),
    rate=click.option("--rate", type=float, metavar="N", help="AMQP: at most N messages a second."),
    anyway=click.option("--anyway", is_flag=True, help="AMQP: send also to queues that may discard messages."),
)
selected = options.bundle(
    "selection",
    select,
    vhosts=click.option("--vhost", "vhosts", multiple=True, metavar="GLOB", help="Virtual hosts. Default: all."),
    queues=click.option("--queue", "queues", multiple=True, metavar="GLOB", help="Queues. Default: all."),
    ids=click.option("--id", "ids", multiple=True, metavar="ID", help="Messages with this id, as lists show it."),
    states=click.option(
        "--state", "states", multiple=True, metavar="NAME",
        help=f"Messages in this state: {', '.join(STATES)}. Default: {', '.join(LISTED)}.",
    ),
    everything=click.option("--all", "everything", is_flag=True, help="Messages in every state."),
    first=click.option("--from-position", "first", type=int, default=0, metavar="N", help="Skip N positions of each queue."),
    limit=click.option("--limit", type=int, metavar="N", help="At most N messages in all."),
)  # fmt: skip
accepted = click.option(
    "--accepts", multiple=True, metavar="LAYOUT",
    help="With raw records: one in another layout is written in this one or the plain one, or refused.",
)  # fmt: skip
source_path = options.inputs("path", "SRC")


def finish(
    out: output.Output,
    path: Path,
    damage: Sequence[SourceDamage],
    not_read: Sequence[QueueInfo],
    *,
    others: Mapping[str, int] | None = None,
    refused: int = 0,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Print the damage of the source at ``path``, and what was not selected or not read. Exit with the code."""
    if others:
        states = ", ".join(f"{number:,} {state}" for state, number in sorted(others.items()))
        out.print(f"not selected: {states} (--all selects every state)", "yellow")
    damage = [attrs.evolve(span, file=span.file or path.name) for span in each_once(damage)]
    out.emit(*map(damage_as_json, damage))
    if not out.as_json:
        out.damage([SpanReport(span.file, span.offset, span.size, span.reason) for span in damage])
    if not_read and not out.as_json:
        out.print()
        spec = output.columns("what type reason", what=lambda info: output.one_line(str(info.name)))
        out.rows("not read, may contain messages", spec, not_read, style="yellow")
    out.finish(damaged=bool(damage or refused), summary=summary)
    if not_read:
        click.get_current_context().exit(output.NOT_READ)
