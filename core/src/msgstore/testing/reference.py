"""The kit's own backends: they complete a store for the backend under test, so that nothing else needs to be installed.

They are small and slow, and pass the kit. No entry point registers them; :func:`with_reference` adds them to a catalogue.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from struct import Struct

import attrs

from msgstore.builtin import plugin as builtin
from msgstore.contract import (
    Buffer,
    Capability,
    CheckBody,
    Damage,
    Descriptor,
    FormatContext,
    GapFill,
    IndexContext,
    IndexDescriptor,
    RecordError,
    ReleaseResult,
    SegmentFormatDescriptor,
    SegmentScan,
)
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import Provider, Registration
from msgstore.testing.subjects import kind_of

INDEX, PLAIN, HOLED = "reference", "reference-plain", "reference-holed"
_HERE = "msgstore.testing.reference"
_PROVIDER = Provider("msgstore", "testing", "none", _HERE)


class ReferenceIndex:
    """A dictionary of (location, references), and a snapshot with a checksum."""

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / "msgstore-reference.snapshot"
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._closed = self._removed = False

    def load(self) -> dict[bytes, bytes] | None:
        try:
            data = self._context.files.read_file(self._path)
        except FileNotFoundError:
            return None
        if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4]):
            return None
        self._entries, state = pickle.loads(data[4:])
        found: dict[bytes, bytes] = state
        return found

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, msg_id: bytes, /) -> int | None:
        entry = self._entries.get(msg_id)
        return entry[0] if entry else None

    def references(self, msg_id: bytes) -> int:
        return self._entries.get(msg_id, (0, 0))[1]

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        return ((msg_id, at, count) for msg_id, (at, count) in list(self._entries.items()))

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        self._entries.update(
            zip(ids, zip(locations, repeat(1) if references is None else references, strict=False), strict=False)
        )

    def add_reference(self, msg_id: bytes) -> bool:
        if msg_id not in self._entries:
            return False
        at, count = self._entries[msg_id]
        self._entries[msg_id] = at, count + 1
        return True

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        freed: list[tuple[bytes, int]] = []
        missing: list[bytes] = []
        for msg_id in ids:
            at, count = self._entries.get(msg_id, (0, 0))
            if count > 1:
                self._entries[msg_id] = at, count - 1
            elif count:
                del self._entries[msg_id]
                freed.append((msg_id, at))
            else:
                missing.append(msg_id)
        return ReleaseResult(freed, missing)

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        hits = [(msg_id, to) for msg_id, at, to in zip(ids, old, new, strict=True) if self.get(msg_id) == at]
        self._entries.update((msg_id, (to, self._entries[msg_id][1])) for msg_id, to in hits)
        return len(hits)

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        pass

    def commit(self) -> None:
        if not (self._removed or self._context.read_only):
            self._context.files.unlink(self._path)
            self._removed = True

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        if not (state is None or self._closed or self._context.read_only):
            data = pickle.dumps((self._entries, dict(state)))
            self._context.files.write_file(self._path, [zlib.crc32(data).to_bytes(4), data], sync=self._context.sync)
        self._closed = True
        self._entries = {}


_HEAD = Struct(">BI16sI")
"""Kind, size of the whole record, id, CRC-32 of id and body."""
_HOLE, _RECORD = 0, 1
_HOLE_HEAD = Struct(">BI")
_SECTOR = 512
_LIMIT = 2**32


class PlainFormat:
    """Records one behind the other: kind 1, size 4, id 16, checksum 4, body. Segments are copied, never changed."""

    header = b"msgstore reference"
    max_body = _LIMIT - 1 - _HEAD.size

    def __init__(self, context: FormatContext) -> None:
        pass

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        sizes = [_HEAD.size + len(body) for body in bodies]
        heads = (
            _HEAD.pack(_RECORD, size, msg_id, zlib.crc32(msg_id + body))
            for size, msg_id, body in zip(sizes, ids, bodies, strict=True)
        )
        return b"".join(chain.from_iterable(zip(heads, bodies, strict=True))), sizes

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        reason = _fault(record, 0, len(record))
        if reason:
            raise RecordError(reason)
        if record[5:21] != msg_id:
            raise RecordError("id_mismatch", record[5:21].hex())
        return record[_HEAD.size :]

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        return offset + _HEAD.size, offset + size

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        scan, total = SegmentScan(header="ok"), len(data)
        if not start and data[: len(self.header)] != self.header:
            if self.header.startswith(data[:total]):
                return scan.ended("torn", 0)
            scan.header = "bad_magic"
            return scan.ended("corrupt", 0, "bad_magic")
        offset = max(start, min(len(self.header), total))
        while offset < total:
            size = _size(data, offset, total)
            if size is None:
                break
            if data[offset] == _HOLE:
                scan.hole_offsets.append(offset)
                scan.hole_sizes.append(size)
            elif reason := _fault(data, offset, size):
                scan.damage.append(Damage(offset, size, reason))
            elif check_body and not check_body(data[offset + 5 : offset + 21], data[offset + _HEAD.size : offset + size]):
                scan.damage.append(Damage(offset, size, "invalid_message_body"))
            else:
                scan.records.add(data[offset + 5 : offset + 21], offset, size, 0)
            offset += size
        scan.separate_copies()
        if offset == total:
            return scan.ended("clean", offset)
        if _is_cut_off(data, offset, total):
            return scan.ended("torn", offset)
        return scan.ended("corrupt", offset, "invalid_record")

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        total = len(data)
        # Bytes of records whose checksums may still be compared: heads that each claim half of the file must not cost
        # quadratic time. After these bytes only the sizes decide, and ``scan`` reports a damaged record.
        unread = 4 * total
        for begin in range(max(start, len(self.header)), total):
            at, found = begin, 0
            while at < total and found < length and (size := _size(data, at, total)) is not None:
                if data[at] == _RECORD and size <= unread:
                    unread -= size
                    if _fault(data, at, size):
                        break
                found += data[at] == _RECORD
                at += size
            if found and (at == total or found == length):
                return begin
        return None

    def gap_room(self, offset: int, size: int) -> int:
        return 0

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        return GapFill()


class HoledFormat(PlainFormat):
    """The same, and gaps that records are moved into: a hole is kind 0 and a size; what is inside it is nothing."""

    def gap_room(self, offset: int, size: int) -> int:
        straddles = offset % _SECTOR > _SECTOR - _HOLE_HEAD.size
        return 0 if straddles or size >= _LIMIT else max(0, size - _HOLE_HEAD.size)

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """The gap becomes one hole; the records go inside, less the head of the first, which turns the hole into them."""
        if not records:
            return GapFill()
        head, run = _HOLE_HEAD.size, b"".join(records)
        run += _HOLE_HEAD.pack(_HOLE, size - len(run))
        return GapFill(
            prepare=[(offset, _HOLE_HEAD.pack(_HOLE, size))],
            inside=[(offset + head, run[head:])],
            seal=[(offset, run[:head])],
        )


def _size(data: Buffer, offset: int, total: int) -> int | None:
    """Return the size of the record or hole at ``offset``; None if there is none."""
    if offset + _HOLE_HEAD.size > total:
        return None
    kind, size = _HOLE_HEAD.unpack_from(data, offset)
    least = {_HOLE: _HOLE_HEAD.size, _RECORD: _HEAD.size}.get(kind)
    found: int = size
    return None if least is None or found < least or offset + found > total else found


def _fault(data: Buffer, offset: int, size: int) -> str | None:
    if size < _HEAD.size:
        return "invalid_message_size"
    kind, stored, msg_id, checksum = _HEAD.unpack_from(data, offset)
    if kind != _RECORD:
        return "invalid_message_type"
    if stored != size:
        return "size_mismatch"
    if zlib.crc32(msg_id + data[offset + _HEAD.size : offset + size]) != checksum:
        return "checksum_mismatch"
    return None


def _is_cut_off(data: Buffer, offset: int, total: int) -> bool:
    """Return True if the rest may be the begin of a record."""
    if data[offset] not in (_HOLE, _RECORD):
        return False
    if offset + _HOLE_HEAD.size > total:
        return True
    kind, size = _HOLE_HEAD.unpack_from(data, offset)
    return bool(kind == _RECORD and size >= _HEAD.size and offset + size > total)


DESCRIPTORS: tuple[Descriptor, ...] = (
    IndexDescriptor(
        name=INDEX,
        contract=(1, 0),
        factory=f"{_HERE}:ReferenceIndex",
        summary="of the kit: a dictionary",
    ),
    SegmentFormatDescriptor(
        name=PLAIN,
        contract=(1, 0),
        factory=f"{_HERE}:PlainFormat",
        extension=".reference",
        generation=1,
        summary="of the kit: records with a checksum, never changed in place",
    ),
    SegmentFormatDescriptor(
        name=HOLED,
        contract=(1, 0),
        factory=f"{_HERE}:HoledFormat",
        extension=".holed",
        generation=2,
        capabilities=[Capability.SELF_DESCRIBING, Capability.COMPACTABLE],
        summary="of the kit: the same with holes, compacted in place",
    ),
)


def with_reference(catalogue: Catalogue) -> Catalogue:
    """``catalogue`` with what is here, without observers; core's own policies and codecs are added if it has none."""
    there = {(found.kind, found.descriptor.name) for found in catalogue.registrations}
    ours = [*DESCRIPTORS, *builtin.msgstore_gc_policies(), *builtin.msgstore_body_codecs()]
    added = [Registration(kind_of(descriptor), descriptor, _PROVIDER) for descriptor in ours]
    missing = [found for found in added if (found.kind, found.descriptor.name) not in there]
    return attrs.evolve(catalogue, registrations=(*catalogue.registrations, *missing), observers=())
