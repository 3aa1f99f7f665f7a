"""Command ``find``. It is a ``click.Command`` like any other; msgstore reports errors and Ctrl-C for it."""

from __future__ import annotations

import json
from pathlib import Path

import click

import msgstore
from msgstore.contract import CorruptRecord, MessageNotFound


@click.command()
@click.argument("store")
@click.argument("text")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Configuration in which STORE is a name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def find(store: str, text: str, config: Path | None, as_json: bool) -> None:
    """Print the id of each message whose body contains TEXT. Exit code 1 if a message is damaged.

    \b
    Examples:
      msgstore find data/orders "pay 10"
      msgstore find orders "pay 10" --config msgstore.toml
    """
    wanted, damaged = text.encode(), False
    found = msgstore.load_config(config).open(store, mode="r") if config else msgstore.open_store(store, mode="r")
    with found as opened, opened.client() as client:
        for entry in opened.entries():
            try:
                body = client.read(entry.msg_id)
            except MessageNotFound:  # removed meanwhile by another process
                continue
            except CorruptRecord as error:
                click.echo(f"damaged: {error}", err=True)
                damaged = True
                continue
            if wanted in body:
                row = {"id": entry.msg_id.hex(), "size": len(body), "refs": entry.references}
                click.echo(json.dumps(row) if as_json else row["id"])
    if damaged:
        click.get_current_context().exit(1)
