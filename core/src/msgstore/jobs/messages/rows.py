"""Messages as JSON objects, and back: ``messages --json`` and JSON Lines files have one on each line."""

from __future__ import annotations

import binascii
import hashlib
import json
import math
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgstore.contract import STATES, MessageBatch, QueueInfo, QueueName, SourceDamage, json_value
from msgstore.contract.messages import CERTAIN, CERTAINTIES

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_encode_text = json.JSONEncoder(ensure_ascii=False).encode


def encode(value: Any) -> str:
    """Return a value as compact JSON. A float that is not finite gets the form of :func:`json_value`."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(json_value(value))


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def name_as_json(name: QueueName | None) -> dict[str, Any]:
    """Return the four parts of a queue's name, which are None without a name."""
    return {part: getattr(name, part, None) for part in ("system", "vhost", "queue", "partition")}


COLUMNS = {
    "position": "positions", "sequence": "sequences", "id": "ids", "body": "bodies", "raw": "raws", "exchange": "exchanges",
    "routing_keys": "routing_keys", "properties": "properties", "headers": "headers", "raw_properties": "raw_properties",
    "timestamp_ms": "timestamps_ms", "expiry_ms": "expiries_ms", "state": "states", "certainty": "certainties",
    "verified": "verified",
}  # fmt: skip
"""Member of a message's object to the column of a batch that has its values."""


def member_values(batch: MessageBatch, member: str) -> Iterable[Any]:
    """Return the values of a member of all messages, in which bytes are bytes."""
    if member in ("system", "vhost", "queue", "partition"):
        return [getattr(batch.name, member)] * len(batch)
    if member == "size":
        return map(len, batch.bodies)
    if member == "sha256":
        return (hashlib.sha256(body).hexdigest() for body in batch.bodies)
    if member == "origin":
        printable = {file: printable_name(file) for file in set(batch.files)}
        places = zip(batch.files, batch.offsets, batch.sizes, strict=True)
        return ({"file": printable[file], "offset": offset, "size": size} for file, offset, size in places)
    values: Sequence[Any] | None = getattr(batch, COLUMNS[member])
    return [CERTAIN if member == "certainty" else None] * len(batch) if values is None else values


def rows_of(batch: MessageBatch, *, body: bool = True) -> Iterator[dict[str, Any]]:
    """Yield each message as a JSON object."""
    columns = {member: member_values(batch, member) for member in MEMBER_TYPES}
    for member in ("body", "raw", "raw_properties"):
        columns[member] = map(_text, columns[member])
    columns["routing_keys"] = (None if keys is None else list(keys) for keys in columns["routing_keys"])
    if not body:
        del columns["body"]
    if batch.raws is None:
        del columns["raw"]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def queue_as_json(info: QueueInfo, **numbers: Any) -> dict[str, Any]:
    """Return a queue as ``queues --json`` prints it."""
    counts = dict.fromkeys(("messages", "bytes", "embedded", "shared", "missing", "first_ms", "last_ms", "damage"))
    row = {**name_as_json(info.name), "type": info.type, **counts, **numbers, **info.details, "read": info.read}
    return row if info.read else row | {"reason": info.reason}


def damage_as_json(damage: SourceDamage) -> dict[str, Any]:
    """Return damage as an object of ``--json``."""
    name = {} if damage.name is None else name_as_json(damage.name)
    return {
        "kind": "damage", "path": damage.file, "offset": damage.offset, "size": damage.size, "reason": damage.reason,
        "messages": damage.messages, **name,
    }  # fmt: skip


def each_once(damage: Iterable[SourceDamage]) -> list[SourceDamage]:
    """Return the damage without the spans of a file that are also damage of a queue: a damaged record is found by the scan of
    its file, and again when its message is read."""
    damage = list(damage)
    of_queues = {(one.file, one.offset, one.size) for one in damage if one.name is not None}
    return [one for one in damage if one.name is not None or (one.file, one.offset, one.size) not in of_queues]


# -- back ---------------------------------------------------------------------------------------------------------------------

