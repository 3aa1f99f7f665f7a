"""Bodies: compression, and inner batches, which hold several messages in the client's form.

An inner message is: size 4, magic 4, CRC 4, flag 4, body length 4 and body, length of the properties 2 and properties.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import zlib
from typing import Any, NamedTuple

from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.log import LogRecord

_HEAD = struct.Struct(">iIiii")
_I16 = struct.Struct(">h")
MAX_COUNTED = 16 * 2**20
"""Bytes of an inflated batch that is read. A broker takes 4 MiB, unless it is told to take more."""


class InnerMessage(NamedTuple):
    """One message of a batch."""

    body: bytes
    properties: bytes


class BodyError(Exception):
    """Raised for a body that cannot be read."""


def inflate(record: LogRecord, limit: int) -> bytes:
    """Return the body as the producer sent it. Raises BodyError, also for one of more than ``limit`` bytes."""
    if not record.sys_flag & v1.COMPRESSED or not record.body:
        return record.body
    codec = record.sys_flag >> v1.CODEC_SHIFT & 7
    try:
        if codec in (0, v1.ZLIB):
            one = zlib.decompressobj()
            body = one.decompress(record.body, limit + 1)
            if len(body) <= limit and not one.eof:
                raise BodyError("the compressed body ends early")
        elif codec == v1.ZSTD:
            with _module("zstandard").ZstdDecompressor().stream_reader(record.body) as stream:
                body = stream.read(limit + 1)
        elif codec == v1.LZ4:
            body = _module("lz4.frame").LZ4FrameDecompressor().decompress(record.body, max_length=limit + 1)
        else:
            raise BodyError(f"there is no codec {codec}")
    except (BodyError, ImportError):
        raise
    except Exception as error:  # each library has errors of its own
        raise BodyError(f"the compressed body cannot be read: {error}") from error
    if len(body) > limit:
        raise BodyError(f"the body has more than {limit} bytes without its compression")
    return bytes(body)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BodyError(
            f"{name.partition('.')[0]} is not installed. Try: pip install 'msgstore-rocketmq-log[compression]'"
        ) from None


def count_inner(record: LogRecord) -> int:
    """Return the number of messages in a record: 1, unless it is a batch.

    A batch is counted. If it cannot be, its claim counts, but at most one for each byte, so that each is reported as damage.
    """
    if not record.sys_flag & v1.INNER_BATCH:
        return 1
    with contextlib.suppress(BodyError):
        return max(1, len(split(inflate(record, MAX_COUNTED))))
    text = record.properties().get("INNER_NUM", "1")
    return max(1, min(int(text), len(record.body), v1.MAX_INNER)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def split(body: bytes) -> list[InnerMessage]:
    """Return the messages of an inflated batch. Raises BodyError."""
    found, at = [], 0
    while at < len(body):
        try:
            total, _, _, _, size = _HEAD.unpack_from(body, at)
            begin = at + _HEAD.size
            (properties,) = _I16.unpack_from(body, begin + max(size, 0))
        except struct.error:
            raise BodyError(f"a message of the batch ends early, at {at}") from None
        end = begin + size + 2 + properties
        if size < 0 or properties < 0 or end - at != total or end > len(body):
            raise BodyError(f"a message of the batch has impossible sizes, at {at}")
        found.append(InnerMessage(body[begin : begin + size], body[begin + size + 2 : end]))
        if len(found) > v1.MAX_INNER:
            raise BodyError(f"the batch has more than {v1.MAX_INNER} messages")
        at = end
    return found
