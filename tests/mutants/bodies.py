"""Faults in body codecs."""

from __future__ import annotations

import zlib
from functools import partial

from msgstore.builtin import plugin as builtin
from msgstore.builtin.codecs import Raw
from msgstore.contract import BodyCodecDescriptor, RecordError, StoredBody
from msgstore_erlang_body import plugin as erlang
from msgstore_erlang_body.codec import ErlangBody
from mutants import broken

(ERLANG,) = erlang.msgstore_body_codecs()
(RAW,) = builtin.msgstore_body_codecs()
DEFLATE = BodyCodecDescriptor(name="deflate", contract=(1, 0), factory="mutants.bodies:Deflate", summary="compressed bodies")


class Deflate:
    """A sound codec that detects damage."""

    def __init__(self, options):
        pass

    def encode(self, msg_id, body):
        return body if isinstance(body, StoredBody) else zlib.compress(body)

    def decode(self, msg_id, stored):
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise RecordError("not_deflated", str(error)) from None

    def is_valid(self, msg_id, stored):
        try:
            self.decode(msg_id, stored)
        except RecordError:
            return False
        return True


def is_readable(self, old, msg_id, stored):
    try:
        return self.decode(msg_id, stored) is not None
    except zlib.error:
        return False


def inflates_shared(self, old, msg_id, stored):
    self._inflate = zlib.decompressobj()
    try:
        body = self._inflate.decompress(stored)
    except zlib.error as error:
        raise RecordError("not_deflated", str(error)) from None
    if not self._inflate.eof or self._inflate.unused_data:
        raise RecordError("not_deflated", "cut off, or followed by something")
    return body


def deflates_shared(self, old, msg_id, body):
    if isinstance(body, StoredBody):
        return body
    self._deflate = zlib.compressobj()
    return self._deflate.compress(body) + self._deflate.flush()


def refers_to_the_first(self, old, msg_id, body):
    if isinstance(body, StoredBody):
        return body
    first = vars(self).setdefault("first", body)
    return old(msg_id, b"=" if body == first else b":" + body)


def resolves_the_first(self, old, msg_id, stored):
    body = old(msg_id, stored)
    return getattr(self, "first", b"") if body == b"=" else body[1:]


def believes_sizes(self, old, msg_id, stored):
    if stored[:2] == b"\x83m":
        bytearray(min(int.from_bytes(stored[2:6]), 2**26))
    return old(msg_id, stored)


def raising_fields(self, old, stored):
    if stored[:1] != b"\x83":
        raise ValueError(stored)
    return old(stored)


deflate = partial(broken, __name__, DEFLATE, Deflate)
deflate("is-valid-always-true", "every body is valid", is_valid=lambda _, old, msg_id, stored: True)
deflate("encodes-stored-bodies", "stored bodies are encoded again", encode=lambda _, old, msg_id, body: zlib.compress(body))
deflate(
    "decode-raises-zlib-error",
    "a damaged body makes a read raise another error than RecordError",
    decode=lambda _, old, msg_id, stored: zlib.decompress(stored),
    is_valid=is_readable,
)
deflate("shares-a-decompressor", "all threads share one decompressor", decode=inflates_shared)
deflate("shares-a-compressor", "all threads share one compressor", encode=deflates_shared)
deflate("bodies-refer-to-the-first", "bodies refer to the first", encode=refers_to_the_first, decode=resolves_the_first)
raw = partial(broken, __name__, RAW, Raw)
raw("plain-strips-zeros", "it claims PLAIN, and strips zeros", encode=lambda _, old, msg_id, body: body.rstrip(b"\0"))
terms = partial(broken, __name__, ERLANG, ErlangBody)
terms("empty-body-is-lost", "an empty body is lost", encode=lambda _, old, i, body: old(i, body) if body else b"")
terms(
    "refuses-long-bodies",
    "terms that the codec writes itself are invalid when they are long",
    is_valid=lambda _, old, msg_id, stored: len(stored) < 65536 and old(msg_id, stored),
)
terms("believes-sizes", "it allocates memory for the size that a body claims", decode=believes_sizes)
terms("fields-raise", "fields raises for bytes that no broker wrote", fields=raising_fields)
terms("fields-are-fewer", "fields gives no payload", fields=lambda _, old, stored: (found := old(stored)) and found[:3])
