"""Checkpoint: the state of the engine in the index, next to the entries: a row per segment, and the last clean shutdown.

An index saves this state in one step with its entries. The next opening compares it with the segments, to see if the entries
still describe them (:mod:`msgstore.engine.open.recovery_plan`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping

import attrs

from msgstore.engine.segment.segment import Segment, damaged_index

LAYOUT_KEY = b"layout"
LAYOUT = b"1"
"""Missing during a rebuild, so that an interrupted one starts again."""
CLEAN_KEY = b"clean"
"""Text of ``clean.dot`` of the last clean shutdown; missing while the store is open, and after a dirty shutdown."""

_ROW_KEY = b"segment:"
_ROW = struct.Struct(">BQqQQ")
_CHECKSUM = struct.Struct(">I")
"""CRC-32 of key and row, after the row: a wrong count of live records could delete the segment. Older rows have none."""
_MAX_TIME = 2**63 - 1
_LIMIT = 2**64
_APPENDABLE, _QUARANTINED, _COMPACTING = 1, 2, 4


@attrs.frozen
class Row:
    """State of a segment as of the last commit."""

    size: int
    mtime_ns: int | None
    """Modification time; None while the segment is written or compacted: its file may then differ from the row."""
    live_count: int
    live_bytes: int
    appendable: bool
    quarantined: bool
    compacting: bool


def row_key(segment: Segment) -> bytes:
    """Return the key of the row of a segment."""
    return _ROW_KEY + segment.path.name.encode()


def pack_row(segment: Segment) -> bytes:
    """Return the row of a segment. Raises StoreError if an index error has made its counts impossible."""
    flags = segment.appendable * _APPENDABLE | segment.quarantined * _QUARANTINED | segment.compacting * _COMPACTING
    sealed = segment.sealed_mtime_ns
    mtime_ns = -1 if sealed is None or not 0 <= sealed <= _MAX_TIME else sealed
    if not (0 <= segment.live_count < _LIMIT and 0 <= segment.live_bytes < _LIMIT):
        raise damaged_index(segment.path, "more was removed from this segment than it held")
    row = _ROW.pack(flags, segment.size, mtime_ns, segment.live_count, segment.live_bytes)
    return row + _CHECKSUM.pack(zlib.crc32(row, zlib.crc32(row_key(segment))))


def gone_rows(state: Mapping[bytes, bytes], segments: Iterable[Segment]) -> dict[bytes, None]:
    """Return the rows of missing segments, with None, which removes them."""
    there = {row_key(segment) for segment in segments}
    return {key: None for key in state if key.startswith(_ROW_KEY) and key not in there}


def rows(state: Mapping[bytes, bytes]) -> dict[str, Row]:
    """Return the rows by file name. Raises ValueError if one is damaged."""
    found = {}
    for key, value in state.items():
        if key.startswith(_ROW_KEY):
            row, checksum = value[: _ROW.size], value[_ROW.size :]
            if len(row) != _ROW.size or checksum not in (b"", _CHECKSUM.pack(zlib.crc32(row, zlib.crc32(key)))):
                raise ValueError(f"the row of {key!r} is damaged")
            flags, size, mtime_ns, live_count, live_bytes = _ROW.unpack(row)
            found[key[len(_ROW_KEY) :].decode()] = Row(
                size,
                None if mtime_ns < 0 else mtime_ns,
                live_count,
                live_bytes,
                appendable=bool(flags & _APPENDABLE),
                quarantined=bool(flags & _QUARANTINED),
                compacting=bool(flags & _COMPACTING),
            )
    return found
