"""Reflow: a record of the v2 layout as v1, for a reader that takes no other, and v1 as v2.

What a reader takes is a set of LAYOUTS; silence is plain v1. What has no form there is refused with all reasons, and never
altered. The decision depends on the message and the set only, so that a producer can be warned when it sends.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from msgstore_rocketmq_log import flat
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import Frame, make_frame

V1, V1_LONG, V1_IPV6, V2 = LAYOUTS = ("v1", "v1-long", "v1-ipv6", "v2")
"""``v1-long``: topics of up to 32767 bytes, with the magic AB. ``v1-ipv6``: addresses of 16 bytes."""
PLAIN = frozenset({V1})
RAW = "__V1_PROPERTIES"
"""Untyped property with a v1 string that would not come back byte for byte."""
WHOLE = "__MQV2"
"""v1 property with a whole v2 header, in base64: it has fields that this version does not know."""
INCARNATION, ESCAPED, PREFIX = "__TOPIC_INC", "__ESCAPED", "USER."
BORN_HOST, STORE_HOST = "__BORN_HOST", "__STORE_HOST"
"""Addresses that a reader without ``v1-ipv6`` cannot take as such."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NAMES = {
    "unique_key": p.UNIQ_KEY, "tags": p.TAGS, "keys": p.KEYS, "producer_group": "PGROUP", "real_topic": p.REAL_TOPIC,
    "real_queue_id": p.REAL_QUEUE_ID, "delay_level": p.DELAY, "deliver_at_ms": "TIMER_DELIVER_MS",
    "sharding_key": "__SHARDINGKEY", "retry_topic": "RETRY_TOPIC", "max_reconsume_times": "MAX_RECONSUME_TIMES",
    "wait_store_ok": "WAIT", "trace_context": "TRACE_CONTEXT", "dlq_origin_topic": "DLQ_ORIGIN_TOPIC",
    "dlq_origin_message_id": "DLQ_ORIGIN_MESSAGE_ID", "transaction_id": "__transactionId__",
    "prepared_queue_offset": "TRAN_PREPARED_QUEUE_OFFSET", "check_immunity_seconds": "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "inner_batch_base": "INNER_BASE", "inner_batch_count": "INNER_NUM",
}  # fmt: skip
"""Typed system field to its name in v1, in the order in which they are written. ``real_topic_incarnation`` has none."""
_FIELDS = {name: next(field for field in flat.TABLES["SystemProperties"] if field.name == key) for key, name in _NAMES.items()}
RESERVED = p.SYSTEM | {INCARNATION, ESCAPED, BORN_HOST, STORE_HOST, WHOLE}
"""Names that no property of a user can have."""


@attrs.frozen
class ReflowOptions:
    """Treatment of user properties that have no v1 form. By default, the message is refused."""

    prefix: bool = False
    """A user property with the name of a system property gets the prefix ``USER.``."""
    escape: bool = False
    """Separators in names and values are written as ``%XX``, and a property says so."""
    incarnation: bool = False
    """The topic's incarnation is sent as a property."""
    max_body: int = 2**31 - 1
    """Bytes of a body that the reader takes."""


