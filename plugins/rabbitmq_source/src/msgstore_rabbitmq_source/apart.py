"""Entries of queues and bodies of shared stores as bytes, for a cluster that joins them by key."""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgstore_rabbitmq_source.layout import VhostFiles
from msgstore_rabbitmq_source.naming import QueueDirectory
from msgstore_rabbitmq_source.queue_index import LiveEntry
from msgstore_rabbitmq_source.shared_store import Place, SharedStore

_BATCH_BYTES = 4 * 2**20


def key_of(vhost: VhostFiles, msg_id: bytes) -> bytes:
    """Return the key of a body: vhosts do not share stores."""
    return msg_id + vhost.directory.encode()


def encode_entry(entry: LiveEntry, part: QueueDirectory, *, is_final: bool) -> bytes:
    """Encode an entry with what its queue's directory says of the message."""
    vhost = None if part.vhost is None else part.vhost.hex()
    fields = [value.hex() if isinstance(value, bytes) else value for value in entry]
    return json.dumps([fields, vhost, is_final]).encode()


def decode_entry(data: bytes) -> tuple[LiveEntry, bytes | None, bool]:
    """Return the entry, the name of the vhost, and True if the files of the queue are final."""
    fields, vhost, is_final = json.loads(data)
    entry = LiveEntry._make(fields)
    entry = entry._replace(msg_id=bytes.fromhex(str(entry.msg_id)))
    return entry, None if vhost is None else bytes.fromhex(vhost), is_final


def encode_bodies(store: SharedStore, vhost: VhostFiles, file: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield (key, place and term) of each message in a segment, some MiB at a time."""
    found, held = list[tuple[bytes, bytes]](), 0
    for msg_id, place in store.places(file):
        about = json.dumps([place.file, place.offset, place.size, place.term_offset, place.term_size, place.is_corrected])
        found.append((key_of(vhost, msg_id), about.encode() + b"\n" + store.read(place)))
        held += place.size
        if held >= _BATCH_BYTES:
            yield found
            found, held = [], 0
    if found:
        yield found


def decode_body(data: bytes) -> tuple[Place, bytes]:
    """Return the place of a body, and its term."""
    about, _, term = data.partition(b"\n")
    return Place(*json.loads(about)), term
