"""A small node, for the conformance kit."""

from __future__ import annotations

from pathlib import Path

from msgstore_rabbitmq_source import layout
from msgstore_rabbitmq_source.shared_store import segment_formats
from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.messages import encode_message
from rabbitmq_files.properties import encode_properties


def sample(directory: Path) -> Path:
    """Make a node with one vhost, and a queue of each index version: some of its messages are in the shared store."""
    vhost = directory / "msg_stores/vhosts" / names.vhost_directory(b"/")
    shared: dict[bytes, bytes] = {}
    for version, queue in ((1, b"one"), (2, b"two")):
        place = vhost / "queues" / names.queue_directory(b"/", queue)
        place.mkdir(parents=True)
        (place / layout.QUEUE_NAME).write_bytes(names.encode_queue_name(b"/", queue, version))
        shared |= _write_queue(place, queue, version)
    form = segment_formats()[".rdq"]
    (vhost / layout.PERSISTENT).mkdir()
    records, _ = form.encode(list(shared), list(shared.values()))
    (vhost / layout.PERSISTENT / "0.rdq").write_bytes(form.header + records)
    (vhost / layout.VHOST_NAME).write_bytes(b"/")
    return directory


def _write_queue(place: Path, queue: bytes, version: int) -> dict[bytes, bytes]:
    """Write the index of a queue with twenty small messages. Return those that belong into the shared store, by their ids."""
    first = index_v2.encode_header(index_v2.STORE_MAGIC, 0, 4096)
    entries, stored, records = [index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4096)], first, b""
    shared = {}
    for number in range(20):
        msg_id, size = bytes([version, number] * 8), len(b"message %d" % number)
        term = encode_message(
            vhost=b"/", exchange=b"", routing_keys=[queue], raw_properties=encode_properties({"delivery_mode": 2}),
            body=b"message %d" % number, msg_id=msg_id,
        )  # fmt: skip
        if number % 4 == 3:
            shared[msg_id] = term
            records += index_v1.encode_publish(number, index_v1.encode_body(msg_id, size))
            entries.append(index_v2.encode_shared(msg_id, size))
            continue
        records += index_v1.encode_publish(number, index_v1.encode_body(msg_id, size, term))
        entries.append(index_v2.encode_own(len(stored), len(term), size))
        stored += index_v2.encode_stored(term)
    if version == 1:
        (place / layout.JOURNAL).touch()
        (place / "0.idx").write_bytes(records)
    else:
        (place / "0.qi").write_bytes(b"".join(entries))
        (place / "0.qs").write_bytes(stored)
    return shared
