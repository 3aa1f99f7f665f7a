"""The one Arrow schema of messages: of Parquet files and of Spark, with the names of the JSON objects. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from msgstore.contract import ConfigError, MessageBatch, StoreError
from msgstore.jobs.messages.rows import (
    checked_row,
    checked_values,
    encode,
    has_origin,
    member_values,
    parse_json,
    printable_name,
)

ORIGIN = pa.struct([pa.field("file", pa.string()), pa.field("offset", pa.int64()), pa.field("size", pa.int64())])
MESSAGES = pa.schema([
    pa.field("system", pa.string(), nullable=False), pa.field("vhost", pa.string()), pa.field("queue", pa.string()),
    pa.field("partition", pa.int32()), pa.field("position", pa.int64(), nullable=False), pa.field("sequence", pa.int64()),
    pa.field("id", pa.string()), pa.field("size", pa.int64(), nullable=False), pa.field("sha256", pa.string(), nullable=False),
    pa.field("body", pa.binary(), nullable=False), pa.field("raw", pa.binary()), pa.field("exchange", pa.string()),
    pa.field("routing_keys", pa.list_(pa.string())), pa.field("properties", pa.string()), pa.field("headers", pa.string()),
    pa.field("raw_properties", pa.binary()), pa.field("timestamp_ms", pa.int64()), pa.field("expiry_ms", pa.int64()),
    pa.field("state", pa.string(), nullable=False), pa.field("certainty", pa.string(), nullable=False),
    pa.field("verified", pa.bool_()), pa.field("origin", ORIGIN, nullable=False),
])  # fmt: skip
_JSON = ("properties", "headers")
"""Columns of JSON text: their values have no common type."""


def chosen(names: str | None) -> pa.Schema:
    """Return the schema of the columns that are named, with commas between them; None: all. Raises ConfigError."""
    if names is None:
        return MESSAGES
    for name in (wanted := [name.strip() for name in names.split(",")]):
        if name not in MESSAGES.names:
            raise ConfigError(f"columns: there is no column {name!r}; there are: {', '.join(MESSAGES.names)}")
    return pa.schema([MESSAGES.field(name) for name in dict.fromkeys(wanted)])


def record_batch(batch: MessageBatch, names: Sequence[str] = MESSAGES.names) -> pa.RecordBatch:
    """Return the columns ``names`` of a batch. A column that is not asked for is not made."""
    vhost, queue = (text and printable_name(text) for text in (batch.name.vhost, batch.name.queue))
    batch = attrs.evolve(batch, name=attrs.evolve(batch.name, vhost=vhost, queue=queue))
    schema = pa.schema([MESSAGES.field(name) for name in names])
    arrays = []
    for field in schema:
        values = member_values(batch, field.name)
        if field.name in _JSON:
            values = [None if value is None else encode(value) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_columns(path: Path, schema: pa.Schema, *, ignore_others: bool) -> None:
    """Check the columns of a Parquet file by their names and types. Raises StoreError."""
    if not ignore_others and (others := [name for name in schema.names if name not in MESSAGES.names]):
        raise StoreError(
            f"{path}: a message does not have the columns {', '.join(others)}. Leave them out, or omit them with the option "
            f"ignore_others=true of the source (source=, --source-option)."
        )
    if "body" not in schema.names:
        raise StoreError(f"{path}: there must be a column 'body'; the columns are: {', '.join(schema.names)}")
    for field in schema:
        if field.name in MESSAGES.names and schema.names.count(field.name) > 1:
            raise StoreError(f"{path}: there are several columns {field.name!r}. Rename all but one.")
        is_id = field.name == "id" and _fits(field.type, pa.binary())
        if field.name in MESSAGES.names and not is_id and not _fits(field.type, (wanted := MESSAGES.field(field.name).type)):
            raise StoreError(f"{path}: the column {field.name!r} has the type {field.type}, and must have {wanted}. Cast it.")


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if both types have the same values in Python. Numbers may be too large: each row is checked for that."""
    kinds = pa.types
    if kinds.is_null(found):
        return True
    if kinds.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if kinds.is_struct(wanted):
        known = {field.name: field.type for field in wanted}
        return kinds.is_struct(found) and all(_fits(field.type, known[field.name]) for field in found if field.name in known)
    if kinds.is_list(wanted):
        is_list = isinstance(found, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
        return is_list and _fits(found.value_type, wanted.value_type)
    same: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
        "string": (kinds.is_string, kinds.is_large_string, kinds.is_string_view),
        "binary": (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary),
        "bool": (kinds.is_boolean,),
    }
    return any(is_kind(found) for is_kind in same.get(str(wanted), (kinds.is_integer,)))


def plain(table: pa.Table) -> pa.Table:
    """Return a table with plain columns instead of views, which pyarrow cannot select rows of."""
    kinds = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return table.cast(pa.schema([pa.field(field.name, kinds.get(field.type, field.type)) for field in table.schema]))


def to_rows(table: pa.Table) -> list[dict[str, Any] | str]:
    """Return the rows, and instead of one that has no form in Python, such as text that is not UTF-8, the reason."""
    try:
        return list(table.to_pylist())
    except (ValueError, pa.ArrowException) as error:
        half = table.num_rows // 2
        return [str(error)] if not half else to_rows(table.slice(0, half)) + to_rows(table.slice(half))


def _has_right_types(row: dict[str, Any]) -> bool:
    """Return True for a row with the types of ``MESSAGES`` if the values are right that these types leave open."""
    texts = (row.get("properties"), row.get("headers"))
    return row["body"] is not None and all(isinstance(one, dict | None) for one in texts)


def checked_rows(table: pa.Table, numbers: Sequence[int], file: str) -> Iterator[dict[str, Any] | str]:
    """Yield rows of a Parquet file as the objects that :func:`msgstore.jobs.messages.rows.batch_of` takes, and instead of one
    that is no message the reason.

    ``numbers``: of the rows in the file. A message without an origin gets the file and the number of its row, so that
    two equal messages are different ones.
    """
    is_typed = all(field.type == MESSAGES.field(field.name).type for field in table.schema)
    for number, row in zip(numbers, to_rows(table), strict=True):
        try:
            if isinstance(row, str):
                raise ValueError(row)  # noqa: TRY004 - one class of errors
            for member in _JSON:
                if row.get(member) is not None:
                    row[member] = parse_json(row[member])
            if isinstance(row.get("id"), bytes):
                row["id"] = row["id"].hex()
            found = checked_values(row) if is_typed and _has_right_types(row) else checked_row(row)
            if not has_origin(found):
                found["origin"] = {"file": printable_name(file), "offset": number, "size": 1}
            yield found
        except ValueError as error:
            yield f"row {number} is not a message: {error}"
