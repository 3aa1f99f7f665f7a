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
from msgstore.scan import SegmentReport

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
        self.intact = True

    def run(self) -> bool:
        """Run all steps. Returns True if no message was lost."""
        for number, (title, command, result, show) in enumerate(self._steps(), 1):
            self.out.emit({"kind": "step", "step": number, "title": title, "command": command, **result})
            self.out.print(f"\n{number}. {title}", "bold", soft_wrap=True)
            self.out.print(f"   $ {command}" if command.startswith("msgstore ") else f"   >>> {command}", "cyan")
            self.out.print()
            if not self.out.as_json:
                show()
        total = len(self.expected)
        verdict = f"all {total} live messages intact" if self.intact else "messages are missing or differ: this is a bug"
        self.out.print(f"\n{verdict}", "bold green" if self.intact else "bold red")
        self.out.emit({"kind": "summary", "messages": total, "intact": self.intact})
        return self.intact

    def _steps(self) -> Iterator[tuple[str, str, dict[str, Any], Callable[[], object]]]:
        """Run one step after another. Yield its title, its command, its result, and a function that shows the result."""
        reports = self._scan()
        records = sum(len(report.scan.records) for report in reports)
        found = {"segments": len(reports), "records": records, "damaged": sum(report.is_damaged for report in reports)}
        title = "Scan what the broker left: two segments of format v1, two of v2. No index is needed."
        yield title, "msgstore scan DIR", found, lambda: scanning.show(self.out, reports)
        counts = [(msg_id, message.references) for msg_id, message in self.expected.items()]
        title = "Draw them. The queues know which records are live: here from 'id,count' lines."
        yield title, "msgstore map DIR --refcounts refcounts.csv", *self._map(counts)
        title = "Adopt it, read every live message, and compare each with the hash from the broker."
        adopted = self._change(
            lambda store: {"messages": store.stats().messages, "garbage_bytes": store.stats().garbage_bytes},
            refcounts=counts,
            adopt=True,
        )
        yield title, "store = msgstore.open_store(DIR, refcounts=counts, adopt=True)", *adopted
        title = "Migrate: every v1 segment is rewritten as a new v2 segment, and deleted."
        yield title, "msgstore migrate DIR --to v2", *self._change(self._migrate)
        title = "Compact: records move from the end of a segment into gaps of the right size, and the end is truncated."
        yield title, "msgstore compact DIR --all", *self._change(self._compact)
        title = "Restart: after a clean shutdown the saved index is used, and nothing is scanned."
        restarted = self._change(lambda store: {"recovery": store.stats().recovery.how})
        yield title, "store = msgstore.open_store(DIR)", *restarted
        yield "The result.", "msgstore map DIR", *self._map(None)

    def _scan(self) -> list[SegmentReport]:
        return list(scanning.scan_inputs(Inputs(self.catalogue).find([self.path])))

    def _map(self, counts: list[tuple[bytes, int]] | None) -> tuple[dict[str, Any], Callable[[], object]]:
        live = live_records(self.path, self.catalogue, counts)
        drawings = [drawing.draw(report, live) for report in self._scan()]
        percents = {one.path.name: one.live_percent for one in drawings}
        return {"live_percent": percents}, lambda: drawing.show(self.out.console, drawings)

    def _change(
        self, change: Callable[[msgstore.Store], dict[str, Any]], **keys: Any
    ) -> tuple[dict[str, Any], Callable[[], object]]:
        """Open the store with these keys, change it, and check every message."""
        with msgstore.open_store(self.path, **keys) as store:
            result = {**change(store), "verified": self._verify(store)}
        rows = ((key.replace("_", " "), self._describe(key, value)) for key, value in result.items())
        return result, lambda: self.out.print(output.facts(None, rows, indent="  "))

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

    def _describe(self, key: str, value: Any) -> str:
        if key == "verified":
            return f"{value} of {len(self.expected)} live messages have the expected hash and count"
        if isinstance(value, list):
            return ", ".join(value) or "none"
        return output.size(value) if key.split("_")[0] in ("bytes", "garbage") else f"{value}"
