"""The store: opening, closing, and what is asked of the whole of it. Messages go through its clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Literal

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import MessageNotFound, SegmentStats, StoreClosed
from msgstore.contract.locations import unpack_location
from msgstore.engine import forking
from msgstore.engine.client import Client, OnConfirm
from msgstore.engine.compact.background_collector import BackgroundCollector
from msgstore.engine.compact.collection_result import CollectionResult
from msgstore.engine.compact.garbage_collector import GarbageCollector
from msgstore.engine.events.counters import Counters
from msgstore.engine.open.clean_stop import publish_clean, save_clean
from msgstore.engine.open.recovery import Recovery
from msgstore.engine.open.startup import Parts
from msgstore.engine.segment.errors import io_errors
from msgstore.engine.unclosed import watch_for_close
from msgstore.engine.write.flusher import Flusher
from msgstore.engine.write.writer import check_id
from msgstore.scan import WholeRecord

Mode = Literal["rw", "r"]
Progress = Callable[[int, int], object]
"""Called with (done, total) of the segments at work."""


@attrs.frozen
class StoreStats:
    """One moment of a store. Sizes in bytes, of whole records."""

    messages: int
    """Live messages, pending ones included."""
    pending: int
    """Messages that are not on disk yet."""
    segments: int
    """Segment files."""
    bytes_on_disk: int
    """Of all segments."""
    live_bytes: int
    """Of the records of live messages."""
    garbage_bytes: int
    """What a collection can give back, at most."""
    quarantined: int
    """Segments in which damage was found."""
    callback_failures: int
    """Times that an ``on_confirm`` raised."""
    recovery: Recovery
    """How the store came up."""
    counters: Counters
    """What it has done since."""

    @property
    def observer_failures(self) -> int:
        """Times that an observer raised, or could not be told of an event."""
        return self.counters.observer_failures


@attrs.frozen
class Entry:
    """One live message of a store, for tools."""

    msg_id: bytes
    """16 bytes."""
    number: int
    """The segment's."""
    offset: int
    """Of the record in its segment."""
    size: int
    """Of the whole record."""
    references: int
    """How many."""
    location: int
    """Number, offset and size in one integer, as indexes have it."""


