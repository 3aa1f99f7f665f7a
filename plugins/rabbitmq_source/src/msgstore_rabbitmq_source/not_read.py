"""Queues of a node that are recognised and not read: quorum queues and streams, each with what to do instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from msgstore.contract import QueueInfo, QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source.layout import NodeFiles, joined
from msgstore_rabbitmq_source.naming import SYSTEM, text
from rabbitmq_files.node_tables import DurableQueue, NodeTables, durable_queues
from rabbitmq_files.tables import Table, read_dets

_REASONS = {
    "quorum": "a Raft log: start the other nodes of the cluster, or boot the old broker on a copy of this directory",
    "stream": "a stream's log: boot the old broker on a copy of this directory, and consume it from the first offset",
}
_OWN_FILES = {"quorum": "config", "stream": ".segment"}
"""End of a file that is in the directory of each such queue."""


def not_read(context: SourceContext, node: NodeFiles, tables: NodeTables) -> list[QueueInfo]:
    """Return the quorum queues and streams: those of the node's tables, and directories that belong to none of these."""
    found, taken = list[QueueInfo](), set[str]()
    uids = _quorum_directories(context, node)
    directories = {kind: _directories(node, kind) for kind in _REASONS}
    sizes = _sizes(node, {one for some in directories.values() for one in some})
    by_name = {(kind, PurePosixPath(one).name): one for kind, some in directories.items() for one in some}
    for queue in durable_queues(tables):
        if queue.kind == "classic":
            continue
        hint = queue.directory or uids.get(_process(queue), "")
        directory = by_name.get((queue.kind, hint), "")
        taken.add(directory)
        found.append(_info(QueueName(SYSTEM, text(queue.vhost), text(queue.name)), queue.kind, directory, sizes))
    for kind, some in directories.items():
        for directory in some:
            if directory not in taken:
                found.append(_info(QueueName(SYSTEM, queue=PurePosixPath(directory).name), kind, directory, sizes))
    return found


def _info(name: QueueName, kind: str, directory: str, sizes: Mapping[str, int]) -> QueueInfo:
    reason = _REASONS.get(kind, f"a queue of the type {kind}, which only its broker reads")
    details = {"bytes": sizes[directory], "path": directory} if directory else {}
    return QueueInfo(name=name, type=kind, read=False, reason=reason, details=details)


def _sizes(node: NodeFiles, directories: Collection[str]) -> Counter[str]:
    """Return the bytes of the files in each of these directories."""
    found = Counter[str]()
    for file, times in node.files.items():
        place = file
        while (place := place.rpartition("/")[0]) and directories:
            if place in directories:
                found[place] += times.size
    return found


def _directories(node: NodeFiles, kind: str) -> list[str]:
    """Return the directories of the quorum queues, or of the streams."""
    begin = joined(node.root, kind) + "/"
    files = (PurePosixPath(file) for file in node.files if file.startswith(begin) and file.endswith(_OWN_FILES[kind]))
    return sorted({file.parent.as_posix() for file in files})


def _process(queue: DurableQueue) -> str:
    """Return the name of the Raft process of a quorum queue."""
    return f"{'%2F' if queue.vhost == b'/' else text(queue.vhost)}_{text(queue.name)}"


def _quorum_directories(context: SourceContext, node: NodeFiles) -> dict[str, str]:
    """Return the name of the Raft process to the directory of its log, from ``names.dets``."""
    found = {}
    for _, table in _quorum_names(context, node):
        for _, row in table.terms:
            fields = row if isinstance(row, tuple) else ()
            texts = [text(one) if isinstance(one, bytes) else str(one) for one in fields if isinstance(one, str | bytes)]
            if len(texts) >= 2:
                found[texts[0]] = texts[1]
    return found


def quorum_damage(context: SourceContext, node: NodeFiles) -> Iterator[SourceDamage]:
    """Yield the damage of ``names.dets``, which only quorum queues need."""
    for file, table in _quorum_names(context, node):
        for offset, size, reason in table.damage:
            yield SourceDamage(file=file, offset=offset, size=size, reason=reason)


def _quorum_names(context: SourceContext, node: NodeFiles) -> Iterator[tuple[str, Table]]:
    begin = joined(node.root, "quorum") + "/"
    for file in node.files:
        if file.startswith(begin) and file.endswith("/names.dets"):
            yield file, read_dets(bytes(context.read(file)))
