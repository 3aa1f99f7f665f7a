"""Registration of the source and the command ``rabbitmq``. Imports no implementation."""

from __future__ import annotations

from collections.abc import Iterable

from msgstore import hookimpl
from msgstore.contract import Capability, CommandDescriptor, SourceDescriptor


@hookimpl
def msgstore_sources() -> Iterable[SourceDescriptor]:
    return [
        SourceDescriptor(
            name="rabbitmq",
            contract=(1, 0),
            factory="msgstore_rabbitmq_source.source:RabbitmqSource",
            detect="msgstore_rabbitmq_source.source:detect",
            sample="msgstore_rabbitmq_source.sample:sample",
            capabilities=frozenset({Capability.SHARED_BODIES}),
            summary="classic queues of a RabbitMQ node: its data directory, a vhost, or one queue",
        )
    ]


@hookimpl
def msgstore_commands() -> Iterable[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="rabbitmq",
            contract=(1, 0),
            factory="msgstore_rabbitmq_source.command:rabbitmq",
            summary="Look at a RabbitMQ node that does not boot.",
        )
    ]
