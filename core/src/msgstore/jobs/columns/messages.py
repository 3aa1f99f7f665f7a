"""Messages as rows: Arrow record batches with the columns ``id``, ``body`` and, optionally, ``references``. Needs pyarrow.

Parquet files and Spark tasks use the same checks. Every error names the file or the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.columns.arrays import open_parquet

ID, BODY, REFERENCES = COLUMNS = ("id", "body", "references")
Messages = tuple[Sequence[bytes], Sequence[bytes], Sequence[int] | None]
"""Ids, bodies, references: what :meth:`msgstore.jobs.output.parts.PartWriter.add` takes."""
_BATCH_BYTES = 4 * 2**20
_BATCH_ROWS = 2**16


def check_columns(schema: pa.Schema, where: str, *, ignore_others: bool = False, option: str = "ignore_others=") -> list[str]:
    """Return the names of the columns that are read.

    Raises ConfigError for a column that is missing, of another type, twice there, or too many; ``option`` is where the reader
    of the error says that others are ignored.
    """
    for name, fits, wanted in _WANTED:
        if schema.names.count(name) > 1:
            raise ConfigError(f"{where}: there are two columns {name!r}")
        if name in schema.names and not fits(schema.field(name).type):
            raise ConfigError(f"{where}: the column {name!r} is {schema.field(name).type}; it must be {wanted}")
        if name not in schema.names and name != REFERENCES:
            raise ConfigError(f"{where}: there is no column {name!r} ({wanted}); columns: {', '.join(schema.names) or 'none'}")
    others = [name for name in schema.names if name not in COLUMNS]
    if others and not ignore_others:
        raise ConfigError(
            f"{where}: a store keeps {', '.join(COLUMNS)} and nothing else: leave out {', '.join(others)}, or say that other "
            f"columns are ignored ({option})"
        )
    return [name for name in COLUMNS if name in schema.names]


def messages_of(batch: pa.RecordBatch, where: str, first: int = 0) -> Messages:
    """Return the messages of one batch, whose columns were checked; ``first`` is the number of its first row.

    Raises StoreError, with ``where`` and the row's number and id, for a null and for an invalid id.
    """
    column = batch.column(batch.schema.get_field_index(ID))
    if column.null_count:
        raise StoreError(f"{where}, row {first + column.is_null().to_pylist().index(True)}: there is no {ID} (null)")
    ids = _hex_ids(column.to_pylist(), where, first) if _is_text(column.type) else column.to_pylist()
    if set(map(len, ids)) - {16}:
        at, wrong = next((at, msg_id) for at, msg_id in enumerate(ids) if len(msg_id) != 16)
        raise StoreError(f"{where}, row {first + at}: the id {wrong.hex() or 'of no bytes'} has {len(wrong)} bytes, not 16")
    bodies = _values(batch, BODY, ids, where)
    return ids, bodies, _values(batch, REFERENCES, ids, where) if REFERENCES in batch.schema.names else None


def _values(batch: pa.RecordBatch, name: str, ids: Sequence[bytes], where: str) -> list[Any]:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        msg_id = ids[column.is_null().to_pylist().index(True)]
        raise StoreError(f"{where}: the message {msg_id.hex()} has no {name} (null)")
    values: list[Any] = column.to_pylist()
    return values


def _hex_ids(texts: Sequence[str], where: str, first: int) -> list[bytes]:
    ids = []
    for at, text in enumerate(texts):
        try:
            ids.append(bytes.fromhex(text))
        except ValueError as error:
            raise StoreError(f"{where}, row {first + at}: the id {text!r} is not 32 hexadecimal digits") from error
    return ids


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


_WANTED: list[tuple[str, Callable[[pa.DataType], bool], str]] = [
    (ID, lambda kind: _is_bytes(kind) or _is_text(kind), "16 bytes, or text of 32 hexadecimal digits"),
    (BODY, _is_bytes, "binary"),
    (REFERENCES, lambda kind: bool(pa.types.is_integer(kind)), "a whole number"),
]


def row_groups(path: Path, *, ignore_others: bool, option: str) -> tuple[list[tuple[int, int]], bool]:
    """Return (rows, bytes uncompressed) of each row group of a file of messages, and whether these have references.

    Raises ConfigError, see :func:`check_columns`, and StoreError.
    """
    with _errors(path), open_parquet(path) as file:
        names = check_columns(file.schema_arrow, str(path), ignore_others=ignore_others, option=option)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups], REFERENCES in names


def read(path: Path, groups: Sequence[int], first: int) -> Iterator[Messages]:
    """Yield messages of row groups, some MiB at a time; ``first`` is the number of their first row. Raises StoreError."""
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
