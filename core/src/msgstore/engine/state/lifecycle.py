"""Lifecycle of an open store: whether it accepts calls, which threads are in a callback, and what happens at an interrupt,
or without ``close``.

An exception from outside, such as KeyboardInterrupt or what a signal handler raises, can come between any two steps of a
change. Memory may then be half changed, so the store ends as a killed process does: every later call raises StoreClosed, and
the next opening recovers what is on disk. This is the only place that knows the rule. Every change of messages is inside
``guard``, or passes such an exception to ``handle_exception``. Only the fast path of ``remove``, which changes one dictionary
by one step for each id, and the background threads, which no such exception reaches, do neither.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from types import TracebackType

from msgstore.contract import BrokenPlugin, MsgStoreError, StoreClosed
from msgstore.plugins.blame import blame
from msgstore.plugins.loader import comes_from_outside

log = logging.getLogger("msgstore.store")


class Callbacks:
    """Threads that run a callback. Does not refer to the store: threads that call observers do not keep it alive."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        """Identifiers of these threads."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the calling thread runs a callback."""
        thread = get_ident()
        is_outermost = thread not in self.threads
        self.threads.add(thread)
        try:
            yield
        finally:
            if is_outermost:
                self.threads.discard(thread)

    @property
    def is_inside(self) -> bool:
        """True if the calling thread runs a callback."""
        return get_ident() in self.threads


class Lifecycle:
    """One instance per open store. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refusal: MsgStoreError | None = None
        """Raised by every change; a StoreClosed by every read, too. None while changes are accepted."""
        self.interrupted: StoreClosed | None = None
        """Set once an exception from outside has ended the store."""
        self.is_closing = False
        """True while ``close`` writes what is left, which may fail."""
        self.is_saved = False
        """True once everything is on disk, because ``close`` has returned, or nothing can be written."""
        self._is_released = False
        self.own_threads: set[int] = set()
        """Identifiers of the store's own threads, which no exception from outside reaches."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Set by the writer: called after each change of ``refusal``."""
        self.release: Callable[[], None] = lambda: None
        """Set by the store: closes files and index, unlocks the directory, stops threads. Takes the GC and the flush lock."""
        self.callbacks = Callbacks()
        self.change = _Change(self)
        """Encloses a change that is made under a lock: ``with lock, change``. Raises StoreClosed if an interrupt has ended the
        store. An exception from outside ends the store before the lock is free, so no other thread sees half of the change."""

    def refuse(self, error: MsgStoreError | None, *, is_closing: bool = False) -> None:
        """Let every later change raise ``error``; accept changes again if it is None, and no interrupt has ended the store."""
        self.refusal, self.is_closing = self.interrupted or error, is_closing
        self.on_refusal()

    def check_open(self) -> None:
        """Raise StoreClosed if the store is closed."""
        if isinstance(self.refusal, StoreClosed):
            raise self.refusal.with_traceback(None)  # or each call would add its frames to those of earlier ones

    def check_writable(self) -> None:
        """Raise StoreClosed or StoreReadOnly if the store accepts no changes."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def check_not_interrupted(self) -> None:
        """Raise StoreClosed if an interrupt has ended the store."""
        if self.interrupted is not None:
            raise self.interrupted.with_traceback(None)

    # -- callbacks --------------------------------------------------------------------------------------------------------

    def refuse_in_callback(self, call: str) -> None:
        """Raise RuntimeError if the calling thread runs a callback: it may hold locks that ``call`` needs."""
        if self.callbacks.is_inside:
            raise RuntimeError(
                f"{self.path}: {call}() was called in a callback (on_confirm, progress or observer), which may only write, "
                f"read and remove. Call it after the callback has returned, or on another thread."
            )

    # -- interrupts -------------------------------------------------------------------------------------------------------

    def guard(self) -> _Guard:
        """Return a context manager that encloses a change. Caller holds no lock. An exception from outside ends the store.

        In a callback it does nothing: the exception then reaches the ``guard`` of the change that called the callback.
        """
        return _Guard(self)

    def handle_exception(self, error: BaseException, *, in_callback: bool) -> None:
        """End the store as a killed process would, if ``error``, which leaves a change, is an exception from outside.

        Does nothing in a callback, or if it has ended already. Raises BrokenPlugin, which names the store, if a plugin has
        raised ``error``. Caller holds no lock, and raises ``error`` again.
        """
        if (broken := blame(error)) is not None:
            raise BrokenPlugin(f"{self.path}: {broken}") from error
        if not in_callback and self.refuse_after(error) and not self._is_released:
            self._is_released = True
            self.callbacks.threads.discard(get_ident())  # the exception may have come where a callback begins or ends
            self.release()

    def refuse_after(self, error: BaseException) -> bool:
        """Let every later call raise StoreClosed if ``error``, which leaves a change, is an exception from outside; return True
        then. Caller may hold locks: a thread that waits for them must not go on with half of the change."""
        if (isinstance(error, Exception) and not comes_from_outside(error)) or get_ident() in self.own_threads:
            return False
        if blame(error) is not None:
            return False
        if self.interrupted is None:
            self.interrupted = StoreClosed(
                f"{self.path}: {type(error).__name__} came in the middle of a change, so the store was closed as by a killed "
                "process. Confirmed messages are on disk: open the store again."
            )
            self.refuse(self.interrupted)
        return True


class _Change:
    """The type of :attr:`Lifecycle.change`. Not a lock itself: an interrupt could come between the lock and its release."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def __enter__(self) -> None:
        self._lifecycle.check_not_interrupted()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._lifecycle.refuse_after(error)


class _Guard:
    """Result of :meth:`Lifecycle.guard`. A generator would make each write of a second reference a microsecond slower."""

    __slots__ = ("_in_callback", "_lifecycle")

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._in_callback = get_ident() in lifecycle.callbacks.threads

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._lifecycle.handle_exception(error, in_callback=self._in_callback)


def warn_of_unconfirmed(path: Path, pending: Sized, unconfirmed: Mapping[int, Sized]) -> None:
    """Warn of a store that is collected, or still open when the interpreter exits, and has writes to confirm. Takes no lock.

    ``pending`` holds the messages in memory, ``unconfirmed`` the ids that each client waits for.
    """
    count = max(len(pending), sum(map(len, list(unconfirmed.values()))))
    if count:
        lost = f"at least {count} writes are not confirmed: they may be lost"
        text = f"{path}: the store was never closed, and {lost}. Call close()."
        log.warning("%s", text)
        warnings.warn(text, ResourceWarning, stacklevel=2)
