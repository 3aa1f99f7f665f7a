"""Tailing: find the new records in the segments of a store that is being written.

A position is an offset in one version of a file, which the checksum of all bytes before it identifies. If these bytes have
changed, records may have moved, and the file is read again from its start. So each live record is read at least once, and again
if a collector moves it. A record that is removed before it was read is not read. Bytes after the last whole record are left for
the next poll, because a write may be in progress.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from msgstore.contract import Buffer
from msgstore.files import Files
from msgstore.jobs.inputs import SegmentInput, open_input
from msgstore.jobs.reading.segment_check import SegmentRange, checksum

_SETTLED = 2 * 10**9
"""Age of a modification time, in nanoseconds, from which a later change gets another time on any file system."""
UNSETTLED = 0
"""Modification time that equals none: the file is read again."""


@attrs.frozen
class TailPosition:
    """Progress in one file: the last span that was read, and the state of the file before."""

    stretch: SegmentRange
    size: int
    mtime_ns: int


def poll(inputs: Iterable[SegmentInput], known: Mapping[str, TailPosition]) -> Iterator[tuple[SegmentInput, TailPosition]]:
    """Yield each segment with records after its position in ``known``, and the new position. Oldest of a store first.

    A file that has not changed since its position was taken is not read.
    """
    for found in reversed(list(inputs)):  # by rank: the highest number is the first
        try:
            position = _next_position(found, known.get(found.path))
        except OSError:  # deleted since it was listed: its live records are elsewhere
            continue
        if position is not None:
            yield found, position


def _next_position(found: SegmentInput, before: TailPosition | None) -> TailPosition | None:
    status = Path(found.path).stat()
    stamp = status.st_size, status.st_mtime_ns
    if time.time_ns() - status.st_mtime_ns < _SETTLED:
        stamp = status.st_size, UNSETTLED
    elif before is not None and stamp == (before.size, before.mtime_ns):
        return None
    with Files().view(Path(found.path)) as data:
        begin = before.stretch.end if before is not None and before.stretch.is_of(data) else 0
        end = _readable_end(found, data, begin)
        return TailPosition(SegmentRange(begin, end, checksum(data, end)), *stamp) if end > begin else None


def _readable_end(found: SegmentInput, data: Buffer, begin: int) -> int:
    form = open_input(found).format
    try:
        return form.scan(data, start=begin).end.offset
    except Exception:  # the reader of the records fails too, and reports it
        return len(data)
