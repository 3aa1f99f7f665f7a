"""Options of queues and vhosts, as keywords and as keys of ``[vhosts.NAME]`` and ``[vhosts.NAME.queues.QUEUE]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, optional

from msgstore.contract import Duration, Size
from msgstore.option_values import Backend, Durability

SUFFIX = ".delayed"
"""End of the name of the queue that holds the delayed messages of another."""
Layout = Literal["own", "rabbitmq-3.10"]
Overflow = Literal["block", "reject", "drop-head"]
Items = Literal["bytes", "json", "pickle"]
Restart = Literal["continue", "stop"]
Damaged = Literal["stop", "skip"]


def _check_name(_: object, __: object, name: str | None) -> None:
    if name is not None and not name.encode():  # which raises ValueError for what UTF-8 does not have
        raise ValueError("dead_letter: a name of a queue has at least one character")
    if name is not None and name.endswith(SUFFIX):
        raise ValueError(f"dead_letter: {name!r} is the name of delayed messages of another queue")


@attrs.frozen(kw_only=True)
class QueueOptions:
    """How one queue works. What is remembered in its directory: ``backing``, ``index`` and ``durable``."""

    backing: Backend = Backend("variable", named=False)
    """The backing queue, which holds the messages."""
    index: Backend = Backend("v2", named=False)
    """The queue index, which keeps positions on disk. Not named: a new queue has ``v1`` if confirms are synced, because its
    journal needs one sync for a flush, and in a directory of RabbitMQ 3.10; otherwise ``v2``."""
    durable: bool = True
    """False: the queue and its messages end with the process."""
    items: Items = "bytes"
    """What ``put`` takes and ``get`` returns: bytes, values that JSON has, or any object. Whoever can write a pickle into the
    directory can run code in the process that reads it."""
    message_ttl: Duration | None = None
    """Messages that wait longer are dropped, or dead-lettered, when they come to the head of the queue."""
    expires: Duration | None = attrs.field(default=None, validator=optional(gt(Duration(0))))
    """The queue is deleted with its messages when nobody has used it for this time: no call that adds, takes,
    acknowledges, gives back or shows messages, no ``vhost.queue``, no consumer, and no unacked or delayed message. The time
    begins anew when the vhost opens."""
    deduplicate: bool = False
    """True: keys of ``publish`` are known again after a restart. All messages are read once for that when the queue is
    declared."""
    max_length: int | None = attrs.field(default=None, validator=optional(ge(0)))
    """Ready messages that the queue holds at most."""
    max_bytes: Size | None = None
    """Bytes of the bodies of ready messages that the queue holds at most."""
    overflow: Overflow = attrs.field(default="block", validator=in_(("block", "reject", "drop-head")))
    """What a publish does at these limits: wait, raise :class:`queue.Full`, or drop or dead-letter the first message."""
    dead_letter: str | None = attrs.field(default=None, validator=_check_name)
    """Queue of the same vhost that receives rejected, expired and dropped messages. It is made for the first of them if it is
    not there, and takes them also if it is full."""
    max_attempts: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Deliveries of a message, each of which ended in ``nack``, before it is dead-lettered, or dropped."""
    retry_delay: Duration = Duration(0)
    """Time between the first ``nack`` of a message and its next delivery. It doubles with each further one."""
    max_retry_delay: Duration = Duration(3600)
    """Longest such time."""


def _refuse_keys_of_vhost(_: object, __: object, store: Mapping[str, Any]) -> None:
    for key in ("path", "body", "durability", "sync_interval"):
        if key in store:
            raise ValueError(f"store: the key {key!r} is not of the store. A vhost chooses it.")


@attrs.frozen(kw_only=True)
class VHostOptions:
    """How one vhost works."""

    durability: Durability = "os"
    """The meaning of a confirm: ``"os"``, passed to the operating system, or ``"fsync"``, synced to disk."""
    sync_interval: Duration = Duration(0.2)
    """Time between a publish or an acknowledgement and the flush that writes it. 0: each call flushes before it returns."""
    max_unconfirmed: Size = Size(16 * 2**20)
    """Bytes that a flush would write, above which a publish flushes before it returns."""
    embed_below: Size = Size(4096)
    """Messages with fewer bytes of body and properties are in the queue index, others in a message store."""
    layout: Layout = "own"
    """``"rabbitmq-3.10"``: a directory that RabbitMQ 3.10 wrote, or boots on: the data directory of a node that is not
    running, with the queues declared in it. Segments are ``*.rdq`` then."""
    damaged: Damaged = "stop"
    """How a queue treats a message whose body in a message store is damaged. ``"stop"``: the messages before it are delivered;
    then each call that takes a message raises CorruptRecord, with the position. ``"skip"``: the message is acknowledged, and
    reported as lost. With a wrong key of the store, ``"skip"`` would lose all messages."""
    restart: Restart = attrs.field(default="continue", validator=in_(("continue", "stop")))
    """What follows if a message store fails more than 3 times in 5 minutes, or the vhost cannot be opened again after a
    failure. The vhost is down in any case: ``"continue"`` lets its calls raise errors, and other vhosts go on; ``"stop"`` also
    sends SIGTERM to the process."""
    store: Mapping[str, Any] = attrs.field(factory=dict, validator=_refuse_keys_of_vhost)
    """Options of the message stores, as in ``[stores.NAME]``, but ``path``, ``body``, ``durability`` and ``sync_interval``. The
    bodies are terms, as a broker stores them, so that its tools read them: no codec changes them."""
    queues: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Options of queues by name. They are declared when the vhost opens."""
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of all queues, where their own do not say otherwise."""

    @property
    def store_keys(self) -> dict[str, Any]:
        """Keys with which the message store of persistent messages is opened, but ``path`` and ``sync_interval``."""
        keys = {"body": "raw", **self.store, "durability": self.durability}
        return keys if self.layout == "own" else {**keys, "format": "v1", "body": "erlang", "adopt": True}

    @property
    def usual_index(self) -> str:
        """The index of a new queue that names none."""
        return "v2" if self.durability == "os" and self.layout == "own" else "v1"
