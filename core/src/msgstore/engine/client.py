"""A client: somebody who writes, reads and removes, and is told when what was written is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from msgstore.contract import StoreClosed

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
    MessageTooLarge, StoreClosed, and StoreIOError if a flush that was due failed: the message then stays pending.
    """
    read: Callable[[bytes], bytes]
    """``read(msg_id)``: the body. Raises MessageNotFound (a KeyError), CorruptRecord, StoreIOError, ValueError (id)."""
    read_many: Callable[[Iterable[bytes]], dict[bytes, bytes]]
    """``read_many(ids)``: the bodies of those that are present. Neighbours on disk are read together."""
    contains: Callable[[bytes], bool]
    """``contains(msg_id)``: whether ``read`` would find a message."""

    def __init__(self, store: Store, name: str | None, on_confirm: OnConfirm | None) -> None:
        self.name = name
        self._store = store
        self._writer = store._writer
        self._on_confirm = on_confirm
        self._unconfirmed: list[bytes] | None = None if on_confirm is None else []
        self._closed = False
        # Bound once: a method that only passes on would cost a tenth of a read.
        self.write = partial(store._writer.write, self._unconfirmed)
        self.read = store._reader.read
        self.read_many = store._reader.read_many
        self.contains = store._reader.contains

    def write_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """``write`` for each (id, body)."""
        write = self.write
        for msg_id, body in pairs:
            write(msg_id, body)

    def remove(self, ids: Iterable[bytes]) -> None:
        """Take one reference from each; a message without references is gone.

        Raises MessageNotFound naming the absent ids; the present ones are removed all the same.
        """
        if isinstance(ids, bytes):
            raise ValueError("remove takes several ids: write remove([msg_id])")  # noqa: TRY004 - as for every wrong id
        self._writer.remove(list(ids))

    def close(self) -> None:
        """Flush, and let go of the store. When it returns, everything that the client wrote is confirmed."""
        if self._closed:
            return
        self._store.let_go(self)
        self._closed = True
        for call in ("read", "read_many", "contains", "write", "write_many", "remove"):
            setattr(self, call, self._refuse)

    def _refuse(self, *_: object) -> NoReturn:
        raise StoreClosed(f"{self._store.path}: the client {self.name!r} is closed")

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._unconfirmed)

    def take_unconfirmed(self) -> list[bytes]:
        """Under the store's lock: the ids to confirm, in the order of writing."""
        if not self._unconfirmed:
            return []
        taken = self._unconfirmed.copy()
        self._unconfirmed.clear()  # the same list for ever: ``write`` is bound to it
        return taken

    def confirm(self, ids: list[bytes]) -> None:
        if self._on_confirm is not None:
            self._on_confirm(ids)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
