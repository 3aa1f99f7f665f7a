"""Job ``import``: rows of Parquet files or lines of JSON become the messages of a new store.

A task reads some row groups, or a whole file of lines, and writes one part of the store, in any process. Memory: a batch of
rows in each process, and in the driver what the new store's index needs.
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
from msgstore.jobs.output.parts import Part, PartWriter, Target, backends_of
from msgstore.jobs.output.staging_directory import check_destination
from msgstore.jobs.paths import is_glob, matched_by, matches, unreadable_directories, visible_files
from msgstore.jobs.reading import json_lines
from msgstore.jobs.tasks import Meter, Run
from msgstore.jobs.workers import check_pyarrow
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan.formats import OWN_RECORD

LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = (".parquet", *LINES)
SHARE = 64 * 2**20
"""Uncompressed bytes of row groups that one task reads."""


@attrs.frozen
class ImportShare:
    """Input of one task. Small and picklable."""

    path: str
    size: int
    """Bytes of the row groups, or of the file."""
    first: int = 0
    """Number of its first row."""
    groups: tuple[int, ...] = ()
    """Row groups; empty for a file of lines."""


@attrs.frozen
class ImportJob:
    """Picklable. Created and checked by :func:`plan_import`."""

    sources: tuple[str, ...]
    """Paths as given."""
    shares: tuple[ImportShare, ...]
    target: Target
    counted: bool
    """True if every row has the number of references of its message."""
    ignore_others: bool
    """True if other columns and members are ignored. Otherwise they are errors."""

    @property
    def size(self) -> int:
        """Bytes to read."""
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
    body: str = "raw",
    records: Mapping[str, int] | None = None,
    ignore_others: bool = False,
) -> ImportJob:
    """Check every name, path and header. Writes nothing.

    ``sources``: ``*.parquet`` and ``*.jsonl`` files (also ``*.ndjson``, ``*.json``), directories of such files, globs.
    ``body`` is the codec that the store remembers: bodies are stored unchanged, and must be valid for it. Raises StoreError
    (no files, an unreadable file, destination in use), ConfigError (columns, pyarrow), PluginError.
    """
    target = Target(str(destination), index, format, record, body, tuple((records or {}).items()))
    backends_of(target, catalogue)
    check_destination(target.destination, [path for path in [*map(Path, sources), *matched_by(sources)] if path.is_dir()])
    shares: list[ImportShare] = []
    counted: dict[bool, str] = {}
    for path in find_files(sources):
        if path.suffix in LINES:
            has_references = json_lines.has_references(path)
            shares.append(ImportShare(str(path), path.stat().st_size))
        else:
            has_references = _plan_parquet(path, ignore_others, shares)
        if has_references is not None:
            counted.setdefault(has_references, str(path))
    if len(counted) > 1:
        raise ConfigError(f"{counted[True]} has references, {counted[False]} has none; give all of them, or import one by one")
    return ImportJob(tuple(map(str, sources)), tuple(shares), target, True in counted, ignore_others)


def _plan_parquet(path: Path, ignore_others: bool, shares: list[ImportShare]) -> bool | None:
    """Add the shares of a file. Return True if it has references, None if it has no rows."""
    check_pyarrow(f"{path}: Parquet is read")
    from msgstore.jobs.columns import messages

    groups, has_references = messages.row_groups(path, ignore_others=ignore_others, option=json_lines.IGNORE_OTHERS)
    share, first = ImportShare(str(path), 0), 0
    for number, (rows, size) in enumerate(groups):
        share, first = attrs.evolve(share, size=share.size + size, groups=(*share.groups, number)), first + rows
        if share.size >= SHARE or number == len(groups) - 1:
            shares.append(share)
            share = ImportShare(str(path), 0, first)
    return has_references if groups else None


def find_files(sources: Iterable[str | Path]) -> list[Path]:
    """Return the files of all sources, each once; those of a directory or a glob by name.

    In a directory, and where a glob matches them, names that begin with ``.`` or ``_`` do not count: Spark writes such files
    next to its own. Raises StoreError for a path without files, and for a file that cannot be read.
    """
    found: dict[Path, Path] = {}
    for source in map(Path, sources):
        if source.is_file() and source.suffix not in ENDINGS:
            raise StoreError(f"{source}: is imported by its ending, which must be one of {', '.join(ENDINGS)}")
        files: list[Path] = []
        try:
            for path in [source] if source.exists() else _matches(str(source)):
                files += sorted(visible_files(path, StoreError)) if path.is_dir() else [path]
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be listed: {error.strerror}") from error
        files = [file for file in files if file.suffix in ENDINGS]
        if not files:
            what = "holds no files that end in" if source.is_dir() else "there is no such file, directory, or file of"
            raise StoreError(f"{source}: {what} {', '.join(ENDINGS)}")
        for file in files:
            try:
                stat_regular_file(file)
            except OSError as error:
                raise StoreError(f"{file}: cannot be imported: {error.strerror}") from error
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _matches(pattern: str) -> list[Path]:
    for directory, error in unreadable_directories(pattern):
        if not is_gone(directory, error) and not _is_hidden(directory, pattern):
            raise OSError(error.errno, error.strerror, str(directory))
    return [path for path in matches(pattern) if not _is_hidden(path, pattern)]


def _is_hidden(match: Path, pattern: str) -> bool:
    """Return True if a part of the path is hidden, and is not in the pattern."""
    given = {part for part in Path(pattern).parts if not is_glob(part)}
    return any(name[0] in "._" and name != ".." and name not in given for name in match.parts)


def import_messages(job: ImportJob, run: Run[tuple[int, ImportShare], Part], meter: Meter) -> ImportReport:
    """Execute a job; ``run`` executes its tasks. The store is on disk when it returns, and does not exist if it raises.

    Rows with the same id and body become one message with the references of all. Raises StoreError, with file and row or line,
    also for an id with two bodies.
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
    """Execute one task. Raises StoreError, with file and row or line."""
    task, share = numbered
    with PartWriter(job.target, staging, task) as writer:
        for ids, bodies, references in _messages(share, job):
            writer.add(ids, bodies, references, where=share.path, check=True)
        return writer.finish()


def _messages(share: ImportShare, job: ImportJob) -> Iterator[tuple[Sequence[bytes], Sequence[bytes], Sequence[int] | None]]:
    if not share.groups:
        return json_lines.read(Path(share.path), counted=job.counted, ignore_others=job.ignore_others)
    from msgstore.jobs.columns import messages

    return messages.read(Path(share.path), share.groups, share.first)
