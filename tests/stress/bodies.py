"""Bodies that are a function of their id: most 64 B to 1 KiB, some shorter, empty ones among them, one in a thousand large."""

from __future__ import annotations

import random

LARGE_MESSAGE = 24 * 1024
"""The ``large_message`` of the stores."""
_NOISE = random.Random(0).randbytes(2**17)
_OFFSETS = 2**16


def body_of(msg_id: bytes) -> bytes:
    """The id and, behind it, a stretch of one noise: neither a neighbour's bytes nor its own shifted by a few are the same."""
    size = size_of(msg_id)
    start = int.from_bytes(msg_id[3:5]) % _OFFSETS
    return (msg_id + _NOISE[start : start + size])[:size]


def size_of(msg_id: bytes) -> int:
    kind, size = msg_id[0], int.from_bytes(msg_id[1:3])
    if kind == 0 and size < 2**14:
        return LARGE_MESSAGE - 16 + size % 2**13  # a thousandth; a few are just below the limit
    return size % 64 if kind < 5 else 64 + size % 961
