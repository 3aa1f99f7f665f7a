"""Check of every live record, segment by segment, at a limited rate."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from msgstore.cli.scrub_state import DamagedSpan
from msgstore.contract import Buffer, MessageNotFound, MsgStoreError, RecordError
from msgstore.engine.store import StoredMessage
from msgstore.files import READ_WHOLE, Files
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans

CHUNK = 2**18
"""Bytes per read: the largest burst, and the span that counts as unreadable around a read error."""
MAX_CREDIT_SECONDS = 0.25
"""Reading time that can be saved up while the caller processes bytes."""
MAX_READS = 3
"""Reads of a segment that the collector changes meanwhile."""


class Throttle:
    """Limits reading to ``rate`` bytes per second. Without a rate there is no limit."""

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
        self._next_read = now()
        """Time at which the next bytes may be read."""

    def spend(self, size: int) -> None:
        """Account for ``size`` bytes that were read. Blocks until the next read is allowed. Unused time is saved for up to
        MAX_CREDIT_SECONDS, so that processing does not reduce the rate."""
        if self._rate:
            now = self._now()
            self._next_read = max(self._next_read, now - MAX_CREDIT_SECONDS) + size / self._rate
            if self._next_read > now:
                self._sleep(self._next_read - now)


@attrs.frozen
class Content:
    """Bytes of a segment."""

    data: Buffer | None
    """Unreadable bytes are zeros. None if the file has unreadable bytes and is too large for memory."""
    state: tuple[int, int]
    """(size, modification time) before the read."""
    unreadable: list[DamagedSpan]


class Scrubber:
    """Checks segments against the index."""

    def __init__(self, files: Files, throttle: Throttle, read: Callable[[bytes], bytes]) -> None:
        """``read`` is a client's method: a message that it can read was moved, not damaged."""
        self._files = files
        self._throttle = throttle
        self._read = read

    def check(self, path: Path, form: OpenFormat, entries: Sequence[StoredMessage]) -> tuple[list[DamagedSpan], int]:
        """Return (damaged spans by offset, bytes read). ``entries``: every live record of the segment. Raises OSError.

        A store that is open elsewhere may be collected meanwhile. Therefore a changed segment is read again. A record is
        damaged only if a client cannot read the message either.
        """
        size = 0
        spans: list[DamagedSpan] = []
        for _ in range(MAX_READS):
            try:
                with self._read_throttled(path) as content:
                    size += content.state[0]
                    spans = self._check(path, form, content, entries)
            except FileNotFoundError:
                return self.check_gone(path, entries), size
            if not spans or self._state(path) == content.state:
                break
        return spans, size

    def check_gone(self, path: Path, entries: Sequence[StoredMessage]) -> list[DamagedSpan]:
        """Return the lost live records of a missing segment."""
        lost = [entry for entry in entries if self._is_lost(entry)]
        return [DamagedSpan(path.name, entry.offset, entry.size, "segment_missing", entry.msg_id.hex()) for entry in lost]

    def _check(self, path: Path, form: OpenFormat, content: Content, entries: Sequence[StoredMessage]) -> list[DamagedSpan]:
        """Return one span per offset; that of a live record wins. Ignores what the format says about unreadable bytes, which
        are zeros here."""
        by_offset: dict[int, DamagedSpan] = {}
        if content.data is not None:
            for span in self._check_bytes(path, form, content.data, entries):
                is_unreadable = any(bad.offset <= span.offset < bad.offset + bad.size for bad in content.unreadable)
                if span.msg_id is not None or not is_unreadable:
                    by_offset[span.offset] = span
        return sorted([*content.unreadable, *by_offset.values()], key=lambda span: span.offset)

    def _check_bytes(
        self, path: Path, form: OpenFormat, data: Buffer, entries: Sequence[StoredMessage]
    ) -> Iterator[DamagedSpan]:
        """Yield the damage that the format finds, then the live records that do not match the index."""
        scan = form.scan(data)
        for span in damaged_spans(SegmentReport(path, form, len(data), scan)):
            yield DamagedSpan(path.name, span.offset, span.size, span.reason)
        scanned = {row[:3] for columns in (scan.records, scan.duplicates) for row in columns.rows()}
        for entry in entries:
            reason = _damage(form, data, entry)
            if reason is not None and self._is_lost(entry):
                yield DamagedSpan(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())
            elif entry.offset < scan.end.offset and reason is None and (entry.msg_id, entry.offset, entry.size) not in scanned:
                yield DamagedSpan(path.name, entry.offset, entry.size, "not_in_scan", entry.msg_id.hex())

    def _is_lost(self, entry: StoredMessage) -> bool:
        """Return False if the message was moved or removed."""
        try:
            self._read(entry.msg_id)
        except MessageNotFound:
            return False
        except MsgStoreError:
            return True
        return False

    def _state(self, path: Path) -> tuple[int, int] | None:
        """Return (size, modification time) of the file, or None if it is missing."""
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
        """Yield the content of the file. A file that is too large for memory is mapped after a throttled read."""
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
            elif unreadable:  # access to the mapping there would kill the process
                yield Content(None, state, unreadable)
            else:
                with self._files.view(path) as data:
                    yield Content(data, state, unreadable)
        finally:
            self._files.close(fd)


def _damage(form: OpenFormat, data: Buffer, entry: StoredMessage) -> str | None:
    """Return why the record does not match the index (frame, size, id or checksum), or None if it does."""
    record = data[entry.offset : entry.offset + entry.size]
    if len(record) != entry.size:
        return "size_mismatch"
    try:
        form.format.decode(entry.msg_id, record)
    except RecordError as error:
        return error.reason
    return None
