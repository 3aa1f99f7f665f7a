"""The writing side: the pending map, the flush, removal, and the deletion of segments that became empty.

``write`` puts a body into the pending map and returns. A flush encodes all that is pending, appends it with one write a
segment, enters it into the index with one call, commits, and only then are clients told. Data is written before the index
says so; the index says so before anything old is deleted.

All state is guarded by ``lock``. Clients are told outside of it.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import add
from typing import TYPE_CHECKING

from msgstore.config import StoreConfig
from msgstore.contract import Index, MessageNotFound, MessageTooLarge, MsgStoreError, StoreClosed, StoreReadOnly
from msgstore.contract.locations import MASK, NUMBER_SHIFT, OFFSET_SHIFT
from msgstore.engine.backends import Backends
from msgstore.engine.checkpoint import CLEAN_KEY, LAYOUT, LAYOUT_KEY, pack_row, row_key
from msgstore.engine.segments import Segment, Segments, io_error, io_errors

if TYPE_CHECKING:
    from msgstore.engine.client import Client

log = logging.getLogger("msgstore.writer")

FLUSH_BYTES = 2**20
"""Pending bodies that trigger a flush. Batches far above this cost several times more a message."""
FLUSH_REMOVALS = 10_000
"""Removals that trigger a flush, so that what an index holds between two commits stays small."""
_STEP = 1 << OFFSET_SHIFT


class Writer:
    """One for each open store."""

    def __init__(
        self, config: StoreConfig, backends: Backends, segments: Segments, index: Index, *, persistent: bool, read_only: bool
    ) -> None:
        self.config = config
        self.backends = backends
        self.segments = segments
        self.index = index
        self.lock = threading.Lock()
        self.telling = threading.RLock()
        """Held from before a flush until its clients were told, so that whoever flushes after it finds everything confirmed.
        Taken before ``lock``; re-entrant, because a client that is told may flush."""
        self.flushes = 0
        """Under ``telling``: how many flushes the thread that holds it is in, one inside the other."""
        self.pending: dict[bytes, bytes] = {}
        """Bodies that are not on disk yet, as the clients gave them; also the read cache of what was just written."""
        self.clients: list[Client] = []
        self.lingering: dict[bytes, int] = {}
        """Dead records that a late second write can revive: id to location. Of the current segment, and of segments that
        are not self-describing."""
        self.callback_failures = 0
        self.changed = threading.Event()
        """Set by the first change after a flush: the flusher's wake-up."""
        self._idle = True  # nothing has changed since the last flush
        self._pending_references: dict[bytes, int] = {}  # only of ids with more than one
        self._pending_bytes = 0
        self._has_large = False
        self._removals = 0
        self._persistent = persistent
        self._touched: set[Segment] = set()
        self._deleted: list[Segment] = []
        self._empty: set[Segment] = set()
        at_once = not config.sync_interval
        self._flush_bytes = 0 if at_once else FLUSH_BYTES
        self._flush_removals = 0 if at_once else FLUSH_REMOVALS
        self._large = config.large_message
        # From here on a body is looked at before it is taken: half of what fits leaves room for what a codec adds.
        self._big = min(self._large, backends.write_format.format.max_body // 2)
        self._refusal: MsgStoreError | None = None
        if read_only:
            self.refuse(StoreReadOnly(f"{config.path}: was opened with mode='r'; open it with mode='rw' to change it"))
        self._index_add_reference = index.add_reference

    # -- messages ---------------------------------------------------------------------------------------------------------

    def write(self, unconfirmed: list[bytes] | None, msg_id: bytes, body: bytes) -> None:
        """One more reference to ``msg_id``; its body is kept if it is new. No system call, unless a flush is due."""
        if msg_id.__class__ is not bytes or len(msg_id) != 16:
            check_id(msg_id)
        if body.__class__ is not bytes:
            body = _as_bytes(body)
        try:
            with self.lock:
                if self._refusal is not None:
                    raise self._refusal
                pending = self.pending
                if msg_id in pending:
                    self._pending_references[msg_id] = self._pending_references.get(msg_id, 1) + 1
                elif self._index_add_reference(msg_id):
                    pass
                elif msg_id in self.lingering:
                    self._revive(msg_id)
                else:
                    if len(body) >= self._big:
                        self._check_big(body)
                    pending[msg_id] = body
                    self._pending_bytes += len(body)
                if unconfirmed is not None:
                    unconfirmed.append(msg_id)
                if self._pending_bytes < self._flush_bytes and (unconfirmed is None or len(unconfirmed) < FLUSH_BYTES):
                    if self._idle:
                        self._wake_flusher()
                    return
        except OSError as error:
            raise io_error(self.config.path, None, error) from error
        self.flush()

    def remove(self, ids: Sequence[bytes]) -> None:
        """One reference less for each of ``ids``. Raises MessageNotFound for the absent ones when the others are removed."""
        for msg_id in ids:
            if msg_id.__class__ is not bytes or len(msg_id) != 16:
                check_id(msg_id)
        with self.lock:
            if self._refusal is not None:
                raise self._refusal
            on_disk = self._remove_pending(ids) if self.pending else ids
            missing: list[bytes] = []
            if on_disk:
                with io_errors(self.config.path):
                    released = self.index.release(on_disk)
                missing = released.missing
                self._bury(released.freed)
                self._removals += len(on_disk)
            if self._idle:
                self._wake_flusher()
            due = self._removals >= self._flush_removals
        if due:
            self.flush()
        if missing:
            raise MessageNotFound(missing, str(self.config.path))

    def flush(self) -> None:
        """Write everything that is pending, and tell the clients. When it returns, all that was written before is confirmed."""
        with self.telling:
            self.flushes += 1
            try:
                with self.lock:
                    if self._refusal is not None:
                        raise self._refusal
                    confirmed = self.write_out()
                self.tell(confirmed)
            finally:
                self.flushes -= 1

    def references(self, msg_id: bytes) -> int:
        """Under the lock: references of a pending or stored message; 0 if there is none."""
        if msg_id in self.pending:
            return self._pending_references.get(msg_id, 1)
        return self.index.references(msg_id)

    def refuse(self, error: MsgStoreError) -> None:
        """Every later change raises ``error``."""
        self._refusal = error

    def check_open(self) -> None:
        if isinstance(self._refusal, StoreClosed):
            raise self._refusal

    # -- under the lock ---------------------------------------------------------------------------------------------------

    def write_out(self) -> list[tuple[Client, list[bytes]]]:
        """Everything pending to disk and into the index. Returns whom to ``tell`` of what, when the lock is free."""
        if self.pending:
            self._write_pending()
        self.commit()
        self.delete_empty()
        self._removals = 0
        self.changed.clear()
        self._idle = True
        return [(client, client.take_unconfirmed()) for client in self.clients if client.has_unconfirmed]

    def _wake_flusher(self) -> None:
        self._idle = False
        self.changed.set()

    def _write_pending(self) -> None:
        ids = list(self.pending)
        large = self._large_positions()
        bodies = self.backends.codec.encode(list(self.pending.values()))
        references = self._pending_references
        locations: list[int] = []
        appended: list[tuple[Segment, int, int]] = []
        at = 0
        for end in [*large, len(ids)]:
            if end > at:
                locations += self.append(ids[at:end], bodies[at:end], appended)
            if end < len(ids):
                locations += self.append_large(ids[end], bodies[end], appended)
            at = end + 1
        self.index.enter(ids, locations, map(references.get, ids, repeat(1)) if references else None)
        self.account(appended)
        self.pending.clear()
        references.clear()
        self._pending_bytes = 0
        self._has_large = False

    def _large_positions(self) -> list[int]:
        return [at for at, body in enumerate(self.pending.values()) if len(body) >= self._large] if self._has_large else []

    def append(self, ids: Sequence[bytes], bodies: Sequence[bytes], appended: list[tuple[Segment, int, int]]) -> list[int]:
        """Append stored bodies, rolling as segments fill up. Returns their locations.

        Adds (segment, records, bytes) to ``appended``, for ``account`` once the index has the entries."""
        form = self.backends.write_format
        data, sizes = form.format.encode(ids, bodies)
        ends = list(accumulate(sizes))
        view = memoryview(data)
        locations: list[int] = []
        done = base = 0
        while done < len(ends):
            segment = self.segments.current
            if segment is None or segment.size >= self.config.file_size_limit:
                segment = self.roll()
            room = self.config.file_size_limit - segment.size
            cut = min(bisect_left(ends, base + room, done) + 1, len(ends))  # the record that fills the segment is its last
            count, size, offset = cut - done, ends[cut - 1] - base, segment.size
            part = sizes[done:cut] if count < len(sizes) else sizes
            self._touched.add(segment)
            self.segments.append(view[base : base + size])
            self.segments.hints.add(segment, offset, size, ids[done:cut] if count < len(ids) else ids, part)
            first = segment.number << NUMBER_SHIFT | offset << OFFSET_SHIFT
            locations.extend(map(add, accumulate(map(_STEP.__mul__, part), initial=first), part))
            appended.append((segment, count, size))
            done, base = cut, base + size
        return locations

    def append_large(self, msg_id: bytes, body: bytes, appended: list[tuple[Segment, int, int]]) -> list[int]:
        """A large message has a segment of its own, so that its removal frees the space at once."""
        current = self.segments.current
        if current is None or current.size > current.header_bytes:
            self.roll()
        locations = self.append([msg_id], [body], appended)
        self.seal(appendable=False)
        return locations

    def account(self, appended: list[tuple[Segment, int, int]]) -> None:
        """What was appended is live, now that the index says so."""
        for segment, count, size in appended:
            segment.live_count += count
            segment.live_bytes += size
            self._touched.add(segment)
            self._empty.discard(segment)

    def roll(self) -> Segment:
        self.seal()
        segment = self.segments.roll(self.backends.write_format)
        self._touched.add(segment)
        return segment

    def seal(self, *, appendable: bool = True) -> None:
        """The current segment takes no more records; its dead ones can no longer be revived if it is self-describing."""
        segment = self.segments.current
        if segment is not None:
            segment.appendable &= appendable
            self._touched.add(segment)
            if segment.live_count == 0:
                self._empty.add(segment)
            if segment.form.self_describing:
                self.forget_lingering(segment)
        self.segments.hints.write(self.segments.seal_current())

    def forget_lingering(self, segment: Segment) -> None:
        if self.lingering:
            number = segment.number
            self.lingering = {i: at for i, at in self.lingering.items() if at >> NUMBER_SHIFT != number}

    def touch(self, segment: Segment) -> None:
        """The segment's row goes with the next commit."""
        self._touched.add(segment)

    def commit(self, extra: dict[bytes, bytes | None] | None = None) -> None:
        """Commit the index with the rows of every segment that changed."""
        state: dict[bytes, bytes | None] = {}
        if self._persistent:
            state |= {row_key(segment): None for segment in self._deleted}
            state |= {row_key(segment): pack_row(segment) for segment in self._touched}
        with io_errors(self.config.path):
            self.index.commit(state | (extra or {}))
        self._touched.clear()
        self._deleted.clear()

    def delete_empty(self) -> None:
        """Unlink segments without live records, after the commit that says so: one unlink each, nothing is read."""
        for segment in list(self._empty):
            if segment.live_count == 0 and segment is not self.segments.current and not segment.quarantined:
                self.segments.delete(segment)
                self.forget_lingering(segment)
                self._touched.discard(segment)
                self._deleted.append(segment)
            self._empty.discard(segment)
        if self._deleted:
            if self.segments.sync:  # before the index forgets them, or a power loss brings back strangers
                self.segments.sync_directory()
            self.commit()

    def note_empty(self, segment: Segment) -> None:
        """Delete the segment at the next flush if it has no live record by then."""
        self._empty.add(segment)

    def state(self, clean: bytes) -> dict[bytes, bytes]:
        """The whole state of a clean stop."""
        rows = {row_key(segment): pack_row(segment) for segment in self.segments}
        return {LAYOUT_KEY: LAYOUT, CLEAN_KEY: clean, **rows}

    def _remove_pending(self, ids: Sequence[bytes]) -> list[bytes]:
        """Cancel what never reached the disk; returns the ids that are not pending."""
        pending, references, rest = self.pending, self._pending_references, []
        for msg_id in ids:
            if msg_id not in pending:
                rest.append(msg_id)
            elif msg_id in references:
                references[msg_id] -= 1
                if references[msg_id] == 1:
                    del references[msg_id]
            else:
                self._pending_bytes -= len(pending.pop(msg_id))
        return rest

    def _bury(self, freed: list[tuple[bytes, int]]) -> None:
        segments, current = self.segments.by_number, self.segments.current
        for msg_id, location in freed:
            segment = segments.get(location >> NUMBER_SHIFT) or self.segments.get(location >> NUMBER_SHIFT)
            segment.live_count -= 1
            segment.live_bytes -= location & MASK
            self._touched.add(segment)
            if segment is current or not segment.form.self_describing:
                self.lingering[msg_id] = location
            if segment.live_count == 0 and segment is not current:
                self._empty.add(segment)

    def _revive(self, msg_id: bytes) -> None:
        location = self.lingering.pop(msg_id)
        segment = self.segments.by_number[location >> NUMBER_SHIFT]
        self.index.enter([msg_id], [location])
        self.account([(segment, 1, location & MASK)])

    def _check_big(self, body: bytes) -> None:
        limit = self.backends.write_format.format.max_body
        stored = len(body) if len(body) <= limit // 2 else len(self.backends.codec.encode([body])[0])
        if stored > limit:
            raise MessageTooLarge(
                f"{self.config.path}: a body of {stored} bytes does not fit into a record of format "
                f"{self.backends.write_format.name!r} (at most {limit}); split the message"
            )
        self._has_large |= len(body) >= self._large

    # -- outside the lock -------------------------------------------------------------------------------------------------

    def tell(self, confirmed: list[tuple[Client, list[bytes]]]) -> None:
        for client, ids in confirmed:
            try:
                client.confirm(ids)
            except Exception:
                self.callback_failures += 1
                log.exception("%s: on_confirm of client %r failed for %d ids", self.config.path, client.name, len(ids))


def check_id(msg_id: object) -> None:
    """Raises ValueError unless ``msg_id`` is 16 bytes."""
    if not isinstance(msg_id, bytes):
        raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}")  # noqa: TRY004 - documented as ValueError
    if len(msg_id) != 16:
        raise ValueError(f"a message id is 16 bytes, not {len(msg_id)}: {msg_id!r}")


def _as_bytes(body: object) -> bytes:
    """A copy of a mutable buffer; subclasses of bytes pass."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, not {type(body).__name__}")
