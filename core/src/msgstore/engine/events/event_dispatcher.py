"""Announcing events to the plugins that observe, without making anybody wait for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from msgstore.contract.events import Event
from msgstore.plugins.loader import EVENT_HOOKS, Observer

log = logging.getLogger("msgstore.observers")

LIMIT = 10_000
"""Events that may wait. An observer that hangs must not fill the memory: what comes then is counted and dropped."""
PATIENCE = 5.0
"""Seconds that ``close`` waits for the observers."""


class EventDispatcher:
    """The observers of one store, called one by one on one thread, ``msgstore-observers PATH``. No observer, no thread.

    ``publish`` and ``finish`` may be called from any thread and under any lock: they put something into a queue, never wait,
    and never raise.
    """

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.failures = 0
        """Times that an observer raised, and events that were dropped."""
        self._by_class = {made: [o for o in observers if o.hook == hook] for hook, made in EVENT_HOOKS.items()}
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._finished = False
        if observers:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"msgstore-observers {self.store}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left: the store opens all the same
            self.failures += 1
            log.warning("%s: nobody observes: %s", self.store, error)
        else:
            self._thread = thread

    def publish(self, event: Event) -> None:
        if self._thread is None or self._finished or not self._by_class[type(event)]:
            return
        if self._waiting.qsize() < LIMIT:
            self._waiting.put(event)
        else:
            self.failures += 1

    def finish(self) -> None:
        """Nothing more will be announced: the thread ends when the observers were told of everything. Twice is fine."""
        if not self._finished:
            self._finished = True
            self._waiting.put(None)

    def wait(self) -> None:
        """After ``finish``, without any lock: until the observers were told, ``PATIENCE`` seconds at most; an observer that
        calls this, by closing the store, does not wait for itself."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(PATIENCE)
        if thread.is_alive():
            log.warning("%s: an observer has not come back within %g s; the store does not wait for it", self.store, PATIENCE)
        self._thread = None

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for observer in self._by_class[type(event)]:
                self._tell(observer, event)

    def _tell(self, observer: Observer, event: Event) -> None:
        try:
            observer.call(event)
        except BaseException:  # sys.exit() too: the other observers go on
            self.failures += 1
            log.exception("%s: %s of %s failed", self.store, observer.hook, observer.provider)
