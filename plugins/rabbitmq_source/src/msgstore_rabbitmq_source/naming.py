"""Names of the vhosts and queues of a node: by the files that say them, else by hashing names that stand elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

import attrs

from msgstore.contract import QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source.layout import QUEUE_NAME, VHOST_NAME, NodeFiles, VhostFiles, joined, read_small
from rabbitmq_files import names
from rabbitmq_files.messages import MessageError, read_message
from rabbitmq_files.node_tables import DurableQueue, NodeTables, durable_queues, vhosts

SYSTEM = "rabbitmq"
_PROBED_MESSAGES = 100
"""Messages of a queue that are searched for its name."""


@attrs.define
class QueueDirectory:
    """A directory of a queue, or of one priority of a queue."""

    directory: str
    files: list[str]
    vhost: bytes | None
    queue: bytes | None
    """None: nothing says the name."""
    priority: int | None = None
    version: int = 1
    """Version of the queue index, as ``.queue_name`` says."""
    is_in_tables: bool = True
    """False if the node has tables, and they do not name the queue: a restart deletes it."""
    found_by: str = QUEUE_NAME
    """Source of the name: a file, ``the node's tables``, ``a message``, or empty."""
    embedded: int = 0
    shared: int = 0
    """Persistent messages in the index, and in the shared store."""

    @property
    def persistent(self) -> int:
        return self.embedded + self.shared

    @property
    def hashed(self) -> str:
        """Name of the directory."""
        return PurePosixPath(self.directory).name


def text(raw: bytes) -> str:
    """Return a name as text. Names are UTF-8."""
    return raw.decode("utf-8", "backslashreplace")


@attrs.define
class Namer:
    """Finds the names of one node."""

    context: SourceContext
    node: NodeFiles
    tables: NodeTables
    damage: list[SourceDamage] = attrs.field(factory=list)
    _queues: list[DurableQueue] = attrs.field(factory=list)
    _has_tables: bool = False
    _names: set[tuple[bytes, bytes]] = attrs.field(factory=set)
    """Vhost and name of each queue of the tables."""
    _hashes: dict[str, tuple[bytes, bytes]] | None = None
    """Name of a directory to vhost and name, of the queues of the tables and their priorities."""

    def __attrs_post_init__(self) -> None:
        self._queues = durable_queues(self.tables)
        self._has_tables = self.tables.is_present or bool(self._queues)
        self._names = {(one.vhost, one.name) for one in self._queues}

    def vhost(self, vhost: VhostFiles) -> bytes | None:
        """Return the name of a vhost. None: nothing says it, or the stores are those of all vhosts, before RabbitMQ 3.7."""
        place = vhost.path(VHOST_NAME)
        hashed = PurePosixPath(vhost.directory).name or PurePosixPath(self.context.path).name
        if place in self.node.files:
            name = read_small(self.node, self.context.read, place)
            if names.vhost_directory(name) == hashed or not names.HASHED.fullmatch(hashed):
                return name
            self._report(place, f"the directory is not that of the vhost {text(name)!r}")
        if not names.HASHED.fullmatch(hashed):
            return None
        said = (file.vhost for file in map(self._queue_name, sorted(vhost.queues)) if file is not None)
        for name in [*vhosts(self.tables), *(queue.vhost for queue in self._queues), b"/", *said, *self._vhosts_in(vhost)]:
            if names.vhost_directory(name) == hashed:
                return name
        return None

    def _vhosts_in(self, vhost: VhostFiles) -> Iterator[bytes]:
        for directory in vhost.queues:
            yield from (found for found, _ in self._named_in_messages(directory, vhost.queues[directory]) if found is not None)

    def queue(self, vhost: VhostFiles, vhost_name: bytes | None, directory: str) -> QueueDirectory:
        """Return a queue directory with its name, as far as anything says it."""
        hashed = PurePosixPath(directory).name or PurePosixPath(self.context.path).name
        found = QueueDirectory(directory, vhost.queues[directory], vhost_name, None)
        if any(name.endswith((".qi", ".qs")) for name in found.files):
            found.version = 2
        file = self._queue_name(directory)
        if file is not None:
            found.version = file.version
            if names.queue_directory(file.vhost, file.queue) == hashed or not names.HASHED.fullmatch(hashed):
                return self._named(found, file.vhost, file.queue, QUEUE_NAME)
            self._report(joined(directory, QUEUE_NAME), f"the directory is not that of the queue {text(file.queue)!r}")
        if pair := self._by_hash().get(hashed):
            return self._named(found, *pair, "the node's tables")
        for one, queue in self._named_in_messages(directory, found.files):
            given = vhost_name if one is None else one
            if given is not None and hashed in _hashed(given, queue):
                return self._named(found, given, queue, "a message")
        found.found_by = ""
        found.is_in_tables = not self._has_tables
        return found

    def _named(self, found: QueueDirectory, vhost: bytes, queue: bytes, found_by: str) -> QueueDirectory:
        found.vhost, found.found_by = vhost, found_by
        found.queue, found.priority = names.split_sub_queue(queue)
        if (vhost, queue) in self._names:  # the name of a queue may end like a priority
            found.queue, found.priority = queue, None
        found.is_in_tables = not self._has_tables or (vhost, found.queue) in self._names
        return found

    def _by_hash(self) -> dict[str, tuple[bytes, bytes]]:
        if self._hashes is None:
            self._hashes = {hashed: pair for pair in self._in_tables() for hashed in _hashed(*pair)}
        return self._hashes

    def _in_tables(self) -> Iterator[tuple[bytes, bytes]]:
        for queue in self._queues:
            yield queue.vhost, queue.name
            if isinstance(highest := queue.argument(b"x-max-priority"), int):
                yield from ((queue.vhost, names.sub_queue(queue.name, one)) for one in range(min(highest, 255) + 1))

    def _queue_name(self, directory: str) -> names.QueueNameFile | None:
        place = joined(directory, QUEUE_NAME)
        return names.read_queue_name(read_small(self.node, self.context.read, place)) if place in self.node.files else None

    def _named_in_messages(self, directory: str, files: Iterable[str]) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield vhosts and names that messages of the queue mention: routing keys, and queues in which they were before."""
        for name in files:
            if not name.endswith((".idx", ".jif", ".qs")):
                continue
            data, at = self.context.read(joined(directory, name)), 0
            for _ in range(_PROBED_MESSAGES):
                if (at := data.find(b"\x83h", at)) < 0:
                    break
                try:
                    message, at = read_message(data, at)
                except MessageError:
                    at += 1
                    continue
                for key in message.routing_keys:
                    yield message.vhost, key
                    yield from ((message.vhost, names.sub_queue(key, priority)) for priority in range(11))

    def _report(self, file: str, reason: str) -> None:
        self.damage.append(SourceDamage(file=file, reason=reason))


def _hashed(vhost: bytes, queue: bytes) -> tuple[str, str]:
    """Return the names that the directory of a queue may have."""
    return names.queue_directory(vhost, queue), names.old_queue_directory(vhost, queue)


def queue_name(found: QueueDirectory) -> QueueName:
    """Return the name of the queue. Without one, that of the directory."""
    queue = text(found.queue) if found.queue is not None else PurePosixPath(found.directory).name
    return QueueName(SYSTEM, None if found.vhost is None else text(found.vhost), queue)
