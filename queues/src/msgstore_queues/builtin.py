"""Registration of the backing queues of this distribution."""

from __future__ import annotations

from pathlib import Path

import attrs

from msgstore.option_values import Backend
from msgstore_queues.contract import BackingQueueDescriptor, Capability
from msgstore_queues.hooks import hookimpl


@attrs.frozen
class VariableOptions:
    memory: int = attrs.field(default=100_000, validator=attrs.validators.ge(0))
    """Ready messages whose bodies are kept in memory, about. 0: lazy, as few as possible."""


@attrs.frozen
class PriorityOptions:
    levels: int = attrs.field(default=10, validator=[attrs.validators.ge(1), attrs.validators.le(256)])
    """Number of priorities, from 0 on. RabbitMQ's ``x-max-priority`` is one less."""
    over: Backend = Backend("variable", named=False)
    """Backing queue of each priority."""


@attrs.frozen
class MirrorOptions:
    directory: Path
    """Directory for the second copy of the queue, on another disk. The vhost needs one of its own."""
    over: Backend = Backend("variable", named=False)
    """Backing queue of each copy."""


@hookimpl
def msgstore_backing_queues() -> list[BackingQueueDescriptor]:
    return [
        BackingQueueDescriptor(
            name="variable",
            contract=(1, 0),
            factory="msgstore_queues.backing.variable:VariableQueue",
            options=VariableOptions,
            capabilities=frozenset({Capability.PERSISTENT, Capability.PROPERTIES, Capability.BODIES}),
            summary="the next and the last messages in memory, those between on disk only",
            examples=({}, {"memory": 0}, {"memory": 3}),
        ),
        BackingQueueDescriptor(
            name="memory",
            contract=(1, 0),
            factory="msgstore_queues.backing.memory:MemoryQueue",
            capabilities=frozenset({Capability.PROPERTIES}),
            summary="in memory only: nothing survives the process",
        ),
        BackingQueueDescriptor(
            name="priority",
            contract=(1, 0),
            factory="msgstore_queues.backing.priority:PriorityQueue",
            options=PriorityOptions,
            capabilities=frozenset({Capability.PERSISTENT, Capability.PROPERTIES, Capability.PRIORITIES}),
            summary="messages of higher priority first: a backing queue for each priority",
            examples=(
                {"levels": 3},
                {"levels": 2, "over": {"use": "variable", "memory": 0}},
            ),
        ),
        BackingQueueDescriptor(
            name="mirror",
            contract=(1, 0),
            factory="msgstore_queues.backing.mirror:MirrorQueue",
            options=MirrorOptions,
            capabilities=frozenset({Capability.PERSISTENT, Capability.PROPERTIES}),
            summary="each message in two directories: the queue survives the loss of one",
            examples=({"directory": "mirror"}, {"directory": "mirror", "over": {"use": "variable", "memory": 2}}),
        ),
    ]
