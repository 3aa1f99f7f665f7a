"""Import: rows of Parquet files, or lines of JSON, become the messages of a fresh store.

A file's row groups, or a whole file of lines, are a share; ``write_share`` makes one part of the new store of it, wherever the
engine wants, and depends on nothing but its arguments. Memory: a batch of rows in each process, and in the driver what the new
store's index needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import ConfigError, StoreError
from msgstore.files import is_gone, stat_regular_file
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part, PartWriter, Target, backends_of, check_bodies
from msgstore.jobs.output.staging_directory import check_destination
from msgstore.jobs.paths import is_glob, matched_by, matches, unreadable_directories, visible_files
from msgstore.jobs.reading import json_lines
from msgstore.jobs.tasks import Meter, Run
from msgstore.jobs.workers import check_pyarrow
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan.bindings import OWN_RECORD

PARQUET = (".parquet",)
LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = PARQUET + LINES
SHARE = 64 * 2**20
"""Bytes of row groups, uncompressed, that make one share."""


@attrs.frozen
class ImportShare:
    """Input of one task. Small and picklable."""

    path: str
    size: int
    """Bytes of the file; of row groups, of these."""
    first: int = 0
    """The number of its first row."""
    groups: tuple[int, ...] = ()
    """Row groups; empty for a file of lines."""


@attrs.frozen
class ImportJob:
    """Picklable. Made and checked by :func:`plan_import`."""

    sources: tuple[str, ...]
    """As they were given."""
    shares: tuple[ImportShare, ...]
    target: Target
    counted: bool
    """Whether every row says how many references its message has."""
    ignore_others: bool
    """Whether other columns and members are left out; else they are errors."""

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(share.size for share in self.shares)


@attrs.frozen
class ImportReport:
    """Result of an import, the same with every runner."""

    destination: str
    files: int
    rows: int
    messages: int
    """Fewer than rows if some came twice."""
    bytes: int
    """Of the new store's segments."""

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
    body: str = "raw",
    records: Mapping[str, int] | None = None,
    ignore_others: bool = False,
) -> ImportJob:
    """Look at every name, path and header; write nothing.

    ``sources``: ``*.parquet`` and ``*.jsonl`` files (also ``*.ndjson``, ``*.json``), directories of such, globs.
    ``body`` is the codec that the store remembers: bodies are taken as they are stored, and must be valid for it.

    Raises StoreError (no files, a file that is none, destination in use), ConfigError (columns, pyarrow), PluginError.
    """
    target = Target(str(destination), index, format, record, body, tuple((records or {}).items()))
    backends_of(target, catalogue)
    check_destination(target.destination, [path for path in [*map(Path, sources), *matched_by(sources)] if path.is_dir()])
    shares: list[ImportShare] = []
    counted: dict[bool, str] = {}
    for path in find_files(sources):
        has_references = json_lines.has_references(path) if path.suffix in LINES else _plan_parquet(path, ignore_others, shares)
        if path.suffix in LINES:
            shares.append(ImportShare(str(path), path.stat().st_size))
        if has_references is not None:
            counted.setdefault(has_references, str(path))
    if len(counted) > 1:
        raise ConfigError(f"{counted[True]} has references, {counted[False]} has none; give all of them, or import one by one")
    return ImportJob(tuple(map(str, sources)), tuple(shares), target, True in counted, ignore_others)


