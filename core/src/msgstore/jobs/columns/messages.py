"""Messages as rows: Arrow record batches with the columns ``id``, ``body`` and, optionally, ``references``. Needs pyarrow.

Parquet files and Spark tasks use the same checks. Every error names the file or the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from msgstore.contract import ConfigError, StoreError

ID, BODY, REFERENCES = "id", "body", "references"
Messages = tuple[Sequence[bytes], Sequence[bytes], Sequence[int] | None]
"""Ids, bodies, references: what :meth:`msgstore.jobs.output.parts.PartWriter.add` takes."""
Wanted = Mapping[str, tuple[Callable[[pa.DataType], bool], str]]
"""Columns that are read: whether the type fits, and the types in words."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


MESSAGES: Wanted = {
    ID: (lambda kind: _is_bytes(kind) or _is_text(kind), "16 bytes, or text of 32 hexadecimal digits"),
    BODY: (_is_bytes, "binary"),
    REFERENCES: (pa.types.is_integer, "a whole number"),
}
COUNTS: Wanted = {ID: (_is_bytes, "16 bytes"), "count": (pa.types.is_integer, "a whole number")}


def check_columns(
    schema: pa.Schema, where: str, wanted: Wanted = MESSAGES, *, ignore_others: bool = False, option: str = "ignore_others="
) -> list[str]:
    """Return the names of the columns that are read.

    Raises ConfigError for a column that is missing, of another type, twice there, or too many; ``option`` is where the reader
    of the error says that others are ignored.
    """
    for name, (fits, kinds) in wanted.items():
        found = [field.type for field in schema if field.name == name]
        if (found or name != REFERENCES) and not (len(found) == 1 and fits(found[0])):
            named = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise ConfigError(f"{where}: there must be one column {name!r} ({kinds}); the columns are: {named or 'none'}")
    others = [name for name in schema.names if name not in wanted]
    if others and not ignore_others:
        raise ConfigError(
            f"{where}: a store keeps {', '.join(wanted)} and nothing else: leave out {', '.join(others)}, or say that other "
            f"columns are ignored ({option})"
        )
    return [name for name in wanted if name in schema.names]


def messages_of(batch: pa.RecordBatch, where: str, first: int = 0) -> Messages:
    """Return the messages of one batch, whose columns were checked; ``first`` is the number of its first row.

    Raises StoreError, with ``where`` and the row's number, for a null and for an id that is not hexadecimal.
    """
    columns: dict[str, list[Any]] = {}
    for name in (ID, BODY, *([REFERENCES] if REFERENCES in batch.schema.names else [])):
        column = batch.column(name)
        if column.null_count:
            raise StoreError(f"{where}, row {first + column.is_null().to_pylist().index(True)}: {name} is null")
        columns[name] = column.to_pylist()
    ids = columns[ID]
    if _is_text(batch.schema.field(ID).type):
        ids = [_from_hex(text, where, first + at) for at, text in enumerate(ids)]
    return ids, columns[BODY], columns.get(REFERENCES)


def _from_hex(text: str, where: str, row: int) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise StoreError(f"{where}, row {row}: the id {text!r} is not 32 hexadecimal digits") from error
