"""Hint files: the record list of a sealed segment, next to it, so that a rebuild of the index need not read the segment.

A hint saves time and holds no data: a missing, stale or damaged one is ignored, and a failure to write one is only logged. It
is written only for a segment that a scan would find intact from its header to its end.

A stale hint must never be used:

- It has the size and modification time of its segment. Before it is written, that time is set back by more than the clock
  resolution of any file system. So a later change leaves another time, even in the same instant and at the same size.
- Before the engine changes a segment, it deletes the hint; durably before a compaction.
- The last record of the segment is read: a power loss may keep name, size and time of a file, but not its contents.

Callers of the methods hold the flush lock, or the store is not open yet. No method raises OSError.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgstore.contract import Columns, RecordError
from msgstore.engine.segment import hint_file
from msgstore.engine.segment.hint_file import InvalidHint, Records
from msgstore.engine.segment.segment import Segment
from msgstore.files import UNFINISHED, Files

log = logging.getLogger("msgstore.recovery")

SMALLEST = 2**20
"""Smallest segment with a hint, in bytes: a smaller one is scanned in milliseconds."""
DELAY_SECONDS = 2.0
"""Seconds between sealing and the hint: a segment that is emptied before costs none. With 64-byte messages a hint has a
seventh of the size of its segment."""
MAX_WAITING = 8
"""Hints that may wait in memory for that time: 24 bytes per record, or 32."""
_PREFIX, _SUFFIX = "msgstore-", ".hint"
_TICK_NS = 2_000_000_000
"""Largest clock resolution of a file system, that of FAT."""
_LARGEST_LOOK = 2**20
"""Largest last record that is read for the check, in bytes."""


def hint_name(segment: str) -> str:
    """Return the name of the hint file of a segment."""
    return f"{_PREFIX}{segment}{_SUFFIX}"


class Hints:
    """Hint files of one store directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self.writes = False
        """True if new hints are written. Stale ones are deleted in any case."""
        self._there: dict[str, int] = {}
        """Size of each hint file in the directory, by name."""
        self._number = -1
        """Number of the segment whose records are being collected, from its header on; -1 if there is none."""
        self._end = 0
        self._ids = bytearray()
        self._sizes = array("Q")
        self.unwritten: dict[int, tuple[Segment, Records, float]] = {}
        """(segment, records, time of sealing) by number, the oldest first: hints that are not written yet."""

    # -- records of the writer --------------------------------------------------------------------------------------------

    def add(self, segment: Segment, offset: int, size: int, ids: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Collect records that were appended at ``offset``: ``size`` bytes in total, ``sizes`` each."""
        if not self.writes:
            return
        if segment.number != self._number:
            if offset != segment.header_bytes:
                return  # the records before it are unknown
            self._start(segment.number, offset, bytearray(), array("Q"))
        elif offset != self._end:
            self._forget()
            return
        self._ids += b"".join(ids)
        self._sizes += array("Q", sizes)
        self._end = offset + size

    def finish(self, segment: Segment) -> None:
        """Note that a segment was sealed. The next ``save`` writes its hint if all its records were collected."""
        if segment.number == self._number:
            if self._end == segment.size and segment.is_published:
                records = self._ids, segment.header_bytes, self._sizes
                self.unwritten[segment.number] = segment, records, time.monotonic()
            self._forget()

    def save(self, *, everything: bool = False) -> list[Segment]:
        """Write the hints of segments sealed DELAY_SECONDS ago, or all. Return the segments whose time was changed.

        A segment with less than half of its bytes alive gets no hint: it will soon be collected.
        """
        changed = []
        ripe = time.monotonic() - DELAY_SECONDS
        while self.unwritten:
            number = next(iter(self.unwritten))
            segment, records, since = self.unwritten[number]
            if not (everything or since <= ripe or len(self.unwritten) > MAX_WAITING):
                break
            del self.unwritten[number]
            if not segment.quarantined and 2 * segment.live_bytes >= segment.size - segment.header_bytes:
                before = segment.sealed_mtime_ns
                self.found(segment, records)
                if segment.sealed_mtime_ns != before:
                    changed.append(segment)
        return changed

    def hold(self, segment: Segment, found: Columns) -> None:
        """Keep the records of a segment that may be continued, so that later ones can be added. There must be no gaps."""
        if self.writes and sum(found.sizes) == segment.size - segment.header_bytes:
            self._start(segment.number, segment.size, bytearray(found.ids), array("Q", found.sizes))

    def resume(self, segment: Segment) -> None:
        """Continue the collection of a segment that is continued, from its hint file."""
        if self.writes and segment.number != self._number and (found := self.load(segment)):
            self.hold(segment, found)

    def outdate(self, segment: Segment) -> None:
        """Delete the hint of a segment that is about to be continued."""
        self._remove(hint_name(segment.path.name), lasting=False)

    # -- records of a scan or a compaction --------------------------------------------------------------------------------

    def found(self, segment: Segment, records: Records) -> None:
        """Write the hint of a segment, if all its records are known and it has no damage."""
        name = hint_name(segment.path.name)
        if not self.writes or segment.size < SMALLEST or segment.sealed_mtime_ns is None:
            return
        try:
            if not self._date_back(segment):
                return
            chunks = hint_file.write(records, segment.path.name, segment.size, segment.sealed_mtime_ns)
            self._there[name] = 0  # the file may exist from here on
            self._files.write_file(self._directory / name, chunks, sync=False)
        except OSError as error:
            log.warning(
                "%s cannot be written; a rebuild of the index will read the segment instead: %s", self._directory / name, error
            )

    def rewrite(self, segment: Segment, ids: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Write the hint of a compacted segment: its live records, in any order."""
        order = sorted(range(len(ids)), key=offsets.__getitem__)
        at, length = (array("Q", map(column.__getitem__, order)) for column in (offsets, sizes))
        self.found(segment, (b"".join(map(ids.__getitem__, order)), at, length))

    # -- files ------------------------------------------------------------------------------------------------------------

    def find(self, segments: Iterable[Segment]) -> None:
        """List the hint files. If hints are written, delete those without a segment."""
        with contextlib.suppress(OSError):
            found = {name: size for name, (size, _) in self._files.list(self._directory).items() if name.startswith(_PREFIX)}
            self._there = {name: size for name, size in found.items() if name.endswith(_SUFFIX)}
            stray = self._there.keys() - {hint_name(segment.path.name) for segment in segments}
            stray |= {name for name in found if name.endswith(f"{_SUFFIX}{UNFINISHED}")}
            for name in stray if self.writes else ():
                self._there.pop(name, None)
                self._files.unlink(self._directory / name)

    def load(self, segment: Segment) -> Columns | None:
        """Return the hint of a segment, or None if it cannot be used. Reads at most twice the size of the segment."""
        name = hint_name(segment.path.name)
        size = self._there.get(name)
        if size is None or segment.sealed_mtime_ns is None:
            return None
        try:
            if size > hint_file.largest(segment.size):
                raise InvalidHint(f"{size} bytes are too many for a segment of {segment.size}")
            data = self._files.read_file(self._directory / name)
            hint = hint_file.read(data, segment.path.name, segment.size, segment.sealed_mtime_ns)
            self._look(segment, hint)
        except (OSError, InvalidHint) as error:
            log.info("%s is not used, the segment is read instead: %s", self._directory / name, error)
            return None
        return hint

    def _look(self, segment: Segment, hint: Columns) -> None:
        """Raise InvalidHint unless the last record is at its place, OSError if it cannot be read."""
        if not len(hint) or hint.sizes[-1] > _LARGEST_LOOK:
            return
        msg_id, offset, size = bytes(hint.ids[-16:]), hint.offsets[-1], hint.sizes[-1]
        with self._files.closing(self._files.open_read(segment.path)) as fd:
            record = self._files.pread(fd, size, offset)
        try:
            if len(record) != size:
                raise InvalidHint(f"its last record should be at {offset}, and is cut off")
            segment.form.format.decode(msg_id, record)
        except RecordError as error:
            raise InvalidHint(f"its last record is not at {offset}: {error}") from error

    def drop(self, segment: Segment, *, lasting: bool = False) -> None:
        """Delete the hint before the segment is changed or deleted. ``lasting``: durably."""
        if segment.number == self._number:
            self._forget()
        self.unwritten.pop(segment.number, None)
        self._remove(hint_name(segment.path.name), lasting=lasting)

    def _remove(self, name: str, *, lasting: bool) -> None:
        if name in self._there:
            try:
                self._files.unlink(self._directory / name)
                if lasting:
                    self._files.sync_directory(self._directory)
                del self._there[name]
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._directory / name, error)

    def _date_back(self, segment: Segment) -> bool:
        """Set the time of a segment back. Return False if the file has changed, or the file system cannot store it."""
        sealed = segment.sealed_mtime_ns
        assert sealed is not None
        if sealed < time.time_ns() - _TICK_NS:
            return True
        size, mtime_ns = self._files.set_mtime(segment.path, sealed - _TICK_NS)
        segment.sealed_mtime_ns = mtime_ns
        return size == segment.size and mtime_ns < sealed

    def _start(self, number: int, end: int, ids: bytearray, sizes: array[int]) -> None:
        self._number, self._end, self._ids, self._sizes = number, end, ids, sizes

    def _forget(self) -> None:
        self._start(-1, 0, bytearray(), array("Q"))
