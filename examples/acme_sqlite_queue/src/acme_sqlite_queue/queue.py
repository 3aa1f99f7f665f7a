"""Backing queue ``sqlite``: a table of messages by position, as of the last flush, and in memory what came later.

A flush is one transaction of SQLite. So what :meth:`SqliteQueue.transact` does is written by one transaction, too.

``_cursor`` divides the positions: all from there on are ready; of those below, the returned ones are ready, and are in memory.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from msgstore_queues.contract import BackingQueueContext, Delivery, Message

FILE = "acme-sqlite-queue.db"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS messages (position INTEGER PRIMARY KEY, msg_id BLOB NOT NULL, body BLOB NOT NULL,"
    " is_persistent INTEGER NOT NULL, expiry_us INTEGER NOT NULL, exchange BLOB NOT NULL, routing_keys TEXT NOT NULL,"
    " raw_properties BLOB NOT NULL)"
)
_COLUMNS = "position, msg_id, body, is_persistent, expiry_us, exchange, routing_keys, raw_properties"
_OVERHEAD = 200
"""Bytes that a message costs in a flush beside its body, about."""

_Row = tuple[int, bytes, bytes, int, int, bytes, str, bytes]


class SqliteQueue:
    """Implements :class:`msgstore_queues.contract.BrowsableQueue` and ``TransactionalQueue``."""

    def __init__(self, context: BackingQueueContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._new: dict[int, Message] = {}
        """Messages that are not in the table yet, in order."""
        self._acks: list[int] = []
        """Acknowledged positions that are in the table."""
        self._unacked: dict[int, Message] = {}
        self._returned: list[tuple[int, Message]] = []
        """Ready messages below the cursor, in order."""
        self._body_bytes_of_new = 0
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._open(context.terms)
        except sqlite3.Error as error:
            self._connection.close()
            raise self._os_error(error) from error

    def _open(self, terms: Mapping[str, Any] | None) -> None:
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._context.is_synced else 'OFF'}")
        self._connection.execute(_SCHEMA)
        self._connection.execute("DELETE FROM messages WHERE NOT is_persistent")
        sums = "SELECT count(*), total(length(body)), max(position) FROM messages"
        count, in_bytes, last = self._connection.execute(sums).fetchone()
        self._ready, self._body_bytes, self._cursor = int(count), int(in_bytes), 0
        self._next: int = max(-1 if last is None else last, (terms or {}).get("next", 0) - 1) + 1
        self._next_delivered: int = terms.get("next_delivered", 0) if terms else self._next
        """Messages below this position may have been delivered. After a crash nobody knows."""

    def _os_error(self, error: sqlite3.Error) -> OSError:
        return OSError(errno.EIO, f"SQLite: {error}", str(self._path))

    # -- questions --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._ready

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    @property
    def unwritten(self) -> int:
        return self._body_bytes_of_new + len(self._new) * _OVERHEAD

    def info(self) -> Mapping[str, object]:
        return {"new": len(self._new), "returned": len(self._returned)}

    # -- publishing -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> int:
        position = self._add(message)
        self._ready += 1
        self._body_bytes += len(message.body)
        return position

    def publish_delivered(self, message: Message) -> Delivery:
        position = self._add(message)
        self._unacked[position] = message
        self._cursor = self._next_delivered = position + 1
        return Delivery(position, message, False)

    def _add(self, message: Message) -> int:
        position = self._next
        self._next += 1
        self._new[position] = message
        self._body_bytes_of_new += len(message.body)
        return position

    def transact(self, messages: Sequence[Message], acks: Iterable[int]) -> list[int]:
        """Nothing can come between: the lock of the queue is held, and a flush writes all that it finds."""
        self.ack(acks)
        return [self.publish(message) for message in messages]

    # -- taking and returning ---------------------------------------------------------------------------------------------

    def _rows(self, start: int, limit: int = -1, offset: int = 0) -> Iterator[tuple[int, Message]]:
        """Yield positions and messages of the table, from a position on. Raises OSError."""
        query = f"SELECT {_COLUMNS} FROM messages WHERE position >= ? ORDER BY position LIMIT ? OFFSET ?"
        try:
            for row in self._connection.execute(query, (start, limit, offset)):
                yield row[0], _message(row)
        except sqlite3.Error as error:
            raise self._os_error(error) from error

    def _first(self) -> tuple[int, Message] | None:
        if self._returned:
            return self._returned[0]
        return next(self._behind_cursor(1), None)

    def _behind_cursor(self, limit: int = -1) -> Iterator[tuple[int, Message]]:
        """Yield ready messages from the cursor on: those of the table, then the new ones."""
        yield from self._rows(self._cursor, limit)
        yield from ((position, message) for position, message in self._new.items() if position >= self._cursor)

    def fetch(self) -> Delivery | None:
        if (first := self._first()) is None:
            return None
        position, message = first
        if self._returned:
            del self._returned[0]
        else:
            self._cursor = position + 1
        self._ready -= 1
        self._body_bytes -= len(message.body)
        self._unacked[position] = message
        is_redelivered = position < self._next_delivered
        self._next_delivered = max(self._next_delivered, position + 1)
        return Delivery(position, message, is_redelivered)

    def peek(self) -> Message | None:
        first = self._first()
        return None if first is None else first[1]

    def ack(self, positions: Iterable[int]) -> None:
        for position in positions:
            del self._unacked[position]
            self._forget(position)

    def _forget(self, position: int) -> None:
        """Note that a message is acknowledged."""
        if position in self._new:
            self._body_bytes_of_new -= len(self._new.pop(position).body)
        else:
            self._acks.append(position)

    def requeue(self, positions: Iterable[int]) -> None:
        for position in positions:
            message = self._unacked.pop(position)
            insort(self._returned, (position, message), key=lambda one: one[0])
            self._ready += 1
            self._body_bytes += len(message.body)

    def purge(self) -> int:
        purged = [position for position, _ in self._returned] + [position for position, _ in self._behind_cursor()]
        for position in purged:
            self._forget(position)
        self._returned.clear()
        self._cursor, self._ready, self._body_bytes = self._next, 0, 0
        return len(purged)

    def fold(self, call: Callable[[int, Message], object]) -> None:
        for position, message in chain(self._returned, self._behind_cursor()):
            if call(position, message):
                return

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        for position, message in sorted(self._unacked.items()):
            if call(position, message):
                return

    def browse(self, first: int, count: int) -> list[tuple[int, Message]]:
        found = self._returned[first : first + count]
        first = max(first - len(self._returned), 0)
        found += self._rows(self._cursor, count - len(found), first)
        if len(found) < count:
            in_table = self._ready - len(self._returned) - sum(position >= self._cursor for position in self._new)
            new = (one for one in self._new.items() if one[0] >= self._cursor)
            first = max(first - in_table, 0)
            found += islice(new, first, first + count - len(found))
        return found

    # -- flushes and the end ----------------------------------------------------------------------------------------------

    def shared(self) -> Iterator[bytes]:
        return iter(())

    def begin_flush(self) -> None:
        pass

    def write(self) -> None:
        """Write everything, also what came after ``begin_flush``. If that fails, all of it is new as before."""
        execute = self._connection.execute
        rows = [_row(position, message, self._context.is_durable) for position, message in self._new.items()]
        try:
            execute("BEGIN IMMEDIATE")
            try:
                insert = f"INSERT INTO messages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                self._connection.executemany(insert, rows)
                self._connection.executemany("DELETE FROM messages WHERE position = ?", ((at,) for at in self._acks))
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._os_error(error) from error
        self._new.clear()
        self._acks.clear()
        self._body_bytes_of_new = 0

    def sync(self) -> Callable[[], None]:
        """SQLite has synced the transaction, if ``is_synced`` is set."""
        return lambda: None

    def end_flush(self) -> None:
        pass

    def set_memory_target(self, messages: int | None) -> None:
        """Ready messages are in the table anyhow."""

    def terminate(self) -> Mapping[str, Any]:
        self._connection.close()
        return {"next": self._next, "next_delivered": self._next_delivered}

    def abandon(self) -> None:
        self._connection.close()

    def delete_and_terminate(self) -> None:
        self._connection.close()
        for suffix in ("", "-journal"):
            self._context.files.unlink(self._path.with_name(FILE + suffix))


def _row(position: int, message: Message, is_durable: bool) -> _Row:
    keys = json.dumps([key.decode("latin-1") for key in message.routing_keys])
    is_persistent = int(message.is_persistent and is_durable)
    row = position, message.msg_id, message.body, is_persistent, message.expiry_us
    return *row, message.exchange, keys, message.raw_properties


def _message(row: _Row) -> Message:
    _, msg_id, body, is_persistent, expiry_us, exchange, keys, raw_properties = row
    routing_keys = tuple(key.encode("latin-1") for key in json.loads(keys))
    return Message(msg_id, body, bool(is_persistent), expiry_us, exchange, routing_keys, raw_properties)
