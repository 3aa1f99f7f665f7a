"""Damage, by number: what a seed does to a good file is always the same."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

INTERESTING = (0, 1, 2, 4, 5, 7, 8, 15, 16, 20, 21, 24, 25, 26, 127, 128, 255, 256, 511, 512, 2**16 - 1, 2**31 - 1, 2**31,
               2**32 - 1, 2**32, 2**40 - 1, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
"""What a size or a count is overwritten with, beside the file's own size and its neighbours."""
BYTES = (0, 1, 2, 3, 4, 5, 9, 10, 32, 34, 47, 48, 57, 92, 93, 106, 127, 128, 131, 254, 255)
"""Zero, type bytes, Erlang tags, what text is quoted and ended with, and the limits of a byte."""
MOST = 4096
"""Bytes; a mutation never makes a larger input out of one that is not larger itself."""
KINDS = (
    "flip", "flip", "set", "integer", "integer", "integer", "truncate", "extend", "zero", "duplicate", "delete", "shuffle",
    "overwrite", "splice",
)  # fmt: skip


@attrs.define(eq=False)
class Member:
    """A good file, and what the mutations may know of it."""

    data: bytes
    fields: Sequence[int] = ()
    """Offsets where records, sizes or counts stand."""
    others: Sequence[Member] = ()
    """Files whose ends may follow the beginning of this one."""


def mutated(random: Random, member: Member) -> bytes:
    """``member`` after one to five mutations; never what it was."""
    data = bytearray(member.data)
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        _mutate(random, data, member, random.choice(KINDS))
    while data == member.data:
        _mutate(random, data, member, "extend")
    return bytes(data)


def _below(random: Random, limit: int) -> int:
    return int(random.random() * limit)  # a tenth of what randrange costs


def _somewhere(random: Random, data: bytes | bytearray, member: Member) -> int:
    """An offset, as often as not one where something stands or one beside it."""
    if member.fields and random.random() < 0.6:
        return min(member.fields[_below(random, len(member.fields))] + _below(random, 9), max(len(data) - 1, 0))
    return _below(random, max(len(data), 1))


def _mutate(random: Random, data: bytearray, member: Member, kind: str) -> None:
    at = begin = _somewhere(random, data, member)
    end = min(begin + 1 + _below(random, 1 << _below(random, 10)), len(data))  # of a block
    if member.fields and random.random() < 0.5:
        begin, end = sorted((begin, _somewhere(random, data, member)))
    block = data[begin:end]
    if not data and kind != "splice":
        kind = "extend"
    match kind:
        case "flip":
            data[at] ^= 1 << _below(random, 8)
        case "set":
            data[at] = random.choice(BYTES)
        case "integer":
            width = random.choice((1, 2, 4, 4, 4, 8, 8))
            # What is interesting; or the file's size, or what would just fit or not fit behind a head.
            near = max(len(data) + _below(random, 60) - 50, 0)
            value = random.choice(INTERESTING) if random.random() < 0.6 else near
            data[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width)[: len(data) - at]
        case "truncate":
            del data[at:]
        case "extend":
            size = 1 + _below(random, 1 << _below(random, 8))
            data += random.choice((bytes(size), b"\xff" * size, random.randbytes(size), data[-size:] or b"\0"))
        case "zero":
            data[begin:end] = bytes(len(block))
        case "duplicate":
            target = random.choice((end, _somewhere(random, data, member)))
            data[target:target] = block
        case "delete":
            del data[begin:end]
        case "shuffle":  # two neighbouring blocks change places
            after = data[end : end + len(block)]
            data[begin : end + len(after)] = after + block
        case "overwrite":  # a block lands on another one
            target = _somewhere(random, data, member)
            data[target : target + len(block)] = block[: len(data) - target]
        case "splice" if member.others:  # the beginning of this file and the end of another one
            other = random.choice(member.others)
            if len(other.data) <= 2 * MOST:
                data[at:] = other.data[_somewhere(random, other.data, other) :]
    del data[max(MOST, 2 * len(member.data)) :]
