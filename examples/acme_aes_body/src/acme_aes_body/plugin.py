"""Registration of the body codec ``aes-gcm``. ``cryptography`` is imported when a store selects the codec."""

from __future__ import annotations

import re

import attrs

from msgstore import hookimpl
from msgstore.contract import BodyCodecDescriptor


def _check_key(_: object, __: object, value: str) -> None:
    if re.fullmatch("([0-9a-fA-F]{32}|[0-9a-fA-F]{64})", value) is None:
        raise ValueError("key: is not 32 or 64 hexadecimal digits (AES-128 or AES-256)")  # the text must not have the key


@attrs.frozen
class AesOptions:
    """Keys of the configuration in addition to ``use``."""

    key: str = attrs.field(validator=_check_key, repr=False)
    """32 or 64 hexadecimal digits, from the environment or a file: ``{ env = "NAME" }``, ``{ file = "PATH" }``."""


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="aes-gcm",
            contract=(1, 0),
            factory="acme_aes_body.codec:AesBody",
            options=AesOptions,
            summary="bodies encrypted with AES-GCM, bound to the ids of their messages",
            # Options with which the conformance kit tests the codec: without a key there is none.
            examples=({"key": "00" * 16}, {"key": "11" * 32}),
        )
    ]
