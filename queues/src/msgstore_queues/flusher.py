"""Flusher: one flush for all queues of a vhost, on demand and by the clock, and the thread for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Condition, Lock, Thread, get_ident

from msgstore.contract import MsgStoreError, StoreClosed, StoreIOError
from msgstore.forking import renew_locks
from msgstore_queues.errors import QueueFailed, VHostDown
from msgstore_queues.expiry import do_what_is_due
from msgstore_queues.options import VHostOptions
from msgstore_queues.queue import Queue
from msgstore_queues.queue_state import OnConfirm
from msgstore_queues.stores import Bodies

log = logging.getLogger("msgstore.queues")

_RETRY_SECONDS = 1.0
"""Pause after a flush that failed."""


class Flusher:
    """Order on disk: bodies of large messages, then positions and small messages, then the confirms. Any thread may call it."""

    def __init__(
        self,
        directory: Path,
        options: VHostOptions,
        stores: Callable[[], Sequence[Bodies]],
        queues: Callable[[], Sequence[Queue]],
        guard: AbstractContextManager[None, None],
        check_open: Callable[[], None],
        note_failure: Callable[[MsgStoreError], object],
    ) -> None:
        """``note_failure(error)`` is called with the error of each flush that fails."""
        self.lock = Lock()
        """Held by a flush. Taken before all other locks."""
        self._directory = directory
        self._interval = options.sync_interval
        self.flush_above = options.max_unconfirmed if options.sync_interval else -1
        """Bytes that a flush would write, above which each change is flushed at once; -1: always."""
        self._is_synced = options.durability != "os"
        self._stores = stores
        self._queues = queues
        self._guard = guard
        self._check_open = check_open
        self._note_failure = note_failure
        self._thread_of_flush = 0
        """The thread that flushes: callbacks run on it."""
        self.background_only: set[int] = set()
        """Threads that must not wait for the disk, such as that of an event loop. The thread of this object flushes
        for them."""
        self._clock_lock = Lock()
        """Guards the times below. Nothing else is locked while it is held."""
        self._clock = Condition(self._clock_lock)
        """One thread waits. It is woken by ``notify_all``: after an interrupted ``notify`` the next one may wake nobody."""
        self._flush_at: float | None = None
        """Time of the next flush by the monotonic clock; None if nothing has changed."""
        self._due_at: float | None = None
        """Time at which the next delayed message may be due, in seconds since the epoch."""
        self._is_stopping = False
        self._thread = Thread(target=self._run, name=f"msgstore-queues {directory.name}", daemon=True)

    # -- flushes ----------------------------------------------------------------------------------------------------------

    @property
    def in_callback(self) -> bool:
        """True if the calling thread runs a callback of a confirm."""
        return self._thread_of_flush == get_ident()

    def refuse_in_callback(self, call: str) -> None:
        """Raise RuntimeError in a callback: a flush, which has called it, cannot wait for another one."""
        if self.in_callback:
            raise RuntimeError(
                f"{self._directory}: {call}() was called in a callback. Call it after the callback has returned."
            )

    def flush(self) -> None:
        """Return when all that was published and acknowledged before the call survives what ``durability`` says, and the
        callbacks of the messages have returned. Raises StoreIOError: the next flush tries again; StoreClosed; RuntimeError in
        a callback; QueueFailed, StoreFailed: what was published is lost in part, as ``on_lost`` says."""
        self.refuse_in_callback("flush")
        with self._guard, self.lock:
            self._check_open()
            self.flush_locked()

    def flush_locked(self) -> None:
        """As ``flush``. Caller holds ``lock``."""
        try:
            self._thread_of_flush = get_ident()
            self._flush()
        except MsgStoreError as error:
            self._note_failure(error)
            raise
        finally:
            self._thread_of_flush = 0

    def end_callbacks(self) -> None:
        """Note that the flush of this thread has ended. For an interrupt that came where ``flush_locked`` does so."""
        if self.in_callback:
            self._thread_of_flush = 0

    def _flush(self) -> None:
        self._flush_at = None
        changed, failures = [queue for queue in self._queues() if queue.is_changed], list[QueueFailed]()
        if not changed:
            return
        try:
            self._of_each(changed, failures, Queue.begin_flush, has_begun=False)
            self._write(changed, failures)
            for queue in changed:
                self._confirm(queue, failures)
        except BaseException as error:
            for queue in changed:
                queue.is_changed, queue.is_flushing = True, False
            self._flush_later(_RETRY_SECONDS)
            if isinstance(error, OSError):
                raise StoreIOError(f"{self._directory}: cannot be written: {error}. The next flush tries again.") from error
            raise
        if failures:
            raise failures[0]

    def _write(self, queues: Sequence[Queue], failures: list[QueueFailed]) -> None:
        for store in self._stores():
            store.flush()
        self._of_each(queues, failures, lambda queue: queue.backing.write())
        for queue in queues if self._is_synced else ():
            try:
                with queue.guard:
                    with queue.lock:
                        sync = queue.backing.sync() if queue.is_flushing else None
                    if sync is not None:
                        sync()
            except QueueFailed as error:
                failures.append(error)

    def _of_each(
        self,
        queues: Sequence[Queue],
        failures: list[QueueFailed],
        call: Callable[[Queue], object],
        *,
        has_begun: bool = True,
    ) -> None:
        """Call ``call(queue)`` for each queue, but those that have failed in this flush. What it raises is a failure of that
        queue alone."""
        for queue in queues:
            try:
                with queue.guard, queue.lock:
                    if queue.is_flushing == has_begun:
                        call(queue)
            except QueueFailed as error:
                failures.append(error)

    def _confirm(self, queue: Queue, failures: list[QueueFailed]) -> None:
        """A flush has succeeded: call the callbacks of its messages."""
        confirmed = list[OnConfirm]()
        try:
            with queue.guard, queue.lock:
                if queue.is_flushing:
                    queue.backing.end_flush()  # first: if it fails, the confirms are lost, and their owners are told so
                    confirmed += queue.take_confirmed()
        except QueueFailed as error:
            failures.append(error)
        for call in confirmed:
            try:
                call()
            except Exception:
                log.exception("%s: a callback of a confirm failed", queue)

    # -- by the clock -----------------------------------------------------------------------------------------------------

    def note_change(self, unwritten: int) -> None:
        """Called after each change, without locks. Flushes if a flush is due, but on the threads of ``background_only``."""
        is_due = self.is_flush_due(unwritten)
        if is_due and not self.in_callback and get_ident() not in self.background_only:
            self.flush()
        elif is_due or self._flush_at is None:
            self._flush_later(0 if is_due else self._interval)

    def _flush_later(self, seconds: float) -> None:
        with self._clock_lock:
            self._flush_at = time.monotonic() + seconds
            self._clock.notify_all()

    def is_flush_due(self, unwritten: int) -> bool:
        """Return True if a change is flushed at once, after which a flush would write ``unwritten`` bytes."""
        return unwritten > self.flush_above

    def wake_at(self, due: float) -> None:
        """Look for delayed messages at a time, in seconds since the epoch."""
        if self._due_at is None or due < self._due_at:
            with self._clock_lock:
                self._due_at = due
                self._clock.notify_all()

    def release_due(self) -> None:
        """Publish the delayed messages that are due, and delete queues that have expired. The thread does it when their time
        comes."""
        if self._due_at is not None and self._due_at <= time.time():
            self._due_at = None
            for queue in self._queues():
                try:
                    times = do_what_is_due(queue)
                except MsgStoreError as error:  # the other queues go on
                    log.warning("%s", error)
                    times = [time.time() + _RETRY_SECONDS]
                except BaseException:
                    self.wake_at(time.time() + _RETRY_SECONDS)  # the queues behind this one have not been looked at
                    raise
                for due in times:
                    self.wake_at(due)

    def start(self) -> None:
        """Start the thread. Called once."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        with self._clock_lock:
            self._is_stopping = True
            self._clock.notify_all()

    def disown(self) -> None:
        """In a child process, right after a fork, which has no thread of this object."""
        self._thread_of_flush = 0
        renew_locks(self.lock, self._clock_lock)

    def join(self) -> None:
        """Wait until the thread has ended, after ``stop``. Caller holds no lock."""
        if self._thread.ident not in (None, get_ident()):
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                try:
                    self.release_due()
                finally:
                    self.flush()
            except VHostDown:  # it may have been started meanwhile, and what was changed since waits for this thread
                self._flush_later(self._interval or _RETRY_SECONDS)
            except StoreClosed:
                return
            except Exception as error:
                log.warning("%s", error)
                self._flush_later(_RETRY_SECONDS)

    def _wait(self) -> bool:
        """Wait until there is something to do. Return False when the vhost ends."""
        with self._clock_lock:
            while not self._is_stopping:
                left = None if self._flush_at is None else self._flush_at - time.monotonic()
                if self._due_at is not None:
                    until_due = self._due_at - time.time()
                    left = until_due if left is None else min(left, until_due)
                if left is not None and left <= 0:
                    return True
                self._clock.wait(left)
        return False
