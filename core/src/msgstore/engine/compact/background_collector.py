"""The collector: the thread that asks the GC policy what is worth collecting, does it, and holds writers up if it falls behind.

It looks every ``gc_interval``, and at once when a segment is full or as much as a segment has become garbage. What it could not
do (a disk that was full, a collection that gave way) is garbage still, and is found again at its next look: nothing is put on a
list that could be forgotten.
"""

from __future__ import annotations

import logging
import threading

from msgstore.contract import MsgStoreError, StoreClosed
from msgstore.engine.compact.garbage_collector import GarbageCollector
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.flag import Flag

log = logging.getLogger("msgstore.collection")

SPARE = 2
"""Segments of garbage, beside as much as is alive, from which on writers wait for the collector."""
_PATIENCE = 1.0
"""Seconds after which a writer that waits looks whether the collector is still there: it ends when the store is closed."""
_BREATH = 0.02
"""Seconds between two looks at least, unless writers wait."""


class BackgroundCollector:
    """Runs from construction to ``stop``; with an interval of 0 it does nothing, and nobody waits for it."""

    def __init__(self, collection: GarbageCollector, ledger: LiveAccounting, interval: float, size_limit: int) -> None:
        self._collection = collection
        self._ledger = ledger
        self._interval = min(interval, threading.TIMEOUT_MAX)
        self._size_limit = size_limit
        self._stopping = Flag()
        self._idle = Flag(True)
        """Set while writers need not wait."""
        self._begun = 0
        """Segments since the last ``look``."""
        path = ledger.segments.directory
        self._thread = threading.Thread(target=self._run, name=f"msgstore-collector {path}", daemon=True)
        if interval:
            ledger.collector = self
            self._thread.start()

    @property
    def behind(self) -> bool:
        """Whether writers are to wait. Without a lock."""
        return not self._idle.is_set()

    def look(self) -> None:
        """Somebody has begun a segment, and has ``flushing``: if there is too much garbage, writers wait from now on. All
        segments are looked at, so not each time if there are many."""
        self._begun += 1
        if self._begun >= len(self._ledger.segments.by_number) // 32:
            self._begun = 0
            if self._overfull() is not None:
                self._idle.clear()
                self._ledger.worth_a_look.set()

    def catch_up(self) -> None:
        """Wait until there is room again, or nothing more to collect. Never with ``flushing``. Who is collecting does not
        wait: a progress callback may write."""
        if not self._collection.mine:
            while not self._idle.wait(_PATIENCE) and self._thread.is_alive():
                pass

    def _run(self) -> None:
        wanted = self._ledger.worth_a_look
        while not self._stopping.is_set():
            wanted.wait(self._interval)
            wanted.clear()
            try:
                while not self._stopping.is_set() and self._collect():
                    pass
            except StoreClosed:
                break
            except MsgStoreError as error:
                log.warning("%s: a collection failed and is tried again: %s", self._ledger.segments.directory, error)
            except Exception:  # whatever it is, writers must not wait for a thread that is no more
                log.exception("%s: a collection failed and is tried again", self._ledger.segments.directory)
            self._idle.set()
            self._stopping.wait(_BREATH)
        self._idle.set()

    def _collect(self) -> bool:
        """One look and what follows from it. Whether another one is worth it at once: writers wait, and this one has freed
        something."""
        size = self._overfull()
        if size is None:
            self._idle.set()
        else:
            self._idle.clear()
        self._collection.collect_what_is_due()
        if size is None:
            return False
        left = self._overfull()
        return left is not None and left < size

    def _overfull(self) -> int | None:
        """Bytes of all segments if they are so many that writers have to wait."""
        with self._ledger.lock:
            sizes, live = self._ledger.totals()
        return sizes if sizes > 2 * live + SPARE * self._size_limit else None

    def stop(self, *, wait: bool) -> None:
        """The thread ends when it has given way. ``wait`` for it only without a lock."""
        self._stopping.set()
        self._ledger.worth_a_look.set()
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
