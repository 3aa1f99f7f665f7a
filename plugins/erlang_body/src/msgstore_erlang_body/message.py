"""What a stored message is: where it was published to, its properties, and what the client sent.

Brokers store ``{basic_message, ...}`` up to 3.12, and message containers, ``{mc, Protocol, Data, Annotations}``, since 3.13; a
store may hold both. Source: what RabbitMQ 3.10 had on disk, and the records of 4.x.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from msgstore_erlang_body import properties
from msgstore_erlang_body.parts import NOT_A_TERM, NotThere, atom, binary, elements, items, pairs, uncompressed

T = TypeVar("T")

Message = tuple[str | None, str | None, str | None, bytes | None]
"""Exchange, routing key, properties as JSON, payload; None for what is not there, or cannot be told."""

_BYTES = {b"\0\x53\x75\xa0": 1, b"\0\x53\x75\xb0": 4}
"""How a section of data of AMQP 1.0 begins, and how many bytes its length then has."""


def read_message(stored: bytes) -> Message | None:
    """None if ``stored`` is no message. Never raises; linear in its size."""
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
    except NotThere:
        return None
    exchange = _or_none(lambda: _text(binary(data, elements(data, resource, "resource", 4)[3])))
    return exchange, _or_none(lambda: _first(data, keys)), *_content(data, content)


def _container(data: bytes) -> Message:
    _, protocol, inside, annotations = elements(data, 1, "mc", 4)
    noted: dict[str, int] = {}
    for key, value in pairs(data, annotations):
        if data[key] != 109:  # binary keys are headers
            noted[atom(data, key)] = value
    exchange = _or_none(lambda: _text(binary(data, noted["x"])))
    routing_key = _or_none(lambda: _first(data, noted["rk"]))
    if atom(data, protocol) == "mc_amqpl":
        return exchange, routing_key, *_content(data, inside)
    if atom(data, protocol) == "mc_amqp":
        return exchange, routing_key, None, _or_none(lambda: _sections(data, inside))
    return exchange, routing_key, None, None


def _content(data: bytes, at: int) -> tuple[str | None, bytes | None]:
    """Properties and payload of AMQP 0-9-1. The fragments of the payload are stored in reverse order."""
    try:
        _, _, decoded, header, _, fragments = elements(data, at, "content", 6)
    except NotThere:
        return None, None

    def told() -> dict[str, Any]:
        return properties.of_header(binary(data, header)) if data[header] == 109 else properties.of_record(data, decoded)

    found = _or_none(told)
    text = None if found is None else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return text, _or_none(lambda: b"".join(reversed([binary(data, place) for place in items(data, fragments)])))


def _sections(data: bytes, at: int) -> bytes:
    """The payload of AMQP 1.0, if it is bytes."""
    _, _, bare, _, _, begin, code = elements(data, at, "v1", 7)
    sections, place = binary(data, bare), _place(data, begin)
    if _place(data, code) != 0x75:
        raise NotThere("a value or a sequence")
    parts = []
    while width := _BYTES.get(sections[place : place + 4]):
        size = int.from_bytes(sections[place + 4 : place + 4 + width])
        place += 4 + width + size
        if place > len(sections):
            raise NotThere("cut off")
        parts.append(sections[place - size : place])
    return b"".join(parts)


def _place(data: bytes, at: int) -> int:
    if data[at] == 97:
        return data[at + 1]
    if data[at] == 98:
        return int.from_bytes(data[at + 1 : at + 5])
    raise NotThere("no offset")


def _first(data: bytes, at: int) -> str:
    return _text(binary(data, next(items(data, at), at)))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _or_none(read: Callable[[], T]) -> T | None:
    """One damaged part does not hide the others."""
    try:
        return read()
    except NOT_A_TERM:
        return None
