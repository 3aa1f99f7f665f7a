"""Shared message stores of a vhost: find a message by its id. Bodies are read one by one, so memory holds the ids only."""

from __future__ import annotations

import json
import os
import re
import stat
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

import attrs

from msgstore import load_catalogue
from msgstore.contract import (
    BoundRecord,
    Buffer,
    Capability,
    FormatContext,
    MsgStoreError,
    RecordContext,
    SegmentFormat,
    SourceContext,
    SourceDamage,
)
from msgstore_rabbitmq_source.layout import VhostFiles, joined
from rabbitmq_files.messages import MessageError, read_message

_TERM = re.compile(rb"\x83h(?:\x06(?:d\0|w)\x0dbasic_message|\x04(?:d\0|w)\x02mc)")
"""Begin of the term of a message."""
_MAX_FAILED = 1000
"""Terms of one file that begin like a message and are none, before the search in it ends: each may take long to decode."""
_NOT_ZERO = re.compile(rb"[^\0]")
_OPEN_FILES = 64
_ID_SIZE = 16


@attrs.frozen
class Place:
    """A record of a message store."""

    file: str
    """Path relative to the source's path."""
    offset: int
    size: int
    term_offset: int
    """Offset of the message in the file."""
    term_size: int
    is_corrected: bool = False
    """True if the record was found by its term, as its size or its end is wrong."""


@cache
def segment_formats(types: tuple[tuple[str, int], ...] = ()) -> dict[str, SegmentFormat]:
    """Return the installed format of each extension of segments. ``types``: names and type bytes of record types. Raises
    PluginError for one that is not installed."""
    catalogue = load_catalogue()
    found = {}
    for extension, name in catalogue.formats_by_extension().items():
        descriptor = catalogue.format(name)
        bound = []
        for record, byte in types if Capability.TYPED_RECORDS in descriptor.capabilities else ():
            of_type = catalogue.record(name, record)
            made = catalogue.make(of_type, RecordContext(of_type.options(), byte))
            bound.append(BoundRecord(record, byte, made, of_type.fields))
        found[extension] = catalogue.make(descriptor, FormatContext(descriptor.options(), tuple(bound)))
    return found


@cache
def _head_size(extension: str) -> int:
    """Return the bytes of a record before the body."""
    form = segment_formats()[extension]
    record, [size] = form.encode([bytes(_ID_SIZE)], [b""])
    return form.body_span(record, 0, size)[0]


