"""The columns of the relations ``records``, ``damage`` and ``segments``, as Arrow schemas. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from msgstore.contract import ConfigError, RecordField
from msgstore.jobs.inputs import SegmentInput, open_input
from msgstore.jobs.workers import OpenCodec

KINDS = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("us", "UTC"),
}
"""Of what record types and codecs declare. All columns may be null."""

_PLACE = {"store": pa.string(), "file": pa.string(), "format": pa.string()}

RECORD = pa.schema(
    {**_PLACE, "offset": pa.int64(), "size": pa.int64(), "type": pa.int16(), "id": pa.binary(), "body": pa.binary()}
)
"""What every record has; ``type`` is null in a format without types. ``body`` is as it is stored; null from 2 GiB on, more than
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
                yield f"record type {bound.name!r}", field
