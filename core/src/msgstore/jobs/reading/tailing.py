"""Reading on where one has stopped: how far the segments of a live store can be read now, and from where.

A position is a place in one version of a file, known by the checksum of everything in front of it. Where that is the same
still, reading goes on there; where it is not, records may have moved, and the file is read again from its beginning. So each
record that is alive is read at least once, and more often if a collector moves it: ids tell. A record that is removed before it
was read is not read. What is behind the last whole record of a segment, a write that is under way, is left for later.
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
"""Nanoseconds after which the time of a file tells a later change from the last one, on any file system."""
UNSETTLED = 0
"""The time of a file that will be looked at again in any case."""


@attrs.frozen
class TailPosition:
    """Progress in one file: the last span that was read, and the state of the file before."""

    stretch: SegmentRange
    size: int
    mtime_ns: int


class SegmentTailer:
    """Knows which files it has looked at, so that it reads no file again that has not changed. Of one thread."""

    def __init__(self) -> None:
        self._files = Files()
        self._seen: dict[str, tuple[int, int]] = {}
        """Path to (bytes, modification time) of a file in which there was nothing new."""

    def poll(
        self, inputs: Iterable[SegmentInput], known: Mapping[str, TailPosition]
    ) -> Iterator[tuple[SegmentInput, TailPosition]]:
        """Segments with something that ``known`` does not have, the oldest of a store first. Each is read when asked for."""
        for found in reversed(list(inputs)):  # by rank: the highest number is the first
            try:
                progress = self._look(found, known.get(found.path))
            except OSError:  # deleted since it was listed: what lived in it is elsewhere now
                continue
            if progress is not None:
                yield found, progress

    def _look(self, found: SegmentInput, before: TailPosition | None) -> TailPosition | None:
        path = Path(found.path)
        status = path.stat()
        stamp = status.st_size, status.st_mtime_ns
        if time.time_ns() - status.st_mtime_ns < _SETTLED:
            stamp = status.st_size, UNSETTLED
        elif stamp == self._seen.get(found.path) or (before is not None and stamp == (before.size, before.mtime_ns)):
            return None
        with self._files.view(path) as data:
            begin = before.stretch.end if before is not None and before.stretch.is_of(data) else 0
            end = _readable_end(found, data, begin)
            if end > begin:
                return TailPosition(SegmentRange(begin, end, checksum(data, end)), *stamp)
        self._seen[found.path] = stamp
        return None


def _readable_end(found: SegmentInput, data: Buffer, begin: int) -> int:
    form = open_input(found).format
    try:
        return form.scan(data, start=begin).end.offset
    except Exception:  # who reads it fails on it too, and says so
        return len(data)
