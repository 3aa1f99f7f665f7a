"""Faults in body codecs."""

from __future__ import annotations

import zlib

from msgstore.builtin import plugin as builtin
from msgstore.builtin.codecs import Raw
from msgstore.contract import BodyCodecDescriptor, RecordError, StoredBody
from msgstore_erlang_body import plugin as erlang
from msgstore_erlang_body.codec import ErlangBody
from mutants import Broken


class Deflate:
    """A sound codec that detects damage."""

    def __init__(self, options):
        pass

    def encode(self, msg_id, body):
        return body if isinstance(body, StoredBody) else self.deflated(body)

    def deflated(self, body):
        return zlib.compress(body)

    def decode(self, msg_id, stored):
        try:
            return self.inflated(stored)
        except zlib.error as error:
            raise RecordError("not_deflated", str(error)) from None

    def inflated(self, stored):
        return zlib.decompress(stored)

    def is_valid(self, msg_id, stored):
        try:
            self.inflated(stored)
        except zlib.error:
            return False
        return True


factory = "mutants.bodies:Deflate"
deflate = Broken(BodyCodecDescriptor(name="deflate", contract=(1, 0), factory=factory, summary="compressed"), Deflate)
deflate("is-valid-always-true", "every body is valid", is_valid=lambda _, old, msg_id, stored: True)
deflate("encodes-stored-bodies", "stored bodies are encoded again", encode=lambda self, old, i, body: self.deflated(body))
deflate(
    "decode-raises-zlib-error", "a damaged body raises a library's error", decode=lambda self, _, i, raw: self.inflated(raw)
)


@deflate.of("inflated")
def shares_a_decompressor(self, old, stored):
    """All threads share one decompressor."""
    self._inflate = zlib.decompressobj()
    body = self._inflate.decompress(stored)
    if not self._inflate.eof or self._inflate.unused_data:
        raise zlib.error("cut off, or followed by something")
    return body


@deflate.of("deflated")
def shares_a_compressor(self, old, body):
    """All threads share one compressor."""
    self._deflate = zlib.compressobj()
    return self._deflate.compress(body) + self._deflate.flush()


deflate(
    "bodies-refer-to-the-first",
    "a body that equals the first one refers to it",
    deflated=lambda self, old, body: old(b"=" if body == self.__dict__.setdefault("first", body) else b":" + body),
    decode=lambda self, old, i, stored: self.__dict__.get("first", b"") if (body := old(i, stored)) == b"=" else body[1:],
)
raw = Broken(builtin.msgstore_body_codecs()[0], Raw)
raw("plain-strips-zeros", "it claims PLAIN, and strips zeros", encode=lambda _, old, msg_id, body: body.rstrip(b"\0"))

terms = Broken(erlang.msgstore_body_codecs()[0], ErlangBody)
terms("empty-body-is-lost", "an empty body is lost", encode=lambda _, old, i, body: old(i, body) if body else b"")
terms("refuses-long-bodies", "long terms are invalid", is_valid=lambda _, old, i, raw: len(raw) < 65536 and old(i, raw))
terms("fields-are-fewer", "fields gives no payload", fields=lambda _, old, stored: (found := old(stored)) and found[:3])


@terms.of("decode")
def believes_sizes(self, old, msg_id, stored):
    """It allocates memory for the size that a body claims."""
    if stored[:2] == b"\x83m":
        bytearray(min(int.from_bytes(stored[2:6]), 2**26))
    return old(msg_id, stored)


@terms.of("fields")
def fields_raise(self, old, stored):
    """Fields raises for bytes that no broker wrote."""
    if stored[:1] != b"\x83":
        raise ValueError(stored)
    return old(stored)
