"""Background collector: a thread that starts collections, and backpressure for writers if it falls behind.

It runs every ``gc_interval``, and soon after a segment is sealed, or records of 4 MiB have died. What a collection could
not do, for example on a full disk, is garbage still, and the next one finds it again.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgstore.contract import MsgStoreError, StoreClosed
from msgstore.engine.compact.garbage_collector import GarbageCollector
from msgstore.engine.state.accounting import LiveAccounting

log = logging.getLogger("msgstore.collection")

SPARE_SEGMENTS = 2
"""Writers wait if all segments together exceed twice the live bytes plus this many segments."""
_POLL_SECONDS = 0.005
_PAUSE_SECONDS = 0.02
"""Shortest time between two collections, unless writers wait."""


class BackgroundCollector:
    """Runs from construction to ``stop``. With an interval of 0 there is no thread, and writers never wait."""

    def __init__(self, collector: GarbageCollector, accounting: LiveAccounting, interval: float, size_limit: int) -> None:
        self._collector = collector
        self._accounting = accounting
        self._path = accounting.segments.directory
        self._interval = min(interval, threading.TIMEOUT_MAX)
        self._size_limit = size_limit
        self._requests: SimpleQueue[None] = SimpleQueue()
        self.is_behind = False
        """True if writers must wait for the collection that runs or comes next. May be read without a lock."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"msgstore-collector {self._path}", daemon=True)
        if interval:
            self._thread.start()

    def request(self) -> None:
        """Start a collection soon."""
        if not self._requests.qsize():
            self._requests.put(None)

    def check_backlog(self) -> None:
        """Let writers wait if there is too much garbage. Called for each new segment."""
        if self._thread.is_alive() and self._excess() is not None:
            self.is_behind = True
            self.request()

    def wait_for_backlog(self) -> None:
        """Block until garbage is below the limit or none can be collected. Caller does not hold the flush lock."""
        while self.is_behind and self._thread.is_alive():
            time.sleep(_POLL_SECONDS)

    def stop(self, *, wait: bool) -> None:
        """End the thread after its current action. Caller that waits for it holds no lock."""
        self._is_stopping = self._collector.is_stopping = True
        self._requests.put(None)
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            with suppress(Empty):
                self._requests.get(timeout=self._interval)
            try:
                while not self._is_stopping and self._collect():
                    pass
            except StoreClosed:
                break
            except MsgStoreError as error:
                log.warning("%s: a collection failed and is tried again: %s", self._path, error)
            except Exception:  # writers must not wait for a thread that has ended
                log.exception("%s: a collection failed and is tried again", self._path)
            self.is_behind = False
            if not self._is_stopping:
                time.sleep(_PAUSE_SECONDS)
        self.is_behind = False

    def _collect(self) -> bool:
        """Run one collection. Return True if writers must wait for the next one, which may free something."""
        before = self._excess()
        self.is_behind = before is not None
        self._collector.collect()
        after = self._excess()
        return after is not None and (before is None or after < before)

    def _excess(self) -> int | None:
        """Return the bytes of all segments if writers have to wait, else None."""
        with self._accounting.state_lock:
            size, live = self._accounting.total_bytes()
        return size if size > 2 * live + SPARE_SEGMENTS * self._size_limit else None
