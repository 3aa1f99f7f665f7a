"""Supervision: what has failed is opened again. A queue alone; a message store with its whole vhost, or the vhost is down.

A guard encloses each change, outside all locks, and sees what it raises:

* an OSError, such as a full disk, becomes a StoreIOError. Nothing is opened again;
* a :class:`~msgstore_queues.errors.StoreFailed` opens the whole vhost again, as a start after a crash does: confirms that wait
  for the store would never come. After more than ``MAX_RESTARTS`` in ``PERIOD_SECONDS`` the vhost is down;
* another exception comes from the backing queue or its index: the queue is read again from disk, alone;
* an exception from outside, such as a KeyboardInterrupt, ends the vhost.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from queue import Empty, Full
from types import TracebackType
from typing import Protocol

from msgstore.contract import MsgStoreError, StoreIOError
from msgstore.contract.descriptors import Descriptor
from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.catalogue import Catalogue
from msgstore_queues.contract import BackingQueue
from msgstore_queues.errors import QueueFailed, StoreFailed, VHostDown
from msgstore_queues.events import Dispatcher, QueueRestartedEvent, VHostDownEvent, VHostRestartedEvent
from msgstore_queues.hooks import GROUP
from msgstore_queues.options import Restart
from msgstore_queues.queue_state import OnLost
from msgstore_queues.stdlib import ShutDown
from rabbitmq_files.properties import PropertiesError

log = logging.getLogger("msgstore.queues")

MAX_RESTARTS, PERIOD_SECONDS = 3, 300.0
_EXPECTED = (MsgStoreError, Full, Empty, ShutDown, PropertiesError)
"""Exceptions that say nothing of the state of a queue."""


class Supervised(Protocol):
    """The vhost, as its supervisor uses it."""

    name: str
    directory: Path
    closed: MsgStoreError | None

    @property
    def in_callback(self) -> bool:
        """True if the calling thread runs a callback of a flush."""

    def hold(self) -> _Hold:
        """Return a context manager that keeps everybody else out of the vhost: it holds all locks, and has all queues."""

    def hold_queue(self, queue: BaseQueue) -> _Hold:
        """As ``hold``, for one queue."""

    def reopen_queue(self, queue: BaseQueue) -> BackingQueue:
        """Abandon the backing queue of a queue, and open it as after a crash."""

    def reopen(self) -> dict[str, BackingQueue]:
        """Abandon stores and backing queues, and open all as after a crash. Return the backing queues of those in use."""

    def abandon_files(self) -> None:
        """Close all files but the lock, as the end of the process would."""

    def is_in_use(self, store: object) -> bool:
        """Return True if a message store is one of those that the vhost uses now."""

    def interrupt(self, error: BaseException) -> None: ...

    def end_callbacks(self) -> None: ...


class _Hold(Protocol):
    def __enter__(self) -> list[BaseQueue]: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


class Restarts:
    """Counts the restarts of a vhost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = deque[float]()

    def note(self) -> bool:
        """Count a restart. Return False if there were too many."""
        now = self._clock()
        while self._times and self._times[0] <= now - PERIOD_SECONDS:
            self._times.popleft()
        if len(self._times) >= MAX_RESTARTS:
            return False
        self._times.append(now)
        return True

    def clear(self) -> None:
        self._times.clear()


