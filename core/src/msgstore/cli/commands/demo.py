"""Command ``demo``: the main commands, on a directory that RabbitMQ wrote. It is part of the distribution."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import click

import msgstore
from msgstore.cli import options, output
from msgstore.cli.commands import map as drawing
from msgstore.cli.commands import scan as scanning
from msgstore.cli.inputs import Inputs
from msgstore.cli.spans import live_records
from msgstore.contract import MsgStoreError, StoreError
from msgstore.plugins.catalogue import Catalogue, load_catalogue

_DATA = "msgstore.demo"


@attrs.frozen
class ExpectedMessage:
    """References and body hash of one live message, from the broker's data."""

    references: int
    body_sha256: str


@click.command()
@options.file(
    "--dir", "directory", metavar="DIR", help="Work in DIR and leave the store there. DIR must not exist or must be empty."
)
@options.as_json
def demo(directory: Path | None, out: output.Output) -> None:
    """Inspect, check, serve, migrate and compact a directory that RabbitMQ wrote, without losing a message.

    \b
    Examples:
      msgstore demo
      msgstore demo --dir /tmp/tour
    """
    with _working_copy(directory) as store:
        intact = _Demonstration(store, load_catalogue(), out).run()
    out.finish(damaged=not intact)


@contextlib.contextmanager
def _working_copy(directory: Path | None) -> Iterator[Path]:
    """Yield a copy of the shipped store that can be changed. A temporary copy is deleted at the end."""
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise StoreError(f"{directory}: is not empty. Choose a new directory.")
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="msgstore-demo-"))) / "store"
        directory.mkdir(parents=True, exist_ok=True)
        with resources.as_file(resources.files(_DATA) / "mixed_upgrade") as shipped:
            for file in sorted(shipped.iterdir()):
                shutil.copyfile(file, directory / file.name)
        yield directory


def expected_messages() -> dict[bytes, ExpectedMessage]:
    """Return the live messages of the shipped store, as the broker recorded them."""
    lines = (resources.files(_DATA) / "refcounts.csv").read_text(encoding="ascii").split()[1:]
    fields = [line.split(",") for line in lines]
    return {bytes.fromhex(msg_id): ExpectedMessage(int(references), body_sha256) for msg_id, references, body_sha256 in fields}


class _Demonstration:
    """The steps: each shows a command, and checks that every live message is unchanged."""

    def __init__(self, store: Path, catalogue: Catalogue, out: output.Output) -> None:
        self.path = store
        self.catalogue = catalogue
        self.out = out
        self.expected = expected_messages()
        self.counts = [(msg_id, message.references) for msg_id, message in self.expected.items()]
        self.intact = True
        self._number = 0

    def run(self) -> bool:
        """Run all steps. Returns True if no message was lost."""
        self._scan()
        self._change(
            "Adopt it, read every live message, and compare each with the hash from the broker.",
            "store = msgstore.open_store(DIR, refcounts=counts, adopt=True)",
            lambda store: {"messages": store.stats().messages, "garbage_bytes": store.stats().garbage_bytes},
            refcounts=self.counts,
            adopt=True,
        )
        self._change(
            "Migrate: every v1 segment is rewritten as a new v2 segment, and deleted.",
            "msgstore migrate DIR --to v2",
            self._migrate,
        )
        self._change(
            "Compact: records move from the end of a segment into gaps of the right size, and the end is truncated.",
            "msgstore compact DIR --all",
            self._compact,
        )
        self._change(
            "Restart: after a clean shutdown the saved index is used, and nothing is scanned.",
            "store = msgstore.open_store(DIR)",
            lambda store: {"recovery": store.stats().recovery.how},
        )
        self._step("The result.", *self._map(refcounts=False))
        total = len(self.expected)
        verdict = f"all {total} live messages intact" if self.intact else "messages are missing or differ: this is a bug"
        self.out.print(f"\n{verdict}", "bold green" if self.intact else "bold red")
        self.out.emit({"kind": "summary", "messages": total, "intact": self.intact})
        return self.intact

    def _scan(self) -> None:
        reports = list(scanning.scan_inputs(Inputs(self.catalogue).find([self.path])))
        records = sum(len(report.scan.records) for report in reports)
        self._step(
            "Scan what the broker left: two segments of format v1, two of v2. No index is needed.",
            "msgstore scan DIR",
            {"segments": len(reports), "records": records, "damaged": sum(report.is_damaged for report in reports)},
        )
        if not self.out.as_json:
            scanning.show(self.out, reports)
        self._step("Draw them. The queues know which records are live: here from 'id,count' lines.", *self._map())

    def _map(self, *, refcounts: bool = True) -> tuple[str, dict[str, Any]]:
        live = live_records(self.path, self.catalogue, self.counts if refcounts else None)
        drawings = [drawing.draw(report, live) for report in scanning.scan_inputs(Inputs(self.catalogue).find([self.path]))]
        self._drawings = drawings
        command = "msgstore map DIR" + (" --refcounts refcounts.csv" if refcounts else "")
        return command, {"live_percent": {one.path.name: one.live_percent for one in drawings}}

    def _change(self, title: str, command: str, change: Callable[[msgstore.Store], dict[str, Any]], **keys: Any) -> None:
        """Open the store with these keys, change it, check every message, and show what ``change`` returned."""
        with msgstore.open_store(self.path, **keys) as store:
            result = change(store)
            verified = self._verify(store)
        self._step(title, command, {**result, "verified": verified})

    def _migrate(self, store: msgstore.Store) -> dict[str, Any]:
        migrated = [found.file for found in store.migrate()]
        left = sorted(path.name for path in self.path.glob("*.rdq"))
        self.intact &= not left
        return {"migrated": migrated, "v1_left": left}

    def _compact(self, store: msgstore.Store) -> dict[str, Any]:
        before = store.stats().bytes_on_disk
        store.compact(everything=True)
        return {"bytes_before": before, "bytes_after": store.stats().bytes_on_disk}

    def _verify(self, store: msgstore.Store) -> int:
        """Return the number of expected messages whose body and count are unchanged."""
        verified = 0
        for msg_id, message in self.expected.items():
            entry = store.entry(msg_id)
            if entry is None:
                continue
            try:
                body = store.stored_body(entry)  # the broker's data has hashes of stored bodies
            except MsgStoreError:
                continue
            same = hashlib.sha256(body).hexdigest() == message.body_sha256
            verified += same and store.references(msg_id) == message.references
        self.intact &= verified == len(self.expected) and store.stats().messages == verified
        return verified

    def _step(self, title: str, command: str, result: dict[str, Any]) -> None:
        self._number += 1
        self.out.emit({"kind": "step", "step": self._number, "title": title, "command": command, **result})
        self.out.print(f"\n{self._number}. {title}", "bold", soft_wrap=True)
        self.out.print(f"   $ {command}" if command.startswith("msgstore ") else f"   >>> {command}", "cyan")
        self.out.print()
        if "live_percent" in result and not self.out.as_json:
            drawing.show(self.out.console, self._drawings)
        elif "records" not in result:
            rows = ((key.replace("_", " "), self._describe(key, value)) for key, value in result.items())
            self.out.print(output.facts(None, rows, indent="  "))

    def _describe(self, key: str, value: Any) -> str:
        if key == "verified":
            return f"{value} of {len(self.expected)} live messages have the expected hash and count"
        if isinstance(value, list):
            return ", ".join(value) or "none"
        return output.size(value) if key.split("_")[0] in ("bytes", "garbage") else f"{value}"
