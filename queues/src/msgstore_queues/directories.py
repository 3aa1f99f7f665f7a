"""Directories of vhosts and queues, as RabbitMQ has them, and the two small files in which msgstore-queues remembers things.

::

    PATH/msg_stores/vhosts/<hash of the vhost>/
        .vhost                    name of the vhost
        msgstore-vhost.json       after a clean stop: the terms of each queue, and how many messages it has
        msgstore-vhost.stopped    if there: the vhost is not opened
        msg_store_persistent/     bodies of large persistent messages
        msg_store_transient/      bodies of large transient messages; emptied at each opening
        queues/<hash of the queue>/
            .queue_name           names of vhost and queue
            msgstore-queue.json   backing queue, index, and whether the queue is durable

A queue with priorities has one more directory for each, a sub-queue: its name is that of the queue, a zero byte, and the
priority as a byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import ConfigError, StoreError
from msgstore.files import Files
from msgstore.option_values import Backend
from rabbitmq_files.index_v1 import SEGMENT_ENTRIES
from rabbitmq_files.names import (
    encode_queue_name,
    queue_directory,
    read_queue_name,
    read_segment_entries,
    split_sub_queue,
    sub_queue,
    vhost_directory,
)

VHOST_FILE, QUEUE_FILE, STOPPED_FILE = "msgstore-vhost.json", "msgstore-queue.json", "msgstore-vhost.stopped"
PERSISTENT, TRANSIENT, QUEUES = "msg_store_persistent", "msg_store_transient", "queues"
_VERSION = 1
_MEMBERS = ("name", "backing", "index", "durable", "level", "options", "base")
_KINDS = (str, str, str, bool, int | None, dict, str)
_INDEX_FILES = {".qi": "v2", ".idx": "v1", ".jif": "v1"}
"""Ends of names to the index that has such files."""


@attrs.frozen
class Remembered:
    """What the directory of a queue says of it."""

    name: str
    backing: str
    index: str
    durable: bool
    level: int | None = None
    """Priority of a sub-queue. None: a whole queue."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of the backing queue, as values that JSON has. Those of a sub-queue are among those of its queue."""
    base: str = ""
    """Directory to which paths among them are relative."""

    @property
    def full_name(self) -> bytes:
        return self.name.encode() if self.level is None else sub_queue(self.name.encode(), self.level)

    def with_backing(self, backing: Backend, where: str) -> Remembered:
        """Return the same with another backing queue, or other options of it. Raises ConfigError."""
        try:
            options = json.loads(json.dumps(dict(backing.options), default=_plain))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where} backing: cannot be remembered in the directory: {error}") from error
        base = str(backing.base.absolute()) if options else ""
        return attrs.evolve(self, backing=backing.name, options=options, base=base)

    def chosen(self, asked: Backend) -> Backend:
        """Return the backing queue that is asked for, or this one if none is named."""
        return asked if asked.named else Backend(self.backing, self.options, base=Path(self.base))


def _plain(value: object) -> object:
    """Return a value of an option as one that JSON has."""
    if isinstance(value, Backend):
        return {"use": value.name, **value.options}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not a value of a configuration")


def vhost_path(path: Path, name: str) -> Path:
    """Return the directory of a vhost below the directory of all. Raises ConfigError."""
    if not isinstance(name, str):
        raise ConfigError(f"the name of a vhost is text, not {type(name).__name__}")
    return path / "msg_stores" / "vhosts" / vhost_directory(name.encode())


def prepare_for_rabbitmq(files: Files, directory: Path) -> None:
    """Make a vhost's directory one that RabbitMQ 3.10 boots on. What it saved at a clean stop is deleted: it would trust that
    instead of reading the queues."""
    if not (directory / ".config").exists():
        text = f"%% This file is auto-generated! Edit at your own risk!\n{{segment_entry_count, {SEGMENT_ENTRIES}}}."
        files.write_file(directory / ".config", [text.encode()], sync=True)
    for saved in (
        "recovery.dets",
        f"{PERSISTENT}/clean.dot",
        f"{PERSISTENT}/file_summary.ets",
        f"{PERSISTENT}/msg_store_index.ets",
    ):
        files.unlink(directory / saved)


def segment_entries(files: Files, directory: Path) -> int | None:
    """Return the number of positions of a segment of index v1 that RabbitMQ's ``.config`` has; None without that file."""
    try:
        return read_segment_entries(files.read_file(directory / ".config"))
    except FileNotFoundError:
        return None


def check_queue_name(name: object, where: str) -> None:
    """Raise ConfigError for what is no name of a queue."""
    try:
        if not isinstance(name, str) or not name.encode():
            raise ConfigError(f"{where}: a name of a queue is text with at least one character")
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: a name of a queue is text that UTF-8 has") from None


def is_hash(path: Path) -> bool:
    """Return True for a directory with such a name as those of queues have."""
    return re.fullmatch("[0-9A-Z]{1,25}", path.name) is not None and path.is_dir()


def is_unfinished(path: Path) -> bool:
    """Return True for the directory of a queue whose making a crash has ended."""
    return all(one.name.startswith((".queue_name", QUEUE_FILE)) for one in path.iterdir())


