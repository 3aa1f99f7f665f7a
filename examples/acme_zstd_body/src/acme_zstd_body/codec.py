"""Codec that stores each body as one Zstandard frame with a checksum and the size of the body.

``decode`` checks the size before it allocates memory.
"""

from __future__ import annotations

import threading

import zstandard

from acme_zstd_body.plugin import ZstdOptions
from msgstore.contract import MessageTooLarge, RecordError, StoredBody


class ZstdBody:
    """Implementation of :class:`msgstore.contract.BodyCodec`.

    Thread-safe: each thread has its own compressor and decompressor, because zstandard's objects are not thread-safe.
    """

    def __init__(self, options: ZstdOptions) -> None:
        self._options = options
        self._local = _ThreadLocal(options.level)

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        """Compress a body. A StoredBody, such as one copied from another store, is already compressed."""
        return body if isinstance(body, StoredBody) else self._compress(body)

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        """Decompress a body. Uses at most ``max_body`` bytes of memory, whatever size the frame declares."""
        try:
            frame = zstandard.get_frame_parameters(stored)
            if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
                raise RecordError("zstd_size_unknown", "the frame does not declare the size of the body")
            if frame.content_size > self._options.max_body:
                raise RecordError("zstd_too_large", f"{frame.content_size} bytes, but max_body is {self._options.max_body}")
            body: bytes = self._local.decompressor.decompress(stored, allow_extra_data=False)
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
                f"a body of {len(body)} bytes: the codec zstd accepts {self._options.max_body} at most; "
                f"raise its option max_body, or split the message"
            )
        stored: bytes = self._local.compressor.compress(body)
        return stored


class _ThreadLocal(threading.local):
    """Compressor and decompressor of one thread, created at its first call."""

    def __init__(self, level: int) -> None:
        self.compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()
