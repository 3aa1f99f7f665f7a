"""Options of ``spark.read.format("msgstore")``, which are checked before anything is read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

from msgstore.contract import ConfigError
from msgstore.jobs.inputs import Found, SegmentInput, find_inputs
from msgstore.jobs.tasks import TASK_SIZE, pack, pack_scans
from msgstore.jobs.workers import installed
from msgstore.scan import bind_records
from msgstore.units import parse_size

RELATIONS = ("records", "damage", "segments")
OPTIONS = {
    "path": "argument of `.load()`: a segment, a store, a tree of stores, or a glob; or several, with commas or as a list",
    "relation": "`records` (default), `damage`, or `segments`",
    "body": "body codec whose columns are added, such as `erlang`",
    "records": "type bytes of record types that a directory does not remember: `audit=200,other=201`",
    "taskSize": "size of a task's input: bytes, or text; default `64MiB`, more if no body is read; segments are not split",
    "maxFilesPerTrigger": "for streams: maximum number of segments in a micro-batch",
    "maxBytesPerTrigger": "for streams, instead: size in bytes; a micro-batch ends with the segment that reaches it",
}


@attrs.frozen
class ReadOptions:
    """Options of one DataFrame or stream."""

    paths: tuple[str, ...]
    """Absolute paths, because executors have other working directories."""
    relation: str = "records"
    body: str | None = None
    """Body codec whose fields become columns."""
    records: tuple[tuple[str, int], ...] = ()
    """(name, type byte) of record types that the directories do not remember."""
    task_size: int | None = None
    """Bytes of segments that one task reads. None: 64 MiB, or up to four times as much if no body is read."""
    max_files: int | None = None
    """Maximum number of files in a micro-batch of a stream. Excludes ``max_bytes``."""
    max_bytes: int | None = None
    """Size in bytes at which a micro-batch of a stream ends. Excludes ``max_files``."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse the options as Spark passes them: keys in any case, values as text. Raises ConfigError."""
        given = {key.lower(): value for key, value in options.items()}
        paths = _paths(given.pop("path", None), given.pop("paths", None))
        parsed: dict[str, Any] = {}
        known = {name.lower(): name for name in OPTIONS}
        for lower, value in given.items():
            key = known.get(lower, lower)
            if key not in _PARSERS:
                near = difflib.get_close_matches(lower, known, n=1)
                hint = f"; did you mean {known[near[0]]!r}?" if near else f"; there are: {', '.join(OPTIONS)}"
                raise ConfigError(f"msgstore: unknown option {key!r}{hint}")
            name, parse = _PARSERS[key]
            try:
                parsed[name] = parse(value)
            except ValueError as error:
                raise ConfigError(f"msgstore: option {key!r}: {error}") from None
        if parsed.get("max_files") and parsed.get("max_bytes"):
            raise ConfigError(
                "msgstore: a stream accepts one of the options 'maxFilesPerTrigger' and 'maxBytesPerTrigger', not both"
            )
        return cls(paths, **parsed)

    def pack(self, inputs: Collection[SegmentInput], *, bodies: bool) -> list[tuple[SegmentInput, ...]]:
        """Group the segments into tasks. ``bodies``: bodies are read too."""
        if self.task_size is None and not bodies:
            return pack_scans(inputs)
        return pack(inputs, self.task_size or TASK_SIZE)

    def find(self) -> Found:
        """Find the segments that exist now. Raises StoreError, PluginError or ConfigError."""
        catalogue = installed()
        return find_inputs(catalogue, self.paths, records=bind_records(catalogue, self.records, "option 'records'"))


def _paths(one: str | None, several: str | None) -> tuple[str, ...]:
    """Return absolute paths. ``load(path)`` may have commas in it; ``load([path, ...])`` arrives as a JSON list."""
    found: list[str] = []
    for path in [*([one] if one else []), *(json.loads(several) if several else [])]:
        found += [path] if "," not in path or Path(_local(path)).exists() else filter(None, map(str.strip, path.split(",")))
    if not found:
        raise ConfigError('msgstore: there is no path: write .load("DIRECTORY"), with a segment, a store, a tree or a glob')
    return tuple(str(Path.cwd() / _local(path)) for path in found)


def _local(path: str) -> str:
    """Return the path of a ``file:`` URL, or ``path`` itself. Raises ConfigError for other URLs."""
    parts = urlsplit(path)
    if not parts.scheme or "/" not in path or not path.startswith(f"{parts.scheme}:/"):
        return path
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"msgstore: {path}: segments must be in a directory that every executor has at the same path. Mount the bucket, or "
            f"copy the segments"
        )
    return unquote(parts.path)


def _relation(text: str) -> str:
    if text not in RELATIONS:
        raise ValueError(f"{text!r} is none of {', '.join(RELATIONS)}")
    return text


def _bindings(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, byte = part.partition("=")
        if not name.strip() or not byte.strip().isdecimal():
            raise ValueError(f'{part!r} is not NAME=BYTE; write such as "audit=200,checksum=4"')
        found.append((name.strip(), int(byte)))
    return tuple(found)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a number from 1 on")
    return int(text)


def _size(text: str) -> int:
    size = parse_size(int(text) if text.isdecimal() else text)
    if not size:
        raise ValueError("0 bytes are too few")
    return size


_PARSERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "relation": ("relation", _relation),
    "body": ("body", str),
    "records": ("records", _bindings),
    "taskSize": ("task_size", _size),
    "maxFilesPerTrigger": ("max_files", _positive),
    "maxBytesPerTrigger": ("max_bytes", _size),
}
"""Option to (attribute, parser)."""