def sub_queue_path(vhost: Path, vhost_name: str, queue: Remembered) -> Path:
    """Return the directory of a queue, or of a sub-queue."""
    return vhost / QUEUES / queue_directory(vhost_name.encode(), queue.full_name)


def queue_path(vhost: Path, vhost_name: str, name: str) -> Path:
    return vhost / QUEUES / queue_directory(vhost_name.encode(), name.encode())


def make_vhost_directory(files: Files, directory: Path, name: str) -> None:
    """Make the directory of a vhost, if it is not there. Raises StoreError if it belongs to another one."""
    files.make_directory(directory / QUEUES)
    try:
        found = files.read_file(directory / ".vhost")
    except FileNotFoundError:
        files.write_file(directory / ".vhost", [name.encode()], sync=True)
        return
    if found != name.encode():
        raise StoreError(f"{directory}: belongs to the vhost {found.decode('utf-8', 'replace')!r}, not to {name!r}")


def make_queue_directory(files: Files, directory: Path, vhost_name: str, queue: Remembered) -> None:
    """Make the directory of a queue. It counts from the moment at which it has ``msgstore-queue.json``."""
    files.make_directory(directory)
    name = encode_queue_name(vhost_name.encode(), queue.full_name, 1 if queue.index == "v1" else 2)
    files.write_file(directory / ".queue_name", [name], sync=True)
    save_queue_file(files, directory, queue)


def save_queue_file(files: Files, directory: Path, queue: Remembered) -> None:
    table = {key: value for key, value in attrs.asdict(queue).items() if value not in (None, {}, "")}
    text = json.dumps({"version": _VERSION, **table}, ensure_ascii=False, indent=1)
    files.write_file(directory / QUEUE_FILE, [text.encode()], sync=True)


def read_queue_directory(files: Files, directory: Path) -> Remembered | None:
    """Return what a directory says of its queue. None: a queue whose making a crash has ended. Raises StoreError."""
    try:
        table = _read(files, directory / QUEUE_FILE)
        optional = table.get("level"), table.get("options", {}), table.get("base", "")
        values = (table["name"], table["backing"], table["index"], table["durable"], *optional)
        for name, value, kind in zip(_MEMBERS, values, _KINDS, strict=True):
            if not isinstance(value, kind):
                raise TypeError(name)
        values[0].encode()
        return Remembered(*values)
    except FileNotFoundError:
        pass
    except (KeyError, TypeError, UnicodeEncodeError) as error:
        raise StoreError(f"{directory / QUEUE_FILE}: the member {error} is missing or wrong") from error
    names = files.list(directory)
    index = next((index for end, index in _INDEX_FILES.items() if any(name.endswith(end) for name in names)), None)
    if index is None:
        return None
    found = read_queue_name(files.read_file(directory / ".queue_name")) if ".queue_name" in names else None
    if found is None:
        raise StoreError(f"{directory}: has messages and no readable .queue_name: nothing says whose they are")
    queue, level = split_sub_queue(found.queue)
    return Remembered(queue.decode(), "variable", index, durable=True, level=level)


def take_terms(files: Files, directory: Path) -> Mapping[str, Any] | None:
    """Return the terms of a clean stop by queue directory, and forget them on disk. None: the last stop was not clean."""
    path = directory / VHOST_FILE
    try:
        table = _read(files, path)
    except FileNotFoundError:
        return None
    if table.get("version") != _VERSION or not isinstance(table.get("queues"), dict):
        raise StoreError(f"{path}: was written by another version of msgstore-queues. Delete it: the queues are then read.")
    files.unlink(path)
    files.sync_directory(directory)
    terms: Mapping[str, Any] = table["queues"]
    return terms


def save_terms(
    files: Files, directory: Path, terms: Mapping[str, Any], counts: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Save the terms of a clean stop by queue directory. ``counts``: messages of each queue, and bytes of their bodies."""
    text = json.dumps({"version": _VERSION, "queues": terms, "counts": counts or {}}, separators=(",", ":"))
    files.write_file(directory / VHOST_FILE, [text.encode()], sync=True)


def read_counts(files: Files, directory: Path) -> dict[str, tuple[int, int]] | None:
    """Return the counts of a clean stop by queue directory, transient messages included. None: the vhost is open, or the last
    stop was not clean, or another version has saved them."""
    try:
        table = _read(files, directory / VHOST_FILE)
        return {name: (messages, size) for name, (messages, size) in table["counts"].items()}
    except (FileNotFoundError, StoreError, AttributeError, KeyError, TypeError, ValueError):
        return None


def refuse_stopped(directory: Path, name: str) -> None:
    """Raise StoreError if the vhost was stopped."""
    if (directory / STOPPED_FILE).exists():
        where = f"{directory.parents[2]} {name}"
        raise StoreError(f"{directory}: the vhost {name!r} is stopped. Start it: msgstore vhost start {where}")


def _read(files: Files, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(files.read_file(path))
    except ValueError as error:
        raise StoreError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise StoreError(f"{path}: is not a JSON object")
    return table
