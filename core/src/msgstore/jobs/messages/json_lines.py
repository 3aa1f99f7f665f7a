"""Source and sink ``jsonl``: files with one message on each line, as ``messages --json`` prints them."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import (
    Buffer,
    Candidate,
    MessageBatch,
    QueueInfo,
    QueueName,
    SinkContext,
    SourceContext,
    SourceDamage,
)
from msgstore.files import Files
from msgstore.jobs.messages.rows import batch_of, encode, has_origin, not_unicode, parse_line, queue_of, rows_of

ENDINGS = (".jsonl", ".ndjson")
"""Endings of file names, in small or capital letters."""
_BATCH = 4 * 2**20
"""Bytes of lines in one batch."""


def _is_named_so(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def detect(path: Path) -> Candidate | None:
    """Recognise a file by its ending and its first byte, a directory by such files."""
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())[:1000]
    found = next(filter(_is_named_so, files), None)
    if found is None:
        return None
    with found.open("rb") as stream:
        if stream.read(1) not in (b"{", b""):
            return None
    return Candidate("likely", f"{found.name} is JSON Lines")


@attrs.define
class _Queue:
    """Lines of one queue: file number, begin and end of each."""

    files: list[int] = attrs.field(factory=list)
    begins: list[int] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)


def sample(directory: Path, messages: int = 30) -> Path:
    """Make a file with messages of five queues."""
    path = directory / "messages.jsonl"
    bodies = [base64.b64encode(b"message %d" % number).decode() for number in range(messages)]
    rows = ({"system": "sample", "queue": f"q{n % 5}", "body": body, "raw": "AXg="} for n, body in enumerate(bodies))
    path.write_text("".join(f"{encode(row)}\n" for row in rows), encoding="utf-8")
    return path


class JsonLinesSource:
    """Messages of a file, or of the files of a directory by name. The first call reads every line."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        top = context.path
        self._names = [""] if top.is_file() else sorted(one.name for one in filter(_is_named_so, top.iterdir()))
        self._queues: dict[QueueName, _Queue] | None = None
        self._damage: list[SourceDamage] = []
        self._current: tuple[int, Buffer] = (-1, b"")
        """Number and content of the file that was read last."""

    def queues(self) -> Iterable[QueueInfo]:
        return [QueueInfo(name=name) for name in self._found()]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        queue = self._found()[name]
        rows: list[dict[str, Any]] = []
        held, begin = 0, first
        for at in range(first, len(queue.begins) if stop is None else min(stop, len(queue.begins))):
            line = bytes(self._content(queue.files[at])[queue.begins[at] : queue.ends[at]])
            row = self._parsed(line)  # without an error: it was parsed before
            if not has_origin(row):
                row["origin"] = {"file": self._names[queue.files[at]], "offset": queue.begins[at], "size": len(line)}
            rows.append(row)
            held += len(line)
            if held >= _BATCH:
                yield batch_of(name, rows, begin, raw=self._context.raw)
                rows, held, begin = [], 0, at + 1
        if rows:
            yield batch_of(name, rows, begin, raw=self._context.raw)

    def count(self, name: QueueName) -> int:
        return len(self._found()[name].begins)

    def damage(self) -> Iterable[SourceDamage]:
        self._found()
        return self._damage

    def close(self) -> None:
        self._queues = None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        return parse_line(line, ignore_others=self._context.options.ignore_others)

    def _content(self, number: int) -> Buffer:
        if self._current[0] != number:
            self._current = (number, self._context.read(self._names[number]))
        return self._current[1]

    def _found(self) -> dict[QueueName, _Queue]:
        if self._queues is None:
            queues: dict[QueueName, _Queue] = {}
            damage: list[SourceDamage] = []
            for number, file in enumerate(self._names):
                content, end = self._content(number), 0
                find, size = content.find, len(content)
                while end < size:
                    begin, end = end, find(b"\n", end) + 1 or size
                    line = content[begin:end]
                    if not line.strip():
                        continue
                    try:
                        queue = queues.setdefault(queue_of(self._parsed(line)), _Queue())
                    except ValueError as error:
                        reason = f"is not a message: {error}"
                        damage.append(SourceDamage(file=file, offset=begin, size=len(line), reason=reason, messages=1))
                        continue
                    queue.files.append(number)
                    queue.begins.append(begin)
                    queue.ends.append(end)
            self._queues, self._damage = queues, damage  # all or, if a file cannot be read, nothing
        return self._queues


class JsonLinesSink:
    """Writer of one file."""

    def __init__(self, context: SinkContext) -> None:
        if context.token:
            context.check_kept([(Path(context.destination), context.token["size"])])
        self._file = open(context.destination, "ab")  # noqa: SIM115, PTH123 - until close
        self._file.truncate(context.token["size"] if context.token else 0)
        Files().sync_directory(Path(context.destination).parent)

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        return not_unicode(batch)

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        self._file.writelines(encode(row).encode() + b"\n" for row in rows_of(batch))
        return ()

    def join(self, parts: Sequence[str]) -> None:
        for part in parts:
            with Path(part).open("rb") as file:
                shutil.copyfileobj(file, self._file)

    def flush(self) -> Mapping[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"size": os.fstat(self._file.fileno()).st_size}

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()
