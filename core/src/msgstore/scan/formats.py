"""Segment formats by file extension, with the record types that a directory binds to type bytes; scans that are checked.

Before bytes are truncated, overwritten or left out of an index because of a scan, its result is checked by two rules. The
records are columns of equal length, and they follow one another inside the file. With a result that breaks them, a compaction
would truncate live messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from operator import add, ge
from pathlib import Path
from typing import Any, cast, get_args

import attrs

from msgstore.contract import (
    BoundRecord,
    Buffer,
    Capability,
    CheckBody,
    Columns,
    CompactableFormat,
    ConfigError,
    Damage,
    FormatContext,
    PluginError,
    RecordContext,
    RecordTypeDescriptor,
    ScanEnd,
    SegmentFormat,
    SegmentFormatDescriptor,
    SegmentScan,
)
from msgstore.contract.formats import EndState
from msgstore.directory import Settings, unread_segments
from msgstore.option_values import refuse_unknown, structure
from msgstore.plugins.catalogue import Catalogue

OWN_RECORD = "message"
"""Name of the record type that every format with TYPED_RECORDS defines, and binds to its byte itself."""
NEW_STORE = "the new store:"
"""Beginning of the errors about the backends of a store that a job makes."""
THIRD_PARTY_BYTES = range(128, 256)
_NOT_ITS_FAULT = MemoryError, ConfigError, PluginError
"""Exceptions of a format's calls that are not about it: the last two are of the codec that checks bodies."""


@attrs.frozen
class OpenFormat:
    """A format instance with the facts of its descriptor."""

    catalogue: Catalogue
    """The catalogue that has the descriptor."""
    descriptor: SegmentFormatDescriptor
    format: SegmentFormat
    type_names: Mapping[int, str] = attrs.field(factory=dict)
    """Type byte to the name of each readable record type. Empty if records have no types."""
    with_fields: Mapping[int, BoundRecord] = attrs.field(factory=dict)
    """Type byte to record type, for the types that have fields in addition to id and body. A format without types that has
    fields is its own record type, with byte 0."""
    framed: frozenset[int] = frozenset()
    """Type bytes of records that have the same number of bytes before and after every body. 0 stands for a format without
    types."""

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def typed(self) -> bool:
        return Capability.TYPED_RECORDS in self.descriptor.capabilities

    @property
    def self_describing(self) -> bool:
        return Capability.SELF_DESCRIBING in self.descriptor.capabilities

    @property
    def compactable(self) -> CompactableFormat | None:
        """The format itself if its segments can be compacted in place, else None."""
        return cast("CompactableFormat", self.format) if Capability.COMPACTABLE in self.descriptor.capabilities else None

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        """Return the checked scan of ``data``. Raises BrokenPlugin if the format raises, or if its result is impossible."""
        with self.attribute_errors("scan"):
            return scan_checked(self.format, data, start, check_body)

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """Return the records of messages, and their sizes. Raises BrokenPlugin if the format raises, or if they do not fit."""
        with self.attribute_errors("encode"):
            encoded: object = self.format.encode(ids, bodies)
            if not isinstance(encoded, tuple) or [*map(type, encoded)] != [bytes, list]:
                raise TypeError(f"it returns {type(encoded).__name__}, not (bytes, list of sizes)")
            data, sizes = encoded
            if len(sizes) != len(ids):
                raise ValueError(f"it returns {len(sizes)} sizes for {len(ids)} messages")
            if sum(sizes) != len(data):
                raise ValueError(f"it returns {len(data)} bytes, and sizes of {sum(sizes)} bytes")
            return data, sizes

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        """Return the stored body of a whole record. Raises RecordError for a damaged one, BrokenPlugin if it is not bytes."""
        body = self.format.decode(msg_id, record)
        if not isinstance(body, bytes):
            with self.attribute_errors("decode"):
                raise TypeError(f"a body is bytes, not {type(body).__name__}")
        return body

    def attribute_errors(self, call: str) -> AbstractContextManager[None]:
        """Convert exceptions of a call of the format to BrokenPlugin, which names the plugin and its distribution: the format,
        or the record type that the format has called."""
        found = self.catalogue.descriptors(RecordTypeDescriptor) if self.type_names else ()
        types = [one for one in found if one.format == self.name and one.name in self.type_names.values()]
        return self.catalogue.attribute_errors(self.descriptor, f"failed in {call}", passing=_NOT_ITS_FAULT, types=types)


