"""Errors of supervision: what failed, and whether it was started again."""

from __future__ import annotations

from msgstore.contract import MsgStoreError, StoreError


class QueueFailed(MsgStoreError):
    """A backing queue or a queue index raised something unexpected. Its queue was read again from disk, unless the message says
    otherwise: what was confirmed is there, unacked messages are ready again, and what was not confirmed may be lost."""


class StoreFailed(MsgStoreError):
    """A message store of the vhost does not work any more. The vhost is opened again, with all its queues: what was confirmed
    is there, unacked messages are ready again, and what was not confirmed may be lost."""

    def __init__(self, message: str, store: object) -> None:
        super().__init__(message)
        self.store = store


class VHostDown(StoreError):
    """The vhost does not work until ``vhost.start()`` is called. The message says why."""
