"""Record types: what a message looks like inside a segment of a format that has the capability TYPED_RECORDS.

A record type owns the bytes of its records. In ``v2`` each begins ``type 1, size 4, id 16`` (big-endian, size = the whole
record); what stands behind the id is the record type's own. A complete one that keeps a timestamp beside the body::

    class Stamped:
        overhead = 29

        def __init__(self, context):
            self._byte = context.byte

        def encode(self, ids, bodies):
            sizes = [29 + len(body) for body in bodies]
            now = time.time_ns()
            heads = (struct.pack(">BI16sQ", self._byte, size, id, now) for size, id in zip(sizes, ids))
            return b"".join(chain.from_iterable(zip(heads, bodies))), sizes

        def decode(self, record):
            return record[29:]

        def check(self, data, offset, size):
            return None

        def body_span(self, offset, size):
            return offset + 29, offset + size

It says what it keeps in its descriptor, ``fields=(RecordField("time", "time"),)``, and then has a method for tools::

        def fields(self, record):
            return struct.unpack_from(">Q", record, 21)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, get_args

import attrs

from msgstore.contract.buffers import Buffer
from msgstore.contract.descriptors import Descriptor

FieldKind = Literal["int", "float", "text", "bytes", "time"]
"""``int`` and ``time`` (nanoseconds since the epoch) are integers that fit into 64 bits with a sign."""

_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
SCAN_COLUMNS = frozenset({"store", "file", "format", "offset", "size", "type", "id", "body", "references"})
"""What a scan says of every record: no field may have one of these names."""


def _check_field_name(_: object, __: object, value: str) -> None:
    if not isinstance(value, str) or _FIELD_NAME.fullmatch(value) is None:
        raise ValueError(
            f"the field's name {value!r} is not lower-case letters, digits and '_', with a letter first (at most 64)"
        )
    if value in SCAN_COLUMNS:
        raise ValueError(f"a field cannot be named {value!r}: scans call something else so")


def _check_field_kind(_: object, __: object, value: str) -> None:
    if value not in get_args(FieldKind):
        raise ValueError(f"the field's kind {value!r} is not one of {', '.join(get_args(FieldKind))}")


@attrs.frozen
class RecordField:
    """Something that a record holds beside its id and its body, or that a body codec finds in a body. Since contract 2.1."""

    name: str = attrs.field(validator=_check_field_name)
    """Lower-case letters, digits and ``_``; none of SCAN_COLUMNS. Tables and columns are headed by it."""
    kind: FieldKind = attrs.field(validator=_check_field_kind)
    """What its values are."""
    summary: str = ""
    """One line for ``msgstore plugins``."""


def as_fields(values: Iterable[RecordField]) -> tuple[RecordField, ...]:
    return tuple(values)


def check_fields(_: object, __: object, value: tuple[RecordField, ...]) -> None:
    if not all(isinstance(field, RecordField) for field in value):
        raise ValueError(f"the fields {value!r} are not RecordFields")
    names = [field.name for field in value]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two fields are named {twice!r}")


@attrs.frozen(kw_only=True)
class RecordTypeDescriptor(Descriptor):
    """``factory(RecordContext) -> RecordType``.

    The options of a record type are for writing: tools read records without a configuration, so each option needs a default,
    and what it said must be in the record. None may be named ``byte``, the key beside which options stand.
    """

    format: str
    """The name of the segment format whose records it writes."""
    assigned_byte: int | None = None
    """The type byte that the format's own specification assigns to it. Without one, a configuration must bind 128-255."""
    fields: tuple[RecordField, ...] = attrs.field(default=(), converter=as_fields, validator=check_fields)
    """What its records hold beside id and body. A record type whose descriptor names any is a RecordTypeWithFields."""

    def __attrs_post_init__(self) -> None:
        for option in attrs.fields(self.options):
            if option.name == "byte":
                raise ValueError("an option of a record type cannot be named 'byte': a configuration writes the type byte so")
            if option.default is attrs.NOTHING:
                raise ValueError(f"the option {option.name!r} has no default: records are read without a configuration, too")


@attrs.frozen
class RecordContext:
    """What a record type's factory is called with."""

    options: Any
    """The backend's own keys: an instance of the descriptor's ``options``."""
    byte: int
    """The type byte that this store's configuration binds the record type to."""


class RecordType(Protocol):
    """Bytes of one kind of record. Called under the store's lock or from a scan; must keep no state between calls."""

    overhead: int
    """Bytes that a record has beside its body, whatever the options; a record of a smaller size is corrupt."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """All records of a batch as one string, and the size of each in bytes. Called once a flush."""
        ...

    def decode(self, record: bytes) -> bytes:
        """The body of one whole record whose type, size and id the format has checked.

        Raises RecordError when the record's own check fails. Called for each read.
        """
        ...

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        """Why the whole record at ``offset`` of ``data`` is damaged (such as ``"checksum_mismatch"``), or None.

        Called for each record of a scan. A damaged record is reported and the scan goes on behind it.
        """
        ...

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        """Where the body of the record at ``offset`` begins and ends, in offsets of the same buffer."""
        ...


class RecordTypeWithFields(RecordType, Protocol):
    """A record type whose descriptor names fields. Since contract 2.1."""

    def fields(self, record: bytes) -> tuple[object, ...]:
        """The values of one whole record, in the order of the descriptor; None where the record has none.

        Called by tools, never on the way of reads and writes, for records of its type that have passed ``check``; written by
        whatever options. Raises RecordError if the record cannot say: tools then show it without fields.
        """
        ...


@attrs.frozen
class BoundRecord:
    """A record type as a store uses it."""

    name: str
    """The record type's."""
    byte: int
    """The type byte of its records in this store."""
    record: RecordType
    """The record type, made."""
    fields: tuple[RecordField, ...] = ()
    """Those of its descriptor. Since contract 2.1."""
