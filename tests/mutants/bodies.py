"""Faults in body codecs."""

from __future__ import annotations

import zlib

from msgstore.builtin import plugin as builtin
from msgstore.builtin.codecs import Raw
from msgstore.contract import BodyCodecDescriptor, RecordError, StoredBody
from msgstore_erlang_body import plugin as erlang
from msgstore_erlang_body.codec import ErlangBody
from mutants import mutant

(ERLANG,) = erlang.msgstore_body_codecs()
(RAW,) = builtin.msgstore_body_codecs()
DEFLATE = BodyCodecDescriptor(name="deflate", contract=(1, 0), factory="mutants.bodies:Deflate", summary="compressed bodies")


class Deflate:
    """A sound codec that knows damage from what it wrote."""

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


@mutant(DEFLATE, "every body is valid")
class IsValidAlwaysTrue(Deflate):
    def is_valid(self, msg_id, stored):
        return True


@mutant(DEFLATE, "a damaged body makes a read raise what it should not")
class DecodeRaisesZlibError(Deflate):
    def decode(self, msg_id, stored):
        return zlib.decompress(stored)

    def is_valid(self, msg_id, stored):
        try:
            return self.decode(msg_id, stored) is not None
        except zlib.error:
            return False


@mutant(DEFLATE, "what is stored is encoded again")
class EncodesStoredBodies(Deflate):
    def encode(self, msg_id, body):
        return zlib.compress(body)


@mutant(DEFLATE, "all threads have one decompressor")
class SharesADecompressor(Deflate):
    def decode(self, msg_id, stored):
        self._inflate = zlib.decompressobj()
        try:
            body = self._inflate.decompress(stored)
        except zlib.error as error:
            raise RecordError("not_deflated", str(error)) from None
        if not self._inflate.eof or self._inflate.unused_data:
            raise RecordError("not_deflated", "cut off, or followed by something")
        return body


@mutant(DEFLATE, "all threads have one compressor")
class SharesACompressor(Deflate):
    def encode(self, msg_id, body):
        return body if isinstance(body, StoredBody) else self._deflated(body)

    def _deflated(self, body):
        self._deflate = zlib.compressobj()
        return self._deflate.compress(body) + self._deflate.flush()


@mutant(DEFLATE, "bodies refer to the first")
class BodiesReferToTheFirst(Deflate):
    def __init__(self, options):
        self._first = None

    def encode(self, msg_id, body):
        if isinstance(body, StoredBody):
            return body
        if self._first is None:
            self._first = body
        return zlib.compress(b"=" if body == self._first else b":" + body)

    def decode(self, msg_id, stored):
        body = super().decode(msg_id, stored)
        return self._first or b"" if body == b"=" else body[1:]


@mutant(RAW, "it claims to change nothing, and strips zeros")
class PlainStripsZeros(Raw):
    def encode(self, msg_id, body):
        return body.rstrip(b"\0")


@mutant(ERLANG, "an empty body is lost")
class EmptyBodyIsLost(ErlangBody):
    def encode(self, msg_id, body):
        return super().encode(msg_id, body) if body else b""


@mutant(ERLANG, "terms that the codec writes itself are invalid when they are long")
class RefusesLongBodies(ErlangBody):
    def is_valid(self, msg_id, stored):
        return len(stored) < 65536 and super().is_valid(msg_id, stored)


@mutant(ERLANG, "memory is taken for the size that a body claims")
class BelievesSizes(ErlangBody):
    def decode(self, msg_id, stored):
        if stored[:2] == b"\x83m":
            bytearray(min(int.from_bytes(stored[2:6]), 2**26))
        return super().decode(msg_id, stored)


@mutant(ERLANG, "fields raises for bytes that no broker wrote")
class FieldsRaise(ErlangBody):
    def fields(self, stored):
        if stored[:1] != b"\x83":
            raise ValueError(stored)
        return super().fields(stored)


@mutant(ERLANG, "fields gives no payload, and one value less")
class FieldsAreFewer(ErlangBody):
    def fields(self, stored):
        found = super().fields(stored)
        return found and found[:3]
