"""Registration of the sink ``amqp``. Imports no implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
from attrs.validators import gt, optional

from msgstore import hookimpl
from msgstore.contract import Duration, SinkDescriptor


@attrs.frozen
class AmqpSinkOptions:
    """Options of the sink ``amqp``."""

    to: Literal["queue", "exchange"] = "queue"
    """``queue``: straight to the queue of the message's name. ``exchange``: to its exchange, by its first routing key."""
    declare: bool = False
    """Declare queues that are missing, as durable ones."""
    queue_arguments: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments of the queues that ``declare`` makes, such as ``{"x-queue-type": "quorum"}``."""
    mandatory: bool = True
    """Refuse a message that the broker routes to no queue. Without it, the broker drops such messages."""
    rate: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """Messages per second, at most."""
    anyway: bool = False
    """Send also to queues that may discard messages: by a maximum length, or after a time."""
    user_id: Literal["drop", "keep"] = "drop"
    """The broker takes no ``user_id`` but the login's. ``drop``: another one is left out. ``keep``: it is sent, for a login
    with the tag ``impersonator``."""
    vhost: str | None = None
    """Vhost of all messages. Default: the one of the URL, else that of each queue."""
    management: str | None = None
    """URL of the management API, such as ``http://localhost:15672``. With it, limits that policies set are seen, too."""
    blocked_timeout: Duration = Duration(300)
    """Time to wait for a broker that takes no messages because its memory or disk is full."""


@hookimpl
def msgstore_sinks() -> Iterable[SinkDescriptor]:
    return [
        SinkDescriptor(
            name="amqp",
            contract=(1, 0),
            factory="msgstore_amqp_sink.sink:AmqpSink",
            schemes=("amqp", "amqps"),
            changeable=("rate", "anyway", "blocked_timeout", "management"),
            options=AmqpSinkOptions,
            summary="queues of RabbitMQ, or another broker of AMQP 0-9-1",
        )
    ]
