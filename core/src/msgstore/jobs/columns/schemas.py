"""Columns as Arrow schemas: of ``records``, ``damage`` and ``segments``, and of messages and counts. Needs pyarrow.

Messages in Parquet files and in Spark tasks pass the same checks, whose errors name the file or the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from msgstore.contract import ConfigError, RecordField, StoreError
from msgstore.jobs.inputs import SegmentInput, open_input
from msgstore.jobs.workers import OpenCodec

KINDS = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("us", "UTC"),
}
"""Arrow types of the fields that record types and codecs declare. All columns may be null."""

_PLACE = {"store": pa.string(), "file": pa.string(), "format": pa.string()}

RECORD = pa.schema(
    {**_PLACE, "offset": pa.int64(), "size": pa.int64(), "type": pa.int16(), "id": pa.binary(), "body": pa.binary()}
)
"""Columns of every record. ``type`` is null in a format without types. ``body`` is as stored; null from 2 GiB on, more than
a value of a column can have."""

DAMAGE = pa.schema({**_PLACE, "offset": pa.int64(), "length": pa.int64(), "reason": pa.string()})

_NUMBERS = ("size", "header", "records", "live", "dead", "holes", "duplicates", "damaged", "other")
SEGMENTS = pa.schema({**_PLACE, **dict.fromkeys(_NUMBERS, pa.int64()), "state": pa.string()})
"""Bytes, except ``records``: ``header + live + dead + holes + duplicates + damaged + other == size``."""


def records_schema(inputs: Iterable[SegmentInput], codec: OpenCodec | None = None) -> pa.Schema:
    """The columns of the records of ``inputs``: what every record has, what record types declare, and what the codec does.

    Record types share a column if they mean the same kind of thing by one name. Raises ConfigError if they do not, and
    PluginError.
    """
    columns: dict[str, tuple[str, str]] = {}
    for declared_by, field in _declared(inputs):
        other, kind = columns.setdefault(field.name, (declared_by, field.kind))
        if kind != field.kind:
            raise ConfigError(
                f"the {other} has a field {field.name!r} of kind {kind}, the {declared_by} one of kind {field.kind}: these "
                f"cannot be one column. Read their directories one by one."
            )
    for field in codec.fields if codec else ():
        other, _ = columns.setdefault(field.name, ("", field.kind))
        if other:
            raise ConfigError(f"the body codec and the {other} both have a field {field.name!r}. Read without the codec.")
    return pa.schema([*RECORD, *(pa.field(name, KINDS[kind]) for name, (_, kind) in columns.items())])


def project(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the columns ``names`` of ``schema``, in this order. Raises ConfigError for one that is not there."""
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"there is no column {name!r}; there are: {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in names])


def _declared(inputs: Iterable[SegmentInput]) -> Iterable[tuple[str, RecordField]]:
    alike = {(found.format, found.records): found for found in inputs}
    for _, found in sorted(alike.items()):
        for bound in open_input(found).with_fields.values():
            for field in bound.fields:
                yield f"{'record type' if bound.byte else 'segment format'} {bound.name!r}", field


# -- rows that others have written ---------------------------------------------------------------------------------------------

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

    Raises StoreError, with ``where`` and the row's number, for a null and for an invalid id.
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
    if set(map(len, ids)) - {16}:
        at, wrong = next((at, msg_id) for at, msg_id in enumerate(ids) if len(msg_id) != 16)
        raise StoreError(f"{where}, row {first + at}: the id {wrong.hex() or 'of no bytes'} has {len(wrong)} bytes, not 16")
    return ids, columns[BODY], columns.get(REFERENCES)


def _from_hex(text: str, where: str, row: int) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise StoreError(f"{where}, row {row}: the id {text!r} is not 32 hexadecimal digits") from error
