"""Journal engine: one queue on disk, as Kestrel 2.4 writes it.

Order of each change: the record is appended, synced if asked, and then the state in memory changes. The files are replaced only
by packing (:mod:`msgstore_kestrel_journal.packing`): rotate the live file, write what the files stand for into a new one, and
let one rename replace them. Kestrel itself rewrites and packs in an order in which a crash, or an open transaction, gives wrong
items; what is written here is read by it all the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs

from msgstore.contract import Duration, Size, StoreClosed, StoreError, StoreIOError
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.disk import Disk
from msgstore_kestrel_journal.files import check_name, queue_files
from msgstore_kestrel_journal.packing import Checkpoint, JournalFiles, ReadBehind
from msgstore_kestrel_journal.records import Buffer
from msgstore_kestrel_journal.replay import BrokenEnd, Replay, replay_journals

log = logging.getLogger("msgstore.kestrel")

MAX_DATA = 2**31 - 1 - r.TIMES
"""Bytes of an item."""


@attrs.frozen
class JournalOptions:
    """Limits and thresholds, with Kestrel's defaults."""

    max_items: int | None = None
    max_size: Size | None = None
    """Bytes of the items of a queue. The last one may exceed it."""
    max_item_size: Size | None = None
    max_age: Duration | None = None
    """Longest time of an item in the queue."""
    discard_old_when_full: bool = False
    """A full queue drops its oldest items. Otherwise it refuses new ones."""
    open_transaction_timeout: Duration | None = None
    """Time after which an item that was reserved returns to the queue."""
    default_journal_size: Size = Size(16 * 2**20)
    """The journal of an empty queue is rewritten from this size on."""
    max_memory_size: Size = Size(128 * 2**20)
    """Bytes of items in memory, and of the live file. Further items are read from the journal when it is their turn."""
    max_journal_size: Size = Size(2**30)
    """Bytes of all files from which on a rotated file is packed."""
    min_journal_compact_delay: Duration = Duration(60.0)
    """Shortest time between two rewrites that the next two options allow."""
    rewrite_in_memory: bool = False
    """Rewrite a journal that is larger than ``max_journal_size`` while all items are in memory."""
    disable_aggressive_rewrites: bool = False
    """Do not rewrite the journal of an empty queue again and again if the open items fill half of ``default_journal_size``."""
    sync_journal: Duration | None = Duration(0.1)
    """Time from a change to its sync; 0: before the call returns. None: only where files are replaced, and at ``close``."""
    cut_damage: bool = False
    """Cut a file at damage, as Kestrel does. Otherwise only a torn end of the live file is cut, and damage is an error."""


@attrs.define
class QueueItem:
    """An item in memory."""

    data: bytes
    add_ms: int
    expiry_ms: int
    number: int
    """Number that this journal object gave the item. Checkpoints refer to it."""


