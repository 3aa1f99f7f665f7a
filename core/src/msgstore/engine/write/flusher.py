"""Flusher: appends buffered messages to segments, commits the index, and confirms the messages to their clients.

Records are written before the index entries that point to them; the index is committed before old data is deleted.
``BackgroundFlusher`` is the thread that flushes ``sync_interval`` after the first change, so that idle clients are confirmed.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import get_ident

from msgstore.config import StoreConfig
from msgstore.contract import MsgStoreError, StoreClosed, StoreIOError
from msgstore.engine.client import Client
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.engine.write.batch_writer import BatchWriter
from msgstore.engine.write.write_buffer import WriteBuffer
from msgstore.plugins.loader import comes_from_outside

log = logging.getLogger("msgstore.writer")
_background_log = logging.getLogger("msgstore.flusher")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FLUSH_CHUNK = 2**21
"""Charged bytes after which a flush ends a batch."""
DRAIN_STEP = 2**18
"""Charged bytes that a drain appends: few, so that a ``write`` that drains takes no long time."""
IDS_OFFERED = 4096
"""Ids that a flush offers for one batch: more than FLUSH_CHUNK has room for."""
_RETRY_SECONDS = 5.0
"""Time that a thread waits for the run of another thread before it asks for one of its own."""


class GroupCommit:
    """Runs one piece of work for all threads that ask for it. Thread-safe.

    The first caller waits for ``lock`` and does the work. Threads that call before the work begins wait for this run, not for
    the lock: that would wake one thread after another, and some only after later runs that they do not need. After
    _RETRY_SECONDS a thread asks for a run of its own.
    """

    def __init__(self, lock: threading.Lock) -> None:
        """``lock`` is held while the work runs."""
        self._lock = lock
        self._mutex = threading.Lock()
        self.waiting: list[SimpleQueue[bool]] | None = None
        """A queue of each thread that waits for the run that has not begun yet; None if there is none."""

    def run(self, work: Callable[[], object]) -> None:
        """Return after a run of ``work``, on any thread, that began after this call. Caller holds no lock.

        Raises what ``work`` raises in the thread that runs it; the threads that waited for it then try it themselves.
        """
        while True:
            mine, done = list[SimpleQueue[bool]](), SimpleQueue[bool]()
            is_successful = False
            try:
                with self._mutex:
                    group = self.waiting = mine if self.waiting is None else self.waiting
                    if group is not mine:
                        group.append(done)
                if group is mine:
                    with self._lock:
                        self._stop_joining(mine)
                        work()
                    is_successful = True
                    return
            finally:
                self._stop_joining(mine)
                for waiting in mine:
                    waiting.put(is_successful)
            try:
                if done.get(timeout=_RETRY_SECONDS):
                    return
            except Empty:  # an exception from outside may have stopped the thread that runs it
                self._stop_joining(group)

    def _stop_joining(self, group: list[SimpleQueue[bool]]) -> None:
        """Let no further thread join this group: the next caller begins another."""
        with self._mutex:
            if self.waiting is group:
                self.waiting = None


class Flusher:
    """One instance per open store."""

    def __init__(
        self, config: StoreConfig, buffer: WriteBuffer, batches: BatchWriter, accounting: LiveAccounting, lifecycle: Lifecycle
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._batches = batches
        self._accounting = accounting
        self._segments = accounting.segments
        self._lifecycle = lifecycle
        self._group = GroupCommit(accounting.flush_lock)
        self.clients: list[Client] = []
        self.callback_failures = 0
        self.uncommitted_bytes = 0
        """Charged bytes of changes after the last flush that was committed. Guarded by the state lock."""
        self._bytes_to_commit = 0
        """Part of ``uncommitted_bytes`` that the last flush has appended: the next commit subtracts it. Guarded by the flush
        lock."""
        self._flush_again = False
        """Set by a callback of the running flush that asks for a flush."""
        self.set_failing: Callable[[bool], object] = lambda _: None
        """Set by the writer: called with the outcome of each flush."""
        self._delivering_thread: int | None = None
        """Thread that holds the flush lock and calls ``on_confirm`` now."""
        self.unconfirmed: dict[int, list[bytes]] = {}
        """Ids to confirm by client number. Does not refer to the clients, so that a store that nobody closes is collected."""

    def adopt_thread(self) -> None:
        """Note that the calling thread is the background flusher's."""
        self._lifecycle.own_threads.add(get_ident())

    def flush(self) -> None:
        """Same as ``Store.flush``. Takes the flush lock."""
        self._lifecycle.refuse_in_callback("flush")
        with self._lifecycle.guard():
            self._lifecycle.check_writable()
            self._group.run(self.flush_locked)

    def flush_or_defer(self) -> None:
        """Flush now, or, in a confirm callback, once the callbacks of the running flush have returned."""
        self._lifecycle.check_writable()
        if self._delivering_thread == get_ident():
            self._flush_again = True
        else:
            self._group.run(self.flush_locked)

    def flush_locked(self) -> None:
        """Same as ``flush``. Caller holds the flush lock."""
        self._lifecycle.check_writable()
        self._flush_again = True
        try:
            while self._flush_again:
                self._flush_again = False
                self.deliver_confirms(self.write_out())
        except BaseException as error:
            self._lifecycle.refuse_after(error)
            self.set_failing(self._lifecycle.refusal is None)
            raise
        self.set_failing(False)

    def write_out(self, *, last: bool = False) -> Sequence[tuple[Client, int]]:
        """Append everything and, unless ``fsync_every`` postpones it, commit. Return the clients to confirm, each with the
        number of its ids. Caller holds the flush lock. ``last``: the store is about to close, so what ``fsync_every`` has
        postponed is done, and the files are checked."""
        accounting, buffer = self._accounting, self._buffer
        with accounting.state_lock:
            to_confirm = [(client, len(client.unconfirmed)) for client in self.clients if client.unconfirmed]
            ids = buffer.ids()
            uncommitted = self.uncommitted_bytes  # a commit covers these when all the ids are appended
        if last or accounting.is_changed or ids or to_confirm or self._segments.hints.unwritten:
            self._segments.must_check_files = True
        for is_repeated in (False, True):
            left: Sequence[bytes] = ids  # those that the index has by now are passed over
            try:
                while left:
                    at, again = 0, list[bytes]()
                    while at < len(left):
                        processed, rewrite = self._batches.write(left[at : at + IDS_OFFERED], FLUSH_CHUNK)
                        at += processed
                        again += rewrite
                    left = again
                break
            except StoreIOError as error:
                is_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
                if is_repeated or not is_full or not accounting.has_empty:
                    raise
                log.warning("%s: segments without messages are deleted, and the append is tried again", error.__cause__)
                self._segments.check_files()
                uncommitted -= self._bytes_to_commit  # the commit takes these off the count
                self.commit_and_reclaim()  # removals may free what a full disk has no room for
        with accounting.state_lock:
            if buffer.pending:
                buffer.count()
            else:
                buffer.estimated_bytes = 0
        if self._segments.must_check_files:  # records in a file that was removed or replaced are not safe
            self._segments.check_files()
        self._bytes_to_commit = uncommitted
        is_due = last or uncommitted > self._config.max_unconfirmed or accounting.is_revived
        if is_due or self._segments.when_synced != "later":
            self.commit_and_reclaim()
        else:  # the index must not get ahead of synced records: ``sync_and_commit`` follows
            self._write_hints()
        return to_confirm

    def drain(self) -> None:
        """Append the oldest messages, about one step. Does nothing while another thread holds the flush lock, and rarely waits
        for one that takes it at the same time."""
        if self._delivering_thread == get_ident():
            self._drain_locked()
        elif not self._accounting.flush_lock.locked():
            with self._accounting.flush_lock:
                self._drain_locked()

    def _drain_locked(self) -> None:
        self._segments.check_files()
        messages = DRAIN_STEP * (len(self._buffer.pending) + 1) // max(self._buffer.estimated_bytes, 1) + 1
        with self._lifecycle.change:
            self._batches.write(self._buffer.oldest(messages), DRAIN_STEP)

    def commit_and_reclaim(self, *, all_hints: bool = False) -> None:
        """Write hint files of sealed segments, sync what ``fsync_every`` has postponed, commit the index, and delete empty
        segments. Raises StoreIOError. Caller holds the flush lock."""
        self._write_hints(everything=all_hints)
        self._segments.sync_written()
        self._accounting.commit()
        with self._accounting.state_lock:
            self.uncommitted_bytes -= self._bytes_to_commit
            self._bytes_to_commit = 0
        self._buffer.before_removals.clear()
        self._accounting.delete_empty()

    def _write_hints(self, *, everything: bool = False) -> None:
        for segment in self._segments.hints.save(everything=everything):
            self._accounting.mark_dirty(segment)

    def sync_and_commit(self) -> None:
        """Sync and commit what ``fsync_every`` has postponed. Takes the flush lock. Raises StoreIOError, and StoreClosed
        once the store is closed: another process may be the writer then."""
        with self._accounting.flush_lock:
            self._lifecycle.check_writable()
            self.commit_and_reclaim()

    def deliver_confirms(self, to_confirm: Sequence[tuple[Client, int]]) -> None:
        """Call ``on_confirm`` of each client. Caller holds the flush lock, so one callback runs at a time, in order."""
        callbacks = self._lifecycle.callbacks
        was_inside = callbacks.is_inside
        for client, number in to_confirm:
            self._lifecycle.check_not_interrupted()
            if client.on_confirm is None or client.unconfirmed is None:
                continue
            ids = client.unconfirmed[:number]  # other threads may be writing
            del client.unconfirmed[: len(ids)]
            if not ids:  # the client was deleted meanwhile
                continue
            self._delivering_thread = get_ident()
            try:
                callbacks.threads.add(get_ident())
                client.on_confirm(ids)
            except BaseException as error:
                self.callback_failures += 1
                if not isinstance(error, Exception) or comes_from_outside(error):
                    raise  # sys.exit() or Ctrl-C: the thread that flushes decides
                log.exception("%s: on_confirm of client %r failed for %d ids", self._config.path, client.name, len(ids))
            finally:
                self._delivering_thread = None
                if not was_inside:
                    callbacks.threads.discard(get_ident())
        self._lifecycle.check_not_interrupted()

    @property
    def has_work(self) -> bool:
        """True if a flush would do something. A hint unless the caller holds the state lock."""
        if self._buffer.pending or self._buffer.shared or self._segments.hints.unwritten:
            return True
        # A writer inserts its entry before its id is in the list of ids to confirm: a flush may have come in between.
        is_unconfirmed = any(client.unconfirmed for client in self.clients)
        return self._accounting.is_changed or bool(self._segments.unsynced) or is_unconfirmed


