"""Source and sink ``parquet``: Parquet files with the columns of :mod:`msgstore.jobs.messages.columns`. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
)
from msgstore.files import Files
from msgstore.jobs.messages.rows import batch_of, queue_of
from msgstore.jobs.paths import find_files
from msgstore.jobs.reading.splits import open_parquet
from msgstore.jobs.workers import check_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

ENDING = ".parquet"
_NAME = ("system", "vhost", "queue", "partition")
_BATCH_ROWS = 2**14


def detect(path: Path) -> Candidate | None:
    """Recognise a file by its ending, a directory by such files. The columns are checked when it is read."""
    if path.is_file():
        return Candidate("likely", "a file *.parquet") if path.suffix == ENDING else None
    found = [entry.name for entry in sorted(path.iterdir()) if entry.suffix == ENDING and entry.is_file()]
    return Candidate("likely", f"{found[0]}: Parquet") if found else None


def sample(directory: Path) -> Path:
    """Make a file with messages of two queues."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    queues = [f"q{number // 15}" for number in range(30)]
    bodies = [b"%d" % number for number in range(30)]
    columns = {"system": ["sample"] * 30, "queue": queues, "body": bodies, "raw": [b"\1" + body for body in bodies]}
    pq.write_table(pa.table(columns), directory / "messages.parquet")
    return directory


@attrs.define
class _Queue:
    """Rows of one queue: spans (row group, first row, rows) in their order."""

    spans: list[tuple[int, int, int]] = attrs.field(factory=list)
    rows: int = 0


class ParquetSource:
    """Messages of a file, or of the files in a directory at any depth, by name."""

    def __init__(self, context: SourceContext) -> None:
        check_pyarrow(f"{context.path}: Parquet is read")
        self._context = context
        self._files = find_files([context.path], lambda file: file.suffix == ENDING, f"that ends in {ENDING}")
        self._groups: list[tuple[Path, int, int]] = []
        """File, number in it, and first row of each row group."""
        self._queues: dict[QueueName, _Queue] = {}
        self._damage: list[SourceDamage] = []
        self._decoded: tuple[int, pa.Table] | None = None
        """The row group that was read last: queues that share one are read one after the other."""
        for file in self._files:
            self._find_queues(file)

    def queues(self) -> Iterable[QueueInfo]:
        return [QueueInfo(name=name) for name in self._queues]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        from msgstore.jobs.messages.columns import rows_of_batch

        queue, at = self._queues[name], 0
        stop = queue.rows if stop is None else min(stop, queue.rows)
        for group, begin, rows in queue.spans:
            skip = max(first - at, 0)
            take = min(rows, stop - at) - skip
            if take > 0:
                file, _, base = self._groups[group]
                table = self._read(group).slice(begin + skip, take)
                done = 0
                for batch in table.to_batches(_BATCH_ROWS):
                    found = rows_of_batch(batch, file, base + begin + skip + done)
                    yield batch_of(name, found, at + skip + done, raw=self._context.raw)
                    done += batch.num_rows
            at += rows

    def count(self, name: QueueName) -> int:
        return self._queues[name].rows

    def damage(self) -> Iterable[SourceDamage]:
        return self._damage

    def close(self) -> None:
        self._decoded = None

    def _find_queues(self, path: Path) -> None:
        import pyarrow as pa

        name = "" if path == self._context.path else path.relative_to(self._context.path).as_posix()
        try:
            with open_parquet(path) as file:
                self._check_columns(path, file.schema_arrow.names)
                wanted, row = [one for one in _NAME if one in file.schema_arrow.names], 0
                for number in range(file.num_row_groups):
                    self._groups.append((path, number, row))
                    table = file.read_row_group(number, columns=wanted)
                    row += table.num_rows
                    runs = pa.RecordBatch.from_struct_array(
                        pa.StructArray.from_arrays([table.column(one).combine_chunks() for one in wanted], names=wanted)
                    ).to_pylist()
                    self._enter(len(self._groups) - 1, runs)
        except ConfigError as error:
            if "there must be" in str(error):
                raise
            self._damage.append(SourceDamage(file=name, reason=str(error)))

    def _check_columns(self, path: Path, names: Sequence[str]) -> None:
        for needed in ("system", "body"):
            if needed not in names:
                raise ConfigError(
                    f"{path}: there must be a column {needed!r}; the columns are: {', '.join(names)}. 'msgstore import' reads "
                    f"files with id and body only."
                )

    def _enter(self, group: int, names: Sequence[Mapping[str, Any]]) -> None:
        begin = 0
        while begin < len(names):
            end = begin + 1
            while end < len(names) and names[end] == names[begin]:
                end += 1
            queue = self._queues.setdefault(queue_of(dict(names[begin])), _Queue())
            queue.spans.append((group, begin, end - begin))
            queue.rows += end - begin
            begin = end

    def _read(self, group: int) -> pa.Table:
        if self._decoded is None or self._decoded[0] != group:
            path, number, _ = self._groups[group]
            with open_parquet(path) as file:
                self._decoded = (group, file.read_row_group(number))
        return self._decoded[1]


class ParquetSink:
    """Writer of a directory of files, one for each flush."""

    def __init__(self, context: SinkContext) -> None:
        check_pyarrow(f"{context.target}: Parquet is written")
        self._directory = Path(context.destination)
        self._files = int(context.token["files"]) if context.token else 0
        self._waiting: list[pa.RecordBatch] = []
        self._directory.mkdir(exist_ok=True)
        for left in self._directory.iterdir():  # of an interrupted conversion
            if int(left.stem.removeprefix("part-").partition(".")[0]) >= self._files:
                left.unlink()

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        return ()

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        from msgstore.jobs.messages.columns import record_batch

        self._waiting.append(record_batch(batch))
        return ()

    def flush(self) -> Mapping[str, Any]:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []
        return {"files": self._files}

    def finish(self) -> None:
        if not self._files:
            self._write([])  # so that readers find the columns

    def close(self) -> None:
        self._waiting = []

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from msgstore.jobs.messages.columns import MESSAGES

        content = pa.BufferOutputStream()  # in memory: if the disk is full, pyarrow does not try again
        pq.write_table(pa.Table.from_batches(batches, MESSAGES), content, compression="zstd")
        Files().write_file(self._directory / f"part-{self._files:05}{ENDING}", [content.getvalue()], sync=True)
        self._files += 1
