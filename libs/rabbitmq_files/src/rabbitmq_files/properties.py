"""Properties of a message of AMQP 0-9-1: the bytes of a content header, and the same as JSON values.

What JSON cannot say is an object of one member: ``{"$bytes": base64}``, ``{"$timestamp": seconds}``, ``{"$decimal": "12.34"}``,
``{"$float": "nan"}``. The bytes begin with 16 bits, which say what is present. Source: AMQP 0-9-1, section 4.2.5, with the
types that RabbitMQ uses.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any

NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""In the order of the flags, of which the first is bit 15; also the order of the members of an Erlang ``P_basic``."""
MAX_DEPTH = 100
"""Levels of tables and arrays."""

_FLAGS = {name: 1 << 15 - number for number, name in enumerate(NAMES)}
_OCTETS = ("delivery_mode", "priority")
_u16, _u32, _u64 = Struct(">H"), Struct(">I"), Struct(">Q")
_i8, _i16, _i32, _i64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_f32, _f64 = Struct(">f"), Struct(">d")
_NUMBERS = {b"I": _i32, b"b": _i8, b"s": _i16, b"l": _i64, b"B": Struct(">B"), b"u": _u16, b"i": _u32, b"f": _f32, b"d": _f64}
_NUMBERS_BY_BYTE = {key[0]: form for key, form in _NUMBERS.items()}
_LETTERS = {
    "longstr": b"S", "signedint": b"I", "decimal": b"D", "timestamp": b"T", "table": b"F", "array": b"A", "byte": b"b",
    "double": b"d", "float": b"f", "long": b"l", "short": b"s", "bool": b"t", "binary": b"x", "unsignedbyte": b"B",
    "unsignedshort": b"u", "unsignedint": b"i", "void": b"V",
}  # fmt: skip
"""Type in a header of a decoded ``P_basic`` to the letter on the wire."""


class PropertiesError(ValueError):
    """The bytes or values are no properties of AMQP 0-9-1."""


# -- from bytes --------------------------------------------------------------------------------------------------------


def read_properties(data: bytes) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the properties of a content header, from the flags on, and its headers, as JSON values. Raises PropertiesError."""
    try:
        (flags,) = _u16.unpack_from(data)
        if flags & 3:
            raise PropertiesError("flags that no message has")
        properties: dict[str, Any] = {}
        headers, at = None, 2
        for name in _present(flags):
            if name == "headers":
                headers, at = _read_table(data, at, 0)
            elif name in _OCTETS:
                properties[name], at = data[at], at + 1
            elif name == "timestamp":
                (properties[name],), at = _u64.unpack_from(data, at), at + 8
            else:
                begin = at + 1
                at = begin + data[at]
                properties[name] = _text(data[begin:at])
    except (IndexError, struct.error):
        raise PropertiesError("the properties are cut") from None
    if at != len(data):
        raise PropertiesError("the properties are cut" if at > len(data) else f"{len(data) - at} bytes after the properties")
    return properties, headers


@cache
def _present(flags: int) -> tuple[str, ...]:
    return tuple(name for name, flag in _FLAGS.items() if flags & flag)


def _text(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _bytes_object(raw)


def _bytes_object(raw: bytes) -> dict[str, str]:
    return {"$bytes": base64.b64encode(raw).decode()}


def _read_table(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at, end = _inner(data, at, depth)
    while at < end:
        stop = at + 1 + data[at]
        name = str(data[at + 1 : stop], "utf-8", "backslashreplace")
        found[name], at = _read_value(data, stop, depth + 1)
    if at != end:
        raise PropertiesError("a table whose last value does not end with it")
    return found, end


def _read_array(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    found = []
    at, end = _inner(data, at, depth)
    while at < end:
        value, at = _read_value(data, at, depth + 1)
        found.append(value)
    if at != end:
        raise PropertiesError("an array whose last value does not end with it")
    return found, end


def _inner(data: bytes, at: int, depth: int) -> tuple[int, int]:
    """Return begin and end of the values of a table or an array."""
    end = at + 4 + _u32.unpack_from(data, at)[0]
    if end > len(data) or depth >= MAX_DEPTH:
        raise PropertiesError("a table or an array that is cut, or nested too deeply")
    return at + 4, end


def _read_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Read a value in a table or an array. The offset after it may be after the data."""
    letter = data[at]
    at += 1
    if letter == 83:  # S
        begin = at + 4
        at = begin + _u32.unpack_from(data, at)[0]
        return _text(data[begin:at]), at
    if (form := _NUMBERS_BY_BYTE.get(letter)) is not None:
        (value,) = form.unpack_from(data, at)
        is_number = type(value) is int or math.isfinite(value)
        return value if is_number else {"$float": str(value)}, at + form.size
    if letter == 116:  # t
        return data[at] != 0, at + 1
    if letter == 70:  # F
        return _read_table(data, at, depth)
    if letter == 65:  # A
        return _read_array(data, at, depth)
    if letter == 84:  # T
        return {"$timestamp": _u64.unpack_from(data, at)[0]}, at + 8
    if letter == 86:  # V
        return None, at
    if letter == 120:  # x
        end = at + 4 + _u32.unpack_from(data, at)[0]
        return _bytes_object(data[at + 4 : end]), end
    if letter == 68:  # D
        return {"$decimal": _decimal(data[at], _u32.unpack_from(data, at + 1)[0])}, at + 5
    raise PropertiesError(f"a value of type {letter}, which AMQP 0-9-1 does not have")


