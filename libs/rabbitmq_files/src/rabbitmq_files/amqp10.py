"""Sections of a message of AMQP 1.0, as properties of AMQP 0-9-1, headers, and a body.

Sources: "AMQP 1.0, part 1: types" and "part 3: messaging"; ``mc_amqpl.erl`` of RabbitMQ 4, which makes a message for clients of
AMQP 0-9-1. A body that is a value or a sequence stays encoded, with the ``type`` ``amqp-1.0``.
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

_PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE = range(0x73, 0x78)
_SECTIONS = (
    "amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map", "amqp:properties:list",
    "amqp:application-properties:map", "amqp:data:binary", "amqp:amqp-sequence:list", "amqp:amqp-value:*", "amqp:footer:map",
)  # fmt: skip
_CODES: dict[Any, int] = {code: code for code in range(0x70, 0x79)} | {name: 0x70 + n for n, name in enumerate(_SECTIONS)}
"""Begin of a section, its code or its name, to the code."""
_NAMES = {
    0: "message_id", 1: "user_id", 4: "reply_to", 5: "correlation_id", 6: "content_type", 7: "content_encoding", 10: "app_id",
}  # fmt: skip
"""Number of a property of AMQP 1.0 to the one of AMQP 0-9-1, if it is a text of at most 255 bytes."""
_TIMESTAMP = 9
_HEADERS = (
    "x-message-id", "x-amqp-1.0-user-id", "x-amqp-1.0-to", "x-amqp-1.0-subject", "x-amqp-1.0-reply-to", "x-correlation-id",
    "x-amqp-1.0-content-type", "x-amqp-1.0-content-encoding", "x-amqp-1.0-absolute-expiry-time", "x-amqp-1.0-creation-time",
    "x-amqp-1.0-group-id", "x-amqp-1.0-group-sequence", "x-amqp-1.0-reply-to-group-id",
)  # fmt: skip
"""Header of each other one. RabbitMQ delivers only the ids."""
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
    except (IndexError, struct.error):
        raise PropertiesError("a message of AMQP 1.0 that is cut") from None


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Any] | None, bytes]:
    properties: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    bodies, at = [], 0
    while at < len(data):
        begin = at
        if data[at] != 0:
            raise PropertiesError(f"byte {data[at]} where a section of AMQP 1.0 begins")
        kind, at = _value(data, at + 1, 0)
        value, at = _value(data, at, 0)
        section = _CODES.get(kind, 0) if isinstance(kind, int | str) else 0
        if section == _PROPERTIES and isinstance(value, list) and len(value) <= len(_HEADERS):
            _properties(value, properties, headers)
        elif section == _APPLICATION and isinstance(value, dict):
            headers |= value
        elif section == _DATA and isinstance(value, _Binary):
            bodies.append(bytes(value))
        elif section in (_SEQUENCE, _VALUE):
            properties["type"] = ENCODED
            bodies.append(data[begin:at])
        elif not section or _PROPERTIES <= section <= _DATA:
            raise PropertiesError("a section that AMQP 1.0 does not have, or one with another content")
    return properties, {name: _as_json(value) for name, value in headers.items()} or None, b"".join(bodies)


def _properties(values: list[Any], properties: dict[str, Any], headers: dict[str, Any]) -> None:
    for number, value in enumerate(values):
        if number == 1 and isinstance(value, _Binary):
            value = value.decode("utf-8", "backslashreplace")
        text = str(value) if type(value) is int else value
        if number == _TIMESTAMP and isinstance(value, _Timestamp) and value >= 0:
            properties["timestamp"] = int(value)
        elif number in _NAMES and isinstance(text, str) and len(text.encode()) <= 255:
            properties[_NAMES[number]] = text
        elif value is not None:
            headers[_HEADERS[number]] = value


class _Binary(bytes):
    """A binary, as text of AMQP 1.0 is a str."""


class _Timestamp(int):
    """Seconds since the epoch."""


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, _Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list) else value


def _as_name(value: Any) -> str:
    """Return the key of a map as text."""
    if isinstance(value, list | dict):
        raise PropertiesError("a list or a map as the key of a map of AMQP 1.0")
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


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
        return _Timestamp(int.from_bytes(_cut(data, at, at + 8), "big", signed=True) // 1000), at + 8
    if code == 0x98:
        return uuid.UUID(bytes=_cut(data, at, at + 16)).urn, at + 16
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
    if at != end or (code & 0xF and count % 2):
        raise PropertiesError("a list or map of AMQP 1.0 whose last value does not end with it")
    if code & 0xF == 0:
        return values, at
    return dict(zip(map(_as_name, values[::2]), values[1::2], strict=True)), at


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
