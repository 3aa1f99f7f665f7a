"""Exchange, routing key, properties and payload of a message as a broker stores it.

Brokers store ``{basic_message, ...}`` up to 3.12, and message containers, ``{mc, Protocol, Data, Annotations}``, since 3.13. A
store may have both. Source: segments of RabbitMQ 3.10, and the record definitions of 4.x.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from msgstore_erlang_body import properties
from msgstore_erlang_body.parts import NOT_A_TERM, UnexpectedTerm, atom, binary, elements, items, pairs, uncompressed

T = TypeVar("T")

Message = tuple[str | None, str | None, str | None, bytes | None]
"""Exchange, routing key, properties as JSON, payload. A part that is absent or unreadable is None."""

_DATA_SECTIONS = {b"\0\x53\x75\xa0": 1, b"\0\x53\x75\xb0": 4}
"""First bytes of a data section of AMQP 1.0, and the size of the length field that follows them."""


def read_message(stored: bytes) -> Message | None:
    """Return the parts of a stored message, or None if ``stored`` is none. Never raises. Takes time linear in its size."""
    try:
        data = uncompressed(stored)
        if data[1] == 109:
            return None, None, None, binary(data, 1)
        return _basic_message(data) or _container(data)
    except NOT_A_TERM:
        return None


def _basic_message(data: bytes) -> Message | None:
    try:
        _, resource, keys, content, _, _ = elements(data, 1, "basic_message", 6)
    except UnexpectedTerm:
        return None
    exchange = _or_none(lambda: _text(binary(data, elements(data, resource, "resource", 4)[3])))
    return exchange, _or_none(lambda: _first(data, keys)), *_content(data, content)


def _container(data: bytes) -> Message:
    _, protocol, inside, annotations = elements(data, 1, "mc", 4)
    values: dict[str, int] = {}
    for key, value in pairs(data, annotations):
        if data[key] != 109:  # binary keys are headers
            values[atom(data, key)] = value
    exchange = _or_none(lambda: _text(binary(data, values["x"])))
    routing_key = _or_none(lambda: _first(data, values["rk"]))
    if atom(data, protocol) == "mc_amqpl":
        return exchange, routing_key, *_content(data, inside)
    if atom(data, protocol) == "mc_amqp":
        return exchange, routing_key, None, _or_none(lambda: _amqp_1_0_payload(data, inside))
    return exchange, routing_key, None, None


def _content(data: bytes, at: int) -> tuple[str | None, bytes | None]:
    """Return properties and payload of AMQP 0-9-1. The fragments of the payload are stored in reverse order."""
    try:
        _, _, decoded, header, _, fragments = elements(data, at, "content", 6)
    except UnexpectedTerm:
        return None, None

    def read_properties() -> dict[str, Any]:
        if data[header] == 109:
            return properties.read_header(binary(data, header))
        return properties.read_record(data, decoded)

    found = _or_none(read_properties)
    text = None if found is None else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return text, _or_none(lambda: b"".join(reversed([binary(data, at) for at in items(data, fragments)])))


def _amqp_1_0_payload(data: bytes, at: int) -> bytes:
    """Return the data sections of an AMQP 1.0 message, concatenated. Raises UnexpectedTerm for other kinds of bodies."""
    _, _, bare, _, _, begin, code = elements(data, at, "v1", 7)
    sections, offset = binary(data, bare), _unsigned(data, begin)
    if _unsigned(data, code) != 0x75:
        raise UnexpectedTerm("a value or a sequence")
    parts = []
    while width := _DATA_SECTIONS.get(sections[offset : offset + 4]):
        size = int.from_bytes(sections[offset + 4 : offset + 4 + width])
        offset += 4 + width + size
        if offset > len(sections):
            raise UnexpectedTerm("cut off")
        parts.append(sections[offset - size : offset])
    return b"".join(parts)


def _unsigned(data: bytes, at: int) -> int:
    if data[at] == 97:
        return data[at + 1]
    if data[at] == 98:
        return int.from_bytes(data[at + 1 : at + 5])
    raise UnexpectedTerm("no offset")


def _first(data: bytes, at: int) -> str:
    return _text(binary(data, next(items(data, at), at)))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _or_none(read: Callable[[], T]) -> T | None:
    """Return the result of ``read``, or None if the bytes are damaged, so that one damaged part does not hide the others."""
    try:
        return read()
    except NOT_A_TERM:
        return None
