"""Contract between queues and their plugins: messages, queue indexes, backing queues, and their descriptors.

A **backing queue** holds the messages of one queue in order. A **queue index** keeps their positions on disk, and the small
messages themselves; large ones are in the message stores of the vhost. A plugin is a module that an entry point of the group
``msgstore_queues`` names::

    # acme_index/plugin.py
    from msgstore_queues import hookimpl
    from msgstore_queues.contract import QueueIndexDescriptor

    @hookimpl
    def msgstore_queue_indexes():
        return [QueueIndexDescriptor(name="acme", contract=(1, 0), factory="acme_index.index:AcmeIndex", summary="...")]

    # pyproject.toml
    [project.entry-points.msgstore_queues]
    acme = "acme_index.plugin"

No method is called by two threads at once: each queue has a lock.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import attrs

from msgstore.contract import Descriptor
from msgstore.files import Files


class Capability(enum.Enum):
    """An optional feature of a backing queue, claimed in its descriptor. If it needs methods, it names the Protocol."""

    PERSISTENT = "persistent"
    """Confirmed messages survive the end of the process. A proxy claims it if what is below it does."""
    PROPERTIES = "properties"
    """Messages come back with their id, properties, exchange and routing keys. A proxy claims it if what is below it does."""
    PRIORITIES = "priorities"
    """Messages of higher priority are delivered first."""
    BODIES = "bodies"
    """Messages without properties are published by their bodies, for speed. The backing queue is a :class:`BodiesQueue`."""
    BROWSE = "browse"
    """Messages in the middle are read without those before them. The backing queue is a :class:`BrowsableQueue`."""
    TRANSACTIONS = "transactions"
    """Publishes and acknowledgements are one change. The backing queue is a :class:`TransactionalQueue`."""


def _capabilities(values: Iterable[Capability | str]) -> frozenset[Capability]:
    return frozenset(map(Capability, values))


@attrs.define(eq=False)
class Message:
    """A message, with what a queue keeps of it. Not changed after it was published: queues share it."""

    msg_id: bytes
    """16 bytes, unique. Copies of one message in several queues have the same id."""
    body: bytes
    is_persistent: bool = True
    """False: lost when the process ends."""
    expiry_us: int = 0
    """Time from which the message is not delivered, in microseconds since the epoch; 0: none."""
    exchange: bytes = b""
    routing_keys: tuple[bytes, ...] = ()
    """The key of the publish, then those of CC and BCC."""
    raw_properties: bytes = b"\0\0"
    """Properties of AMQP 0-9-1: a content header of class 60, from its flags on."""


class Delivery(NamedTuple):
    """A message that was taken, and waits for its acknowledgement."""

    position: int
    """Names the message in its queue until it is acknowledged or put back. Each has another one, in any order."""
    message: Message
    is_redelivered: bool
    """True if the message may have been delivered before."""


@attrs.define
class Entry:
    """A message as a queue index keeps it."""

    position: int
    """Number of the message, counted from the start of the queue."""
    is_persistent: bool
    msg_id: bytes
    """16 bytes. May be empty in what an index returns of an embedded message: its term has the id."""
    body_size: int
    """Bytes of the body, without the properties."""
    expiry_us: int
    term: bytes | None
    """The message as an Erlang term, if it is embedded in the index; None if it is shared, or was not asked for."""
    is_shared: bool = False
    """True if the message is in a message store of the vhost, not in the index."""


@attrs.frozen(eq=False)
class NewEntries:
    """Messages for a queue index, by columns of one length: an object for each message would cost more than its bytes do."""

    positions: Sequence[int]
    are_persistent: Sequence[bool]
    ids: Sequence[bytes]
    """16 bytes each."""
    body_sizes: Sequence[int]
    expiries_us: Sequence[int]
    terms: Sequence[bytes | None]
    """The Erlang term of a message that is embedded in the index; None: it is in a message store."""

    def part(self, start: int, stop: int | None = None) -> NewEntries:
        """Return the messages from the ``start``-th to before the ``stop``-th, counted from 0."""
        return NewEntries(
            self.positions[start:stop], self.are_persistent[start:stop], self.ids[start:stop],
            self.body_sizes[start:stop], self.expiries_us[start:stop], self.terms[start:stop],
        )  # fmt: skip

    def rows(self) -> Iterator[tuple[int, bool, bytes, int, int, bytes | None]]:
        """Yield the messages."""
        ids, sizes, expiries = self.ids, self.body_sizes, self.expiries_us
        return zip(self.positions, self.are_persistent, ids, sizes, expiries, self.terms, strict=True)


NO_ENTRIES = NewEntries((), (), (), (), (), ())


@attrs.frozen
class Recovered:
    """State of a queue index after its opening."""

    next_position: int
    """Position of the next publish, above all that are in the files."""
    count: int
    """Messages that are not acknowledged. After a crash, transient ones are not among them: the index has dropped them."""
    first_position: int
    """None of them has a position below this one."""
    body_bytes: int | None
    """The sum of their ``body_size``. None: the terms were used, and the files not read."""


class QueueIndex(Protocol):
    """Positions of a queue's messages, on disk, and the messages that are embedded in it.

    Entries are grouped into segments by their position. The files of a segment are deleted when all of its messages are
    acknowledged and no further one can come. A crash leaves each entry whole or not at all.
    """

    recovered: Recovered

    def write(self, entries: NewEntries, acks: Sequence[int]) -> None:
        """Pass entries and acknowledgements to the operating system, the entries first. Positions of entries ascend, and are
        above all earlier ones of persistent messages; a transient message may be written later than its successors. ``acks``:
        positions of written entries, each once, in any order. Raises OSError; the next call begins with the same entries, and
        has the same acknowledgements and perhaps more."""

    def sync(self) -> Callable[[], None]:
        """Return a function that makes all that was written so far survive a power failure, names of files too. It is called
        without the lock of the queue, while other calls run."""

    def segment(self, position: int) -> tuple[int, int]:
        """Return the first position of the segment that has ``position``, and the first one behind it."""

    def read(self, start: int, stop: int, *, terms: bool = True) -> list[Entry]:
        """Return the entries from ``start`` to below ``stop``, in one segment, that are not acknowledged, in order. ``terms``:
        with embedded messages. A message that cannot be read is left out, and the log says so. Raises OSError."""

    def shared(self) -> Iterator[bytes]:
        """Yield the id of every message that is not acknowledged, and is in a message store."""

    def close(self) -> Mapping[str, Any]:
        """Close the files. Return the terms, of values that JSON has, by which the next opening need not read them."""

    def abandon(self) -> None:
        """Close the files as the end of the process would."""

    def delete(self) -> None:
        """Close the files, and delete them."""


@attrs.frozen(kw_only=True)
class QueueIndexContext:
    """Argument of the factory of a queue index."""

    options: Any
    """Instance of the descriptor's ``options``."""
    directory: Path
    """Directory of the queue. It exists. The index owns its files there, and no others."""
    files: Files
    """All file operations go through it, so that tests can make them fail."""
    terms: Mapping[str, Any] | None = None
    """The result of the last ``close``. None for a new queue, and after a crash."""
    is_synced: bool = False
    """True if ``sync`` is called after each write."""
    segment_entries: int | None = None
    """Positions of a segment. None: the number of the index."""
    is_for_broker: bool = False
    """True if RabbitMQ may read the files: they have only what it knows."""


