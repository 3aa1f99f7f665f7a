"""Output about files of a broker's directory that no command reads: a table, JSON Lines, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable

import click

from msgstore.cli import output
from msgstore.jobs.not_read import NotRead

NOT_READ = 3
"""Exit code if nothing is damaged, but something was recognised and not read."""
_MAX_LISTED_ROWS = 40
"""Entries that are listed for people."""


def emit(found: Iterable[NotRead]) -> None:
    """Print one JSON object per entry."""
    for one in found:
        output.emit(one.as_json())


def show(console: output.Terminal, found: Iterable[NotRead]) -> None:
    """Print a table, unless there are no entries."""
    found = list(found)
    if not found:
        return
    rows = output.table("not read, may contain messages", "path", "what", "files", "size", right="files size")
    for one in found[:_MAX_LISTED_ROWS]:
        rows.add_row(one.path, one.what, output.count(one.files), output.size(one.size), style="yellow")
    console.print()
    console.print(rows)
    if len(found) > _MAX_LISTED_ROWS:
        console.print(f"... and {len(found) - _MAX_LISTED_ROWS:,} more; --json lists them all")


def leave(*, damaged: bool, not_read: Iterable[NotRead] = ()) -> None:
    """Exit with 1 if something is damaged, else with 3 if something was not read. Returns otherwise."""
    code = 1 if damaged else NOT_READ if list(not_read) else 0
    if code:
        click.get_current_context().exit(code)
