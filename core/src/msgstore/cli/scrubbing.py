"""Reading every live record again, segment by segment, no faster than is asked for."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from msgstore.cli.scrub_state import DamagedSpan
from msgstore.contract import Buffer, MessageNotFound, MsgStoreError, RecordError
from msgstore.engine.store import Entry
from msgstore.files import READ_WHOLE, Files
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans

CHUNK = 2**18
"""Bytes that are read at a time: what may come in one burst, and what is taken for lost around a spot that cannot be read."""
SAVED = 0.25
"""Seconds' worth of reading that may be caught up on."""
ATTEMPTS = 3
"""How often a segment is read that the collector changes meanwhile."""


class Throttle:
    """Lets through ``rate`` bytes a second; without a rate everything."""

    def __init__(
        self,
        rate: int | None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._free = now()
        """When the next bytes may be read."""

    def spend(self, size: int) -> None:
        """``size`` bytes were read. Returns when the next may be. What was not used is saved up for ``SAVED`` seconds: so
        long may what is done with the bytes take without making the whole slower."""
        if self._rate:
            now = self._now()
            self._free = max(self._free, now - SAVED) + size / self._rate
            if self._free > now:
                self._sleep(self._free - now)


@attrs.frozen
class Content:
    """A segment's bytes as they were read."""

    data: Buffer | None
    """Zeros stand for what the disk cannot read; None if the file is too large for that."""
    state: tuple[int, int]
    """(size, time) before it was read."""
    unreadable: list[DamagedSpan]


class Scrubber:
    """Checks segments against what an index says of them."""

    def __init__(self, files: Files, throttle: Throttle, read: Callable[[bytes], bytes]) -> None:
        """``read`` is a client's: what it can read was moved, not damaged."""
        self._files = files
        self._throttle = throttle
        self._read = read

    def check(self, path: Path, form: OpenFormat, entries: Sequence[Entry]) -> tuple[list[DamagedSpan], int]:
        """(what is damaged, by offset; bytes read). ``entries``: every live record of the segment. Raises OSError.

        A store that is open elsewhere may be collected meanwhile: a segment that has changed is read again, and a record is
        only damaged if it cannot be read where it is now.
        """
        size = 0
        spots: list[DamagedSpan] = []
        for _ in range(ATTEMPTS):
            try:
                with self._read_throttled(path) as content:
                    size += content.state[0]
                    spots = self._check(path, form, content, entries)
            except FileNotFoundError:
                return self.check_gone(path, entries), size
            if not spots or self._state(path) == content.state:
                break
        return spots, size

    def check_gone(self, path: Path, entries: Sequence[Entry]) -> list[DamagedSpan]:
        """The live records of a segment that is not there."""
        lost = [entry for entry in entries if self._is_lost(entry)]
        return [DamagedSpan(path.name, entry.offset, entry.size, "segment_missing", entry.msg_id.hex()) for entry in lost]

    def _check(self, path: Path, form: OpenFormat, content: Content, entries: Sequence[Entry]) -> list[DamagedSpan]:
        """Of what is said of one offset the record's own counts; what the format says of zeros that nobody read is no news."""
        found: dict[int, DamagedSpan] = {}
        if content.data is not None:
            for spot in self._check_bytes(path, form, content.data, entries):
                unread = any(bad.offset <= spot.offset < bad.offset + bad.size for bad in content.unreadable)
                if spot.msg_id is not None or not unread:
                    found[spot.offset] = spot
        return sorted([*content.unreadable, *found.values()], key=lambda spot: spot.offset)

    def _check_bytes(self, path: Path, form: OpenFormat, data: Buffer, entries: Sequence[Entry]) -> Iterator[DamagedSpan]:
        """What the format says of the segment, then what the index says of its records."""
        scan = form.scan(data)
        for spot in damaged_spans(SegmentReport(path, form, len(data), scan)):
            yield DamagedSpan(path.name, spot.offset, spot.size, spot.reason)
        whole = {row[:3] for columns in (scan.records, scan.duplicates) for row in columns.rows()}
        for entry in entries:
            reason = _damage(form, data, entry)
            if reason is not None and self._is_lost(entry):
                yield DamagedSpan(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())
            elif entry.offset < scan.end.offset and reason is None and (entry.msg_id, entry.offset, entry.size) not in whole:
                yield DamagedSpan(path.name, entry.offset, entry.size, "not_in_scan", entry.msg_id.hex())

    def _is_lost(self, entry: Entry) -> bool:
        """False if the message is somewhere else by now, or removed."""
        try:
            self._read(entry.msg_id)
        except MessageNotFound:
            return False
        except MsgStoreError:
            return True
        return False

    def _state(self, path: Path) -> tuple[int, int] | None:
        try:
            fd = self._files.open_read(path)
        except FileNotFoundError:
            return None
        try:
            return self._files.size_and_mtime(fd)
        finally:
            self._files.close(fd)

    @contextlib.contextmanager
    def _read_throttled(self, path: Path) -> Iterator[Content]:
        """The whole file. Larger ones than fit into memory are mapped, after they were read once."""
        fd = self._files.open_read(path)
        try:
            state = size, _ = self._files.size_and_mtime(fd)
            parts: list[bytes] = []
            unreadable: list[DamagedSpan] = []
            for offset in range(0, size, CHUNK):
                length = min(CHUNK, size - offset)
                try:
                    part = self._files.pread(fd, length, offset)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    unreadable.append(DamagedSpan(path.name, offset, length, "unreadable"))
                    part = bytes(length)
                if size <= READ_WHOLE:
                    parts.append(part)
                self._throttle.spend(length)
            if size <= READ_WHOLE:
                yield Content(b"".join(parts), state, unreadable)
            elif unreadable:  # to look at a mapping there would kill the process
                yield Content(None, state, unreadable)
            else:
                with self._files.view(path) as data:
                    yield Content(data, state, unreadable)
        finally:
            self._files.close(fd)


def _damage(form: OpenFormat, data: Buffer, entry: Entry) -> str | None:
    """Why the record is not what the index says: its frame, its size, its id, its own checksum. None if it is."""
    record = data[entry.offset : entry.offset + entry.size]
    if len(record) != entry.size:
        return "size_mismatch"
    try:
        form.format.decode(entry.msg_id, record)
    except RecordError as error:
        return error.reason
    return None
