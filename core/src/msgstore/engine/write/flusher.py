"""Flusher: appends buffered messages to segments, commits the index, and confirms the messages to their clients.

Records are written before the index entries that point to them; the index is committed before old data is deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from threading import get_ident

from msgstore.config import StoreConfig
from msgstore.engine.client import Client
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.engine.write.batch_writer import BatchWriter
from msgstore.engine.write.write_buffer import WriteBuffer

_RETRY_SECONDS = 5.0
"""Time that a thread waits for the run of another thread before it asks for one of its own."""


class _Run:
    """One execution of the work."""

    def __init__(self) -> None:
        self.done = threading.Lock()
        """Held until the run is over. Waiters acquire it and release it at once."""
        self.done.acquire()
        self.succeeded = False


class GroupCommit:
    """Runs one piece of work for all threads that ask for it. Thread-safe.

    Only one waiting thread queues for ``lock``: its run serves all threads that wait with it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        """``lock`` is held while the work runs."""
        self._lock = lock
        self._mutex = threading.Lock()
        self._next: _Run | None = None
        """Run that has not started yet, or None."""

    def run(self, work: Callable[[], object]) -> None:
        """Return after a run of ``work``, on any thread, that began after this call. Caller holds no lock.

        Raises what ``work`` raises in the calling thread; threads that waited for a failed run try it themselves.
        """
        while True:
            mine: _Run | None = None
            try:
                with self._mutex:
                    run = self._next
                    if run is None:
                        run = mine = self._next = _Run()
                if mine is not None:
                    with self._lock:
                        with self._mutex:
                            self._next = None
                        work()
                    mine.succeeded = True
                    return
            finally:
                if mine is not None:
                    with self._mutex:
                        if self._next is mine:  # it failed, or was interrupted, before it started
                            self._next = None
                    mine.done.release()
            if run.done.acquire(timeout=_RETRY_SECONDS):
                run.done.release()
            else:  # an exception from outside may have stopped the thread that was to run it
                with self._mutex:
                    if self._next is run:
                        self._next = None
            if run.succeeded:
                return


log = logging.getLogger("msgstore.writer")

FLUSH_CHUNK = 2**21
"""Bytes that a flush appends at once."""
DRAIN_STEP = 2**18
"""Bytes that a writing thread appends at once: the slowest ``write`` takes this long."""
MAX_BATCH = 4096
"""Messages of one batch."""