@attrs.frozen(kw_only=True)
class QueueIndexDescriptor(Descriptor):
    """``factory(context: QueueIndexContext) -> QueueIndex``."""


class Bodies(Protocol):
    """A message store of the vhost, as a backing queue uses it. Terms are on disk after the next flush of the vhost."""

    def write(self, msg_id: bytes, term: bytes) -> None:
        """Store a message, or add a reference to it."""

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the terms of those that are there. Raises CorruptRecord for one that is damaged, unless those are skipped."""

    def remove(self, ids: Iterable[bytes]) -> None:
        """Remove a reference of each id."""


class BackingQueue(Protocol):
    """The messages of one queue, in order. Called with the lock of the queue, but for what ``sync`` returns.

    A message is *ready*, or *unacked*: taken, and not acknowledged. A flush has four steps: ``begin_flush``; the vhost flushes
    its message stores; ``write``, then ``sync``; ``end_flush``. A crash leaves all that was confirmed and not acknowledged, in
    order; of what was not confirmed each message is there, or is not.
    """

    def __len__(self) -> int:
        """Return the number of ready messages."""

    @property
    def unacked(self) -> int:
        """The number of unacked messages."""

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of ready messages."""

    def publish(self, message: Message) -> int:
        """Add a message at the end. Return its position."""

    def publish_delivered(self, message: Message) -> Delivery:
        """Add a message to an empty queue, and take it at once."""

    def fetch(self) -> Delivery | None:
        """Take the first ready message; None if there is none. A message that cannot be read is skipped and acknowledged, and
        the log says so. Raises OSError, MsgStoreError; nothing is changed then. So does a damaged message of a message store,
        which is left out if the vhost skips those."""

    def peek(self) -> Message | None:
        """Return the first ready message, which stays. Raises as ``fetch``."""

    def ack(self, positions: Iterable[int]) -> None:
        """Forget unacked messages. Each position is one of them."""

    def requeue(self, positions: Iterable[int]) -> None:
        """Make unacked messages ready again, at their old places, as redelivered."""

    def purge(self) -> int:
        """Forget all ready messages. Return their number."""

    def fold(self, call: Callable[[int, Message], object]) -> None:
        """Call ``call(position, message)`` for each ready message, in order, until it returns True. Nothing changes."""

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        """As ``fold``, for the unacked messages."""

    def shared(self) -> Iterator[bytes]:
        """Yield the id of each message that is in the message store of persistent messages, once for each entry. Called after
        a crash, before the store is opened."""

    def begin_flush(self) -> None:
        """Begin a flush. It has all that was published and acknowledged until now, and all of an earlier flush that failed."""

    def write(self) -> None:
        """Pass what belongs to the flush to the operating system. Raises OSError; the next flush repeats it."""

    def sync(self) -> Callable[[], None]:
        """Return a function that makes what was written survive a power failure."""

    def end_flush(self) -> None:
        """All that belongs to the flush is on disk. Remove the stored bodies of acknowledged messages."""

    @property
    def unwritten(self) -> int:
        """About the bytes that a flush would write."""

    def set_memory_target(self, messages: int | None) -> None:
        """Keep the bodies of about this many ready messages in memory. 0: as few as possible. None: all."""

    def info(self) -> Mapping[str, object]:
        """Return figures for people, such as the lengths of its parts."""

    def terminate(self) -> Mapping[str, Any]:
        """Close all files, after a flush. Return the terms for the next opening."""

    def abandon(self) -> None:
        """Close the files as the end of the process would."""

    def delete_and_terminate(self) -> None:
        """Delete all files, and remove the stored bodies."""


