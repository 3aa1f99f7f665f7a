"""Tables that a broker saved with ``ets:tab2file``: ``msg_store_index.ets`` and ``file_summary.ets``.

The file is an Erlang ``disk_log``: 8 bytes of header, then items of a 4-byte size, the 4 bytes ``bWLA`` and an external term.
The first item describes the table, the last one is ``['$end_of_table', [{count, N}]]``, each one between is a row.

Terms are not decoded: a row is matched against the few encodings that Erlang has for it. So no length, atom, nesting or
compression that a damaged or hostile file claims is ever followed. The file has no checksum: callers compare the rows with the
segments.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable

import attrs

_HEADER = b"\x01\x02\x03\x04cXM\x0b"
"""Includes the mark of a log that was closed."""
_MAGIC = b"bWLA"
_HEAD = 8
"""Bytes of an item before its term (size and magic), and of the header of the file."""
_NEXT_ROW = _MAGIC + b"\x83h"
"""Every row is a tuple of fewer than 256 members."""


def _atom(name: bytes) -> bytes:
    """Return the pattern of an atom in the encodings of all Erlang releases: Latin-1 or UTF-8, with 1 or 2 bytes of length."""
    return rb"(?:[dv]\0" + re.escape(bytes([len(name)])) + rb"|[sw]" + re.escape(bytes([len(name)])) + rb")" + re.escape(name)


_INTEGER = rb"(a.|b[\0-\x7f].{3}|" + b"|".join(rb"n%b\0.{%d}" % (re.escape(bytes([n])), n) for n in range(1, 9)) + rb")"
"""Integers from 0 to 2**64 - 1."""
_IGNORED_INTEGER = _INTEGER.replace(b"(", b"(?:", 1)
_NEIGHBOUR = rb"(?:" + _IGNORED_INTEGER + rb"|" + _atom(b"undefined") + rb")"
_FLAG = rb"(?:" + _atom(b"true") + rb"|" + _atom(b"false") + rb")"
_ITEM = rb"(.{4})" + _MAGIC + rb"\x83"

_LOCATION = re.compile(_ITEM + rb"h\x06" + _atom(b"msg_location") + rb"m\0\0\0\x10(.{16})" + _INTEGER * 4, re.DOTALL)
_SUMMARY = re.compile(
    _ITEM + rb"h\x08" + _atom(b"file_summary") + _INTEGER * 2 + _NEIGHBOUR * 2 + _INTEGER + _FLAG + _NEIGHBOUR, re.DOTALL
)
_END = re.compile(
    _ITEM + rb"l\0\0\0\x02" + _atom(b"$end_of_table") + rb"l\0\0\0\x01h\x02" + _atom(b"count") + _INTEGER + rb"jj", re.DOTALL
)

Data = bytes | mmap.mmap
Take = Callable[..., None]


@attrs.frozen
class Table:
    """Result of reading a saved table."""

    rows: int
    """Number of rows that were read."""
    problem: str | None
    """First reason why the table is incomplete; None if every row was read."""


def read_locations(data: Data, take: Take, max_rows: int) -> Table:
    """Call ``take(id, references, file, offset, size)`` for each row of ``msg_store_index.ets``."""
    return _read(data, _LOCATION, lambda row: take(row[2], *map(_integer, row.groups()[2:])), max_rows)


def read_summaries(data: Data, take: Take, max_rows: int) -> Table:
    """Call ``take(file, live_bytes, size)`` for each row of ``file_summary.ets``."""
    return _read(data, _SUMMARY, lambda row: take(*map(_integer, row.groups()[1:])), max_rows)


def _read(data: Data, form: re.Pattern[bytes], take: Callable[[re.Match[bytes]], None], max_rows: int) -> Table:
    """Read every intact row, also after damage. The search for the next row only moves forward: the time is linear."""
    problem = None if data[:_HEAD] == _HEADER else "it is not a table that was closed"
    at, rows = _end_of_item(data, _HEAD), 0
    if data[at + 4 : at + _HEAD] != _MAGIC:
        at = _HEAD  # no item: search for the first row from here
    while True:
        row = form.match(data, at)
        if row is not None and _end_of_item(data, at) == row.end():
            if rows == max_rows:
                return Table(rows, problem or f"it has more than {max_rows} rows, and the segments have no room for them")
            take(row)
            rows += 1
            at = row.end()
            continue
        end = _END.match(data, at)
        if end is not None:
            fits = _end_of_item(data, at) == end.end() == len(data) and _integer(end[2]) == rows
            return Table(rows, problem or (None if fits else f"its end does not fit its {rows} rows"))
        problem = problem or f"it is damaged or cut off at offset {at}"
        at = data.find(_NEXT_ROW, at + _HEAD) - 4
        if at < 0:
            return Table(rows, problem)


def _end_of_item(data: Data, at: int) -> int:
    """Return the offset after an item, by its size."""
    return at + _HEAD + int.from_bytes(data[at : at + 4], "big")


def _integer(encoded: bytes) -> int:
    if encoded[:1] == b"n":
        return int.from_bytes(encoded[3:], "little")
    return int.from_bytes(encoded[1:], "big")
