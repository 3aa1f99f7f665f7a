"""A small node, for the conformance kit."""

from __future__ import annotations

from pathlib import Path

from msgstore_rabbitmq_source import layout
from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.messages import encode_message
from rabbitmq_files.properties import encode_properties


def sample(directory: Path) -> Path:
    """Make a node with one vhost, and a queue of each index version."""
    vhost = directory / "msg_stores/vhosts" / names.vhost_directory(b"/")
    for version, queue in ((1, b"one"), (2, b"two")):
        place = vhost / "queues" / names.queue_directory(b"/", queue)
        place.mkdir(parents=True)
        (place / layout.QUEUE_NAME).write_bytes(names.encode_queue_name(b"/", queue, version))
        _write_queue(place, queue, version)
    (vhost / layout.VHOST_NAME).write_bytes(b"/")
    return directory


def _write_queue(place: Path, queue: bytes, version: int) -> None:
    """Write the index of a queue with twenty small messages."""
    first = index_v2.encode_header(index_v2.STORE_MAGIC, 0, 4096)
    entries, stored, records = [index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4096)], first, b""
    for number in range(20):
        term = encode_message(
            vhost=b"/", exchange=b"", routing_keys=[queue], raw_properties=encode_properties({"delivery_mode": 2}),
            body=b"message %d" % number, msg_id=bytes(15) + bytes([number]),
        )  # fmt: skip
        size = len(b"message %d" % number)
        records += index_v1.encode_publish(number, index_v1.encode_body(bytes(15) + bytes([number]), size, term))
        entries.append(index_v2.encode_own(len(stored), len(term), size))
        stored += index_v2.encode_stored(term)
    if version == 1:
        (place / "0.idx").write_bytes(records)
    else:
        (place / "0.qi").write_bytes(b"".join(entries))
        (place / "0.qs").write_bytes(stored)