def find_files(sources: Iterable[str | Path]) -> list[Path]:
    """Each once, in the order given; those of a directory or a glob by name. Hidden names, and those that begin with ``_``, do
    not count in directories, nor where a glob matches them: Spark writes such beside its own.

    Raises StoreError for a path in which there is none, and for what might be one and cannot be read.
    """
    found: dict[Path, Path] = {}
    for source in map(Path, sources):
        if source.exists() and not source.is_dir() and source.suffix not in ENDINGS:
            raise StoreError(f"{source}: is imported by its ending, which must be one of {', '.join(ENDINGS)}")
        files: list[Path] = []
        for path in [source] if source.exists() else _matching(str(source)):
            try:
                files += sorted(visible_files(path, StoreError)) if path.is_dir() else [path]
            except OSError as error:
                raise _cannot_list(error.filename, error) from error
        files = [_plain(file) for file in files if file.suffix in ENDINGS]
        if not files:
            what = "holds no files that end in" if source.is_dir() else "there is no such file, directory, or file of"
            raise StoreError(f"{source}: {what} {', '.join(ENDINGS)}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _matching(pattern: str) -> list[Path]:
    for directory, error in unreadable_directories(pattern):
        if not is_gone(directory, error) and not _is_left_out(directory, pattern):
            raise _cannot_list(directory, error) from error
    return [path for path in matches(pattern) if not _is_left_out(path, pattern)]


def _is_left_out(match: Path, pattern: str) -> bool:
    """Return True if a part of the path is hidden, and not spelled out in the pattern."""
    spelt = {part for part in Path(pattern).parts if not is_glob(part)}
    return any(name[0] in "._" and name != ".." and name not in spelt for name in match.parts)


def _cannot_list(directory: Path | str, error: OSError) -> StoreError:
    return StoreError(f"{directory}: cannot be listed: {error.strerror}")


def _plain(file: Path) -> Path:
    try:
        stat_regular_file(file)
    except OSError as error:
        raise StoreError(f"{file}: cannot be imported: {error.strerror}") from error
    return file


def import_messages(job: ImportJob, run: Run[tuple[int, ImportShare], Part], meter: Meter) -> ImportReport:
    """Carry a job out; ``run`` says where tasks are done.

    When it returns the store is there, and on disk; if it raises, nothing is. Of rows with the same id and body one message is
    made, with the references of all; an id with two bodies is an error. Raises StoreError, with file and row or line.
    """
    parts: list[Part] = []
    with Staging.begin(job.target) as staging:
        written = run(partial(write_share, job=job, staging=staging.path), enumerate(job.shares))
        for share, part in zip(job.shares, written, strict=True):
            parts.append(part)
            meter.add(share.size)
        messages = staging.commit(parts)
    files = len({share.path for share in job.shares})
    rows, size = sum(part.messages for part in parts), sum(part.bytes for part in parts)
    return ImportReport(job.target.path, files, rows, messages, size)


def write_share(numbered: tuple[int, ImportShare], job: ImportJob, staging: str) -> Part:
    """One task. Raises StoreError, with file and row or line."""
    task, share = numbered
    with PartWriter(job.target, staging, task) as writer:
        for ids, bodies, references in _messages(share, job):
            check_bodies(job.target, ids, bodies, share.path)
            writer.add(ids, bodies, references, where=share.path)
        return writer.finish()


def _messages(share: ImportShare, job: ImportJob) -> Iterator[tuple[Sequence[bytes], Sequence[bytes], Sequence[int] | None]]:
    if not share.groups:
        return json_lines.read(Path(share.path), counted=job.counted, ignore_others=job.ignore_others)
    from msgstore.jobs.columns import messages

    return messages.read(Path(share.path), share.groups, share.first)


def _plan_parquet(path: Path, ignore_others: bool, shares: list[ImportShare]) -> bool | None:
    """Add the shares of a file. Whether it has references; None if it has no rows."""
    check_pyarrow(f"{path}: Parquet is read")
    from msgstore.jobs.columns import messages

    groups, has_references = messages.row_groups(path, ignore_others=ignore_others, option=json_lines.IGNORE_OTHERS)
    chosen: list[int] = []
    size = rows = first = 0
    for number, (group_rows, group_size) in enumerate(groups):
        chosen.append(number)
        size, rows = size + group_size, rows + group_rows
        if size >= SHARE or number == len(groups) - 1:
            shares.append(ImportShare(str(path), size, first, tuple(chosen)))
            first, size, rows, chosen = first + rows, 0, 0, []
    return has_references if groups else None
