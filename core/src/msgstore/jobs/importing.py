"""Job ``import``: rows of Parquet files or lines of JSON become the messages of a new store.

A task reads a split of a file and writes one part of the store, in any process. Memory: some MiB of rows in each process, and
in the driver what the new store's index needs.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from msgstore.config import Backend
from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StorePart, StoreSpec, backends_of
from msgstore.jobs.output.staging_directory import check_destination
from msgstore.jobs.paths import find_files, matched_by
from msgstore.jobs.reading.splits import SPLIT_SIZE, FileSplit, line_number, open_parquet, read_blocks, splits_of
from msgstore.jobs.tasks import ProgressMeter, Run
from msgstore.jobs.workers import body_check
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan.formats import OWN_RECORD

if TYPE_CHECKING:
    from msgstore.jobs.columns.schemas import Messages

ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json")
LINE = 'a JSON object with "id" (32 hexadecimal digits), either "body" (base64) or "text", and perhaps "references"'
_MEMBERS = ("id", "body", "text", "references")
IGNORE_OTHERS = "ignore_others=, --ignore-others"
"""Arguments of programs and of the command line that ignore other columns and members."""
_BATCH_BYTES, _BATCH_ROWS = 4 * 2**20, 2**16
"""Limits of the rows of Parquet that are read at once."""


@attrs.frozen
class ImportJob:
    """Picklable. Created and checked by :func:`plan_import`."""

    sources: tuple[str, ...]
    """Paths as given."""
    splits: tuple[FileSplit, ...]
    target: StoreSpec
    counted: bool
    """True if every row has the number of references of its message."""
    ignore_others: bool
    """True if other columns and members are ignored. Otherwise they are errors."""

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(split.size for split in self.splits)


@attrs.frozen
class ImportReport:
    """Result of an import, the same with every runner."""

    destination: str
    files: int
    rows: int
    messages: int
    """Fewer than rows if some came twice."""
    bytes: int
    """Bytes of the new store's segments."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "import", **attrs.asdict(self)}


def plan_import(
    catalogue: Catalogue,
    sources: Sequence[str | Path],
    destination: str | Path,
    *,
    index: str = "ets",
    format: str = "v2",  # noqa: A002 - the key of the configuration
    record: str = OWN_RECORD,
    body: str | Backend = "raw",
    records: Mapping[str, int] | None = None,
    ignore_others: bool = False,
) -> ImportJob:
    """Check every name, path and header. Writes nothing.

    ``sources``: ``*.parquet`` and ``*.jsonl`` files (also ``*.ndjson``, ``*.json``), directories of such files, globs.
    ``body`` is the codec that the store remembers, as its name or a JSON object with ``use`` and its options: bodies are stored
    unchanged, and must be valid for it. Raises StoreError (destination in use, an unreadable file, a first line that is no
    message), ConfigError (no files, columns, pyarrow), PluginError.
    """
    target = StoreSpec(str(destination), index, format, record, body, tuple((records or {}).items()))
    backends_of(target, catalogue)
    body_check(target.body)  # every process will make it
    check_destination(target.destination, [path for path in [*map(Path, sources), *matched_by(sources)] if path.is_dir()])
    splits: list[FileSplit] = []
    counted: dict[bool, Path] = {}
    for path in find_files(sources, lambda file: file.suffix in ENDINGS, f"that ends in {', '.join(ENDINGS)}"):
        found, schema = splits_of(path, SPLIT_SIZE)
        if schema is not None:
            from msgstore.jobs.columns.schemas import check_columns

            names = check_columns(schema, str(path), ignore_others=ignore_others, option=IGNORE_OTHERS)
        else:
            names = next(([*lines[0][0]] for lines in _lines(found[0])), [])
        if names and found:
            counted.setdefault("references" in names, path)
        splits += found
    if len(counted) > 1:
        raise ConfigError(f"{counted[True]} has references, {counted[False]} has none; give all of them, or import one by one")
    return ImportJob(tuple(map(str, sources)), tuple(splits), target, True in counted, ignore_others)