class Journal:
    """One queue. Methods may be called from any thread. Raises StoreIOError if a write fails; nothing has changed then, unless
    the error says that the journal is closed."""

    def __init__(
        self,
        directory: str | Path,
        queue: str,
        options: JournalOptions | None = None,
        *,
        disk: Disk | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_expired: Callable[[bytes], object] | None = None,
    ) -> None:
        """Open or create the journal of ``queue``. Items that were reserved return to the head, in the order of their numbers.

        ``on_expired`` is called with the data of each item that has expired, after it was removed. Raises StoreError for a name
        that Kestrel refuses, and for damage, which the message locates; StoreIOError.
        """
        check_name(queue)
        self.queue, self.directory = queue, Path(directory)
        self._options = options or JournalOptions()
        self._disk, self._clock, self._on_expired = disk or Disk(), clock_ms, on_expired
        self._lock = threading.RLock()
        self._memory: deque[QueueItem] = deque()
        self._memory_bytes = 0
        self._length = self._bytes = 0
        self._open: dict[int, QueueItem] = {}
        self._since: dict[int, int] = {}
        """By xid: time of the reservation."""
        self._xid = self._numbers = 0
        self._behind: ReadBehind | None = None
        self._checkpoint: Checkpoint | None = None
        self._rewritten_ms: int | None = None
        self._left_by_rewrite = 0
        self._timer: threading.Timer | None = None
        self._closed = False
        self._files = JournalFiles(self.directory, queue, self._disk, self._clock)
        try:
            self._load()
        except StoreError:
            self._end()
            raise
        except OSError as error:
            self._end()
            raise StoreIOError(f"{self.directory / queue}: {error.strerror or error}") from error

    # -- the queue ----------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of items in the queue. Reserved ones do not count."""
        return self._length

    @property
    def size(self) -> int:
        """Bytes of the items in the queue."""
        return self._bytes

    @property
    def opened(self) -> dict[int, bytes]:
        """The data of reserved items, by xid."""
        with self._lock:
            return {xid: item.data for xid, item in self._open.items()}

    def add(self, data: bytes, expiry_ms: int = 0) -> bool:
        """Append an item. Return False if it is too large, or the queue is full. ``expiry_ms``: since the epoch; 0 is never."""
        with self._lock:
            self._check()
            self._expire()
            if not self._has_room(data):
                return False
            self._replace_files()
            now = self._clock()
            item = self._item(data, now, self._capped(now, expiry_ms))
            self._write(r.encode_addx(data, item.add_ms, item.expiry_ms))
            self._append(item, r.ITEM_OVERHEAD + len(data))
            return True

    def remove(self) -> bytes | None:
        """Remove the head and return its data. None if the queue is empty."""
        with self._lock:
            self._check()
            self._give_back_late()
            self._expire()
            if not self._length:
                return None
            self._write(bytes((r.REMOVE,)))
            item = self._pop()
            self._refill()
            try:
                self._replace_files()
            except StoreIOError as error:  # the journal is closed now, but the item is removed: the caller must get it
                log.warning("%s", error)
            return item.data

    def remove_tentative(self) -> tuple[int, bytes] | None:
        """Reserve the head: return its xid and data. None if the queue is empty."""
        with self._lock:
            self._check()
            self._give_back_late()
            self._expire()
            if not self._length:
                return None
            xid = self._next_xid()
            self._write(r.encode_xid(r.REMOVE_TENTATIVE_XID, xid))
            self._xid = xid
            item = self._open[xid] = self._pop()
            self._since[xid] = self._clock()
            self._refill()
            self._replace_files()
            return xid, item.data

    def confirm_remove(self, xid: int) -> bool:
        """End a reservation: the item is gone. Return False for an unknown xid."""
        with self._lock:
            self._check()
            if xid not in self._open:
                return False
            self._write(r.encode_xid(r.CONFIRM_REMOVE, xid))
            self._close(xid)
            self._replace_files()
            return True

    def unremove(self, xid: int) -> bool:
        """End a reservation: the item returns to the head. Return False for an unknown xid. Limits do not count."""
        with self._lock:
            self._check()
            if xid not in self._open:
                return False
            self._write(r.encode_xid(r.UNREMOVE, xid))
            self._push(self._close(xid))
            return True

    def continue_(self, xid: int, data: bytes, expiry_ms: int = 0) -> bool:
        """End a reservation and append an item, in one record. Return False for an unknown xid, or a too large item."""
        with self._lock:
            self._check()
            if xid not in self._open or len(data) > min(MAX_DATA, self._options.max_item_size or MAX_DATA):
                return False
            self._replace_files()
            now = self._clock()
            item = self._item(data, now, self._capped(now, expiry_ms))
            self._write(r.encode_continue(xid, data, item.add_ms, item.expiry_ms))
            self._close(xid)
            self._append(item, r.ITEM_OVERHEAD + 4 + len(data))
            return True

    def peek(self) -> bytes | None:
        """Return the data of the head. Removes items that have expired."""
        with self._lock:
            self._check()
            self._expire()
            return self._memory[0].data if self._length else None

    def flush(self) -> int:
        """Remove every item, and return their number. Reserved ones stay."""
        with self._lock:
            self._check()
            count = 0
            while self._length:
                self._write(bytes((r.REMOVE,)))
                self._pop()
                self._refill()
                count += 1
            self._replace_files()
            return count

    def replay(self) -> Replay:
        """Return what the files say, read anew."""
        with self._lock:
            self._check()
            files = queue_files(self._disk.names(self.directory), self.queue)
            journals = [self._disk.read(self.directory / now) for _, now in files.order]
            return replay_journals(files, journals, self._clock())

    def sync(self) -> None:
        """Return when every change so far outlasts a power loss."""
        with self._lock:
            if not self._closed:
                self._sync()

    def close(self) -> None:
        """Sync and close. A journal of an empty queue is rewritten, as at the end of Kestrel."""
        with self._lock:
            if self._closed:
                return
            try:
                if not self._length and self._files.size:
                    self._rewrite()
                self._sync()
            finally:
                self._end()

    # -- state --------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Settle the files, replay them, and give reserved items back."""
        files, journals = self._files.settle()
        found = replay_journals(files, journals, self._clock())
        for broken in found.broken:
            self._cut(broken, journals)
        self._files.open_live()
        state = found.state
        for xid in sorted(state.opened, reverse=True):
            self._write(r.encode_xid(r.UNREMOVE, xid))
        self._xid = state.xid
        places = state.in_delivery_order()
        for at, place in enumerate(places):
            item = found.item(place)
            if self._memory_bytes >= self._options.max_memory_size and at >= len(state.opened) + state.returned:
                # Behind the items that came back, the queue has what was added last, without a gap: items leave at the head.
                number, offset = found.split(place)
                self._behind = ReadBehind(self._files, number, offset)
                break
            add_ms = found.now_ms if item.add_ms is None else item.add_ms
            self._remember(QueueItem(found.data(place), add_ms, item.expiry_ms, self._next_number()))
        self._length = len(places)
        self._bytes = sum((item := found.item(place)).end - item.begin for place in places)
        self._refill()

    def _cut(self, broken: BrokenEnd, journals: list[Buffer]) -> None:
        """Cut a file at a torn end. Raises StoreError for damage."""
        rest = bytes(journals[self._files.number_of(broken.file)][broken.offset :])
        torn = broken.file == self.queue and (broken.is_torn or not rest.strip(b"\0"))
        if not torn and not self._options.cut_damage:
            raise StoreError(
                f"{self.directory / broken.file} at offset {broken.offset}: {broken.reason}; {len(rest)} bytes from there "
                f"on cannot be read. Copy the directory, and see 'msgstore messages'. The option cut_damage cuts the file "
                f"there, as Kestrel does."
            )
        self._files.cut(broken.file, broken.offset)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.directory / self.queue}: the journal is closed")

    def _has_room(self, data: bytes) -> bool:
        options = self._options
        if len(data) > min(MAX_DATA, options.max_item_size or MAX_DATA):
            return False
        while (options.max_items is not None and self._length >= options.max_items) or (
            options.max_size is not None and self._bytes >= options.max_size
        ):
            if not options.discard_old_when_full or not self._length:
                return False
            self._write(bytes((r.REMOVE,)))
            self._pop()
            self._refill()
        return True

    def _capped(self, now: int, expiry_ms: int) -> int:
        if self._options.max_age is None:
            return expiry_ms
        last = now + round(self._options.max_age * 1000)
        return min(expiry_ms, last) if expiry_ms else last

    def _expire(self) -> None:
        """Remove expired items from the head."""
        while self._length:
            head, now = self._memory[0], self._clock()
            expiry = head.expiry_ms
            if self._options.max_age is not None:
                last = head.add_ms + round(self._options.max_age * 1000)
                expiry = min(expiry, last) if expiry else last
            if not expiry or expiry >= now:
                return
            self._write(bytes((r.REMOVE,)))
            item = self._pop()
            self._refill()
            if self._on_expired is not None:
                self._on_expired(item.data)

    def _give_back_late(self) -> None:
        """Give the oldest reserved item back if it is late. The next removal takes it."""
        limit = self._options.open_transaction_timeout
        if limit is None or not self._since:
            return
        xid = min(self._since, key=lambda one: self._since[one])
        if self._clock() - self._since[xid] >= limit * 1000:
            self.unremove(xid)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _item(self, data: bytes, add_ms: int, expiry_ms: int) -> QueueItem:
        return QueueItem(bytes(data), add_ms, expiry_ms, self._next_number())

    def _next_xid(self) -> int:
        xid = self._xid
        while True:
            xid = (xid + 1 + 2**31) % 2**32 - 2**31
            if xid and xid not in self._open:
                return xid

    def _remember(self, item: QueueItem) -> None:
        self._memory.append(item)
        self._memory_bytes += len(item.data)

    def _append(self, item: QueueItem, written: int) -> None:
        """Enter an item whose record of ``written`` bytes is the last of the live file."""
        if self._behind is None and self._memory_bytes >= self._options.max_memory_size:
            self._behind = ReadBehind(self._files, self._files.live_number, self._files.live_size - written)
        if self._behind is None:
            self._remember(item)
        self._length += 1
        self._bytes += len(item.data)
        if not self._memory:
            self._refill()

    def _push(self, item: QueueItem) -> None:
        self._memory.appendleft(item)
        self._memory_bytes += len(item.data)
        self._length += 1
        self._bytes += len(item.data)

    def _pop(self) -> QueueItem:
        item = self._memory.popleft()
        self._memory_bytes -= len(item.data)
        self._length -= 1
        self._bytes -= len(item.data)
        return item

    def _close(self, xid: int) -> QueueItem:
        self._since.pop(xid, None)
        return self._open.pop(xid)

    def _refill(self) -> None:
        """Read items behind those in memory, until memory is full or all are there."""
        behind = self._behind
        while behind is not None and (self._memory_bytes < self._options.max_memory_size or not self._memory):
            found = behind.next_item()
            if found is None:
                behind.close()
                self._behind = behind = None
                break
            number, data, add_ms, expiry_ms = found
            item = QueueItem(data, self._clock() if add_ms is None else add_ms, expiry_ms, self._next_number())
            self._remember(item)
            if self._checkpoint is not None and number <= self._checkpoint.number:
                self._checkpoint.order.append(item.number)

    # -- files --------------------------------------------------------------------------------------------------------------

    def _write(self, record: bytes) -> None:
        """Append a record. If that fails, the file is as before, or the journal is closed."""
        try:
            self._files.append(record)
        except OSError as error:
            what = f"{self.directory / self.queue}: {error.strerror or error}"
            try:
                self._files.take_back()
            except OSError:
                self._end()
                raise StoreIOError(f"{what}. The journal is closed: its end may be torn. Open it again.") from error
            raise StoreIOError(f"{what}. Nothing was changed.") from error
        every = self._options.sync_journal
        if every is not None and not every:
            self._sync()
        elif every and self._timer is None:
            self._timer = threading.Timer(every, self._sync_late)
            self._timer.daemon = True
            self._timer.start()

    def _sync_late(self) -> None:
        with self._lock:
            self._timer = None
            if not self._closed:
                self._sync()

    def _sync(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._files.sync()
        except OSError as error:
            self._end()
            raise StoreIOError(
                f"{self.directory / self.queue}: {error.strerror or error}. The journal is closed: what the last changes left "
                "on disk is not known. Open it again."
            ) from error

    def _end(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._behind is not None:
            self._behind.close()
            self._behind = None
        self._files.close()

    def _replace_files(self) -> None:
        """Rewrite, rotate or pack the files if a threshold is reached. Called before an item is added and after one is
        removed."""
        options, files = self._options, self._files
        try:
            if (files.live_size >= options.default_journal_size and not self._length and self._may_rewrite_empty()) or (
                options.rewrite_in_memory
                and files.size > options.max_journal_size
                and self._behind is None
                and self._bytes < options.max_memory_size
                and self._is_delayed()
            ):
                self._rewrite()
            elif files.live_size > options.max_memory_size:
                if not self._length and options.disable_aggressive_rewrites:
                    self._rewrite()
                else:
                    files.rotate()
                    if files.size > options.max_journal_size and self._checkpoint is None:
                        self._checkpoint = self._new_checkpoint()
            if self._checkpoint is not None and (self._behind is None or self._behind.number > self._checkpoint.number):
                self._pack()
        except OSError as error:
            self._end()
            raise StoreIOError(
                f"{self.directory / self.queue}: {error.strerror or error}, while files were replaced. The journal is closed, "
                "and nothing is lost: open it again."
            ) from error

    def _may_rewrite_empty(self) -> bool:
        half = self._options.default_journal_size // 2
        return not self._options.disable_aggressive_rewrites or self._left_by_rewrite <= half or self._is_delayed()

    def _is_delayed(self) -> bool:
        delay = self._options.min_journal_compact_delay * 1000
        return self._rewritten_ms is None or self._clock() - self._rewritten_ms >= delay

    def _new_checkpoint(self) -> Checkpoint:
        """Return the state at the end of the file that was rotated last."""
        return Checkpoint(
            number=self._files.live_number - 1,
            opened={xid: item.number for xid, item in self._open.items()},
            xid=self._xid,
            order=[item.number for item in self._memory],
        )

    def _rewrite(self) -> None:
        """Replace all files by one with the items. All are in memory."""
        self._files.rotate()
        self._checkpoint = self._new_checkpoint()
        self._pack()
        self._rewritten_ms, self._left_by_rewrite = self._clock(), self._files.size

    def _pack(self) -> None:
        """Replace the files up to the checkpoint by one that stands for them."""
        assert self._checkpoint is not None
        there = {item.number: item for item in (*self._memory, *self._open.values())}
        self._files.pack(self._checkpoint, lambda number: there.get(number))
        self._checkpoint = None
