"""Segment formats by the extension of a file, with the record types that a directory binds to type bytes."""

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
    """A format, made, with what its descriptor says of it."""

    descriptor: SegmentFormatDescriptor
    format: SegmentFormat
    type_names: Mapping[int, str] = attrs.field(factory=dict)
    """Of the record types that it reads, by their type bytes; empty if its records have no types."""
    with_fields: Mapping[int, BoundRecord] = attrs.field(factory=dict)
    """Of these the ones whose records hold more than an id and a body."""
    framed: frozenset[int] = frozenset()
    """Type bytes of records whose bodies all have as much in front of them, and behind them; 0 of a format without types."""
    provider: Provider | None = None
    """The distribution that it comes from."""

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
        """The format itself if its segments can be compacted in place."""
        return cast("CompactableFormat", self.format) if Capability.COMPACTABLE in self.descriptor.capabilities else None

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        """What the format says of ``data``, checked. Raises BrokenPlugin if it raises, or if that cannot be true."""
        with self.blamed("scan"):
            return scan_checked(self.format, data, start, check_body)

    @contextmanager
    def blamed(self, call: str) -> Iterator[None]:
        """Around a call of the format: what it raises becomes BrokenPlugin, which names the plugin and its distribution."""
        try:
            yield
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            raise BrokenPlugin(blame("segment format", self.name, self.provider, call, error)) from error


def blame(noun: str, name: str, provider: Provider | None, call: str, error: BaseException) -> str:
    """One sentence: which plugin failed, and in which of its methods. Then what to do."""
    whose, install = (f" of {provider}", provider.distribution) if provider else ("", "the distribution that provides it")
    return (
        f"the {noun} {name!r}{whose} failed in {call}: {type(error).__name__}: {error}. Tell its authors, or try: "
        f"pip install --upgrade {install}"
    )


class FormatSet:
    """The formats of one store or one scan. Each is made when the first file of its extension turns up."""

    def __init__(
        self,
        catalogue: Catalogue,
        bindings: Mapping[str, int] | None = None,
        *,
        record: str = OWN_RECORD,
        record_options: Mapping[str, Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        options_of: str = "",
        where: str = "",
    ) -> None:
        """``record`` is what new messages are written as, ``record_options`` those of record types by name; ``options``
        are those of the format ``options_of``."""
        self.catalogue = catalogue
        self.bindings = dict(bindings or {})
        self._record = record
        self._record_options = record_options or {}
        self._options = dict(options or {})
        self._options_of = options_of
        self._where = where
        self._made: dict[str, OpenFormat] = {}
        self.extensions = catalogue.formats_by_extension()
        """Of everything that can be read, to the format's name."""
        self.leftovers = catalogue.leftover_extensions()
        """Of these those of files that another program left behind."""

    def unread(self, names: Iterable[str], remembered: Settings | None) -> dict[str, PluginError]:
        """Of the names in a store's directory the segments that no installed format reads, and what is missing."""
        formats = remembered.formats if remembered else []
        found = unread_segments(names, self.extensions)
        reasons = ((name, self.catalogue.why_unread(Path(name).suffix, formats)) for name in found)
        return {name: why for name, why in reasons if why is not None}

    def check_all_read(self, directory: Path, names: Iterable[str], remembered: Settings | None) -> None:
        """Raises PluginError for a segment that no installed format reads: all that is in it would count as lost."""
        for name, why in self.unread(names, remembered).items():
            raise type(why)(f"{directory / name}: no installed format reads *{Path(name).suffix}: {why}")

    def by_extension(self, extension: str) -> OpenFormat:
        return self.by_name(self.extensions[extension])

    def by_name(self, name: str) -> OpenFormat:
        if name not in self._made:
            descriptor = self.catalogue.format(name)
            given = self._options if name == self._options_of else {}
            options = structure(descriptor.options, given, f"{self._where} format")
            bound = self._bound(descriptor)
            names = self._type_names(descriptor, bound)
            context = FormatContext(options, bound, self._record if name == self._options_of else OWN_RECORD)
            self._made[name] = OpenFormat(
                descriptor,
                self.catalogue.make(descriptor, context),
                names,
                {record.byte: record for record in bound if record.fields},
                self._framed(descriptor, names),
                self.catalogue.provider(descriptor),
            )
        return self._made[name]

    def _bound(self, descriptor: SegmentFormatDescriptor) -> tuple[BoundRecord, ...]:
        if Capability.TYPED_RECORDS not in descriptor.capabilities:
            return ()
        found = []
        for name, byte in self.bindings.items():
            record = self.catalogue.record(descriptor.name, name)
            options = structure(record.options, self._record_options.get(name, {}), f"{self._where} record {name}")
            made = self.catalogue.make(record, RecordContext(options, byte))
            if record.fields and not callable(getattr(made, "fields", None)):
                raise BrokenPlugin(
                    f"the record type {name!r} says that its records have fields, and has no method 'fields'. "
                    f"Try: pip install --upgrade {self.catalogue.provider(record).distribution}"
                )
            found.append(BoundRecord(name, byte, made, record.fields))
        return tuple(found)

    def _type_names(self, descriptor: SegmentFormatDescriptor, bound: tuple[BoundRecord, ...]) -> dict[int, str]:
        names = {record.byte: record.name for record in bound}
        if Capability.TYPED_RECORDS in descriptor.capabilities:
            with suppress(PluginError):  # a format need not register its own record type
                own = self.catalogue.record(descriptor.name, OWN_RECORD).assigned_byte
                if own is not None:
                    names.setdefault(own, OWN_RECORD)
        return names

    def _framed(self, descriptor: SegmentFormatDescriptor, names: Mapping[int, str]) -> frozenset[int]:
        if Capability.TYPED_RECORDS not in descriptor.capabilities:
            return frozenset({0} if Capability.FRAMED in descriptor.capabilities else ())
        records = {byte: self.catalogue.record(descriptor.name, name) for byte, name in names.items()}
        return frozenset(byte for byte, record in records.items() if Capability.FRAMED in record.capabilities)
