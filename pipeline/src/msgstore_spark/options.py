"""Options of ``spark.read.format("msgstore")`` and of ``df.write``, which are checked before anything is read or written."""

from __future__ import annotations

import difflib
import json
import logging
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

from msgstore.contract import ConfigError, PluginError, StoreError
from msgstore.jobs.columns.batches import Condition, as_text
from msgstore.jobs.detection import detect
from msgstore.jobs.inputs import NO_FORMAT, JobInputs, SegmentInput, find_inputs
from msgstore.jobs.output.parts import StoreSpec
from msgstore.jobs.tasks import TASK_SIZE, group_into_tasks
from msgstore.jobs.workers import OpenCodec, open_codec, worker_catalogue
from msgstore.scan import bind_records
from msgstore.units import parse_size

log = logging.getLogger("msgstore.spark")
_SOURCE_HINT = re.compile(r"The source (\S+) can read it: msgstore queues .* \(")
"""Hint for users of the command line in errors of core."""
_MIN_SCANS = 32
"""Number of tasks that keeps the processors of a machine busy to the end."""
RELATIONS = ("records", "damage", "segments")
OPTIONS = {
    "path": "argument of `.load()`: a segment, a store, a tree of stores, or a glob; or several, with commas or as a list",
    "relation": "`records` (default), `damage`, or `segments`",
    "body": "body codec whose columns are added, such as `erlang`, or a JSON object with `use` and its options",
    "records": "type bytes of record types that a directory does not remember: `audit=200,other=201`",
    "where": "only records that meet conditions without the body: `type = 3 and offset < 100 and id in (X'...', X'...')`",
    "mode": "`PERMISSIVE` (default): damage has no rows; `FAILFAST`, not for streams: damage or an unreadable segment fails",
    "taskSize": "size of a task's input: bytes, or text; default `64MiB`, more if no body is read; segments are not split",
    "maxFilesPerTrigger": "for streams: maximum number of segments in a micro-batch",
    "maxBytesPerTrigger": "for streams, instead: size in bytes; a micro-batch ends with the segment that reaches it",
}
WRITE_OPTIONS = {
    "path": "directory of the new store",
    "index": "its index",
    "format": "the format of its segments",
    "record": "the record type of its messages",
    "records": "the type bytes of record types: audit=200,other=201",
    "body": "the codec that it remembers, as above; bodies are stored unchanged, and must be valid for it",
    "fileSizeLimit": "size at which a segment is sealed: bytes, or text such as 16MiB",
    "ignoreOthers": "true: other columns are ignored",
    "ifExists": "`error` (default), or `ignore`: nothing is written if there is something at the destination",
}


@attrs.frozen
class ReadOptions:
    """Options of one DataFrame or stream."""

    paths: tuple[str, ...]
    """Absolute paths, because executors have other working directories."""
    relation: str = "records"
    body: str | None = None
    """Body codec whose fields become columns: its name, or a JSON object with ``use`` and its options."""
    records: tuple[tuple[str, int], ...] = ()
    """(name, type byte) of record types that the directories do not remember."""
    where: tuple[Condition, ...] = ()
    """Conditions on ``id``, ``offset``, ``size`` and ``type``."""
    files: tuple[Condition, ...] = ()
    """Conditions on the name of a segment."""
    fail_fast: bool = False
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
        paths = paths_of(given.pop("path", None), given.pop("paths", None))
        parsed = parse_options(given, OPTIONS)
        conditions = parsed.pop("where", ())
        parsed["files"] = tuple(one for one in conditions if one[0] == "file")
        parsed["where"] = tuple(one for one in conditions if one[0] != "file")
        if parsed["where"] and parsed.get("relation", "records") != "records":
            raise ConfigError("msgstore: option 'where': only the relation 'records' has conditions on others than 'file'")
        if parsed.get("max_files") and parsed.get("max_bytes"):
            raise ConfigError(
                "msgstore: a stream accepts one of the options 'maxFilesPerTrigger' and 'maxBytesPerTrigger', not both"
            )
        return cls(paths, **parsed)

    def group_into_tasks(self, inputs: Collection[SegmentInput], *, bodies: bool = True) -> list[tuple[SegmentInput, ...]]:
        """Group the segments into tasks. Without ``bodies`` and with many segments, they are larger: fixed costs count."""
        larger = 1 if bodies else min(max(1, sum(found.size for found in inputs) / TASK_SIZE / _MIN_SCANS), 4)
        return group_into_tasks(inputs, self.task_size or int(larger * TASK_SIZE))

    def codec(self) -> OpenCodec | None:
        """Return the body codec, or None."""
        return open_codec(self.body) if self.body else None

    def hint(self) -> str:
        """Return the end of the error for a column that is unknown."""
        is_plain = self.relation == "records" and not self.body
        return '. Fields of bodies need their codec, such as .option("body", "erlang")' if is_plain else ""

    def find(self) -> JobInputs:
        """Find the segments that exist now. Raises StoreError, ConfigError, and PluginError for one that no plugin here reads:
        its rows would be missing. The relation ``damage`` lists it instead."""
        catalogue = worker_catalogue()
        bound = bind_records(catalogue, self.records, "option 'records'")
        try:
            with planning():
                found = find_inputs(catalogue, self.paths, records=bound)
        except StoreError as error:
            raise StoreError(_SOURCE_HINT.sub(r'The source \1 can read it: .option("source", "\1") (', str(error))) from error
        if self.files:
            inputs = tuple(item for item in found.inputs if self._is_wanted(item.path))
            found = attrs.evolve(
                found, inputs=inputs, damage=tuple(span for span in found.damage if self._is_wanted(span.path))
            )
        unread = [span for span in found.damage if span.reason.startswith(NO_FORMAT)]
        if unread and self.relation != "damage":
            more = f" (and {len(unread) - 1} more segments)" if len(unread) > 1 else ""
            raise PluginError(
                f"msgstore: {unread[0].path}{more}: {unread[0].reason}. Install the format for {sys.executable}, with which "
                "Spark plans the query, and for the executors"
            )
        if self.fail_fast and found.damage:
            raise StoreError(f"msgstore: {found.damage[0].path}: {found.damage[0].reason}; the mode is FAILFAST")
        return found

    def _is_wanted(self, path: str) -> bool:
        name = as_text(Path(path).name)
        return all(_COMPARISONS[comparison](name, value) for _, comparison, value in self.files)


