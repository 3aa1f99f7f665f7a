"""Hints: beside each sealed segment a file that says which records stand in it, so that a rebuild need not read the segment.

A hint is worth time, never data: one that is missing, stale or damaged is passed over, and one that cannot be written is not.
It is only written for a segment that a scan would find whole from its header to its end.

*Stale* is what a hint must never be believed to be not. It names size and time of its segment, and before it is written the
segment is given a time that lies back by more than any file system's clock is coarse: so whoever changes the segment later,
and be it in the same instant and to the same size, leaves it with another time. Before we ourselves change a segment its hint
goes, and is on disk as gone if the change will be. Last, the end of the segment is looked at: a power loss may have
kept the name, the size and the time of a file, and not its content.

Methods are called by whoever holds ``LiveAccounting.flushing``, or while nobody else knows the store. None raises OSError.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgstore.contract import RecordError
from msgstore.engine.segment import hint_file
from msgstore.engine.segment.hint_file import Hint, InvalidHint
from msgstore.files import UNFINISHED, Files

if TYPE_CHECKING:
    from msgstore.engine.segment.segment import Segment

log = logging.getLogger("msgstore.recovery")

SMALLEST = 2**20
"""Bytes of a segment that gets a hint: a smaller one is scanned in milliseconds, and is deleted with one unlink."""
RIPE = 2.0
"""Seconds that a segment is sealed before its hint is written: one that is emptied by then costs no hint, and at 64 bytes a
message a hint is a seventh of its segment."""
MOST_UNRIPE = 8
"""Hints that are held in memory for so long: 24 bytes a record."""
_PREFIX, _SUFFIX = "msgstore-", ".hint"
_TICK_NS = 2_000_000_000
"""No file system that is in use counts time in larger steps (FAT does in these)."""
_LARGEST_LOOK = 2**20
"""Bytes of a last record that is read to see whether it is there."""


def hint_name(segment: str) -> str:
    """The name of the hint of a segment's file."""
    return f"{_PREFIX}{segment}{_SUFFIX}"


