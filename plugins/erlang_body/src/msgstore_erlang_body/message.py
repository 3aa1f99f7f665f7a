"""Exchange, routing key, properties and payload of a message as a broker stores it.

Brokers store ``{basic_message, ...}`` up to 3.12, and message containers, ``{mc, Protocol, Data, Annotations}``, since 3.13. A
store may have both. Source: segments of RabbitMQ 3.10, and the record definitions of 4.x.
"""

from __future__ import annotations

import json

from msgstore_erlang_body.properties import read_header, read_record
from msgstore_erlang_body.values import NOT_A_TERM, read_value

Message = tuple[str | None, str | None, str | None, bytes | None]
"""Exchange, routing key, properties as JSON, payload. A part that is absent or unreadable is None."""

_DATA_SECTIONS = {b"\0\x53\x75\xa0": 1, b"\0\x53\x75\xb0": 4}
"""First bytes of a data section of AMQP 1.0, and the size of the length field that follows them."""


def read_message(stored: bytes) -> Message | None:
    """Return the parts of a stored message, or None if ``stored`` is none. Never raises. Takes time linear in its size."""
    try:
        value = read_value(stored)
    except NOT_A_TERM:
        return None
    match value:
        case bytes():
            return None, None, None, value
        case ("basic_message", resource, keys, content, _, _):
            exchange = resource[3] if isinstance(resource, tuple) and len(resource) == 4 and resource[0] == "resource" else None
            return _text(exchange), _first(keys), *_content(content)
        case ("mc", protocol, inside, dict(annotations)):
            content_parts: tuple[str | None, bytes | None] = None, None
            if protocol == "mc_amqpl":
                content_parts = _content(inside)
            elif protocol == "mc_amqp":
                content_parts = None, _amqp_1_0_payload(inside)
            elif protocol == "mc_mqtt":
                content_parts = None, _mqtt_payload(inside)
            return _text(annotations.get("x")), _first(annotations.get("rk")), *content_parts
    return None


def _content(content: object) -> tuple[str | None, bytes | None]:
    """Return properties and payload of AMQP 0-9-1. The fragments of the payload are stored in reverse order."""
    match content:
        case ("content", _, decoded, header, _, fragments):
            pass
        case _:
            return None, None
    try:
        found = read_header(header) if isinstance(header, bytes) else read_record(decoded)
        properties = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    except NOT_A_TERM:
        properties = None
    if not isinstance(fragments, list) or not all(isinstance(part, bytes) for part in fragments):
        return properties, None
    return properties, b"".join(reversed(fragments))


def _amqp_1_0_payload(message: object) -> bytes | None:
    """Return the data sections of an AMQP 1.0 message, concatenated; None for other kinds of bodies."""
    match message:
        case ("v1", _, bytes(sections), _, _, int(offset), 0x75) if offset >= 0:
            parts = []
            while width := _DATA_SECTIONS.get(sections[offset : offset + 4]):
                size = int.from_bytes(sections[offset + 4 : offset + 4 + width])
                offset += 4 + width + size
                if offset > len(sections):
                    return None
                parts.append(sections[offset - size : offset])
            return b"".join(parts)
    return None


def _mqtt_payload(message: object) -> bytes | None:
    """Return the payload of an MQTT message of RabbitMQ 4: a binary, or a list of such."""
    match message:
        case ("mqtt_msg", _, _, _, _, _, payload, _, _):
            parts = payload if isinstance(payload, list) else [payload]
            found = [part for part in parts if isinstance(part, bytes)]
            return b"".join(found) if len(found) == len(parts) else None
    return None


def _first(keys: object) -> str | None:
    return _text(keys[0]) if isinstance(keys, list) and keys else None


def _text(value: object) -> str | None:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else None
