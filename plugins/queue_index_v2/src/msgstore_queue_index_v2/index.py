"""Queue index v2: entries of 32 bytes in ``N.qi``, embedded messages in ``N.qs``, as RabbitMQ since 3.10 writes them.

Order on disk: ``N.qi`` is created before ``N.qs``, and deleted after it, so ``N.qs`` never stands alone. A message is appended
to ``N.qs`` before its entry is written. Both are synced before the message is confirmed; the checksum of the message tells if a
power failure before that has kept the entry only. An acknowledgement overwrites the entry with zeros.
"""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import compress, groupby
from pathlib import Path
from typing import Any, ClassVar

import attrs

from msgstore_queue_index_v2 import recovery
from msgstore_queues.contract import Entry, NewEntries, QueueIndexContext, Recovered
from rabbitmq_files import index_v2
from rabbitmq_files.index_v2 import ENTRY_SIZE, HEADER_SIZE, INDEX_MAGIC, STORE_MAGIC, STORED_SIZE

log = logging.getLogger("msgstore.queues")

SEGMENT_ENTRIES = 4096
"""Messages of a segment, as RabbitMQ has them."""
ALONE = ".without-index"
"""Suffix of a ``.qs`` file whose ``.qi`` file is missing. It is kept for a rescue."""
_NAME = re.compile(r"(0|[1-9]\d{0,15})\.(qi|qs)")
_MAX_OPEN = 4
"""Segments of a queue whose files stay open."""
_MAX_OPEN_OF_ALL, _MAX_UNSYNCED_OF_ALL = 200, 300
"""Segments of all queues whose files stay open, about: synced ones, and all."""
_CHECKED = 2
"""Newest segments whose messages are checked after a crash. A message of an older one is checked when it is read."""


@attrs.define(eq=False)
class _Segment:
    number: int
    live: int = 0
    """Messages that are not acknowledged."""
    stored: int = 0
    """Bytes of ``N.qs``; 0: there is no such file yet."""
    index_fd: int | None = None
    store_fd: int | None = None
    is_unsynced: bool = False


class QueueIndexV2:
    """Implements :class:`msgstore_queues.contract.QueueIndex`."""

    open_of_all: ClassVar[set[int]] = set()
    """Index files of all queues that are open, by their descriptors."""

    def __init__(self, context: QueueIndexContext) -> None:
        self._directory = context.directory
        self._files = context.files
        self._is_synced = context.is_synced
        self._size = context.segment_entries or SEGMENT_ENTRIES
        self._segments: dict[int, _Segment] = {}
        self._open: dict[int, _Segment] = {}
        """Segments with open files; the last one was used last."""
        self._next = 0
        """Position above all that were written."""
        self._has_new_names = False
        """True if the directory must be synced."""
        self._has_failed_sync = False
        """True after a sync that failed: the system may take what was not written for written, unless it is written again."""
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
        found: dict[str, set[int]] = {"qi": set(), "qs": set()}
        for match in filter(None, map(_NAME.fullmatch, names)):
            found[match[2]].add(int(match[1]))
        for number in found["qs"] - found["qi"]:
            path = self._path(number, "qs")
            log.warning("%s: has no index, and is not read; it is kept as %s", path, path.name + ALONE)
            self._files.replace(path, path.with_name(path.name + ALONE))
        if terms is not None and terms["segment_entries"] == self._size:
            live = {int(number): count for number, count in terms["live"].items()}
            if live.keys() == found["qi"]:
                self._segments = {
                    number: _Segment(number, count, names.get(f"{number}.qs", (0, 0))[0]) for number, count in live.items()
                }
                self._next = terms["next"]
                return Recovered(self._next, sum(live.values()), min(live, default=0) * self._size, None)
        return self._read_all(sorted(found["qi"]), names)

    def _read_all(self, numbers: Sequence[int], names: Mapping[str, tuple[int, int]]) -> Recovered:
        """Count the entries of all segments. Those whose messages were never written are dropped: they were not confirmed.
        Those that are damaged are dropped, too, and counted: so the queue reports that they are lost."""
        count = body_bytes = 0
        first = None
        for number in numbers:
            segment = self._segments[number] = _Segment(number)
            path = self._path(number, "qi")
            data = self._whole_entries(segment, self._files.read_file(path))
            segment.stored = names.get(f"{number}.qs", (0, 0))[0]
            if damaged := recovery.damaged(data):
                log.warning("%s: %d entries are damaged, and are dropped", path, len(damaged))
                data = self._without(segment, data, damaged)
            if number in numbers[-_CHECKED:] or not recovery.reaches(data, segment.stored):
                stored = self._files.read_file(self._path(number, "qs")) if segment.stored else b""
                data = self._without(segment, data, recovery.unwritten(path, data, stored))
            data = self._without(segment, data, recovery.transient(data))
            states = recovery.states(data)
            segment.live = states.count(1)
            count += segment.live + len(damaged)
            if not segment.live:
                self._delete_files(segment)
                del self._segments[number]
                continue
            first = number * self._size + states.index(1) if first is None else first
            self._next = number * self._size + states.rindex(1) + 1
            body_bytes += sum(compress(recovery.body_sizes(data), states))  # a crash may leave a part of what was zeroed
        return Recovered(self._next, count, self._next if first is None else first, body_bytes)

    def _whole_entries(self, segment: _Segment, data: bytes) -> bytes:
        """Cut off an entry that a crash has cut: the next one in its place would have the rest of it."""
        whole = recovery.whole_entries(data)
        if len(whole) < len(data):
            fd = self._opened(segment.number).index_fd
            assert fd is not None
            self._files.truncate(fd, len(whole))
            segment.is_unsynced = self._is_synced
        return whole

    def _without(self, segment: _Segment, data: bytes, rows: Sequence[int]) -> bytes:
        """Overwrite entries with zeros. Return the content of ``N.qi``, which was ``data``."""
        if not rows:
            return data
        self._zero(segment, [segment.number * self._size + row for row in rows])
        return self._files.read_file(self._path(segment.number, "qi"))

    # -- writing ----------------------------------------------------------------------------------------------------------

    def write(self, entries: NewEntries, acks: Sequence[int]) -> None:
        new = entries.positions
        while self._done < len(new):
            number = new[self._done] // self._size
            stop = bisect_left(new, (number + 1) * self._size, self._done)
            self._append(self._opened(number), entries.part(self._done, stop))
            self._done = stop
        acks_of = {number: list(group) for number, group in groupby(sorted(acks), key=lambda at: at // self._size)}
        finished = [
            number
            for number, positions in acks_of.items()
            if len(positions) == self._segments[number].live and self._next >= (number + 1) * self._size
        ]
        for number, positions in acks_of.items():
            if number not in finished:
                self._zero(self._segments[number], positions)
        for number in finished:
            self._delete_files(self._segments[number])
        for number, positions in acks_of.items():
            self._segments[number].live -= len(positions)
        for number in finished:
            del self._segments[number]
        self._done = 0
        self._limit_open()

    def _append(self, segment: _Segment, entries: NewEntries) -> None:
        """Write entries of one segment: the messages, then runs of entries without gaps."""
        assert segment.index_fd is not None
        begin = max(segment.stored, HEADER_SIZE)
        rows, stored = index_v2.encode_run(entries.rows(), begin)
        messages = b"".join(stored)
        if messages:
            if segment.store_fd is None:
                segment.store_fd = self._open_or_create(segment.number, "qs", STORE_MAGIC)
            self._files.pwrite(segment.store_fd, messages, begin)
        positions = entries.positions
        for start, stop in _runs(positions):
            self._files.pwrite(segment.index_fd, b"".join(rows[start:stop]), self._offset(positions[start]))
        if messages:
            segment.stored = begin + len(messages)
        segment.live += len(positions)
        segment.is_unsynced = self._is_synced
        self._next = max(self._next, positions[-1] + 1)

    def _zero(self, segment: _Segment, positions: Sequence[int]) -> None:
        """Overwrite entries with zeros. ``positions``: ascending."""
        if positions:
            fd = self._opened(segment.number).index_fd
            assert fd is not None
            for start, stop in _runs(positions):
                self._files.pwrite(fd, bytes(ENTRY_SIZE * (stop - start)), self._offset(positions[start]))
            segment.is_unsynced = self._is_synced

    def _delete_files(self, segment: _Segment) -> None:
        self._close(segment)
        self._files.unlink(self._path(segment.number, "qs"))
        self._files.unlink(self._path(segment.number, "qi"))
        self._has_new_names = True

    def sync(self) -> Callable[[], None]:
        segments = [segment for segment in self._segments.values() if segment.is_unsynced]
        must_rewrite, new_names = self._has_failed_sync, self._has_new_names
        with ExitStack() as stack:
            fds = list[int]()
            for segment in segments:
                for fd in self._duplicates(segment, reopen=must_rewrite):
                    stack.callback(self._files.close, fd)
                    fds.append(fd)
            closing = stack.pop_all()
        self._has_failed_sync = self._has_new_names = False
        for segment in segments:
            segment.is_unsynced = False
        self._limit_open()

        def run() -> None:
            try:
                with closing:
                    for fd in fds:
                        if must_rewrite:
                            self._files.pwrite(fd, self._files.pread(fd, self._files.size_and_mtime(fd)[0], 0), 0)
                        self._files.sync(fd)
                if new_names:
                    self._files.sync_directory(self._directory)
            except BaseException:  # the next sync repeats it
                for segment in segments:
                    segment.is_unsynced = True
                self._has_new_names |= new_names
                self._has_failed_sync = True
                raise

        return run

    def _duplicates(self, segment: _Segment, *, reopen: bool) -> Iterator[int]:
        """Yield descriptors of the open files of a segment that is not synced. ``reopen``: and of those that were closed after
        a sync that failed."""
        for suffix, fd in (("qs", segment.store_fd), ("qi", segment.index_fd)):
            if fd is not None:
                yield os.dup(fd)
            elif reopen and (suffix == "qi" or segment.stored):
                yield self._files.open_write(self._path(segment.number, suffix))

    # -- reading ----------------------------------------------------------------------------------------------------------

    def segment(self, position: int) -> tuple[int, int]:
        first = position - position % self._size
        return first, first + self._size

    def read(self, start: int, stop: int, *, terms: bool = True) -> list[Entry]:
        segment = self._segments.get(start // self._size)
        if segment is None:
            return []
        self._opened(segment.number)
        assert segment.index_fd is not None
        data = self._files.pread(segment.index_fd, (stop - start) * ENTRY_SIZE, self._offset(start))
        data = data[: len(data) - len(data) % ENTRY_SIZE]
        rows = list(index_v2.live_rows(data))
        first, stored = self._stored_of(segment, rows) if terms else (0, b"")
        entries = []
        for row, is_persistent, msg_id, offset, size, body_size, expiry_us in rows:
            term = recovery.stored_term(stored, offset - first, size) if size and terms else None
            if term is not None or not terms or not size:
                entries.append(Entry(start + row, is_persistent, msg_id, body_size, expiry_us, term, not size))
        if lost := data[::ENTRY_SIZE].count(1) - len(entries):
            path = self._path(segment.number, "qi")
            log.warning("%s: %d messages from position %d to %d cannot be read", path, lost, start, stop)
        self._limit_open()
        return entries

    def _stored_of(self, segment: _Segment, rows: Sequence[tuple[int, bool, bytes, int, int, int, int]]) -> tuple[int, bytes]:
        """Return the part of ``N.qs`` that has the messages of rows, and its offset."""
        places = [(offset, offset + STORED_SIZE + size) for _, _, _, offset, size, _, _ in rows if size]
        if not places or not segment.stored:
            return 0, b""
        if segment.store_fd is None:
            segment.store_fd = self._open_or_create(segment.number, "qs", STORE_MAGIC)
        first, end = min(places)[0], min(max(end for _, end in places), segment.stored)
        return first, self._files.pread(segment.store_fd, max(end - first, 0), first)

    def shared(self) -> Iterator[bytes]:
        for number in sorted(self._segments):
            data = self._files.read_file(self._path(number, "qi"))
            if recovery.has_shared(data):
                yield from (entry.msg_id for entry in index_v2.read_index(data).entries if entry.place == "shared")

    # -- files and the end ------------------------------------------------------------------------------------------------

    def _opened(self, number: int) -> _Segment:
        """Return a segment with its index file open. A new one gets a file. Older ones are closed."""
        segment = self._segments.get(number) or _Segment(number)
        if segment.index_fd is None:
            segment.index_fd = self._open_or_create(number, "qi", INDEX_MAGIC)
            self.open_of_all.add(segment.index_fd)
            self._segments[number] = segment
        self._open.pop(number, None)
        self._open[number] = segment
        while len(self._open) > _MAX_OPEN:
            others = [one for one in self._open.values() if one is not segment]
            self._sync_and_close(next((one for one in others if not one.is_unsynced), others[0]))
        return segment

    def _limit_open(self) -> None:
        """Close all files if those of many queues are open. What is not synced stays open until ``sync``, or is synced if there
        are too many."""
        if len(self.open_of_all) > _MAX_OPEN_OF_ALL:
            for segment in list(self._open.values()):
                if not segment.is_unsynced or len(self.open_of_all) > _MAX_UNSYNCED_OF_ALL:
                    self._sync_and_close(segment)

    def _sync_and_close(self, segment: _Segment) -> None:
        """Close the files of a segment, synced if need be. If that fails, the next ``sync`` writes them again."""
        if segment.is_unsynced and not self._has_failed_sync:
            try:
                for fd in (segment.store_fd, segment.index_fd):
                    if fd is not None:
                        self._files.sync(fd)
                segment.is_unsynced = False
            except OSError:
                self._has_failed_sync = True
        with suppress(OSError):  # nothing is left to write, and a write must not fail when its entries are written
            self._close(segment)

    def _open_or_create(self, number: int, suffix: str, magic: bytes) -> int:
        """Return a descriptor of a file with a header. A crash or a full disk may have left it without one."""
        path, first = self._path(number, suffix), number * self._size
        try:
            fd = self._files.open_write(path)
        except FileNotFoundError:
            fd = self._files.create(path)
            self._has_new_names = True
        try:
            if self._files.size_and_mtime(fd)[0] < HEADER_SIZE:
                self._files.pwrite(fd, index_v2.encode_header(magic, first, first + self._size), 0)
        except BaseException:
            self._files.close(fd)
            raise
        return fd

    def _close(self, segment: _Segment) -> None:
        self._open.pop(segment.number, None)
        fds = [fd for fd in (segment.index_fd, segment.store_fd) if fd is not None]
        segment.index_fd = segment.store_fd = None
        self.open_of_all.difference_update(fds)  # before another file can get the same numbers
        for fd in fds:
            self._files.close(fd)

    def close(self) -> Mapping[str, Any]:
        self.abandon()
        return {
            "segment_entries": self._size, "next": self._next,
            "live": {str(number): segment.live for number, segment in sorted(self._segments.items())},
        }  # fmt: skip

    def abandon(self) -> None:
        for segment in list(self._open.values()):
            self._close(segment)

    def delete(self) -> None:
        for segment in list(self._segments.values()):
            self._delete_files(segment)
        self._segments.clear()

    def _path(self, number: int, suffix: str) -> Path:
        return self._directory / f"{number}.{suffix}"

    def _offset(self, position: int) -> int:
        """Return the offset of an entry in its file."""
        return HEADER_SIZE + position % self._size * ENTRY_SIZE


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end, in ``positions``, of each part without gaps."""
    if positions[-1] - positions[0] < len(positions):  # as nearly always
        yield 0, len(positions)
        return
    start = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] != positions[at - 1] + 1:
            yield start, at
            start = at