class Hints:
    """The hints of one store directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self.writes = False
        """Whether new ones are written. They are removed in any case, so that what is there is true."""
        self._there: dict[str, int] = {}
        """Name to size of those that are in the directory, as far as is known."""
        self._number = -1
        """The segment whose records are being collected, from its header on; -1 if there is none."""
        self._end = 0
        self._ids = bytearray()
        self._sizes = array("Q")
        self.finished: dict[int, tuple[Segment, Hint, float]] = {}
        """By number, the oldest first: collected whole at that time, and not written yet."""

    # -- what a writer appends --------------------------------------------------------------------------------------------

    def add(self, segment: Segment, offset: int, size: int, ids: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Records of ``ids`` were appended at ``offset``, ``size`` bytes together, ``sizes`` each."""
        if not self.writes:
            return
        if segment.number != self._number:
            if offset != segment.header_bytes:
                return  # what stands before is not known
            self._start(segment.number, offset, bytearray(), array("Q"))
        elif offset != self._end:
            self._forget()
            return
        self._ids += b"".join(ids)
        self._sizes += array("Q", sizes)
        self._end = offset + size

    def finish(self, segment: Segment) -> None:
        """``segment`` was sealed. Its hint is written by the next ``save``, if it was collected from its header to its end."""
        if segment.number == self._number:
            if self._end == segment.size and segment.is_published:
                hint = Hint.of_run(self._ids, segment.header_bytes, self._sizes)
                self.finished[segment.number] = segment, hint, time.monotonic()
            self._forget()

    def save(self, *, everything: bool = False) -> list[Segment]:
        """Write the hints of segments that were sealed ``RIPE`` seconds ago, or of ``everything``. Returns those whose time was
        changed for it. Those of which less than half is still alive get none: they will soon be collected."""
        changed = []
        ripe = time.monotonic() - RIPE
        while self.finished:
            number = next(iter(self.finished))
            segment, hint, since = self.finished[number]
            if not (everything or since <= ripe or len(self.finished) > MOST_UNRIPE):
                break
            del self.finished[number]
            if not segment.quarantined and 2 * segment.live_bytes >= segment.size - segment.header_bytes:
                before = segment.sealed_mtime_ns
                self._save(segment, hint)
                if segment.sealed_mtime_ns != before:
                    changed.append(segment)
        return changed

    def hold(self, segment: Segment, found: Hint) -> None:
        """A scan found this, in a segment that may be written on: what is added to it can be collected then."""
        begin = segment.header_bytes
        if self.writes and found.offsets is None and (not found.count or found.first == begin):
            end = begin + found.total()
            if end == segment.size:
                self._start(segment.number, end, bytearray(found.ids), array("Q", found.each_size()))

    def resume(self, segment: Segment) -> None:
        """``segment`` may be written on: go on where its hint ends."""
        if self.writes and segment.number != self._number and (found := self.load(segment)):
            self.hold(segment, found)

    def outdate(self, segment: Segment) -> None:
        """``segment`` is going to be written on: remove its hint."""
        self._remove(hint_name(segment.path.name), lasting=False)

    # -- what a scan or a compaction knows --------------------------------------------------------------------------------

    def found(self, segment: Segment, found: Hint) -> None:
        """Write what a scan found that was clean from the header to the end."""
        if self.writes:
            self._save(segment, found)

    def rewrite(self, segment: Segment, ids: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """``segment`` was compacted: these are its live records, in any order. Dead ones are left out."""
        if self.writes:
            order = sorted(range(len(ids)), key=offsets.__getitem__)
            columns = [array("Q", map(column.__getitem__, order)) for column in (offsets, sizes)]
            self._save(segment, Hint.of_columns(b"".join(map(ids.__getitem__, order)), *columns))

    # -- files ------------------------------------------------------------------------------------------------------------

    def find(self, segments: Iterable[Segment]) -> None:
        """What is in the directory; if hints are written, those without a segment are removed."""
        with contextlib.suppress(OSError):
            found = {name: size for name, (size, _) in self._files.list(self._directory).items() if name.startswith(_PREFIX)}
            self._there = {name: size for name, size in found.items() if name.endswith(_SUFFIX)}
            stray = self._there.keys() - {hint_name(segment.path.name) for segment in segments}
            stray |= {name for name in found if name.endswith(f"{_SUFFIX}{UNFINISHED}")}
            for name in stray if self.writes else ():
                self._there.pop(name, None)
                self._files.unlink(self._directory / name)

    def load(self, segment: Segment) -> Hint | None:
        """The hint of a segment, if it speaks of the segment as it is. Reads at most two bytes for one of the segment."""
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

    def _look(self, segment: Segment, hint: Hint) -> None:
        """Raises InvalidHint unless the last record is where the hint says; OSError if it cannot be read."""
        if not hint.count:
            return
        msg_id, offset, size = hint.last()
        if size > _LARGEST_LOOK:
            return
        fd = self._files.open_read(segment.path)
        try:
            record = self._files.pread(fd, size, offset)
        finally:
            self._files.close(fd)
        try:
            if len(record) != size:
                raise InvalidHint(f"its last record should be at {offset}, and is cut off")
            segment.form.format.decode(msg_id, record)
        except RecordError as error:
            raise InvalidHint(f"its last record is not at {offset}: {error}") from error

    def drop(self, segment: Segment, *, lasting: bool = False) -> None:
        """Before the segment changes or goes. ``lasting``: on disk, too, because what follows will be."""
        if segment.number == self._number:
            self._forget()
        self.finished.pop(segment.number, None)
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

    def _save(self, segment: Segment, hint: Hint) -> None:
        name = hint_name(segment.path.name)
        if segment.size < SMALLEST or segment.sealed_mtime_ns is None:
            return
        try:
            if not self._date_back(segment):
                return
            chunks = hint_file.write(hint, segment.path.name, segment.size, segment.sealed_mtime_ns)
            self._there[name] = 0  # from here on there may be one
            self._files.write_file(self._directory / name, chunks, sync=False)
        except OSError as error:
            log.warning("%s cannot be written; it is only worth time: %s", self._directory / name, error)

    def _date_back(self, segment: Segment) -> bool:
        """False if the file is not what we know any more, or keeps no time that a later change cannot give it again."""
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
