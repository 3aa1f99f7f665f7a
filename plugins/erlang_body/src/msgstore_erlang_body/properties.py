"""Basic properties of AMQP 0-9-1, headers included, in both forms in which a broker stores them.

Source: the AMQP 0-9-1 specification, class ``basic`` and "Field Table"; the type letters that RabbitMQ writes, and segments of
RabbitMQ 3.10. Values without a JSON type become objects: ``{"$bytes": hex}``, ``{"$timestamp": seconds}``,
``{"$decimal": text}``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from msgstore_erlang_body.parts import UnexpectedTerm, atom, binary, elements, items, number, tuple_of

_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
_MAX_DEPTH = 32
"""Maximum nesting depth of tables and arrays."""


def read_header(header: bytes) -> dict[str, Any]:
    """Return the properties in a content header as the client sent it. ``header`` begins with the flags.

    Raises UnexpectedTerm, LookupError or struct.error.
    """
    (flags,) = struct.unpack_from(">H", header)
    if flags & 3:
        raise UnexpectedTerm("unknown flags")
    found: dict[str, Any] = {}
    at = 2
    for position, name in enumerate(_NAMES):
        if flags >> 15 - position & 1:
            found[name], at = _WIRE.get(name, _short_text)(header, at)
    return found


def read_record(data: bytes, at: int) -> dict[str, Any]:
    """Return the properties in a ``P_basic`` tuple, the form that a broker stores after it has changed a property.

    Raises UnexpectedTerm, and the errors in ``NOT_A_TERM``.
    """
    found: dict[str, Any] = {}
    for name, offset in zip(_NAMES, elements(data, at, "P_basic", 1 + len(_NAMES))[1:], strict=True):
        if data[offset] == 109:
            found[name] = _text(binary(data, offset))
        elif name == "headers" and data[offset] in (106, 108):
            found[name] = _decoded_table(data, offset, 0)
        elif data[offset] in (97, 98, 110):
            found[name] = number(data, offset)
        elif atom(data, offset) != "undefined":
            raise UnexpectedTerm(name)
    return found


def _text(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"$bytes": value.hex()}


def _decimal(scale: int, value: int) -> dict[str, str]:
    return {"$decimal": f"{Decimal(f'{value}E-{scale}'):f}"}


def _real(value: float) -> object:
    return value if math.isfinite(value) else str(value)


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise UnexpectedTerm("cut off")
    return data[at : at + size], at + size


def _short_text(data: bytes, at: int) -> tuple[object, int]:
    value, end = _cut(data, at + 1, data[at])
    return _text(value), end


def _long(data: bytes, at: int) -> tuple[bytes, int]:
    return _cut(data, at + 4, struct.unpack_from(">I", data, at)[0])


def _number(code: str) -> Callable[[bytes, int], tuple[Any, int]]:
    layout = struct.Struct(f">{code}")
    return lambda data, at: (layout.unpack_from(data, at)[0], at + layout.size)


def _table(data: bytes, at: int, depth: int = 0) -> tuple[dict[str, object], int]:
    inside, end = _long(data, at)
    found: dict[str, object] = {}
    at = 0
    while at < len(inside):
        name, at = _cut(inside, at + 1, inside[at])
        found[name.decode(errors="backslashreplace")], at = _value(inside, at, depth + 1)
    return found, end


def _array(data: bytes, at: int, depth: int) -> tuple[list[object], int]:
    inside, end = _long(data, at)
    found: list[object] = []
    at = 0
    while at < len(inside):
        value, at = _value(inside, at, depth + 1)
        found.append(value)
    return found, end


def _value(data: bytes, at: int, depth: int) -> tuple[object, int]:
    kind, at = data[at : at + 1], at + 1
    if depth > _MAX_DEPTH:
        raise UnexpectedTerm("nested too deeply")
    if kind in (b"F", b"A"):
        return (_table if kind == b"F" else _array)(data, at, depth)
    if kind in (b"S", b"x"):
        value, end = _long(data, at)
        return (_text(value) if kind == b"S" else {"$bytes": value.hex()}), end
    if kind == b"D":
        scale, unscaled = struct.unpack_from(">BI", data, at)
        return _decimal(scale, unscaled), at + 5
    if kind == b"V":
        return None, at
    value, end = _NUMBERS[kind](data, at)
    if kind == b"T":
        return {"$timestamp": value}, end
    return (bool(value) if kind == b"t" else _real(value)), end


_NUMBERS = {
    kind: _number(code)
    for kind, code in {
        b"I": "i", b"T": "Q", b"b": "b", b"B": "B", b"s": "h", b"u": "H", b"i": "I", b"l": "q", b"f": "f", b"d": "d", b"t": "B",
    }.items()
}  # fmt: skip
_WIRE: dict[str, Callable[[bytes, int], tuple[object, int]]] = {
    "headers": _table,
    "delivery_mode": _number("B"),
    "priority": _number("B"),
    "timestamp": _number("Q"),
}
"""Readers of the properties that are not short texts."""


def _decoded_table(data: bytes, at: int, depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in items(data, at):
        name, kind, value = tuple_of(data, item, 3)
        found[binary(data, name).decode(errors="backslashreplace")] = _decoded(data, atom(data, kind), value, depth + 1)
    return found


def _decoded(data: bytes, kind: str, at: int, depth: int) -> object:
    if depth > _MAX_DEPTH:
        raise UnexpectedTerm("nested too deeply")
    if kind == "table":
        return _decoded_table(data, at, depth)
    if kind == "array":
        found = (tuple_of(data, item, 2) for item in items(data, at))
        return [_decoded(data, atom(data, inner), value, depth + 1) for inner, value in found]
    if kind == "longstr":
        return _text(binary(data, at))
    if kind == "binary":
        return {"$bytes": binary(data, at).hex()}
    if kind == "bool":
        return atom(data, at) == "true"
    if kind == "void":
        return None
    if kind == "decimal":
        scale, unscaled = (number(data, part) for part in tuple_of(data, at, 2))
        if not isinstance(scale, int) or not isinstance(unscaled, int) or not 0 <= scale <= 255:
            raise UnexpectedTerm("no decimal")
        return _decimal(scale, unscaled)
    value = number(data, at)
    return {"$timestamp": value} if kind == "timestamp" else _real(value)
