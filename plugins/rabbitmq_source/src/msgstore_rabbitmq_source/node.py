"""A node directory: its queues with their names and directories, the shared stores, and what contradicts what."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePosixPath

import attrs

from msgstore.contract import Buffer, ConfigError, QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source import layout
from msgstore_rabbitmq_source.cross_check import changed_queues, ended_segments, expected_messages, missing_segments
from msgstore_rabbitmq_source.layout import NodeFiles, VhostFiles, joined
from msgstore_rabbitmq_source.naming import SYSTEM, Namer, QueueDirectory, queue_name, text
from msgstore_rabbitmq_source.queue_index import LiveEntry, likely_segment_entries, live_entries
from msgstore_rabbitmq_source.shared_store import SharedStore, segment_formats
from msgstore_rabbitmq_source.shutdown import is_idle, newest_change, recovery_terms, stopped_cleanly
from rabbitmq_files import index_v1, names
from rabbitmq_files.node_tables import FILES, NodeTables, read_tables
from rabbitmq_files.tables import Table

_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a file that leave the rest of the node to be read."""
_TABLES = (".dets", ".ets", ".LOG", ".DCD", ".DCL")
NO_JOURNAL = "journal.jif is missing: the messages and acknowledgements in it are lost"
NOT_IN_TABLES = (
    "the node's tables do not name this queue, which has persistent messages: they have lost it, or it was deleted. "
    "The broker deletes its directory at a start"
)
_MOST_OF_A_TABLE = 2**28
"""Bytes of a file with these ends, which is read whole. The largest known ones have 30 MB, for 100,000 queues."""


@attrs.define
class Queue:
    """A queue with its directories, that of the highest priority first."""

    name: QueueName
    vhost: VhostFiles
    parts: list[QueueDirectory] = attrs.field(factory=list)
    is_ended: bool = True
    """False if the broker did not end the queue itself."""
    is_final: bool = True
    """False after a kill: messages in it were perhaps acknowledged."""
    is_counted: bool = False
    """True if the index was read, and the rest is known."""


