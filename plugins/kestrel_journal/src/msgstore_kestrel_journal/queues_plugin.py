"""Registration of the backing queue ``kestrel``, for msgstore-queues: only that distribution imports this module."""

from __future__ import annotations

import attrs

from msgstore.contract import Size
from msgstore_queues import hookimpl
from msgstore_queues.contract import BackingQueueDescriptor, Capability


@attrs.frozen
class KestrelQueueOptions:
    """Options of the backing queue ``kestrel``."""

    journal_size: Size = Size(16 * 2**20)
    """Bytes of the journal, beside twice those of the messages, from which on it is rewritten."""


@hookimpl
def msgstore_backing_queues() -> list[BackingQueueDescriptor]:
    return [
        BackingQueueDescriptor(
            name="kestrel",
            contract=(1, 0),
            factory="msgstore_kestrel_journal.backing_queue:KestrelQueue",
            options=KestrelQueueOptions,
            capabilities=frozenset({Capability.PERSISTENT}),
            summary="in memory, and in a journal that Kestrel 2.4 reads: bodies and expiry only",
            examples=({}, {"journal_size": "200B"}),
        )
    ]
