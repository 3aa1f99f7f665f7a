"""Source ``rabbitmq``: the classic queues of a node, each message in the order of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from msgstore.contract import Candidate, MessageBatch, QueueInfo, QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source import layout
from msgstore_rabbitmq_source.apart import encode_bodies, key_of
from msgstore_rabbitmq_source.node import Node, Queue
from msgstore_rabbitmq_source.not_read import not_read, quorum_damage
from msgstore_rabbitmq_source.rows import RowReader
from msgstore_rabbitmq_source.shared_store import SharedStore

_BATCH_ENTRIES = 2**12


def detect(path: Path) -> Candidate | None:
    """Recognise a node, a vhost or a queue by the names of its files. A bare message store is left to the source ``store``."""
    if not path.is_dir():
        return None
    for marks, likelihood in (
        (("msg_stores/vhosts",), "certain"),
        ((layout.VHOST_NAME, layout.PERSISTENT), "certain"),
        ((layout.QUEUE_NAME, layout.JOURNAL), "certain"),
        (("vhosts", "queues"), "likely"),
    ):
        for mark in marks:
            if (path / mark).exists():
                return Candidate(likelihood, f"{mark}, as in the data directory of RabbitMQ")
    files = sorted(one.name for one in path.iterdir())
    found = next((name for name in files if layout.NUMBERED.fullmatch(name)), None)
    if found:
        return Candidate("likely", f"{found}: a file of a queue, by its name")
    found = next((name for name in files if name.endswith(".rdq")), None)
    return Candidate("perhaps", f"{found}: a segment of a message store without queues") if found else None


class RabbitmqSource:
    """Queues of one node, and for each vhost a queue without a name: the messages in the shared store that are in no queue."""

    def __init__(self, context: SourceContext) -> None:
        self.node = Node.find(context)
        self._context = self.node.context

    def queues(self) -> Iterable[QueueInfo]:
        found = [_info(self.node.counted(queue)) for queue in self.node.queues.values()]
        found += [QueueInfo(name=name, type="message store") for name in self.node.orphans]
        return found + not_read(self._context, self.node.files, self.node.tables)

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        if (queue := self.node.queues.get(name)) is None:
            yield from self._orphans(name, first, stop)
        else:
            yield from self._read(queue, self.node.store(queue.vhost), first, stop)

    def _read(
        self, queue: Queue, store: SharedStore | None, first: int, stop: int | None
    ) -> Iterator[MessageBatch | SourceDamage]:
        """Yield the messages of a queue. Without the store: those that are not in it."""
        reader = RowReader(self._context, store, queue.name, is_final=self.node.counted(queue).is_final)
        for part in queue.parts:
            yield from reader.rows(self.node.entries(queue.vhost, part.directory), part, first, stop)
        yield from reader.rest()
        for file, reason in self.node.unread_files([part.directory for part in queue.parts]).items():
            yield SourceDamage(file=file, reason=reason, name=queue.name)

    def own_messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        if (queue := self.node.queues.get(name)) is None:
            yield from self._orphans(name, first, stop)
        else:
            yield from self._read(queue, None, first, stop)

    def shared_entries(self, name: QueueName, first: int, stop: int | None) -> Iterator[Sequence[tuple[bytes, int, bytes]]]:
        if (queue := self.node.queues.get(name)) is None:
            return
        reader = RowReader(self._context, None, name, is_final=self.node.counted(queue).is_final)
        for part in queue.parts:
            found = reader.shared(self.node.entries(queue.vhost, part.directory), part, first, stop)
            keyed = ((key_of(queue.vhost, entry.msg_id), position, encoded) for position, entry, encoded in found)
            while batch := list(islice(keyed, _BATCH_ENTRIES)):
                yield batch

    def body_parts(self) -> Sequence[str]:
        return [file for vhost in self.node.files.vhosts.values() for file in self.node.store(vhost).files]

    def bodies(self, part: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for vhost in self.node.files.vhosts.values():
            if part in self.node.store(vhost).files:
                yield from encode_bodies(SharedStore(self._context, vhost, [part]), vhost, part)

    def complete(
        self, name: QueueName, entries: Sequence[tuple[int, bytes, bytes | None]]
    ) -> Iterator[MessageBatch | SourceDamage]:
        return RowReader(self._context, None, name).complete(entries)

    def _orphans(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        vhost = self.node.orphans[name]
        store = self.node.store(vhost)
        referenced = set(self.node.references(vhost, transient=True))
        yield from store.all_damage()
        for file, reason in self.node.unread_files(vhost.stores).items():
            yield SourceDamage(file=file, reason=reason)
        yield from RowReader(self._context, store, name).orphans(referenced, first, stop)

    def damage(self) -> Iterable[SourceDamage]:
        return chain(self.node.damage(), quorum_damage(self._context, self.node.files))

    def close(self) -> None:
        self.node.close()


def _info(queue: Queue) -> QueueInfo:
    details: dict[str, object] = {
        "embedded": sum(part.embedded for part in queue.parts),
        "shared": sum(part.shared for part in queue.parts),
        "index": f"v{queue.parts[0].version}",
    }
    if queue.parts[0].priority is not None:
        details["priorities"] = len(queue.parts)
    if not queue.parts[0].found_by:
        details["name"] = "unknown: that of the directory"
    return QueueInfo(name=queue.name, type="classic", details=details)
