"""Command ``rabbitmq``: verbs for the data directory of a node. None of them writes into it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path, PurePosixPath

import click

from msgstore.contract import StoreError
from msgstore_rabbitmq_source.check import check_node, in_words
from msgstore_rabbitmq_source.definitions import definitions_of
from msgstore_rabbitmq_source.layout import NodeFiles
from msgstore_rabbitmq_source.naming import text
from msgstore_rabbitmq_source.opening import open_node
from msgstore_rabbitmq_source.repair import repair_node
from msgstore_rabbitmq_source.report import page_of
from rabbitmq_files import names

_NODE = click.Path(path_type=Path, exists=True, file_okay=False)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _say(line: str) -> None:
    """Print a line. Names in it may have control characters, which must not reach a terminal."""
    click.echo("".join(char if char.isprintable() else repr(char)[1:-1] for char in line))


@click.group()
def rabbitmq() -> None:
    """Look at a RabbitMQ node that does not boot, and prepare its rescue. NODE is its data directory, or a copy.

    Nothing is ever written into NODE. The messages themselves: queues, messages and convert.
    """


@rabbitmq.command()
@click.argument("node", type=_NODE)
@_as_json
def check(node: Path, as_json: bool) -> None:
    """Say what is in NODE, what can be read, what is lost, and what to do next.

    Reads every message. Exit code 1 for damage, 3 if something was recognised and not read.

    \b
    Examples:
      msgstore rabbitmq check /var/lib/rabbitmq/mnesia/rabbit@host
    """
    with open_node(node) as source:
        found = check_node(node, source)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        for line in in_words(found):
            _say(line)
    click.get_current_context().exit(found.exit_code)


@rabbitmq.command()
@click.argument("node", type=_NODE)
@click.option("--html", "page", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The page to write.")
def report(node: Path, page: Path) -> None:
    """Write one HTML page with the whole node: virtual hosts, queues, segments, damage.

    Reads every message. The page loads nothing. Exit codes as for check.

    \b
    Examples:
      msgstore rabbitmq report NODE --html node.html
    """
    if page.resolve().is_relative_to(node.resolve()):
        raise StoreError(f"{page}: is in {node}, in which nothing is written. Name a file elsewhere.")
    with open_node(node) as source:
        found = check_node(node, source)
        content = page_of(source, found)
    partial = page.with_name(f".{page.name}.part")
    partial.write_text(content, encoding="utf-8")
    partial.replace(page)
    _say(f"{page}: written")
    click.get_current_context().exit(found.exit_code)


@rabbitmq.command()
@click.argument("node", type=_NODE)
@click.option("--vhost", metavar="NAME", help="The store of this virtual host only. Default: all.")
def counts(node: Path, vhost: str | None) -> None:
    """Print how many queue entries refer to each message of the shared stores, as lines id,count.

    That is what --refcounts of map, inventory, reconcile and others takes: it tells live messages from consumed ones.

    \b
    Examples:
      msgstore rabbitmq counts NODE > counts.csv
      msgstore reconcile NODE --deltas counts.csv
    """
    with open_node(node) as source:
        vhosts = {files: text(name) for files, name in source.node.vhost_names.items() if name is not None}
        if vhost is not None and vhost not in vhosts.values():
            raise StoreError(f"{node}: has no vhost {vhost!r}. There are: {', '.join(sorted(vhosts.values()))}")
        found = Counter[bytes]()
        for files in source.node.files.vhosts.values():
            if vhost is None or vhosts.get(files.directory) == vhost:
                found.update(source.node.references(files))
        for msg_id, count in found.items():
            click.echo(f"{msg_id.hex()},{count}")
        damage = [*source.node.damage(), *source.node.index_damage()]
    for span in damage:
        click.echo(f"{span.file} at {span.offset}: {span.reason}: the counts may be too low", err=True)
    click.get_current_context().exit(1 if damage else 0)


@rabbitmq.command()
@click.argument("node", type=_NODE)
@click.option("--with-password-hashes", is_flag=True, help="Include the hashes of the users' passwords.")
def definitions(node: Path, with_password_hashes: bool) -> None:
    """Print vhosts, queues, exchanges, bindings, policies and users of NODE, for rabbitmqctl import_definitions.

    They come from the node's own tables. Users are without passwords, unless you ask for the hashes: an import then removes
    the passwords of users with the same names, such as guest.

    \b
    Examples:
      msgstore rabbitmq definitions NODE > definitions.json
    """
    with open_node(node) as source:
        tables = source.node.tables
        if source.node.has_khepri:
            raise StoreError(
                f"{node}: has tables in Khepri, which are not read. Boot the old broker on a copy, and export them."
            )
        unread = [f"{file}: {reason}" for file, reason in source.node.unreadable.items()]
        if unread and not tables.is_present:
            raise StoreError(f"{node / unread[0]}")
        if not tables.is_present:
            raise StoreError(f"{node}: has no tables (LATEST.LOG, *.DCD, *.DCL), so nothing says how its queues were declared.")
        found, problems = definitions_of(tables, with_password_hashes=with_password_hashes)
    click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    for file, offset, size, reason in tables.damage:
        click.echo(f"{file}: {size} bytes at {offset} {reason}", err=True)
    if not with_password_hashes and found["users"]:
        users = ", ".join(user["name"] for user in found["users"])
        click.echo(
            f"without passwords: {users}. An import removes the passwords of such users: then use rabbitmqctl change_password.",
            err=True,
        )
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)
    if tables.damage or problems:
        click.get_current_context().exit(1)


@rabbitmq.command()
@click.argument("node", type=_NODE)
@click.argument("copy", type=click.Path(path_type=Path))
def repair(node: Path, copy: Path) -> None:
    """Copy NODE to COPY, which the broker that wrote it boots on again, and say what is different.

    Damaged segments are written anew, damaged indexes lose what is damaged, and messages that cannot be read are left out.
    Exit code 1 if something was. Then give COPY the owner of NODE, and start the same version under the same node name.

    \b
    Examples:
      msgstore rabbitmq repair NODE COPY
    """
    with open_node(node) as source:
        changes = repair_node(source, node, copy)
        name, damage = source.node.tables.node, [*source.node.damage(), *source.node.index_damage()]
    for change in changes:
        _say(change)
    start = f"RABBITMQ_NODENAME={name}" if name else "the node name of the original"
    what = f"{len(changes):,} changes" if changes else "nothing is damaged: the copy is equal"
    if damage and not changes:
        what = f"{len(damage):,} damages, of which none can be mended: the copy is equal. See: msgstore rabbitmq check"
    _say(f"{copy}: {what}. Give it the owner of {node}, and start the same version with {start}.")
    click.get_current_context().exit(1 if changes or damage else 0)


@rabbitmq.command()
@click.argument("node", type=_NODE)
@click.argument("vhost")
@click.argument("queue", required=False)
@_as_json
def path(node: Path, vhost: str, queue: str | None, as_json: bool) -> None:
    """Print the directory of a vhost, or of a queue, which is a hash of the name. Exit code 1 if it is not there.

    \b
    Examples:
      msgstore rabbitmq path NODE / orders
    """
    with open_node(node) as source:
        found = paths_of(source.node.files, os.fsencode(vhost), None if queue is None else os.fsencode(queue))
        notes = [span.reason for span in source.node.name_damage if any(span.file.startswith(one) for one in found)]
    there = bool(found)
    if as_json:
        click.echo(json.dumps({"kind": "path", "paths": [str(node / one) for one in found], "notes": notes}))
    for one in () if as_json else found:
        _say(str(node / one))
    for note in () if as_json else notes:
        click.echo(note, err=True)
    if not there:
        raw = os.fsencode(vhost)
        hashed = names.vhost_directory(raw) if queue is None else names.queue_directory(raw, os.fsencode(queue))
        click.echo(f"{node}: there is no {hashed}. A queue that never held a message has no directory.", err=True)
    click.get_current_context().exit(0 if there else 1)


def paths_of(node: NodeFiles, vhost: bytes, queue: bytes | None) -> list[str]:
    """Return the directory of a vhost, or those of a queue and its priorities."""
    if queue is None:
        return [one for one in node.vhosts if PurePosixPath(one).name == names.vhost_directory(vhost)]
    parts = [queue, *(names.sub_queue(queue, priority) for priority in range(256))]
    wanted = {make(vhost, part) for part in parts for make in (names.queue_directory, names.old_queue_directory)}
    return [one for files in node.vhosts.values() for one in files.queues if PurePosixPath(one).name in wanted]
