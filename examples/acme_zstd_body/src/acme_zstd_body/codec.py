"""One frame a body: with its size, so that reading knows what it will take before it takes it, and with a checksum."""

from __future__ import annotations

import threading

import zstandard

from acme_zstd_body.plugin import ZstdOptions
from msgstore.contract import MessageTooLarge, RecordError, StoredBody


class ZstdBody:
    """A :class:`msgstore.contract.BodyCodec`. Reads come from any thread at once, and zstandard's objects serve one at a time:
    so each thread has its own."""

    def __init__(self, options: ZstdOptions) -> None:
        self._options = options
        self._mine = _Mine(options.level)

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        """Compress a body. A StoredBody, such as one copied from another store, is compressed already."""
        return body if isinstance(body, StoredBody) else self._compress(body)

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        """Decompress a body. Uses no more memory than ``max_body``, whatever size the frame claims."""
        try:
            frame = zstandard.get_frame_parameters(stored)
            if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
                raise RecordError("zstd_size_unknown", "the frame does not say how large it is")
            if frame.content_size > self._options.max_body:
                raise RecordError("zstd_too_large", f"{frame.content_size} bytes, and max_body is {self._options.max_body}")
            body: bytes = self._mine.decompressor.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise RecordError("zstd_damaged", str(error)) from error
        return body

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        try:
            self.decode(msg_id, stored)
        except RecordError:
            return False
        return True

    def _compress(self, body: bytes) -> bytes:
        if len(body) > self._options.max_body:
            raise MessageTooLarge(
                f"a body of {len(body)} bytes: the codec zstd takes {self._options.max_body} at most; "
                f"raise its option max_body, or split the message"
            )
        stored: bytes = self._mine.compressor.compress(body)
        return stored


class _Mine(threading.local):
    """Of one thread, made when it comes first."""

    def __init__(self, level: int) -> None:
        self.compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()