class SharedStore:
    """The persistent and the transient store of one vhost."""

    def __init__(self, context: SourceContext, vhost: VhostFiles, files: list[str] | None = None) -> None:
        """``files``: the segments that are read. None: all of both stores."""
        self._context = context
        self.files = files or [
            joined(store, name) for store, names in sorted(vhost.stores.items()) for name in _by_number(names)
        ]
        self._rows: dict[bytes, int] | None = None
        """Id to row of the columns below."""
        self._file_rows, self._offsets, self._sizes = array("L"), array("Q"), array("Q")
        self._term_offsets, self._term_sizes = array("Q"), array("Q")
        self._corrected: dict[bytes, Place] | None = None
        self._open: OrderedDict[str, int] = OrderedDict()
        self._damage: list[SourceDamage] = []
        self._types: dict[PurePosixPath, tuple[tuple[str, int], ...]] = {}
        """Directory to its record types."""

    def find(self, msg_id: bytes) -> Place | None:
        """Return the place of a message, or None."""
        if (row := self._index().get(msg_id)) is not None:
            return self._place(row)
        return self._find_terms().get(msg_id)

    def all_damage(self) -> list[SourceDamage]:
        """Return the damaged spans of all segments."""
        self._index()
        return self._damage

    def ids(self) -> Iterator[bytes]:
        """Yield the id of each record, by file and offset."""
        yield from self._index()

    def places(self, file: str) -> Iterator[tuple[bytes, Place]]:
        """Yield id and place of each message in a segment, also of those that are in no record, by offset."""
        found = [(msg_id, place) for msg_id, place in self._find_terms().items() if place.file == file]
        for msg_id, row in self._index().items():
            if self.files[self._file_rows[row]] == file:
                found.append((msg_id, self._place(row)))
        return iter(sorted(found, key=lambda pair: pair[1].offset))

    def all_places(self) -> Iterator[tuple[bytes, Place]]:
        """Yield id and place of each record."""
        return ((msg_id, self._place(row)) for msg_id, row in self._index().items())

    def read(self, place: Place) -> bytes:
        """Return the bytes of a message's term and, if the record is not corrected, what follows it in the record."""
        return self._pread(place.file, place.term_offset, place.term_size)

    def read_record(self, place: Place) -> bytes:
        """Return the whole record."""
        return self._pread(place.file, place.offset, place.size)

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def _place(self, row: int) -> Place:
        file, offset, size = self.files[self._file_rows[row]], self._offsets[row], self._sizes[row]
        return Place(file, offset, size, self._term_offsets[row], self._term_sizes[row])

    def _index(self) -> dict[bytes, int]:
        if self._rows is None:
            self._rows = {}
            for number, file in enumerate(self.files):
                self._scan(number, file, self._rows)
        return self._rows

    def _scan(self, number: int, file: str, rows: dict[bytes, int]) -> None:
        data = self._context.read(file)
        directory = PurePosixPath(file).parent
        if directory not in self._types:
            self._types[directory] = self._types_in(directory)
        form = segment_formats(self._types[directory])[PurePosixPath(file).suffix]
        scan = form.scan(data)
        for msg_id, offset, size, _ in chain(scan.records.rows(), scan.duplicates.rows()):
            row = rows.setdefault(msg_id, len(self._offsets))
            if row == len(self._offsets):
                self._file_rows.append(number)
                self._offsets.append(offset)
                self._sizes.append(size)
                begin, end = form.body_span(data, offset, size)
                self._term_offsets.append(begin)
                self._term_sizes.append(end - begin)
            elif not self._is_equal(row, data[offset : offset + size]):
                self._report(file, offset, size, "another message with the id of an earlier one")
        for span in scan.damage:
            self._report(file, span.offset, span.size, span.reason)
        for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True):
            if any(_NOT_ZERO.search(data, *part) for part in _stored(data, offset, offset + size)):
                self._report(file, offset, size, "bytes that are no record and not zero")
        if scan.end.state != "clean":
            self._report(file, scan.end.offset, len(data) - scan.end.offset, scan.end.reason or scan.end.state)

    def _types_in(self, directory: PurePosixPath) -> tuple[tuple[str, int], ...]:
        """Return the record types that a store of msgstore's own vhosts remembers. A broker's store has none."""
        try:
            records = json.loads(bytes(self._context.read(str(directory / "msgstore.json"))))["records"]
            return tuple(sorted((str(name), int(byte)) for name, byte in records.items()))
        except (MsgStoreError, OSError, ValueError, TypeError, KeyError, AttributeError):
            return ()

    def _is_equal(self, row: int, record: bytes) -> bool:
        size = self._sizes[row]
        return size == len(record) and self._pread(self.files[self._file_rows[row]], self._offsets[row], size) == record

    def _report(self, file: str, offset: int, size: int, reason: str) -> None:
        self._damage.append(SourceDamage(file=file, offset=offset, size=size, reason=reason))

    def _find_terms(self) -> dict[bytes, Place]:
        """Return the messages that are there and in no record: a record's size may be wrong, and a term says where it ends."""
        if self._corrected is None:
            self._corrected = {}
            for file in self.files:
                self._find_terms_in(file, self._corrected)
        return self._corrected

    def _find_terms_in(self, file: str, found: dict[bytes, Place]) -> None:
        data = self._context.read(file)
        known = self._index()
        overhead = _head_size(PurePosixPath(file).suffix)
        failed = 0
        for at in _find_all(data):
            msg_id = data[at - _ID_SIZE : at]
            if at < overhead or msg_id in known or msg_id in found:
                continue
            try:
                message, end = read_message(data, at)
            except MessageError:
                failed += 1
                if failed == _MAX_FAILED:
                    reason = f"the search for messages outside of records ended here, after {failed:,} that are none"
                    self._report(file, at, len(data) - at, reason)
                    return
                continue
            if message.msg_id == msg_id:
                found[msg_id] = Place(file, at - overhead, end - at + overhead, at, end - at, is_corrected=True)

    def _pread(self, name: str, offset: int, size: int) -> bytes:
        file = self._open.get(name)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            file = os.open(_join(self._context.path, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._open[name] = file
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{name}: is no regular file")
        return os.pread(file, size, offset)


def _find_all(data: Buffer) -> Iterator[int]:
    """Yield the offsets at which a message may begin."""
    for begin, end in _stored(data, 0, len(data)):
        yield from (match.start() for match in _TERM.finditer(data, begin, end))


def _stored(data: Buffer, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span without the holes of a sparse file, if the file tells them."""
    stored_parts = getattr(data, "stored_parts", None)
    for first, last in stored_parts(begin) if stored_parts else [(begin, end)]:
        if first >= end:
            return
        yield first, min(last, end)


def _join(path: Path, name: str) -> Path:
    return path / name if name else path


def _by_number(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (int(name.partition(".")[0]), name))
