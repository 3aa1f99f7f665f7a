"""Source ``rabbitmq``: the classic queues of a node, each message in the order of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from msgstore.contract import Candidate, ConfigError, MessageBatch, QueueInfo, QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source import layout
from msgstore_rabbitmq_source.cross_check import changed_queues, missing_segments
from msgstore_rabbitmq_source.layout import VhostFiles, joined
from msgstore_rabbitmq_source.naming import SYSTEM, Namer, QueueDirectory, queue_name, text
from msgstore_rabbitmq_source.not_read import not_read
from msgstore_rabbitmq_source.queue_index import LiveEntry, live_entries
from msgstore_rabbitmq_source.rows import RowReader
from msgstore_rabbitmq_source.shared_store import SharedStore, segment_formats
from msgstore_rabbitmq_source.shutdown import is_idle, newest_change, recovery_terms, stopped_cleanly
from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.messages import encode_message
from rabbitmq_files.node_tables import FILES, NodeTables, read_tables
from rabbitmq_files.properties import encode_properties
from rabbitmq_files.tables import Table


def sample(directory: Path) -> Path:
    """Make a node with one vhost, and a queue of each index version."""
    vhost = directory / "msg_stores/vhosts" / names.vhost_directory(b"/")
    for version, queue in ((1, b"one"), (2, b"two")):
        place = vhost / "queues" / names.queue_directory(b"/", queue)
        place.mkdir(parents=True)
        (place / layout.QUEUE_NAME).write_bytes(names.encode_queue_name(b"/", queue, version))
        write_sample_queue(place, queue, version)
    (vhost / layout.VHOST_NAME).write_bytes(b"/")
    return directory


def write_sample_queue(place: Path, queue: bytes, version: int) -> None:
    """Write the index of a queue with twenty small messages."""
    first = index_v2.encode_header(index_v2.STORE_MAGIC, 0, 4096)
    entries, stored, records = [index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4096)], first, b""
    for number in range(20):
        term = encode_message(
            vhost=b"/", exchange=b"", routing_keys=[queue], raw_properties=encode_properties({"delivery_mode": 2}),
            body=b"message %d" % number, msg_id=bytes(15) + bytes([number]),
        )  # fmt: skip
        size = len(b"message %d" % number)
        records += index_v1.encode_publish(number, index_v1.encode_body(bytes(15) + bytes([number]), size, term))
        entries.append(index_v2.encode_own(len(stored), len(term), size))
        stored += index_v2.encode_stored(term)
    if version == 1:
        (place / "0.idx").write_bytes(records)
    else:
        (place / "0.qi").write_bytes(b"".join(entries))
        (place / "0.qs").write_bytes(stored)


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


@attrs.define
class _Queue:
    """A queue with its directories, that of the highest priority first."""

    name: QueueName
    vhost: VhostFiles
    parts: list[QueueDirectory] = attrs.field(factory=list)
    is_final: bool = True
    """False after a kill: messages in it were perhaps acknowledged."""
    is_ended: bool = True
    """False if the broker did not end the queue itself."""


def _order(name: QueueName) -> tuple[str, str]:
    return name.vhost or "", name.queue or ""


class RabbitmqSource:
    """Queues of one node. The shared store of a vhost is read at the first message that is in it."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self.node = layout.find_node(context.path, segment_formats())
        roots = layout.node_roots(self.node)
        if len(roots) > 1:
            raise ConfigError(f"{context.path}: has the nodes {', '.join(roots[:5])}. Name the directory of one.")
        self._stores: dict[str, SharedStore] = {}
        self._terms: dict[str, Table] = {}
        self._vhost_names: dict[str, bytes | None] = {}
        self._tables: NodeTables | None = None
        self._queues: dict[QueueName, _Queue] | None = None
        self._orphans: dict[QueueName, VhostFiles] = {}
        self._damage: list[SourceDamage] = []

    def queues(self) -> Iterable[QueueInfo]:
        found = [self._info(queue) for _, queue in sorted(self._found().items(), key=lambda item: _order(item[0]))]
        found += [QueueInfo(name=name, type="message store") for name in sorted(self._orphans, key=_order)]
        return found + not_read(self._context, self.node, self.tables())

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        queue = self._found().get(name)
        if queue is not None:
            yield from self._read(queue, first, stop)
            return
        vhost = self._orphans[name]
        store = self.store(vhost)
        referenced = self.referenced(vhost)
        yield from store.damage
        yield from RowReader(self._context, store, name).orphans(referenced, first, stop)

    def damage(self) -> Iterable[SourceDamage]:
        self._found()
        return self._damage

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def tables(self) -> NodeTables:
        """Return the node's own tables, as far as they are there."""
        if self._tables is None:
            places = {name: joined(self.node.root, name) for name in FILES}
            there = {name: bytes(self._context.read(place)) for name, place in places.items() if place in self.node.files}
            self._tables = read_tables(there)
            self._damage += (
                SourceDamage(file=places.get(file, self.node.root), offset=offset, size=size, reason=reason)
                for file, offset, size, reason in self._tables.damage
            )
        return self._tables

    def names(self) -> list[QueueName]:
        """Return the names of the queues that are read."""
        return sorted(self._found(), key=_order)

    def references(self, name: QueueName) -> Iterator[bytes]:
        """Yield the id of each persistent message of a queue that is in the shared store."""
        queue = self._found()[name]
        for part in queue.parts:
            for entry in self.entries(queue.vhost, part.directory):
                if isinstance(entry, LiveEntry) and entry.is_persistent and not entry.term_size:
                    yield entry.msg_id

    def vhost_name(self, vhost: VhostFiles) -> bytes | None:
        """Return the name of a vhost, or None."""
        self._found()
        return self._vhost_names[vhost.directory]

    def vhost_text(self, vhost: VhostFiles) -> str | None:
        """Return the name of a vhost as text, or None."""
        name = self.vhost_name(vhost)
        return None if name is None else text(name)

    def directories(self, vhost: VhostFiles) -> list[QueueDirectory]:
        """Return the directories of the queues of a vhost."""
        return [part for queue in self._found().values() if queue.vhost is vhost for part in queue.parts]

    def entries(self, vhost: VhostFiles, directory: str) -> Iterator[LiveEntry | SourceDamage]:
        """Yield the messages in the index of a queue directory, and damage."""
        return live_entries(directory, vhost.queues[directory], self._segment_entries(vhost), self._context.read)

    def stopped(self) -> str:
        """Return ``cleanly``, ``killed``, or ``in part``."""
        ended = {queue.is_ended for queue in self._found().values()}
        return "in part" if len(ended) > 1 else "cleanly" if ended == {True} else "killed"

    def named_damage(self) -> list[SourceDamage]:
        """Return where a name and a directory contradict each other."""
        return [span for span in self.damage() if span.file.endswith((layout.QUEUE_NAME, layout.VHOST_NAME))]

    def _found(self) -> dict[QueueName, _Queue]:
        if self._queues is None:
            self._queues = {}
            namer = Namer(self._context, self.node, self.tables())
            newest = newest_change(self.node.files)
            for vhost in self.node.vhosts.values():
                self._add_vhost(namer, vhost, newest)
            self._damage += namer.damage
            for queue in self._queues.values():
                queue.parts.sort(key=lambda part: -1 if part.priority is None else part.priority, reverse=True)
            by_directory = {part.directory: (queue, part) for queue in self._queues.values() for part in queue.parts}
            for vhost in self.node.vhosts.values():
                self._damage += missing_segments(self._context, self.node, vhost)
                for span, directory in changed_queues(vhost, self._terms[vhost.directory], by_directory):
                    if directory is not None:
                        queue, _ = by_directory[directory]
                        queue.is_final = False
                        span = attrs.evolve(span, name=queue.name)
                    self._damage.append(span)
        return self._queues

    def _add_vhost(self, namer: Namer, vhost: VhostFiles, newest: float | None) -> None:
        assert self._queues is not None
        vhost_name = self._vhost_names[vhost.directory] = namer.vhost(vhost)
        terms = self._terms[vhost.directory] = recovery_terms(self._context, self.node, vhost)
        for directory in sorted(vhost.queues):
            part = namer.queue(vhost, vhost_name, directory)
            name = queue_name(part)
            known = self._queues.setdefault(name, _Queue(name, vhost))
            if any(one.priority == part.priority for one in known.parts):  # two directories say the same name
                part.queue = None
                known = self._queues.setdefault(queue_name(part), _Queue(queue_name(part), vhost))
            known.parts.append(part)
            is_ended = stopped_cleanly(self.node, vhost, terms, directory)
            known.is_ended &= is_ended
            known.is_final &= self._count(vhost, part)
            known.is_final &= is_ended or is_idle(self.node.files, directory, part.files, newest)
        if vhost.stores:
            self._orphans[QueueName(SYSTEM, None if vhost_name is None else text(vhost_name))] = vhost

    def _info(self, queue: _Queue) -> QueueInfo:
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

    def _segment_entries(self, vhost: VhostFiles) -> int:
        """Return the number of entries of a segment of index v1. The ``.config`` of another vhost says it as well."""
        for place in (vhost.path(layout.VHOST_CONFIG), *(one.path(layout.VHOST_CONFIG) for one in self.node.vhosts.values())):
            if place in self.node.files and (found := names.read_segment_entries(bytes(self._context.read(place)))):
                return found
        return index_v1.OLD_SEGMENT_ENTRIES

    def _count(self, vhost: VhostFiles, part: QueueDirectory) -> bool:
        """Count the persistent messages in an index. Return False if it is damaged."""
        is_sound = True
        for entry in self.entries(vhost, part.directory):
            if isinstance(entry, SourceDamage):
                is_sound = False
            elif entry.is_persistent and entry.term_size:
                part.embedded += 1
            elif entry.is_persistent:
                part.shared += 1
        return is_sound

    def store(self, vhost: VhostFiles) -> SharedStore:
        """Return the shared store of a vhost."""
        return self._stores.setdefault(vhost.directory, SharedStore(self._context, vhost))

    def referenced(self, vhost: VhostFiles) -> set[bytes]:
        """Return the ids of the messages that are in a queue and in the shared store."""
        found = set[bytes]()
        for queue in self._found().values():
            for part in queue.parts if queue.vhost is vhost else ():
                entries = self.entries(vhost, part.directory)
                found.update(entry.msg_id for entry in entries if isinstance(entry, LiveEntry) and not entry.term_size)
        return found

    def _read(self, queue: _Queue, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        reader = RowReader(self._context, self.store(queue.vhost), queue.name, is_final=queue.is_final)
        for part in queue.parts:
            yield from reader.rows(self.entries(queue.vhost, part.directory), part, first, stop)
        yield from reader.rest()
