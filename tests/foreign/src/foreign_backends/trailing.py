"""The index behind the last record: what a reader of ledgers finds from the end of a file, without reading the rest."""

from __future__ import annotations

import zlib

from foreign_backends.grammar import CRC, FOOTER, FOOTER_MAGIC, HEADER_SIZE, INDEX, U32, head, varint
from msgstore.contract import Buffer, SegmentScan


def index_of(scan: SegmentScan, total: int) -> bytes:
    """The INDEX that stands at ``total``; it names all records, copies included, by offset."""
    rows = sorted(
        (offset, size, msg_id) for columns in (scan.records, scan.duplicates) for msg_id, offset, size, _ in columns.rows()
    )
    payload = bytearray(varint(len(rows)))
    end = HEADER_SIZE
    for offset, size, msg_id in rows:
        payload += msg_id + varint(offset - end) + varint(size)
        end = offset + size
    return b"".join([head(INDEX, len(payload)), payload, U32.pack(zlib.crc32(payload)), FOOTER.pack(total, FOOTER_MAGIC)])


def is_sound(data: Buffer, begin: int, inside: int, size: int) -> bool:
    """Whether the INDEX at ``begin``, whose payload begins at ``inside``, is what was written."""
    end = begin + size - FOOTER.size
    given = U32.unpack_from(data, end - CRC)[0]
    return given == zlib.crc32(data[inside : end - CRC]) and FOOTER.unpack_from(data, end) == (begin, FOOTER_MAGIC)
