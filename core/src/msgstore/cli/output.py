"""Output of all commands: JSON Lines for programs, rich tables for people, notes and progress bars on standard error.

A command describes what it prints once: ``Output.rows`` gets the items and their columns, and prints the objects of the items
with ``--json``, otherwise a table.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from msgstore.jobs.inputs import NO_FORMAT, age_of
from msgstore.jobs.messages.rows import encode
from msgstore.jobs.reports import QUEUE_FILES, NotRead, SpanReport
from msgstore.plugins.blame import PLUGIN_FAILED

PIPED_WIDTH = 160
"""Columns of output that does not go to a terminal."""
LINE_SECONDS = 10
"""Time between two lines of progress, which do not go to a terminal."""
MAX_ROWS = 1000
"""Rows of a table: rich takes milliseconds for each."""
MAX_LISTED = 40
"""Rows of a long list that people get. ``--json`` lists all."""
NOT_READ = 3
"""Exit code if nothing is damaged, but something was recognised and not read."""
_STATE_STYLES = {"clean": "green", "torn": "magenta", "corrupt": "bold red"}

T = TypeVar("T")
Bar = Callable[[int, int], object]
Columns = Mapping[str, Callable[[T], Any]]
"""Heading of a column to the function that returns its cell: text, or a number, which becomes a :func:`count`."""


_CONTROLS = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters but the line feed, other ends of lines, marks that turn the direction of text, and surrogates."""


def visible(text: str) -> str:
    """Return text for a terminal: what would control it is escaped. Names of files and fields of records may be hostile."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(name: str | None) -> str:
    """Return a name for a terminal, in one line; "" if there is none."""
    return "" if name is None else visible(name).replace("\n", "\\n") or "''"


class Terminal(Console):
    """Standard output. Prints paths and ids unchanged, unless they would control the terminal: no markup, no highlighting, no
    word wrap."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = PIPED_WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """Print with rich. Removes trailing blanks unless the output is a terminal."""
        options.setdefault("crop", False)  # otherwise the title of a table may be cropped
        options.setdefault("soft_wrap", not self.is_terminal and all(isinstance(one, str) for one in objects))  # for grep
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        for line in captured.get().splitlines():
            click.echo(line.rstrip())

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        """Pass the exception on, unlike rich, which would end the program."""
        raise  # re-raises BrokenPipeError, which the program converts to an exit code


class Output:
    """Output of one command, in one of two forms. A method for the other form prints nothing."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Terminal()
        self._plugin_failed = False

    def emit(self, *values: Mapping[str, Any]) -> None:
        """For programs: print each value as one line of compact JSON."""
        for value in values if self.as_json else ():
            click.echo(encode(value))

    def print(self, text: Any = "", style: str = "", **options: Any) -> None:
        """For people: print with rich."""
        if not self.as_json:
            self.console.print(text, style=style, **options)

    def rows(
        self,
        title: str | None,
        columns: Columns[T],
        items: Iterable[T],
        as_json: Callable[[T], Mapping[str, Any]] | None = None,
        **look: Any,
    ) -> None:
        """For programs: print the object of each item, if there is ``as_json``. For people: print a table with a row per item,
        of at most MAX_ROWS items.

        Takes one item after another, and keeps no more than MAX_ROWS. ``look``: options of :func:`table`.
        """
        if not self.as_json:
            rest = iter(items)
            self.console.print(table(title, columns, islice(rest, MAX_ROWS), **look))
            self.more(MAX_ROWS + sum(1 for _ in rest), MAX_ROWS)
        elif as_json is not None:
            for item in items:
                self.emit(as_json(item))

    def more(self, total: int, limit: int = MAX_LISTED, noun: str = "more") -> None:
        """For people: say that a list was cut after ``limit`` of ``total`` entries, if it was."""
        if total > limit:
            self.print(f"... and {total - limit:,} {noun}; --json lists them all")

    def damage(self, spans: Sequence[SpanReport], directories: int = 1) -> None:
        """Print the damaged spans in either form, those of a directory by number of the file and offset. People get the
        directories only if there are several, also without damage: ``directories``."""
        paths = [Path(span.path) for span in spans]
        order = {directory: at for at, directory in enumerate(dict.fromkeys(path.parent for path in paths))}
        keys = [(order[path.parent], age_of(path.name), span.offset) for path, span in zip(paths, spans, strict=True)]
        spans = [spans[at] for at in sorted(range(len(spans)), key=keys.__getitem__)]
        self.emit(*(span.as_json() for span in spans))
        self.note_plugin_failures(span.reason for span in spans)
        if not spans:
            self.print("no damage", style="green")
            return
        several = max(len(order), directories) > 1
        spec = f"file=path{'' if several else ':name'} offset:red size:bytes reason"
        title = "segments without a plugin" if all(span.reason.startswith(NO_FORMAT) for span in spans) else "damaged spans"
        self.rows(title, columns(spec), spans[:MAX_LISTED], style="red")
        self.more(len(spans))

    def note_plugin_failures(self, reasons: Iterable[str]) -> None:
        """Let ``finish`` exit with 2 if a plugin that fails or is missing is a reason for damage or a skipped segment."""
        self._plugin_failed |= any(PLUGIN_FAILED in reason or reason.startswith(NO_FORMAT) for reason in reasons)

    def finish(self, *, damaged: bool, not_read: Sequence[NotRead] = (), summary: Mapping[str, Any] | None = None) -> None:
        """Print what was not read and the summary. Exit with 1 for damage, with 2 if a plugin fails or is missing, else with 3
        if something was not read."""
        self.emit(*(one.as_json() for one in not_read), *([] if summary is None else [summary]))
        if not_read:
            self.print()
            spec = "path what files size:bytes"
            self.rows("not read, may contain messages", columns(spec), not_read[:MAX_LISTED], style="yellow")
            self.more(len(not_read))
            if any(one.what in QUEUE_FILES for one in not_read):
                self.print("The messages of the queues: msgstore queues NODE, with the plugin msgstore-rabbitmq-source.", "dim")
        if damaged or not_read:
            click.get_current_context().exit(2 if self._plugin_failed else 1 if damaged else NOT_READ)

    @contextlib.contextmanager
    def lines(self) -> Iterator[Callable[[str | Mapping[str, Any]], object]]:
        """Yield a function that prints a line of a long list, or an object: at once to a terminal, in blocks to a file or
        pipe."""
        try:  # ``click.echo`` would flush every line
            yield lambda line: sys.stdout.write(f"{visible(line) if isinstance(line, str) else encode(line)}\n")
        finally:
            sys.stdout.flush()

    def progress(self, what: str, unit: str | None = None) -> contextlib.AbstractContextManager[Bar | None]:
        """Yield ``progress(done, total)`` as :func:`progress` does; None with ``--json``."""
        return contextlib.nullcontext() if self.as_json else progress(what, unit)


