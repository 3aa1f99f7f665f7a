"""Output of all commands: JSON Lines for programs, rich tables for people."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 160
"""Columns of output that does not go to a terminal."""

_encoder = json.JSONEncoder(separators=(",", ":"))
STATE_STYLES = {"clean": "green", "torn": "magenta", "corrupt": "bold red"}


class Terminal(Console):
    """Standard output. Prints paths and ids unchanged: no markup, no highlighting, no word wrap."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = PIPED_WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """Print with rich. Removes trailing blanks unless the output is a terminal."""
        options.setdefault("crop", False)  # otherwise the title of a table may be cropped
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        for line in captured.get().splitlines():
            click.echo(line.rstrip())

    def on_broken_pipe(self) -> None:
        """Pass the exception on, unlike rich, which would end the program."""
        raise  # re-raises BrokenPipeError, which the program converts to an exit code


def emit(value: Mapping[str, Any]) -> None:
    """Print one compact JSON object on its own line."""
    click.echo(as_line(value))


def as_line(value: Mapping[str, Any]) -> str:
    """Return ``value`` as one line of compact JSON."""
    return _encoder.encode(value)


@contextlib.contextmanager
def lines() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints one line of a long list: at once to a terminal, in blocks to a file or pipe."""
    pending: list[str] = []
    block_size = 1 if sys.stdout.isatty() else 500

    def add(line: str) -> None:
        pending.append(line)
        if len(pending) >= block_size:
            click.echo("\n".join(pending))
            pending.clear()

    try:
        yield add
    finally:
        if pending:
            click.echo("\n".join(pending))


def closed(stream: str) -> OSError:
    """Return the error for a standard stream that was closed when Python started."""
    return OSError(errno.EBADF, "is closed", stream)


def note(text: str) -> None:
    """Print one line on standard error."""
    click.echo(f"msgstore: {text}", err=True)


def table(title: str | None, *columns: str, right: str = "") -> Table:
    """Return a plain table. ``right`` lists the numeric columns, separated by blanks."""
    # Most titles are paths. Wrapping would make them hard to copy.
    heading = Text(title, no_wrap=True, overflow="ignore") if title else None
    rows = Table(title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numeric = column in right.split()
        rows.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric, header_style="dim")
    return rows


def state(name: str) -> Text:
    """Return the state of a segment's end, in its colour."""
    return Text(name, style=STATE_STYLES[name])


def count(number: int, style: str = "") -> Text:
    """Return a number, in ``style`` unless it is zero."""
    return Text(f"{number:,}", style=style if number else "dim")


def size(number: int) -> str:
    """Return bytes with a unit, for people."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number:,} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], object] | None]:
    """Yield ``progress(done, total)``, which draws a bar on standard error; None unless standard error is a terminal."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.start()  # only now: most stores open at once
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()