@runtime_checkable
class BodiesQueue(BackingQueue, Protocol):
    """With the capability BODIES."""

    bodies_below: int
    """Bodies with fewer bytes may be published by ``publish_body``."""

    def publish_body(self, body: bytes) -> None:
        """Add a persistent message at the end that has no properties, does not expire, and has the name of the queue as its
        only routing key. The backing queue makes its id. Never fails."""


@runtime_checkable
class BrowsableQueue(BackingQueue, Protocol):
    """With the capability BROWSE."""

    def browse(self, first: int, count: int) -> list[tuple[int, Message]]:
        """Return position and message of up to ``count`` ready messages, in order, from the ``first``-th on, counted from 0.
        Nothing changes. Raises as ``fetch``."""


@runtime_checkable
class TransactionalQueue(BackingQueue, Protocol):
    """With the capability TRANSACTIONS."""

    def transact(self, messages: Sequence[Message], acks: Iterable[int]) -> list[int]:
        """Publish messages and acknowledge unacked ones. A crash leaves all of it, or nothing. Return the positions of the
        messages."""


@attrs.frozen(kw_only=True)
class BackingQueueContext:
    """Argument of the factory of a backing queue."""

    options: Any
    """Instance of the descriptor's ``options``."""
    directory: Path
    """Directory of the queue, which exists."""
    vhost: bytes
    name: bytes
    is_durable: bool
    """False: no message survives the process."""
    is_synced: bool
    """True if ``sync`` is called after each ``write``: what is confirmed survives a power failure."""
    terms: Mapping[str, Any] | None
    """The result of the last ``terminate``. None for a new queue, and after a crash."""
    files: Files
    open_index: Callable[[Mapping[str, Any] | None], QueueIndex]
    """Opens the index that the configuration names, with its terms."""
    persistent: Bodies
    transient: Bodies
    open_other: OpenOther
    """Opens a backing queue below this one, in another directory or in the same."""
    embed_below: int = 4096
    """Messages whose body and properties have fewer bytes are embedded in the index."""
    report_lost: Callable[[int, str], object] = lambda _messages, _reason: None
    """Call it with the number of messages that cannot be read and are skipped, and the reason. Observers are notified."""


class OpenOther(Protocol):
    """Opens a backing queue for one that is a proxy."""

    def __call__(
        self, backend: Any, directory: Path, name: bytes, terms: Mapping[str, Any] | None, *, embed_all: bool = False
    ) -> BackingQueue:
        """Return the backing queue ``backend``, an option of the type :class:`msgstore.option_values.Backend`. It has the index
        of the proxy's queue. ``directory``: is made if need be, and says what it holds; that of the proxy holds the proxy.
        ``name``: of its queue. ``terms``: what its ``terminate`` returned, as in :class:`BackingQueueContext`.
        ``embed_all``: large messages are in the directory, too, not in the stores of the vhost. Raises ConfigError if the
        directory holds something else, PluginError, StoreError, OSError."""


@attrs.frozen(kw_only=True)
class BackingQueueDescriptor(Descriptor):
    """``factory(context: BackingQueueContext) -> BackingQueue``."""

    # Queues have capabilities of their own, not those of core.
    capabilities: frozenset[Capability] = attrs.field(factory=frozenset, converter=_capabilities)  # type: ignore[assignment]
