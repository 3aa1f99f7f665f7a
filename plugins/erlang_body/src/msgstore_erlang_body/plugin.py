"""Registers the body codec ``erlang``."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import BodyCodecDescriptor, Capability, RecordField


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="erlang",
            contract=(1, 0),
            factory="msgstore_erlang_body.codec:ErlangBody",
            capabilities=[Capability.FIELDS],
            fields=(
                RecordField("exchange", "text", "that the message was published to"),
                RecordField("routing_key", "text", "that it was published with"),
                RecordField("properties", "text", "basic properties and headers, as JSON"),
                RecordField("payload", "bytes", "what the client sent"),
            ),
            summary="Erlang external terms; bytes to and from a binary, other terms as they are stored",
        )
    ]