@contextmanager
def planning() -> Iterator[None]:
    """Name the Python that plans a query in errors about a plugin that it lacks: the driver's may have it."""
    try:
        yield
    except PluginError as error:
        raise type(error)(f"{sys.executable}, with which Spark plans the query: {error}") from error


_NODE_LEVELS = 4
"""Levels of directories above those of the queues in which the directory of a node is."""


def warn_of_unread(found: JobInputs) -> None:
    """Log a warning about files that were recognised and not read, such as those of queues. Called once a query."""
    if found.not_read:
        more = f" and {len(found.not_read) - 1} more" * (len(found.not_read) > 1)
        places = list(Path(found.not_read[0].path).parents)[:_NODE_LEVELS]
        names = [name for place in places for name, _ in detect(worker_catalogue(), place) if name != "store"]
        what = '%s: not read, may contain messages: %s%s. Queues are read with .option("source", %s)'
        log.warning(what, found.not_read[0].path, found.not_read[0].what, more, f'"{names[0]}"' if names else "NAME")


@attrs.frozen
class WriteOptions:
    """Options of the writer of a new store."""

    target: StoreSpec
    ignore_others: bool = False
    ignore_existing: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options as Spark passes them. Raises ConfigError."""
        given = {key.lower(): value for key, value in options.items()}
        path = given.pop("path", None)
        if not path:
            raise ConfigError(
                'msgstore: the destination is missing: write .save("DIRECTORY"). Tables of the catalog are read only: they '
                "take no INSERT and no AS SELECT"
            )
        parsed = parse_options(given, WRITE_OPTIONS)
        flags = {name: parsed.pop(name) for name in ("ignore_others", "ignore_existing") if name in parsed}
        return cls(StoreSpec(_local(path), **parsed), **flags)


_ELSEWHERE = {
    "refcounts": "a store has all records, live or dead. Join with the ids of 'msgstore ls --json' or of a file of counts",
}
"""Options that people look for, in lower case, and what there is instead."""


def parse_options(options: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """Return attributes and their values. The keys of ``options`` are in lower case."""
    parsed: dict[str, Any] = {}
    names = {name.lower(): name for name in known}
    for key, value in options.items():
        name = names.get(key)
        if name is None:
            near = difflib.get_close_matches(key, names, n=1)
            if key in _ELSEWHERE:
                raise ConfigError(f"msgstore: unknown option {key!r}: {_ELSEWHERE[key]}")
            hint = f"did you mean {names[near[0]]!r}?" if near else f"there are: {', '.join(known)}"
            raise ConfigError(f"msgstore: unknown option {key!r}; {hint}")
        attribute, parse = _PARSERS.get(name, (name, str))
        try:
            parsed[attribute] = parse(value)
        except ValueError as error:
            raise ConfigError(f"msgstore: option {name!r}: {error}") from None
    return parsed


def paths_of(one: str | None, several: str | None) -> tuple[str, ...]:
    """Return absolute paths. ``load(path)`` may have commas in it; ``load([path, ...])`` arrives as a JSON list."""
    found: list[str] = []
    for path in [*([one] if one else []), *(json.loads(several) if several else [])]:
        found += [path] if "," not in path or Path(_local(path)).exists() else filter(None, map(str.strip, path.split(",")))
    if not found:
        raise ConfigError(
            'msgstore: there is no path: write .load("DIRECTORY"), with a segment, a store, a tree or a glob. A table of the '
            "catalog keeps its path only if CREATE TABLE has no list of columns"
        )
    return tuple(str(Path.cwd() / _local(path)) for path in found)


def _local(path: str) -> str:
    """Return the path of a ``file:`` URL, or ``path`` itself. Raises ConfigError for other URLs."""
    parts = urlsplit(path)
    if not parts.scheme or "/" not in path or not path.startswith(f"{parts.scheme}:/"):
        return path
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"msgstore: {path}: a store must be in a directory that the driver and every executor have at the same path. Mount "
            "the bucket, or copy the segments"
        )
    return unquote(parts.path)


def _relation(text: str) -> str:
    return RELATIONS[_index(text, *RELATIONS)]


def _index(text: str, *known: str) -> int:
    """Return the position of a text among the known ones, in any case."""
    for position, one in enumerate(known):
        if text.lower() == one.lower():
            return position
    raise ValueError(f"{text!r} is none of {', '.join(known)}")


def _bindings(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, byte = part.partition("=")
        if not name.strip() or not byte.strip().isdecimal():
            raise ValueError(f'{part!r} is not NAME=BYTE; write such as "audit=200,checksum=4"')
        found.append((name.strip(), int(byte)))
    return tuple(found)


def _int64(text: str) -> int:
    """Return the nearest number of 64 bits: no column has any other."""
    return max(-(2**63), min(2**63 - 1, int(text)))


_CONDITION = re.compile(r"\s*(id|offset|size|type|file)\s*(=|<=|>=|<|>|in\b)\s*([^=<>\s].*?)\s*", re.IGNORECASE | re.DOTALL)
_LITERALS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "id": (re.compile(r"[xX]'([0-9a-fA-F]{32})'"), bytes.fromhex),
    "file": (re.compile(r"'([^']*)'"), str),
    "number": (re.compile(r"(-?\d+)"), _int64),
}
_FUNCTIONS = {"=": "equal", "<=": "less_equal", ">=": "greater_equal", "<": "less", ">": "greater", "in": "is_in"}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq, "less_equal": operator.le, "greater_equal": operator.ge, "less": operator.lt, "greater": operator.gt,
    "is_in": lambda value, values: value in values,
}  # fmt: skip


def _conditions(text: str) -> tuple[Condition, ...]:
    if re.search(r"\sor\s", re.sub(r"'[^']*'", "", text), re.IGNORECASE):
        raise ValueError("there is no or. Write such as type in (1, 3), or use .where() of the DataFrame")
    return tuple(map(_condition, re.split(r"\s+and\s+", text, flags=re.IGNORECASE)))


def _condition(text: str) -> Condition:
    """Return a condition as in SQL: ``size >= 1000``, ``file = '3.sqs'``, ``id in (X'...', X'...')``."""
    match = _CONDITION.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text.strip()!r} is no condition. Its parts are: id, offset, size, type or file; =, <, <=, >, >= or in; a value. "
            "Conditions are joined by and. A directory name=value is chosen by the path: .load('.../name=value')"
        )
    name, function, given = match[1].lower(), _FUNCTIONS[match[2].lower()], match[3]
    pattern, convert = _LITERALS.get(name, _LITERALS["number"])
    values = given[1:-1].split(",") if function == "is_in" and given[:1] + given[-1:] == "()" else [given]
    found = [pattern.fullmatch(value.strip()) for value in values]
    if not all(found):
        raise ValueError(f"{given!r} is no value of {name}. Write such as 100, '3.sqs', X'{'00' * 16}', or (3, 4) after in")
    converted = [convert(one[1]) for one in found if one]
    return name, function, converted if function == "is_in" else converted[0]


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
    "records": ("records", _bindings),
    "where": ("where", _conditions),
    "taskSize": ("task_size", _size),
    "maxFilesPerTrigger": ("max_files", _positive),
    "maxBytesPerTrigger": ("max_bytes", _size),
    "fileSizeLimit": ("file_size_limit", _size),
    "mode": ("fail_fast", lambda text: bool(_index(text, "PERMISSIVE", "FAILFAST"))),
    "ignoreOthers": ("ignore_others", lambda text: bool(_index(text, "false", "true"))),
    "ifExists": ("ignore_existing", lambda text: bool(_index(text, "error", "ignore"))),
}
"""Option to (attribute, parser). Other options are text, for the attribute of their name."""
