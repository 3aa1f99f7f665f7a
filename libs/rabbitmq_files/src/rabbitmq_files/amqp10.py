"""Sections of a message of AMQP 1.0, as properties of AMQP 0-9-1, headers, and a body.

Source: "AMQP 1.0, part 1: types" and "part 3: messaging". Names are those that RabbitMQ gives when it delivers such a message
to a client of AMQP 0-9-1. A body that is a value or a sequence stays encoded, with the ``type`` ``amqp-1.0``.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
from struct import Struct
from typing import Any

from rabbitmq_files.properties import PropertiesError

MAX_DEPTH = 100
ENCODED = "amqp-1.0"
"""``type`` of a message whose body is a section of AMQP 1.0."""

_PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x73, 0x79)
_NAMES = {0: "message_id", 4: "reply_to", 5: "correlation_id", 6: "content_type", 7: "content_encoding", 9: "timestamp"}
"""Number of a property of AMQP 1.0 to the one of AMQP 0-9-1."""
_OTHERS = {
    1: "user-id", 2: "to", 3: "subject", 8: "absolute-expiry-time", 10: "group-id", 11: "group-sequence",
    12: "reply-to-group-id",
}  # fmt: skip
"""Properties without a place in AMQP 0-9-1: headers, as ``x-amqp-1.0-NAME``."""
_NUMBERS = {
    0x50: ">B", 0x51: ">b", 0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i",
    0x72: ">f", 0x80: ">Q", 0x81: ">q", 0x82: ">d",
}  # fmt: skip
_FORMS = {code: Struct(form) for code, form in _NUMBERS.items()}
_u32 = Struct(">I").unpack_from


def read_sections(data: bytes) -> tuple[dict[str, Any], dict[str, Any] | None, bytes]:
    """Return properties, headers and body. Raises PropertiesError."""
    try:
        return _read(data)
    except (IndexError, struct.error, RecursionError, OverflowError):
        raise PropertiesError("a message of AMQP 1.0 that is cut") from None


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Any] | None, bytes]:
    properties: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    bodies, at, encoded_at = [], 0, -1
    while at < len(data):
        begin = at
        if data[at] != 0:
            raise PropertiesError(f"byte {data[at]} where a section of AMQP 1.0 begins")
        section, at = _value(data, at + 1, 0)
        value, at = _value(data, at, 0)
        if section == _PROPERTIES and isinstance(value, list):
            _properties(value, properties, headers)
        elif section == _APPLICATION and isinstance(value, dict):
            headers |= value
        elif section == _DATA and isinstance(value, _Binary):
            bodies.append(bytes(value))
        elif section in (_SEQUENCE, _VALUE):
            encoded_at = begin if encoded_at < 0 else encoded_at
            bodies.append(data[begin:at])
    if encoded_at >= 0:
        properties["type"] = ENCODED
    return properties, {name: _as_json(value) for name, value in headers.items()} or None, b"".join(bodies)


def _properties(values: list[Any], properties: dict[str, Any], headers: dict[str, Any]) -> None:
    for number, value in enumerate(values):
        if value is None:
            continue
        if number == 9:
            properties["timestamp"] = value["$timestamp"] if isinstance(value, dict) else value
        elif number in _NAMES:
            text = _as_json(value)
            properties[_NAMES[number]] = text if isinstance(text, str | dict) else str(text)
        elif number in _OTHERS:
            headers[f"x-amqp-1.0-{_OTHERS[number]}"] = value


class _Binary(bytes):
    """A binary, as text of AMQP 1.0 is a str."""


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list) else value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return _value_of(data[at], data, at + 1, depth)


def _value_of(code: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Read a value of the type ``code``, whose bytes begin at ``at``."""
    if depth > MAX_DEPTH:
        raise PropertiesError("a value of AMQP 1.0 that is nested too deeply")
    if code == 0x40:
        return None, at
    if code in (0x41, 0x42):
        return code == 0x41, at
    if code in (0x43, 0x44):
        return 0, at
    if code == 0x45:
        return [], at
    if code == 0x56:
        return data[at] != 0, at + 1
    if (form := _FORMS.get(code)) is not None:
        return form.unpack_from(data, at)[0], at + form.size
    if code == 0x83:  # timestamp, in milliseconds
        return {"$timestamp": int.from_bytes(_cut(data, at, at + 8), "big", signed=True) // 1000}, at + 8
    if code == 0x98:
        return str(uuid.UUID(bytes=_cut(data, at, at + 16))), at + 16
    if code in (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3):
        size, at = (data[at], at + 1) if code < 0xB0 else (_u32(data, at)[0], at + 4)
        raw = _cut(data, at, at + size)
        return (_Binary(raw) if code & 0xF == 0 else raw.decode("utf-8", "backslashreplace")), at + size
    if code in (0xC0, 0xC1, 0xD0, 0xD1):
        return _compound(data, at, code, depth)
    if code in (0xE0, 0xF0):
        return _array(data, at, code, depth)
    if code == 0:  # a described value: the description says nothing that AMQP 0-9-1 has
        _, at = _value(data, at, depth + 1)
        return _value(data, at, depth + 1)
    if code in (0x73, 0x74, 0x84, 0x94):  # a character, and decimals, as their bytes
        size = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16}[code]
        return _Binary(_cut(data, at, at + size)), at + size
    raise PropertiesError(f"a value of type 0x{code:02X}, which AMQP 1.0 does not have")


def _compound(data: bytes, at: int, code: int, depth: int) -> tuple[Any, int]:
    """Read a list or a map, with sizes of one byte or four."""
    if code < 0xD0:
        end, count, at = at + 1 + data[at], data[at + 1], at + 2
    else:
        end, count, at = at + 4 + _u32(data, at)[0], _u32(data, at + 4)[0], at + 8
    if end > len(data) or count > end - at:
        raise PropertiesError("a list or map of AMQP 1.0 that is cut")
    values = []
    for _ in range(count):
        value, at = _value(data, at, depth + 1)
        values.append(value)
    if at != end:
        raise PropertiesError("a list or map of AMQP 1.0 whose last value does not end with it")
    if code & 0xF == 0:
        return values, at
    return {str(_as_json(name)): value for name, value in zip(values[::2], values[1::2], strict=False)}, at


def _array(data: bytes, at: int, code: int, depth: int) -> tuple[Any, int]:
    """Read an array: its values share one type."""
    if code == 0xE0:
        end, count, at = at + 1 + data[at], data[at + 1], at + 2
    else:
        end, count, at = at + 4 + _u32(data, at)[0], _u32(data, at + 4)[0], at + 8
    kind, at = data[at], at + 1
    if end > len(data) or count > end - at or kind == 0:
        raise PropertiesError("an array of AMQP 1.0 that is cut, or of described values")
    values = []
    for _ in range(count):
        value, at = _value_of(kind, data, at, depth + 1)
        values.append(value)
    if at != end:
        raise PropertiesError("an array of AMQP 1.0 whose last value does not end with it")
    return values, at


def _cut(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise PropertiesError("a value of AMQP 1.0 that is cut")
    return data[begin:end]
