"""Registration of the queue index ``v1``."""

from __future__ import annotations

from msgstore_queues import hookimpl
from msgstore_queues.contract import QueueIndexDescriptor


@hookimpl
def msgstore_queue_indexes() -> list[QueueIndexDescriptor]:
    return [
        QueueIndexDescriptor(
            name="v1",
            contract=(1, 0),
            factory="msgstore_queue_index_v1.index:QueueIndexV1",
            summary="a journal, and segments to which its entries move; RabbitMQ 3.x",
        )
    ]
