"""Basic properties of AMQP 0-9-1, headers included, in both forms in which a broker stores them.

Source: the AMQP 0-9-1 specification, class ``basic`` and "Field Table"; the type letters that RabbitMQ writes, and segments of
RabbitMQ 3.10. Values without a JSON type become objects: ``{"$bytes": hex}``, ``{"$timestamp": seconds}``,
``{"$decimal": text}``.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

from msgstore_erlang_body.values import Atom, UnexpectedTerm

_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
_MAX_DEPTH = 32
"""Maximum nesting depth of tables and arrays."""


def read_header(header: bytes) -> dict[str, Any]:
    """Return the properties in a content header as the client sent it. ``header`` begins with the flags.

    Raises UnexpectedTerm or LookupError.
    """
    cursor = _Cursor(header)
    flags = cursor.number("H")
    if flags & 3:
        raise UnexpectedTerm("unknown flags")
    given = [name for position, name in enumerate(_NAMES) if flags >> 15 - position & 1]
    return {name: cursor.table(0) if name == "headers" else cursor.property(name) for name in given}


def read_record(record: object) -> dict[str, Any]:
    """Return the properties in a ``P_basic`` tuple, the form that a broker stores after it has changed a property.

    Raises UnexpectedTerm.
    """
    if not isinstance(record, tuple) or len(record) != 1 + len(_NAMES) or record[0] != "P_basic":
        raise UnexpectedTerm("no P_basic")
    found: dict[str, Any] = {}
    for name, value in zip(_NAMES, record[1:], strict=True):
        if isinstance(value, bytes):
            found[name] = _text(value)
        elif name == "headers" and isinstance(value, list):
            found[name] = _decoded_table(value)
        elif isinstance(value, int):
            found[name] = value
        elif value != "undefined":
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


class _Cursor:
    """Bytes of the wire format, read from the start to the end. Methods raise UnexpectedTerm if there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise UnexpectedTerm("cut off")
        return self._data[self._at - size : self._at]

    def number(self, code: str) -> Any:
        layout = struct.Struct(f">{code}")
        return layout.unpack(self._take(layout.size))[0]

    def property(self, name: str) -> Any:
        return self.number(_PROPERTIES[name]) if name in _PROPERTIES else _text(self._short())

    def _short(self) -> bytes:
        return self._take(self.number("B"))

    def _long(self) -> bytes:
        return self._take(self.number("I"))

    def table(self, depth: int) -> dict[str, object]:
        inside, found = _Cursor(self._long()), dict[str, object]()
        while inside._at < len(inside._data):
            name = inside._short().decode(errors="backslashreplace")
            found[name] = inside._value(depth + 1)
        return found

    def _array(self, depth: int) -> list[object]:
        inside, found = _Cursor(self._long()), list[object]()
        while inside._at < len(inside._data):
            found.append(inside._value(depth + 1))
        return found

    def _value(self, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise UnexpectedTerm("nested too deeply")
        match self._take(1):
            case b"F":
                return self.table(depth)
            case b"A":
                return self._array(depth)
            case b"S":
                return _text(self._long())
            case b"x":
                return {"$bytes": self._long().hex()}
            case b"D":
                return _decimal(self.number("B"), self.number("I"))
            case b"V":
                return None
            case b"T":
                return {"$timestamp": self.number("Q")}
            case b"t":
                return bool(self.number("B"))
            case kind:
                return _real(self.number(_NUMBERS[kind]))


_NUMBERS = {
    b"I": "i", b"b": "b", b"B": "B", b"s": "h", b"u": "H", b"i": "I", b"l": "q", b"f": "f", b"d": "d",
}  # fmt: skip
_PROPERTIES = {"delivery_mode": "B", "priority": "B", "timestamp": "Q"}
"""Properties that are neither short texts nor a table."""


def _row(row: object, count: int) -> Any:
    if not isinstance(row, tuple) or len(row) != count:
        raise UnexpectedTerm("no row of a table or an array")
    return row


def _decoded_table(rows: list[object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, kind, value in (_row(row, 3) for row in rows):
        if not isinstance(name, bytes):
            raise UnexpectedTerm("no name")
        found[name.decode(errors="backslashreplace")] = _decoded(kind, value)
    return found


def _decoded(kind: object, value: Any) -> object:
    match kind, value:
        case "table", list():
            return _decoded_table(value)
        case "array", list():
            return [_decoded(*_row(row, 2)) for row in value]
        case "longstr", bytes():
            return _text(value)
        case "binary", bytes():
            return {"$bytes": value.hex()}
        case "bool", Atom():
            return value == "true"
        case "void", _:
            return None
        case "decimal", (int(scale), int(unscaled)) if 0 <= scale <= 255:
            return _decimal(scale, unscaled)
        case "timestamp", int() | float():
            return {"$timestamp": value}
        case Atom(), int() | float():
            return _real(value)
    raise UnexpectedTerm(str(kind))
