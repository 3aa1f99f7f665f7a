"""Tables that Erlang writes: ``.ets`` files and Mnesia's logs, which are disk logs, and ``recovery.dets``.

Sources: the manuals of ``disk_log``, ``ets:tab2file`` and ``dets``, and files of RabbitMQ 3.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rabbitmq_files.terms import TermError, decode

LOG_MAGIC = b"\x01\x02\x03\x04"
CLOSED, OPEN = b"cXM\x0b", b"\x06\x07\x08\x09"
"""After the magic: the log was closed properly, or its writer was killed."""
_ITEM = b"bWLA"
_USED = b"\x12\x34\x56\x78"
_DETS_COOKIE = b"\x00\xab\xcd\xef"


@dataclass(slots=True)
class Table:
    """Terms of a file, with the offset of each."""

    terms: list[tuple[int, Any]] = field(default_factory=list)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Offset, size and reason of what cannot be read. The last item of a log may be torn after a kill."""


def read_log(data: bytes) -> Table:
    """Read a disk log, up to its end or to the first bytes that are no item."""
    found = Table()
    if data[:4] != LOG_MAGIC or data[4:8] not in (CLOSED, OPEN):
        if data:
            found.damage.append((0, min(len(data), 8), "has no header of a disk log"))
        return found
    at = 8
    while at + 8 <= len(data) and data[at + 4 : at + 8] == _ITEM:
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 8 + size > len(data):
            break
        try:
            found.terms.append((at, decode(data[at + 8 : at + 8 + size])[0]))
        except TermError as error:
            found.damage.append((at, 8 + size, str(error)))
        at += 8 + size
    if data[at:].strip(b"\0"):
        found.damage.append((at, len(data) - at, "is no item of a log, or a torn one"))
    return found


def read_dets(data: bytes) -> Table:
    """Read the objects of a DETS file of version 9: those in buckets that are used."""
    found = Table()
    if data[4:8] != _DETS_COOKIE:
        found.damage.append((0, min(len(data), 8), "has no header of a DETS file"))
        return found
    at = data.find(_USED)
    while at >= 4:
        begin = at - 4
        end = begin + int.from_bytes(data[begin:at], "big")
        for offset, size in _objects(data, at + 4, min(end, len(data))):
            try:
                found.terms.append((offset, decode(data[offset + 4 : offset + size])[0]))
            except TermError as error:
                found.damage.append((offset, size, str(error)))
        at = data.find(_USED, max(end if end <= len(data) else 0, at + 4))
    return found


def _objects(data: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    while at + 5 <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 5 or at + size > end:
            return
        yield at, size
        at += size


def text_of(value: Any) -> str | None:
    """Return an Erlang string, a list of characters, as text; None for anything else."""
    is_text = isinstance(value, list) and value and all(isinstance(one, int) and 0 < one < 0x110000 for one in value)
    return "".join(map(chr, value)) if is_text else None
