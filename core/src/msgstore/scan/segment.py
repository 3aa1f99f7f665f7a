"""Scan of one segment file, its report, and the fields of records.

Fields are what third-party record types hold in addition to id and body. Tools read them, one whole record at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import (
    BoundRecord,
    BrokenPlugin,
    Buffer,
    CheckBody,
    Columns,
    Damage,
    RecordError,
    RecordField,
    SegmentScan,
)
from msgstore.directory import SETTINGS
from msgstore.files import Files
from msgstore.scan.formats import OWN_RECORD, FormatSet, OpenFormat

Values = tuple[object, ...]
"""Field values in the order of the descriptor's fields."""

ANOTHER_BODY = "another_body"
"""Reason of the damage that a later copy of an id is, if its body is not that of the first."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes, "time": int}


@attrs.frozen
class SegmentReport:
    """Result of the scan of one file."""

    path: Path
    format: OpenFormat
    size: int
    scan: SegmentScan
    values: Mapping[int, Values | None] = attrs.field(factory=dict)
    """Offset to the fields of each record whose type has fields, if requested. Values are in the order of
    ``format.with_fields[type byte].fields``; None if the fields cannot be read."""

    @property
    def is_damaged(self) -> bool:
        """True for torn and corrupt ends, bad headers and failed checks. Duplicates alone are no damage."""
        return bool(damaged_spans(self))

    def count_types(self) -> dict[str, int]:
        """Return record type name to number of records. Empty if records have no types."""
        names = self.format.type_names
        return {names.get(byte, str(byte)): count for byte, count in sorted(Counter(self.scan.records.types).items()) if byte}

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``msgstore scan --json`` prints for the segment."""
        scan = self.scan
        return {
            "path": str(self.path),
            "format": self.format.name,
            "size": self.size,
            "header": scan.header,
            "records_by_name": self.count_types(),
            "records": list(self._rows(scan.records)),
            "holes": [{"offset": at, "size": size} for at, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)],
            "duplicates": list(self._rows(scan.duplicates)),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
        }

    def _rows(self, columns: Columns) -> Iterator[dict[str, Any]]:
        """Yield one object per record, with the member ``fields`` if its type has fields and they were requested."""
        for msg_id, offset, size, byte in columns.rows():
            row: dict[str, Any] = {"offset": offset, "size": size, "type": byte if self.format.typed else None}
            row |= {"record": self.format.type_names.get(byte), "id": msg_id.hex()}
            if offset in self.values:
                row["fields"] = fields_as_json(self.format.with_fields[byte], self.values[offset])
            yield row


def scan_file(
    files: Files,
    path: Path,
    form: OpenFormat,
    check_body: CheckBody | None = None,
    *,
    fields: bool = False,
) -> SegmentReport:
    """Scan the segment ``path``. With ``fields``, also read the fields of its records.

    Raises OSError if the file cannot be read, and BrokenPlugin if the format fails or fields do not fit their descriptor. The
    bytes of the file cause no other exception.
    """
    with files.view(path) as data:
        try:
            scan = with_conflicts(path, form, data, form.scan(data, check_body=check_body))
        except BrokenPlugin as error:
            raise BrokenPlugin(f"{path}: {error}") from error.__cause__
        values: dict[int, Values | None] = {}
        for columns in (scan.records, scan.duplicates) if fields and form.with_fields else ():
            for _, offset, size, byte in columns.rows():
                if (bound := form.with_fields.get(byte)) is not None:
                    values[offset] = _values_at(path, offset, form, bound, data[offset : offset + size])
        return SegmentReport(path, form, len(data), scan, values)


def with_conflicts(path: Path, form: OpenFormat, data: Buffer, scan: SegmentScan) -> SegmentScan:
    """Return the scan of the segment ``path`` with each later copy of an id that has another body as damage.

    Only in a directory that a broker wrote, and for its bodies: an id names one body there. A fault of RabbitMQ's compaction
    leaves two in one segment, and nothing tells which of them is right.
    """
    conflicts = conflicting(path, form, data, scan.records, scan.duplicates)
    if not conflicts:
        return scan
    same, damage = Columns(), list(scan.damage)
    for row in scan.duplicates.rows():
        if row[1] in conflicts:
            damage.append(Damage(row[1], row[2], ANOTHER_BODY))
        else:
            same.add(*row)
    return attrs.evolve(scan, duplicates=same, damage=sorted(damage, key=lambda span: span.offset))


def conflicting(path: Path, form: OpenFormat, data: Buffer, first: Columns, later: Columns) -> set[int]:
    """Return the offsets of the ``later`` copies of an id whose body is not that of the ``first``; see ``with_conflicts``."""
    if not len(later) or (path.parent / SETTINGS).exists():
        return set()

    def digest(offset: int, size: int) -> bytes | None:
        begin, end = form.format.body_span(data, offset, size)
        return blake2b(data[begin:end]).digest() if form.catalogue.known_codec(bytes(data[begin : begin + 2])) else None

    copied = set(later.id_list())
    digests = {msg_id: digest(offset, size) for msg_id, offset, size, _ in first.rows() if msg_id in copied}
    found = ((offset, digests[msg_id], digest(offset, size)) for msg_id, offset, size, _ in later.rows())
    return {offset for offset, one, other in found if one and other and one != other}


