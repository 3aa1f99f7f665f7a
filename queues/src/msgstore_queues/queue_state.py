"""QueueState: what a queue has in memory, its confirms, those who wait, and its end."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Condition, Lock
from typing import Any, NoReturn, Protocol, Self

from msgstore.contract import MsgStoreError
from msgstore.forking import renew_locks
from msgstore_queues.contract import BackingQueue, BodiesQueue, Message
from msgstore_queues.errors import QueueFailed
from msgstore_queues.keys import Keys
from msgstore_queues.message import Received
from msgstore_queues.options import QueueOptions
from msgstore_queues.stdlib import ShutDown

log = logging.getLogger("msgstore.queues")

OnConfirm = Callable[[], object]
OnLost = Callable[[MsgStoreError], object]
"""Called instead of the confirm, if a failure has ended what it waits for. The message may be there, or not."""


class HeldBack(Protocol):
    """The delayed messages of a queue: :class:`msgstore_queues.delays.Delays`."""

    def __len__(self) -> int: ...

    def add(
        self,
        message: Message,
        due_us: int,
        on_confirm: OnConfirm | None,
        on_lost: OnLost | None = None,
        *,
        key: str | None = None,
        instead_of: int | None = None,
    ) -> None: ...

    def is_duplicate(self, key: str, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> bool: ...

    def release(self) -> float | None: ...

    def read(self) -> None: ...


class Host(Protocol):
    """The vhost, as its queues use it: :class:`msgstore_queues.vhost.VHost`."""

    name: str
    next_id: Callable[[], bytes]

    def guard_of(self, queue: Any, *, changes: bool = True) -> AbstractContextManager[None, None]: ...

    background_only: set[int]
    flush_above: int

    def note_change(self, unwritten: int) -> None: ...

    def is_flush_due(self, unwritten: int) -> bool: ...

    def flush(self) -> None: ...

    def wake_at(self, due: float) -> None: ...

    def target(self, name: str) -> Target: ...

    def delays_of(self, queue: Any) -> HeldBack: ...

    def delete_unused(self, queue: Any) -> float | None: ...


class Target(Protocol):
    """Another queue, to which messages move."""

    def limited(self, message: Message) -> Message: ...

    def add(self, message: Message, on_confirm: OnConfirm | None = None, on_lost: OnLost | None = None) -> None: ...


class Taker(Protocol):
    """A consumer, as its queue uses it: :class:`msgstore_queues.consumer.Consumer`."""

    unacked: dict[int, Received]
    has_room: Condition
    is_closed: bool
    is_exclusive: bool


class QueueState:
    """The part of a queue that others stand on: :class:`~msgstore_queues.delivering.DeliveringQueue` takes and acknowledges
    messages, and :class:`~msgstore_queues.base_queue.BaseQueue` publishes them.

    A publish is *confirmed* when it survives what ``durability`` says; ``flush`` waits for that. A message is *ready*, or
    *unacked*: taken by a consumer and not acknowledged. Unacked messages are ready again after a restart.
    """

    def __init__(
        self, vhost: Host, name: str, options: QueueOptions, backing: BackingQueue, *, is_declared: bool = True
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.backing = backing
        self.lock = Lock()
        """Guards the backing queue and all below."""
        self.keys = Keys()
        self.declare(options)
        self.is_declared = is_declared
        """False if only other queues have named it."""
        self.guard = vhost.guard_of(self)
        """Encloses each change, outside all locks."""
        self.reading = vhost.guard_of(self, changes=False)
        self.generation = 0
        """Counts the failures after which the backing queue was read again. Positions of an earlier one mean nothing."""
        self.is_changed = False
        """True if a flush has something to do. Only the change that makes it true asks for the flush: see ``note_change``."""
        self._not_empty, self._not_full, self._all_done = Condition(self.lock), Condition(self.lock), Condition(self.lock)
        self._waiting = self._joining = 0
        """Threads that wait for a message, and in ``join``."""
        self.waiting_tasks = 0
        """Tasks of the asyncio API that wait. Changed on the thread of their loop."""
        self._watchers: tuple[Callable[[], object], ...] = ()
        """Replaced, not changed: they are called without the lock."""
        self._confirms = deque[tuple[OnConfirm | None, OnLost | None]]()
        """Callbacks of messages that are not confirmed, in the order of the publishes."""
        self._flushing = 0
        """The first callbacks, of messages that the flush under way confirms."""
        self.is_flushing = False
        """True while a flush is under way that has changes of the present generation."""
        self.counts = {"published": 0, "acknowledged": 0, "redelivered": 0, "dead_lettered": 0, "restarts": 0}
        """Numbers since the vhost was opened, for observers."""
        self._out: dict[int, Taker | None] = {}
        """Positions of unacked messages that somebody may acknowledge, and their consumers."""
        self._unreturned = set[int]()
        """Positions of unacked messages that nobody holds: a failure has kept them from their places in the queue."""
        self._returns: dict[int, int] = {}
        """How often a message at a position came back in this run."""
        self._taken: list[tuple[object, Received]] = []
        """The caller of each ``get``, and its message, until ``task_done``."""
        self._consumers: list[Taker] = []
        self._is_shut_down = self._is_stopped = False
        self._routing_keys = (name.encode(),)
        self.closed: MsgStoreError | None = None
        """Raised by every call, once the queue is closed or deleted."""
        self.delays: HeldBack | None = None
        self.holds_for: HeldBack | None = None
        """The delayed messages of another queue, which are in this one."""

    def note_use(self) -> Self:
        """Note that somebody uses the queue: see ``expires``."""
        self.used_at = time.time()
        return self

    def declare(self, options: QueueOptions) -> None:
        """Take the options of whoever declares the queue."""
        self.options, self.is_declared = options, True
        self._has_limits = options.max_length is not None or options.max_bytes is not None
        self._note_bodies()
        self.used_at = time.time()
        """Time of the last call, if ``expires`` is set."""
        if options.deduplicate:
            with self.lock:
                self._read_keys()

    def _note_bodies(self) -> None:
        """Note which messages are published by their bodies only."""
        self._bodies_below = 0
        if hasattr(type(self.backing), "publish_body"):  # isinstance asks __getattr__ of a proxy, too, before Python 3.12
            assert isinstance(self.backing, BodiesQueue)
            self._add_body = self.backing.publish_body
            if not self._has_limits and self.options.message_ttl is None and self.options.expires is None:
                self._bodies_below = self.backing.bodies_below
        self._flush_above = self.vhost.flush_above

    def _read_keys(self) -> None:
        """Read the keys of all messages. Caller holds the lock."""
        self.backing.fold(self.keys.note)
        self.backing.fold_acks(self.keys.note)

    def as_lost(self, error: Exception) -> MsgStoreError:
        """Return an error of a change as callbacks of a lost confirm take it."""
        return error if isinstance(error, MsgStoreError) else QueueFailed(f"{self}: {error!r}")

    def confirm_later(self, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> None:
        """Let the flush that confirms all messages until now call ``on_confirm``. Caller holds the lock."""
        if on_confirm is not None or on_lost is not None:
            self._confirms.append((on_confirm, on_lost))
            self.is_changed = True

    @property
    def unfinished_tasks(self) -> int:
        """The number of messages for which ``join`` waits."""
        return self.qsize() + self.backing.unacked

    def qsize(self) -> int:
        """Return the number of ready messages; 0 after ``shutdown(immediate=True)``."""
        return 0 if self._is_stopped else len(self.backing)

    __len__ = qsize

    @property
    def unacked(self) -> int:
        """The number of unacked messages."""
        return self.backing.unacked

    def figures(self) -> dict[str, int]:
        """Return figures for observers."""
        with self.lock:
            found = {"ready": len(self.backing), "unacked": self.backing.unacked, "bytes": self.backing.body_bytes}
            return {**found, **self.counts}

    def flush(self) -> None:
        """Return when everything that was published before the call is confirmed. Raises StoreIOError, StoreClosed."""
        self.vhost.flush()

    def set_memory_target(self, messages: int | None) -> None:
        """Keep the bodies of about this many ready messages in memory. 0: as few as possible. None: all. Raises TypeError."""
        if messages is not None and not isinstance(messages, int):
            raise TypeError(f"{self}: a number of messages is an int or None, not {type(messages).__name__}")
        with self.guard:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                self.backing.set_memory_target(messages)
                self.is_changed = True
                self.note_use()
            self.vhost.note_change(0)

    def watch(self, call: Callable[[], object]) -> None:
        """Call ``call()`` after each change for which somebody may wait: a message, room, an acknowledgement, the end. It comes
        on the thread of the change, without the lock, and must not wait. Look at the queue after this call, not before: what
        changes in between is not announced. An ended queue announces nothing more."""
        with self.lock:
            self._watchers = (*self._watchers, call)

    def unwatch(self, call: Callable[[], object]) -> None:
        """Take back a ``watch``. A call that is under way may still come."""
        with self.lock:
            self._watchers = tuple(one for one in self._watchers if one != call)

    def _call_watchers(self) -> None:
        """Caller does not hold the lock."""
        for call in self._watchers:
            try:
                call()
            except Exception:
                log.exception("%s: a watcher failed", self)

    def begin_flush(self) -> None:
        """The flush has all changes until now. Caller holds the lock."""
        self.is_changed = False
        self._flushing = len(self._confirms)
        self.backing.begin_flush()
        self.is_flushing = True

    def take_confirmed(self) -> list[OnConfirm]:
        """The flush has succeeded. Return the callbacks of the messages that it confirms. Caller holds the lock."""
        self.is_flushing = False
        confirmed = [self._confirms.popleft()[0] for _ in range(self._flushing)]
        self._flushing = 0
        return [call for call in confirmed if call is not None]

    def forget_confirms(self) -> list[OnLost]:
        """The queue has failed: no message is confirmed any more. Return the callbacks for that. Caller holds the lock."""
        lost = [call for _, call in self._confirms if call is not None]
        self._confirms.clear()
        self._flushing, self.is_flushing, self.is_changed = 0, False, False
        return lost

    def renew(self, backing: BackingQueue) -> None:
        """Go on with a backing queue that was read from disk, after ``forget_confirms``. Caller holds the lock."""
        self.backing, self.closed = backing, None
        self._note_bodies()
        self.generation += 1
        had_keys, self.keys = bool(self.keys.positions), Keys()
        if had_keys or self.options.deduplicate:
            self._read_keys()
        self._out.clear()
        self._unreturned.clear()
        self._returns.clear()
        for consumer in self._consumers:
            consumer.unacked.clear()
        self._wake_all()
        if self.holds_for is not None:
            self.holds_for.read()

    def disown(self, error: MsgStoreError) -> None:
        """In a child process, right after a fork: let every call raise ``error``. Waits for no lock."""
        renew_locks(self.lock)
        self.closed = error

    def stop(self, error: MsgStoreError) -> None:
        """Let every call raise ``error``, until ``renew`` is called. Caller holds the lock."""
        self.closed = error
        self._wake_all()

    def tell_lost(self, calls: Sequence[OnLost], error: MsgStoreError) -> None:
        """Call the callbacks of messages that will not be confirmed, and those of watchers. Caller does not hold the lock."""
        for call in calls:
            try:
                call(error)
            except Exception:
                log.exception("%s: a callback of a lost confirm failed", self)
        self._call_watchers()

    @property
    def is_in_use(self) -> bool:
        """True while somebody waits or consumes, or a message is unacked or delayed."""
        waiting = self._waiting or self.waiting_tasks or self._consumers
        return bool(waiting or self.backing.unacked or (self.delays is not None and len(self.delays)))

    def end(self, error: MsgStoreError, *, only_if: Callable[[], bool] = lambda: True) -> bool:
        """Let every call raise ``error``, and wake everybody who waits. Return False, and do nothing, unless ``only_if()``
        is true."""
        with self.lock:
            if not only_if():
                return False
            self.closed = error
            self._wake_all()
        self._call_watchers()
        return True

    def _wait(self, condition: Condition, deadline: float | None, error: type[Exception]) -> None:
        """Wait once. Raises ``error`` after the deadline. Caller holds the lock. An interrupt changes nothing."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise error
        try:
            condition.wait(left)
        except BaseException:
            condition.notify()  # the next one, in case this call was notified
            raise

    def _wake_all(self) -> None:
        """Wake everybody who waits. Caller holds the lock."""
        for condition in (self._not_empty, self._not_full, self._all_done):
            condition.notify_all()
        for consumer in self._consumers:
            consumer.has_room.notify_all()

    def _refuse(self) -> NoReturn:
        if self.closed is not None:
            raise self.closed
        raise ShutDown

    def __str__(self) -> str:
        return f"queue {self.name!r} of vhost {self.vhost.name!r}"

    def __repr__(self) -> str:
        return f"<msgstore_queues.Queue {self.name!r}>"


def deadline_of(block: bool, timeout: float | None) -> float | None:
    """Return the time of the monotonic clock until which a call may wait. Raises ValueError, as :class:`queue.Queue` does."""
    if timeout is None or not block:
        return None
    if timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return time.monotonic() + timeout