class FormatSet:
    """Formats of one store or one scan. Each is created when the first file of its extension is found."""

    def __init__(
        self,
        catalogue: Catalogue,
        bindings: Mapping[str, int] | None = None,
        *,
        record: str = OWN_RECORD,
        record_options: Mapping[str, Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        write_format: str = "",
        where: str = "",
        base: Path = Path(),
    ) -> None:
        """``record`` is the record type of new messages; ``record_options`` maps record types to options. ``options`` and
        ``record`` apply to ``write_format``, the name of the format that the store writes. Paths in options are relative to
        ``base``."""
        self.catalogue = catalogue
        self.bindings = dict(bindings or {})
        self._record = record
        self._record_options = record_options or {}
        self._options = dict(options or {})
        self._write_format = write_format
        self._where, self._base = where, base
        self._opened: dict[str, OpenFormat] = {}
        self.extensions = catalogue.formats_by_extension()
        """Extension of each readable file to the name of its format."""
        self.leftovers = catalogue.leftover_extensions()
        """The extensions among them of files that another program left behind."""

    def unread(self, names: Iterable[str], remembered: Settings | None) -> dict[str, PluginError]:
        """Return each segment name in a store's directory that no installed format reads, with the error that says what is
        missing."""
        formats = remembered.formats if remembered else []
        found = unread_segments(names, self.extensions)
        errors = ((name, self.catalogue.missing_format(Path(name).suffix, formats)) for name in found)
        return {name: error for name, error in errors if error is not None}

    def check_all_read(self, directory: Path, names: Iterable[str], remembered: Settings | None) -> None:
        """Raise PluginError for a segment that no installed format reads: all its messages would count as lost."""
        for name, error in self.unread(names, remembered).items():
            raise type(error)(f"{directory / name}: no installed format reads *{Path(name).suffix}: {error}")

    def by_extension(self, extension: str) -> OpenFormat:
        """Return the format that reads files with this extension."""
        return self.by_name(self.extensions[extension])

    def by_name(self, name: str) -> OpenFormat:
        """Return the format, created on the first call. Raises ConfigError for wrong options, PluginError if it is not
        available."""
        if name not in self._opened:
            self._opened[name] = self._make(self.catalogue.format(name))
        return self._opened[name]

    def _make(self, descriptor: SegmentFormatDescriptor) -> OpenFormat:
        is_written = descriptor.name == self._write_format
        options = structure(descriptor.options, self._options if is_written else {}, f"{self._where} format", self._base)
        bound: list[BoundRecord] = []
        types: dict[int, RecordTypeDescriptor] = {}
        framed = {0} if Capability.FRAMED in descriptor.capabilities else set[int]()
        if Capability.TYPED_RECORDS in descriptor.capabilities:
            for name, byte in self.bindings.items():
                types[byte] = record = self.catalogue.record(descriptor.name, name)
                given = self._record_options.get(name, {})
                context = RecordContext(structure(record.options, given, f"{self._where} record {name}", self._base), byte)
                bound.append(BoundRecord(name, byte, self.catalogue.make(record, context), record.fields))
            with suppress(PluginError):  # registering it is optional for a format
                own = self.catalogue.record(descriptor.name, OWN_RECORD)
                if own.assigned_byte is not None:
                    types.setdefault(own.assigned_byte, own)
            framed = {byte for byte, record in types.items() if Capability.FRAMED in record.capabilities}
        made = self.catalogue.make(descriptor, FormatContext(options, tuple(bound), self._record if is_written else OWN_RECORD))
        names = {byte: record.name for byte, record in types.items()}
        if descriptor.fields:
            bound.append(BoundRecord(descriptor.name, 0, made, descriptor.fields))
        with_fields = {record.byte: record for record in bound if record.fields}
        return OpenFormat(self.catalogue, descriptor, made, names, with_fields, frozenset(framed))


# -- bindings of record types to type bytes, as a configuration states them ------------------------------------------------


@attrs.frozen
class Binding:
    """A record type of one store, with its type byte."""

    byte: int
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Keys as the configuration has them, already checked."""


def check_bindings(
    catalogue: Catalogue,
    format_name: str,
    bindings: Mapping[str, object],
    where: str,
    remembered: Mapping[str, int] | None = None,
    base: Path = Path(),
) -> dict[str, Binding]:
    """Check the bindings of a configuration or a command line: NAME = BYTE, or NAME = { byte = BYTE, OPTION = ... }.

    A table without ``byte`` gets the byte that the directory remembers, else the byte that the format's specification assigns.
    The specification owns the bytes 0-127: there, a record type can only have its assigned byte. Raises ConfigError,
    PluginError.
    """
    checked: dict[str, Binding] = {}
    for name, given in bindings.items():
        descriptor = catalogue.record(format_name, name)
        options: Mapping[str, Any] = {}
        byte = given
        if isinstance(given, Mapping):
            refuse_unknown(given, ["byte", *attrs.fields_dict(descriptor.options)], f"{where} records {name}")
            options = {key: value for key, value in given.items() if key != "byte"}
            structure(descriptor.options, options, f"{where} records {name}", base)
            byte = given.get("byte", (remembered or {}).get(name, descriptor.assigned_byte))
            if byte is None:
                raise ConfigError(
                    f"{where} records: {name} has no byte. Write {name} = {{ byte = 128, ... }} with a byte from 128 to 255 of "
                    f"your choice."
                )
        if name == OWN_RECORD and byte != descriptor.assigned_byte:
            own = "" if descriptor.assigned_byte is None else f", and has byte {descriptor.assigned_byte}"
            raise ConfigError(f"{where} records: {name} = {byte!r}: {name} is the format's own record type{own}. Leave it out.")
        if type(byte) is not int or (byte not in THIRD_PARTY_BYTES and byte != descriptor.assigned_byte):
            assigned = "" if descriptor.assigned_byte is None else f", or {descriptor.assigned_byte}, which is assigned to it"
            raise ConfigError(f"{where} records: {name} = {byte!r}: a record type is bound to a byte from 128 to 255{assigned}")
        for other, taken in checked.items():
            if taken.byte == byte:
                raise ConfigError(f"{where} records: {other} and {name} are both bound to byte {byte}. Give each its own.")
        checked[name] = Binding(byte, options)
    return checked


def bind_records(catalogue: Catalogue, bindings: Iterable[tuple[str, int]], option: str) -> dict[str, int]:
    """Return the bindings of NAME=BYTE options, checked. Raises ConfigError, or PluginError for a name without a provider."""
    checked: dict[str, int] = {}
    for name, byte in bindings:
        formats = [found.format for found in catalogue.descriptors(RecordTypeDescriptor) if found.name == name]
        checked[name] = byte
        check_bindings(catalogue, formats[0] if formats else "v2", checked, option)
    return checked


def assigned_byte(catalogue: Catalogue, format_name: str, record: str, where: str) -> int:
    """Return the assigned byte of a record type that is written but not bound. Raises ConfigError if it has none."""
    descriptor = catalogue.record(format_name, record)
    byte = descriptor.assigned_byte
    if byte is None:
        names = ", ".join(attrs.fields_dict(descriptor.options))
        table = f" A table with byte gives its options, too: {names}." if names and where != "salvage" else ""
        options = {"salvage": f"--bind {record}=128", NEW_STORE: f"""--sink-option 'records={{"{record}": 128}}'"""}
        in_python = f'format={{"use": "{format_name}", "records": {{"{record}": 128}}}}'
        in_file = f'format = {{ use = "{format_name}", records = {{ {record} = 128 }} }}'
        written = options.get(where, in_python if where.startswith("open_store()") else in_file)
        raise ConfigError(
            f"{where} record: {record!r} is bound to no byte. Write {written}, with a byte from 128 to 255 of your choice."
            f"{table}"
        )
    return byte


# -- scans whose result is checked --------------------------------------------------------------------------------------

_STATES = get_args(EndState)
_BYTES = bytes, bytearray, memoryview


def scan_checked(form: SegmentFormat, data: Buffer, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
    """Return the format's scan of ``data``. Raises ValueError for an impossible result, TypeError for anything but a scan."""
    scan, total = form.scan(data, start=start, check_body=check_body), len(data)
    if not isinstance(scan, SegmentScan):
        raise TypeError(f"the scan returns {type(scan).__name__}, not a SegmentScan")
    end = scan.end
    if not isinstance(end, ScanEnd) or end.state not in _STATES or type(end.offset) is not int:
        raise TypeError(f"the scan returns the end {end!r}")
    if not 0 <= end.offset <= max(start, total) or (end.state == "clean" and end.offset < total):
        raise ValueError(f"the scan returns a {end.state} end at offset {end.offset} of {total} bytes")
    for span in scan.damage:
        if not isinstance(span, Damage) or not isinstance(span.reason, str):
            raise TypeError(f"the scan returns the damage {span!r}: its reason is no text")
    for columns, what in (scan.records, "records"), (scan.duplicates, "duplicates"):
        if not isinstance(columns, Columns) or not isinstance(columns.ids, _BYTES) or not isinstance(columns.types, _BYTES):
            raise TypeError(f"the scan returns {what} that are not Columns")
        _check_spans(columns.offsets, columns.sizes, what, start, total)
        if not len(columns.ids) == 16 * len(columns.offsets) == 16 * len(columns.types):
            raise ValueError(f"the scan returns {what} in columns of different lengths")
    _check_spans(scan.hole_offsets, scan.hole_sizes, "holes", 0, total)
    return scan


def _check_spans(offsets: array[int], sizes: array[int], what: str, start: int, total: int) -> None:
    """Check that spans are ordered, do not overlap, and lie inside the file. Costs 60 ns per span."""
    for column in (offsets, sizes):
        if not isinstance(column, array) or column.typecode in "fd" or not isinstance(column[0] if column else 0, int):
            raise TypeError(f"the scan returns {what} whose offsets and sizes are not arrays of integers")
    if len(offsets) != len(sizes):
        raise ValueError(f"the scan returns {what} in columns of different lengths")
    if not offsets:
        return
    if min(sizes) < (1 if what == "records" else 0):
        raise ValueError(f"the scan returns {what} of size 0")
    if not all(map(ge, offsets[1:], map(add, offsets, sizes))):
        raise ValueError(f"the scan returns {what} that overlap or are not ordered by offset")
    if offsets[0] < start or offsets[-1] + sizes[-1] > total:
        raise ValueError(f"the scan returns {what} outside the {total} bytes of the file")