def _decimal(scale: int, digits: int) -> str:
    text = str(digits).rjust(scale + 1, "0")
    return f"{text[:-scale]}.{text[-scale:]}" if scale else text


# -- from a decoded P_basic --------------------------------------------------------------------------------------------


def encode_p_basic(record: Sequence[Any]) -> bytes:
    """Encode the Erlang tuple ``{'P_basic', ContentType, ...}`` as RabbitMQ does when it sends such a message.
    Raises PropertiesError."""
    if len(record) != 1 + len(NAMES) or record[0] != "P_basic":
        raise PropertiesError("properties that are no P_basic")
    values = {name: value for name, value in zip(NAMES, record[1:], strict=True) if value != "undefined"}
    headers = values.pop("headers", None)
    return _encode(values, None if headers is None else _typed_table(headers, 0))


def encode_header(name: bytes, kind: str, value: Any) -> bytes:
    """Encode one header of a decoded ``P_basic``: ``{Name, Type, Value}``. Raises PropertiesError."""
    return _shortstr(name) + _typed_value(kind, value, 0)


def _typed_table(headers: Any, depth: int) -> bytes:
    try:
        inner = b"".join(_shortstr(name) + _typed_value(kind, value, depth + 1) for name, kind, value in headers)
    except PropertiesError:
        raise
    except (TypeError, ValueError):
        raise PropertiesError("headers that are not {Name, Type, Value}") from None
    return _sized(inner)


def _typed_value(kind: str, value: Any, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise PropertiesError("headers that are nested too deeply")
    try:
        letter = _LETTERS[kind]
        if kind in ("longstr", "binary"):
            return letter + _sized(value)
        if kind == "table":
            return letter + _typed_table(value, depth)
        if kind == "array":
            return letter + _sized(b"".join(_typed_value(inner, one, depth + 1) for inner, one in value))
        if kind == "bool":
            return letter + bytes([("false", "true").index(value)])
        if kind == "decimal":
            scale, digits = value
            return letter + bytes([scale]) + _u32.pack(digits)
        if kind == "timestamp":
            return letter + _u64.pack(value)
        return letter if kind == "void" else letter + _NUMBERS[letter].pack(value)
    except PropertiesError:
        raise
    except (KeyError, OverflowError, TypeError, ValueError, struct.error):
        raise PropertiesError(f"a header of the type {str(kind)[:20]!r} with a value that it cannot have") from None


# -- from JSON values ----------------------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, Any], headers: Mapping[str, Any] | None = None) -> bytes:
    """Encode properties and headers as JSON has them. An integer becomes ``I`` if it has 32 bits, else ``l``; a number with a
    fraction ``d``; text ``S``; ``$bytes`` ``x``. Names that AMQP does not have are refused. Raises PropertiesError."""
    for name in properties:
        if name not in _FLAGS or name == "headers":
            raise PropertiesError(f"{name!r} is no property of AMQP 0-9-1")
    return _encode(properties, None if headers is None else _json_table(headers, 0))


def _json_table(headers: Mapping[str, Any], depth: int) -> bytes:
    return _sized(b"".join(_shortstr(_utf8(name)) + _json_value(value, depth + 1) for name, value in headers.items()))


def _json_value(value: Any, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise PropertiesError("headers that are nested too deeply")
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, str):
        return b"S" + _sized(_utf8(value))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise PropertiesError(f"an integer of {value.bit_length()} bits; AMQP 0-9-1 has 64")
        return b"I" + _i32.pack(value) if -(2**31) <= value < 2**31 else b"l" + _i64.pack(value)
    if isinstance(value, float):
        return b"d" + _f64.pack(value)
    if isinstance(value, Mapping):
        if len(value) == 1 and (special := _special(*next(iter(value.items())))) is not None:
            return special
        return b"F" + _json_table(value, depth)
    if isinstance(value, list | tuple):
        return b"A" + _sized(b"".join(_json_value(one, depth + 1) for one in value))
    raise PropertiesError(f"a header of the type {type(value).__name__}")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise PropertiesError("a text with half of a surrogate pair, which has no bytes") from None


def _special(name: str, value: Any) -> bytes | None:
    """Encode what JSON cannot say. None: another object."""
    try:
        if name == "$bytes":
            return b"x" + _sized(base64.b64decode(value, validate=True))
        if name == "$timestamp":
            return b"T" + _u64.pack(value)
        if name == "$float":
            return b"d" + _f64.pack(float(value))
        if name == "$decimal":
            whole, _, fraction = value.partition(".")
            return b"D" + bytes([len(fraction)]) + _u32.pack(int(whole + fraction))
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error):
        raise PropertiesError(f"a {name} with a value that it cannot have") from None
    return None