def note(text: str) -> None:
    """Print one line on standard error."""
    click.echo(f"msgstore: {visible(text)}", err=True)


def table(
    title: str | None,
    columns: Columns[T],
    items: Iterable[T],
    *,
    optional: Collection[str] = (),
    style: str = "",
    bold_last: bool = False,
) -> Table:
    """Return a plain table with a row per item.

    A column is numeric, and then never wrapped, if one of its cells is. An ``optional`` column without any text is omitted.
    """
    rows = [[_shown(cell(item)) for cell in columns.values()] for item in items]
    drawn = facts(title, (), header=bool(rows))
    shown = [at for at, name in enumerate(columns) if name not in optional or any(row[at] for row in rows)]
    for at in shown if rows else ():
        numeric = any(getattr(row[at], "justify", "") == "right" for row in rows)
        heading = list(columns)[at]
        drawn.add_column(heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric, header_style="dim")
    for row in rows:
        drawn.add_row(*(row[at] for at in shown), style="bold" if bold_last and row is rows[-1] else style)
    if not rows:
        drawn.add_column()  # without a column, no title is printed
    return drawn


def facts(title: str | Text | None, rows: Iterable[tuple[str, Any]], *, header: bool = False) -> Table:
    """Return a table of names and values without a header."""
    # Most titles are paths. Wrapping would make them hard to copy.
    heading = Text(visible(title), no_wrap=True, overflow="ignore") if isinstance(title, str) else title
    drawn = Table(title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=header)
    for cells in rows:
        drawn.add_row(*cells)
    return drawn


def columns(spec: str, **special: Callable[[Any], Any]) -> Columns[Any]:
    """Return columns by their words: the heading, ``=attribute`` if its name is another, and ``:format`` if it needs one.

    ``_`` in a heading is a blank. ``special``: functions for headings without an attribute. The items are objects or mappings.
    """
    found: dict[str, Callable[[Any], Any]] = {}
    for word in spec.split():
        name, _, form = word.partition(":")
        heading, _, attribute = name.partition("=")
        found[heading.replace("_", " ")] = special.get(heading) or functools.partial(_cell, attribute or heading, form)
    return found


def _shown(value: Any) -> Any:
    """Return a cell as rich takes it. Escaped before the widths of columns are known."""
    return count(value) if isinstance(value, int) else visible(value) if isinstance(value, str) else value


def _cell(attribute: str, form: str, item: Any) -> Any:
    value = item[attribute] if isinstance(item, Mapping) else getattr(item, attribute)
    match form:
        case "bytes":
            return right(size(value))
        case "name":
            return Path(value).name
        case "state":
            return state(value)
        case _:
            return count(value, form) if form else value


def state(name: str) -> Text:
    """Return the state of a segment's end, in its colour if it has one."""
    return Text(name, style=_STATE_STYLES.get(name, ""))


def count(number: int, style: str = "") -> Text:
    """Return a numeric cell, in ``style`` unless the number is zero."""
    return right(f"{number:,}", style if number else "dim")


def right(text: str, style: str = "") -> Text:
    """Return the cell of a numeric column."""
    return Text(text, style=style, justify="right")


def size(number: int) -> str:
    """Return bytes with a unit, for people."""
    unit, suffix = pick_unit_and_suffix(number, ["B", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{number:,} B" if unit == 1 else f"{number / unit:.1f} {suffix}"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def progress(what: str, unit: str | None = None) -> Iterator[Bar]:
    """Yield ``progress(done, total)``, which draws a bar on standard error, or prints a line there every ten seconds.

    With a ``unit``, both show the two numbers and no share, because a share falls when the total grows.
    """
    if not sys.stderr.isatty():
        yield _progress_lines(what, unit)
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    if unit:
        columns = [TextColumn(f"{{task.description}}: {{task.completed:,}} of {{task.total:,}} {unit}")]
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        bar.start()  # only now: most stores open at once

    try:
        yield show
    finally:
        bar.stop()


def _progress_lines(what: str, unit: str | None) -> Bar:
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= LINE_SECONDS:
            last = now
            note(f"{what}: {done:,} of {total:,} {unit}" if unit else f"{what}: {100 * done // max(done, total, 1)} %")

    return show