class Flusher:
    """One instance per open store."""

    def __init__(
        self, config: StoreConfig, buffer: WriteBuffer, batches: BatchWriter, accounting: LiveAccounting, lifecycle: Lifecycle
    ) -> None:
        self._path = config.path
        self._max_unconfirmed = config.max_unconfirmed
        self._buffer = buffer
        self._batches = batches
        self._accounting = accounting
        self._segments = accounting.segments
        self._lifecycle = lifecycle
        self._group = GroupCommit(accounting.flush_lock)
        self.clients: list[Client] = []
        self.callback_failures = 0
        self.uncommitted_bytes = 0
        """Charged bytes of changes that no commit covers. Guarded by the state lock."""
        self._bytes_to_commit = 0
        """Part of ``uncommitted_bytes`` that is appended, and that the next commit covers. Guarded by the flush lock."""
        self._flush_again = False
        self.set_failing: Callable[[bool], object] = lambda _: None
        """Set by the writer: called with the outcome of each flush."""
        self._delivering_thread: int | None = None
        """Thread that holds the flush lock and calls ``on_confirm`` now."""
        self.unconfirmed: dict[int, list[bytes]] = {}
        """Ids to confirm by client number. Does not refer to the clients, so that a store that nobody closes is collected."""

    def flush(self) -> None:
        """Same as ``Store.flush``. Takes the flush lock; concurrent callers share one flush."""
        self._lifecycle.refuse_in_callback("flush")
        with self._lifecycle.guard():
            self._lifecycle.check_writable()
            self._group.run(self.flush_locked)

    def flush_or_defer(self) -> None:
        """Flush now, or, in a confirm callback, once the callbacks of the running flush have returned."""
        if self._delivering_thread == get_ident():
            self._flush_again = True
        else:
            self._lifecycle.check_writable()
            self._group.run(self.flush_locked)

    def flush_locked(self) -> None:
        """Same as ``flush``. Caller holds the flush lock."""
        self._lifecycle.check_writable()
        self._flush_again = True
        try:
            while self._flush_again:
                self._flush_again = False
                self.deliver_confirms(self.write_out())
        except Exception:
            self.set_failing(self._lifecycle.refusal is None)
            raise
        self.set_failing(False)

    def write_out(self, *, last: bool = False) -> Sequence[tuple[Client, int]]:
        """Append everything and commit. Return the clients to confirm, each with the number of its ids. Caller holds the flush
        lock. ``last``: the store is about to close, so everything is synced and checked."""
        accounting, buffer = self._accounting, self._buffer
        with accounting.state_lock:
            to_confirm = [(client, len(client.unconfirmed)) for client in self.clients if client.unconfirmed]
            ids = buffer.ids()
            uncommitted = self.uncommitted_bytes  # everything since the last commit, which this flush writes
        if last or accounting.is_changed or ids or to_confirm or self._segments.hints.unwritten:
            self._segments.must_check_files = True
        while ids:
            at, again = 0, list[bytes]()
            while at < len(ids):
                result = self._batches.write(ids[at : at + MAX_BATCH], FLUSH_CHUNK)
                at += result.looked_at
                again += result.rewrite
            ids = again
        with accounting.state_lock:
            buffer.estimated_bytes = buffer.charged_bytes() if buffer.pending else 0
        if self._segments.must_check_files:  # records in a file that was removed or replaced are not safe
            self._segments.check_files()
        self._bytes_to_commit = uncommitted
        self.commit_and_reclaim(commit=last or uncommitted > self._max_unconfirmed or self._segments.sync != "later")
        return to_confirm

    def drain(self) -> None:
        """Append the oldest messages, about one step, unless another thread holds the flush lock."""
        if self._delivering_thread == get_ident():
            self._drain_locked()
        elif not self._accounting.flush_lock.locked():
            with self._accounting.flush_lock:
                self._drain_locked()

    def _drain_locked(self) -> None:
        self._segments.check_files()
        count = DRAIN_STEP * (len(self._buffer.pending) + 1) // max(self._buffer.estimated_bytes, 1) + 1
        self._batches.write(self._buffer.oldest(count), DRAIN_STEP)

    def commit_and_reclaim(self, *, commit: bool = True, all_hints: bool = False) -> None:
        """Write hint files of sealed segments, commit the index, and delete empty segments. Raises StoreIOError.

        Caller holds the flush lock. Without ``commit`` only hint files are written: the index must not get ahead of synced
        records, and the periodic sync commits.
        """
        if self._segments.hints.unwritten:
            for segment in self._segments.hints.save(everything=all_hints):
                self._accounting.mark_dirty(segment)
        if commit:
            if self._segments.sync == "later":
                self._segments.sync_written()
            self._accounting.commit()
            with self._accounting.state_lock:
                self.uncommitted_bytes -= self._bytes_to_commit
                self._bytes_to_commit = 0
            self._buffer.before_removals.clear()
            self._accounting.delete_empty()

    def deliver_confirms(self, to_confirm: Sequence[tuple[Client, int]]) -> None:
        """Call ``on_confirm`` of each client. Caller holds the flush lock, so one callback runs at a time, in order."""
        for client, count in to_confirm:
            ids = client.take_unconfirmed(count)
            self._delivering_thread = get_ident()
            try:
                with self._lifecycle.callbacks.running():
                    client.confirm(ids)
            except BaseException as error:
                self.callback_failures += 1
                if not isinstance(error, Exception):  # sys.exit() or Ctrl-C: the thread that flushes decides
                    raise
                log.exception("%s: on_confirm of client %r failed for %d ids", self._path, client.name, len(ids))
            finally:
                self._delivering_thread = None

    @property
    def has_work(self) -> bool:
        """True if a flush would do something. A hint unless the caller holds the state lock."""
        if self._buffer.pending or self._buffer.shared or self._segments.hints.unwritten:
            return True
        # A writer inserts its entry before its id is in the list of ids to confirm: a flush may have come in between.
        return self._accounting.is_changed or self._segments.unsynced or any(client.unconfirmed for client in self.clients)
