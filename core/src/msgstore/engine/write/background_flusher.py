"""Background flusher: a thread that flushes ``sync_interval`` after the first change, so that idle clients are confirmed."""

from __future__ import annotations

import logging
import threading
import time
from queue import Empty, SimpleQueue

from msgstore.contract import MsgStoreError, StoreClosed
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.write.flusher import Flusher

log = logging.getLogger("msgstore.flusher")

_IDLE_SECONDS = 1.0
"""Time after which an idle thread looks for work by itself: a ``wake`` that finds the thread not idle
yet is dropped, because it takes no lock."""


class BackgroundFlusher:
    """Runs from construction to ``stop``. With an interval of 0 each call flushes; then the thread only syncs, for
    ``fsync_every``."""

    def __init__(self, flusher: Flusher, accounting: LiveAccounting, sync_interval: float, fsync_every: float | None) -> None:
        """Seconds, as in the configuration. ``fsync_every``: time between syncs; None if flushes sync themselves, or never."""
        self._flusher = flusher
        self._accounting = accounting
        self._path = accounting.segments.directory
        self._fsync_every = fsync_every
        self._interval = min(
            sync_interval or threading.TIMEOUT_MAX, fsync_every or threading.TIMEOUT_MAX, threading.TIMEOUT_MAX
        )
        self._last_sync = time.monotonic()
        self._signals: SimpleQueue[bool] = SimpleQueue()
        """True: flush now; False: flush after the interval. A queue in C: no exception from outside leaves it locked."""
        self._is_idle = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"msgstore-flusher {self._path}", daemon=True)
        if sync_interval or fsync_every:
            self._thread.start()

    def wake(self) -> None:
        """Flush within the interval. Called when the buffer was empty, and by each slow write, so it must be fast."""
        if self._is_idle:
            self._signals.put(False)

    def request(self) -> None:
        """Flush now."""
        if self._signals.qsize() < 2:
            self._signals.put(True)

    def stop(self, *, wait: bool) -> None:
        """End the thread. Caller that waits for it holds no lock."""
        self._is_stopping = True
        self._signals.put(True)
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._is_idle = True
            is_urgent = not self._flusher.has_work and self._wait(_IDLE_SECONDS)
            self._is_idle = False
            if self._is_stopping or not self._flusher.has_work:
                continue
            if not is_urgent:
                self._wait_until_urgent(self._interval)
            try:
                if not self._is_stopping:
                    self._flush()
            except StoreClosed:
                return
            except MsgStoreError as error:  # what failed stays buffered; the next write or flush meets the error as well
                log.warning("a flush in the background failed and is tried again: %s", error)
                self._wait_until_urgent(self._interval)
            except BaseException:  # third-party code may raise anything; no other thread flushes for idle clients
                log.exception("%s: a flush in the background failed and is tried again", self._path)
                self._wait_until_urgent(self._interval)

    def _wait(self, seconds: float) -> bool:
        """Wait for a signal. Return True if it says "now"."""
        try:
            return self._signals.get(timeout=max(seconds, 0))
        except Empty:
            return False

    def _wait_until_urgent(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._wait(until - time.monotonic()) and time.monotonic() < until:
            pass

    def _flush(self) -> None:
        self._flusher.flush_or_defer()
        if self._fsync_every is not None and time.monotonic() - self._last_sync >= self._fsync_every:
            with self._accounting.flush_lock:
                self._flusher.commit_and_reclaim()
            self._last_sync = time.monotonic()
