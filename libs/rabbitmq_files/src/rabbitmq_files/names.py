"""Names of the directories of vhosts and queues, and the files in them that say whose they are.

A directory's name is a hash, which cannot be turned back: ``.vhost`` and ``.queue_name`` have the names, and the hash checks
them. Sources: ``rabbit_vhost.erl``, ``rabbit_queue_index.erl`` of RabbitMQ 3.10, ``rabbit_queue_index.erl`` of 3.6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import md5

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VHOST, _QUEUE, _V2 = b"VHOST: ", b"\nQUEUE: ", b"\nINDEX: v2\n"
_ENTRIES = re.compile(rb"\{\s*segment_entry_count\s*,\s*(\d{1,6})\s*\}")
HASHED = re.compile(r"[0-9A-Z]{20,25}")
"""Names of hashed directories, but for one in a million million."""


@dataclass(slots=True, frozen=True)
class QueueNameFile:
    """Content of ``.queue_name``."""

    vhost: bytes
    queue: bytes
    """Name of the queue; for one priority of a queue with priorities: name, a zero byte, and the priority as a byte."""
    version: int
    """Version of the queue index."""


def vhost_directory(vhost: bytes) -> str:
    """Return the name of a vhost's directory."""
    return _hashed(vhost)


def queue_directory(vhost: bytes, queue: bytes) -> str:
    """Return the name of a queue's directory, since RabbitMQ 3.7."""
    return _hashed(b"queue" + vhost + queue)


def old_queue_directory(vhost: bytes, queue: bytes) -> str:
    """Return the name of a queue's directory before RabbitMQ 3.7: the hash of ``{resource, VHost, queue, Name}``."""
    parts = (b"\x83h\x04d\x00\x08resource", _binary(vhost), b"d\x00\x05queue", _binary(queue))
    return _hashed(b"".join(parts))


def _binary(raw: bytes) -> bytes:
    return b"m" + len(raw).to_bytes(4, "big") + raw


def _hashed(raw: bytes) -> str:
    number, text = int.from_bytes(md5(raw, usedforsecurity=False).digest(), "big"), ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"


def sub_queue(queue: bytes, priority: int) -> bytes:
    """Return the name of the sub-queue of a priority queue."""
    return queue + bytes([0, priority])


def split_sub_queue(queue: bytes) -> tuple[bytes, int | None]:
    """Return the name of the queue and the priority, of a sub-queue of a priority queue; else the name itself and None."""
    return (queue[:-2], queue[-1]) if len(queue) > 2 and queue[-2] == 0 else (queue, None)


def read_queue_name(data: bytes) -> QueueNameFile | None:
    """Read ``.queue_name``, or return None. The name of a sub-queue of priority 10 ends with a line break."""
    end, version = (len(data) - len(_V2), 2) if data.endswith(_V2) else (len(data) - 1, 1)
    vhost, mark, queue = data[:end].partition(_QUEUE)
    if not (data.endswith(b"\n") and vhost.startswith(_VHOST) and mark):
        return None
    return QueueNameFile(vhost.removeprefix(_VHOST), queue, version)


def read_segment_entries(data: bytes) -> int | None:
    """Return the number of entries of a segment of the queue index v1 from a vhost's ``.config``, or None."""
    return int(found[1]) if (found := _ENTRIES.search(data)) and 0 < int(found[1]) <= 1 << 14 else None


def encode_queue_name(vhost: bytes, queue: bytes, version: int) -> bytes:
    """Encode ``.queue_name``."""
    return b"VHOST: %b\nQUEUE: %b\n%b" % (vhost, queue, b"INDEX: v2\n" if version == 2 else b"")
