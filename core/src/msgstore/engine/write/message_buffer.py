"""Message buffer: the interface of the write buffer, so that an implementation in C can replace the one in Python.

A message is one entry under its id. Clients add and remove entries without a lock on the fast path; a flush copies entries,
appends them to segments, and pops them when the index has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

BufferedMessage = tuple[bytes, int | dict[int, int]]
"""(stored body, number of the client that wrote it, or references by client number)."""
OVERHEAD = 1024
"""Bytes that a message is charged in addition to its body, so that many small messages do not fill the memory."""
Popped = tuple[bytes, BufferedMessage | None]
"""(id, entry that the caller has popped from the buffer, or None)."""


@attrs.frozen
class FastPath:
    """Lock-free ``write`` of one client."""

    write: Callable[[bytes, bytes], None]
    set_size_limit: Callable[[int], None]
    """Send bodies of this many bytes and more to the slow path from now on; 0 sends all."""
    set_charge_step: Callable[[int], None]
    """Call ``charge`` after this many bytes from now on."""


class MessageBuffer(Protocol):
    """Callers of the methods hold the state lock, unless a method says otherwise."""

    def make_fast_path(
        self,
        client: int,
        unconfirmed: list[bytes] | None,
        size_limit: int,
        charge_step: int,
        wake: Callable[[], object],
        charge: Callable[[int], object],
        slow_path: Callable[[bytes, bytes], object],
    ) -> FastPath:
        """Return the ``write`` of a client, which takes no lock.

        ``wake`` is called before the first message in an empty buffer, ``charge(bytes)`` after each ``charge_step`` bytes,
        OVERHEAD included. ``slow_path`` gets what needs the lock, or is not valid.
        """

    def make_remover(self, client: int, slow_path: Callable[[list[Popped]], object]) -> Callable[[Iterable[bytes]], None]:
        """Return the ``remove`` of a client, which takes no lock for messages with one reference, of this client."""

    def add(self, msg_id: bytes, body: bytes, client: int) -> None:
        """Add one reference of a client, with the message if it is not here."""

    def get(self, msg_id: bytes) -> BufferedMessage | None:
        """Return the entry of an id, also while a remover has popped it."""

    def release_reference(self, msg_id: bytes, client: int, popped: BufferedMessage | None) -> bool:
        """Remove one reference, preferably of this client. Return False if there is none. ``popped``: entry that was popped."""

    def restore_popped(self, popped: Iterable[Popped], is_known: Callable[[bytes], bool]) -> None:
        """Put entries back whose removal was refused. ``is_known`` as for ``drop_client``."""

    def drop_client(self, client: int, is_known: Callable[[bytes], bool]) -> None:
        """Drop the messages that only this client has written, unless ``is_known``: the index has the id."""

    def ids(self) -> list[bytes]:
        """Return the ids of all messages in write order."""

    def oldest(self, count: int) -> list[bytes]:
        """Return up to ``count`` ids in write order. Needs no lock."""

    def peek(self, ids: Sequence[bytes]) -> list[BufferedMessage | None]:
        """Return the entry of each id, or None if it was removed."""

    def pop(self, ids: Sequence[bytes]) -> list[BufferedMessage | None]:
        """Take the entries out, for the index; None for each id that was removed."""

    def reinsert(self, msg_id: bytes, entry: BufferedMessage) -> None:
        """Put back an entry that was popped and has to be written again."""

    def charged_bytes(self) -> int:
        """Return the bytes of all messages, OVERHEAD included. Takes time linear in the number of messages."""

    def clear(self) -> None:
        """Drop everything."""