_IDLE_SECONDS = 1.0
"""Time after which an idle thread looks for work by itself. A write calls ``wake`` without a lock, and before its message is in
the buffer. If the thread misses that, the flush begins up to this much later."""


class BackgroundFlusher:
    """The store starts the ``thread``; ``stop`` ends it. With ``sync_interval = 0`` each call flushes, so the thread is
    started only for ``fsync_every``."""

    def __init__(self, flusher: Flusher, accounting: LiveAccounting, config: StoreConfig) -> None:
        self._flusher = flusher
        self._accounting = accounting
        self._fsync_every = config.fsync_every
        intervals = [seconds for seconds in (config.sync_interval, config.fsync_every) if seconds]
        self._interval = min([*intervals, threading.TIMEOUT_MAX])
        self._last_sync = time.monotonic()
        self._signals: SimpleQueue[bool] = SimpleQueue()
        """True: flush now; False: flush after the interval. A queue in C: no exception from outside leaves it locked."""
        self._is_idle = False
        self._is_stopping = False
        self.thread = threading.Thread(target=self._run, name=f"msgstore-flusher {config.path}", daemon=True)

    def wake(self) -> None:
        """Flush within the interval. Called by a write into an empty buffer, each slow write, and a removal of what the index
        has, so it must be fast."""
        if self._is_idle:
            self._signals.put(False)

    def request(self) -> None:
        """Flush now."""
        if self._signals.qsize() < 2:
            self._signals.put(True)

    def stop(self) -> None:
        """End the thread, and wait for it. Caller holds no lock."""
        self._is_stopping = True
        self._signals.put(True)
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join()

    def _run(self) -> None:
        self._flusher.adopt_thread()
        while not self._is_stopping:
            self._is_idle = True
            is_urgent = False if self._flusher.has_work else self._wait(_IDLE_SECONDS)
            self._is_idle = False
            if not (is_urgent or self._flusher.has_work):
                continue
            until = time.monotonic() + self._interval
            while not (is_urgent or self._is_stopping or time.monotonic() >= until):
                is_urgent = self._wait(until - time.monotonic())
            try:
                if not self._is_stopping and self._flusher.has_work:
                    self._flush()
            except StoreClosed:
                continue  # ``stop`` follows, unless the store cannot be closed, and goes on
            except BaseException as error:  # third-party code may raise anything; no other thread flushes for idle clients
                is_ours = isinstance(error, MsgStoreError)  # what failed stays buffered; the next write or flush raises it, too
                what = "%s: a flush in the background failed and is tried again: %s"
                _background_log.warning(what, self._accounting.segments.directory, error, exc_info=not is_ours)

    def _wait(self, seconds: float) -> bool:
        """Wait for a signal. Return True if it says "now"."""
        try:
            return self._signals.get(timeout=max(seconds, 0))
        except Empty:
            return False

    def _flush(self) -> None:
        try:
            self._flusher.flush_or_defer()
        finally:  # what was confirmed before is synced, also if the disk is full now
            next_pass = time.monotonic() + self._interval
            # Sync now if more than ``fsync_every`` would lie between the last sync and the next pass, as after every pause.
            if self._fsync_every is not None and next_pass > self._last_sync + self._fsync_every:
                self._flusher.sync_and_commit()
                self._last_sync = time.monotonic()
