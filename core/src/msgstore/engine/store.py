"""Store: an open directory. It makes clients, compacts, answers questions about all messages, and closes."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from operator import itemgetter
from types import TracebackType
from typing import Literal

import attrs

from msgstore import forking
from msgstore.contract import MsgStoreError, SegmentStats, StoreClosed, StoreReadOnly
from msgstore.contract.events import StoreClosedEvent
from msgstore.engine.client import Client, OnConfirm, check_id
from msgstore.engine.compact.garbage_collector import GarbageCollector, ProgressCallback
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.open.startup import OpenDirectory
from msgstore.engine.read.reader import Reader
from msgstore.engine.segment.segment import io_errors
from msgstore.engine.state.clean_shutdown import publish_clean
from msgstore.engine.state.lifecycle import Lifecycle, warn_of_unconfirmed
from msgstore.engine.stats import StoredMessage, StoreStats, sums_of
from msgstore.engine.write.writer import Writer
from msgstore.locations import unpack_location
from msgstore.plugins.loader import comes_from_outside
from msgstore.scan import WholeRecord

log = logging.getLogger("msgstore.store")

Mode = Literal["rw", "r"]


class Store:
    """An open store directory. Made by :func:`msgstore.open_store`. Leaving it as a context manager closes it.

    Any method may be called from any thread. In a callback (``on_confirm``, progress, observer) ``flush``, ``roll``,
    ``compact``, ``migrate``, ``close`` and ``abandon`` raise RuntimeError.
    """

    read: Callable[[bytes], bytes]
    """As ``read`` of a client."""
    read_many: Callable[[Iterable[bytes]], dict[bytes, bytes]]
    """As ``read_many`` of a client."""
    contains: Callable[[bytes], bool]
    """As ``contains`` of a client."""
    flush: Callable[[], None]  # Flusher.flush
    """Write all buffered messages, commit the index, and confirm the messages to their clients. With ``fsync_every`` sync and
    commit follow later.

    Returns when every message written before the call is confirmed. Raises StoreIOError if a write, sync or commit fails:
    unwritten messages stay buffered, and the next flush retries. Raises StoreClosed, StoreReadOnly; RuntimeError in a callback.
    """

    def __init__(self, opened: OpenDirectory, mode: Mode, make_reader: Callable[..., Reader] = Reader) -> None:
        config, backends, accounting = opened.config, opened.backends, opened.accounting
        lifecycle = Lifecycle(config.path)
        self.path = config.path
        self.mode = mode
        self._opened, self._accounting, self._lifecycle = opened, accounting, lifecycle
        self._segments, self._index = accounting.segments, accounting.index
        self._initial_messages = len(self._index) if mode == "rw" else 0
        self._numbers = count(1)
        self._is_closed = False
        self._is_disowned = False
        lifecycle.release = self._release_interrupted
        accounting.change = lifecycle.change
        self._segments.telemetry.in_callback = lifecycle.callbacks.running
        self._writer = Writer(config, backends, accounting, lifecycle)
        self._buffer, self._flusher = self._writer.buffer, self._writer.flusher
        self._reader = make_reader(backends, accounting, lifecycle, self._buffer.get, opened.lock_text)
        if mode == "rw":
            has_global_lock = getattr(sys, "_is_gil_enabled", lambda: True)()  # no map is closed while a slice of it is taken
            self._reader.use_fast_path(self._buffer.pending, mapped=config.reads == "mmap" and has_global_lock)
        self.flush = self._flusher.flush
        self.read, self.read_many, self.contains = self._reader.read, self._reader.read_many, self._reader.contains
        self._collector = GarbageCollector(config, backends, accounting, lifecycle, self._flusher.commit_and_reclaim)
        self._gc_lock = self._collector.gc_lock
        pending, unconfirmed = self._buffer.pending, self._flusher.unconfirmed
        self._unclosed = weakref.finalize(self, warn_of_unconfirmed, config.path, pending, unconfirmed)
        if mode == "r":
            error = StoreReadOnly(f"{config.path}: was opened with mode='r'; open it with mode='rw' to change it")
            lifecycle.refuse(error)
            lifecycle.is_saved = True
        accounting.request_gc = self._collector.request
        self._writer.wait_for_backlog = self._collector.wait_for_backlog
        forking.watch(self)

    def start(self) -> None:
        """Start the threads. Called once, by the opening."""
        config = self._opened.config
        if self.mode == "rw" and config.gc_interval:
            self._collector.thread.start()
        if self.mode == "rw" and (config.sync_interval or config.fsync_every):
            self._writer.background.thread.start()

    def stop_threads(self) -> None:
        """End the threads, and wait for them. Caller holds no lock."""
        self._writer.background.stop()
        self._collector.stop()

    def client(self, name: str | bytes | None = None, on_confirm: OnConfirm | None = None) -> Client:
        """Return a new client. ``on_confirm(ids)`` is called once per flush with the ids that it confirmed, in write order.

        It is called on the thread that flushed, one client at a time, and may write, read and remove. If it raises an
        Exception, that is logged, and the ids are not confirmed again. Anything else, such as SystemExit, ends the store as an
        interrupt does; on the thread of the store it is logged, too. A named client is remembered in ``clean.dot``, as RabbitMQ
        remembers its queues. Raises TypeError, StoreClosed.
        """
        self._lifecycle.check_open()
        with self._accounting.state_lock:
            ends = self._writer.close_client, self._writer.discard_client
            client = Client(self.path, next(self._numbers), name, on_confirm, *ends)
            client.read, client.read_many, client.contains = self.read, self.read_many, self.contains
            self._writer.register_client(client)
            if client.ref is not None and self.mode == "rw":
                self._opened.client_refs.add(client.ref)
        return client

    # -- changes ----------------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Flush, and seal the current segment: the next message starts a new one. Write all hint files. Raises as ``flush``."""
        self._lifecycle.refuse_in_callback("roll")
        with self._lifecycle.guard(), self._accounting.flush_lock, self._lifecycle.change:
            self._flusher.flush_locked()
            self._writer.batches.seal()
            self._flusher.commit_and_reclaim(all_hints=True)

    def compact(self, *, everything: bool = False, progress: ProgressCallback | None = None) -> list[CollectionResult]:
        """Flush, and collect what the GC policy names, or with ``everything`` all segments with garbage. Delete empty ones.

        The current segment and damaged segments are not changed. Empty segments are usually deleted by the flush, and then not
        in the result. A segment that cannot shrink has the outcome ``none``. Raises as ``flush``.
        """
        self._lifecycle.refuse_in_callback("compact")
        with self._lifecycle.guard():
            self._flusher.flush()
            return self._collector.collect(everything=everything, progress=progress)

    def migrate(self, *, progress: ProgressCallback | None = None) -> list[CollectionResult]:
        """Flush, and copy every segment of another format into the store's format. Raises as ``flush``."""
        self._lifecycle.refuse_in_callback("migrate")
        with self._lifecycle.guard():
            self._flusher.flush()
            return self._collector.migrate(progress)

    # -- questions --------------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """Return statistics. Takes time linear in the number of segments, buffered messages and uncommitted changes."""
        with self._accounting.state_lock, io_errors(self.path):
            self._lifecycle.check_open()
            segments, pending = self._collector.stats(), list(self._buffer.pending)
            new = sum(self._index.get(msg_id) is None for msg_id in pending)
            now = self._segments.telemetry.counters
            added = self._initial_messages + now.written_messages + now.revived_messages
            # removals are calculated: counting them would cost time per message
            stored = len(self._index)
            removed = added - stored - now.dropped_messages if self.mode == "rw" else 0
            return StoreStats(
                messages=stored + new,
                pending=len(pending),
                **sums_of(segments),
                callback_failures=self._flusher.callback_failures,
                recovery=self._opened.recovery,
                counters=attrs.evolve(now, removed_messages=removed),
            )

    def segments(self) -> list[SegmentStats]:
        """Return statistics of every segment in number order."""
        with self._accounting.state_lock:
            self._lifecycle.check_open()
            return self._collector.stats()

    def entries(self) -> Iterator[StoredMessage]:
        """Return every live message on disk at the time of the call, by segment and offset."""
        found = self._reader.consistently(lambda: sorted(self._index.items(), key=itemgetter(1)))
        return (StoredMessage(msg_id, *unpack_location(location), refs, location) for msg_id, location, refs in found)

    def entry(self, msg_id: bytes) -> StoredMessage | None:
        """Return one message; None if there is none with this id, or not on disk yet. ValueError for what is not an id."""
        check_id(msg_id)
        locate, references_of = self._accounting.locate, self._writer.references
        location, references = self._reader.consistently(lambda: (locate(msg_id), references_of(msg_id)))
        return None if location is None else StoredMessage(msg_id, *unpack_location(location), references, location)

    def stored_body(self, entry: StoredMessage) -> bytes:
        """Return the stored body of a message, also if it has moved. Raises MessageNotFound, CorruptRecord, StoreIOError."""
        return self._reader.record(entry.msg_id).body

    def record(self, entry: StoredMessage) -> WholeRecord:
        """Return the whole record of a message, wherever it is now: its ``data`` and ``body``, ``path``, ``offset``, ``form``.

        ``msgstore.scan.describe(record)`` returns its type and fields: ``as_json()`` as text (``"record"``, ``"fields"``),
        ``values`` as they were stored, times in nanoseconds, ``bound.fields`` their names and kinds. ``bound`` and ``values``
        are None for a record without fields. Raises as ``stored_body``.
        """
        return self._reader.record(entry.msg_id)

    def references(self, msg_id: bytes) -> int:
        """Return the number of references of a message; 0 if there is none. ValueError for what is not an id."""
        check_id(msg_id)
        return self._reader.consistently(lambda: self._writer.references(msg_id))

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, save the index and ``clean.dot``, and release the directory. A second call does nothing.

        If something cannot be written, the error is raised and the store stays open: call ``close`` again when there is room,
        or ``abandon``. Raises StoreClosed if an interrupt has ended the store: nothing is flushed or saved then.
        """
        lifecycle = self._lifecycle
        if not self._is_disowned:
            lifecycle.refuse_in_callback("close")
        try:
            if lifecycle.interrupted is None:
                self._end("closed")
        except StoreClosed:
            if lifecycle.interrupted is None:
                raise
        if lifecycle.interrupted is not None and not self._is_disowned:
            self._end("abandoned")  # what the interrupted thread has not released yet
            raise lifecycle.interrupted.with_traceback(None)  # not all that was written is safe

    def abandon(self) -> None:
        """Release the directory as a killed process would: nothing is flushed, nothing is saved."""
        self._end("abandoned")

    def _end(self, how: Literal["closed", "abandoned"]) -> None:
        if self._is_disowned:
            return
        self._lifecycle.refuse_in_callback("close" if how == "closed" else "abandon")
        self._collector.is_stopping = True
        try:
            with self._lifecycle.guard(), self._gc_lock, self._accounting.flush_lock:
                try:
                    if not self._is_closed:
                        is_saved = how == "closed" and self.mode == "rw" and self._save()
                        try:
                            if is_saved:
                                publish_clean(self._segments)
                        finally:
                            self._release(how)
                except BaseException as error:
                    self._lifecycle.refuse_after(error)
                    raise
        finally:
            if self._is_closed:
                self.stop_threads()
                self._segments.telemetry.stop()

    def _save(self) -> bool:
        """Flush and save everything. Return False if nothing has changed. Caller holds the GC lock and the flush lock."""
        try:
            self._flusher.flush_locked()
            self._lifecycle.refuse(StoreClosed(f"{self.path}: the store is being closed"), is_closing=True)
            self._flusher.deliver_confirms(self._flusher.write_out(last=True))
            self._collector.erase()
            return self._accounting.save_clean(self._opened.client_refs)
        except Exception as error:
            self._lifecycle.refuse_after(error)
            self._lifecycle.refuse(None)
            self._collector.is_stopping = False
            raise

    def _release_interrupted(self) -> None:
        """Release everything after an interrupt. Caller holds no lock."""
        self._end_clients(self._lifecycle.interrupted)
        try:
            self.abandon()
        except MsgStoreError as error:  # the interrupt goes on
            log.warning("%s", error)

    def _end_clients(self, error: StoreClosed | None) -> None:
        for client in list(self._flusher.clients):
            client.end(error)

    def _release(self, how: Literal["closed", "abandoned"]) -> None:
        """Close index and files, and unlock the directory; all of it, even if a part fails. Caller holds both locks."""
        self._unclosed.detach()
        try:
            with self._accounting.state_lock, ExitStack() as stack:
                self._lifecycle.refuse(StoreClosed(f"{self.path}: the store is {how}"))
                self._buffer.clear()  # a read must not find what was never written
                stack.callback(self._segments.telemetry.note, StoreClosedEvent, how=how)
                stack.callback(self._opened.resources.close)
        except Exception as error:
            self._is_closed = not comes_from_outside(error)  # a second call could not do more
            raise
        self._is_closed = True  # not after an interrupt, which releases once more what this call did not reach
        self._lifecycle.is_saved |= how == "closed"

    def disown(self) -> None:
        """In a child process, right after a fork: the store stays the parent's. Waits for no lock."""
        self._is_disowned = self._is_closed = True
        self._unclosed.detach()
        if self._opened.lock:
            self._opened.lock.disown()
        forking.renew_locks(self._accounting.state_lock, self._accounting.flush_lock, self._gc_lock)
        error = StoreClosed(
            f"{self.path}: the store is open in process {os.getppid()}, which this process was forked from. A fork does not "
            "share a store: open it after the fork, in one of the two."
        )
        self._lifecycle.refuse(error)
        self._lifecycle.is_saved = True  # by the parent
        self._end_clients(error)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._lifecycle.interrupted is not None and error is not None:
                self.abandon()  # and the interrupt goes on
            else:
                self.close()
        except BaseException as problem:
            if not isinstance(problem, Exception):  # an interrupt that came before ``close`` had begun
                with suppress(MsgStoreError):
                    self.abandon()
            raise

    def __repr__(self) -> str:
        return f"<msgstore.Store {str(self.path)!r}{' closed' if self._is_closed else ''}>"
