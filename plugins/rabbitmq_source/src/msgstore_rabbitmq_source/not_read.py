"""Queues of a node that are recognised and not read: quorum queues and streams, each with what to do instead."""

from __future__ import annotations

from pathlib import PurePosixPath

from msgstore.contract import QueueInfo, QueueName, SourceContext
from msgstore_rabbitmq_source.layout import NodeFiles, joined
from msgstore_rabbitmq_source.naming import SYSTEM, text
from rabbitmq_files.node_tables import DurableQueue, NodeTables, durable_queues
from rabbitmq_files.tables import read_dets

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
    for queue in durable_queues(tables):
        if queue.kind == "classic":
            continue
        hint = queue.directory or uids.get(_process(queue), "")
        directory = next((one for one in _directories(node, queue.kind) if hint and PurePosixPath(one).name == hint), "")
        taken.add(directory)
        found.append(_info(node, QueueName(SYSTEM, text(queue.vhost), text(queue.name)), queue.kind, directory))
    for kind in _REASONS:
        for directory in _directories(node, kind):
            if directory not in taken:
                found.append(_info(node, QueueName(SYSTEM, queue=PurePosixPath(directory).name), kind, directory))
    return found


def _info(node: NodeFiles, name: QueueName, kind: str, directory: str) -> QueueInfo:
    reason = _REASONS.get(kind, f"a queue of the type {kind}, which only its broker reads")
    size = sum(times.size for file, times in node.files.items() if directory and file.startswith(f"{directory}/"))
    details = {"bytes": size, "path": directory} if directory else {}
    return QueueInfo(name=name, type=kind, read=False, reason=reason, details=details)


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
    begin, found = joined(node.root, "quorum") + "/", {}
    for file in node.files:
        if file.startswith(begin) and file.endswith("/names.dets"):
            for _, row in read_dets(bytes(context.read(file))).terms:
                texts = [one.decode() if isinstance(one, bytes) else str(one) for one in row if isinstance(one, str | bytes)]
                if len(texts) >= 2:
                    found[texts[0]] = texts[1]
    return found