class NotDeliverableError(Exception):
    """Raised for a message without a form that the reader takes. ``reasons`` has all of them."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def to_v1(frame: Frame, accepts: Collection[str] = PLAIN, options: ReflowOptions | None = None) -> bytes:
    """Return a v2 record as v1. Offsets and times stay, so that the message id finds the record.

    Raises NotDeliverableError, and :class:`msgstore_rocketmq_log.flat.InvalidError`.
    """
    options = options or ReflowOptions()
    header = frame.header()
    reasons: list[str] = []
    topic = header["topic"].encode()
    if len(topic) > v1.MAX_LONG_TOPIC or (len(topic) > v1.MAX_TOPIC and V1_LONG not in accepts):
        reasons.append(f"the topic has {len(topic)} bytes")
    if len(frame.body) > options.max_body:
        reasons.append(f"the body has {len(frame.body)} bytes")
    pairs: list[tuple[str, str]] = []
    raw = _v1_properties(frame, header, options, pairs, reasons)
    hosts = dict[str, Any]()
    for name, there in (("born_host", BORN_HOST), ("store_host", STORE_HOST)):
        address, port = address_of(header.get(name))
        if len(address) == 16 and V1_IPV6 not in accepts:
            pairs.append((there, f"[{ipaddress.ip_address(address)}]:{port}"))
            address = bytes(4)
        hosts |= {name: address, name.replace("host", "port"): port}
    properties, has_crc = p.make_room(p.extend(raw, p.encode(pairs).encode()))
    if len(properties) > v1.MAX_PROPERTIES:
        reasons.append(f"the properties have {len(properties)} bytes")
    if reasons:
        raise NotDeliverableError(reasons)
    try:
        record = v1.encode(
            body=frame.body,
            topic=topic,
            properties=properties,
            queue_id=header.get("queue_id", 0),
            flag=header.get("flag", 0),
            queue_offset=frame.queue_offset,
            physical_offset=frame.physical_offset,
            sys_flag=header.get("sys_flag", 0),
            born_timestamp=header.get("born_timestamp", 0),
            store_timestamp=frame.store_timestamp,
            reconsume_times=header.get("reconsume_times", 0),
            prepared_transaction_offset=header.get("prepared_transaction_offset", 0),
            **hosts,
        )
    except ValueError as error:
        raise NotDeliverableError([str(error)]) from None
    return record[: -p.CRC_BYTES] + v1.crc_property(record[: -p.CRC_BYTES]) if has_crc else record


def layouts_of(record: bytes, frame: Frame | None) -> frozenset[str]:
    """Return the layouts that a reader of a stored record takes, beside the plain one. ``frame``: of a v2 record."""
    if frame is not None:
        return frozenset({V2})
    fields = v1.read_fields(record)
    found = {V1_LONG} if fields.magic == v1.LONG_TOPIC_MAGIC else set()
    return frozenset(found | {V1_IPV6} if fields.sys_flag & (v1.BORN_V6 | v1.STORE_V6) else found)


def reflowed(
    record: bytes, frame: Frame | None, accepts: Collection[str], options: ReflowOptions
) -> tuple[bytes | None, str | None]:
    """Return a good record in a layout that the reader takes, or the reason why there is none."""
    if layouts_of(record, frame) <= frozenset(accepts):
        return record, None
    try:
        return to_v1(frame or to_v2(record), accepts, options), None
    except (NotDeliverableError, ValueError) as error:
        return None, f"its record has no form for this reader: {error}"


def _v1_properties(
    frame: Frame, header: Mapping[str, Any], options: ReflowOptions, pairs: list[tuple[str, str]], reasons: list[str]
) -> bytes:
    """Add the properties to ``pairs``, and reasons. Return the v1 string that the message came with, if it was kept, for
    their begin."""
    system, unknown = header.get("system", {}), has_unknown(header)
    pairs += ((_NAMES[field], text) for field, text in typed_as_text(system))
    raw: bytes | None = None
    for one in system.get("untyped", ()):
        if one["name"] == RAW:
            raw = bytes(one["value"])
        else:
            add_pair(one["name"], bytes(one["value"]), pairs, reasons, options)
    seen: set[str] = set()
    for one in header.get("user_properties", ()):
        name = one["name"]
        if name in seen:
            reasons.append(f"the user property {name!r} is there twice")
        seen.add(name)
        if name in RESERVED:
            if not options.prefix:
                reasons.append(f"the user property {name!r} has the name of a system property")
            name = PREFIX + name
        add_pair(name, bytes(one["value"]), pairs, reasons, options)
    if " ".join(system.get("keys", ())).split(" ") != (system.get("keys") or [""]):
        reasons.append("a key has a space, or is empty")
    if options.escape and any("%" in name + value for name, value in pairs):
        pairs.append((ESCAPED, "1"))
    if raw is not None:
        pairs.clear()
    if options.incarnation and header.get("topic_incarnation"):
        pairs.append((INCARNATION, str(header["topic_incarnation"])))
    if unknown:
        pairs.append((WHOLE, base64.b64encode(frame.header_bytes).decode()))
    return raw or b""


def has_unknown(values: Any) -> bool:
    """Return True if a header has a field, at any depth, that this version does not know."""
    if isinstance(values, Mapping):
        return flat.UNKNOWN in values or any(map(has_unknown, values.values()))
    return isinstance(values, list) and bool(values) and isinstance(values[0], Mapping) and any(map(has_unknown, values))


def add_pair(name: str, value: bytes, pairs: list[tuple[str, str]], reasons: list[str], options: ReflowOptions) -> None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        reasons.append(f"the value of {name!r} is not UTF-8")
        return
    if not name or not text:
        reasons.append(f"the property {name!r} has an empty name or value")
    elif not options.escape and (p.NAME_END in name or p.VALUE_END in name + text):
        reasons.append(f"the property {name!r} has a separator in its name or value")
    if options.escape:
        name, text = (_escaped(part) for part in (name, text))
    pairs.append((name, text))


def v1_pairs(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the properties of a v2 header under their v1 names. Values that are no text, or empty, are left out."""
    system = header.get("system", {})
    pairs = [(_NAMES[field], text) for field, text in typed_as_text(system)]
    untyped = [one for one in system.get("untyped", ()) if one["name"] != RAW]
    for one in (*untyped, *header.get("user_properties", ())):
        value = bytes(one["value"]).decode("utf-8", "replace")
        pairs += [(one["name"], value)] if value else []
    return pairs


def _escaped(text: str) -> str:
    return re.sub("[%\x01\x02]", lambda found: f"%{ord(found[0]):02X}", text)


