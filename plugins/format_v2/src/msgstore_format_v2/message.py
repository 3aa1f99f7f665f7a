"""Record type ``message``: MESSAGE, the type that RabbitMQ itself writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

from msgstore.contract import Buffer, RecordContext
from msgstore_format_v2.grammar import RECORD_HEAD, RECORD_SIZE


class MessageRecord:
    """Record of type, size, id and body. It has no checksum, so damage to the body is not detected."""

    overhead = RECORD_SIZE

    def __init__(self, context: RecordContext) -> None:
        self._byte = context.byte

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        sizes = [RECORD_SIZE + len(body) for body in bodies]
        heads = map(RECORD_HEAD.pack, repeat(self._byte), sizes, ids)
        return b"".join(chain.from_iterable(zip(heads, bodies, strict=True))), sizes

    def decode(self, record: bytes) -> bytes:
        return record[RECORD_SIZE:]

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        return None

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        return offset + RECORD_SIZE, offset + size
