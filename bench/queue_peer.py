"""Interface of the queues that ``queues.py`` compares.

Without ``is_synced`` no queue syncs each message. Each is then as fast as it can be if its messages shall survive a crash of
the process. With ``is_synced`` each publish and each acknowledgement is synced before the call returns, if ``syncs`` has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import ClassVar


class QueuePeer(ABC):
    """Open queue in ``directory``, with the messages that are there."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Python packages to import."""
    is_sqlite: ClassVar[bool] = False
    is_server: ClassVar[bool] = False
    """True if another process holds the messages."""
    syncs: ClassVar[tuple[str, ...]] = ("publish", "ack")
    """Calls that the queue can sync before they return."""

    @abstractmethod
    def __init__(self, directory: Path, *, is_synced: bool) -> None: ...

    @classmethod
    def is_installed(cls) -> bool:
        """Return True if the programs that the peer needs are installed. ``needs`` is checked elsewhere."""
        return True

    @abstractmethod
    def publish(self, body: bytes) -> None:
        """Add a message at the end."""

    @abstractmethod
    def take(self) -> bytes | None:
        """Take the first message and acknowledge it. Return its body, or None if there is no message."""

    def finish(self) -> None:  # noqa: B027 - most queues confirm each call
        """Return when everything that was published and acknowledged survives a crash of the process."""

    @abstractmethod
    def close(self) -> None:
        """Stop cleanly."""

    def kill_server(self) -> None:  # noqa: B027 - most queues have no server
        """End the server with SIGKILL."""

    def publish_all(self, bodies: Iterable[bytes]) -> None:
        publish = self.publish
        for body in bodies:
            publish(body)
        self.finish()

    def pass_through(self, bodies: Iterable[bytes], lag: int) -> bytes | None:
        """Publish messages, and take each when ``lag`` others are behind it. Return the body of the last."""
        publish, take, source = self.publish, self.take, iter(bodies)
        for body in islice(source, lag):
            publish(body)
        for body in source:
            publish(body)
            take()
        self.finish()
        last = None
        for _ in range(lag):
            last = take()
        self.finish()
        return last
