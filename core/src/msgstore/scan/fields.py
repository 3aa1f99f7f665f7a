"""What records of a third party's types hold beside an id and a body: read by tools, one whole record at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import BoundRecord, BrokenPlugin, Buffer, Columns, RecordError, RecordField
from msgstore.scan.bindings import OWN_RECORD
from msgstore.scan.formats import OpenFormat

Values = tuple[object, ...]
"""In the order of the descriptor's fields."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes, "time": int}


@attrs.frozen
class WholeRecord:
    """One that was read and checked."""

    path: Path
    offset: int
    """Where it stood when it was read."""
    form: OpenFormat
    data: bytes
    body: bytes
    """As it is stored."""


@attrs.frozen
class Described:
    """The record type of a record, and what the record says beside its body."""

    record: str | None
    """The record type's name; None in a format whose records have no types."""
    bound: BoundRecord | None = None
    values: Values | None = None

    def as_json(self) -> dict[str, Any]:
        """The members of an object of ``--json``: ``fields`` only if the record type has some."""
        members: dict[str, Any] = {"record": self.record}
        if self.bound is not None:
            members["fields"] = fields_as_json(self.bound, self.values)
        return members

    def shown(self) -> dict[str, str]:
        """The fields by name, for people."""
        return {name: _printable(value) for name, value in (self.as_json().get("fields") or {}).items()}


def values_of(bound: BoundRecord, record: bytes) -> Values | None:
    """The fields of one whole record; None if it cannot say. Raises BrokenPlugin for what is not as the descriptor says."""
    try:
        values = bound.record.fields(record)  # type: ignore[attr-defined]  # of a RecordTypeWithFields
    except RecordError:
        return None
    except Exception as error:
        raise BrokenPlugin(
            f"the record type {bound.name!r} cannot say what a record holds: {type(error).__name__}: {error}"
        ) from error
    return checked(f"the record type {bound.name!r}", bound.fields, values)


def checked(who: str, fields: Sequence[RecordField], values: object) -> Values:
    """``values``, if they are one for each field and of its kind. Raises BrokenPlugin, which begins with ``who``."""
    if not isinstance(values, tuple) or len(values) != len(fields):
        raise BrokenPlugin(f"{who} gives {values!r} for its {len(fields)} fields")
    for field, value in zip(fields, values, strict=True):
        if value is not None and not _fits(field.kind, value):
            raise BrokenPlugin(f"{who} gives {value!r} for its field {field.name!r} of kind {field.kind!r}")
    return values


def values_at(form: OpenFormat, data: Buffer, *columns: Columns) -> dict[int, Values | None]:
    """Offset to fields, of each record in ``columns`` whose type has some. BrokenPlugin names the offset; its caller knows the
    file."""
    values = {}
    for found in columns if form.with_fields else ():
        for _, offset, size, type_byte in found.rows():
            bound = form.with_fields.get(type_byte)
            if bound is not None:
                try:
                    values[offset] = values_of(bound, data[offset : offset + size])
                except BrokenPlugin as error:
                    raise BrokenPlugin(f"at offset {offset}: {error}") from error
    return values


def describe(record: WholeRecord) -> Described:
    """Which type it is of only its format knows, which reads segments: so it is shown a small one where there are more types
    than one. Raises BrokenPlugin if its fields are not as the descriptor says."""
    form = record.form
    if not form.typed:
        return Described(None)
    if list(form.type_names.values()) == [OWN_RECORD]:
        return Described(OWN_RECORD)
    scan = form.format.scan(form.format.header + record.data)
    if len(scan.records) != 1:
        return Described(None)
    type_byte = scan.records.types[0]
    bound = form.with_fields.get(type_byte)
    try:
        values = values_of(bound, record.data) if bound else None
    except BrokenPlugin as error:
        raise BrokenPlugin(f"{record.path} at offset {record.offset}: {error}") from error
    return Described(form.type_names.get(type_byte), bound, values)


def fields_as_json(bound: BoundRecord, values: Values | None) -> dict[str, Any] | None:
    """By name. Times as text of RFC 3339, which keeps the nanoseconds where numbers are floats; bytes in hexadecimal."""
    if values is None:
        return None
    return {
        field.name: None if value is None else _AS_JSON[field.kind](value)
        for field, value in zip(bound.fields, values, strict=True)
    }


def _fits(kind: str, value: object) -> bool:
    if type(value) is not _TYPES[kind]:
        return False
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except OverflowError:
        return f"{nanoseconds} ns"


def _same(value: Any) -> Any:
    return value


_AS_JSON: Mapping[str, Callable[[Any], Any]] = {
    "int": _same,
    "float": lambda value: value if isfinite(value) else str(value),
    "text": _same,
    "bytes": bytes.hex,
    "time": _time,
}


def _printable(value: object) -> str:
    """Whatever stands in a record, a terminal is not told to do anything by it."""
    if value is None:
        return "-"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
