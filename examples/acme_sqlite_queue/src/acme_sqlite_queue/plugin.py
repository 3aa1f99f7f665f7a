"""Registration of the backing queue ``sqlite``. The factory is imported when a queue selects it."""

from __future__ import annotations

from msgstore_queues import hookimpl
from msgstore_queues.contract import BackingQueueDescriptor, Capability


@hookimpl
def msgstore_backing_queues() -> list[BackingQueueDescriptor]:
    return [
        BackingQueueDescriptor(
            name="sqlite",
            contract=(1, 0),
            factory="acme_sqlite_queue.queue:SqliteQueue",
            capabilities=frozenset({Capability.PERSISTENT, Capability.PROPERTIES, Capability.BROWSE, Capability.TRANSACTIONS}),
            summary="all messages in one SQLite file, with browsing and transactions",
        )
    ]
