"""Registration of the source and the sink ``kestrel``. Imports no implementation."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from msgstore import hookimpl
from msgstore.contract import Duration, SinkDescriptor, SourceDescriptor


@attrs.frozen
class KestrelSourceOptions:
    """Options of the source ``kestrel``."""

    max_age: Duration | None = None
    """``maxAge`` of the queue's configuration, which is not in the journal: messages that are older have expired."""
    state_dump: bool = False
    """Opcode 8 is STATE_DUMP, as in builds of March 2011, instead of CONTINUE."""


@attrs.frozen
class KestrelSinkOptions:
    """Options of the sink ``kestrel``."""

    queue: str = "messages"
    """Name of the queue for messages that are in none."""


@hookimpl
def msgstore_sources() -> Iterable[SourceDescriptor]:
    return [
        SourceDescriptor(
            name="kestrel",
            contract=(1, 0),
            factory="msgstore_kestrel_journal.source:KestrelSource",
            detect="msgstore_kestrel_journal.source:detect",
            sample="msgstore_kestrel_journal.source:sample",
            options=KestrelSourceOptions,
            summary="journals of Kestrel's queues: a directory, or one file",
        )
    ]


@hookimpl
def msgstore_sinks() -> Iterable[SinkDescriptor]:
    return [
        SinkDescriptor(
            name="kestrel",
            contract=(1, 0),
            factory="msgstore_kestrel_journal.sink:KestrelSink",
            options=KestrelSinkOptions,
            raw=True,
            summary="a directory with a journal for each queue, which Kestrel 2.4 reads",
        )
    ]
