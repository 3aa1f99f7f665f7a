"""Tables that Erlang writes: ``.ets`` files and Mnesia's logs, which are disk logs, and ``recovery.dets``.

Sources: the manuals of ``disk_log``, ``ets:tab2file`` and ``dets``, and files of RabbitMQ 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rabbitmq_files.terms import TermError, decode

LOG_MAGIC = b"\x01\x02\x03\x04"
CLOSED, OPEN = b"cXM\x0b", b"\x06\x07\x08\x09"
"""After the magic: the log was closed properly, or its writer was killed."""
_ITEM = b"bWLA"
_LARGE, _MD5_SIZE = 65528, 16
"""Size of an item from which on a checksum of its size is before its term, and size of the checksum."""
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
        begin = at + 8 + (_MD5_SIZE if size >= _LARGE else 0)
        if begin + size > len(data):
            break
        _add(found, at, data[at : begin + size], begin - at)
        at = begin + size
    if data[at:].strip(b"\0"):
        found.damage.append((at, len(data) - at, "is no item of a log, or a torn one"))
    return found


def _add(found: Table, offset: int, item: bytes, begin: int) -> None:
    """Add the term that begins in an item at ``begin`` and ends with it."""
    try:
        term, end = decode(item, begin)
        if end != len(item):
            raise TermError(f"{len(item) - end} bytes after the term of an item")
        found.terms.append((offset, term))
    except TermError as error:
        found.damage.append((offset, len(item), str(error)))


def read_dets(data: bytes) -> Table:
    """Read the objects of a DETS file of version 9: those in buckets that are used."""
    found = Table()
    if data[4:8] != _DETS_COOKIE:
        found.damage.append((0, min(len(data), 8), "has no header of a DETS file"))
        return found
    mark = data.find(_USED)
    while mark >= 4:
        at, end = mark + 4, mark - 4 + int.from_bytes(data[mark - 4 : mark], "big")
        if not at <= end <= len(data):
            found.damage.append((mark - 4, 8, "a bucket that is cut"))
            end = at
        while at < end:
            size = int.from_bytes(data[at : at + 4], "big")
            if size < 5 or at + size > end:
                found.damage.append((at, end - at, "is no object of a bucket"))
                break
            _add(found, at, data[at : at + size], 4)
            at += size
        mark = data.find(_USED, end + 4)
    return found


def text_of(value: Any) -> str | None:
    """Return an Erlang string, a list of characters, as text; None for anything else."""
    try:
        text = "".join(map(chr, value)) if isinstance(value, list) else ""
        text.encode()  # halves of surrogate pairs cannot be printed
    except (OverflowError, TypeError, ValueError):
        return None
    return text or None