@attrs.define
class Node:
    """Queues of one node. An index is read when its queue is first asked for, a shared store at the first message in it."""

    context: SourceContext
    files: NodeFiles
    tables: NodeTables
    queues: dict[QueueName, Queue] = attrs.field(factory=dict)
    """By vhost and name."""
    orphans: dict[QueueName, VhostFiles] = attrs.field(factory=dict)
    """Name for the messages of a vhost that are in no queue."""
    vhost_names: dict[str, bytes | None] = attrs.field(factory=dict)
    """Directory of a vhost to its name. None: nothing says it."""
    name_damage: list[SourceDamage] = attrs.field(factory=list)
    """Names that contradict their directories."""
    copies: list[SourceDamage] = attrs.field(factory=list)
    """Vhosts that are there twice."""
    unreadable: dict[str, str] = attrs.field(factory=dict)
    """File that was tried and cannot be read, and the reason."""
    _segment_entries: dict[str, int] = attrs.field(factory=dict)
    """Directory of a vhost to the entries of a segment of index v1."""
    _stores: dict[str, SharedStore] = attrs.field(factory=dict)
    _terms: dict[str, Table] = attrs.field(factory=dict)
    _expected: dict[str, dict[str, int]] = attrs.field(factory=dict)
    _ended: dict[str, dict[str, dict[int, int]]] = attrs.field(factory=dict)
    """Directory of a vhost to what ``recovery.dets`` says of its queues."""

    @classmethod
    def find(cls, context: SourceContext) -> Node:
        """List the files, and find the names of all queues. Raises ConfigError for several nodes."""
        unreadable: dict[str, str] = {}
        context = attrs.evolve(context, read=_reading(context, unreadable))
        files = layout.find_node(context.path, segment_formats())
        roots = layout.node_roots(files)
        if len(roots) > 1:
            raise ConfigError(f"{context.path}: has the nodes {', '.join(roots[:5])}. Name the directory of one.")
        there = {name: place for name in FILES if (place := joined(files.root, name)) in files.files}
        tables = read_tables({name: bytes(context.read(place)) for name, place in there.items()})
        tables.node = tables.node or layout.coordination_node(files)
        node = cls(context, files, tables, unreadable=unreadable)
        namer, newest = Namer(context, files, tables), newest_change(files)
        for vhost in sorted(files.vhosts.values(), key=_is_copy):
            node._add_vhost(namer, vhost, newest)
        node.name_damage = namer.damage
        node.queues = dict(sorted(node.queues.items(), key=lambda item: _order(item[0])))
        node.orphans = dict(sorted(node.orphans.items(), key=lambda item: _order(item[0])))
        for queue in node.queues.values():
            queue.parts.sort(key=lambda part: -1 if part.priority is None else part.priority, reverse=True)
        return node

    def _add_vhost(self, namer: Namer, vhost: VhostFiles, newest: float | None) -> None:
        vhost_name = self.vhost_names[vhost.directory] = namer.vhost(vhost)
        others = [name for directory, name in self.vhost_names.items() if directory != vhost.directory]
        if vhost_name is not None and vhost_name in others:
            reason = f"another copy of the vhost {text(vhost_name)!r}, which is not read. Move it elsewhere"
            self.copies.append(SourceDamage(file=vhost.path(layout.VHOST_NAME), reason=reason))
            del self.files.vhosts[vhost.directory], self.vhost_names[vhost.directory]
            return
        terms = self._terms[vhost.directory] = recovery_terms(self.context, self.files, vhost)
        self._expected[vhost.directory], self._ended[vhost.directory] = expected_messages(terms), ended_segments(terms)
        for directory in sorted(vhost.queues):
            part = namer.queue(vhost, vhost_name, directory)
            queue = self.queues.setdefault(name := queue_name(part), Queue(name, vhost))
            if any(one.priority == part.priority for one in queue.parts):  # two directories say the same name
                part.queue = None
                queue = self.queues.setdefault(name := queue_name(part), Queue(name, vhost))
            queue.parts.append(part)
            is_ended = stopped_cleanly(self.files, vhost, terms, directory)
            queue.is_ended &= is_ended
            queue.is_final &= is_ended or is_idle(self.files.files, directory, part.files, newest)
        if vhost.stores:
            self.orphans[QueueName(SYSTEM, None if vhost_name is None else text(vhost_name))] = vhost

    def counted(self, queue: Queue) -> Queue:
        """Read the index of a queue: its messages are counted, and damage in it makes the queue unsure."""
        if not queue.is_counted:
            queue.is_counted = True
            expected = self._expected[queue.vhost.directory]
            for part in queue.parts:
                for entry in self.entries(queue.vhost, part.directory):
                    if isinstance(entry, SourceDamage):
                        queue.is_final = False
                    elif entry.is_persistent and not entry.is_orphan:
                        part.embedded += entry.term_size > 0
                        part.shared += entry.term_size == 0
                queue.is_final &= expected.get(part.hashed, part.persistent) == part.persistent
                queue.is_final &= not self.unread_files([part.directory])
        return queue

    def entries(self, vhost: VhostFiles, directory: str) -> Iterator[LiveEntry | SourceDamage]:
        """Yield the messages in the index of a queue directory, and damage."""
        if self._has_lost_journal(vhost, directory):
            yield SourceDamage(file=joined(directory, layout.QUEUE_NAME), reason=NO_JOURNAL)
        ended = self._ended[vhost.directory].get(PurePosixPath(directory).name)
        yield from live_entries(directory, vhost.queues[directory], self.segment_entries(vhost), self.context.read, ended)

    def _has_lost_journal(self, vhost: VhostFiles, directory: str) -> bool:
        """Return True for a queue with index v1 whose journal is missing. A broker makes both at once, and msgstore the journal
        at the first message."""
        place = joined(directory, layout.QUEUE_NAME)
        if layout.JOURNAL in vhost.queues[directory] or place not in self.files.files:
            return False
        name = names.read_queue_name(layout.read_small(self.files, self.context.read, place))
        return name is not None and name.version == 1 and joined(directory, layout.OWN_QUEUE) not in self.files.files

    def segment_entries(self, vhost: VhostFiles) -> int:
        """Return the number of entries of a segment of index v1. The ``.config`` of another vhost says it as well."""
        if vhost.directory not in self._segment_entries:
            self._segment_entries[vhost.directory] = self._find_segment_entries(vhost)
        return self._segment_entries[vhost.directory]

    def _find_segment_entries(self, vhost: VhostFiles) -> int:
        for one in (vhost, *self.files.vhosts.values()):
            place = one.path(layout.VHOST_CONFIG)
            if place in self.files.files and (
                found := names.read_segment_entries(layout.read_small(self.files, self.context.read, place))
            ):
                return found
        has_file = vhost.path(layout.VHOST_CONFIG) in self.files.files
        return index_v1.SEGMENT_ENTRIES if has_file else likely_segment_entries(vhost.queues, self.context.read)

    def store(self, vhost: VhostFiles) -> SharedStore:
        """Return the shared store of a vhost."""
        if vhost.directory not in self._stores:
            self._stores[vhost.directory] = SharedStore(self.context, vhost)
        return self._stores[vhost.directory]

    def directories(self, vhost: VhostFiles) -> list[QueueDirectory]:
        """Return the directories of the queues of a vhost."""
        return [part for queue in self.queues.values() if queue.vhost is vhost for part in queue.parts]

    def references(self, vhost: VhostFiles, *, transient: bool = False) -> Iterator[bytes]:
        """Yield, for each entry of a queue whose message is in the shared store, the id of the message."""
        for part in self.directories(vhost):
            for entry in self.entries(vhost, part.directory):
                if isinstance(entry, LiveEntry) and not entry.term_size and (transient or entry.is_persistent):
                    yield entry.msg_id

    @property
    def has_khepri(self) -> bool:
        """True if the tables are in Khepri, which is not read."""
        return not (self.tables.is_present or self.unreadable) and bool(layout.coordination_node(self.files))

    def stopped(self) -> str:
        """Return ``cleanly``, ``killed``, or ``in part``."""
        ended = {queue.is_ended for queue in self.queues.values()}
        return "in part" if len(ended) > 1 else "cleanly" if ended == {True} else "killed"

    def damage(self) -> Iterator[SourceDamage]:
        """Yield the damage of tables and names, and what files of a clean stop say is missing. Reads every index."""
        for file, offset, size, reason in self.tables.damage:
            yield SourceDamage(file=joined(self.files.root, file), offset=offset, size=size, reason=reason)
        for file, reason in self.files.skipped:
            yield SourceDamage(file=file, reason=reason)
        yield from self.name_damage
        yield from self.copies
        by_directory = {part.directory: self.counted(queue).name for queue in self.queues.values() for part in queue.parts}
        for vhost in self.files.vhosts.values():
            yield from missing_segments(self.context, self.files, vhost)
            yield from changed_queues(vhost, self._terms[vhost.directory], self.directories(vhost), by_directory)
        yield from self._not_in_tables()
        parts = {*by_directory, *(store for vhost in self.files.vhosts.values() for store in vhost.stores)}
        for file in self.unreadable.keys() - self.unread_files(parts).keys():
            yield SourceDamage(file=file, reason=self.unreadable[file])

    def _not_in_tables(self) -> Iterator[SourceDamage]:
        """Yield the queues that the node's tables do not name. Messages of a queue that is not durable are never persistent."""
        for queue in self.queues.values():
            lost = [part for part in queue.parts if not part.is_in_tables and part.persistent]
            if lost:
                name = joined(lost[0].directory, layout.QUEUE_NAME)
                file = name if name in self.files.files else joined(lost[0].directory, lost[0].files[0])
                yield SourceDamage(file=file, reason=NOT_IN_TABLES, name=queue.name)

    def unread_files(self, directories: Collection[str]) -> dict[str, str]:
        """Return the files in these directories that were tried and cannot be read, with the reasons."""
        return {file: why for file, why in self.unreadable.items() if file.rpartition("/")[0] in directories}

    def index_damage(self) -> list[SourceDamage]:
        """Return the damage of all indexes."""
        found = [(vhost, part) for vhost in self.files.vhosts.values() for part in self.directories(vhost)]
        entries = [entry for vhost, part in found for entry in self.entries(vhost, part.directory)]
        unread = self.unread_files([part.directory for _, part in found])
        return [
            *(entry for entry in entries if isinstance(entry, SourceDamage)),
            *(SourceDamage(file=file, reason=why) for file, why in unread.items()),
        ]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _reading(context: SourceContext, unreadable: dict[str, str]) -> Callable[[str], Buffer]:
    """Return a function that reads a file, and takes one that cannot be read for empty, with its reason in ``unreadable``."""

    def read(name: str) -> Buffer:
        try:
            is_table = PurePosixPath(name).suffix in _TABLES
            if is_table and (context.path / name).stat().st_size > _MOST_OF_A_TABLE:
                unreadable.setdefault(name, "is larger than any that a broker writes, and is not read")
            return b"" if name in unreadable else context.read(name)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            unreadable[name] = f"cannot be read: {error.strerror}"
            return b""

    return read


def _is_copy(vhost: VhostFiles) -> bool:
    """Return True for a directory that is not named by a hash, such as ``HASH.bak``."""
    return names.HASHED.fullmatch(PurePosixPath(vhost.directory).name) is None


def _order(name: QueueName) -> tuple[str, str]:
    return name.vhost or "", name.queue or ""
