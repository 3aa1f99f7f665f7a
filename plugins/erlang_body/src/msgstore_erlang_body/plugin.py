"""Registration of the body codec ``erlang``."""

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
                RecordField("exchange", "text", "exchange that the message was published to"),
                RecordField("routing_key", "text", "routing key that the message was published with"),
                RecordField("properties", "text", "basic properties and headers, as JSON"),
                RecordField("payload", "bytes", "payload that the client sent"),
            ),
            summary="Erlang external terms; bytes to and from a binary, other terms as they are stored",
        )
    ]
