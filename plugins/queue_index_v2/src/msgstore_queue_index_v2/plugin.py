"""Registration of the queue index ``v2``."""

from __future__ import annotations

from msgstore_queues import hookimpl
from msgstore_queues.contract import QueueIndexDescriptor


@hookimpl
def msgstore_queue_indexes() -> list[QueueIndexDescriptor]:
    return [
        QueueIndexDescriptor(
            name="v2",
            contract=(1, 0),
            factory="msgstore_queue_index_v2.index:QueueIndexV2",
            summary="entries of 32 bytes, messages of up to 4 KiB beside them; RabbitMQ since 3.10",
        )
    ]
