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
    reflow_prefix: bool = False
    """v2 as v1: a user property with the name of a system property gets the prefix ``USER.``. Otherwise it is refused."""
    reflow_escape: bool = False
    """v2 as v1: separators in names and values of properties are written as ``%XX``. Otherwise they are refused."""


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
    v2: bool = False
    """Write records of the v2 layout of RIP-47. No released broker reads them: it would cut the log at the first one."""


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
            capabilities=[Capability.RANDOM_ACCESS, Capability.REFLOW],
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
            accepts="msgstore_rocketmq_log.sink:accepted",
            summary="a store directory that a broker of RocketMQ starts on",
        )
    ]
