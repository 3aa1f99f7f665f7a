"""Snapshot file of a clean shutdown: entries and state as columns, with one checksum.

Integers are big-endian. The file has ``n`` entries, ``m`` of them with more than one reference::

    0   magic 8 "msg-ets\\n", version u32 = 1, width u32, n u64, m u64, state u64 (bytes)
    40  ids        16 * n
        locations  width * n    as the engine packs them, in as few bytes as the largest one needs
        counts     24 * m       id 16, references u64
        state                   each pair: key length u32, value length u32, key, value
        CRC-32 u32 of everything before it

The lengths in the header must add up to the size of the file. A hostile header therefore cannot cause large allocations.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import chain, islice

from msgstore.contract import RESCUED_KEY
from msgstore.contract.indexes import MAX_REFERENCES

_HEADER = struct.Struct(">8sIIQQQ")
_COUNT = struct.Struct(">16sQ")
_PAIR = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_MAGIC = b"msg-ets\n"
_VERSION = 1
_ID = 16
_MAX_WIDTH = 18
"""Bytes of the largest location: 64 bits of segment number, 40 of offset, 40 of size."""
_BATCH = 8192
"""Entries per chunk: large enough for C-level loops, small enough to need little memory."""


class InvalidSnapshot(ValueError):
    """Raised for bytes that are not a complete, undamaged snapshot of this version. The message gives the reason."""


def write(entries: Mapping[bytes, int], counts: Mapping[bytes, int], state: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield the snapshot in chunks. ``counts`` has the entries with more than one reference.

    The arguments must not change while the chunks are consumed.
    """
    width = (max(entries.values(), default=0).bit_length() + 7) // 8
    pairs = b"".join(_PAIR.pack(len(key), len(value)) + key + value for key, value in state.items())
    header = _HEADER.pack(_MAGIC, _VERSION, width, len(entries), len(counts), len(pairs))
    locations = (location.to_bytes(width) for location in entries.values())
    exceptions = (_COUNT.pack(msg_id, count) for msg_id, count in counts.items())
    checksum = 0
    for chunk in chain([header], _join_batches(entries), _join_batches(locations), _join_batches(exceptions), [pairs]):
        checksum = zlib.crc32(chunk, checksum)
        yield chunk
    yield _CHECKSUM.pack(checksum)


def read(data: bytes, entries: MutableMapping[bytes, int], counts: MutableMapping[bytes, int]) -> dict[bytes, bytes]:
    """Fill ``entries`` and ``counts`` and return the state. Raises InvalidSnapshot before it changes either of them.

    A snapshot with correct lengths and a wrong checksum is mostly right: it is read, and the state has ``RESCUED_KEY``.
    """
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise InvalidSnapshot(f"{len(data)} bytes are too few")
    magic, version, width, n, m, state_size = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise InvalidSnapshot(f"not a snapshot of version {_VERSION}: it begins with {data[:12].hex()}")
    locations_at = _HEADER.size + _ID * n
    counts_at = locations_at + width * n
    state_at = counts_at + _COUNT.size * m
    end = state_at + state_size
    if end + _CHECKSUM.size != len(data):
        raise InvalidSnapshot(f"the file has {len(data)} bytes, its header says {end + _CHECKSUM.size}")
    is_whole = zlib.crc32(memoryview(data)[:end]) == _CHECKSUM.unpack_from(data, end)[0]
    if not is_whole and (width > _MAX_WIDTH or len(set(_read_ids(data, n))) < n):
        raise InvalidSnapshot("the checksum does not match")
    state = _read_state(data, state_at, end)
    for at in range(0, n, _BATCH):
        batch = min(_BATCH, n - at)
        ids = struct.unpack_from(f"{_ID}s" * batch, data, _HEADER.size + _ID * at)
        locations = struct.unpack_from(f"{width}s" * batch, data, locations_at + width * at)
        entries.update(zip(ids, map(int.from_bytes, locations), strict=True))
    counts.update(_COUNT.iter_unpack(memoryview(data)[counts_at:state_at]))
    if not is_whole:
        for msg_id in [msg_id for msg_id, count in counts.items() if msg_id not in entries or not 1 < count <= MAX_REFERENCES]:
            del counts[msg_id]
        state[RESCUED_KEY] = b""
    return state


def _read_ids(data: bytes, n: int) -> Iterator[bytes]:
    return (data[at : at + _ID] for at in range(_HEADER.size, _HEADER.size + _ID * n, _ID))


def _join_batches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    iterator = iter(pieces)
    while chunk := b"".join(islice(iterator, _BATCH)):
        yield chunk


def _read_state(data: bytes, at: int, end: int) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    while at + _PAIR.size <= end:
        key_size, value_size = _PAIR.unpack_from(data, at)
        value_at = at + _PAIR.size + key_size
        at = value_at + value_size
        state[data[value_at - key_size : value_at]] = data[value_at:at]
    if at != end:
        raise InvalidSnapshot("the state does not have the length that the header gives")
    return state