# -- bytes ---------------------------------------------------------------------------------------------------------------


def _encode(values: Mapping[str, Any], table: bytes | None) -> bytes:
    flags, parts = 0, []
    for name in NAMES:
        if name == "headers":
            if table is not None:
                flags |= _FLAGS[name]
                parts.append(table)
        elif (value := values.get(name)) is not None:
            flags |= _FLAGS[name]
            parts.append(_property(name, value))
    return _u16.pack(flags) + b"".join(parts)


def _property(name: str, value: Any) -> bytes:
    try:
        if name in _OCTETS:
            return bytes([value])
        if name == "timestamp":
            return _u64.pack(value["$timestamp"] if isinstance(value, Mapping) else value)
        if isinstance(value, Mapping):
            value = base64.b64decode(value["$bytes"], validate=True)
        return _shortstr(value if isinstance(value, bytes) else value.encode())
    except PropertiesError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, struct.error):
        raise PropertiesError(f"the property {name} with a value that it cannot have") from None


def _shortstr(raw: bytes) -> bytes:
    if not isinstance(raw, bytes) or len(raw) > 255:
        raise PropertiesError("a short text of more than 255 bytes, or none")
    return bytes([len(raw)]) + raw


def _sized(raw: bytes) -> bytes:
    if not isinstance(raw, bytes):
        raise PropertiesError("a text that is none")
    return _u32.pack(len(raw)) + raw


def add_headers(raw: bytes, more: Sequence[bytes], changed: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of a content header with more headers, each from :func:`encode_header`, and with other properties, of
    which None removes one. Headers replace those of the same names, and all are sorted by name, as RabbitMQ 4 does. Raises
    PropertiesError."""
    read_properties(raw)
    parts, at = dict[str, bytes](), 2
    for name in _present(_u16.unpack_from(raw)[0]):
        size = 1 if name in _OCTETS else 8 if name == "timestamp" else 1 + raw[at]
        end = _inner(raw, at, 0)[1] if name == "headers" else at + size
        parts[name], at = raw[at:end], end
    table, at, headers = parts.get("headers", b""), 4, dict[bytes, bytes]()
    while more and at < len(table):
        stop = at + 1 + table[at]
        _, end = _read_value(table, stop, 1)
        headers[table[at + 1 : stop]], at = table[at:end], end
    if more:
        headers |= {one[1 : 1 + one[0]]: one for one in more}
        parts["headers"] = _sized(b"".join(headers[name] for name in sorted(headers)))
    for name, value in (changed or {}).items():
        parts[name] = b"" if value is None else _property(name, value)
    present = [name for name in NAMES if parts.get(name)]
    return _u16.pack(sum(_FLAGS[name] for name in present)) + b"".join(parts[name] for name in present)
