"""Damage, by number: what a seed does to a good file is always the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

INTERESTING = (0, 1, 2, 4, 5, 7, 8, 15, 16, 20, 21, 24, 25, 26, 127, 128, 255, 256, 511, 512, 2**16 - 1, 2**31 - 1, 2**31,
               2**32 - 1, 2**32, 2**40 - 1, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
"""What a size or a count is overwritten with, beside the file's own size and its neighbours."""
BYTES = (0, 1, 2, 3, 4, 5, 9, 10, 32, 34, 47, 48, 57, 92, 93, 106, 127, 128, 131, 254, 255)
"""Zero, type bytes, Erlang tags, what text is quoted and ended with, and the limits of a byte."""
WIDTHS = (1, 2, 4, 4, 4, 8, 8)
MOST = 4096
"""Bytes; a mutation never makes a larger input out of one that is not larger itself."""

Mutation = Callable[[Random, bytearray, "Member"], None]


class Member:
    """A good file, and what the mutations may know of it."""

    __slots__ = ("data", "fields", "others")

    def __init__(self, data: bytes, fields: Sequence[int] = ()) -> None:
        self.data = data
        self.fields = fields
        """Offsets where records, sizes or counts stand."""
        self.others: Sequence[Member] = ()
        """What it is spliced with."""


def mutated(random: Random, member: Member) -> bytes:
    """``member`` after one to five mutations; never what it was."""
    rest = random.random()
    data = bytearray(member.data)
    for _ in range(1 if rest < 0.5 else 2 if rest < 0.75 else 3 if rest < 0.9 else 5):
        MUTATIONS[int(random.random() * len(MUTATIONS))](random, data, member)
    while data == member.data:
        _extend(random, data, member)
    return bytes(data)


def _below(random: Random, limit: int) -> int:
    return int(random.random() * limit)  # a tenth of what randrange costs


def _somewhere(random: Random, data: bytes | bytearray, member: Member) -> int:
    """An offset, as often as not one where something stands or one beside it."""
    if member.fields and random.random() < 0.6:
        return min(member.fields[_below(random, len(member.fields))] + _below(random, 9), max(len(data) - 1, 0))
    return _below(random, max(len(data), 1))


def _flip(random: Random, data: bytearray, member: Member) -> None:
    if data:
        data[_somewhere(random, data, member)] ^= 1 << _below(random, 8)


def _set(random: Random, data: bytearray, member: Member) -> None:
    if data:
        data[_somewhere(random, data, member)] = BYTES[_below(random, len(BYTES))]


def _integer(random: Random, data: bytearray, member: Member) -> None:
    width = WIDTHS[_below(random, len(WIDTHS))]
    if random.random() < 0.6:
        value = INTERESTING[_below(random, len(INTERESTING))]
    else:
        value = max(len(data) + _below(random, 60) - 50, 0)  # the file's size, or what would just fit or not fit behind a head
    at = _somewhere(random, data, member)
    end = min(at + width, len(data))
    data[at:end] = (value & (1 << 8 * width) - 1).to_bytes(width)[: end - at]


def _truncate(random: Random, data: bytearray, member: Member) -> None:
    del data[_somewhere(random, data, member) :]


def _extend(random: Random, data: bytearray, member: Member) -> None:
    size = 1 + _below(random, 1 << _below(random, 8))
    kind = _below(random, 4)
    data += bytes(size) if kind == 0 else b"\xff" * size if kind == 1 else random.randbytes(size) if kind == 2 else data[-size:]
    _cap(data, member)


def _zero(random: Random, data: bytearray, member: Member) -> None:
    begin, end = _block(random, data, member)
    data[begin:end] = bytes(end - begin)


def _duplicate(random: Random, data: bytearray, member: Member) -> None:
    begin, end = _block(random, data, member)
    at = end if random.random() < 0.5 else _somewhere(random, data, member)
    data[at:at] = data[begin:end]
    _cap(data, member)


def _delete(random: Random, data: bytearray, member: Member) -> None:
    begin, end = _block(random, data, member)
    del data[begin:end]


def _shuffle(random: Random, data: bytearray, member: Member) -> None:
    """Two neighbouring blocks change places."""
    begin, middle = _block(random, data, member)
    end = min(2 * middle - begin, len(data))
    data[begin:end] = data[middle:end] + data[begin:middle]


def _overwrite(random: Random, data: bytearray, member: Member) -> None:
    """A block lands on another one."""
    begin, end = _block(random, data, member)
    at = _somewhere(random, data, member)
    piece = data[begin:end][: len(data) - at]
    data[at : at + len(piece)] = piece


def _splice(random: Random, data: bytearray, member: Member) -> None:
    """The beginning of this file and the end of another one."""
    if member.others:
        other = member.others[_below(random, len(member.others))]
        if len(other.data) <= 2 * MOST:
            data[_somewhere(random, data, member) :] = other.data[_somewhere(random, other.data, other) :]
            _cap(data, member)


def _block(random: Random, data: bytearray, member: Member) -> tuple[int, int]:
    begin = _somewhere(random, data, member)
    if member.fields and random.random() < 0.5:
        end = _somewhere(random, data, member)
        return (begin, end) if begin <= end else (end, begin)
    return begin, min(begin + 1 + _below(random, 1 << _below(random, 10)), len(data))


def _cap(data: bytearray, member: Member) -> None:
    del data[max(MOST, 2 * len(member.data)) :]


MUTATIONS: Sequence[Mutation] = (
    _flip, _flip, _set, _integer, _integer, _integer, _truncate, _extend, _zero, _duplicate, _delete, _shuffle, _overwrite,
    _splice,
)  # fmt: skip
