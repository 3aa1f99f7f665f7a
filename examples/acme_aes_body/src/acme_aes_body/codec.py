"""Codec that stores each body as a nonce of 12 random bytes, and the body encrypted with AES-GCM.

The id of the message is authenticated, too: a stored body that is moved to another id is damaged.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from acme_aes_body.plugin import AesOptions
from msgstore.contract import RecordError, StoredBody

_NONCE, _TAG = 12, 16
"""Bytes."""


class AesBody:
    """Implementation of :class:`msgstore.contract.BodyCodec`. Thread-safe: an AESGCM object has no state but its key."""

    def __init__(self, options: AesOptions) -> None:
        self._cipher = AESGCM(bytes.fromhex(options.key))

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        """Encrypt a body. A StoredBody, such as one copied from another store, is already encrypted."""
        if isinstance(body, StoredBody):
            return body
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, body, msg_id)

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        if len(stored) < _NONCE + _TAG:
            raise RecordError("aes_too_short", f"{len(stored)} bytes, fewer than nonce and tag have")
        try:
            return self._cipher.decrypt(stored[:_NONCE], stored[_NONCE:], msg_id)
        except InvalidTag as error:
            raise RecordError(
                "aes_not_authentic", "the body is damaged, of another id, or encrypted with another key"
            ) from error

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        try:
            self.decode(msg_id, stored)
        except RecordError:
            return False
        return True
