"""Writer: takes messages into the write buffer, removes references, and decides when the buffer is written.

One threshold and one bound pace it. Above BUFFER_TARGET writing threads append the oldest messages, each call one short step;
with ``fsync`` they ask for a background flush instead. At ``max_unconfirmed`` bytes of changes that no commit covers yet, the
calling thread flushes. With a persistent index a quarter of that asks for a background flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgstore.config import StoreConfig
from msgstore.contract import MessageNotFound, MsgStoreError, StoreClosed, StoreIOError, StoreReadOnly
from msgstore.engine.backends import Backends, too_large
from msgstore.engine.client import Client, check_id
from msgstore.engine.segment.segment import io_error, io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.engine.write.batch_writer import BatchWriter
from msgstore.engine.write.flusher import DRAIN_STEP, Flusher
from msgstore.engine.write.write_buffer import OVERHEAD, Popped, WriteBuffer

log = logging.getLogger("msgstore.writer")

BUFFER_TARGET = 16 * 2**20
"""Charged bytes that may stay in the write buffer: a message that is removed there never costs a write."""


class Writer:
    """One instance per open store. Thread-safe."""

    def __init__(
        self,
        config: StoreConfig,
        backends: Backends,
        accounting: LiveAccounting,
        lifecycle: Lifecycle,
        buffer: WriteBuffer,
        batches: BatchWriter,
        flusher: Flusher,
    ) -> None:
        self._config = config
        self._backends = backends
        self._accounting = accounting
        self._lifecycle = lifecycle
        self._buffer = buffer
        self._batches = batches
        self._flusher = flusher
        self._index = accounting.index
        self._encode_body = backends.encode_body
        self._max_body = backends.write_format.format.max_body
        self._flush_each_call = not config.sync_interval
        self._fast_body_limit = 0 if self._encode_body else min(config.large_message, self._max_body + 1)
        self._charge_step = 0
        self._bound: int = config.max_unconfirmed
        """Uncommitted bytes at which a writing thread flushes: ``max_unconfirmed`` less what clients have not charged yet."""
        self._charged_since_count = 0
        """Bytes that were charged since the buffer was last counted. Guarded by the state lock."""
        self._is_failing = False
        """True after a failed attempt to write, until one succeeds: each ``write`` flushes before it takes its message."""
        self.wake_flusher: Callable[[], object] = lambda: None
        """Set by the store: there is something to flush within the usual interval."""
        self.request_flush: Callable[[], object] = lambda: None
        """Set by the store: flush now, in the background."""
        self.wait_for_backlog: Callable[[], object] = lambda: None
        """Set by the store: block while the collector is too far behind."""
        lifecycle.on_refusal.append(self._update_fast_paths)
        flusher.set_failing = self.set_failing

    # -- clients ----------------------------------------------------------------------------------------------------------

    def register_client(self, client: Client) -> None:
        """Give a new client its calls ``write`` and ``remove``. Caller holds the state lock."""
        self._set_charge_step(len(self._flusher.clients) + 1)
        client.fast_path = self._buffer.make_fast_path(
            client.number,
            client.unconfirmed,
            self._fast_limit,
            self._charge_step,
            self.wake_flusher,
            self.charge,
            partial(self.write_slow, client),
        )
        client.write = client.fast_path.write
        client.remove = self._buffer.make_remover(client.number, partial(self.remove_slow, client))
        self._flusher.clients.append(client)
        if client.unconfirmed is not None:
            self._flusher.unconfirmed[client.number] = client.unconfirmed

    def unregister_client(self, client: Client) -> None:
        """Confirm nothing to the client any more. Caller holds the state lock."""
        if client in self._flusher.clients:
            self._flusher.clients.remove(client)
            self._flusher.unconfirmed.pop(client.number, None)

    def discard_client(self, client: Client) -> None:
        """Unregister a client and drop what only it has written."""
        with self._lifecycle.guard(), self._accounting.state_lock, io_errors(self._config.path):
            self.unregister_client(client)
            if client.unconfirmed is not None:
                client.unconfirmed.clear()
            self._buffer.drop_client(client.number, self._is_indexed)

    def _is_indexed(self, msg_id: bytes) -> bool:
        return self._index.get(msg_id) is not None

    def _set_charge_step(self, clients: int) -> None:
        """Let clients charge so often that the bytes that none has charged yet stay below half of ``max_unconfirmed``."""
        most = 1 << (clients - 1).bit_length()  # in powers of two: not every new client changes all others
        size = 1 if self._flush_each_call else min(DRAIN_STEP // (1 + most // 8), self._config.max_unconfirmed // (2 * most))
        if size != self._charge_step:
            self._charge_step = size
            self._bound = self._config.max_unconfirmed - size * most
            for client in self._flusher.clients:
                client.fast_path.set_charge_step(size)

    @property
    def _fast_limit(self) -> int:
        """Bytes from which on a body takes the slow path; 0 while changes are refused or must flush first."""
        return 0 if self._lifecycle.refusal is not None or self._is_failing else self._fast_body_limit

    def _update_fast_paths(self) -> None:
        for client in self._flusher.clients:
            client.fast_path.set_size_limit(self._fast_limit)

    def set_failing(self, is_failing: bool) -> None:
        """Note the result of a flush."""
        if self._is_failing != is_failing:
            self._is_failing = is_failing
            self._update_fast_paths()

    # -- write ------------------------------------------------------------------------------------------------------------

    def write_slow(self, client: Client, msg_id: bytes, body: bytes) -> None:
        """Take what the fast path did not: a second reference, a large or encoded body, one not of ``bytes``, a mistake."""
        client.check_open()
        check_id(msg_id)
        body = _as_bytes(body)
        self._lifecycle.check_writable()
        if self._encode_body is not None:
            body = self._encode_body(msg_id, body)
        elif len(body) > self._max_body:
            raise too_large(self._config.path, len(body), self._backends.write_format)
        self._batches.seen_large |= len(body) >= self._config.large_message
        if self._is_failing:
            self._flush_first("The message was not taken: repeat the write.")
        self.wake_flusher()
        with self._lifecycle.guard():
            with self._accounting.state_lock:
                self._buffer.add(msg_id, body, client.number)
            if client.unconfirmed is not None:
                client.unconfirmed.append(msg_id)
        self.charge(len(body) + OVERHEAD)

    def charge(self, charged: int) -> None:
        """Note bytes that a client has written, OVERHEAD included. Wait for the collector, drain or flush if it is time."""
        flusher = self._flusher
        with self._accounting.state_lock:
            self._buffer.estimated_bytes += charged
            flusher.uncommitted_bytes += charged
            self._charged_since_count += charged
        if not self._lifecycle.callbacks.is_inside:  # or the collector may wait for this thread
            self.wait_for_backlog()
        self._after_change("The message was taken: do not repeat the write.")

    def _after_change(self, outcome: str) -> None:
        """Do what is due after a change. If each call flushes, an error says ``outcome``; otherwise it is logged, and the next
        ``write`` flushes first, and raises if that fails again."""
        is_due = self._flush_each_call or self._flusher.uncommitted_bytes > self._bound // 4
        if not (is_due or self._buffer.estimated_bytes > BUFFER_TARGET):
            return
        try:
            with self._lifecycle.guard():
                self._pace()
        except Exception as error:
            self.set_failing(self._lifecycle.refusal is None)
            if not self._flush_each_call:
                if not isinstance(error, StoreClosed):
                    log.warning("%s: writing failed, and is tried again before the next write: %s", self._config.path, error)
                return
            if isinstance(error, StoreIOError):
                raise _with_outcome(error, outcome, applied=True) from error.__cause__
            raise

    def _pace(self) -> None:
        flusher = self._flusher
        if self._flush_each_call or flusher.uncommitted_bytes > self._bound:
            flusher.flush_or_defer()
        elif flusher.uncommitted_bytes > self._bound // 4 and self._accounting.is_persistent:
            self.request_flush()
        if self._buffer.estimated_bytes > BUFFER_TARGET:
            if self._config.durability == "fsync":
                self.request_flush()
            else:
                self._count_and_drain()

    def _count_and_drain(self) -> None:
        """Drain, unless removals have left less in the buffer than was charged.

        A count takes milliseconds. So the bytes are counted only if there are too few messages for what was charged.
        """
        buffer = self._buffer
        is_count_due = self._charged_since_count >= BUFFER_TARGET // 2
        if is_count_due and buffer.estimated_bytes > 1.5 * buffer.mean_charge * len(buffer.pending):
            with self._accounting.state_lock:
                buffer.estimated_bytes = buffer.charged_bytes()
                self._charged_since_count = 0
        if buffer.estimated_bytes > BUFFER_TARGET:
            self._flusher.drain()

    # -- remove -----------------------------------------------------------------------------------------------------------

    def remove_slow(self, client: Client, popped: Sequence[Popped]) -> None:
        """Remove one reference of each id. Raises MessageNotFound for absent ids after the others were removed."""
        try:
            for msg_id, _ in popped:
                check_id(msg_id)
            with self._accounting.state_lock:
                client.check_open()
                self._lifecycle.check_writable()  # under the lock: a thread that closes the store has held it since
                released, missing = self._release(popped, client.number)
                if self._accounting.is_persistent:
                    self._flusher.uncommitted_bytes += released * OVERHEAD
        except (ValueError, StoreClosed, StoreReadOnly):
            self._restore(popped)
            raise
        except StoreIOError as error:
            if error.applied:
                raise
            self._restore(popped)
            ids = [msg_id for msg_id, _ in popped]
            outcome = f"{len(ids)} ids lost no reference: repeat the removal with error.ids, {ids[0].hex()} first."
            raise _with_outcome(error, outcome, applied=False, ids=ids) from error.__cause__
        except BaseException as error:  # as ``guard``, which would make each removal a tenth slower
            self._lifecycle.end_if_interrupted(error, in_callback=self._lifecycle.callbacks.is_inside)
            raise
        if released:
            self.wake_flusher()
            if self._flusher.uncommitted_bytes > self._config.max_unconfirmed:
                self._buffer.before_removals[:] = [partial(self._flush_first, "Nothing was removed: repeat the removal.")]
            self._after_change("The messages were removed: do not repeat the removal.")
        if missing:
            raise MessageNotFound(missing, str(self._config.path))

    def _release(self, popped: Sequence[Popped], client: int) -> tuple[int, list[bytes]]:
        """Return how many ids the index was asked for, and the absent ones. The index comes first, as only it can fail: then
        nothing was removed. Caller holds the state lock."""
        pending, shared = self._buffer.pending, self._buffer.shared
        on_disk: list[bytes] = []
        buffered: list[Popped] = []
        for msg_id, entry in popped:
            if entry is None and msg_id not in pending and msg_id not in shared:
                on_disk.append(msg_id)
            else:
                buffered.append((msg_id, entry))
        asked, missing = self._release_indexed(on_disk)
        if not buffered:
            return asked, missing
        # An id that was named more often than the buffer has references, or was removed from there since.
        late = [msg_id for msg_id, entry in buffered if not self._buffer.release_reference(msg_id, client, entry)]
        if late:
            try:
                _, absent = self._release_indexed(late)
            except StoreIOError as error:
                outcome = f"All was removed but one reference each of {len(late)} messages, {late[0].hex()} first."
                raise _with_outcome(error, outcome, applied=True, ids=late) from error.__cause__
            missing = missing + absent
        return asked + len(late), missing

    def _release_indexed(self, ids: Sequence[bytes]) -> tuple[int, list[bytes]]:
        try:
            released = self._index.release(ids)
        except OSError as error:
            raise io_error(self._config.path, None, error) from error
        if ids and len(released.missing) < len(ids):
            self._accounting.mark_dead(released.freed)
        return len(ids), released.missing

    def _restore(self, popped: Sequence[Popped]) -> None:
        """Put back what a refused removal has popped, and flush: an earlier flush may have confirmed these ids without them."""
        with self._accounting.state_lock:
            self._buffer.restore_popped(popped, self._is_indexed)
        if any(entry for _, entry in popped) and not self._lifecycle.callbacks.is_inside:
            try:
                self._flusher.flush_or_defer()
            except MsgStoreError as error:
                log.warning("%s: %s", self._config.path, error)

    def _flush_first(self, outcome: str, ids: Iterable[bytes] = ()) -> None:
        """Flush before a change, after a failure: otherwise unwritten changes would fill the memory. ``ids``: of a removal."""
        try:
            self._flusher.flush_or_defer()
        except StoreIOError as error:
            raise _with_outcome(error, outcome, applied=False, ids=list(ids)) from error.__cause__

    def references(self, msg_id: bytes) -> int:
        """Return the number of references of a message; 0 if there is none. Caller holds the state lock."""
        return self._buffer.references(msg_id) + self._index.references(msg_id)


def _with_outcome(error: StoreIOError, outcome: str, *, applied: bool, ids: Sequence[bytes] = ()) -> StoreIOError:
    """Return the same error, with a sentence about the effect of the call."""
    return StoreIOError(f"{error} {outcome}", applied=applied, ids=ids)


def _as_bytes(body: object) -> bytes:
    """Return a copy of a mutable buffer; bytes and its subclasses unchanged."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, not {type(body).__name__}")