class Store:
    """An open store directory. Made by :func:`msgstore.open_store`. A context manager: leaving it closes the store.

    Every method may be called from any thread. Calls on one store take turns; reads of what is on disk need not wait.
    """

    def __init__(self, config: StoreConfig, parts: Parts, mode: Mode) -> None:
        self.path = config.path
        self.mode = mode
        self._config = config
        self._parts = parts
        self._writer = parts.writer
        self._reader = parts.reader
        self._segments = parts.segments
        self._closed = False
        self._ledger = parts.writer.ledger
        self._found = len(parts.writer.index) if mode == "rw" else 0
        self._collection = GarbageCollector(parts.writer)
        self._numbers = count(1)
        gc_interval = config.gc_interval if mode == "rw" else 0
        self._collector = BackgroundCollector(self._collection, self._ledger, gc_interval, config.file_size_limit)
        self._flusher = Flusher(parts.writer, config.sync_interval, config.fsync_every) if mode == "rw" else None
        self._disowned = False
        self._unclosed = watch_for_close(self, config.path, parts.writer.intake.pending, parts.writer.unconfirmed)
        forking.watch(self)

    def client(self, name: str | bytes | None = None, on_confirm: OnConfirm | None = None) -> Client:
        """A new client. ``on_confirm(ids)`` is called once a flush with the ids that it made safe, in the order of writing,
        on the thread whose call flushed or on the store's flusher thread, one client at a time; it may use the store.

        A named client is remembered in ``clean.dot``, as RabbitMQ remembers its queues; one without a name is not.
        """
        if not isinstance(name, str | bytes | None):
            raise TypeError(f"a client's name is text or bytes, not {type(name).__name__}")
        if on_confirm is not None and not callable(on_confirm):
            raise TypeError(f"on_confirm is a function that takes a list of ids, not {type(on_confirm).__name__}")
        self._writer.check_open()
        ref = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
        with self._ledger.lock:
            shown = name.hex() if isinstance(name, bytes) else name
            client = Client(self, next(self._numbers), shown, on_confirm)
            if ref is not None and self.mode == "rw":
                self._parts.client_refs.add(ref)
        return client

    def let_go(self, client: Client) -> None:
        """``client.close()``: confirm what it wrote, and forget it."""
        if not self._closed and self.mode == "rw":
            self._writer.flush()
        with self._ledger.lock:
            self._writer.dismiss(client)

    def forget(self, client: Client) -> None:
        """``client.delete_and_close()``: forget it, and what only it has written."""
        with self._ledger.lock:
            self._writer.dismiss(client)
            if client.unconfirmed is not None:
                client.unconfirmed.clear()  # also for a flush that has counted them, and meets none of them any more
            with self._writer.whole(), io_errors(self.path):
                self._writer.intake.drop_client(client.number, lambda msg_id: self._writer.index.get(msg_id) is not None)

    def flush(self) -> None:
        """Returns when everything written so far is confirmed. Raises StoreIOError; what failed stays pending."""
        self._writer.flush()

    def roll(self) -> None:
        """Seal the current segment; the next message begins a new one. Sealed segments change only when they are collected.

        Everything is flushed, and hints are written for what a start after a crash would have to read."""
        with self._ledger.flushing:
            self._writer.flush()
            self._writer.check_open()  # a client that was told may have let go of the directory
            with self._writer.whole():
                self._writer.appender.seal()
                self._writer.settle(hints=True)

    def compact(self, *, everything: bool = False, progress: Progress | None = None) -> list[CollectionResult]:
        """Collect what the GC policy names, or every segment with garbage; delete the empty ones. Returns what was done.

        The current segment is left alone. Segments in which damage is found are left as they are, and say so.
        """
        with self._collection.locks_kept():
            return self._collection.collect(everything=everything, progress=progress)

    def migrate(self, *, progress: Progress | None = None) -> list[CollectionResult]:
        """Rewrite every segment of an older format in the store's own, and delete the old ones. Returns what was done."""
        with self._collection.locks_kept():
            return self._collection.migrate(progress)

    def stats(self) -> StoreStats:
        """One moment of the store, in numbers. Takes time in proportion to the number of segments and of pending messages."""
        with self._ledger.lock:
            self._writer.check_open()
            segments = self._collection.stats()
            pending = list(self._writer.intake.pending)
            with io_errors(self.path):
                new = sum(self._writer.index.get(msg_id) is None for msg_id in pending)
            return StoreStats(
                messages=len(self._writer.index) + new,
                pending=len(pending),
                segments=len(segments),
                bytes_on_disk=sum(s.size for s in segments),
                live_bytes=sum(s.live_bytes for s in segments),
                garbage_bytes=sum(s.garbage_bytes for s in segments),
                quarantined=sum(s.quarantined for s in segments),
                callback_failures=self._writer.callback_failures,
                recovery=self._parts.recovery,
                counters=self._counters(),
            )

    def _counters(self) -> Counters:
        """As of now. What was removed is calculated: to count it would cost something a message."""
        telemetry = self._segments.telemetry
        now = telemetry.counters
        come = self._found + now.written_messages + now.revived_messages
        gone = come - len(self._writer.index) - now.dropped_messages if self.mode == "rw" else 0
        return attrs.evolve(now, removed_messages=gone, observer_failures=telemetry.dispatcher.failures)

    def segments(self) -> list[SegmentStats]:
        """Every segment, in number order."""
        with self._ledger.lock:
            self._writer.check_open()
            return self._collection.stats()

    def entries(self) -> Iterator[Entry]:
        """Every live message that is on disk, by segment and offset, as of the call."""
        with self._ledger.lock:
            self._writer.check_open()
            found = sorted((location, msg_id, refs) for msg_id, location, refs in self._writer.index.items())
        return (Entry(msg_id, *unpack_location(location), refs, location) for location, msg_id, refs in found)

    def stored_body(self, entry: Entry) -> bytes:
        """The body of an entry as it is stored, without the codec, wherever it is by now.

        Raises MessageNotFound if it was removed meanwhile, CorruptRecord, StoreIOError."""
        with self._ledger.lock:
            return self._reader.stored(entry.msg_id, self._place(entry))

    def entry(self, msg_id: bytes) -> Entry | None:
        """Of one message; None if it is not on disk. ValueError for what is not an id."""
        check_id(msg_id)
        with self._ledger.lock:
            self._writer.check_open()
            with io_errors(self.path):
                location = self._writer.index.get(msg_id)
            if location is None:
                return None
            return Entry(msg_id, *unpack_location(location), self._writer.references(msg_id), location)

    def record(self, entry: Entry) -> WholeRecord:
        """The whole record of an entry, checked, wherever it is by now. Raises what ``stored_body`` raises."""
        with self._ledger.lock:
            return self._reader.record(entry.msg_id, self._place(entry))

    def _place(self, entry: Entry) -> int:
        """Under the lock: where the message is now. Collections have moved it since, perhaps, and reused what it left."""
        self._writer.check_open()
        with io_errors(self.path):
            location = self._writer.index.get(entry.msg_id)
        if location is None:
            raise MessageNotFound([entry.msg_id], str(self.path))
        return location

    def references(self, msg_id: bytes) -> int:
        """The number of references of a message; 0 if there is none. ValueError for what is not an id."""
        check_id(msg_id)
        with self._ledger.lock:
            self._writer.check_open()
            with io_errors(self.path):
                return self._writer.references(msg_id)

    def close(self) -> None:
        """Flush, save the index and ``clean.dot``, let go of the directory. Closing twice is fine.

        If something cannot be written the error is raised and the store stays open, with everything in it: call ``close``
        again when there is room, or ``abandon``.
        StoreClosed is raised if a change was interrupted, by Ctrl-C or a signal's handler that raised: then nothing is flushed
        or saved, and the next opening recovers as after a killed process.
        """
        if self._disowned:
            return
        if self._writer.broken is not None and not self._closed:
            self.abandon()
            raise self._writer.broken
        with self._collection.locks_kept(), self._ledger.flushing, self._collection.ended():
            told = self._writer.depth > 0  # by a client that was told: the flusher may be waiting for that very flush
            if self.mode == "rw" and not self._closed:
                self._writer.flush()
            if not self._closed:  # a client that was just told may have closed it
                with self._writer.whole():
                    self._close()
        self._stop_threads(wait=not told)

    def _close(self) -> None:
        late: list[tuple[Client, int]] = []
        is_saved = False
        if self.mode == "rw":
            self._refuse(StoreClosed(f"{self.path}: the store is being closed"))
            try:
                late = self._writer.write_out(last=True)  # what was written since the flush, by a client that was told, for one
                self._collection.erase()
                is_saved = save_clean(self._ledger, self._parts.client_refs)
            except Exception:
                self._refuse(None)
                raise
        try:
            if is_saved:
                publish_clean(self._ledger)
        finally:
            self._let_go("closed")
        self._writer.tell(late)

    def _refuse(self, error: StoreClosed | None) -> None:
        with self._ledger.lock:
            self._writer.refuse(error)

    def abandon(self) -> None:
        """Let go of the directory as a killed process would: nothing is flushed, nothing is saved."""
        if self._disowned:
            return
        with self._collection.locks_kept(), self._ledger.flushing, self._collection.ended():
            told = self._writer.depth > 0
            if not self._closed:
                self._let_go("abandoned")
        self._stop_threads(wait=not told)

    def disown(self) -> None:
        """In a child process, right after the fork: the store stays the parent's, and every call here raises StoreClosed.

        Waits for no lock: whoever held it is not in this process."""
        self._disowned = self._closed = True
        self._unclosed.detach()
        if self._parts.lock:
            self._parts.lock.disown()
        self._ledger.lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own
        self._ledger.flushing._at_fork_reinit()  # type: ignore[attr-defined]  # the same
        error = StoreClosed(
            f"{self.path}: the store is open in process {os.getppid()}, which this process was forked from. A fork does not "
            "share a store: open it after the fork, in one of the two."
        )
        self._writer.refuse(error)
        for client in list(self._writer.clients):
            client.end(error)

    def _let_go(self, how: Literal["closed", "abandoned"]) -> None:
        try:
            with self._ledger.lock:
                self._let_go_of_all(how)
        except BaseException as error:
            self._writer.check_whole(error)
            self._closed = isinstance(error, Exception)  # what was interrupted is done again
            raise
        self._closed = True
        self._unclosed.detach()

    def _let_go_of_all(self, how: Literal["closed", "abandoned"]) -> None:
        with ExitStack() as stack:  # every one of them, even if one fails
            self._writer.refuse(StoreClosed(f"{self.path}: the store is {how}"))
            self._writer.intake.clear()  # or a read would still find what was never written
            stack.callback(self._segments.telemetry.closed, how)
            if self._parts.lock:
                stack.callback(self._parts.lock.release)
            stack.callback(self._segments.close)
            stack.callback(self._writer.index.close, None)  # nothing to do if it was saved

    def _stop_threads(self, *, wait: bool) -> None:
        """Without any lock: the threads may be waiting for one."""
        if self._flusher:
            self._flusher.stop(wait=wait)
        self._collector.stop(wait=wait)
        if wait:
            self._segments.telemetry.dispatcher.wait()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer.broken is not None and error is not None:
            self.abandon()  # and what interrupted it goes on its way
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<msgstore.Store {str(self.path)!r}{' closed' if self._closed else ''}>"
