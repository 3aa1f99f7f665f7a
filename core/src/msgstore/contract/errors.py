"""One tree of errors under :class:`MsgStoreError`. Each message says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class MsgStoreError(Exception):
    """The root of every error of ours."""


class ConfigError(MsgStoreError):
    """A configuration that cannot be used; the message names file, table and key."""


class PluginError(MsgStoreError):
    """A backend that was selected cannot be had: unknown, broken, provided twice, or of another contract version."""


class UnknownPlugin(PluginError):
    """No installed distribution provides the selected name."""


class BrokenPlugin(PluginError):
    """The plugin of the selected name failed while it was imported, registered or made."""


class DuplicatePlugin(PluginError):
    """Several distributions provide the selected name, or several formats claim the same files."""


class IncompatiblePlugin(PluginError):
    """The plugin was written against a contract version that this core does not serve."""


class StoreError(MsgStoreError):
    """Something about one store directory; the message begins with its path."""


class StoreClosed(StoreError):
    """The store, or the client, was closed before this call."""


class StoreLocked(StoreError):
    """Another process (or another store object of this one) has the directory open for writing."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreReadOnly(StoreError):
    """A change was asked of a store that was opened with ``mode="r"``."""


class StoreMismatch(StoreError):
    """The directory and the configuration contradict each other: bindings, formats, or an index that is not there."""


class NotAdopted(StoreError):
    """The directory belongs to the broker that wrote it, and is not changed until it is adopted: ``adopt = true``."""


class StoreIOError(StoreError):
    """The operating system refused a file operation; the OSError is the cause. What was not confirmed stays pending."""

    def __init__(self, message: str, *, applied: bool = False, taken: int | None = None, ids: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.applied = applied
        """True if ``write`` or ``remove`` took effect all the same: repeating the call would do it twice. After False ``write``
        did nothing, and ``remove`` nothing to ``ids``."""
        self.ids = tuple(ids)
        """What ``remove`` took no reference from, of the ids that it was given: repeat the removal with these only."""
        self.taken = int(applied) if taken is None else taken
        """Messages that ``write``, or ``write_many`` from its first one on, took: go on behind these."""


class CorruptRecord(StoreError):
    """A record's bytes are not what was written; names store, file, offset and id."""

    def __init__(self, message: str, *, reason: str, path: Path, offset: int, msg_id: bytes) -> None:
        super().__init__(message)
        self.reason = reason
        self.path = path
        self.offset = offset
        self.msg_id = msg_id


class BodyRefused(StoreError):
    """The body codec failed for messages, or gave what no record can hold: ``ids``, which the store does not have and never
    confirms. What the codec raised for the first of them is the cause."""

    def __init__(self, message: str, ids: Sequence[bytes]) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class MessageTooLarge(MsgStoreError, ValueError):
    """The body does not fit into a record of the store's format, or its body codec takes none so large."""


class MessageNotFound(MsgStoreError, KeyError):
    """The store has no live message of this id, or these ids: ``ids``."""

    def __init__(self, ids: Sequence[bytes], where: str = "the store") -> None:
        self.ids = tuple(ids)
        shown = ", ".join(msg_id.hex() for msg_id in self.ids[:5])
        more = f" and {len(self.ids) - 5} more" if len(self.ids) > 5 else ""
        self.message = f"not in {where}: {shown}{more}"
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would show the repr
        return self.message


class RecordError(MsgStoreError):
    """Raised by formats and record types, who know neither store nor file; the reader turns it into CorruptRecord."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
