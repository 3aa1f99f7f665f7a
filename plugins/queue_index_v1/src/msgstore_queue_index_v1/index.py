"""Queue index v1: a journal, ``journal.jif``, and segments, ``N.idx``, as RabbitMQ 3.x reads and writes them.

``write`` appends publishes and acknowledgements to the journal. When it is long, its entries move to the segments: publishes
that are not acknowledged, and acknowledgements of those that moved before. A segment without live messages is deleted. All that
is synced, and then the journal is truncated to nothing. A crash in between leaves entries in both; they count once, because
each has a number.

Each publish is followed by the mark "delivered", whether it was delivered or not. RabbitMQ 3.10 does so, too, and fails at an
acknowledgement of a message without that mark. Unless RabbitMQ may read the journal, the mark has a checksum instead of the
position, and acknowledgements are followed by one, too. So a journal that is synced is written over zeros, for which a sync
takes less: a power failure may leave any part of what was not synced, and the checksums show what is not whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from msgstore_queue_index_v1 import recovery
from msgstore_queue_index_v1.recovery import JOURNAL
from msgstore_queue_index_v1.segment import Place, Row, Segment, entries_of, moved
from msgstore_queues.contract import Entry, NewEntries, QueueIndexContext, Recovered
from rabbitmq_files import index_v1

log = logging.getLogger("msgstore.queues")

SEGMENT_ENTRIES = index_v1.SEGMENT_ENTRIES
JOURNAL_ENTRIES, JOURNAL_BYTES = 32768, 2**24
"""The journal is moved to the segments when it has more."""
CHUNK_ENTRIES = 1024
"""Entries that are written together."""
_ALLOCATED = 2**16
"""Zeros that are put behind a synced journal."""
_MAX_OPEN_OF_ALL, _MAX_UNSYNCED_OF_ALL = 200, 300
"""Journals of all queues that stay open, about: synced ones, and all."""
_MAX_SCANNED = 2
"""Segments of which the places of all messages are in memory."""


class QueueIndexV1:
    """Implements :class:`msgstore_queues.contract.QueueIndex`."""

    open_of_all: ClassVar[set[int]] = set()
    """Journals of all queues that are open, by their descriptors."""

    def __init__(self, context: QueueIndexContext) -> None:
        self._directory = context.directory
        self._files = context.files
        self._is_synced = context.is_synced
        self._size = context.segment_entries or SEGMENT_ENTRIES
        self._segments: dict[int, Segment] = {}
        self._scanned: list[Segment] = []
        """Segments with ``places``; the last one was used last."""
        self._next = 0
        """Position above all that were written."""
        self._journal_fd: int | None = None
        self._journal_size = 0
        self._journal_entries = 0
        self._allocated = 0
        """Offset at which the zeros behind the entries end. Without zeros, it is not above ``_journal_size``."""
        self._is_cut = False
        """True if a write has failed, of which something may be behind ``_journal_size``."""
        self._is_checked = not context.is_for_broker
        """The journal has checksums."""
        self._is_unsynced = False
        """True if the journal must be synced."""
        self._has_new_names = False
        """True if the directory must be synced."""
        self._has_moved = False
        """True if entries may be in the journal and in a segment: moving them has failed."""
        self._has_sync_failed = False
        """True if the operating system may have dropped bytes of the journal."""
        self._done = 0
        """Entries of the last call of ``write``, which failed, that are written: they begin the next call, too."""
        try:
            self.recovered = self._recover(context.terms)
            self._limit_open()
        except BaseException:
            self.abandon()
            raise

    # -- opening ----------------------------------------------------------------------------------------------------------

    def _recover(self, terms: Mapping[str, Any] | None) -> Recovered:
        names = self._files.list(self._directory)
        self._has_new_names = bool(recovery.segment_files(names)) or JOURNAL in names  # perhaps never synced
        journal, places = b"", index_v1.find_in_journal(b"")
        if JOURNAL in names:
            journal, places = recovery.read_journal(self._files, self._path(JOURNAL))
        self._allocated, journal = len(journal), journal[: places.end]
        self._journal_size = len(journal)
        self._journal_entries = len(places.publishes) + len(places.acknowledged)
        segments = recovery.from_terms(terms or {}, self._size, names, places)
        if segments is not None:
            assert terms is not None
            self._segments, self._next = segments, terms["next_seq_id"]
            count, body_bytes = sum(segment.live for segment in segments.values()), None
            is_other = bool(journal) and index_v1.is_checked(journal) != self._is_checked
            if not count or is_other:  # free the space, and begin a journal for, or not for, a broker
                self._move(journal)
        else:
            files = recovery.segment_files(names)
            found = recovery.from_files(self._files, self._directory, files, self._size, places, journal)
            self._segments, self._next, count, body_bytes = found
            self._move(journal)
        first = min((segment.first for segment in self._segments.values() if segment.live), default=self._next)
        return Recovered(self._next, count, first, body_bytes)

    # -- writing ----------------------------------------------------------------------------------------------------------

    def write(self, entries: NewEntries, acks: Sequence[int]) -> None:
        while len(entries.positions) - self._done > CHUNK_ENTRIES:
            self._append(entries.part(self._done, self._done + CHUNK_ENTRIES), ())
            self._done += CHUNK_ENTRIES
        self._append(entries.part(self._done) if self._done else entries, acks)
        self._done = 0
        self._limit_open()

    def _append(self, entries: NewEntries, acks: Sequence[int]) -> None:
        """Append to the journal, in one write. A long journal is moved to the segments before."""
        if self._journal_entries > JOURNAL_ENTRIES or self._journal_size > JOURNAL_BYTES:
            self._move_journal()
        positions = entries.positions
        if not positions and not acks:
            return
        if self._is_checked and not self._journal_size:
            self._write_journal(index_v1.CHECKED_JOURNAL)
        places, parts, at = list[Place](), list[bytes](), self._journal_size
        for position, is_persistent, msg_id, body_size, expiry_us, term in entries.rows():
            part = index_v1.encode_journal_message(
                position, msg_id, body_size, term or b"", expiry_us, is_persistent=is_persistent, is_checked=self._is_checked
            )
            places.append((at, at + len(part) - index_v1.JOURNAL_MARK_SIZE))
            parts.append(part)
            at += len(part)
        if acks:
            parts.append(index_v1.encode_journal_acks(acks, is_checked=self._is_checked))
        data = b"".join(parts)
        self._make_room(self._journal_size + len(data))
        self._write_journal(data)
        self._journal_entries += len(positions) + len(acks)
        self._is_unsynced = self._is_synced
        for position, place, term in zip(positions, places, entries.terms, strict=True):
            segment = self._segment_of(position)
            segment.publishes[position] = place
            segment.live += 1
            segment.may_have_shared |= term is None
        if positions:
            self._next = max(self._next, positions[-1] + 1)
        for position in acks:
            segment = self._segments[position // self._size]
            if segment.publishes.pop(position, None) is None:
                segment.acks.add(position)
            segment.live -= 1

    def _write_journal(self, data: bytes) -> None:
        self._is_cut = True
        self._files.pwrite(self._opened_journal(), data, self._journal_size)
        self._is_cut = False
        self._journal_size += len(data)

    def _make_room(self, end: int) -> None:
        """Prepare a write up to offset ``end``: with zeros there, a sync need not wait until the file system has noted another
        size. If there is no place for zeros, the write appends."""
        fd, begin = self._opened_journal(), self._journal_size
        if self._is_cut:
            self._files.truncate(fd, begin)
            self._allocated, self._is_cut = begin, False
        if self._is_synced and self._is_checked and end > self._allocated:
            self._is_cut = True
            try:
                self._files.allocate(fd, end + _ALLOCATED)
                self._allocated = end + _ALLOCATED
            except OSError:
                self._files.truncate(fd, begin)
            self._is_cut = False

    def _segment_of(self, position: int) -> Segment:
        number = position // self._size
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = Segment(number, number * self._size)
        return segment

    def _move_journal(self) -> None:
        """Move the entries of the journal to the segments. If that fails, all of it is repeated."""
        self._move(self._read_part(self._opened_journal(), 0, self._journal_size))

    def _move(self, journal: bytes) -> None:
        """As :meth:`_move_journal`. ``journal``: its content."""
        self._has_moved = True
        changed = []
        for segment in list(self._segments.values()):
            if not segment.live:
                self._delete_segment(segment)
            elif segment.must_be_written:
                changed.append((segment, self._write_segment(segment, moved(segment, journal))))
        if self._has_new_names and self._is_synced:
            self._files.sync_directory(self._directory)
            self._has_new_names = False
        if self._journal_size or self._allocated:
            self._files.truncate(self._opened_journal(), 0)
            self._is_unsynced = self._is_synced
        self._journal_size = self._journal_entries = self._allocated = 0
        self._is_cut = False
        for segment, size in changed:
            self._forget_places(segment)
            segment.size, segment.is_torn, segment.is_unsure = size, False, False
            segment.publishes, segment.acks, segment.unmarked = {}, set(), []
        self._has_moved = False

    def _delete_segment(self, segment: Segment) -> None:
        """Delete a segment without live messages. The acknowledgements in the journal are of nothing then."""
        if segment.has_file:
            self._has_new_names = True
            self._files.unlink(self._segment_path(segment))
        self._forget_places(segment)
        del self._segments[segment.number]

    def _write_segment(self, segment: Segment, data: bytes) -> int:
        """Append to the file of a segment, and sync it. Return its new size."""
        path = self._segment_path(segment)
        if segment.has_file:
            fd = self._files.open_write(path)
        else:
            self._has_new_names = True
            fd = self._files.create(path)
            segment.has_file = True
        with self._files.closing(fd):
            if segment.is_torn:
                self._files.truncate(fd, segment.size)
            segment.is_torn = True
            self._files.pwrite(fd, data, segment.size)
            if self._is_synced:
                self._files.sync(fd)
        return segment.size + len(data)

    def sync(self) -> Callable[[], None]:
        if self._has_sync_failed:  # a second one would succeed, whatever has become of the bytes: write them again
            self._move_journal()
            self._has_sync_failed = False
        fds = [os.dup(self._opened_journal())] if self._is_unsynced else []
        new_names, self._is_unsynced, self._has_new_names = self._has_new_names, False, False
        self._limit_open()

        def run() -> None:
            try:
                for fd in fds:
                    with self._files.closing(fd):
                        self._files.sync(fd)
                if new_names:
                    self._files.sync_directory(self._directory)
            except BaseException:
                self._is_unsynced = self._has_new_names = self._has_sync_failed = True
                raise

        return run

    # -- reading ----------------------------------------------------------------------------------------------------------

    def segment(self, position: int) -> tuple[int, int]:
        first = position - position % self._size
        return first, first + self._size

    def read(self, start: int, stop: int, *, terms: bool = True) -> list[Entry]:
        segment = self._segments.get(start // self._size)
        if segment is None or not segment.live:
            return []
        places, acks = self._places_of(segment), segment.acks
        rows = [(at, places[at]) for at in range(start, stop) if at in places and at not in acks]
        found = self._entries(rows, self._segment_path(segment), terms=terms)
        rows = [(at, segment.publishes[at]) for at in range(start, stop) if at in segment.publishes]
        new = self._entries(rows, None, terms=terms)
        self._limit_open()
        return sorted(found + new, key=attrgetter("position")) if found and new else found or new

    def _entries(self, rows: Sequence[Row], path: Path | None, *, terms: bool) -> list[Entry]:
        """Return entries of a segment, or if there is no path of the journal. ``rows``: in the order of their positions."""
        if not rows:
            return []
        base, end = min(begin for _, (begin, _) in rows), max(end for _, (_, end) in rows)
        if path is None:
            data = self._read_part(self._opened_journal(), base, end)
        else:
            with self._files.closing(self._files.open_read(path)) as fd:
                data = self._read_part(fd, base, end)
        entries = list(entries_of(rows, data, base, is_journal=path is None, terms=terms))
        if lost := len(rows) - len(entries):
            log.warning("%s: is shorter than it was; %d messages cannot be read", path or self._path(JOURNAL), lost)
        return entries

    def _read_part(self, fd: int, start: int, end: int) -> bytes:
        return self._files.pread(fd, end - start, start)

    def _places_of(self, segment: Segment) -> Mapping[int, tuple[int, int]]:
        """Return the messages that are not acknowledged in the file of a segment."""
        if not segment.size:
            return {}
        if segment.places is None:
            path, first = self._segment_path(segment), segment.first
            found = index_v1.find_in_segment(self._files.read_file(path)[: segment.size])
            for offset, size, reason in found.damage:
                log.warning("%s: %d bytes at %d: %s", path, size, offset, reason)
            gone = found.acknowledged
            segment.places = {first + number: place for number, place in found.publishes.items() if number not in gone}
        else:
            self._scanned.remove(segment)
        self._scanned.append(segment)
        if len(self._scanned) > _MAX_SCANNED:
            self._scanned.pop(0).places = None
        return segment.places

    def _forget_places(self, segment: Segment) -> None:
        if segment.places is not None:
            self._scanned.remove(segment)
            segment.places = None

    def shared(self) -> Iterator[bytes]:
        for _, segment in sorted(self._segments.items()):
            first, stop = self.segment(segment.first)
            if not segment.may_have_shared:
                continue
            yield from (entry.msg_id for entry in self.read(first, stop, terms=False) if entry.is_shared)

    # -- files and the end ------------------------------------------------------------------------------------------------

    def _opened_journal(self) -> int:
        if self._journal_fd is None:
            try:
                self._journal_fd = self._files.open_write(self._path(JOURNAL))
            except FileNotFoundError:
                self._journal_fd = self._files.create(self._path(JOURNAL))
                self._has_new_names = True
            self.open_of_all.add(self._journal_fd)
        return self._journal_fd

    def _limit_open(self) -> None:
        """Close the journal if those of many queues are open. One that is not synced stays open until ``sync``, or is synced if
        there are too many. If that fails, the next ``sync`` writes its entries again."""
        most = _MAX_UNSYNCED_OF_ALL if self._is_unsynced else _MAX_OPEN_OF_ALL
        if len(self.open_of_all) <= most or self._journal_fd is None:
            return
        if self._is_unsynced and not self._has_sync_failed:
            try:
                self._files.sync(self._journal_fd)
                self._is_unsynced = False
            except OSError:
                self._has_sync_failed = True
        with suppress(OSError):  # nothing is left to write, and a write must not fail when its entries are written
            self.abandon()

    def close(self) -> Mapping[str, Any]:
        """RabbitMQ keeps the same in ``recovery.dets``: segments with their live messages, and the next position."""
        self.abandon()
        if self._has_moved:
            return {}
        segments = [[segment.number, segment.live] for _, segment in sorted(self._segments.items())]
        return {
            "segment_entries": self._size, "next_seq_id": self._next, "segments": segments, "journal": self._journal_size,
        }  # fmt: skip

    def abandon(self) -> None:
        if self._journal_fd is not None:
            fd, self._journal_fd = self._journal_fd, None
            self.open_of_all.discard(fd)  # before another file can get the same number
            self._files.close(fd)

    def delete(self) -> None:
        """The journal last: it has acknowledgements of messages in the segments, and a crash may leave any of them."""
        self.abandon()
        for segment in list(self._segments.values()):
            self._delete_segment(segment)
        if self._is_synced and self._has_new_names:
            self._files.sync_directory(self._directory)
        self._files.unlink(self._path(JOURNAL))

    def _path(self, name: str) -> Path:
        return self._directory / name

    def _segment_path(self, segment: Segment) -> Path:
        return self._path(f"{segment.number}.idx")
