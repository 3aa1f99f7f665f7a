"""A client: somebody who writes, reads and removes, and is told when what was written is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from msgstore.contract import StoreClosed, StoreIOError
from msgstore.engine.write.write_buffer import Entry

if TYPE_CHECKING:
    from msgstore.engine.store import Store

OnConfirm = Callable[[list[bytes]], object]


class Client:
    """Made by :meth:`Store.client`. A context manager: leaving it closes the client, not the store."""

    write: Callable[[bytes, bytes], None]
    """``write(msg_id, body)``: write a message, or add a reference to one: an id names one body for ever, a second write's body
    is ignored.

    Returns before the message is on disk; it is readable at once. ``on_confirm`` is called with its id after the flush that
    made it safe, within ``sync_interval``, or after ``store.flush()``. Raises ValueError (id), TypeError (body),
    MessageTooLarge and BodyRefused (the body codec does not take the body: the message is not there), StoreClosed, and
    StoreIOError: then ``error.applied`` says whether the message was taken, which happens only with ``sync_interval = 0``.
    After an error of the disk each write flushes first, and is refused while that fails.
    """
    read: Callable[[bytes], bytes]
    """``read(msg_id)``: the body. Raises MessageNotFound (a KeyError), CorruptRecord, StoreIOError, ValueError (id)."""
    read_many: Callable[[Iterable[bytes]], dict[bytes, bytes]]
    """``read_many(ids)``: the bodies of those that are present. Neighbours on disk are read together."""
    contains: Callable[[bytes], bool]
    """``contains(msg_id)``: whether ``read`` would find a message."""

    remove: Callable[[Iterable[bytes]], None]
    """``remove(ids)``: take one reference from each; a message without references is gone.

    Raises MessageNotFound naming the absent ids; the present ones are removed all the same. ValueError for what is no id; then
    some of the others may have been removed. StoreIOError: ``error.ids`` are those that lost no reference, repeat the removal
    with these; with ``sync_interval = 0`` usually all were removed, and ``error.applied`` says so.
    """

    def __init__(self, store: Store, number: int, name: str | None, on_confirm: OnConfirm | None) -> None:
        self.name = name
        self.number = number
        """Of this opening; no two clients have the same."""
        self.unconfirmed: list[bytes] | None = None if on_confirm is None else []
        """Ids in the order of writing. The same list for ever: the gate is bound to it."""
        self._store = store
        self._writer = store._writer
        self._on_confirm = on_confirm
        self._closed = False
        self._error: StoreClosed | None = None
        # Bound once: a method that only passes on would cost a tenth of a read.
        self.gate = self._writer.admit(self)
        self.write = self.gate.write
        self.remove = self._writer.intake.remover(number, self._remove_slowly)
        self.read = store._reader.read
        self.read_many = store._reader.read_many
        self.contains = store._reader.contains

    def write_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """``write`` for each (id, body). After StoreIOError ``error.taken`` says how many pairs, from the first one on, were
        taken."""
        write, before = self.write, 0
        try:
            if isinstance(pairs, list | tuple):  # their iterators know how far they are: counting would cost each message
                rest = iter(pairs)
                for msg_id, body in rest:
                    write(msg_id, body)
            else:
                for msg_id, body in pairs:
                    write(msg_id, body)
                    before += 1
        except StoreIOError as error:
            if isinstance(pairs, list | tuple):
                before = len(pairs) - length_hint(rest) - 1
            if not before:
                raise
            text = f"{error} The {before} messages before it were taken."
            raise StoreIOError(text, applied=True, taken=before + error.taken) from error.__cause__

    def slowly(self, msg_id: bytes, body: bytes) -> None:
        """What the gate hands over."""
        self.check_open()
        self._writer.write_slowly(self, msg_id, body)

    def _remove_slowly(self, popped: Sequence[tuple[bytes, Entry | None]]) -> None:
        self._writer.remove_slowly(self, popped)

    def close(self) -> None:
        """Flush, and let go of the store. When it returns, everything that the client wrote is confirmed."""
        if not self._closed:
            self._store.let_go(self)
            self.end()

    def delete_and_close(self) -> None:
        """Let go of the store at once, and of what this client wrote and nobody has on disk yet: that is forgotten and not
        confirmed. References to messages that the store knows, from a flush or from other clients, stay as they are.

        For somebody who has removed all that was written, or does not care for the rest. Nothing is flushed.
        """
        if not self._closed:
            self._store.forget(self)
            self.end()

    def end(self, error: StoreClosed | None = None) -> None:
        """Every later call raises StoreClosed: ``error``, if the store says why."""
        self._closed = True
        self._error = error
        self.gate.limit(0)
        for call in ("read", "read_many", "contains", "write", "write_many", "remove"):
            setattr(self, call, self._refuse)

    def check_open(self) -> None:
        """Raises StoreClosed if the client is closed."""
        if self._closed:
            self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error or StoreClosed(f"{self._store.path}: the client {self.name!r} is closed")

    def take_unconfirmed(self, count: int) -> list[bytes]:
        """The ids to confirm, in the order of writing. Others may be writing."""
        unconfirmed = self.unconfirmed
        if unconfirmed is None:
            return []
        taken = unconfirmed[:count]
        del unconfirmed[: len(taken)]
        return taken

    def confirm(self, ids: list[bytes]) -> None:
        if self._on_confirm is not None and ids:
            self._on_confirm(ids)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()  # of a store that ended in the middle of a change this client has been closed already