class Supervisor:
    """Supervises one vhost. Any thread may call it."""

    def __init__(
        self, vhost: Supervised, strategy: Restart, catalogue: Catalogue, events: Dispatcher, restarts: Restarts
    ) -> None:
        self._vhost = vhost
        self._strategy = strategy
        self._catalogue = catalogue
        self._events = events
        self._restarts = restarts
        self.pending: StoreFailed | None = None
        """A failure in a callback of a flush, which acts on it at its end."""

    # -- a queue ----------------------------------------------------------------------------------------------------------

    def restart_queue(self, queue: BaseQueue, cause: Exception) -> QueueFailed:
        """Read a queue again from disk, since ``cause`` was raised in a change of it. Return the error for the caller."""
        text = f"{queue}: {self._blame(cause)}: {type(cause).__name__}: {cause}."
        with self._vhost.hold_queue(queue):
            if queue.closed is not None:
                return QueueFailed(f"{text} {queue.closed}")
            lost = queue.forget_confirms()
            try:
                queue.renew(self._vhost.reopen_queue(queue))
                error = QueueFailed(f"{text} The queue was read again from disk: what was confirmed is there. Repeat the call.")
                queue.counts["restarts"] += 1
                members = {"messages": len(queue.backing), "unconfirmed": len(lost)}
                self._events.publish(QueueRestartedEvent, queue=queue.name, reason=text, **members)
            except Exception as second:
                error = QueueFailed(
                    f"{text} The queue cannot be opened again: {second}. What was confirmed is on disk. Repair the cause, and "
                    f"call vhost.queue({queue.name!r}) to open it."
                )
                queue.stop(error)
        log.error("%s", error, exc_info=cause)
        queue.tell_lost(lost, error)
        return error

    def retry_queue(self, queue: BaseQueue) -> None:
        """Open a queue that could not be opened after a failure. Raises QueueFailed."""
        with self._vhost.hold_queue(queue):
            if not isinstance(queue.closed, QueueFailed):
                return
            try:
                queue.renew(self._vhost.reopen_queue(queue))
            except Exception as error:
                failure = QueueFailed(f"{queue}: cannot be opened: {error}. Repair the cause, and call vhost.queue() again.")
                queue.stop(failure)
                raise failure from error

    def _blame(self, cause: Exception) -> str:
        """Return the plugin in whose code an exception was raised, with its distribution."""
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(cause.__traceback__)]
        known: list[tuple[str, Descriptor]] = [("backing queue", one) for one in self._catalogue.backings.values()]
        known += [("queue index", one) for one in self._catalogue.indexes.values()]
        for module in reversed(modules):
            for kind, descriptor in known:
                factory = descriptor.factory.partition(":")[0]
                package = factory.partition(".")[0]
                if module == factory or (package != "msgstore_queues" and module.partition(".")[0] == package):
                    return f"the {kind} {descriptor.name!r} ({_distribution_of(package)}) has failed"
        return "has failed"

    # -- the vhost --------------------------------------------------------------------------------------------------------

    def restart_vhost(self, failure: StoreFailed) -> None:
        """Open the vhost again, since one of its stores has failed. Does nothing if that was done meanwhile."""
        lost: list[tuple[BaseQueue, list[OnLost]]] = []
        with self._vhost.hold() as queues:
            if self._vhost.closed is not None or not self._vhost.is_in_use(failure.store):
                return
            error: MsgStoreError = failure
            if self._restarts.note():
                error = self._open_again(queues, str(failure), lost) or failure
            else:
                why = f"{failure}. That was the {MAX_RESTARTS + 1}th failure in {PERIOD_SECONDS / 60:g} minutes"
                error = self._go_down(queues, why, lost)
        self._tell(lost, error)

    def start(self) -> None:
        """Open a vhost that is down. Raises VHostDown if that fails."""
        lost: list[tuple[BaseQueue, list[OnLost]]] = []
        with self._vhost.hold() as queues:
            if not isinstance(self._vhost.closed, VHostDown):
                if self._vhost.closed is not None:
                    raise self._vhost.closed
                return
            self._restarts.clear()
            error = self._open_again(queues, "it was down, and was started", lost)
        self._tell(lost, error or VHostDown("the vhost was down"))
        if error is not None:
            raise error

    def _open_again(self, queues: list[BaseQueue], reason: str, lost: list[tuple[BaseQueue, list[OnLost]]]) -> VHostDown | None:
        """Open stores and queues. If that fails, the vhost is down, and the error is returned. Caller holds the vhost."""
        begin = time.perf_counter()
        lost += [(queue, queue.forget_confirms()) for queue in queues]
        try:
            backings = self._vhost.reopen()
            for queue in queues:
                queue.renew(backings[queue.name])
                queue.counts["restarts"] += 1
        except Exception as error:
            return self._go_down(queues, f"{reason}. It could not be opened again: {error}", lost)
        self._vhost.closed = None
        seconds, messages = time.perf_counter() - begin, sum(len(backing) for backing in backings.values())
        log.warning("%s: opened again in %.3f s: %s", self._vhost.directory, seconds, reason)
        self._events.publish(
            VHostRestartedEvent, reason=reason, seconds=seconds, queues=len(backings), messages=messages,
            unconfirmed=sum(len(calls) for _, calls in lost),
        )  # fmt: skip
        return None

    def _go_down(self, queues: list[BaseQueue], why: str, lost: list[tuple[BaseQueue, list[OnLost]]]) -> VHostDown:
        """Let every call raise an error. Caller holds the vhost."""
        error = VHostDown(
            f"{self._vhost.directory}: the vhost {self._vhost.name!r} is down: {why}. What was confirmed is on disk. Repair "
            f"the cause, and call vhost.start(), or close the vhost and open it again."
        )
        self._vhost.closed = error
        self._vhost.abandon_files()
        lost += [(queue, queue.forget_confirms()) for queue in queues]
        for queue in queues:
            queue.stop(error)
        log.critical("%s", error)
        self._events.publish(VHostDownEvent, reason=why)
        if self._strategy == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        return error

    def _tell(self, lost: list[tuple[BaseQueue, list[OnLost]]], error: MsgStoreError) -> None:
        for queue, calls in lost:
            queue.tell_lost(calls, error)


