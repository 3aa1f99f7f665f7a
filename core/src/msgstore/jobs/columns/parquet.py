"""Messages in Parquet files. Needs pyarrow. Every error names the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyarrow as pa

from msgstore.contract import StoreError
from msgstore.jobs.columns.rows import COLUMNS, REFERENCES, Messages, check_columns, messages_of
from msgstore.jobs.reading.parquet_files import open_parquet

_BATCH_BYTES = 4 * 2**20
_BATCH_ROWS = 2**16


@attrs.frozen
class RowGroups:
    sizes: list[tuple[int, int]]
    """(rows, bytes uncompressed) of each."""
    has_references: bool


def row_groups(path: Path, *, ignore_others: bool, option: str) -> RowGroups:
    """Return the row groups of a file of messages, see :func:`check_columns`. Raises ConfigError, StoreError."""
    with _errors(path), open_parquet(path) as file:
        names = check_columns(file.schema_arrow, str(path), ignore_others=ignore_others, option=option)
        meta = file.metadata
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        return RowGroups([(group.num_rows, group.total_byte_size) for group in groups], REFERENCES in names)


def read(path: Path, groups: Sequence[int], first: int) -> Iterator[Messages]:
    """Messages of row groups, some MiB at a time; ``first`` is the number of their first row. Raises StoreError."""
    with _errors(path), open_parquet(path) as file:
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
        step = max(min(_BATCH_BYTES * rows // max(size, 1), _BATCH_ROWS), 1)
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(step, row_groups=list(groups), columns=columns):
            yield messages_of(batch, str(path), first)
            first += batch.num_rows


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise StoreError(f"{path}: cannot be read as Parquet: {reason}") from error
