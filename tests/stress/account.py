"""Account of a run: bodies of messages, what the threads tell each other, and what was not as it should be."""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter, deque

LARGE_MESSAGE = 24 * 1024
"""The ``large_message`` of the stores."""
_NOISE = random.Random(0).randbytes(2**17)
_OFFSETS = 2**16


def body_of(msg_id: bytes) -> bytes:
    """The id and, behind it, a stretch of one noise: neither a neighbour's bytes nor its own shifted by a few are the same.
    Most bodies have 64 B to 1 KiB; some are shorter, empty ones among them, one in a thousand is large."""
    kind, chance = msg_id[0], int.from_bytes(msg_id[1:3])
    size = chance % 64 if kind < 5 else 64 + chance % 961
    if kind == 0 and chance < 2**14:
        size = LARGE_MESSAGE - 16 + chance % 2**13  # a few are just below the limit
    start = int.from_bytes(msg_id[3:5]) % _OFFSETS
    return (msg_id + _NOISE[start : start + size])[:size]


SLOTS = 256


def slot_of(msg_id: bytes) -> int:
    return msg_id[5]


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
    """What the threads tell each other, so that each of them knows exactly what another's message must answer.

    A slot is a list's element, read and set whole. A thread sets an *alive* slot after its write has returned, and empties it
    before it calls ``remove``: a message that is not found although the slot, looked at again afterwards, still has its id, is
    lost. It sets a *dead* slot when the last removal has returned, and never writes that id again: a message that is found is
    a ghost.
    """

    def __init__(self, threads: int) -> None:
        self.alive: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.dead: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.inboxes: list[deque[Shared]] = [deque() for _ in range(threads)]
        """Messages that others have written, or are about to, and this thread is to write as well."""


ENOUGH = 20
"""So many findings end a run."""


class Findings:
    """What was not as it should be, by kind. Any thread adds to it; one that looks at ``stop`` now and then ends early."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def add(self, kind: str, text: str) -> None:
        with self._lock:
            self.kinds[kind] += 1
            self.texts.append(f"{kind}: {text}")
            if len(self.texts) >= ENOUGH:
                self.stop.set()

    def error(self, where: str) -> None:
        """An exception that nobody expected, being handled. It ends the run."""
        self.add("error", f"{where}\n{traceback.format_exc()}")
        self.stop.set()

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __str__(self) -> str:
        return "\n".join([f"{sum(self.kinds.values())} findings: {dict(self.kinds)}", *self.texts[:ENOUGH]])