def import_messages(job: ImportJob, run: Run[tuple[int, FileSplit], StorePart], meter: ProgressMeter) -> ImportReport:
    """Execute a job; ``run`` executes its tasks. The store is on disk when it returns, and does not exist if it raises.

    Rows with the same id and body become one message with the references of all. Raises StoreError, with file and row or line,
    also for an id with two bodies.
    """
    parts: list[StorePart] = []
    with StoreStaging.begin(job.target) as staging:
        written = run(partial(write_split, job=job, staging=staging.path), enumerate(job.splits))
        for split, part in zip(job.splits, written, strict=True):
            parts.append(part)
            meter.add(split.size)
        messages = staging.commit(parts)
    files = len({split.path for split in job.splits})
    rows, size = sum(part.messages for part in parts), sum(part.bytes for part in parts)
    return ImportReport(job.target.path, files, rows, messages, size)


def write_split(numbered: tuple[int, FileSplit], job: ImportJob, staging: str) -> StorePart:
    """Execute one task. Raises StoreError, with file and row or line."""
    task, split = numbered
    with PartWriter(job.target, staging, task) as writer:
        for messages in _rows(split) if split.is_parquet else _messages(split, job):
            writer.add(*messages, where=split.path, check=True)
        return writer.finish()


def _rows(split: FileSplit) -> Iterator[Messages]:
    """Yield messages of row groups, some MiB at a time."""
    from msgstore.jobs.columns.schemas import MESSAGES, messages_of

    first = split.first_row
    with open_parquet(split.path) as file:
        groups = range(split.begin, split.end)
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        step = max(min(_BATCH_BYTES * rows // max(split.size, 1), _BATCH_ROWS), 1)
        columns = [name for name in MESSAGES if name in file.schema_arrow.names]
        for batch in file.iter_batches(step, row_groups=list(groups), columns=columns):
            yield messages_of(batch, split.path, first)
            first += batch.num_rows


# -- lines of JSON ------------------------------------------------------------------------------------------------------------


def _messages(split: FileSplit, job: ImportJob) -> Iterator[Messages]:
    """Yield messages of lines, some MiB at a time. Raises StoreError, with the line's number."""
    for lines in _lines(split, job):
        members, ids, bodies = zip(*lines, strict=True)
        yield ids, bodies, [line["references"] for line in members] if job.counted else None


def _lines(split: FileSplit, job: ImportJob | None = None) -> Iterator[list[tuple[dict[str, Any], bytes, bytes]]]:
    """Yield the object, the id and the body of some lines. Without a job, references and other members are not checked."""
    for offset, block in read_blocks(split):
        found = []
        for number, line in enumerate(block.split(b"\n")):
            try:
                if line.strip():
                    found.append(_message(line, job))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                where = f"{split.path}, line {line_number(split.path, offset) + number}"
                raise StoreError(f"{where}: is not {LINE}: {error}") from error
        if found:
            yield found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs if name in _MEMBERS]
    if len(set(names)) < len(names):
        raise ValueError(f"it has one of {', '.join(_MEMBERS)} twice")
    return dict(pairs)


def _message(line: bytes, job: ImportJob | None) -> tuple[dict[str, Any], bytes, bytes]:
    members = json.loads(line, object_pairs_hook=_unique)
    if not isinstance(members, dict):
        raise TypeError(f"it is a {type(members).__name__}")
    others = [repr(name) for name in members if name not in _MEMBERS]
    if others and job and not job.ignore_others:
        raise ValueError(f"it has {', '.join(others)}. Leave them out, or say that other members are ignored ({IGNORE_OTHERS})")
    if ("body" in members) == ("text" in members):
        raise ValueError("it has both, or neither")
    if job and job.counted != ("references" in members):
        has, first = ("has no", "has") if job.counted else ("has", "has not")
        raise ValueError(f"it {has} 'references', and the first line of all {first}")
    if re.fullmatch("[0-9A-Fa-f]{32}", str(members.get("id"))) is None:
        raise ValueError(f"its id is {members.get('id')!r}")
    msg_id = bytes.fromhex(members["id"])
    return members, msg_id, b64decode(members["body"], validate=True) if "body" in members else str.encode(members["text"])
