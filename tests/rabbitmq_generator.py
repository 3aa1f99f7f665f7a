"""Make a node directory of any size, with the bytes that RabbitMQ 3.10 writes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.messages import encode_message
from rabbitmq_files.properties import encode_properties

EMBED_BELOW = 4096
"""Bytes of body and properties from which on a message is in the shared store."""
SEGMENT_BYTES = 16 * 2**20
VHOST = b"/"
Message = tuple[bytes, int, bytes, bool]
"""Id, size of the body, term, and True if the message is embedded."""


def make_node(path: Path, *, queues: int, messages: int) -> Path:
    """Make a stopped node with ``messages`` messages, a tenth of them in the shared store. Half of the queues have index v2. A
    fifth of the entries, besides, is acknowledged."""
    rng = random.Random(1)
    home = path / "msg_stores/vhosts" / names.vhost_directory(VHOST)
    store = _Store(home / "msg_store_persistent")
    (home / ".vhost").write_bytes(VHOST)
    (home / ".config").write_bytes(b"%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, 2048}.")
    for number in range(queues):
        queue = b"queue.%d" % number
        place = home / "queues" / names.queue_directory(VHOST, queue)
        place.mkdir(parents=True)
        version = 1 + number % 2
        (place / ".queue_name").write_bytes(names.encode_queue_name(VHOST, queue, version))
        share = messages // queues + (number < messages % queues)
        _write = _write_v1 if version == 1 else _write_v2
        _write(place, list(_messages(rng, queue, share + share // 4)), share // 4, store)
    store.close()
    (home / "msg_store_persistent/clean.dot").write_bytes(b"{client_refs,[]}.\n{index_module,rabbit_msg_store_ets_index}.\n")
    return path


def _messages(rng: random.Random, queue: bytes, count: int) -> Iterator[Message]:
    for number in range(count):
        body = rng.randbytes(8) * (rng.randrange(EMBED_BELOW, 6000) // 8 if rng.random() < 0.1 else rng.randrange(2, 80))
        headers = {"n": number, "name": "h\u00e9llo", "flag": True} if number % 3 == 0 else None
        properties = {
            "content_type": "application/json", "delivery_mode": 2, "message_id": f"m{number}", "timestamp": 1_700_000_000,
        }  # fmt: skip
        raw = encode_properties(properties, headers)
        msg_id = hashlib.blake2b(b"%b %d" % (queue, number), digest_size=16).digest()
        term = encode_message(
            vhost=VHOST, exchange=b"", routing_keys=[queue], raw_properties=raw, body=body, msg_id=msg_id, is_persistent=True
        )
        yield msg_id, len(body), term, len(body) + len(raw) < EMBED_BELOW


class _Store:
    """Writer of ``.rdq`` segments."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self._path = path
        self._number = 0
        self._file = (path / "0.rdq").open("wb")

    def add(self, msg_id: bytes, term: bytes) -> None:
        if self._file.tell() >= SEGMENT_BYTES:
            self._file.close()
            self._number += 1
            self._file = (self._path / f"{self._number}.rdq").open("wb")
        self._file.write((16 + len(term)).to_bytes(8, "big") + msg_id + term + b"\xff")

    def close(self) -> None:
        self._file.close()


def _write_v1(place: Path, messages: list[Message], acknowledged: int, store: _Store) -> None:
    for first in range(0, len(messages), index_v1.SEGMENT_ENTRIES):
        records = []
        for number, (msg_id, size, term, embedded) in enumerate(messages[first : first + index_v1.SEGMENT_ENTRIES]):
            if not embedded:
                store.add(msg_id, term)
            body = index_v1.encode_body(msg_id, size, term if embedded else b"")
            marks = index_v1.encode_mark(number) * (2 if first + number < acknowledged else 1)
            records.append(index_v1.encode_publish(number, body) + marks)
        (place / f"{first // index_v1.SEGMENT_ENTRIES}.idx").write_bytes(b"".join(reversed(records)))


def _write_v2(place: Path, messages: list[Message], acknowledged: int, store: _Store) -> None:
    count = 4096
    for first in range(0, len(messages), count):
        entries = [index_v2.encode_header(index_v2.INDEX_MAGIC, first, first + count)]
        stored = [index_v2.encode_header(index_v2.STORE_MAGIC, first, first + count)]
        at = index_v2.HEADER_SIZE
        for number, (msg_id, size, term, embedded) in enumerate(messages[first : first + count], first):
            if embedded:
                entry = index_v2.encode_own(at, len(term), size)
                stored.append(index_v2.encode_stored(term))
                at += len(stored[-1])
            else:
                store.add(msg_id, term)
                entry = index_v2.encode_shared(msg_id, size)
            entries.append(bytes(index_v2.ENTRY_SIZE) if number < acknowledged else entry)
        (place / f"{first // count}.qi").write_bytes(b"".join(entries))
        (place / f"{first // count}.qs").write_bytes(b"".join(stored))
