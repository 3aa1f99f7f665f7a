"""Hooks of msgstore-queues: plugins register queue indexes and backing queues, and observe vhosts. No message passes through a
hook."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from msgstore_queues import events
from msgstore_queues.contract import BackingQueueDescriptor, QueueIndexDescriptor

GROUP = "msgstore_queues"
"""Project name of the hooks, and name of the entry-point group."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def msgstore_queue_indexes() -> Iterable[QueueIndexDescriptor]:  # type: ignore[empty-body]
    """Queue indexes, selected by ``index`` of a queue or vhost."""


@hookspec
def msgstore_backing_queues() -> Iterable[BackingQueueDescriptor]:  # type: ignore[empty-body]
    """Backing queues, selected by ``backing`` of a queue or vhost."""


@hookspec
def msgstore_vhost_opened(event: events.VHostOpenedEvent) -> None:
    """See :class:`msgstore_queues.events.VHostOpenedEvent`."""


@hookspec
def msgstore_vhost_closed(event: events.VHostClosedEvent) -> None:
    """See :class:`msgstore_queues.events.VHostClosedEvent`."""


@hookspec
def msgstore_vhost_restarted(event: events.VHostRestartedEvent) -> None:
    """See :class:`msgstore_queues.events.VHostRestartedEvent`."""


@hookspec
def msgstore_vhost_down(event: events.VHostDownEvent) -> None:
    """See :class:`msgstore_queues.events.VHostDownEvent`."""


@hookspec
def msgstore_queue_declared(event: events.QueueDeclaredEvent) -> None:
    """See :class:`msgstore_queues.events.QueueDeclaredEvent`."""


@hookspec
def msgstore_queue_deleted(event: events.QueueDeletedEvent) -> None:
    """See :class:`msgstore_queues.events.QueueDeletedEvent`."""


@hookspec
def msgstore_queue_restarted(event: events.QueueRestartedEvent) -> None:
    """See :class:`msgstore_queues.events.QueueRestartedEvent`."""


@hookspec
def msgstore_queue_messages_lost(event: events.MessagesLostEvent) -> None:
    """See :class:`msgstore_queues.events.MessagesLostEvent`."""


@hookspec
def msgstore_queue_flush_failed(event: events.FlushFailedEvent) -> None:
    """See :class:`msgstore_queues.events.FlushFailedEvent`."""
