"""Commands ``vhost ls|add|stop|start|delete|check``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output
from msgstore.contract import ConfigError, StoreError
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.commands.checking import check_vhost
from msgstore_queues.commands.target import Where, in_directory
from msgstore_queues.config import load_config
from msgstore_queues.vhosts import (
    FoundVHost,
    delete_vhost,
    find_vhosts,
    queue_names,
    start_vhost,
    stop_vhost,
)

_NAME = click.argument("name", metavar="[VHOST]", required=False)


@click.group()
def vhost() -> None:
    """Manage vhosts: groups of queues that share their message stores, their flushes and one process.

    WHERE is a directory, and VHOST one in it, by default /. With --config FILE, WHERE is the name of a table [vhosts.NAME].
    No command serves a vhost: the process that opens it does.
    """


@vhost.command()
@in_directory
@options.as_json
def ls(where: Where, out: output.Output) -> None:
    """List the vhosts. Locks nothing, and writes nothing.

    Each is open (a process has it), closed, crashed (the next opening reads all queues), or stopped.

    \b
    Examples:
      msgstore vhost ls data
    """
    found = where.find_all()
    rows = [
        {
            "kind": "vhost", "vhost": one.name, "state": one.state, "pid": one.pid, "stopped": one.is_stopped,
            "queues": len(queue_names(one)), "path": str(one.directory),
        }
        for one in found
    ]  # fmt: skip
    columns = output.columns("vhost state process queues path", process=_process)
    out.rows(where.where, columns, rows, dict, optional=("process",))


@vhost.command()
@in_directory
@_NAME
@options.as_json
def add(where: Where, name: str | None, out: output.Output) -> None:
    """Make a vhost, and with --config the queues of its table.

    \b
    Examples:
      msgstore vhost add data
      msgstore vhost add work --config msgstore.toml
    """
    target = where.target(name)
    if target.path.is_dir() and any(one.name == target.vhost for one in find_vhosts(target.path)):
        raise StoreError(f"{target.path}: has the vhost {target.vhost!r} already")
    if target.config is not None and (errors := check_vhost(target.config, target.table, load_catalogue())):
        raise ConfigError(errors[0])  # before anything is made
    with target.open(out) as opened:
        queues = len(opened.queues())
    _report(target.find(), "added", out, {"queues": queues}, output.plural(queues, "queue"))


@vhost.command()
@in_directory
@_NAME
@options.as_json
def stop(where: Where, name: str | None, out: output.Output) -> None:
    """Let nobody open a vhost until it is started. A process that has it open goes on until it ends.

    \b
    Examples:
      msgstore vhost stop data orders
    """
    found = where.target(name).find()
    stop_vhost(found)
    holder = f"process {found.pid}" if found.pid else "a process"
    text = f"{holder} has it open until it ends" if found.is_open else "nobody has it open"
    _report(found, "stopped", out, {"open": found.is_open, "pid": found.pid}, text)


@vhost.command()
@in_directory
@_NAME
@options.as_json
def start(where: Where, name: str | None, out: output.Output) -> None:
    """Let a stopped vhost be opened again. Opens and closes it once, so that a recovery is done and its errors are seen.

    \b
    Examples:
      msgstore vhost start data orders
    """
    target = where.target(name)
    found = target.find()
    start_vhost(found)
    if found.is_open:
        _report(found, "started", out, {"queues": None, "messages": None}, "a process has it open already")
        return
    with target.open(out) as opened:
        queues = [opened.queue(one) for one in queue_names(found)]
        messages = sum(len(one) for one in queues)
    text = f"{output.plural(len(queues), 'queue')} with {output.plural(messages, 'message')}"
    _report(found, "started", out, {"queues": len(queues), "messages": messages}, text)


@vhost.command()
@in_directory
@_NAME
@click.option("--yes", is_flag=True, help="Delete it.")
@options.as_json
def delete(where: Where, name: str | None, yes: bool, out: output.Output) -> None:
    """Stop a vhost, and delete it with all its messages. No process may have it open.

    \b
    Examples:
      msgstore vhost delete data orders --yes
    """
    target = where.target(name)
    found = target.find()
    queues = len(queue_names(found))
    if not yes:
        what = f"would delete the vhost {found.name!r} with {output.plural(queues, 'queue')} and all messages"
        raise StoreError(f"{found.directory}: {what}. Repeat the command with --yes.")
    delete_vhost(found)
    _report(found, "deleted", out, {"queues": queues}, output.plural(queues, "queue"))


@vhost.command()
@options.file("--config", "config_file", default=Path("msgstore.toml"), show_default=True, help="The file to check.")
@options.as_json
def check(config_file: Path, out: output.Output) -> None:
    """Check the tables of vhosts, as config check does for all: every key, and that named backends are installed.

    \b
    Examples:
      msgstore vhost check --config msgstore.toml
    """
    config, catalogue, failed = load_config(config_file), load_catalogue(), False
    for name in config.names:
        errors = check_vhost(config, name, catalogue)
        failed |= bool(errors)
        path = None if name in config.wrong else str(config.vhost(name).path)
        out.emit({"vhost": name, "path": path, "ok": not errors, "errors": errors})
        for error in () if out.as_json else errors:
            output.note(error)
        if not errors:
            out.print(f"{name}: ok ({path})", soft_wrap=True)
    if failed:
        click.get_current_context().exit(2)


def _process(row: Mapping[str, Any]) -> str:
    return "" if row["pid"] is None else str(row["pid"])


def _report(found: FoundVHost, what: str, out: output.Output, members: dict[str, object], text: str) -> None:
    out.emit({"kind": what, "vhost": found.name, "path": str(found.directory), **members})
    out.print(f"{found.name}: {what} ({text})")
