"""What the threads tell each other, so that each of them knows exactly what another's message must answer.

A slot is a list's element, read and set whole. A thread sets an *alive* slot after its write has returned, and empties it
before it calls ``remove``: a message that is not found although the slot, looked at again afterwards, still has its id, is
lost. It sets a *dead* slot when the last removal has returned, and never writes that id again: a message that is found is a
ghost.
"""

from __future__ import annotations

import threading
from collections import deque

SLOTS = 256


class Shared:
    """A message that several clients write, each once and when it gets to it, and each removes once."""

    def __init__(self, msg_id: bytes, holders: int) -> None:
        self.msg_id = msg_id
        self._left = holders
        self._lock = threading.Lock()

    def give_back(self) -> bool:
        """After a holder's removal has returned. True for the last one: now it must be gone, whoever asks."""
        with self._lock:
            self._left -= 1
            return self._left == 0


class Board:
    def __init__(self, threads: int) -> None:
        self.alive: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.dead: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.inboxes: list[deque[Shared]] = [deque() for _ in range(threads)]
        """Messages that others have written, or are about to, and this thread is to write as well."""


def slot_of(msg_id: bytes) -> int:
    return msg_id[5]
