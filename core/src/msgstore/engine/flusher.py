"""The thread that flushes a store ``sync_interval`` after its first change, so that an idle writer is confirmed too."""

from __future__ import annotations

import logging
import threading

from msgstore.contract import StoreClosed
from msgstore.engine.writer import Writer

log = logging.getLogger("msgstore.flusher")


class Flusher:
    """Started by the first change, ended by ``stop``."""

    def __init__(self, writer: Writer, interval: float) -> None:
        self._writer = writer
        self._interval = min(interval, threading.TIMEOUT_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"msgstore-flusher {writer.config.path}", daemon=True)
        if interval:  # without an interval each write flushes itself
            self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._writer.changed.wait()
            if self._stopping.wait(self._interval):
                return
            try:
                self._writer.flush()
            except StoreClosed:
                return
            except Exception as error:  # what failed stays pending; the next write or flush meets the error as well
                log.warning("a flush in the background failed and is tried again: %s", error)

    def stop(self, *, wait: bool) -> None:
        """The thread ends at once, or when it gets the lock that it is waiting for. ``wait`` for it only without a lock."""
        self._stopping.set()
        self._writer.changed.set()
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
