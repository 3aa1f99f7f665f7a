"""Fields: named values of a message beside its body, for tools such as ``msgstore scan`` and for Parquet columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import attrs
from attrs.validators import deep_iterable, in_, instance_of, matches_re

from msgstore.contract.descriptors import Capability, Descriptor

FieldKind = Literal["int", "float", "text", "bytes", "time"]
"""``int`` and ``time`` (nanoseconds since the epoch) are signed 64-bit integers."""
SCAN_COLUMNS = frozenset({"store", "file", "format", "offset", "size", "type", "id", "body", "references"})
"""Columns of every scan. No field may have one of these names."""


@attrs.frozen
class RecordField:
    """Name of a field and kind of its values."""

    name: str = attrs.field(validator=matches_re(r"[a-z][a-z0-9_]{0,63}"))
    """Heading of tables and columns."""
    kind: FieldKind = attrs.field(validator=in_(get_args(FieldKind)))
    """Kind of the values."""
    summary: str = ""
    """One line for ``msgstore plugins``."""


def _as_tuple(fields: Iterable[RecordField]) -> tuple[RecordField, ...]:
    return tuple(fields)


def _check_fields(descriptor: Descriptor, _: object, value: tuple[RecordField, ...]) -> None:
    names = [field.name for field in value]
    if taken := SCAN_COLUMNS.intersection(names):
        raise ValueError(f"a field cannot be named {min(taken)!r}: every scan has a column of this name")
    if len(set(names)) < len(names):
        raise ValueError(f"two fields have the same name: {', '.join(names)}")
    if bool(value) != (Capability.FIELDS in descriptor.capabilities):
        raise ValueError("a backend has fields if, and only if, it claims the capability FIELDS")


@attrs.frozen(kw_only=True)
class DescriptorWithFields(Descriptor):
    """Descriptor of a backend that may have fields. Raises ValueError for fields that no table can have."""

    fields: tuple[RecordField, ...] = attrs.field(
        default=(), converter=_as_tuple, validator=[deep_iterable(instance_of(RecordField)), _check_fields]
    )
    """Values that each message has beside id and body, for the capability FIELDS."""
