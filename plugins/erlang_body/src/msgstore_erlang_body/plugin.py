"""Registers the body codec ``erlang``."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import BodyCodecDescriptor


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="erlang",
            contract=(2, 0),
            factory="msgstore_erlang_body.codec:ErlangBody",
            summary="Erlang external terms; bytes to and from a binary, other terms as they are stored",
        )
    ]