def typed_as_text(system: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field, text) of the typed system properties that are there."""
    found = []
    for field in _NAMES:
        if field in system:
            value = system[field]
            if isinstance(value, bool):
                value = str(value).lower()
            found.append((field, " ".join(value) if isinstance(value, list) else str(value)))
    return found


def address_of(endpoint: Mapping[str, Any] | None) -> tuple[bytes, int]:
    """Return address and port of a v2 endpoint. Without one, 0.0.0.0:0."""
    if endpoint is None or endpoint["family"] == "None":
        return bytes(4), 0 if endpoint is None else endpoint["port"]
    whole = endpoint["hi"].to_bytes(8, "big") + endpoint["lo"].to_bytes(8, "big")
    return whole[-4:] if endpoint["family"] == "IPv4" else whole, endpoint["port"]


def endpoint_of(address: bytes, port: int) -> dict[str, Any]:
    """Return a v2 endpoint."""
    whole = address.rjust(16, b"\0")
    high, low = int.from_bytes(whole[:8], "big"), int.from_bytes(whole[8:], "big")
    return {"hi": high, "lo": low, "port": port & 0xFFFFFFFF, "family": "IPv4" if len(address) == 4 else "IPv6"}


def to_v2(record: bytes, incarnation: int = 0) -> Frame:
    """Return a v1 record as v2. A property string that v2 would not give back byte for byte is kept beside its properties.

    Raises ValueError if the record is not good.
    """
    if (verdict := v1.check(record))["size"] != len(record) or not verdict["success"]:
        raise ValueError("the bytes are no good record of a commit log")
    fields = v1.read_fields(record)
    body, raw = record[fields.body : fields.body_end], record[fields.properties : fields.end]
    place = {name: getattr(fields, name) for name in ("physical_offset", "queue_offset", "store_timestamp")}
    found = p.parse(raw.decode("utf-8", "replace"))
    if (whole := found.get(WHOLE)) is not None and (kept := _kept_frame(whole, record, body, incarnation, place)) is not None:
        return kept
    try:
        topic = record[fields.topic : fields.topic_end].decode()
    except UnicodeDecodeError:
        raise ValueError("the name of its topic is not UTF-8") from None
    header: dict[str, Any] = {
        "topic": topic,
        "topic_incarnation": incarnation,
        "queue_id": fields.queue_id,
        "flag": fields.flag,
        "sys_flag": fields.sys_flag & ~(v1.BORN_V6 | v1.STORE_V6),
        "born_timestamp": fields.born_timestamp,
        "born_host": endpoint_of(fields.born_host, fields.born_port),
        "store_host": endpoint_of(fields.store_host, fields.store_port),
        "body_crc": zlib.crc32(body),
        "reconsume_times": fields.reconsume_times,
        "prepared_transaction_offset": fields.prepared_transaction_offset,
    }
    header |= _v2_properties(raw, found)
    return make_frame(header, body, **place)


def _kept_frame(whole: str, record: bytes, body: bytes, incarnation: int, place: Mapping[str, int]) -> Frame | None:
    """Return the frame with a header that was kept in a property; None if the record was not made from this frame: anybody can
    send such a property."""
    try:
        frame = Frame(header_bytes=base64.b64decode(whole, validate=True), body=body, **place)
        its = frame.header().get("topic_incarnation", 0)
        is_its = its == incarnation and record in (to_v1(frame, LAYOUTS), to_v1(frame, (V1, V1_LONG)))
    except (ValueError, flat.InvalidError, NotDeliverableError):
        return None
    return frame if is_its else None


def _v2_properties(raw: bytes, found: Mapping[str, str]) -> dict[str, Any]:
    """Return the members ``system`` and ``user_properties`` for a v1 string."""
    system: dict[str, Any] = {}
    untyped: list[dict[str, Any]] = []
    user: list[dict[str, Any]] = []
    for name, value in found.items():
        field = _FIELDS.get(name)
        typed = None if field is None else _typed(field, value)
        if field is not None and typed is not None:
            system[field.name] = typed
        elif name in RESERVED:
            untyped.append({"name": name, "value": value.encode()})
        else:
            user.append({"name": name, "value": value.encode()})
    canonical = [(_NAMES[field], text) for field, text in typed_as_text(system)]
    canonical += ((one["name"], one["value"].decode()) for one in (*untyped, *user))
    if p.encode(canonical).encode() != raw:
        untyped.append({"name": RAW, "value": raw})
    if untyped:
        system["untyped"] = untyped
    return ({"system": system} if system else {}) | ({"user_properties": user} if user else {})


def _typed(field: flat.Field, text: str) -> Any:
    """Return a typed value that comes back as the same text, or None. A default would be left out."""
    if field.kind == "string":
        return text
    if field.kind == "[string]":
        keys = text.split(" ")
        return keys if all(keys) else None
    if field.kind == "bool":
        return False if text == "false" else None
    bits = 32 if field.kind == "int" else 64
    if _INTEGER.fullmatch(text) is None or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        return None
    return None if int(text) == field.default else int(text)
