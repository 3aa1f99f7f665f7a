"""Bindings of record types to type bytes and write options, as a configuration states them: parse and check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from msgstore.config import refuse_unknown, structure
from msgstore.contract import ConfigError, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue

OWN_RECORD = "message"
"""Name of the record type that every format with TYPED_RECORDS defines, and binds to its byte itself."""
THIRD_PARTY_BYTES = range(128, 256)


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
            structure(descriptor.options, options, f"{where} records {name}")
            byte = given.get("byte", (remembered or {}).get(name, descriptor.assigned_byte))
            if byte is None:
                raise ConfigError(
                    f"{where} records: {name} has no byte. Write {name} = {{ byte = 128, ... }} with a byte from 128 to 255 of "
                    f"your choice."
                )
        if name == OWN_RECORD and byte != descriptor.assigned_byte:
            own = "" if descriptor.assigned_byte is None else f", and has byte {descriptor.assigned_byte}"
            raise ConfigError(f"{where} records: {name} = {byte!r}: {name} is the format's own record type{own}. Leave it out.")
        if type(byte) is not int or not _allowed(descriptor, byte):
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
        formats = [
            found.descriptor.format
            for found in catalogue.registrations
            if isinstance(found.descriptor, RecordTypeDescriptor) and found.descriptor.name == name
        ]
        form = formats[0] if formats else "v2"
        bound = check_bindings(catalogue, form, {**checked, name: byte}, option)
        checked |= {bound_name: binding.byte for bound_name, binding in bound.items()}
    return checked


def assigned_byte(catalogue: Catalogue, format_name: str, record: str, where: str) -> int:
    """Return the assigned byte of a record type that is written but not bound. Raises ConfigError if it has none."""
    byte = catalogue.record(format_name, record).assigned_byte
    if byte is None:
        raise ConfigError(
            f'{where} record: {record!r} is bound to no byte. Write format = {{ use = "{format_name}", '
            f"records = {{ {record} = 128 }} }} with a byte from 128 to 255 of your choice."
        )
    return byte


def _allowed(descriptor: RecordTypeDescriptor, byte: int) -> bool:
    return byte in THIRD_PARTY_BYTES or byte == descriptor.assigned_byte
