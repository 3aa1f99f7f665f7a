"""The tiny interface behind which stores are compared.

Nothing behind it calls fsync: that is fsync.py's. Whoever has batches gets batches of 1000 messages; msgstore gets one call a
message. Loops hold nothing but the store's own calls, bound to local names, so that each store shows its best from Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

BATCH = 1000
"""Operations in a peer's batch or transaction."""
LAG = 500
"""A lifecycle is put, and LAG messages later got and removed. A peer's batch is LAG puts and LAG removals: BATCH."""
OPERATIONS: tuple[str, ...] = ("put", "get", "read_many", "remove", "lifecycle")
"""Those that are timed for each store here; the others have a module each."""

Pair = tuple[bytes, bytes]
"""A message: its id, 16 bytes, and its body."""


def batches(items: Sequence[Any], size: int = BATCH) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class Peer(ABC):
    """An open, empty store in ``directory``. What ``prepare_*`` and ``settle`` do is not timed; the ``*_all`` are."""

    name: ClassVar[str]
    how: ClassVar[str]
    """One line for the reader of the table: calls, batches, options."""
    operations: ClassVar[Sequence[str]] = OPERATIONS
    """Those that are measured."""

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    def prepare_puts(self, pairs: Sequence[Pair]) -> Sequence[Any]:
        """What ``put_all`` takes."""
        return pairs

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        """What ``get_all`` takes, in the order of ``ids``."""
        return ids

    @abstractmethod
    def put_all(self, pairs: Sequence[Any]) -> None:
        """Store all; when it returns, all are with the operating system."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Let work in the background end, so that it is not counted as the next operation's."""

    @abstractmethod
    def look(self, msg_id: bytes) -> bytes | None:
        """One body, None if absent: for checking that the store does what is timed."""

    @abstractmethod
    def get_all(self, targets: Sequence[Any]) -> None:
        """Get each, one call a message; bodies are bytes objects and are dropped."""

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        """Get all in batches, each as a dict or list of bodies, in the order of writing."""
        raise NotImplementedError

    def remove_all(self, ids: Sequence[bytes]) -> None:
        raise NotImplementedError

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        """Put each; LAG messages later get it and remove it."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...
