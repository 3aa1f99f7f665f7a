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
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgstore.contract import StoreClosed, StoreError, StoreIOError
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.disk import Disk
from msgstore_kestrel_journal.files import check_name, queue_files
from msgstore_kestrel_journal.item_queue import ItemQueue, QueueItem
from msgstore_kestrel_journal.options import JournalOptions
from msgstore_kestrel_journal.packing import JournalFiles
from msgstore_kestrel_journal.records import MAX_DATA
from msgstore_kestrel_journal.replacement import FileReplacement
from msgstore_kestrel_journal.replay import Replay, replay_journals

__all__ = ["Journal", "JournalOptions"]

T = TypeVar("T")
log = logging.getLogger("msgstore.kestrel")


class Journal:
    """One queue. Methods may be called from any thread. Raises StoreIOError if a read or a write fails. The change that failed
    is not made then, unless the error says that the journal is closed."""

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
        self._timer: threading.Timer | None = None
        self._closed = False
        self._files = JournalFiles(self.directory, queue, self._disk, self._clock)
        self._items = ItemQueue(self._files, self._options.max_memory_size, self._clock)
        self._replacement = FileReplacement(self._options, self._files, self._items, self._clock)
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
        return self._items.length

    @property
    def size(self) -> int:
        """Bytes of the items in the queue."""
        return self._items.size

    @property
    def opened(self) -> dict[int, bytes]:
        """The data of reserved items, by xid."""
        with self._lock:
            return {xid: item.data for xid, item in self._items.opened.items()}

    def add(self, data: bytes, expiry_ms: int = 0) -> bool:
        """Append an item. Return False if it is too large, or the queue is full. ``expiry_ms``: since the epoch; 0 is never."""
        with self._lock:
            self._check()
            self._expire()
            if not self._has_room(data):
                return False
            self._replace_files()
            now = self._clock()
            item = self._items.new_item(data, now, self._options.capped(expiry_ms, now))
            self._write(r.encode_addx(data, item.add_ms, item.expiry_ms))
            self._items.append(item, r.ITEM_OVERHEAD + len(data))
            return True

    def remove(self) -> bytes | None:
        """Remove the head and return its data. None if the queue is empty."""
        with self._lock:
            self._check()
            self._give_back_late()
            self._expire()
            if not self._items.length:
                return None
            item = self._remove_head()
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
            if not self._items.length:
                return None
            xid = self._items.next_xid()
            self._write(r.encode_xid(r.REMOVE_TENTATIVE_XID, xid))
            item = self._items.reserve(xid)
            self._replace_files()
            return xid, item.data

    def confirm_remove(self, xid: int) -> bool:
        """End a reservation: the item is gone. Return False for an unknown xid."""
        with self._lock:
            self._check()
            if xid not in self._items.opened:
                return False
            self._write(r.encode_xid(r.CONFIRM_REMOVE, xid))
            self._items.confirm(xid)
            self._replace_files()
            return True

    def unremove(self, xid: int) -> bool:
        """End a reservation: the item returns to the head. Return False for an unknown xid. Limits do not count."""
        with self._lock:
            self._check()
            if xid not in self._items.opened:
                return False
            self._write(r.encode_xid(r.UNREMOVE, xid))
            self._items.give_back(xid)
            return True

    def continue_(self, xid: int, data: bytes, expiry_ms: int = 0) -> bool:
        """End a reservation and append an item, in one record. Return False for an unknown xid, or a too large item."""
        with self._lock:
            self._check()
            if xid not in self._items.opened or len(data) > min(MAX_DATA, self._options.max_item_size or MAX_DATA):
                return False
            self._replace_files()
            now = self._clock()
            item = self._items.new_item(data, now, self._options.capped(expiry_ms, now))
            self._write(r.encode_continue(xid, data, item.add_ms, item.expiry_ms))
            self._items.confirm(xid)
            self._items.append(item, r.ITEM_OVERHEAD + 4 + len(data))
            return True

    def peek(self) -> bytes | None:
        """Return the data of the head. Removes items that have expired."""
        with self._lock:
            self._check()
            self._expire()
            return self._items.memory[0].data if self._items.length else None

    def flush(self) -> int:
        """Remove every item, and return their number. Reserved ones stay."""
        with self._lock:
            self._check()
            count = 0
            while self._items.length:
                self._remove_head()
                count += 1
            self._replace_files()
            return count

    def replay(self) -> Replay:
        """Return what the files say, read anew."""
        with self._lock:
            self._check()
            files = queue_files(self._read(lambda: self._disk.names(self.directory)), self.queue)
            journals = self._read(lambda: [self._disk.read(self.directory / now) for _, now in files.order])
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
                if not self._items.length and self._files.size:
                    self._replace_files(self._replacement.rewrite)
                self._sync()
            finally:
                self._end()

    # -- state --------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Settle the files, replay them, and give reserved items back."""
        files, journals = self._files.settle()
        found = replay_journals(files, journals, self._clock())
        for broken in found.broken:
            content = journals[self._files.number_of(broken.file)]
            self._files.cut_broken(broken, content, cut_damage=self._options.cut_damage)
        self._files.open_live()
        for xid in sorted(found.state.opened, reverse=True):
            self._write(r.encode_xid(r.UNREMOVE, xid))
        self._items.load(found)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.directory / self.queue}: the journal is closed")

    def _has_room(self, data: bytes) -> bool:
        options = self._options
        if len(data) > min(MAX_DATA, options.max_item_size or MAX_DATA):
            return False
        while (options.max_items is not None and self._items.length >= options.max_items) or (
            options.max_size is not None and self._items.size >= options.max_size
        ):
            if not options.discard_old_when_full or not self._items.length:
                return False
            self._remove_head()
        return True

    def _remove_head(self) -> QueueItem:
        self._read(self._items.refill)
        self._write(bytes((r.REMOVE,)))
        return self._items.pop()

    def _expire(self) -> None:
        """Remove expired items from the head."""
        while self._items.length:
            self._read(self._items.refill)
            head, now = self._items.memory[0], self._clock()
            expiry = self._options.capped(head.expiry_ms, head.add_ms)
            if not expiry or expiry >= now:
                return
            item = self._remove_head()
            if self._on_expired is not None:
                self._on_expired(item.data)

    def _give_back_late(self) -> None:
        """Give the oldest reserved item back if it is late. The next removal takes it."""
        limit = self._options.open_transaction_timeout
        if limit is None or not self._items.reserved_ms:
            return
        xid, since = min(self._items.reserved_ms.items(), key=lambda one: one[1])
        if self._clock() - since >= limit * 1000:
            self.unremove(xid)

    # -- files --------------------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except OSError as error:
            raise StoreIOError(f"{self.directory / self.queue}: {error.strerror or error}. Nothing was changed.") from error

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
        self._items.close()
        self._files.close()

    def _replace_files(self, replace: Callable[[], None] | None = None) -> None:
        """Rewrite, rotate or pack the files if a threshold is reached. Called before an item is added and after one is
        removed."""
        try:
            (replace or self._replacement.run)()
        except OSError as error:
            self._end()
            raise StoreIOError(
                f"{self.directory / self.queue}: {error.strerror or error}, while files were replaced. The journal is closed, "
                "and nothing is lost: open it again."
            ) from error