def damaged_spans(report: SegmentReport) -> list[Damage]:
    """Return every damaged span of a segment. Nothing after a bad end is read, so that is one span."""
    scan = report.scan
    spans = list(scan.damage)
    if scan.header not in (None, "ok"):
        spans.insert(0, Damage(0, min(len(report.format.format.header), report.size), str(scan.header)))
    if scan.end.state != "clean":
        spans.append(Damage(scan.end.offset, report.size - scan.end.offset, scan.end.reason or scan.end.state))
    return spans


# -- fields ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class WholeRecord:
    """A record that was read and checked. :func:`describe` returns its type and fields."""

    path: Path
    offset: int
    """Offset in the file at the time of the read."""
    form: OpenFormat = attrs.field(repr=False)
    data: bytes
    body: bytes
    """The stored body."""


@attrs.frozen
class Described:
    """Record type and field values of one record."""

    record: str | None
    """Name of the record type, or None in a format without types."""
    bound: BoundRecord | None = None
    """With the ``fields`` (name, kind) of the record. None if there are none."""
    values: Values | None = None
    """Values of these fields. Times are nanoseconds since 1970. None if the record has no readable values."""

    def as_json(self) -> dict[str, Any]:
        """Return the members of an object of ``--json``. ``fields`` is present only if the record type has fields."""
        members: dict[str, Any] = {"record": self.record}
        if self.bound is not None:
            members["fields"] = fields_as_json(self.bound, self.values)
        return members

    def as_text(self) -> dict[str, str]:
        """Return field name to printable text."""
        return {name: _printable(value) for name, value in (self.as_json().get("fields") or {}).items()}


def values_of(form: OpenFormat, bound: BoundRecord, record: bytes) -> Values | None:
    """Return the fields of one whole record of ``form``, or None if they cannot be read. Raises BrokenPlugin if they do not fit
    the descriptor."""
    try:
        return check_values(bound.fields, bound.record.fields(record))  # type: ignore[attr-defined]  # one of RecordFields
    except RecordError:
        return None
    except Exception:
        descriptor = form.catalogue.record(form.name, bound.name) if bound.byte else form.descriptor
        with form.catalogue.attribute_errors(descriptor, "failed in fields", passing=MemoryError):
            raise


def check_values(fields: Sequence[RecordField], values: object) -> Values:
    """Return ``values`` if there is one of the right kind for each field. Raises TypeError."""
    if not isinstance(values, tuple) or len(values) != len(fields):
        raise TypeError(f"it returns {values!r} ({type(values).__name__}), not a tuple with {len(fields)} values")
    for field, value in zip(fields, values, strict=True):
        is_small = not isinstance(value, int) or -(2**63) <= value < 2**63
        if value is not None and not (type(value) is _TYPES[field.kind] and is_small):
            raise TypeError(f"it returns {value!r} for the field {field.name!r} of kind {field.kind!r}")
    return values


def _values_at(path: Path, offset: int, form: OpenFormat, bound: BoundRecord, record: bytes) -> Values | None:
    """Return the fields as :func:`values_of` does. A BrokenPlugin error names the place of the record."""
    try:
        return values_of(form, bound, record)
    except BrokenPlugin as error:
        raise BrokenPlugin(f"{path} at offset {offset}: {error}") from error


def is_sound_by_default(formats: FormatSet, name: str, msg_id: bytes, record: bytes) -> bool:
    """Return True if the format of this name reads a record when no record type has options, such as a key."""
    with suppress(Exception):  # what is wrong with it was said
        FormatSet(formats.catalogue, formats.bindings).by_name(name).format.decode(msg_id, record)
        return True
    return False


def describe(record: WholeRecord) -> Described:
    """Return the record type and the fields of a record. Raises BrokenPlugin if the fields do not fit the descriptor.

    Only a scan reveals the type byte. If the format has several types, the record is scanned as a segment of one record.
    """
    form = record.form
    if not form.typed and not form.with_fields:
        return Described(None)
    if list(form.type_names.values()) == [OWN_RECORD]:
        return Described(OWN_RECORD)
    scan = form.format.scan(form.format.header + record.data)
    if len(scan.records) != 1:
        return Described(None)
    type_byte = scan.records.types[0]
    bound = form.with_fields.get(type_byte)
    values = _values_at(record.path, record.offset, form, bound, record.data) if bound else None
    return Described(form.type_names.get(type_byte), bound, values)


def fields_as_json(bound: BoundRecord, values: Values | None) -> dict[str, Any] | None:
    """Return field name to JSON value. Times become RFC 3339 text, which keeps the nanoseconds; bytes become hexadecimal."""
    if values is None:
        return None
    pairs = zip(bound.fields, values, strict=True)
    return {field.name: field_as_json(field, value) for field, value in pairs}


def field_as_json(field: RecordField, value: Any) -> Any:
    """Return the value of one field as :func:`fields_as_json` does."""
    return None if value is None else _AS_JSON[field.kind](value)


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except OverflowError:
        return f"{nanoseconds} ns"


_AS_JSON: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": lambda value: value if isfinite(value) else str(value),
    "text": str,
    "bytes": bytes.hex,
    "time": _time,
}


def _printable(value: object) -> str:
    """Return text without control characters, so that a record cannot send commands to a terminal."""
    text = "-" if value is None else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
