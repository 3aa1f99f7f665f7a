"""The thread that flushes a store ``sync_interval`` after its first change, so that an idle writer is confirmed too."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from msgstore.contract import MsgStoreError, StoreClosed
from msgstore.engine.state.flag import Flag

if TYPE_CHECKING:
    from msgstore.engine.write.writer import Writer

log = logging.getLogger("msgstore.flusher")

_IDLE = 1.0
"""Seconds after which a thread that nobody has woken looks for itself. Writers take no lock: one that is held up between its
look at the intake and its entry there, for as long as a whole pause of the flusher, may wake nobody."""


class FlushSignal:
    """How writers tell the flusher that there is something to do. Costs them one look while it knows already."""

    def __init__(self) -> None:
        self._asleep = False
        self._awake = Flag()
        self._now = Flag()

    def changed(self) -> None:
        """There is something to flush after the usual pause."""
        if self._asleep:
            self._awake.set()

    def hurry(self) -> None:
        """There is something to flush now."""
        self._now.set()
        self._awake.set()

    def sleep(self, writer: Writer) -> None:
        """Until there is something to do, or ``_IDLE``."""
        self._awake.clear()
        self._asleep = True
        if not (writer.has_work or self._now.is_set()):
            self._awake.wait(_IDLE)
        self._asleep = False

    def pause(self, seconds: float) -> None:
        """Until somebody is in a hurry."""
        self._now.wait(seconds)
        self._now.clear()


class Flusher:
    """Runs from construction to ``stop``; with an interval of 0 it does nothing, because then each write flushes itself."""

    def __init__(self, writer: Writer, interval: float, sync_interval: float | None) -> None:
        """``sync_interval``: seconds between a flush and the sync of what it wrote, if that is not the flush's own business."""
        self._writer = writer
        self._sync_interval = sync_interval
        shortest = min(interval or threading.TIMEOUT_MAX, sync_interval or threading.TIMEOUT_MAX)
        self._interval = min(shortest, threading.TIMEOUT_MAX)
        self._synced = time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"msgstore-flusher {writer.config.path}", daemon=True)
        if interval or sync_interval:
            self._thread.start()

    def _run(self) -> None:
        wakeup = self._writer.wakeup
        while not self._stopping:
            wakeup.sleep(self._writer)
            if self._stopping or not self._writer.has_work:
                continue
            wakeup.pause(self._interval)
            try:
                if not self._stopping:
                    self._flush()
            except StoreClosed:
                return
            except MsgStoreError as error:  # what failed stays in the intake; the next write or flush meets the error as well
                log.warning("a flush in the background failed and is tried again: %s", error)
                wakeup.pause(self._interval)
            except BaseException:  # of a plugin, or a client that exits when it is told: nobody else flushes then
                log.exception("%s: a flush in the background failed and is tried again", self._writer.config.path)
                wakeup.pause(self._interval)

    def _flush(self) -> None:
        self._writer.invite()
        self._writer.flush()
        if self._sync_interval is not None and time.monotonic() - self._synced >= self._sync_interval:
            with self._writer.ledger.flushing:
                self._writer.check_open()
                self._writer.settle()
            self._synced = time.monotonic()

    def stop(self, *, wait: bool) -> None:
        """The thread ends at once, or when it gets the lock that it is waiting for. ``wait`` for it only without a lock."""
        self._stopping = True
        self._writer.wakeup.hurry()
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
