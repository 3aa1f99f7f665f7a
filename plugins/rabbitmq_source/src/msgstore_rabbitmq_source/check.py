"""Check of a node: the content of its directory, what can be read, what is lost, and what to do next; in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import MessageBatch, QueueInfo, SourceDamage
from msgstore.contract.messages import MAYBE_CONSUMED
from msgstore_rabbitmq_source.naming import text
from msgstore_rabbitmq_source.source import RabbitmqSource
from rabbitmq_files.node_tables import durable_queues, vhosts

_MOST = 20
"""Lines of a list."""
COPY_FIRST = (
    "Copy the directory before anything else, with times and owners (cp -a). Never start a fresh broker on it: "
    "it deletes every queue that its own tables do not have."
)


@attrs.define
class QueueCheck:
    """One queue, or the messages of a vhost that are in none."""

    info: QueueInfo
    states: Counter[str] = attrs.field(factory=Counter)
    bytes: int = 0
    """Bodies of the messages that a restart would deliver."""
    unsure: int = 0
    lost: int = 0


@attrs.define
class NodeCheck:
    """Result of reading a whole node."""

    path: Path
    node: str
    """Name of the node, or an empty text."""
    has_khepri: bool
    stopped: str
    """``cleanly``, ``killed``, or ``in part``."""
    vhosts: list[str]
    per_queue: list[QueueCheck]
    damage: list[SourceDamage]
    not_read: list[QueueInfo]
    absent: dict[str, int]
    """Durable queues of the tables without a directory, which were empty or are lost, to the orphans with the name of the
    queue as routing key."""

    @property
    def queues(self) -> list[QueueInfo]:
        return [one.info for one in self.per_queue if one.info.name.queue is not None]

    @property
    def states(self) -> Counter[str]:
        return sum((one.states for one in self.per_queue), Counter())

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.per_queue)

    @property
    def unsure(self) -> int:
        """Messages that were perhaps consumed."""
        return sum(one.unsure for one in self.per_queue)

    @property
    def exit_code(self) -> int:
        return 1 if self.damage else 3 if self.not_read else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "check", "path": str(self.path), "node": self.node or None, "stopped": self.stopped,
            "has_khepri": self.has_khepri, "vhosts": self.vhosts, "queues": len(self.queues),
            "states": dict(self.states), "bytes": self.bytes, "maybe_consumed": self.unsure,
            "lost": sum(span.messages for span in self.damage), "queues_without_directory": self.absent,
            "not_read": [
                {"vhost": one.name.vhost, "queue": one.name.queue, "type": one.type, "reason": one.reason, **one.details}
                for one in self.not_read
            ],
            "damage": [
                {
                    "path": span.file, "offset": span.offset, "size": span.size, "reason": span.reason,
                    "messages": span.messages, "queue": None if span.name is None else str(span.name),
                }
                for span in self.damage
            ],
        }  # fmt: skip


def check_node(path: Path, source: RabbitmqSource) -> NodeCheck:
    """Read every message of a node."""
    infos = list(source.queues())
    damage = list(source.damage())
    read = [info for info in infos if info.read]
    checks = [QueueCheck(info) for info in read]
    keys = Counter[tuple[str | None, str]]()
    for one in checks:
        for item in source.messages(one.info.name, 0, None):
            if isinstance(item, SourceDamage):
                damage.append(item)
                one.lost += item.messages
                continue
            one.states.update(item.states)
            one.bytes += _listed_bytes(item)
            if one.info.name.queue is None:
                keys.update((one.info.name.vhost, key) for row in item.routing_keys or () for key in row or ())
            pairs = zip(item.states, item.certainties or (), strict=False)
            one.unsure += sum(certainty == MAYBE_CONSUMED and state in ("ready", "expired") for state, certainty in pairs)
    tables = source.node.tables
    there = {(info.name.vhost, info.name.queue) for info in infos}
    named = [(text(queue.vhost), text(queue.name)) for queue in durable_queues(tables)]
    return NodeCheck(
        path=path,
        node=tables.node,
        has_khepri=source.node.has_khepri,
        stopped=source.node.stopped(),
        vhosts=sorted(
            {text(name) for name in vhosts(tables)} | {info.name.vhost for info in read if info.name.vhost is not None}
        ),
        per_queue=checks,
        damage=damage,
        not_read=[info for info in infos if not info.read],
        absent={f"{name[1]} in vhost {name[0]}": keys[name] for name in sorted(named) if name not in there},
    )


def _listed_bytes(batch: MessageBatch) -> int:
    pairs = zip(batch.states, batch.bodies, strict=True)
    return sum(len(body) for state, body in pairs if state in ("ready", "expired"))


def in_words(check: NodeCheck) -> Iterator[str]:
    """Yield the lines that an operator reads."""
    who = f"node {check.node}" if check.node else "a node whose name is not here (its tables are missing)"
    how = {"cleanly": "stopped cleanly", "killed": "killed, not stopped", "in part": "stopped cleanly in part"}[check.stopped]
    yield f"{check.path}: {who}, {how}"
    yield ""
    yield "What is here"
    versions = Counter(str(info.details.get("index")) for info in check.queues)
    kinds = ", ".join(f"{count} with index {version}" for version, count in sorted(versions.items()))
    if check.has_khepri:
        yield "  tables in Khepri (coordination/), which are not read: names come from .queue_name and messages, and queues"
        yield "  without a directory are not listed. For definitions, boot the old broker on a copy"
    yield f"  {_plural(len(check.vhosts), 'vhost')}: {_some(check.vhosts)}"
    yield f"  {_plural(len(check.queues), 'classic queue')} with a directory ({kinds or 'none'})"
    if check.absent:
        routed = {name: f" ({_plural(count, 'orphan')} routed to it)" for name, count in check.absent.items() if count}
        absent = [name + routed.get(name, "") for name in check.absent]
        yield f"  {_plural(len(absent), 'durable queue')} without a directory, empty or lost: {_some(absent)}"
    yield ""
    yield "What can be read"
    listed = check.states["ready"] + check.states["expired"]
    yield f"  {_plural(listed, 'message')}, {check.bytes:,} bytes" + _also(check.states["expired"], "expired")
    if check.unsure:
        yield f"  {check.unsure:,} of them may have been consumed: a kill loses acknowledgements that were not yet written"
    for state, what in (("transient", "that a restart drops"), ("orphan", "in a store and in no queue, most of them consumed")):
        if check.states[state]:
            yield f"  besides {check.states[state]:,} {state}: {what} (--state {state})"
    yield ""
    yield "What is lost or damaged"
    lost = sum(span.messages for span in check.damage)
    spans = f"  {_plural(lost, 'message')}, {_plural(len(check.damage), 'damaged span')}"
    yield spans if check.damage else "  nothing that can be noticed"
    for span in check.damage[:_MOST]:
        yield f"  {span.file} at {span.offset}: {span.reason}" + (f" ({span.name})" if span.name else "")
    if len(check.damage) > _MOST:
        yield f"  and {len(check.damage) - _MOST:,} more: --json lists all"
    if check.not_read:
        yield ""
        yield "What is not read"
        for info in check.not_read:
            yield f"  {info.name}, {info.type}: {info.reason}"
    yield ""
    yield "What to do next"
    yield from _advice(check)


def _advice(check: NodeCheck) -> Iterator[str]:
    yield f"  1. {COPY_FIRST}"
    yield f"  2. msgstore queues {check.path}"
    yield f"  3. msgstore convert {check.path} messages.jsonl, or straight to another broker: amqp://USER@HOST"
    if check.damage:
        yield f"  Or: msgstore rabbitmq repair {check.path} COPY makes a copy on which the old broker boots."
    if check.node:
        yield f"  The old broker boots on a copy only as RABBITMQ_NODENAME={check.node}, whose host must resolve."
    if check.has_khepri:
        yield f"  With Khepri, RabbitMQ 4.0 also needs the file {check.node}-feature_flags, which is beside the data directory."


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _also(count: int, state: str) -> str:
    return f", {count:,} of them {state}" if count else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
