"""VHost: a directory with queues, the message stores of their large messages, and one thread that flushes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import attrs

import msgstore
from msgstore import forking
from msgstore.contract import ConfigError, MsgStoreError, StoreClosed, StoreIOError
from msgstore.files import Files
from msgstore.option_values import structure
from msgstore.writer_lock import WriterLock
from msgstore_queues import directories
from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.catalogue import Catalogue, load_catalogue
from msgstore_queues.delays import Delays
from msgstore_queues.errors import VHostDown
from msgstore_queues.events import (
    FlushFailedEvent,
    QueueDeclaredEvent,
    QueueDeletedEvent,
    VHostClosedEvent,
    VHostOpenedEvent,
)
from msgstore_queues.expiry import is_unused, unused_until
from msgstore_queues.flusher import Flusher
from msgstore_queues.messages import make_id
from msgstore_queues.options import SUFFIX, QueueOptions, VHostOptions
from msgstore_queues.queue import Queue
from msgstore_queues.queue_state import HeldBack, OnConfirm, OnLost
from msgstore_queues.stores import OpenStore
from msgstore_queues.supervision import Guard, Restarts, Supervisor
from msgstore_queues.vhost_files import VHostFiles

log = logging.getLogger("msgstore.queues")


def open_vhost(path: str | Path, name: str = "/", **options: Any) -> VHost:
    """Open the vhost ``name`` of the directory ``path``; both are made if need be. ``options``: keys of
    :class:`~msgstore_queues.options.VHostOptions`. Raises ConfigError, StoreLocked, StoreError, PluginError."""
    where = f"open_vhost({str(path)!r}, {name!r})"
    return VHost(Path(path), name, structure(VHostOptions, options, where), load_catalogue(), where=where)


class VHost(VHostFiles):
    """Queues that share message stores and flushes. Leaving it as a context manager closes it. Any thread may call it.

    An exception from outside, such as a Ctrl-C, in the middle of a change closes the vhost as the end of the process would:
    nothing confirmed is lost, and every later call raises StoreClosed.
    """

    flush: Callable[[], None]
    """As :meth:`Flusher.flush`: wait until everything so far is confirmed."""
    release_due: Callable[[], None]
    note_change: Callable[[int], None]
    wake_at: Callable[[float], None]

    def __init__(
        self,
        path: Path,
        name: str,
        options: VHostOptions,
        catalogue: Catalogue,
        *,
        where: str,
        files: Files | None = None,
        open_store: OpenStore = msgstore.open_store,
        base: Path | None = None,
        progress: Callable[[int, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``base``: directory of relative paths among the options of queues. ``progress(done, total)`` is called with numbers
        of queues while they are read after a crash. ``clock``: for the number of restarts in a time."""
        super().__init__(path, name, options, catalogue, where=where, files=files or Files(), open_store=open_store)
        self.next_id = make_id()
        self.closed: MsgStoreError | None = None
        """Raised by every call, once the vhost is closed, or while it is down."""
        self._is_disowned = False
        """True in a process that was forked from that of the vhost."""
        self._lock = Lock()
        """Guards the dictionaries of queues. Taken before the lock of a queue."""
        self._delays_lock = Lock()
        """Held while the delayed messages of a queue are read."""
        self._progress = progress
        self._supervisor = Supervisor(self, options.restart, catalogue, self._events, Restarts(clock))
        self.guard = Guard(self, self._supervisor)
        self._flush_guard = Guard(self, self._supervisor, ends_flush=True)
        self._flusher = Flusher(
            self.directory, options, lambda: self._stores, self._in_use, self._flush_guard, self._check_open,
            lambda error: self._events.publish(FlushFailedEvent, reason=str(error)),
        )  # fmt: skip
        self.flush, self.release_due = self._flusher.flush, self._flusher.release_due
        self.note_change, self.wake_at = self._flusher.note_change, self._flusher.wake_at
        self.is_flush_due, self.background_only = self._flusher.is_flush_due, self._flusher.background_only
        self.flush_above = self._flusher.flush_above
        self._base = base
        try:
            directories.refuse_stopped(self.directory, name)
            directories.make_vhost_directory(self._files, self.directory, name)
            self._lock_file = WriterLock(self.directory, self._files)
            if options.layout != "own":
                directories.prepare_for_rabbitmq(self._files, self.directory)
            begin = time.perf_counter()
            is_clean = self._open(directories.take_terms(self._files, self.directory))
            for queue in options.queues:
                self.queue(queue)
            self._flusher.start()
            forking.watch(self)
            self._events.publish(
                VHostOpenedEvent, is_clean=is_clean, seconds=time.perf_counter() - begin, queues=len(self._backings),
                messages=sum(len(backing) for backing, _ in self._backings.values()), statistics=self.statistics,
            )  # fmt: skip
        except BaseException as error:
            self._flusher.stop()
            self._release()
            self._events.stop()
            if isinstance(error, OSError):
                raise StoreIOError(f"{self.directory}: cannot be opened: {error}") from error
            raise

    # -- what the supervisor uses -----------------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[list[BaseQueue]]:
        """Keep everybody else out: hold all locks, and have all queues in use."""
        with ExitStack() as stack:
            stack.enter_context(self._flusher.lock)
            stack.enter_context(self._lock)
            queues = list[BaseQueue](self._queues.values())
            for queue in sorted(queues, key=lambda one: one.name.endswith(SUFFIX)):  # delayed messages last, as others do
                stack.enter_context(queue.lock)
            yield queues

    @contextmanager
    def hold_queue(self, queue: BaseQueue) -> Iterator[list[BaseQueue]]:
        """Keep everybody else out of a queue."""
        with self._lock, queue.lock:
            yield [queue]

    @property
    def in_callback(self) -> bool:
        """True if the calling thread runs a callback of a flush."""
        return self._flusher.in_callback

    def end_callbacks(self) -> None:
        self._flusher.end_callbacks()

    def guard_of(self, queue: BaseQueue, *, changes: bool = True) -> Guard:
        """Return what encloses changes of a queue."""
        return Guard(self, self._supervisor, queue, changes=changes)

    @property
    def is_alive(self) -> bool:
        """False while the vhost is down, and after its end."""
        return self.closed is None

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return figures of the queues in use; nothing once the vhost is closed, or while it is down."""
        return {} if self.closed is not None else {queue.name: queue.figures() for queue in self._in_use()}

    # -- queues -----------------------------------------------------------------------------------------------------------

    def queue(self, name: str, /, **options: Any) -> Queue:
        """Return a queue. It is made if it is not there. ``options``: keys of
        :class:`~msgstore_queues.options.QueueOptions`; a second call without any returns the same object. Raises ConfigError
        for options that a queue which is in use, or its directory, does not have."""
        return self._queue(name, options, is_declared=True)

    def target(self, name: str) -> Queue:
        """Return a queue that another one needs. Whoever declares it may still give it options."""
        return self._queue(name, {}, is_declared=False)

    def _queue(self, name: str, options: Mapping[str, Any], *, is_declared: bool) -> Queue:
        self._check_open()
        where = f"{self._where} queue {name!r}"
        directories.check_queue_name(name, where)
        if is_declared and name.endswith(SUFFIX) and name not in self._backings:
            raise ConfigError(f"{where}: the name is that of the delayed messages of another queue. Choose another ending.")
        return self._use(name, options, where, is_declared=is_declared)

    def _use(self, name: str, options: Mapping[str, Any], where: str, *, is_declared: bool) -> Queue:
        """As ``_queue``, for any name."""
        if name in self._queues and self._queues[name].closed is not None:
            self._supervisor.retry_queue(self._queues[name])
        with self.guard, self._lock:
            if name in self._queues and not options and (self._queues[name].is_declared or not is_declared):
                return self._queues[name].note_use()
            table = {**self.options.defaults, **self.options.queues.get(name, {}), **options}
            wanted = structure(QueueOptions, table, where, self._base)
            if not wanted.index.named:
                index = self._backings[name][1].index if name in self._backings else self.options.usual_index
                wanted = attrs.evolve(wanted, index=attrs.evolve(wanted.index, name=index))
            if name in self._queues:
                queue = self._queues[name]
                is_other = queue.options != wanted and queue.is_declared
                if is_other or (not queue.is_declared and self._check_same(name, wanted, where) != self._backings[name][1]):
                    raise ConfigError(f"{where}: is in use with other options: {queue.options}")
                queue.declare(wanted)
                if wanted.expires is not None:
                    self.wake_at(time.time() + wanted.expires)
                return queue
            backing = self._backing_for(name, wanted, where)
            queue = self._queues[name] = Queue(self, name, wanted, backing, is_declared=is_declared)
        self._events.publish(QueueDeclaredEvent, queue=name, messages=len(queue))
        if wanted.expires is not None:
            self.wake_at(time.time() + wanted.expires)
        if not name.endswith(SUFFIX) and self._is_own(name + SUFFIX):
            self.delays_of(queue)
        return queue

    def _in_use(self) -> list[Queue]:
        with self._lock:
            return list(self._queues.values())

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed

    def queues(self) -> list[str]:
        """Return the names of all queues, in order."""
        return sorted(self._backings)

    def delete(self, name: str) -> None:
        """Delete a queue with all its messages. Raises ConfigError if there is none."""
        self._flusher.refuse_in_callback("delete")
        with self.guard, self._flusher.lock, self._lock:
            self._check_open()
            if name not in self._backings:
                raise ConfigError(f"{self._where}: there is no queue {name!r}. Queues: {', '.join(self._backings) or 'none'}")
            if name in self._queues:
                self._queues[name].end(StoreClosed(f"{self._queues[name]}: was deleted"))
            deleted = self._delete(name)
        self._tell_deleted(deleted)
        self._events.publish(QueueDeletedEvent, queue=name)

    def delete_unused(self, queue: BaseQueue) -> float | None:
        """Delete a queue that has expired. Return the time at which to look again if it has not."""
        if not is_unused(queue):
            return unused_until(queue)
        self._flusher.refuse_in_callback("release_due")
        error = StoreClosed(f"{queue}: was deleted, because nobody used it for {queue.options.expires}")
        with self.guard, self._flusher.lock, self._lock:
            if self._queues.get(queue.name) is not queue:
                return None
            if not queue.end(error, only_if=partial(is_unused, queue)):
                return unused_until(queue)
            deleted = self._delete(queue.name)
        self._tell_deleted(deleted)
        log.info("%s", error)
        self._events.publish(QueueDeletedEvent, queue=queue.name)
        return None

    def _tell_deleted(self, deleted: Sequence[tuple[Queue, list[OnLost]]]) -> None:
        """Caller holds no lock."""
        for queue, calls in deleted:
            queue.tell_lost(calls, queue.closed or StoreClosed(f"{queue}: was deleted"))

    def delays_of(self, queue: BaseQueue) -> HeldBack:
        """Return the delayed messages of a queue. Two threads that need them get the same object."""
        options = {"durable": queue.options.durable, "expires": None, "deduplicate": False}
        name = queue.name + SUFFIX
        if name in self._backings and not self._is_own(name):
            raise ConfigError(f"{self._where} queue {queue.name!r}: cannot delay messages: {name!r} is a queue of the broker")
        holder = self._use(name, options, f"{self._where} queue {name!r}", is_declared=True)
        with self._delays_lock:
            if queue.delays is None:
                queue.delays = Delays(queue, holder)
            return queue.delays

    def publish(
        self,
        body: bytes,
        to: Sequence[str],
        *,
        on_confirm: OnConfirm | None = None,
        on_lost: OnLost | None = None,
        **message: Any,
    ) -> None:
        """Add one message to several queues. A large body is stored once. ``on_confirm()`` is called when all have confirmed
        it, or ``on_lost(error)`` for each that fails before. ``message``: ``headers``, ``properties``, ``persistent``,
        ``ttl`` and ``key`` of :meth:`Queue.publish`. Full queues take it. Raises as that, and ConfigError for a
        queue that is not declared; then none has got it."""
        if missing := [name for name in to if name not in self._queues]:
            raise ConfigError(f"{self._where}: the queue {missing[0]!r} is not declared. Declared: {', '.join(self._queues)}")
        if not to:
            raise ValueError("a message is published to one queue at least")
        left = set(to)

        def confirm(name: str) -> None:
            left.discard(name)
            if not left and on_confirm is not None:
                on_confirm()

        queues = [self._queues[name] for name in dict.fromkeys(to)]
        one = queues[0].make_message(body, **message)
        for queue in queues:
            call = None if on_confirm is None else partial(confirm, queue.name)
            queue.add(queue.limited(one), call, on_lost, key=message.get("key"))

    def start(self) -> None:
        """Open a vhost that is down. Raises VHostDown if that fails, RuntimeError in a callback."""
        self._flusher.refuse_in_callback("start")
        self._supervisor.start()

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, and close everything. Unacked messages are ready in the next run. A second call does nothing. Raises
        StoreIOError, QueueFailed, StoreFailed: if nothing could be flushed, the vhost stays open, and may be closed again."""
        if isinstance(self.closed, VHostDown):
            self.abandon()
        if self.closed is not None:
            if self._is_released:
                self._events.stop()  # in case that an interrupt has ended the vhost
            return
        self._flusher.refuse_in_callback("close")
        try:
            with self._flush_guard, self._flusher.lock:
                self._flusher.flush_locked()
                self._flusher.flush_locked()  # what callbacks have changed: a dead letter that is confirmed is acknowledged
                self._end(StoreClosed(f"{self._where}: the vhost is closed"))
                try:
                    self._flusher.flush_locked()
                    self._save()
                finally:
                    self._release()
        finally:
            if self._is_released:
                self._flusher.join()
                self._announce_end()

    def _announce_end(self) -> None:
        self._events.publish(VHostClosedEvent)
        self._events.stop()

    def abandon(self) -> None:
        """Close everything as the end of the process would: nothing is written any more."""
        if self._is_disowned:
            return
        self._flusher.refuse_in_callback("abandon")
        with self._flusher.lock:
            self._end(StoreClosed(f"{self._where}: the vhost was abandoned"))
            self._release()
        self._flusher.join()
        self._announce_end()

    def _end(self, error: StoreClosed) -> None:
        """Let every call raise ``error``, and stop the thread."""
        self.closed = error if self.closed is None or isinstance(self.closed, VHostDown) else self.closed
        self._flusher.stop()
        for queue in self._in_use():
            queue.end(self.closed)

    def interrupt(self, error: BaseException) -> None:
        """End the vhost: an exception from outside came in the middle of a change. Caller holds no lock, unless the change was
        made by a callback: then the guard of the flush calls this once more."""
        if not self._is_released:
            self.closed = StoreClosed(
                f"{self._where}: {type(error).__name__} came in the middle of a change, so the vhost was closed as by the end "
                f"of the process. Confirmed messages are on disk: open it again."
            )
            if not self._flusher.in_callback:
                self.abandon()

    def disown(self) -> None:
        """In a child process, right after a fork: the vhost stays the parent's. Waits for no lock, writes nothing."""
        self._is_disowned = self._is_released = True
        if self._lock_file is not None:
            self._lock_file.disown()
        self._flusher.disown()
        self._events.disown()
        forking.renew_locks(self._lock, self._delays_lock)
        self.closed = StoreClosed(
            f"{self._where}: the vhost is open in process {os.getppid()}, which this process was forked from. A fork does not "
            "share a vhost: open it after the fork, in one of the two."
        )
        for queue in self._queues.values():
            queue.disown(self.closed)

    def __enter__(self) -> VHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or self.closed is None or isinstance(self.closed, VHostDown):
            self.close()

    def __repr__(self) -> str:
        return f"<msgstore_queues.VHost {self.name!r} {str(self.directory)!r}>"
