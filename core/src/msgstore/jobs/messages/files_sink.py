"""Sink ``files``: a directory with a file for each body, and one with everything else about the message.

``QUEUE/POSITION.body`` and ``QUEUE/POSITION.json``; QUEUE is ``vhost/queue/partition``, as far as the system has them, with
characters that file names must not have as ``%XX``.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from msgstore.contract import MessageBatch, QueueName, SinkContext, StoreError
from msgstore.files import Files
from msgstore.jobs.messages.rows import encode, rows_of

_SAFE = " !#$&'()+,;=@[]{}^~"
_MAX_NAME = 200
"""Bytes of a name. File systems take 255."""


def directory_of(name: QueueName) -> str:
    """Return the directory of a queue, relative to the destination."""
    parts = [str(part) for part in (name.vhost, name.queue, name.partition) if part is not None] or [name.system]
    return "/".join(_file_name(part) for part in parts)


def _file_name(part: str) -> str:
    try:
        encoded = part.encode("utf-8", "surrogateescape")  # bytes that were no UTF-8
    except UnicodeEncodeError:
        encoded = part.encode("utf-8", "surrogatepass")  # half of a character
    found = quote(encoded, safe=_SAFE) or "%"
    return found.replace(".", "%2E") if found.startswith(".") else found


class FilesSink:
    """Writer of a directory. Messages of a queue have growing positions, so an end for each directory is enough to discard what
    came after a token."""

    def __init__(self, context: SinkContext) -> None:
        self._top, self._target = Path(context.destination), context.target
        if context.token:
            context.check_kept([(self._top, 0)])
        self._top.mkdir(exist_ok=True)
        Files().sync_directory(self._top.parent)
        self._ignores_case = self._top.with_name(self._top.name.swapcase()).exists()
        self._unsynced: set[Path] = set()
        owners = context.token["owners"] if context.token else {}
        self._owners = {where: QueueName(*name) for where, name in owners.items()}
        """Directory to the queue that it holds."""
        self._places = {self._place(where): where for where in self._owners}
        """Directory as the file system takes its name, to the directory."""
        self._ends: dict[str, int] = dict(context.token["ends"]) if context.token else {}
        """Directory to the position after its last message. Joined messages do not count: no token is made of them."""
        self._kept = Counter(context.token["bytes"] if context.token else {})
        """Directory to the bytes of its files, and one more for each file."""
        self._discard()

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        where, reason = directory_of(batch.name), ""
        if any(len(part) > _MAX_NAME for part in where.split("/")):
            reason = f"the name of the queue is too long for a directory: {where[:60]}..."
        elif (other := self._places.setdefault(self._place(where), where)) != where:
            reason = f"to the file system {where} is {other}, the directory of another queue: rename one of the queues"
        elif self._owners.setdefault(where, batch.name) != batch.name:
            reason = f"the directory {where} holds the queue {self._owners[where]} of another system: convert it alone"
        return [(row, reason) for row in range(len(batch))] if reason else ()

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        where = directory_of(batch.name)
        directory = self._top / where
        directory.mkdir(parents=True, exist_ok=True)
        for row, about in enumerate(rows_of(batch, body=False)):
            for ending, content in ((".body", batch.bodies[row]), (".json", encode(about).encode() + b"\n")):
                path = directory / f"{batch.positions[row]:08}{ending}"
                path.write_bytes(content)
                self._unsynced.add(path)
                self._kept[where] += len(content) + 1
            self._ends[where] = batch.positions[row] + 1
        return ()

    def join(self, parts: Sequence[str]) -> None:
        for part in map(Path, parts):
            if not part.is_dir():
                raise StoreError(f"{self._target}: the part {part} is not there")
            for path in (found for found in sorted(part.rglob("*")) if found.is_file()):
                to = self._top / path.relative_to(part)
                where = to.parent.relative_to(self._top).as_posix()
                if to.exists() or self._places.setdefault(self._place(where), where) != where:
                    raise StoreError(f"{self._target}: two queues have the directory {where}: rename one of them")
                to.parent.mkdir(parents=True, exist_ok=True)
                Files().replace(path, to)
                self._unsynced.add(to)

    def _place(self, where: str) -> str:
        return unicodedata.normalize("NFC", where).casefold() if self._ignores_case else where

    def flush(self) -> Mapping[str, Any]:
        files = Files()
        for path in sorted(self._unsynced):
            with files.closing(os.open(path, os.O_RDONLY)) as fd:
                files.sync(fd)
        for directory in {parent for path in self._unsynced for parent in path.parents if parent.is_relative_to(self._top)}:
            files.sync_directory(directory)
        self._unsynced.clear()
        owners = {where: attrs.astuple(name) for where, name in self._owners.items()}
        return {"owners": owners, "ends": dict(self._ends), "bytes": dict(self._kept)}

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _discard(self) -> None:
        """Delete what an interrupted conversion has left after its last flush. Raises StoreError if files of that flush are
        missing or have another size."""
        later, kept = list[Path](), Counter[str]()
        for directory, _, names in os.walk(self._top):
            place = Path(directory)
            where = place.relative_to(self._top).as_posix()
            for path in map(place.joinpath, names):
                position = path.name.partition(".")[0]
                if not position.isdecimal() or int(position) >= self._ends.get(where, 0):
                    later.append(path)
                else:
                    kept[where] += path.stat().st_size + 1
        if changed := [where for where, count in self._kept.items() if kept[where] != count]:
            raise StoreError(
                f"{self._target}: an unfinished conversion is there, and the files of {changed[0]} are not as it wrote them. "
                "Begin anew with --restart."
            )
        for path in later:
            path.unlink()
            self._unsynced.add(path.parent)
