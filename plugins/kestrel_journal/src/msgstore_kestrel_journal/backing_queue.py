"""Backing queue ``kestrel``: all messages in memory, and the persistent ones in a journal, the file ``messages`` of the queue.

A flush appends an ADDX for each new message, and then the removals. A message at the head of the journal leaves it by a REMOVE.
For one behind others, those before it are reserved, as by clients that never answer, and so is it: then its removal is
confirmed. Messages are reserved in their order, so a restart, which returns reserved ones in the order of their numbers, finds
the old order. A delivery writes nothing.

A journal that has become long is replaced by one with an ADDX for each message.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgstore.contract import StoreError
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.queues_plugin import KestrelQueueOptions
from msgstore_kestrel_journal.replay import QueueState, replay_file
from msgstore_queues.contract import BackingQueueContext, Delivery, Message

log = logging.getLogger("msgstore.queues")

FILE = "messages"
_MAX_XID = 2**31 - 1
"""The journal is replaced before its numbers of reservations wrap."""
_CHUNK = 256
"""Messages that a replacement writes together."""


class KestrelQueue:
    """Implements :class:`msgstore_queues.contract.BackingQueue`."""

    def __init__(self, context: BackingQueueContext) -> None:
        options: KestrelQueueOptions = context.options
        self._context = context
        self._files = context.files
        self._path = context.directory / FILE
        self._journal_size = options.journal_size
        self._ready = deque[tuple[int, Message]]()
        self._unacked: dict[int, Message] = {}
        self._body_bytes = 0
        self._next = 0
        self._new: dict[int, Message] = {}
        """Persistent messages that are not in the journal."""
        self._queued = deque[int]()
        """Positions of the messages that are in the journal, and not reserved there."""
        self._reserved: dict[int, int] = {}
        """Position to number of those that are reserved there."""
        self._last_number = 0
        self._acks: list[int] = []
        """Acknowledged positions that are in the journal."""
        self._live_bytes = 0
        """Bytes of the records of all persistent messages."""
        self._new_bytes = 0
        """Bytes of the records of messages that are not in the journal yet."""
        self._fd: int | None = None
        self._size = 0
        """Bytes of the journal. What is behind them is of a write that failed."""
        self._is_torn = self._must_replace = self._is_unsynced = False
        self._load()
        terms = context.terms or {"delivered": self._next}
        self._next_delivered: int = terms["delivered"]
        """Messages below this position may have been delivered. After a crash nobody knows."""

    def _load(self) -> None:
        """Read the journal. A torn end, or zeros after a power failure, are cut off by the next flush."""
        try:
            data = self._files.read_file(self._path)
        except FileNotFoundError:
            return
        state = QueueState()
        self._size = len(data)
        if (broken := replay_file([data], 0, state)) is not None:
            self._size, reason, is_torn = broken
            if not is_torn and data[self._size :].strip(b"\0"):
                raise StoreError(
                    f"{self._path}: cannot be read from byte {self._size} on: {reason}. To go on without the rest, copy the "
                    "file, and cut it there."
                )
            log.warning("%s: %d bytes at %d are left out: %s", self._path, len(data) - self._size, self._size, reason)
            self._is_torn = True
        prefix = os.urandom(8)
        for position, place in enumerate(state.in_delivery_order()):
            item = r.read_item(data, place)
            msg_id = prefix + position.to_bytes(8, "big")
            message = Message(msg_id, data[item.begin : item.end], True, item.expiry_ms * 1000, b"", (self._context.name,))
            self._ready.append((position, message))
            self._body_bytes += len(message.body)
            self._live_bytes += _size_of(message)
        self._next = len(self._ready)
        self._reserved = dict(enumerate(sorted(state.opened)))
        self._queued.extend(range(len(self._reserved), self._next))
        self._last_number = state.xid

    # -- questions --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    @property
    def unwritten(self) -> int:
        return self._new_bytes

    def info(self) -> Mapping[str, object]:
        return {"journal_bytes": self._size, "reserved": len(self._reserved)}

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> int:
        position = self._accept(message)
        self._ready.append((position, message))
        self._body_bytes += len(message.body)
        return position

    def publish_delivered(self, message: Message) -> Delivery:
        position = self._accept(message)
        self._unacked[position] = message
        self._next_delivered = position + 1
        return Delivery(position, message, False)

    def _accept(self, message: Message) -> int:
        position = self._next
        self._next = position + 1
        if self._is_kept(message):
            self._new[position] = message
            self._new_bytes += _size_of(message)
            self._live_bytes += _size_of(message)
        return position

    def _is_kept(self, message: Message) -> bool:
        return message.is_persistent and self._context.is_durable

    def fetch(self) -> Delivery | None:
        if not self._ready:
            return None
        position, message = self._ready.popleft()
        self._unacked[position] = message
        self._body_bytes -= len(message.body)
        is_redelivered = position < self._next_delivered
        self._next_delivered = max(self._next_delivered, position + 1)
        return Delivery(position, message, is_redelivered)

    def peek(self) -> Message | None:
        return self._ready[0][1] if self._ready else None

    def ack(self, positions: Iterable[int]) -> None:
        for position in positions:
            self._forget(position, self._unacked.pop(position))

    def _forget(self, position: int, message: Message) -> None:
        """Note that a message, which is not in memory any more, is acknowledged."""
        if self._is_kept(message):
            self._live_bytes -= _size_of(message)
            if self._new.pop(position, None) is None:
                self._acks.append(position)
            else:
                self._new_bytes -= _size_of(message)

    def requeue(self, positions: Iterable[int]) -> None:
        for position in sorted(positions, reverse=True):
            message = self._unacked.pop(position)
            self._body_bytes += len(message.body)
            if not self._ready or position < self._ready[0][0]:
                self._ready.appendleft((position, message))
            else:
                insort(self._ready, (position, message), key=lambda one: one[0])

    def purge(self) -> int:
        count = len(self._ready)
        for position, message in self._ready:
            self._forget(position, message)
        self._ready.clear()
        self._body_bytes = 0
        return count

    def fold(self, call: Callable[[int, Message], object]) -> None:
        for position, message in self._ready:
            if call(position, message):
                return

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        for position, message in sorted(self._unacked.items()):
            if call(position, message):
                return

    def set_memory_target(self, messages: int | None) -> None:
        """All messages are in memory."""

    # -- flushes ----------------------------------------------------------------------------------------------------------

    def shared(self) -> Iterator[bytes]:
        return iter(())

    def begin_flush(self) -> None:
        pass

    def write(self) -> None:
        """Write everything, also what came after ``begin_flush``."""
        if not (self._new or self._acks or self._must_replace):
            return
        is_long = self._size > self._journal_size + 2 * self._live_bytes
        if self._must_replace or is_long or self._last_number > _MAX_XID - len(self._queued) - len(self._new):
            self._replace()
        else:
            self._append()
        self._is_unsynced = self._context.is_synced

    def _append(self) -> None:
        """Append to the journal. In memory nothing changes unless that succeeds."""
        now_ms = time.time_ns() // 1_000_000
        parts = [_encode(message, now_ms) for message in self._new.values()]
        head, taken = itertools.chain(self._queued, self._new), 0
        reserved, confirmed, number = dict[int, int](), list[int](), self._last_number
        for position in sorted(self._acks):
            if (known := reserved.get(position, self._reserved.get(position))) is not None:
                parts.append(r.encode_xid(r.CONFIRM_REMOVE, known))
                confirmed.append(position)
                continue
            for before in head:
                taken += 1
                if before == position:
                    parts.append(bytes((r.REMOVE,)))
                    break
                number += 1
                reserved[before] = number
                parts.append(r.encode_xid(r.REMOVE_TENTATIVE_XID, number))
        data, fd = b"".join(parts), self._opened()
        if self._is_torn:
            self._files.truncate(fd, self._size)
        self._is_torn = True
        self._files.pwrite(fd, data, self._size)
        self._is_torn = False
        self._size += len(data)
        self._queued.extend(self._new)
        for _ in range(taken):
            self._queued.popleft()
        self._reserved |= reserved
        for position in confirmed:
            del self._reserved[position]
        self._forget_changes()
        self._last_number = number

    def _replace(self) -> None:
        """Replace the journal by one that has the messages only. If that fails, the next flush does it."""
        kept = {position: message for position, message in self._ready if self._is_kept(message)}
        kept |= {position: message for position, message in self._unacked.items() if self._is_kept(message)}
        positions, now_ms = sorted(kept), time.time_ns() // 1_000_000
        chunks = (
            b"".join(_encode(kept[position], now_ms) for position in positions[start : start + _CHUNK])
            for start in range(0, len(positions), _CHUNK)
        )
        self._must_replace = True
        self._close()
        self._files.write_file(self._path, chunks, sync=self._context.is_synced)
        self._must_replace = self._is_torn = False
        self._size = sum(map(_size_of, kept.values()))
        self._queued, self._reserved, self._last_number = deque(positions), {}, 0
        self._forget_changes()

    def _forget_changes(self) -> None:
        """All of them are in the journal."""
        self._new.clear()
        self._acks.clear()
        self._new_bytes = 0

    def _opened(self) -> int:
        """Return the descriptor of the journal. If it is new, its name is made durable."""
        if self._fd is None:
            try:
                self._fd = self._files.open_write(self._path)
            except FileNotFoundError:
                self._fd = self._files.create(self._path)
            if self._context.is_synced:
                self._files.sync_directory(self._context.directory)
        return self._fd

    def _close(self) -> None:
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    def sync(self) -> Callable[[], None]:
        if not self._is_unsynced:
            return lambda: None
        fd = os.dup(self._opened())
        self._is_unsynced = False

        def run() -> None:
            try:
                with self._files.closing(fd):
                    self._files.sync(fd)
            except OSError:  # what has become of the bytes is not known: write all of them again
                self._must_replace = self._is_unsynced = True
                raise

        return run

    def end_flush(self) -> None:
        pass

    # -- the end ----------------------------------------------------------------------------------------------------------

    def terminate(self) -> Mapping[str, Any]:
        """Return how many of the messages in the journal, the first ones, may have been delivered."""
        self._close()
        kept = (position for position, message in itertools.chain(self._ready, self._unacked.items()) if self._is_kept(message))
        return {"delivered": sum(position < self._next_delivered for position in kept)}

    def abandon(self) -> None:
        self._close()

    def delete_and_terminate(self) -> None:
        self._close()
        self._files.unlink(self._path)


def _size_of(message: Message) -> int:
    """Return the bytes of the record that adds a message."""
    return r.ITEM_OVERHEAD + len(message.body)


def _encode(message: Message, now_ms: int) -> bytes:
    return r.encode_addx(message.body, now_ms, -(-message.expiry_us // 1000))