_WHOLE = (int, type(None))
_STRING = (str, type(None))
_BYTES = (str, bytes, type(None))
MEMBER_TYPES: dict[str, tuple[type, ...]] = {
    "system": _STRING, "vhost": _STRING, "queue": _STRING, "partition": _WHOLE, "position": _WHOLE, "sequence": _WHOLE,
    "id": _STRING, "size": _WHOLE, "sha256": _STRING, "body": (str, bytes), "raw": _BYTES, "exchange": _STRING,
    "routing_keys": (list, type(None)), "properties": (dict, type(None)), "headers": (dict, type(None)),
    "raw_properties": _BYTES, "timestamp_ms": _WHOLE, "expiry_ms": _WHOLE, "state": _STRING, "certainty": _STRING,
    "verified": (bool, type(None)), "origin": (dict, type(None)),
}  # fmt: skip
"""Member to its types. ``body`` must be there."""
OWN = "msgstore"
"""System of a message that names none."""
REFERENCES = "msgstore.references"
"""Property with the number of references that a message had in its store, if there were several."""
MAX_GIVEN = 2**32
"""Most references that a message may come with. Thousands of such messages of one id have fewer than an index can hold."""
_HEX = re.compile(r"[0-9a-fA-F]{32}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.40} is no number of 64 bits")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def parse_json(text: str) -> Any:
    """Return the value of a JSON text that :func:`encode` can write again. Raises ValueError."""
    try:
        found = _decode(text)
        if "\\u" in text:  # an escape may be half of a pair, which no encoding of Unicode has
            _encode_text(found).encode()
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return found


def checked_row(row: Any) -> dict[str, Any]:
    """Check one object, and return it with its bodies decoded. Bytes are not decoded. Raises ValueError."""
    if not isinstance(row, dict):
        raise ValueError(f"it is {type(row).__name__}, not an object")  # noqa: TRY004 - one class of errors for the caller
    if "body" not in row:
        raise ValueError("it has no 'body'")
    for member, value in row.items():
        if member not in MEMBER_TYPES:
            raise ValueError(f"{member!r} is no member of a message")
        if type(value) not in MEMBER_TYPES[member]:
            raise ValueError(f"its {member!r} is {value!r:.40}")
        bits = 32 if member == "partition" else 64
        if type(value) is int and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(f"its {member!r} is {value!r:.40}, which is no number of {bits} bits")
    return checked_values(row)


def checked_values(row: dict[str, Any]) -> dict[str, Any]:
    """Check the values of one object whose members have the right types, as ``checked_row`` does."""
    _check_nested(row)
    if (state := row.get("state")) is not None and state not in STATES:
        raise ValueError(f"there is no state {state!r}")
    if (certainty := row.get("certainty")) is not None and certainty not in CERTAINTIES:
        raise ValueError(f"there is no certainty {certainty!r}")
    found = dict(row)
    for member in ("body", "raw", "raw_properties"):
        if isinstance(found.get(member), str):
            try:
                found[member] = b64decode(found[member], validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"its {member!r} is not base64: {error}") from None
    if (given := row.get("sha256")) is not None and given != hashlib.sha256(found["body"]).hexdigest():
        raise ValueError("its body has another sha256: the body or the sum was changed")
    return found


def _check_nested(row: dict[str, Any]) -> None:
    """Check the members within members. Raises ValueError."""
    if (keys := row.get("routing_keys")) and not all(isinstance(key, str) for key in keys):
        raise ValueError("its 'routing_keys' are not all text")
    if origin := row.get("origin"):
        for number in (origin.get("offset"), origin.get("size")):
            if number is not None and not (type(number) is int and 0 <= number < 2**63):
                raise ValueError("its 'origin' is not a file, an offset and a size")
        if not isinstance(origin.get("file"), str | None):
            raise ValueError("its 'origin' is not a file, an offset and a size")


def has_origin(row: dict[str, Any]) -> bool:
    """Return True if a checked object says where it was stored."""
    return any(value is not None for value in (row.get("origin") or {}).values())


