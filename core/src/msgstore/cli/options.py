"""Arguments and options that several commands share, and the choice of a job runner."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click

from msgstore.cli import output
from msgstore.jobs.runner import AUTO, JobRunner, choose_runner, make_runner
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import bind_records
from msgstore.units import parse_duration, parse_size

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
FILE = click.Path(path_type=Path)


def file(*names: str, metavar: str = "FILE", **keys: Any) -> Decorator[Any]:
    """Return an option whose value is a path."""
    return click.option(*names, type=FILE, metavar=metavar, **keys)


as_json = click.option(
    "--json", "out", is_flag=True, help="Print JSON Lines: one compact object per line.",
    callback=lambda _, __, value: output.Output(as_json=value),
)  # fmt: skip
config_file = file("--config", "config_file", help="Configuration in which STORE is a name.")
store = click.argument("store", metavar="STORE")
refcounts = file(
    "--refcounts",
    "refcounts_file",
    help="Lines 'id,count', used where counts must be rebuilt (a RabbitMQ directory, a crash). Other ids are garbage.",
)
adopt = click.option(
    "--adopt", is_flag=True, help="Change a directory that a broker wrote. It belongs to msgstore from then on."
)
paths = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=FILE)
sources = click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=FILE)
destination = click.argument("destination", metavar="DEST", type=FILE)


def named(option: str, default: str | None, text: str) -> Decorator[Any]:
    """Return an option whose value is the name of a backend."""
    return click.option(option, default=default, metavar="NAME", show_default=default is not None, help=text)


def names(option: str, text: str) -> Decorator[Any]:
    """Return an option with names that are separated by commas."""
    return click.option(
        option, default="", metavar="NAME,...", help=text,
        callback=lambda _, __, given: [name.strip() for name in given.split(",") if name.strip()],
    )  # fmt: skip


def bundle(name: str, make: Callable[..., object], **parts: Decorator[Any]) -> Decorator[Any]:
    """Return a decorator that adds several parameters to a command. Their values become one argument ``name``.

    ``parts`` has the decorator of each parameter by its name, which is also a keyword of ``make``.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **values: Any) -> Any:
            own = {key: values.pop(key) for key in parts}
            return function(*arguments, **{name: make(**own)}, **values)

        return cast("F", functools.reduce(lambda result, part: part(result), reversed(parts.values()), command))

    return decorate


@contextlib.contextmanager
def _bad_parameter() -> Iterator[None]:
    """Convert ValueError to BadParameter, which names the option."""
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def message_id(value: str) -> bytes:
    """Parse 32 hexadecimal digits. Raises BadParameter."""
    if re.fullmatch("[0-9A-Fa-f]{32}", value) is None:
        raise click.BadParameter(f"{value!r} is not a message id: 32 hexadecimal digits")
    return bytes.fromhex(value)


def size(value: str) -> int:
    """Parse a positive size in bytes, as in a configuration. Raises BadParameter."""
    with _bad_parameter():
        found = parse_size(int(value) if value.isascii() and value.isdigit() else value)
    if not found:
        raise click.BadParameter("the size must not be 0")
    return found


def seconds(value: str) -> float:
    """Parse a time of at least 100 ms, as in a configuration: seconds, or text such as 500ms. Raises BadParameter."""
    given: float | str = value
    with contextlib.suppress(ValueError):
        given = float(value)
    with _bad_parameter():
        found = parse_duration(given)
    if found < 0.1:
        raise click.BadParameter("at least 100ms")
    return found


def binding(value: str) -> tuple[str, int]:
    """Parse NAME=BYTE. Raises BadParameter."""
    name, _, byte = value.partition("=")
    if not name or not (byte.isascii() and byte.isdigit()):
        raise click.BadParameter(f"{value!r} is not of the form NAME=BYTE, such as checksum=4")
    return name, int(byte)


def bindings(option: str, text: str) -> Decorator[Any]:
    """Return a repeatable option NAME=BYTE. The command gets ``records``: record type to type byte, checked."""
    return click.option(
        option, "records", type=binding, multiple=True, metavar="NAME=BYTE", help=text,
        callback=lambda _, __, given: bind_records(load_catalogue(), given, option) if given else {},
    )  # fmt: skip


records = bindings("--record", "Bind a record type to a type byte.")


@attrs.frozen
class RunnerOptions:
    """Values of the options that select a job runner. ``engine`` is the former name of ``runner``."""

    runner: str = AUTO
    engine: str | None = None
    master: str | None = None
    processes: int | None = None

    def run(
        self, out: output.Output, what: str, catalogue: Catalogue, size: int, call: Callable[[JobRunner, output.Bar | None], R]
    ) -> R:
        """Call ``call`` with the runner for ``size`` bytes of input, and return its report. ``what`` is in progress.

        If ``auto`` had a choice, print the choice and its reason on standard error.
        """
        given = {"master": self.master, "processes": self.processes}
        given = {key: value for key, value in given.items() if value is not None}
        name, reason = choose_runner(catalogue, self.engine or self.runner, size, given)
        if reason:
            output.note(f"runner {name}: {reason}")
        with out.progress(what) as bar:
            return call(make_runner(catalogue, name, given), bar)


runner = bundle(
    "runner",
    RunnerOptions,
    runner=click.option("--runner", default=AUTO, metavar="NAME", show_default=True, help="auto (by size), local, or spark."),
    engine=click.option("--engine", metavar="NAME", hidden=True, help="Former name of --runner."),
    master=click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, sc://host:15002."),
    processes=click.option("--processes", type=int, metavar="N", help="Number of worker processes of the local runner."),
)
"""Adds ``--runner``, ``--master`` and ``--processes``. The command gets them as ``runner``."""
