"""Events: what observers of vhosts and queues are notified of, and the thread that calls them.

Observers are called on one thread of the vhost, one event at a time, in order, without any lock: an observer may use the vhost,
and may take its time. One that raises is logged and counted. A complete observer, a module that an entry point of the group
``msgstore_queues`` names::

    from msgstore_queues import hookimpl

    @hookimpl
    def msgstore_vhost_down(event):
        send_mail(f"{event.vhost} in {event.directory}: {event.reason}")
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs

_log = logging.getLogger("msgstore.observers")

MAX_WAITING = 10_000
"""Events that may wait. Later ones are counted and dropped."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time that the end of a vhost waits for observers."""


@attrs.frozen(kw_only=True)
class VHostEvent:
    """Base class of all events."""

    vhost: str
    directory: Path


@attrs.frozen(kw_only=True)
class VHostOpenedEvent(VHostEvent):
    """The vhost is open."""

    is_clean: bool
    """False: the last process had not closed it, so all queues were read."""
    seconds: float
    queues: int
    messages: int
    """Ready messages of all queues."""
    statistics: Callable[[], Mapping[str, Mapping[str, int]]]
    """Returns figures by queue: ``ready``, ``unacked``, ``bytes``, and the counts since the opening ``published``,
    ``acknowledged``, ``redelivered``, ``dead_lettered`` and ``restarts``. Empty once the vhost is closed. Thread-safe."""


@attrs.frozen(kw_only=True)
class VHostClosedEvent(VHostEvent):
    """The vhost is closed. No event follows."""


@attrs.frozen(kw_only=True)
class VHostRestartedEvent(VHostEvent):
    """A message store has failed, or the vhost was down, and it is open again: both stores, and all queues."""

    reason: str
    seconds: float
    queues: int
    messages: int
    unconfirmed: int
    """Publishes with a callback whose confirm will not come."""


@attrs.frozen(kw_only=True)
class VHostDownEvent(VHostEvent):
    """The vhost does not work until it is started."""

    reason: str


@attrs.frozen(kw_only=True)
class QueueDeclaredEvent(VHostEvent):
    """A queue is in use."""

    queue: str
    messages: int


@attrs.frozen(kw_only=True)
class QueueDeletedEvent(VHostEvent):
    """A queue was deleted with all its messages."""

    queue: str


@attrs.frozen(kw_only=True)
class QueueRestartedEvent(VHostEvent):
    """A queue has failed, and was read again from disk."""

    queue: str
    reason: str
    messages: int
    unconfirmed: int
    """Publishes with a callback whose confirm will not come."""


@attrs.frozen(kw_only=True)
class MessagesLostEvent(VHostEvent):
    """Messages on disk cannot be read, and were skipped."""

    queue: str
    messages: int
    reason: str


@attrs.frozen(kw_only=True)
class FlushFailedEvent(VHostEvent):
    """A flush has failed. Nothing that it had was confirmed."""

    reason: str


HOOKS: Mapping[str, type[VHostEvent]] = {
    "msgstore_vhost_opened": VHostOpenedEvent,
    "msgstore_vhost_closed": VHostClosedEvent,
    "msgstore_vhost_restarted": VHostRestartedEvent,
    "msgstore_vhost_down": VHostDownEvent,
    "msgstore_queue_declared": QueueDeclaredEvent,
    "msgstore_queue_deleted": QueueDeletedEvent,
    "msgstore_queue_restarted": QueueRestartedEvent,
    "msgstore_queue_messages_lost": MessagesLostEvent,
    "msgstore_queue_flush_failed": FlushFailedEvent,
}
"""Names of hooks, and the events that they get."""


@attrs.frozen
class Observer:
    """A hook of a plugin that is called with events."""

    hook: str
    plugin: str
    call: Callable[[Any], object]


class Dispatcher:
    """Passes the events of one vhost to observers, on a thread of its own; without observers there is none. Thread-safe."""

    def __init__(self, vhost: str, directory: Path, observers: Sequence[Observer]) -> None:
        self._vhost = vhost
        self._directory = directory
        self.failures = 0
        """Times that an observer raised, and events that were dropped."""
        self._by_class = {kind: [one for one in observers if one.hook == hook] for hook, kind in HOOKS.items()}
        self._waiting: SimpleQueue[VHostEvent | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if observers:
            name = f"msgstore-observers {directory.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def publish(self, kind: type[VHostEvent], **members: Any) -> None:
        """Publish an event with these members. The caller may hold locks."""
        if self._thread is None or not self._by_class[kind]:
            return
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(kind(vhost=self._vhost, directory=self._directory, **members))
        else:
            self.failures += 1

    def stop(self) -> None:
        """Wait for a limited time until all events were passed on. Caller holds no lock."""
        thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT_SECONDS)
                if thread.is_alive():
                    what = "%s: an observer has not returned within %g s; the vhost does not wait for it"
                    _log.warning(what, self._directory, CLOSE_TIMEOUT_SECONDS)
            self._thread = None  # last: after an interrupt the next call does the same

    def disown(self) -> None:
        """In a child process, right after a fork, which has no thread of this object."""
        self._thread = None

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for observer in self._by_class[type(event)]:
                try:
                    observer.call(event)
                except BaseException:  # sys.exit() too: the other observers go on
                    self.failures += 1
                    _log.exception("%s: %s of %s failed", self._directory, observer.hook, observer.plugin)
