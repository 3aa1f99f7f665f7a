"""A body codec for tools: what is in a stored body, beside each record and whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from msgstore.contract import BrokenPlugin, Capability, RecordField
from msgstore.jobs.workers import body_codec, installed
from msgstore.scan import Values
from msgstore.scan.fields import check_values

PAYLOAD = RecordField("payload", "bytes", "what a client reads")
"""The column of every codec that does not store plain bytes, and has no field of this name."""


@attrs.frozen
class OpenCodec:
    name: str
    fields: tuple[RecordField, ...]
    read: Callable[[bytes, bytes], Values | None]
    """Values of one stored body, in the order of ``fields``; None if it is not what the codec writes, or the codec fails on it.
    Never raises."""


def open_codec(name: str) -> OpenCodec:
    """By the plugins of this process. Raises PluginError, and ConfigError for one that needs options."""
    codec, descriptor = body_codec(name), installed().body_codec(name)
    fields = descriptor.fields
    if fields and not callable(getattr(codec, "fields", None)):
        raise BrokenPlugin(
            f"the body codec {name!r} says that its bodies have fields, and has no method 'fields'. "
            f"Try: pip install --upgrade {installed().provider(descriptor).distribution}"
        )
    with_payload = Capability.PLAIN not in descriptor.capabilities and PAYLOAD.name not in {field.name for field in fields}

    def read(msg_id: bytes, stored: bytes) -> Values | None:
        try:
            values = codec.fields(stored) if fields else ()  # type: ignore[attr-defined]  # of a BodyCodecWithFields
            if values is None:
                return None
            payload = (bytes(codec.decode(msg_id, stored)),) if with_payload else ()
            return check_values(f"the body codec {name!r}", fields, values) + payload
        except Exception:
            return None

    return OpenCodec(name, (*fields, PAYLOAD) if with_payload else fields, read)
