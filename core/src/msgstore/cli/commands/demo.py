"""Command ``demo``: the main commands, on a directory that RabbitMQ wrote. It is part of the distribution."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from importlib import resources
from pathlib import Path

import click

import msgstore
from msgstore.cli import options, output
from msgstore.cli.commands.compact import compact, migrate
from msgstore.cli.commands.info import info
from msgstore.cli.commands.map import map_
from msgstore.cli.commands.scan import scan
from msgstore.contract import MsgStoreError, StoreError

_DATA = resources.files("msgstore.demo")
_STEPS = (
    ("Scan what the broker left: two segments of format v1, two of v2. No index is needed.", scan, "DIR"),
    ("Draw them. The queues know which records are live: here from 'id,count' lines.", map_, "DIR --refcounts COUNTS"),
    ("Adopt and migrate it: every v1 segment is rewritten as a new v2 segment, and deleted.",
     migrate, "DIR --to v2 --adopt --refcounts COUNTS"),
    ("Compact: records move from the end of a segment into gaps of the right size, and the end is truncated.",
     compact, "DIR --all"),
    ("Restart: after a clean shutdown the saved index is used, and nothing is scanned.", info, "DIR"),
    ("The result.", map_, "DIR"),
)  # fmt: skip
"""Title, command and arguments of each step."""
_CHECKED_FROM = 3
"""First step after which the messages are compared: earlier ones only read the broker's directory."""


@click.command()
@options.file(
    "--dir", "directory", metavar="DIR", help="Work in DIR and leave the store there. DIR must not exist or must be empty."
)
@options.as_json
def demo(directory: Path | None, out: output.Output) -> None:
    """Inspect, adopt, migrate, compact and restart a directory that RabbitMQ wrote, without losing a message.

    \b
    Examples:
      msgstore demo
      msgstore demo --dir /tmp/tour
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise StoreError(f"{directory}: is not empty. Choose a new directory.")
    expected = expected_messages()
    intact = True
    with contextlib.ExitStack() as stack:
        counts = stack.enter_context(resources.as_file(_DATA / "refcounts.csv"))
        shipped = stack.enter_context(resources.as_file(_DATA / "mixed_upgrade"))
        store = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="msgstore-demo-"))) / "store"
        shutil.copytree(shipped, store, copy_function=shutil.copyfile, dirs_exist_ok=True)  # not its permissions
        for number, (title, command, arguments) in enumerate(_STEPS, 1):
            line = f"msgstore {command.name} {arguments}"
            out.emit({"kind": "step", "step": number, "title": title, "command": line})
            out.print(f"\n{number}. {title}", "bold", soft_wrap=True)
            out.print(f"   $ {line}\n", "cyan")
            places = {"DIR": str(store), "COUNTS": str(counts)}
            words = [places.get(word, word) for word in arguments.split()] + ["--json"] * out.as_json
            intact &= not command.main(words, prog_name=line, standalone_mode=False)
            if number >= _CHECKED_FROM:
                verified = _count_intact(store, expected)
                intact &= verified == len(expected)
                out.emit({"kind": "verified", "step": number, "messages": verified})
                out.print(f"\n   {verified} of {len(expected)} live messages have the expected hash and count")
    verdict = f"all {len(expected)} live messages intact" if intact else "messages are missing or differ: this is a bug"
    out.print(f"\n{verdict}", "bold green" if intact else "bold red")
    out.finish(damaged=not intact, summary={"kind": "summary", "messages": len(expected), "intact": intact})


def expected_messages() -> dict[bytes, tuple[int, str]]:
    """Return the live messages of the shipped store, as the broker recorded them: id to (references, hash of the body)."""
    lines = (_DATA / "refcounts.csv").read_text(encoding="ascii").split()[1:]
    fields = [line.split(",") for line in lines]
    return {bytes.fromhex(msg_id): (int(references), sha256) for msg_id, references, sha256 in fields}


def _count_intact(directory: Path, expected: dict[bytes, tuple[int, str]]) -> int:
    """Return the number of expected messages in a store whose body and count are unchanged."""
    intact = 0
    with msgstore.open_store(directory, mode="r") as store:
        for entry in store.entries():
            with contextlib.suppress(MsgStoreError):  # the broker's data has hashes of stored bodies
                message = entry.references, hashlib.sha256(store.stored_body(entry)).hexdigest()
                intact += expected.get(entry.msg_id) == message
    return intact
