"""Faults in body codecs."""

from __future__ import annotations

import zlib

from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import Raw
from msgstore.contract import BodyCodecDescriptor, RecordError, StoredBody
from msgstore_erlang_body import plugin as erlang
from msgstore_erlang_body.codec import ErlangBody
from mutants import add_mutants


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


def inflated_by(self, stored):
    self.inflate = zlib.decompressobj()
    body = self.inflate.decompress(stored)
    if not self.inflate.eof or self.inflate.unused_data:
        raise zlib.error("cut off, or followed by something")
    return body


def deflated_by(self, body):
    self.deflate = zlib.compressobj()
    return self.deflate.compress(body) + self.deflate.flush()


DEFLATE = BodyCodecDescriptor(name="deflate", contract=(1, 0), factory="mutants.bodies:Deflate", summary="compressed bodies")
add_mutants(DEFLATE, Deflate, r"""
is-valid-always-true: every body is valid
    is_valid > True
encodes-stored-bodies: stored bodies are encoded again
    encode: body if isinstance(body, StoredBody) else zlib => zlib
decode-raises-zlib-error: a damaged body makes a read raise another error than RecordError
    decode: raise RecordError("not_deflated", str(error)) from None => raise
    is_valid: except RecordError => except zlib.error
shares-a-decompressor: all threads share one decompressor
    decode: zlib.decompress(stored) => inflated_by(self, stored)
shares-a-compressor: all threads share one compressor
    encode: zlib.compress(body) => deflated_by(self, body)
bodies-refer-to-the-first: a body that equals the first one refers to it
    encode: zlib.compress(body) => zlib.compress(b"=" if body == self.__dict__.setdefault("first", body) else b":" + body)
    decode > self.__dict__.get("first", b"") if _ == b"=" else _[1:]
""")  # fmt: skip

add_mutants(builtin.msgstore_body_codecs()[0], Raw, r"""
plain-strips-zeros: it claims PLAIN, and strips zeros
    encode > _.rstrip(b"\0")
""")  # fmt: skip

add_mutants(erlang.msgstore_body_codecs()[0], ErlangBody, r"""
empty-body-is-lost: an empty body is lost
    encode > _ if body else b""
refuses-long-bodies: terms that the codec writes itself are invalid when they are long
    is_valid > _ and len(stored) < 65536
believes-sizes: it allocates memory for the size that a body claims
    decode > (_, stored[:2] == b"\x83m" and bytearray(min(int.from_bytes(stored[2:6]), 2**26)))[0]
fields-raise: fields raises for bytes that no broker wrote
    fields > _ if stored[:1] == b"\x83" else {}[stored]
fields-are-fewer: fields gives no payload
    fields > _ and _[:3]
""")  # fmt: skip
