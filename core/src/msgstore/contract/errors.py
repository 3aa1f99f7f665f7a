"""Errors: one tree under :class:`MsgStoreError`. A message says what failed, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class MsgStoreError(Exception):
    """Base class of all errors of this project."""


class ConfigError(MsgStoreError):
    """The configuration cannot be used. The message names file, table and key."""


class PluginError(MsgStoreError):
    """A selected backend cannot be used: it is unknown, broken, provided twice, or of another contract version."""


class BrokenPlugin(PluginError):
    """The selected plugin raised while it was imported, registered or called."""


class StoreError(MsgStoreError):
    """A store directory cannot be used. The message begins with its path."""


class StoreClosed(StoreError):
    """The store or the client is closed."""


class StoreLocked(StoreError):
    """Another process (``pid``, if known), or another store object of this one, has the directory open for writing."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreReadOnly(StoreError):
    """The store was opened with ``mode="r"``."""


class StoreMismatch(StoreError):
    """Directory and configuration contradict each other: type bytes, formats, body codec, or a missing index."""


class NotAdopted(StoreError):
    """The directory belongs to the broker that wrote it, and is not changed without ``adopt = true``."""


class StoreIOError(StoreError):
    """A file operation failed; the OSError is the cause. Unconfirmed messages stay in memory."""

    def __init__(self, message: str, *, applied: bool = False, taken: int | None = None, ids: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.applied = applied
        """True if ``write`` or ``remove`` took effect: do not repeat the call."""
        self.ids = tuple(ids)
        """Ids whose reference ``remove`` has not removed: repeat the removal with these."""
        self.taken = int(applied) if taken is None else taken
        """Number of messages that ``write`` or ``write_many`` took, from the first on: continue after these."""


class CorruptRecord(StoreError):
    """The bytes of a record are damaged. Has ``reason``, ``path``, ``offset`` and ``msg_id``."""

    def __init__(self, message: str, *, reason: str, path: Path, offset: int, msg_id: bytes) -> None:
        super().__init__(message)
        self.reason, self.path, self.offset, self.msg_id = reason, path, offset, msg_id


class BodyRefused(StoreError):
    """The body codec raised, or returned what no record can hold, so the message was not taken. The exception is the cause."""


class MessageTooLarge(MsgStoreError, ValueError):
    """The stored body does not fit into a record, or the body codec takes none so large."""


class MessageNotFound(MsgStoreError, KeyError):
    """The store has no live message with these ``ids``."""

    def __init__(self, ids: Sequence[bytes], where: str = "the store") -> None:
        self.ids, self.where = tuple(ids), where
        super().__init__(self.ids, where)

    def __str__(self) -> str:
        more = f" and {len(self.ids) - 5} more" if len(self.ids) > 5 else ""
        return f"not in {self.where}: {', '.join(msg_id.hex() for msg_id in self.ids[:5])}{more}"


class RecordError(MsgStoreError):
    """Raised by plugins for a damaged record. Has ``reason`` and ``detail``. The reader turns it into CorruptRecord."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail
