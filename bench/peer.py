"""Interface of the stores that are compared.

No implementation calls fsync; fsync.py measures that. Stores with batches get batches of 1000 messages; msgstore gets one call
per message. Loops contain only calls of the store, bound to local names, so that each store is as fast as possible from Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

BATCH = 1000
"""Operations in a peer's batch or transaction."""
LAG = 500
"""Lifecycle: a message is put, and read and removed LAG messages later. A peer's batch has LAG puts and LAG removals."""
OPERATIONS: tuple[str, ...] = ("put", "get", "read_many", "remove", "lifecycle")
"""Operations that are timed for every store with this interface. Each other operation has its own module."""

Pair = tuple[bytes, bytes]
"""(id of 16 bytes, body) of a message."""


def batches(items: Sequence[Any], size: int = BATCH) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class Peer(ABC):
    """Open, empty store in ``directory``. ``prepare_*`` and ``wait_until_idle`` are not timed; ``*_all`` methods are."""

    name: ClassVar[str]
    how: ClassVar[str]
    """Calls, batches and options, on one line below the table."""
    operations: ClassVar[Sequence[str]] = OPERATIONS
    """Operations that are measured."""

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    def prepare_puts(self, pairs: Sequence[Pair]) -> Sequence[Any]:
        """Return the argument of ``put_all``."""
        return pairs

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        """Return the argument of ``get_all``, in the order of ``ids``."""
        return ids

    @abstractmethod
    def put_all(self, pairs: Sequence[Any]) -> None:
        """Store all messages. On return, the operating system has all of them."""

    def wait_until_idle(self) -> None:  # noqa: B027 - most stores have no background work
        """Wait for background work, so that it is not counted for the next operation."""

    @abstractmethod
    def get_one(self, msg_id: bytes) -> bytes | None:
        """Return one body, or None if it is absent. Used to check the results."""

    @abstractmethod
    def get_all(self, targets: Sequence[Any]) -> None:
        """Get each message with one call, as a bytes object, and drop it."""

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        """Get all messages in batches, each as a dict or list of bodies, in the order of writing."""
        raise NotImplementedError

    def remove_all(self, ids: Sequence[bytes]) -> None:
        """Remove all messages."""
        raise NotImplementedError

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        """Put each message; get and remove it LAG messages later."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...
