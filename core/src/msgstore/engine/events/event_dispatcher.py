"""Event dispatcher: calls observers on a thread of its own, so that no observer delays a store."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue

from msgstore.contract.events import Event
from msgstore.plugins.loader import EVENT_HOOKS, Observer

log = logging.getLogger("msgstore.observers")

MAX_WAITING = 10_000
"""Events that may wait. Later ones are counted and dropped: an observer that hangs must not fill the memory."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time that ``wait`` waits for observers."""


class EventDispatcher:
    """Calls the observers of one store, one by one, on the thread ``msgstore-observers PATH``. Without observers: no thread.

    ``publish`` and ``finish`` may be called from any thread and under any lock: they only fill a queue, and never raise.
    """

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.failures = 0
        """Times that an observer raised, and events that were dropped."""
        self.in_callback: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        """Set by the store: entered around each call of an observer."""
        self._by_class = {made: [o for o in observers if o.hook == hook] for hook, made in EVENT_HOOKS.items()}
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_finished = False
        if observers:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"msgstore-observers {self.store}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread is available: the store opens all the same
            self.failures += 1
            log.warning("%s: no observer is called: %s", self.store, error)
        else:
            self._thread = thread

    def publish(self, event: Event) -> None:
        """Queue an event for its observers."""
        if self._thread is None or self._is_finished or not self._by_class[type(event)]:
            return
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(event)
        else:
            self.failures += 1

    def finish(self) -> None:
        """Publish nothing more; the thread ends after the last event. A second call does nothing."""
        if not self._is_finished:
            self._is_finished = True
            self._waiting.put(None)

    def wait(self) -> None:
        """Wait for the thread after ``finish``, for a limited time. Caller holds no lock."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(CLOSE_TIMEOUT_SECONDS)
        if thread.is_alive():
            what = "%s: an observer has not returned within %g s; the store does not wait for it"
            log.warning(what, self.store, CLOSE_TIMEOUT_SECONDS)
        self._thread = None

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for observer in self._by_class[type(event)]:
                try:
                    with self.in_callback():
                        observer.call(event)
                except BaseException:  # sys.exit() too: the other observers go on
                    self.failures += 1
                    log.exception("%s: %s of %s failed", self.store, observer.hook, observer.provider)
