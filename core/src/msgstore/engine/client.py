"""Client: writes, reads and removes messages, and learns when its messages are confirmed. Message ids: 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import length_hint
from pathlib import Path
from types import TracebackType

from msgstore.contract import StoreClosed, StoreIOError

OnConfirm = Callable[[list[bytes]], object]


def check_id(msg_id: object) -> None:
    """Raise ValueError unless ``msg_id`` is 16 bytes."""
    if not isinstance(msg_id, bytes):
        raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}")  # noqa: TRY004 - documented as ValueError
    if len(msg_id) != 16:
        raise ValueError(f"a message id is 16 bytes, not {len(msg_id)}: {msg_id!r}")


class Client:
    """Made by :meth:`Store.client`. Leaving it as a context manager closes the client, not the store. Thread-safe.

    ``write``, ``read``, ``read_many``, ``contains`` and ``remove`` are attributes of each client: ``help(client.read)``.
    """

    write: Callable[[bytes, bytes], None]  # WriteBuffer.make_fast_path, Writer.write_slow
    """``write(msg_id, body)``: write a message, or add a reference to one. An id names one body permanently, so
    write equal bodies: of a message that the store has, the new body is dropped, at once or by the next flush.

    The message can be read at once. It is in a segment at the end of the next flush, which calls ``on_confirm`` with its id:
    ``sync_interval`` later, or in ``store.flush()``. ``durability`` says if it is synced before. Raises ValueError (id),
    TypeError (body), MessageTooLarge and BodyRefused (the message was not taken), StoreClosed, and StoreIOError:
    ``error.applied`` says if the message was taken, which is possible only with ``sync_interval = 0``. After a failed flush
    each write flushes first, and raises if that fails again.
    """
    read: Callable[[bytes], bytes]
    """``read(msg_id)``: return the body. Raises MessageNotFound (a KeyError), CorruptRecord, StoreIOError, ValueError (id)."""
    read_many: Callable[[Iterable[bytes]], dict[bytes, bytes]]
    """``read_many(ids)``: return the bodies of the present ids. Neighbours on disk are read together. Raises CorruptRecord for
    the first damaged message, without the bodies of the others: leave out ``error.msg_id``, and repeat."""
    contains: Callable[[bytes], bool]
    """``contains(msg_id)``: return True if ``read`` would find a message."""
    remove: Callable[[Iterable[bytes]], None]
    """``remove(ids)``: remove one reference of each id; a message without references is gone.

    Raises MessageNotFound with the absent ids after the others were removed; ValueError for what is not an id, when some of the
    others may have been removed; StoreIOError: repeat the removal with ``error.ids``, whose references are still there. With
    ``sync_interval = 0`` usually all were removed, and ``error.applied`` says so.
    """

    set_size_limit: Callable[[int], None]  # bodies of this many bytes and more take the slow path of ``write``; 0: all do

    def __init__(
        self,
        path: Path,
        number: int,
        name: str | bytes | None,
        on_confirm: OnConfirm | None,
        close: Callable[[Client], None],
        discard: Callable[[Client], None],
    ) -> None:
        """``close`` and ``discard`` end a client: with a flush, or without what only it has written. The store assigns
        ``read``, ``read_many`` and ``contains``; ``Writer.register_client`` assigns ``write`` (``WriteBuffer.make_fast_path``)
        and ``remove``. A method that only forwards would make each call 10 % slower. Raises TypeError."""
        if not isinstance(name, str | bytes | None):
            raise TypeError(f"a client's name is text or bytes, not {type(name).__name__}")
        if on_confirm is not None and not callable(on_confirm):
            raise TypeError(f"on_confirm is a function that takes a list of ids, not {type(on_confirm).__name__}")
        self.ref = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
        """Name in ``clean.dot``."""
        self.name = name.hex() if isinstance(name, bytes) else name
        self.number = number
        """Unique in this opening of the store."""
        self.unconfirmed: list[bytes] | None = None if on_confirm is None else []
        """Ids to confirm in write order. Never replaced: the fast path is bound to it."""
        self.on_confirm = on_confirm
        self._path = path
        self._close = close
        self._discard = discard
        self._refusal: StoreClosed | None = None
        """Raised by every call once the client is closed."""
        self._is_closed = False
        """True once ``close`` or ``delete_and_close`` has returned."""
        self.takes_writes = True
        """False once ``close`` has begun to wait for what is not confirmed."""

    def write_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write each (id, body). A StoreIOError has the number of pairs that were taken, from the first on, in ``taken``."""
        write, taken = self.write, 0
        try:
            if isinstance(pairs, list | tuple):  # their iterators know their position: counting would cost time per message
                rest = iter(pairs)
                for msg_id, body in rest:
                    write(msg_id, body)
            else:
                for msg_id, body in pairs:
                    write(msg_id, body)
                    taken += 1
        except StoreIOError as error:
            if isinstance(pairs, list | tuple):
                taken = len(pairs) - length_hint(rest) - 1
            if not taken:
                raise
            text = f"{error} The {taken} messages before it were taken."
            raise StoreIOError(text, applied=True, taken=taken + error.taken) from error.__cause__

    def close(self) -> None:
        """Flush, and end the client. When it returns, everything that the client wrote is confirmed. Meanwhile ``write`` raises
        StoreClosed. Raises as ``flush``; StoreClosed, too, if the store ended by an interrupt or ``abandon``."""
        if not self._is_closed:
            self._close(self)
            self.end()

    def delete_and_close(self) -> None:
        """End the client, and drop what only it has written and no flush has written yet; that is not confirmed.

        References to other messages stay as they are. Nothing is flushed.
        """
        if self._refusal is None:
            self._discard(self)
            self.end()

    def check_writable(self) -> None:
        """Raise StoreClosed if the client is closed, or is being closed."""
        self.check_open()
        if not self.takes_writes:
            raise StoreClosed(f"{self._path}: the client {self.name!r} is being closed")

    def end(self, error: StoreClosed | None = None) -> None:
        """Let every later call raise StoreClosed: ``error``, if the store says why."""
        self._is_closed = error is None
        self._refusal = error or StoreClosed(f"{self._path}: the client {self.name!r} is closed")
        self.set_size_limit(0)
        for call in ("read", "read_many", "contains", "write", "write_many", "remove"):
            setattr(self, call, self.check_open)

    def check_open(self, *_: object) -> None:
        """Raise StoreClosed if the client is closed."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except StoreClosed:
            if error is None:  # or it says more
                raise
