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
        self._current: Segment | None = None
        """Segment whose records are being collected, from its header on."""
        self._ids = bytearray()
        self._sizes = array("Q")
        self.unwritten: dict[Segment, tuple[Records, float]] = {}
        """(records, time of sealing), the oldest first: hints that are not written yet."""

    def add(self, segment: Segment, offset: int, ids: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Collect records that were appended at ``offset``. Those of a segment that an earlier opening began are not known."""
        if not self.writes or (segment is not self._current and offset != segment.header_bytes):
            return
        if segment is not self._current:
            self._current, self._ids, self._sizes = segment, bytearray(), array("Q")
        self._ids += b"".join(ids)
        self._sizes += array("Q", sizes)

    def finish(self, segment: Segment) -> None:
        """Note that a segment was sealed. A later ``save`` writes its hint if the collected records are all that it has."""
        if segment is self._current:
            if segment.header_bytes + sum(self._sizes) == segment.size:
                self.unwritten[segment] = (self._ids, segment.header_bytes, self._sizes), time.monotonic()
            self._current = None

    def save(self, *, everything: bool = False) -> list[Segment]:
        """Write the hints of segments sealed DELAY_SECONDS ago, or all. Return the segments whose time was changed.

        A segment with less than half of its bytes alive gets no hint: it will soon be collected.
        """
        ripe = time.monotonic() - DELAY_SECONDS
        due = [segment for segment, (_, since) in self.unwritten.items() if everything or since <= ripe]
        changed = []
        for segment in due:
            records, _ = self.unwritten.pop(segment)
            if not segment.quarantined and 2 * segment.live_bytes >= segment.size - segment.header_bytes:
                before = segment.sealed_mtime_ns
                self.found(segment, records)
                if segment.sealed_mtime_ns != before:
                    changed.append(segment)
        return changed

    def found(self, segment: Segment, records: Records) -> None:
        """Write the hint of a segment, if all its records are known and it has no damage."""
        name, sealed = hint_name(segment.path.name), segment.sealed_mtime_ns
        if not self.writes or segment.size < SMALLEST or sealed is None:
            return
        try:
            if sealed >= time.time_ns() - _TICK_NS:
                size, segment.sealed_mtime_ns = self._files.set_mtime(segment.path, sealed - _TICK_NS)
                if size != segment.size or segment.sealed_mtime_ns >= sealed:
                    return  # the file has changed, or the file system cannot store the time
            chunks = hint_file.write(records, segment.path.name, segment.size, segment.sealed_mtime_ns or 0)
            self._there[name] = 0  # the file may exist from here on
            self._files.write_file(self._directory / name, chunks, sync=False)
        except OSError as error:
            what = "%s cannot be written; a rebuild of the index will read the segment instead: %s"
            log.warning(what, self._directory / name, error)

    def rewrite(self, segment: Segment, ids: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Write the hint of a compacted segment: its live records, in any order."""
        order = sorted(range(len(ids)), key=offsets.__getitem__)
        at, length = (array("Q", map(column.__getitem__, order)) for column in (offsets, sizes))
        self.found(segment, (b"".join(map(ids.__getitem__, order)), at, length))

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
            if len(hint) and hint.sizes[-1] <= _LARGEST_LOOK:
                msg_id, offset, size = bytes(hint.ids[-16:]), hint.offsets[-1], hint.sizes[-1]
                with self._files.closing(self._files.open_read(segment.path)) as fd:
                    record = self._files.pread(fd, size, offset)
                if len(record) != size:
                    raise InvalidHint("its last record is cut off")
                segment.form.format.decode(msg_id, record)
        except (OSError, InvalidHint, RecordError) as error:
            log.info("%s is not used, the segment is read instead: %s", self._directory / name, error)
            return None
        return hint

    def drop(self, segment: Segment, *, lasting: bool = False) -> None:
        """Delete the hint before the segment is changed or deleted. ``lasting``: durably."""
        if segment is self._current:
            self._current = None
        self.unwritten.pop(segment, None)
        name = hint_name(segment.path.name)
        if name in self._there:
            try:
                self._files.unlink(self._directory / name)
                if lasting:
                    self._files.sync_directory(self._directory)
                del self._there[name]
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._directory / name, error)