def queue_of(row: dict[str, Any]) -> QueueName:
    """Return the queue of a checked object."""
    return QueueName(row.get("system") or OWN, row.get("vhost"), row.get("queue"), row.get("partition"))


def batch_of(name: QueueName, rows: Sequence[dict[str, Any]], first: int, *, raw: bool) -> MessageBatch:
    """Return checked objects of one queue as a batch; the first has the position ``first``."""

    columns: dict[str, Any] = {}
    for member, column in COLUMNS.items():
        values = [row.get(member) for row in rows]
        if any(value is not None for value in values) and (raw or member != "raw"):
            columns[column] = values
    if "certainties" in columns:
        columns["certainties"] = [value or CERTAIN for value in columns["certainties"]]
    origins = [row.get("origin") or {} for row in rows]
    columns |= {
        "bodies": [row["body"] for row in rows],
        "positions": range(first, first + len(rows)),
        "states": [row.get("state") or "ready" for row in rows],
        "files": [str(origin.get("file") or "") for origin in origins],
        "offsets": [origin.get("offset") or 0 for origin in origins],
        "sizes": [origin.get("size") or 0 for origin in origins],
    }
    return MessageBatch(name=name, **columns)


def message_id(batch: MessageBatch, row: int) -> bytes:
    """Return the 16 bytes that name a message: its id if it has 16 bytes, else a hash of where it stands and of its body. The
    same at each call."""
    given = batch.ids[row] if batch.ids is not None else None
    if given is not None and _HEX.fullmatch(given):
        return bytes.fromhex(given)
    name = batch.name
    parts: tuple[object, ...] = (
        name.system, name.queue, name.partition, batch.files[row], batch.offsets[row],
        hashlib.sha256(batch.bodies[row]).hexdigest(),
    )  # fmt: skip
    return hashlib.blake2b(encode([None if part is None else str(part) for part in parts]).encode(), digest_size=16).digest()


def references_of(batch: MessageBatch, row: int) -> int:
    """Return the references of a message: those that it had in a store, else 1. Raises ValueError for another number."""
    properties = batch.properties[row] if batch.properties is not None else None
    found = (properties or {}).get(REFERENCES, 1)
    if type(found) is not int or not 1 <= found <= MAX_GIVEN:
        raise ValueError(f"its property {REFERENCES} is {found!r:.40}, not a number from 1 to {MAX_GIVEN:,}")
    return found


def parse_line(line: bytes, *, ignore_others: bool = False) -> dict[str, Any]:
    """Return one line of JSON as a checked object. The body may be given as ``text``. Raises ValueError."""
    row = parse_json(line.decode("utf-8-sig"))
    if isinstance(row, dict) and "text" in row and "body" not in row:
        if not isinstance(text := row.pop("text"), str):
            raise ValueError(f"its 'text' is {text!r:.40}")
        row["body"] = text.encode()
    if isinstance(row, dict) and ignore_others:
        row = {member: value for member, value in row.items() if member in MEMBER_TYPES}
    return checked_row(row)


def printable_name(name: str) -> str:
    """Return a file's name as valid Unicode: bytes that are no UTF-8 become replacement characters."""
    return os.fsencode(name).decode("utf-8", "replace")


def not_unicode(batch: MessageBatch) -> Sequence[tuple[int, str]]:
    """Return the messages that a sink of text in UTF-8 refuses, each with the reason."""

    def is_unicode(value: object) -> bool:
        try:
            _encode_text(value).encode()
        except UnicodeEncodeError:
            return False
        return True

    name = (batch.name.system, batch.name.vhost, batch.name.queue)
    columns = (batch.ids, batch.exchanges, batch.routing_keys, batch.properties, batch.headers)
    if not is_unicode(name):
        return [
            (row, f"the name {batch.name.queue or str(batch.name)!r} is not Unicode: rename it with --rename")
            for row in range(len(batch))
        ]
    if is_unicode([column and list(column) for column in columns]):
        return ()
    told = "its id, exchange, routing keys, properties or headers have text that is not Unicode"
    rows = range(len(batch))
    return [(row, told) for row in rows if not is_unicode([column and column[row] for column in columns])]
