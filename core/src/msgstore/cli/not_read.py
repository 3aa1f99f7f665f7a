"""What a broker's directory holds and no verb reads: a table, lines of JSON, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable

import click

from msgstore.cli import output
from msgstore.jobs.not_read import NotRead

NOT_READ = 3
"""Exit code: nothing is damaged, but something was recognised and not read."""
_ROWS = 40
"""More are not listed one by one for people."""


def emit(found: Iterable[NotRead]) -> None:
    for one in found:
        output.emit(one.as_json())


def show(console: output.Terminal, found: Iterable[NotRead]) -> None:
    found = list(found)
    if not found:
        return
    rows = output.table("not read: there may be messages in it", "path", "what", "files", "size", right="files size")
    for one in found[:_ROWS]:
        rows.add_row(one.path, one.what, output.count(one.files), output.size(one.size), style="yellow")
    console.print()
    console.print(rows)
    if len(found) > _ROWS:
        console.print(f"... and {len(found) - _ROWS:,} more; --json lists them all")


def leave(*, damaged: bool, not_read: Iterable[NotRead] = ()) -> None:
    """End the program with 1 if something is damaged, else with 3 if something was not read. Returns if neither is the case."""
    code = 1 if damaged else NOT_READ if list(not_read) else 0
    if code:
        click.get_current_context().exit(code)
