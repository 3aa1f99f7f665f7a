"""Helpers of core's tests: the command line in this process, directories that brokers wrote, damage."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import support
from msgstore.plugins import loader
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


@contextlib.contextmanager
def installed(site: Path, name: str, entry_points: dict[str, str], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution as pip does, whose modules are in ``site`` already. At the end they are forgotten."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[msgstore]\n{points}")
    patch.setattr(loader, "INSTALLATION_SECONDS", 0)  # it is complete: 15 ms for each command
    patch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield
    packages = {value.split(".")[0] for value in entry_points.values()}
    for module in [module for module in sys.modules if module.split(".")[0] in packages]:
        del sys.modules[module]


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
