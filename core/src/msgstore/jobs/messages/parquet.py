"""Source and sink ``parquet``: Parquet files with the columns of :mod:`msgstore.jobs.messages.columns`. Needs pyarrow."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from msgstore.contract import (
    Candidate,
    ConfigError,
    MessageBatch,
    QueueInfo,
    QueueName,
    SinkContext,
    SourceContext,
    SourceDamage,
    StoreError,
    StoreIOError,
)
from msgstore.files import Files
from msgstore.jobs.messages.rows import batch_of, checked_row, not_unicode, queue_of
from msgstore.jobs.paths import find_files
from msgstore.jobs.reading.splits import open_parquet
from msgstore.jobs.workers import check_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

ENDING = ".parquet"
_NAME = ("system", "vhost", "queue", "partition")
_BATCH = 4 * 2**20
"""Bytes of rows in one batch."""
_ROW = 2**8
"""Bytes of a row besides its body."""
_MAX_READS = 2
"""Reads of each row group, on average, before all are kept in a temporary file."""


def _is_named_so(path: Path) -> bool:
    """Return True for a file's name with the ending, in small or capital letters."""
    return path.suffix.lower() == ENDING


def detect(path: Path) -> Candidate | None:
    """Recognise a file by its ending, a directory by such files. The columns are checked when it is read."""
    if path.is_file():
        return Candidate("likely", "a file *.parquet") if _is_named_so(path) else None
    found = [entry.name for entry in sorted(path.iterdir()) if _is_named_so(entry) and entry.is_file()]
    return Candidate("likely", f"{found[0]}: Parquet") if found else None