def _distribution_of(package: str) -> str:
    """Return the name of the distribution that has a plugin's package, or that of the package."""
    found = [point.dist for point in entry_points(group=GROUP) if point.module.partition(".")[0] == package]
    own = "msgstore-queues" if package == "msgstore_queues" else package
    return next((dist.name for dist in found if dist is not None), own)


class Guard:
    """Encloses a change, as the module says. ``queue``: the one that is changed. ``ends_flush``: the change is a flush.
    ``changes``: False for a call that changes nothing, which may be interrupted."""

    __slots__ = ("_changes", "_ends_flush", "_queue", "_supervisor", "_vhost")

    def __init__(
        self,
        vhost: Supervised,
        supervisor: Supervisor,
        queue: BaseQueue | None = None,
        *,
        ends_flush: bool = False,
        changes: bool = True,
    ) -> None:
        self._vhost = vhost
        self._supervisor = supervisor
        self._queue = queue
        self._ends_flush = ends_flush
        self._changes = changes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and not self._ends_flush:
            return
        try:
            self._act(error)
        except Exception:
            raise
        except BaseException as other:
            self._vhost.interrupt(other)
            raise

    def _act(self, error: BaseException | None) -> None:
        supervisor = self._supervisor
        if error is not None and not isinstance(error, Exception):
            if self._ends_flush:
                self._vhost.end_callbacks()
            if self._changes:
                self._vhost.interrupt(error)
            return
        failure = error if isinstance(error, StoreFailed) else None
        if self._ends_flush and not self._vhost.in_callback:
            failure, supervisor.pending = failure or supervisor.pending, None
        if failure is not None:
            if self._vhost.in_callback:
                supervisor.pending = failure
            else:
                supervisor.restart_vhost(failure)
        elif isinstance(error, OSError):
            raise StoreIOError(f"{self._vhost.directory}: {error}. What was confirmed is on disk; try again.") from error
        elif self._queue is not None and error is not None and not isinstance(error, _EXPECTED):
            assert isinstance(error, Exception)
            raise supervisor.restart_queue(self._queue, error) from error
