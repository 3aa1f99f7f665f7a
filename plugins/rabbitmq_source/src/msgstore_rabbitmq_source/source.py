"""Source ``rabbitmq``: the classic queues of a node, each message in the order of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgstore.contract import Candidate, MessageBatch, QueueInfo, QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source import layout
from msgstore_rabbitmq_source.node import Node, Queue
from msgstore_rabbitmq_source.not_read import not_read
from msgstore_rabbitmq_source.rows import RowReader


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
        self._context = context
        self.node = Node.find(context)

    def queues(self) -> Iterable[QueueInfo]:
        found = [_info(self.node.counted(queue)) for queue in self.node.queues.values()]
        found += [QueueInfo(name=name, type="message store") for name in self.node.orphans]
        return found + not_read(self._context, self.node.files, self.node.tables)

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        if (queue := self.node.queues.get(name)) is None:
            yield from self._orphans(name, first, stop)
            return
        self.node.counted(queue)
        reader = RowReader(self._context, self.node.store(queue.vhost), name, is_final=queue.is_final)
        for part in queue.parts:
            yield from reader.rows(self.node.entries(queue.vhost, part.directory), part, first, stop)
        yield from reader.rest()

    def _orphans(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        vhost = self.node.orphans[name]
        store = self.node.store(vhost)
        referenced = set(self.node.references(vhost, transient=True))
        yield from store.all_damage()
        yield from RowReader(self._context, store, name).orphans(referenced, first, stop)

    def damage(self) -> Iterable[SourceDamage]:
        return self.node.damage()

    def close(self) -> None:
        self.node.close()


def _info(queue: Queue) -> QueueInfo:
    durable = [part for part in queue.parts if part.is_durable]
    details: dict[str, object] = {
        "embedded": sum(part.embedded for part in durable),
        "shared": sum(part.shared for part in durable),
        "index": f"v{queue.parts[0].version}",
    }
    if queue.parts[0].priority is not None:
        details["priorities"] = len(queue.parts)
    if not queue.parts[0].found_by:
        details["name"] = "unknown: that of the directory"
    return QueueInfo(name=queue.name, type="classic", details=details)
