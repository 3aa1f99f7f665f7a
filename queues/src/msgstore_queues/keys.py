"""Keys by which a queue refuses duplicates: while a message with a key is in the queue, a publish with it adds nothing.

The key is a header of the message, so it survives, and goes along with dead letters and retries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgstore_queues.contract import Message
from rabbitmq_files.properties import PropertiesError, read_properties

KEY = "x-deduplication-header"
"""Header: the key of the message."""
_KEY_BYTES = KEY.encode()


def key_of(message: Message) -> str | None:
    """Return the key of a message; None if it has none."""
    if _KEY_BYTES not in message.raw_properties:
        return None
    try:
        key = (read_properties(message.raw_properties)[1] or {}).get(KEY)
    except PropertiesError:
        return None
    return key if isinstance(key, str) else None


class Keys:
    """Keys of the ready and unacked messages of one queue. Caller holds the lock of the queue."""

    def __init__(self) -> None:
        self.positions: dict[int, str] = {}
        """Positions of messages that have a key."""
        self._holders: dict[str, dict[int, tuple[bool, int]]] = {}
        """Key to the positions of its messages. Of each: whether it is persistent, and when it expires."""

    def note(self, position: int, message: Message, expiry_us: int | None = None) -> None:
        """Note the key of a message, if it has one. ``expiry_us``: other than that of the message."""
        if (key := key_of(message)) is not None:
            expiry_us = message.expiry_us if expiry_us is None else expiry_us
            self.positions[position] = key
            self._holders.setdefault(key, {})[position] = message.is_persistent, expiry_us

    def forget(self, positions: Iterable[int]) -> None:
        """Messages have left the queue. Those without a key are passed over."""
        for position in positions:
            if (key := self.positions.pop(position, None)) is not None:
                del self._holders[key][position]
                if not self._holders[key]:
                    del self._holders[key]

    def keep(self, *folds: Callable[[Callable[[int, Message], object]], None]) -> None:
        """Only messages for which one of ``folds``, methods of a backing queue, makes a call are left in the queue."""
        left = set[int]()
        for fold in folds:
            fold(lambda position, _: left.add(position))
        self.forget(self.positions.keys() - left)

    def has(self, key: str, *, persistent: bool) -> bool:
        """Return True if a message has the key. Those that have expired do not count: they are not delivered any more.
        ``persistent``: nor do transient ones, because a restart drops them."""
        now_us = time.time() * 1e6
        return any(
            (is_persistent or not persistent) and (not expiry_us or expiry_us > now_us)
            for is_persistent, expiry_us in self._holders.get(key, {}).values()
        )
