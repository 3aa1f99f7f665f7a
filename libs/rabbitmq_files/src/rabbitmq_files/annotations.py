"""Annotations of a message container, as the properties and headers that RabbitMQ makes of them when it delivers a message.

Sources: ``mc.erl``, ``mc_amqpl.erl`` and ``mc_mqtt.erl`` of RabbitMQ 4.3; messages of 4.0 and 4.3 were compared with what the
broker delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from rabbitmq_files.properties import PropertiesError

_INTERNAL = (b"x-opt-deaths", b"x-death", b"x-exchange", b"x-routing-key")
"""Message annotations that are no headers, beside those that begin with ``x-basic-``."""
_TYPES = {
    "utf8": "longstr", "symbol": "longstr", "binary": "binary", "boolean": "bool", "long": "long", "ulong": "long",
    "int": "signedint", "uint": "unsignedint", "short": "short", "ushort": "unsignedshort", "byte": "byte",
    "ubyte": "unsignedbyte", "float": "float", "double": "double",
}  # fmt: skip
"""Type of AMQP 1.0 to that of a header."""


def changed_properties(properties: Mapping[str, Any], annotations: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the properties that a broker changes when it delivers. Dead letters do not expire again."""
    changed: dict[str, Any] = {}
    if annotations.get("ttl") == "undefined" and "expiration" in properties:
        changed["expiration"] = None
    stamp = annotations.get("ts")
    if isinstance(stamp, int) and 0 <= stamp < 2**63 and properties.get("timestamp") != stamp // 1000:
        changed["timestamp"] = stamp // 1000
    return changed


def of_mqtt(payload: Any, about: Mapping[Any, Any]) -> tuple[dict[str, Any], list[tuple[bytes, str, Any]], bytes]:
    """Return properties, headers and body of a message of MQTT, as ``mc_mqtt.erl`` makes them for clients of AMQP 0-9-1."""
    properties, headers = dict[str, Any](), list[tuple[bytes, str, Any]]()
    match about.get("User-Property"):
        case list(pairs):
            headers += [(pair[0], "longstr", pair[1]) for pair in pairs if type(pair) is tuple and len(pair) == 2]
    if type(topic := about.get("Response-Topic")) is bytes:
        headers.append((b"x-reply-to-topic", "longstr", topic.replace(b"/", b".").replace(b"+", b"*")))
    for key, name in (("Content-Type", "content_type"), ("Correlation-Data", "correlation_id")):
        if type(value := about.get(key)) is bytes:
            try:
                properties[name] = value.decode()
            except UnicodeDecodeError:
                headers.append((b"x-" + name.replace("_", "-").encode(), "longstr", value))
    return properties, headers, _flat(payload)


def _flat(payload: Any) -> bytes:
    """Return the bytes of a binary, or of a list of such and of bytes."""
    if type(payload) is list:
        return b"".join(bytes([one]) if type(one) is int and 0 <= one < 256 else _flat(one) for one in payload)
    if type(payload) is not bytes:
        raise PropertiesError("a message of MQTT whose payload is no binary")
    return payload


def annotated(annotations: Any) -> Iterator[tuple[bytes, str, Any]]:
    """Yield the message annotations of AMQP 1.0 that RabbitMQ delivers as headers."""
    for pair in annotations if isinstance(annotations, list) else ():
        match pair:
            case (("symbol", b"x-opt-rabbitmq-received-time"), ("timestamp", int(milliseconds))):
                yield b"timestamp_in_ms", "long", milliseconds
            case (("symbol", bytes(name)), value) if name[:2] == b"x-" and name[:8] != b"x-basic-" and name not in _INTERNAL:
                yield (b"CC" if name == b"x-cc" else name, *_typed(value))


def _typed(value: Any) -> tuple[str, Any]:
    """Return type and value of a header from a value of AMQP 1.0 with its type. Other types: as no value."""
    match value:
        case "true" | "false":
            return "bool", value
        case ("list", list(members)):
            return "array", list(map(_typed, members))
        case ("timestamp", int(milliseconds)):
            return "timestamp", milliseconds // 1000
        case (str(kind), inner) if kind in _TYPES:
            return _TYPES[kind], inner
    return "void", None


def more_headers(annotations: Mapping[Any, Any]) -> list[tuple[bytes, str, Any]]:
    """Return headers that a broker adds when it delivers: annotations with a binary key ``x-...``, and ``x-death``."""
    found: list[tuple[bytes, str, Any]] = []
    for key, value in annotations.items():
        if type(key) is bytes and (key.startswith(b"x-") or key == b"timestamp_in_ms"):
            if type(value) is int or type(value) is bytes:
                found.append((key, "long" if type(value) is int else "longstr", value))
            elif value == "true" or value == "false":
                found.append((key, "bool", value))
    if (deaths := annotations.get("deaths")) is not None:
        found.append((b"x-death", "array", [("table", _death(one)) for one in _deaths(deaths)]))
    return sorted(found, key=itemgetter(0))


def _deaths(deaths: Any) -> list[Any]:
    """Return the queues in which a message died, the last one first, each as a pair."""
    if isinstance(deaths, list):
        return deaths
    try:  # {deaths, First, Last, Map}, as long as a node of 3.13 may be in the cluster
        return sorted(deaths[3].items(), key=lambda pair: pair[1][4]["last_time"], reverse=True)
    except (AttributeError, IndexError, KeyError, TypeError):
        raise PropertiesError("a message container with deaths of another form") from None


def _death(one: Any) -> list[tuple[bytes, str, Any]]:
    try:
        (queue, reason), (_, exchange, routing_keys, count, times) = one
        expiration = [(b"original-expiration", "longstr", b"%d" % times["ttl"])] if "ttl" in times else []
        return [
            *expiration,
            (b"count", "long", count),
            (b"reason", "longstr", str(reason).encode()),
            (b"queue", "longstr", queue),
            (b"time", "timestamp", times["first_time"] // 1000),
            (b"exchange", "longstr", exchange),
            (b"routing-keys", "array", [("longstr", key) for key in routing_keys]),
        ]
    except (KeyError, TypeError, ValueError):
        raise PropertiesError("a message container with deaths of another form") from None
