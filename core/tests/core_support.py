"""Helpers of core's tests: the command line in this process, directories that brokers wrote, damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import Result

import support
from support import DATA, command, json_of, slow

BROKER = DATA / "msg-store"
"""Directories with a store of RabbitMQ's and a manifest that says what is in it."""
_TYPICAL = ("mixed_upgrade", "v2_compacted", "v2_dirty_torn")
STORES = [
    *_TYPICAL,
    *(slow(name) for name in sorted(path.parent.name for path in BROKER.glob("*/store")) if name not in _TYPICAL),
]
Rows = list[dict[str, Any]]
run = partial(command, code=None, columns=200)
rows_of = json_of


def objects(result: Result | str) -> Rows:
    """Return the objects that ``--json`` printed."""
    return [json.loads(line) for line in (result if isinstance(result, str) else result.stdout).splitlines()]


def refused(*arguments: object) -> str:
    """Return the one line that the program says of misuse."""
    result = run(*arguments, code=2)
    assert (result.stdout, result.stderr.count("\n"), result.stderr[:10]) == ("", 1, "msgstore: "), result.output
    return result.stderr


def columns(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def store_of(name: str) -> Path:
    return BROKER / name / "store"


def manifest_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BROKER / name / "manifest.json").read_text())
    return found


def copy_of(name: str, to: Path) -> Path:
    return Path(shutil.copytree(store_of(name), to))


def counts_of(name: str, to: Path, keep: Callable[[dict[str, Any]], bool] = lambda message: True) -> Path:
    """Write a file of the references that the broker had, of the messages to ``keep``."""
    live = [message for message in manifest_of(name)["messages"] if message["refcount"] and keep(message)]
    to.write_text("id,count\n" + "".join(f"{message['id']},{message['refcount']}\n" for message in live))
    return to


def live_of(name: str) -> dict[str, tuple[int, str]]:
    """References and digest of each live message; not of the one that was torn."""
    manifest = manifest_of(name)
    torn = manifest.get("torn", {}).get("id")
    live = [m for m in manifest["messages"] if m["refcount"] and m["confirmed"] and m["id"] != torn]
    return {m["id"]: (m["refcount"], m["body_sha256"]) for m in live}


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = [path for path in [directory, *directory.rglob("*")] if path.exists()]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def flip(path: Path, offset: int, bits: int = 1, *, unseen: bool = False) -> bytes:
    return support.flip(path, offset, bits, unseen=unseen)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a replacement for a function that raises ``error``."""

    def fail(*arguments: object, **options: object) -> Any:
        raise error

    return fail
