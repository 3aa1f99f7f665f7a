"""Segment formats by the extension of a file, with the record types that a directory binds to type bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from msgstore.config import structure
from msgstore.contract import (
    BoundRecord,
    Capability,
    ConfigError,
    FormatContext,
    RecordContext,
    RecordTypeDescriptor,
    SegmentFormat,
    SegmentFormatDescriptor,
)
from msgstore.plugins.catalogue import Catalogue

OWN_RECORD = "message"
"""Every format's own record type, bound by the format itself."""
THIRD_PARTY_BYTES = range(128, 256)


@attrs.frozen
class OpenFormat:
    """A format, made, with what its descriptor says of it."""

    descriptor: SegmentFormatDescriptor
    format: SegmentFormat

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def typed(self) -> bool:
        return Capability.TYPED_RECORDS in self.descriptor.capabilities

    @property
    def self_describing(self) -> bool:
        return Capability.SELF_DESCRIBING in self.descriptor.capabilities


class FormatSet:
    """The formats of one store or one scan. Each is made when the first file of its extension turns up."""

    def __init__(
        self,
        catalogue: Catalogue,
        bindings: Mapping[str, int] | None = None,
        *,
        record: str = OWN_RECORD,
        options: Mapping[str, Any] | None = None,
        options_of: str = "",
        where: str = "",
    ) -> None:
        """``record`` is what new messages are written as; ``options`` are those of the format ``options_of``."""
        self.catalogue = catalogue
        self.bindings = dict(bindings or {})
        self._record = record
        self._options = dict(options or {})
        self._options_of = options_of
        self._where = where
        self._made: dict[str, OpenFormat] = {}
        self.extensions = catalogue.formats_by_extension()
        """Of everything that can be read, to the format's name."""
        self.leftovers = catalogue.leftover_extensions()
        """Of these those of files that another program left behind."""

    def by_extension(self, extension: str) -> OpenFormat:
        return self.by_name(self.extensions[extension])

    def by_name(self, name: str) -> OpenFormat:
        if name not in self._made:
            descriptor = self.catalogue.format(name)
            given = self._options if name == self._options_of else {}
            options = structure(descriptor.options, given, f"{self._where} format")
            context = FormatContext(options, self._bound(descriptor), self._record if name == self._options_of else OWN_RECORD)
            self._made[name] = OpenFormat(descriptor, self.catalogue.make(descriptor, context))
        return self._made[name]

    def _bound(self, descriptor: SegmentFormatDescriptor) -> tuple[BoundRecord, ...]:
        if Capability.TYPED_RECORDS not in descriptor.capabilities:
            return ()
        found = []
        for name, byte in self.bindings.items():
            record = self.catalogue.record(descriptor.name, name)
            options = structure(record.options, {}, f"{self._where} record {name}")
            found.append(BoundRecord(name, byte, self.catalogue.make(record, RecordContext(options, byte))))
        return tuple(found)


def check_bindings(catalogue: Catalogue, format_name: str, bindings: Mapping[str, object], where: str) -> dict[str, int]:
    """The bindings of a configuration or a command line, checked. Raises ConfigError, or the catalogue's errors.

    A format's specification owns the bytes 0-127: there a record type can only have the byte that is assigned to it.
    """
    checked: dict[str, int] = {}
    for name, byte in bindings.items():
        descriptor = catalogue.record(format_name, name)
        if name == OWN_RECORD and byte != descriptor.assigned_byte:
            own = "" if descriptor.assigned_byte is None else f", and has byte {descriptor.assigned_byte}"
            raise ConfigError(f"{where} records: {name} = {byte!r}: {name} is the format's own record type{own}; leave it out")
        if type(byte) is not int or not _allowed(descriptor, byte):
            assigned = "" if descriptor.assigned_byte is None else f", or {descriptor.assigned_byte}, which is assigned to it"
            raise ConfigError(f"{where} records: {name} = {byte!r}: a record type is bound to a byte from 128 to 255{assigned}")
        for other, taken in checked.items():
            if taken == byte:
                raise ConfigError(f"{where} records: {other} and {name} are both bound to byte {byte}; give each its own")
        checked[name] = byte
    return checked


def assigned_binding(catalogue: Catalogue, format_name: str, record: str, where: str) -> dict[str, int]:
    """The binding of a record type that is written but not bound: its assigned byte. ConfigError if it has none."""
    byte = catalogue.record(format_name, record).assigned_byte
    if byte is None:
        raise ConfigError(
            f'{where} record: {record!r} is bound to no byte; write format = {{ use = "{format_name}", '
            f"records = {{ {record} = 128 }} }} with a byte from 128 to 255 of your choice"
        )
    return {record: byte}


def _allowed(descriptor: RecordTypeDescriptor, byte: int) -> bool:
    return byte in THIRD_PARTY_BYTES or byte == descriptor.assigned_byte