def sample(directory: Path, messages: int = 30) -> Path:
    """Make a file with messages of two queues."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    queues = [f"q{2 * number // messages}" for number in range(messages)]
    bodies = [b"%d" % number for number in range(messages)]
    columns = {"system": ["sample"] * messages, "queue": queues, "body": bodies, "raw": [b"\1" + body for body in bodies]}
    pq.write_table(pa.table(columns), directory / "messages.parquet")
    return directory


@attrs.define
class _Queue:
    """Rows of one queue: spans (row group, first row, rows) in their order."""

    spans: list[tuple[int, int, int]] = attrs.field(factory=list)
    rows: int = 0


class ParquetSource:
    """Messages of a file, or of the files in a directory at any depth, by name.

    Holds one row group without its compression, and the objects of one batch: the largest row group bounds the memory. Queues
    that share row groups are read from a temporary file with all row groups, without compression, once each row group was read
    twice: otherwise each queue would read them again.
    """

    def __init__(self, context: SourceContext) -> None:
        check_pyarrow(f"{context.path}: Parquet is read")
        self._context = context
        self._files = find_files([context.path], _is_named_so, f"that ends in {ENDING}")
        self._groups: list[tuple[Path, int, int]] = []
        """File, number in it, and first row of each row group."""
        self._queues: dict[QueueName, _Queue] = {}
        self._damage: list[SourceDamage] = []
        self._current: tuple[int, pa.Table | str] = (-1, "")
        """Number and content of the row group that was read last, or why it cannot be read."""
        self._reads = 0
        self._kept: list[pa.Table | str] = []
        """The row groups in the temporary file."""
        for file in self._files:
            self._find_queues(file)

    def queues(self) -> Iterable[QueueInfo]:
        return [QueueInfo(name=name) for name in self._queues]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        run: list[dict[str, Any]] = []
        held, begin = 0, first
        for position, row in self._rows(name, first, stop):
            if run and (isinstance(row, SourceDamage) or held >= _BATCH):
                yield batch_of(name, run, begin, raw=self._context.raw)
                run, held = [], 0
            if isinstance(row, SourceDamage):
                yield row
                continue
            begin = begin if run else position
            run.append(row)
            held += len(row["body"]) + _ROW
        if run:
            yield batch_of(name, run, begin, raw=self._context.raw)

    def count(self, name: QueueName) -> int:
        return self._queues[name].rows

    def damage(self) -> Iterable[SourceDamage]:
        return self._damage

    def close(self) -> None:
        self._current, self._kept = (-1, ""), []

    def _rows(self, name: QueueName, first: int, stop: int | None) -> Iterator[tuple[int, dict[str, Any] | SourceDamage]]:
        """Yield position and row, or damage of rows from a position on."""
        from msgstore.jobs.messages.columns import checked_rows

        queue, at = self._queues[name], 0
        stop = queue.rows if stop is None else min(stop, queue.rows)
        for group, spans in groupby(queue.spans, itemgetter(0)):
            position, numbers = max(at, first), list[int]()
            for _, begin, rows in spans:
                numbers += range(begin + max(first - at, 0), begin + min(rows, stop - at))
                at += rows
            if not numbers:
                continue
            path, _, base = self._groups[group]
            table, file = self._read(group), self._name(path)
            if isinstance(table, str):
                at_row, lost = base + numbers[0], len(numbers)
                yield position, SourceDamage(file=file, offset=at_row, reason=table, name=name, messages=lost)
                continue
            step = max(_BATCH * table.num_rows // (table.nbytes + _ROW * table.num_rows), 1)
            for some in (numbers[begin : begin + step] for begin in range(0, len(numbers), step)):
                whole = some[-1] - some[0] + 1 == len(some)
                part = table.slice(some[0], len(some)) if whole else table.take(some)
                in_file = [base + number for number in some]
                for number, row in zip(in_file, checked_rows(part, in_file, file), strict=True):
                    if isinstance(row, str):
                        yield position, SourceDamage(file=file, offset=number, reason=row, name=name, messages=1)
                    else:
                        yield position, row
                    position += 1

    def _name(self, path: Path) -> str:
        return "" if path == self._context.path else path.relative_to(self._context.path).as_posix()

    def _find_queues(self, path: Path) -> None:
        from msgstore.jobs.messages.columns import check_columns, to_rows

        try:
            with open_parquet(path) as file:
                check_columns(path, file.schema_arrow, ignore_others=self._context.options.ignore_others)
                wanted, first = [one for one in _NAME if one in file.schema_arrow.names], 0
                for number in range(file.num_row_groups):
                    self._groups.append((path, number, first))
                    count = file.metadata.row_group(number).num_rows
                    rows = to_rows(file.read_row_group(number, columns=wanted)) if wanted else [{}] * count
                    self._enter(self._name(path), first, rows)
                    first += len(rows)
        except ConfigError as error:
            self._damage.append(SourceDamage(file=self._name(path), reason=str(error)))

    def _enter(self, file: str, first: int, rows: Sequence[dict[str, Any] | str]) -> None:
        """Enter the rows of the last row group with their queues, and as damage those that have none."""
        begin = 0
        for row, run in groupby(rows):
            count = len(list(run))
            try:
                if isinstance(row, str):
                    raise ValueError(row)  # noqa: TRY004 - one class of errors
                queue = self._queues.setdefault(queue_of(checked_row({**row, "body": b""})), _Queue())
            except ValueError as error:
                reason = f"row {first + begin} is not a message: {error}"
                self._damage.append(SourceDamage(file=file, offset=first + begin, reason=reason, messages=count))
            else:
                queue.spans.append((len(self._groups) - 1, begin, count))
                queue.rows += count
            begin += count

    def _read(self, group: int) -> pa.Table | str:
        if self._kept:
            return self._kept[group]
        if self._current[0] == group:
            return self._current[1]
        self._current = (-1, "")
        if self._reads < _MAX_READS * len(self._groups):
            self._reads += 1
            self._current = (group, self._decode(group))
            return self._current[1]
        try:
            self._kept = self._keep()
        except OSError as error:
            told = f"{tempfile.gettempdir()}: a temporary file with all rows cannot be written: {error.strerror or error}"
            raise StoreIOError(f"{told}. Set TMPDIR to a directory with more space.") from error
        return self._kept[group]

    def _decode(self, group: int) -> pa.Table | str:
        from msgstore.jobs.messages.columns import MESSAGES, plain

        path, number, _ = self._groups[group]
        try:
            with open_parquet(path) as file:
                names = [name for name in MESSAGES.names if name in file.schema_arrow.names]
                return plain(
                    file.read_row_group(number, columns=[name for name in names if name != "raw" or self._context.raw])
                )
        except ConfigError as error:
            return str(error)

    def _keep(self) -> list[pa.Table | str]:
        """Return all row groups, in a temporary file that is mapped."""
        import pyarrow as pa

        reasons, ends = [], [8]
        with tempfile.TemporaryFile() as file:
            file.write(bytes(8))  # an empty file cannot be mapped
            for group in range(len(self._groups)):
                if not isinstance(table := self._decode(group), str):
                    content = pa.BufferOutputStream()
                    with pa.ipc.new_stream(content, table.schema) as stream:
                        stream.write_table(table)
                    file.write(content.getvalue())
                reasons.append(table if isinstance(table, str) else "")
                ends.append(file.tell())
            file.flush()
            mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        spans = [mapped.slice(begin, end - begin) for begin, end in pairwise(ends)]
        return [reason or pa.ipc.open_stream(span).read_all() for reason, span in zip(reasons, spans, strict=True)]


class ParquetSink:
    """Writer of a directory of files, one for each flush. Holds the messages since the last flush, and the file twice."""

    def __init__(self, context: SinkContext) -> None:
        check_pyarrow(f"{context.target}: Parquet is written")
        from msgstore.jobs.messages.columns import chosen

        self._schema = chosen(context.options.columns)
        self._directory = Path(context.destination)
        self._files = int(context.token["files"]) if context.token else 0
        self._bytes = int(context.token["bytes"]) if context.token else 0
        """Bytes of all files."""
        self._waiting: list[pa.RecordBatch] = []
        context.check_kept((self._path(number), 1) for number in range(self._files))
        if sum(self._path(number).stat().st_size for number in range(self._files)) < self._bytes:
            raise StoreError(
                f"{context.target}: an unfinished conversion is there, and has lost a file's end. Begin anew with --restart."
            )
        self._directory.mkdir(exist_ok=True)
        for left in self._directory.iterdir():  # of an interrupted conversion
            if int(left.stem.removeprefix("part-").partition(".")[0]) >= self._files:
                left.unlink()
        for changed in (self._directory, self._directory.parent):
            Files().sync_directory(changed)

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        return not_unicode(batch)

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        from msgstore.jobs.messages.columns import record_batch

        self._waiting.append(record_batch(batch, self._schema.names))
        return ()

    def join(self, parts: Sequence[str]) -> None:
        for path in (file for part in parts for file in sorted(Path(part).iterdir())):
            self._bytes += path.stat().st_size
            Files().replace(path, self._path(self._files))
            self._files += 1
        Files().sync_directory(self._directory)

    def flush(self) -> Mapping[str, Any]:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []
        return {"files": self._files, "bytes": self._bytes}

    def finish(self) -> None:
        if not self._files:
            self._write([])  # so that readers find the columns

    def close(self) -> None:
        self._waiting = []

    def _path(self, number: int) -> Path:
        return self._directory / f"part-{number:05}{ENDING}"

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = pa.BufferOutputStream()  # in memory: if the disk is full, pyarrow does not try again
        pq.write_table(pa.Table.from_batches(batches, self._schema), content, compression="zstd")
        Files().write_file(self._path(self._files), [content.getvalue()], sync=True)
        self._files += 1
        self._bytes += content.getvalue().size
