"""The broker's own files in ``config/``: topics, what consumer groups have consumed, what of the delayed messages was
delivered.

The broker writes keys that are numbers without quotes, which JSON does not allow. Both forms are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from msgstore_rocketmq_log.properties import whole_number
from msgstore_rocketmq_log.records import Buffer

_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?')
"""A text, or the begin of one without an end: no byte is looked at twice."""
MAX_CONFIG = 64 * 2**20
"""Bytes of a file."""


@attrs.frozen
class BrokerConfig:
    """Content of the files. None: the file is not there, or cannot be read."""

    topics: frozenset[str] | None = None
    consumed: Mapping[str, Mapping[tuple[str, int], int]] = attrs.field(factory=dict)
    """Consumer group to (topic, queue id) to the number of the next message."""
    delivered: Mapping[int, int] | None = None
    """Delay level to the number of the next message to deliver."""
    problems: tuple[tuple[str, str], ...] = ()
    """(file, reason) of each that cannot be read, neither it nor its copy."""


def read_config(names: frozenset[str], read: Callable[[str], Buffer]) -> BrokerConfig:
    """Read the files among ``names``, which are relative to the store. A copy ``.bak`` stands in for a damaged one."""
    problems: list[tuple[str, str]] = []

    def table(name: str, key: str) -> Mapping[str, Any] | None:
        reason = ""
        for file in (f"config/{name}", f"config/{name}.bak"):
            if file in names:
                try:
                    return _object(parse(read(file))[key], key)
                except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
                    reason = reason or f"cannot be read: {error}"
        if reason:
            problems.append((f"config/{name}", reason))
        return None

    topics = table("topics.json", "topicConfigTable")
    offsets = table("consumerOffset.json", "offsetTable") or {}
    delays = table("delayOffset.json", "offsetTable")
    consumed: dict[str, dict[tuple[str, int], int]] = {}
    for key, queues in offsets.items():
        topic, at, group = key.partition("@")
        if at and isinstance(queues, dict):
            for queue, offset in _whole_numbers(queues):
                consumed.setdefault(group, {})[topic, queue] = offset
    delivered = None if delays is None else dict(_whole_numbers(delays))
    return BrokerConfig(None if topics is None else frozenset(topics), consumed, delivered, tuple(problems))


def _whole_numbers(table: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the keys that are numbers, and their values that are."""
    for key, value in table.items():
        number = whole_number(key, -1, bits=32)
        if number >= 0 and type(value) is int and 0 <= value < 2**63:
            yield number, value


def _object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{key!r} is no object")
    return value


def parse(data: Buffer) -> dict[str, Any]:
    """Return a file as an object. Keys may be numbers without quotes. Raises ValueError."""
    if len(data) > MAX_CONFIG:
        raise ValueError(f"it has {len(data)} bytes")
    text = bytes(data).decode("utf-8-sig")
    try:
        found = json.loads(text)
    except ValueError:
        parts, at = [], 0
        for string in _STRING.finditer(text):  # a key of digits within a string stays as it is
            parts += [_BARE_KEY.sub(r'\1"\2"\3', text[at : string.start()]), string[0]]
            at = string.end()
        found = json.loads("".join(parts) + _BARE_KEY.sub(r'\1"\2"\3', text[at:]))
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - one class of errors for the caller
    return found


def encode(table: Mapping[str, Any]) -> bytes:
    """Return a file."""
    return json.dumps(table, indent=1).encode() + b"\n"
