"""What all verbs print with: JSON Lines for programs, rich tables for people."""

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
"""Columns for output that does not go to a terminal."""

_encoder = json.JSONEncoder(separators=(",", ":"))
STATE_STYLES = {"clean": "green", "torn": "magenta", "corrupt": "bold red"}


class Terminal(Console):
    """Standard output. Paths and ids are printed as they are: no markup, no highlighting, no wrapping of words."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = PIPED_WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints; what goes to a file has no blanks at the ends of lines."""
        options.setdefault("crop", False)  # of a table that fits, this is the title
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        for line in captured.get().splitlines():
            click.echo(line.rstrip())

    def on_broken_pipe(self) -> None:
        raise  # what is being handled: the program ends quietly, with an exit code of its own


def emit(value: Mapping[str, Any]) -> None:
    """One compact JSON object on a line of its own."""
    click.echo(as_line(value))


def as_line(value: Mapping[str, Any]) -> str:
    return _encoder.encode(value)


@contextlib.contextmanager
def lines() -> Iterator[Callable[[str], None]]:
    """For a long list: a call for each line, which a terminal gets at once, and a file or a pipe in blocks."""
    waiting: list[str] = []
    block = 1 if sys.stdout.isatty() else 500

    def add(line: str) -> None:
        waiting.append(line)
        if len(waiting) >= block:
            click.echo("\n".join(waiting))
            waiting.clear()

    try:
        yield add
    finally:
        if waiting:
            click.echo("\n".join(waiting))


def closed(stream: str) -> OSError:
    """What to raise where Python found the descriptor of a standard stream closed when it started."""
    return OSError(errno.EBADF, "is closed", stream)


def note(text: str) -> None:
    """One line on standard error."""
    click.echo(f"msgstore: {text}", err=True)


def table(title: str | None, *columns: str, right: str = "") -> Table:
    """A plain table. ``right`` names the columns of numbers, separated by blanks."""
    # A title is a path, more often than not: whoever copies it wants it in one piece, however narrow the table.
    heading = Text(title, no_wrap=True, overflow="ignore") if title else None
    made = Table(title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numeric = column in right.split()
        made.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric, header_style="dim")
    return made


def state(name: str) -> Text:
    """The state of a segment's end, in its colour."""
    return Text(name, style=STATE_STYLES[name])


def count(number: int, style: str = "") -> Text:
    """A number that catches the eye only if it is not zero."""
    return Text(f"{number:,}", style=style if number else "dim")


def size(number: int) -> str:
    """Bytes for people."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number:,} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], object] | None]:
    """A bar on standard error for a call that takes ``progress(done, total)``; None unless a person is watching."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.start()  # not before: most stores open without anything to wait for
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()
