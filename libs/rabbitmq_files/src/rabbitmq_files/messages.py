"""Messages as RabbitMQ stores them: the term of a ``basic_message`` (3.x) or of a message container ``mc`` (3.13 and later).

The same bytes are in the shared message store, in queue indexes of version 1 and in ``.qs`` files. Sources: ``rabbit.hrl`` and
``mc.erl`` of RabbitMQ 3.10 and 4.3; messages of 3.10 were compared with what the broker delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from rabbitmq_files.amqp10 import read_sections
from rabbitmq_files.annotations import annotated, changed_properties, more_headers, of_mqtt
from rabbitmq_files.properties import (
    PropertiesError,
    add_headers,
    encode_header,
    encode_p_basic,
    encode_properties,
    read_properties,
)
from rabbitmq_files.terms import COMPRESSED, Buffer, TermError, decode, decode_inner

TERM_TYPE = "application/x-erlang-term"
"""Content type of a message whose body is the term itself: of a protocol that is not decoded, such as MQTT."""
_SMALL_TUPLE = 104

_u32 = Struct(">I").unpack_from
_HEAD = b"\x83h\6d\0\rbasic_messageh\4d\0\x08resourcem"
_EXCHANGE = b"d\0\x08exchangem"
_CONTENT = b"h\6d\0\7contenta<d\0\4nonem"
_PROTOCOL = b"d\0\x19rabbit_framing_amqp_0_9_1"
_ID = b"m\0\0\0\x10"
_TRUE, _FALSE = b"d\0\4true", b"d\0\5false"
_NIL, _LIST, _BINARY = b"jlm"
"""Parts of a ``basic_message``, and tags."""


class MessageError(ValueError):
    """A term that is no message, or a message that cannot be read."""


@dataclass(slots=True, kw_only=True)
class StoredMessage:
    """One message. Texts are bytes, as RabbitMQ has them."""

    protocol: str
    """``basic_message``, or the module of a container: ``mc_amqpl``, ``mc_amqp``, ``mc_mqtt``."""
    msg_id: bytes | None
    """16 bytes. None: a container without it."""
    exchange: bytes
    routing_keys: list[bytes]
    """The key of the publish, then those of CC and BCC."""
    body: bytes
    is_persistent: bool
    vhost: bytes | None = None
    """None in a container, which does not have it."""
    raw_properties: bytes | None = None
    """The content header from the flags on, as the broker sends it: the client's bytes, or if the broker has changed them, its
    own encoding. None for other protocols than AMQP 0-9-1."""
    properties: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] | None = None
    timestamp_ms: int | None = None
    """When the broker received it, if it says so."""
    indexed_size: int | None = None
    """Size that a queue index has for the message: that of the body in AMQP 0-9-1 and MQTT. None: not known."""


def read_message(data: Buffer, offset: int = 0) -> tuple[StoredMessage, int]:
    """Read the message that begins at ``offset``. Return it, and the offset after its term. Raises MessageError."""
    try:
        if (found := _read_usual(data, offset)) is not None:
            return found
        term, end = decode(data, offset)
        if type(term) is tuple and len(term) == 6 and term[0] == "basic_message":
            return _basic_message(term), end
        if type(term) is tuple and len(term) == 4 and term[0] == "mc":
            return _container(term, data, offset), end
    except (TermError, PropertiesError) as error:
        raise MessageError(str(error)) from None
    raise MessageError(f"a term that is no message: {_shape(term)}")


def _read_usual(data: Buffer, at: int) -> tuple[StoredMessage, int] | None:
    """Read a ``basic_message`` in the encoding of RabbitMQ up to 3.12 on Erlang up to 25, one part after the other: this takes
    less than half of the time. Return None for any other bytes. Raises PropertiesError."""
    if data[at : at + len(_HEAD)] != _HEAD:
        return None
    try:
        vhost, at = _sized(data, at + len(_HEAD))
        exchange, at = _sized(data, at + len(_EXCHANGE) if data[at : at + len(_EXCHANGE)] == _EXCHANGE else -1)
        keys, at = _binaries(data, at)
        raw, at = _sized(data, at + len(_CONTENT) if data[at : at + len(_CONTENT)] == _CONTENT else -1)
        fragments, at = _binaries(data, at + len(_PROTOCOL) if data[at : at + len(_PROTOCOL)] == _PROTOCOL else -1)
        if data[at : at + 5] != _ID:
            return None
        msg_id, at = _sized(data, at + 1)
    except (IndexError, struct.error):
        return None
    is_persistent = data[at : at + 7] == _TRUE
    if not is_persistent and data[at : at + 8] != _FALSE:
        return None
    properties, headers = read_properties(raw)
    body = fragments[0] if len(fragments) == 1 else b"".join(reversed(fragments))
    message = StoredMessage(
        protocol="basic_message",
        msg_id=msg_id,
        exchange=exchange,
        routing_keys=keys,
        body=body,
        indexed_size=len(body),
        is_persistent=is_persistent,
        vhost=vhost,
        raw_properties=raw,
        properties=properties,
        headers=headers,
    )
    return message, at + (7 if is_persistent else 8)


def _sized(data: Buffer, at: int) -> tuple[bytes, int]:
    """Return the bytes whose size is at ``at``, and the offset after them. Raises IndexError, struct.error."""
    begin = at + 4
    end = begin + _u32(data, at)[0] if at >= 0 else -1
    if not begin <= end <= len(data):
        raise IndexError
    return data[begin:end], end


def _binaries(data: Buffer, at: int) -> tuple[list[bytes], int]:
    """Return a list of binaries, and the offset after it. Raises IndexError, struct.error."""
    if at >= 0 and data[at] == _NIL:
        return [], at + 1
    if at < 0 or data[at] != _LIST:
        raise IndexError
    (count,), at, found = _u32(data, at + 1), at + 5, list[bytes]()
    while count:
        if data[at] != _BINARY:
            raise IndexError
        value, at = _sized(data, at + 1)
        found.append(value)
        count -= 1
    if data[at] != _NIL:
        raise IndexError
    return found, at + 1


def _shape(term: Any) -> str:
    if isinstance(term, tuple) and term and isinstance(term[0], str):
        return f"{{{term[0][:40]}, ...}} with {len(term)} members"
    return f"a {type(term).__name__}"


def _basic_message(term: tuple[Any, ...]) -> StoredMessage:
    _, resource, keys, content, msg_id, persistent = term
    if not (type(resource) is tuple and len(resource) == 4 and _are_bytes((resource[1], resource[3]))):
        raise MessageError("a basic_message without the name of an exchange")
    if not (type(keys) is list and _are_bytes(keys)):
        raise MessageError("a basic_message whose routing keys are no list of binaries")
    if not (type(msg_id) is bytes and len(msg_id) == 16):
        raise MessageError("a basic_message whose id has not 16 bytes")
    if persistent not in ("true", "false"):
        raise MessageError("a basic_message that does not say if it is persistent")
    raw, body = _content(content)
    properties, headers = read_properties(raw)
    return StoredMessage(
        protocol="basic_message",
        msg_id=msg_id,
        exchange=resource[3],
        routing_keys=keys,
        body=body,
        indexed_size=len(body),
        is_persistent=persistent == "true",
        vhost=resource[1],
        raw_properties=raw,
        properties=properties,
        headers=headers,
    )


def _content(content: Any) -> tuple[bytes, bytes]:
    """Return properties and body of ``{content, 60, Properties, PropertiesBin, Protocol, FragmentsReversed}``."""
    if not (type(content) is tuple and len(content) == 6 and content[0] == "content"):
        raise MessageError("a message without content")
    _, _, decoded, raw, _, fragments = content
    if not (type(fragments) is list and _are_bytes(fragments)):
        raise MessageError("a message whose body is no list of binaries")
    if type(raw) is not bytes:
        if not isinstance(decoded, tuple):
            raise MessageError("a message without properties")
        raw = encode_p_basic(decoded)
    return raw, fragments[0] if len(fragments) == 1 else b"".join(reversed(fragments))


def _are_bytes(values: Sequence[Any]) -> bool:
    return {bytes}.issuperset(map(type, values))


def encode_message(
    *,
    vhost: bytes,
    exchange: bytes,
    routing_keys: Sequence[bytes],
    raw_properties: bytes,
    body: bytes,
    msg_id: bytes,
    is_persistent: bool = True,
) -> bytes:
    """Encode a ``basic_message`` as RabbitMQ 3.10 on Erlang up to 25 does, with the body as one fragment."""
    return encode_behind(encode_head(vhost, exchange, routing_keys, raw_properties), body, msg_id, is_persistent)


def encode_head(vhost: bytes, exchange: bytes, routing_keys: Sequence[bytes], raw_properties: bytes) -> bytes:
    """Encode what comes before the body, which many messages have in common."""
    keys = b"l" + len(routing_keys).to_bytes(4, "big") + b"".join(map(_binary, routing_keys)) if routing_keys else b""
    parts = (
        b"\x83h\x06", _atom(b"basic_message"), b"h\x04", _atom(b"resource"), _binary(vhost), _atom(b"exchange"),
        _binary(exchange), keys + b"j",
        b"h\x06", _atom(b"content"), b"a\x3c", _atom(b"none"), _binary(raw_properties), _atom(b"rabbit_framing_amqp_0_9_1"),
    )  # fmt: skip
    return b"".join(parts)


def encode_behind(head: bytes, body: bytes, msg_id: bytes, is_persistent: bool) -> bytes:
    """Encode a message with a head from :func:`encode_head`. ``msg_id``: 16 bytes."""
    end = _PERSISTENT if is_persistent else _TRANSIENT
    if not body:
        return b"%bjm\0\0\0\x10%b%b" % (head, msg_id, end)
    return b"".join((head, b"l\0\0\0\1m", len(body).to_bytes(4, "big"), body, b"jm\0\0\0\x10", msg_id, end))


def encode_all_behind(head: bytes, bodies: Sequence[bytes], ids: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_behind` for many persistent messages. Bodies of one size in a row cost less."""
    terms, join = list[bytes](), b"".join
    size, begin = 0, head  # an empty body is an empty list of fragments
    for body, msg_id in zip(bodies, ids, strict=True):
        if len(body) != size:
            size = len(body)
            begin = b"%bl\0\0\0\1m%b" % (head, size.to_bytes(4, "big")) if size else head
        terms.append(join((begin, body, b"jm\0\0\0\x10", msg_id, _PERSISTENT)))
    return terms


