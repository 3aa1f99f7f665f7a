"""Writer: takes messages into the write buffer, removes references, and decides when the buffer is written.

Above BUFFER_TARGET writing threads append the oldest messages, each call one short step; with ``fsync`` they ask for a
background flush instead. From a threshold below ``max_unconfirmed`` uncommitted bytes on, the calling thread flushes. With a
persistent index it asks for a background flush when a quarter of the threshold was appended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgstore.config import StoreConfig
from msgstore.contract import BrokenPlugin, MessageNotFound, MsgStoreError, StoreClosed, StoreIOError, StoreReadOnly
from msgstore.engine.backends import Backends, too_large
from msgstore.engine.client import Client, check_id
from msgstore.engine.segment.segment import io_error, io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.engine.write.batch_writer import BatchWriter
from msgstore.engine.write.flusher import DRAIN_STEP, BackgroundFlusher, Flusher
from msgstore.engine.write.write_buffer import OVERHEAD, Popped, WriteBuffer
from msgstore.plugins.loader import comes_from_outside

log = logging.getLogger("msgstore.writer")

BUFFER_TARGET = 16 * 2**20
"""Charged bytes that may stay in the write buffer: a message that is removed there never costs a write."""
_WORTH_A_COUNT = BUFFER_TARGET - 2**20
"""Before a drain the buffer is counted, unless its number of messages and their mean size say that it has more bytes than
this. The difference of 1 MiB to BUFFER_TARGET keeps a full buffer from being counted before each drain."""


class Writer:
    """One instance per open store. Thread-safe."""

    def __init__(self, config: StoreConfig, backends: Backends, accounting: LiveAccounting, lifecycle: Lifecycle) -> None:
        self._config = config
        self._backends = backends
        self._accounting = accounting
        self._lifecycle = lifecycle
        self._index = accounting.index
        self.buffer = WriteBuffer(self._is_indexed)
        self.batches = BatchWriter(config, backends.write_format, self.buffer, accounting)
        self.flusher = Flusher(config, self.buffer, self.batches, accounting, lifecycle)
        self.background = BackgroundFlusher(self.flusher, accounting, config)
        self._encode_body = backends.encode_body
        self._max_body = backends.write_format.format.max_body
        self._flush_each_call = not config.sync_interval
        self._fast_body_limit = 0 if self._encode_body else min(config.large_message, self._max_body + 1)
        self._charge_step = 1 if self._flush_each_call else min(DRAIN_STEP, config.max_unconfirmed // 256)
        """Bytes that a client writes between two charges."""
        self._flush_at: int = config.max_unconfirmed
        """Uncommitted bytes at which a writing thread flushes: ``max_unconfirmed`` less what clients have not charged yet."""
        self._is_failing = False
        """True after a failed attempt to write, until one succeeds: each ``write`` flushes before it takes its message."""
        self.wait_for_backlog: Callable[[], object] = lambda: None
        """Set by the store: block while the collector is too far behind."""
        lifecycle.on_refusal = self._update_fast_paths
        self.flusher.set_failing = self.set_failing

    # -- clients ----------------------------------------------------------------------------------------------------------

    def register_client(self, client: Client) -> None:
        """Give a new client its calls ``write`` and ``remove``. Caller holds the state lock."""
        client.write, client.set_size_limit = self.buffer.make_fast_path(
            client.number,
            client.unconfirmed,
            self._fast_limit,
            self._charge_step,
            self.background.wake,
            self.charge,
            partial(self.write_slow, client),
            self._on_error,
        )
        client.remove = self.buffer.make_remover(client.number, partial(self.remove_slow, client))
        self.flusher.clients.append(client)
        client.set_size_limit(self._fast_limit)  # it may have changed before the client was in the list
        if client.unconfirmed is not None:
            self.flusher.unconfirmed[client.number] = client.unconfirmed
        self._update_flush_at()

    def unregister_client(self, client: Client) -> None:
        """Confirm nothing to the client any more. Caller holds the state lock."""
        if client in self.flusher.clients:
            self.flusher.clients.remove(client)
            self.flusher.unconfirmed.pop(client.number, None)
            self._update_flush_at()

    def _update_flush_at(self) -> None:
        """Leave room for what clients have not charged yet: with more than 128 clients, for half of the limit only."""
        limit = self._config.max_unconfirmed
        self._flush_at = max(limit - self._charge_step * len(self.flusher.clients), limit // 2)

    def close_client(self, client: Client) -> None:
        """Flush until everything of a client is confirmed, and unregister it; from the end of the first flush on it may write
        nothing more. Raises as ``flush``: StoreClosed while the store is being closed, and if it ended without a flush."""
        lifecycle = self._lifecycle
        if not lifecycle.is_saved:
            if lifecycle.refusal is not None and not lifecycle.is_closing:
                raise lifecycle.refusal.with_traceback(None)
            self.flusher.flush()
            try:
                client.takes_writes = False
                client.set_size_limit(0)
                if client.unconfirmed is None and self.buffer.has_messages_of(client.number):
                    self.flusher.flush()
                while client.unconfirmed and client in self.flusher.clients:
                    self.flusher.flush()
                with self._accounting.flush_lock:  # so that no call of ``on_confirm`` is under way
                    pass
            except BaseException:
                client.takes_writes = True
                self._update_fast_paths()
                raise
        with self._accounting.state_lock:
            self.unregister_client(client)

    def discard_client(self, client: Client) -> None:
        """Unregister a client and drop what only it has written."""
        with self._lifecycle.guard(), self._accounting.state_lock, self._lifecycle.change, io_errors(self._config.path):
            self.buffer.drop_client(client.number)
            self.unregister_client(client)
            if client.unconfirmed is not None:
                client.unconfirmed.clear()

    def _on_error(self, error: BaseException) -> None:
        """Do what ``guard`` does, which would make each removal a tenth slower."""
        self._lifecycle.handle_exception(error, in_callback=self._lifecycle.callbacks.is_inside)

    def _is_indexed(self, msg_id: bytes) -> bool:
        return self._index.get(msg_id) is not None

    @property
    def _fast_limit(self) -> int:
        """Bytes from which on a body takes the slow path; 0 while changes are refused or must flush first."""
        return 0 if self._lifecycle.refusal is not None or self._is_failing else self._fast_body_limit

    def _update_fast_paths(self) -> None:
        while True:
            limit = self._fast_limit
            for client in list(self.flusher.clients):
                client.set_size_limit(limit if client.takes_writes else 0)
            if limit == self._fast_limit:  # or another thread has changed it, and may have been overtaken
                return

    def set_failing(self, is_failing: bool) -> None:
        """Note the result of a flush."""
        if self._is_failing != is_failing:
            self._is_failing = is_failing
            self._update_fast_paths()

    # -- write ------------------------------------------------------------------------------------------------------------

    def write_slow(self, client: Client, msg_id: bytes, body: bytes) -> None:
        """Take what the fast path did not: a buffered id, a large or encoded body, one not of ``bytes``, a mistake."""
        client.check_open()
        check_id(msg_id)
        if isinstance(body, bytearray | memoryview):
            body = bytes(body)
        elif not isinstance(body, bytes):
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        self._lifecycle.check_writable()
        if self._encode_body is not None:
            body = self._encode_body(msg_id, body)
        elif len(body) > self._max_body:
            raise too_large(self._config.path, len(body), self._backends.write_format)
        self.batches.seen_large |= len(body) >= self._config.large_message
        if self._is_failing:
            self._flush_first("The message was not taken: repeat the write.")
        self.background.wake()
        with self._lifecycle.guard(), self._accounting.state_lock:
            try:  # as ``change``, which would make each call a tenth slower
                client.check_writable()
                self._lifecycle.check_writable()
                self.buffer.add(msg_id, body, client.number)
                if client.unconfirmed is not None:
                    client.unconfirmed.append(msg_id)
                self.buffer.estimated_bytes += len(body) + OVERHEAD
                self.flusher.uncommitted_bytes += len(body) + OVERHEAD
            except BaseException as error:
                self._lifecycle.refuse_after(error)
                raise
        self._pace()

    def charge(self, charged: int) -> None:
        """Note bytes that a client has written, OVERHEAD included, and pace it."""
        with self._lifecycle.guard(), self._accounting.state_lock:
            self.buffer.estimated_bytes += charged
            self.flusher.uncommitted_bytes += charged
        self._pace()

    def _pace(self) -> None:
        """Wait for the collector, drain or flush if it is time. Called after a write."""
        if not self._lifecycle.callbacks.is_inside:  # or the collector may wait for this thread
            self.wait_for_backlog()
        self._after_change("The message was taken: do not repeat the write.")

    def _after_change(self, outcome: str) -> None:
        """Flush or drain if it is time. If each call flushes, an error says ``outcome``; otherwise it is logged, and the next
        ``write`` flushes first, and raises if that fails again."""
        flusher, buffer = self.flusher, self.buffer
        must_flush = self._flush_each_call or flusher.uncommitted_bytes > self._flush_at
        may_commit = self._accounting.is_persistent and self._accounting.appended_bytes > self._flush_at // 4
        if not (must_flush or may_commit or buffer.estimated_bytes > BUFFER_TARGET):
            return
        try:
            with self._lifecycle.guard():
                if must_flush:
                    flusher.flush_or_defer()
                elif may_commit:
                    self.background.request()
                if buffer.estimated_bytes > BUFFER_TARGET:
                    if self._config.durability == "fsync":
                        self.background.request()
                    else:
                        self._drain()
        except Exception as error:
            self.set_failing(self._lifecycle.refusal is None)
            if self._lifecycle.interrupted is not None:
                raise
            if not self._flush_each_call:
                if not isinstance(error, StoreClosed):
                    log.warning("%s: writing failed, and is tried again before the next write: %s", self._config.path, error)
                return
            if isinstance(error, StoreIOError):
                raise StoreIOError(f"{error} {outcome}", applied=True) from error.__cause__
            raise

    def _drain(self) -> None:
        """Drain, unless removals have left less in the buffer than was charged.

        A count takes a millisecond. So the bytes are counted only if the number of messages shows that many were removed.
        """
        buffer = self.buffer
        if buffer.mean_charge * len(buffer.pending) < _WORTH_A_COUNT:
            with self._accounting.state_lock:
                buffer.count()
        if buffer.estimated_bytes > BUFFER_TARGET:
            self.flusher.drain()

    # -- remove -----------------------------------------------------------------------------------------------------------

    def remove_slow(self, client: Client, popped: Sequence[Popped]) -> None:
        """Remove one reference of each id. Raises MessageNotFound for absent ids after the others were removed."""
        try:
            for msg_id, _ in popped:
                check_id(msg_id)
            with self._accounting.state_lock:
                try:  # as ``change``
                    client.check_open()
                    self._lifecycle.check_writable()  # under the lock: a thread that closes the store has held it since
                    on_disk, missing = self._release(popped, client.number)
                    if self._accounting.is_persistent:
                        self.flusher.uncommitted_bytes += on_disk * OVERHEAD
                except BaseException as error:
                    self._lifecycle.refuse_after(error)
                    raise
        except (ValueError, StoreClosed, StoreReadOnly):
            if not isinstance(self._lifecycle.refusal, StoreClosed):
                self._restore(popped)
            elif self._lifecycle.interrupted is None and all(entry and isinstance(entry[1], int) for _, entry in popped):
                return  # they were removed before the store was closed, which has confirmed them without a record
            raise
        except BrokenPlugin as error:
            raise BrokenPlugin(f"{self._config.path}: {error}") from error
        except BaseException as error:
            self._on_error(error)
            raise
        if on_disk:
            self.background.wake()
            if self.flusher.uncommitted_bytes > self._config.max_unconfirmed:
                self.buffer.before_removals[:] = [partial(self._flush_first, "Nothing was removed: repeat the removal.")]
            self._after_change("The messages were removed: do not repeat the removal.")
        if missing:
            raise MessageNotFound(missing, str(self._config.path))

    def _release(self, popped: Sequence[Popped], client: int) -> tuple[int, list[bytes]]:
        """Return how many ids the index was asked for, and the absent ones. Raises StoreIOError.

        Caller holds the state lock.
        """
        pending, shared, release = self.buffer.pending, self.buffer.shared, self.buffer.release_reference
        ids = [
            msg_id
            for msg_id, entry in popped
            if (entry is None and msg_id not in pending and msg_id not in shared) or not release(msg_id, client, entry)
        ]
        if not ids:
            return 0, ids
        try:
            released = self._accounting.release(ids)
        except OSError as error:
            if comes_from_outside(error):
                raise
            failure = io_error(self._config.path, None, error)
            outcome = f"{len(ids)} references were not removed: repeat the removal with error.ids, {ids[0].hex()} first."
            raise StoreIOError(f"{failure} {outcome}", ids=ids) from error
        if len(released.missing) < len(ids):
            self._accounting.mark_dead(released.freed)
        return len(ids), released.missing

    def _restore(self, popped: Sequence[Popped]) -> None:
        """Put back what a refused removal has popped, and flush: an earlier flush may have confirmed these ids without them."""
        with self._lifecycle.guard(), self._accounting.state_lock, self._lifecycle.change:
            self.buffer.restore_popped(popped)
        if any(entry for _, entry in popped) and not self._lifecycle.callbacks.is_inside:
            try:
                with self._lifecycle.guard():
                    self.flusher.flush_or_defer()
            except MsgStoreError as error:
                log.warning("%s: %s", self._config.path, error)

    def _flush_first(self, outcome: str, ids: Iterable[bytes] = ()) -> None:
        """Flush before a change, after a failure: otherwise unwritten changes would fill the memory. ``ids``: of a removal."""
        try:
            with self._lifecycle.guard():
                self.flusher.flush_or_defer()
        except StoreIOError as error:
            raise StoreIOError(f"{error} {outcome}", applied=False, ids=list(ids)) from error.__cause__

    def references(self, msg_id: bytes) -> int:
        """Return the number of references of a message; 0 if there is none. Caller holds the state lock."""
        return self.buffer.references(msg_id) + self._index.references(msg_id)
