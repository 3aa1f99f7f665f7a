"""Segment formats by file extension, with the record types that a directory binds to type bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import attrs

from msgstore.config import structure
from msgstore.contract import (
    BoundRecord,
    BrokenPlugin,
    Buffer,
    Capability,
    CheckBody,
    CompactableFormat,
    FormatContext,
    PluginError,
    RecordContext,
    SegmentFormat,
    SegmentFormatDescriptor,
    SegmentScan,
)
from msgstore.directory import Settings, unread_segments
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import Provider
from msgstore.scan.bindings import OWN_RECORD
from msgstore.scan.sound import scan_checked


@attrs.frozen
class OpenFormat:
    """A format instance with the facts of its descriptor."""

    descriptor: SegmentFormatDescriptor
    format: SegmentFormat
    type_names: Mapping[int, str] = attrs.field(factory=dict)
    """Type byte to the name of each readable record type. Empty if records have no types."""
    with_fields: Mapping[int, BoundRecord] = attrs.field(factory=dict)
    """Type byte to record type, for the types that have fields in addition to id and body."""
    framed: frozenset[int] = frozenset()
    """Type bytes of records that have the same number of bytes before and after every body. 0 stands for a format without
    types."""
    provider: Provider | None = None
    """The distribution that provides the format."""

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
    def verbatim(self) -> bool:
        return Capability.VERBATIM in self.descriptor.capabilities

    @property
    def compactable(self) -> CompactableFormat | None:
        """The format itself if its segments can be compacted in place, else None."""
        return cast("CompactableFormat", self.format) if Capability.COMPACTABLE in self.descriptor.capabilities else None

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        """Return the checked scan of ``data``. Raises BrokenPlugin if the format raises, or if its result is impossible."""
        with self.attribute_errors("scan"):
            return scan_checked(self.format, data, start, check_body)

    @contextmanager
    def attribute_errors(self, call: str) -> Iterator[None]:
        """Convert exceptions of a call of the format to BrokenPlugin, which names the plugin and its distribution."""
        try:
            yield
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            raise BrokenPlugin(failure_message("segment format", self.name, self.provider, call, error)) from error


def failure_message(noun: str, name: str, provider: Provider | None, call: str, error: BaseException) -> str:
    """Return a sentence with the failed plugin and method, followed by what to do."""
    source, install = (f" of {provider}", provider.distribution) if provider else ("", "the distribution that provides it")
    return (
        f"the {noun} {name!r}{source} failed in {call}: {type(error).__name__}: {error}. Report it to its authors, or try: "
        f"pip install --upgrade {install}"
    )


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
    ) -> None:
        """``record`` is the record type of new messages; ``record_options`` maps record types to options. ``options`` and
        ``record`` apply to ``write_format``, the name of the format that the store writes."""
        self.catalogue = catalogue
        self.bindings = dict(bindings or {})
        self._record = record
        self._record_options = record_options or {}
        self._options = dict(options or {})
        self._write_format = write_format
        self._where = where
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
            descriptor = self.catalogue.format(name)
            given = self._options if name == self._write_format else {}
            options = structure(descriptor.options, given, f"{self._where} format")
            bound = self._bound_records(descriptor)
            names = self._type_names(descriptor, bound)
            context = FormatContext(options, bound, self._record if name == self._write_format else OWN_RECORD)
            self._opened[name] = OpenFormat(
                descriptor,
                self.catalogue.make(descriptor, context),
                names,
                {record.byte: record for record in bound if record.fields},
                self._framed_types(descriptor, names),
                self.catalogue.provider(descriptor),
            )
        return self._opened[name]

    def _bound_records(self, descriptor: SegmentFormatDescriptor) -> tuple[BoundRecord, ...]:
        if Capability.TYPED_RECORDS not in descriptor.capabilities:
            return ()
        found = []
        for name, byte in self.bindings.items():
            record = self.catalogue.record(descriptor.name, name)
            options = structure(record.options, self._record_options.get(name, {}), f"{self._where} record {name}")
            record_type = self.catalogue.make(record, RecordContext(options, byte))
            found.append(BoundRecord(name, byte, record_type, record.fields))
        return tuple(found)

    def _type_names(self, descriptor: SegmentFormatDescriptor, bound: tuple[BoundRecord, ...]) -> dict[int, str]:
        names = {record.byte: record.name for record in bound}
        if Capability.TYPED_RECORDS in descriptor.capabilities:
            with suppress(PluginError):  # registering it is optional for a format
                own = self.catalogue.record(descriptor.name, OWN_RECORD).assigned_byte
                if own is not None:
                    names.setdefault(own, OWN_RECORD)
        return names

    def _framed_types(self, descriptor: SegmentFormatDescriptor, names: Mapping[int, str]) -> frozenset[int]:
        if Capability.TYPED_RECORDS not in descriptor.capabilities:
            return frozenset({0} if Capability.FRAMED in descriptor.capabilities else ())
        records = {byte: self.catalogue.record(descriptor.name, name) for byte, name in names.items()}
        return frozenset(byte for byte, record in records.items() if Capability.FRAMED in record.capabilities)