def split_tail(term: bytes, at: int) -> tuple[bytes, bytes, bool] | None:
    """Return body, id and persistence from the bytes behind a head, as :func:`encode_behind` writes them; else None."""
    if term[at : at + 6] == b"l\0\0\0\1m":
        begin = at + 10
        at = begin + int.from_bytes(term[at + 6 : begin], "big")
        body = term[begin:at]
    else:
        body = b""
    if term[at : at + 6] != b"jm\0\0\0\x10" or (end := term[at + 22 :]) not in _ENDS:
        return None
    return body, term[at + 6 : at + 22], _ENDS[end]


def _binary(raw: bytes) -> bytes:
    return b"m" + len(raw).to_bytes(4, "big") + raw


def _atom(name: bytes) -> bytes:
    return b"d" + len(name).to_bytes(2, "big") + name


_PERSISTENT, _TRANSIENT = _atom(b"true"), _atom(b"false")
_ENDS = {_PERSISTENT: True, _TRANSIENT: False}


# -- message containers --------------------------------------------------------------------------------------------------


def _container(term: tuple[Any, ...], source: Buffer, offset: int) -> StoredMessage:
    _, protocol, data, annotations = term
    if not isinstance(annotations, Mapping) or not isinstance(protocol, str):
        raise MessageError("a message container without annotations")
    keys, hidden = annotations.get("rk", []), annotations.get("bcc", [])
    msg_id, exchange = annotations.get("id"), annotations.get("x", b"")
    if not (type(keys) is type(hidden) is list and _are_bytes([exchange, *keys, *hidden])):
        raise MessageError("a message container whose exchange or routing keys are no binaries")
    if not (msg_id is None or (type(msg_id) is bytes and len(msg_id) == 16)):
        raise MessageError("a message container whose id has not 16 bytes")
    received = annotations.get("rts")
    message = StoredMessage(
        protocol=protocol,
        msg_id=msg_id,
        exchange=exchange,
        routing_keys=list(dict.fromkeys([*keys, *hidden])),
        body=b"",
        is_persistent=annotations.get("d") != "false",
        timestamp_ms=received if isinstance(received, int) and 0 <= received < 2**63 else None,
    )
    more = [encode_header(*header) for header in more_headers(annotations)]
    if protocol == "mc_amqpl":
        raw, message.body = _content(data)
        message.raw_properties, message.indexed_size = raw, len(message.body)
        message.properties, message.headers = read_properties(raw)
        changed = changed_properties(message.properties, annotations)
        if changed or more:
            message.raw_properties = add_headers(raw, more, changed)
            message.properties, message.headers = read_properties(message.raw_properties)
        return message
    if protocol == "mc_amqp" and isinstance(data, tuple) and data and data[0] == "v1" and len(data) == 7:
        if type(data[2]) is not bytes:
            raise MessageError("a message of AMQP 1.0 whose sections are no binary")
        message.properties, message.headers, message.body = read_sections(data[2])
        message.indexed_size = len(data[2])
        more = [*(encode_header(*header) for header in annotated(data[1])), *more]
    elif protocol == "mc_mqtt" and isinstance(data, tuple) and len(data) == 9 and isinstance(data[7], Mapping):
        message.properties, headers, message.body = of_mqtt(data[6], data[7])
        message.indexed_size = len(message.body)
        more = [*(encode_header(*header) for header in headers), *more]
    else:
        message.body = _raw_data(source, offset)
        message.properties = {"content_type": TERM_TYPE, "type": protocol[:60]}
    message.properties |= changed_properties(message.properties, annotations)
    message.properties["delivery_mode"] = 2 if message.is_persistent else 1
    if isinstance(priority := annotations.get("p"), int) and 0 <= priority < 256:
        message.properties["priority"] = priority
    if isinstance(ttl := annotations.get("ttl"), int) and 0 <= ttl < 2**63:
        message.properties["expiration"] = str(ttl)
    if more:
        _, added = read_properties(add_headers(encode_properties({}), more))
        message.headers = (message.headers or {}) | (added or {})
    return message


def _raw_data(data: Buffer, offset: int) -> bytes:
    """Return the bytes of the third member of a container, as a term of its own."""
    if data[offset + 1] == COMPRESSED:
        raise MessageError("a compressed message of another protocol than AMQP")
    at = offset + (3 if data[offset + 1] == _SMALL_TUPLE else 6)
    for _ in range(2):
        _, at = decode_inner(data, at)
    _, end = decode_inner(data, at)
    return b"\x83" + data[at:end]
