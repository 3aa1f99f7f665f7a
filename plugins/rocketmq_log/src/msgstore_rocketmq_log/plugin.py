"""Registration of the source and the sink ``rocketmq``. Imports no implementation."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from msgstore import hookimpl
from msgstore.contract import Capability, SinkDescriptor, Size, SourceDescriptor


@attrs.frozen
class RocketmqSourceOptions:
    """Options of the source ``rocketmq``."""

    group: str | None = None
    """A consumer group: what it has consumed has the state ``consumed``."""
    max_body: Size = Size(128 * 2**20)
    """Bytes of a body without its compression. A larger one is damage."""


@attrs.frozen
class RocketmqSinkOptions:
    """Options of the sink ``rocketmq``. The broker must be configured with the same sizes."""

    file_size: Size = Size(2**30)
    """``mappedFileSizeCommitLog``."""
    queue_entries: int = 300_000
    """Entries of a file of a consume queue: ``mappedFileSizeConsumeQueue`` is 20 times as much."""
    index: bool = True
    """Write an index file for the keys of messages."""
    topic: str = "messages"
    """Topic of messages that are in no queue."""


@hookimpl
def msgstore_sources() -> Iterable[SourceDescriptor]:
    return [
        SourceDescriptor(
            name="rocketmq",
            contract=(1, 0),
            factory="msgstore_rocketmq_log.source:RocketmqSource",
            detect="msgstore_rocketmq_log.source:detect",
            sample="msgstore_rocketmq_log.source:sample",
            options=RocketmqSourceOptions,
            capabilities=[Capability.RANDOM_ACCESS],
            summary="RocketMQ's store directory: commit log, and what is beside it",
        )
    ]


@hookimpl
def msgstore_sinks() -> Iterable[SinkDescriptor]:
    return [
        SinkDescriptor(
            name="rocketmq",
            contract=(1, 0),
            factory="msgstore_rocketmq_log.sink:RocketmqSink",
            options=RocketmqSinkOptions,
            raw=True,
            summary="a store directory that a broker of RocketMQ starts on",
        )
    ]
