"""Mnesia's files of a node: vhosts, queues, exchanges, bindings, policies, users, as they were when it stopped.

Each table has an image (``.DCD``) and changes since (``.DCL``); the newest changes of all tables are in ``LATEST.LOG``.
Source: ``mnesia_log.erl`` of Erlang, the records of RabbitMQ 3.10, and nodes that it left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rabbitmq_files.tables import read_log, text_of

LATEST_LOG, PREVIOUS_LOG = "LATEST.LOG", "PREVIOUS.LOG"
"""The second is there while the changes in it are copied to the tables."""
TABLES = (
    "rabbit_vhost", "rabbit_durable_queue", "rabbit_durable_exchange", "rabbit_durable_route", "rabbit_runtime_parameters",
    "rabbit_user", "rabbit_user_permission", "rabbit_topic_permission",
)  # fmt: skip
"""Tables that are read."""
FILES = (*(f"{table}.{kind}" for table in TABLES for kind in ("DCD", "DCL")), PREVIOUS_LOG, LATEST_LOG)
"""Names of their files, in the directory of the node, the oldest changes first."""


@dataclass(slots=True)
class NodeTables:
    """Records of each table by the text of the key: Erlang tuples, as :mod:`rabbitmq_files.terms` decodes them."""

    records: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    damage: list[tuple[str, int, int, str]] = field(default_factory=list)
    """File, offset, size and reason."""
    node: str = ""
    """Name of the node that wrote them, or an empty text."""
    is_present: bool = False
    """True if one of the tables names a vhost: without any, nothing follows from what is not in them."""

    def table(self, name: str) -> list[tuple[Any, ...]]:
        """Return the records of a table."""
        return list(self.records.get(name, {}).values())


@dataclass(slots=True, frozen=True)
class DurableQueue:
    """A record of ``rabbit_durable_queue``."""

    vhost: bytes
    name: bytes
    kind: str
    """``classic``, ``quorum``, ``stream``, or what a plugin calls it."""
    auto_delete: bool
    arguments: list[tuple[Any, ...]]
    """``(name, type, value)``, as in the headers of a decoded message."""
    directory: str | None = None
    """Name of the directory that a quorum queue or a stream keeps its messages in."""

    def argument(self, name: bytes) -> Any:
        """Return the value of an argument, or None."""
        return next((value for key, _, value in self.arguments if key == name), None)


def read_tables(files: Mapping[str, bytes]) -> NodeTables:
    """Read the tables of a node from the content of :data:`FILES`, as far as they are there."""
    found = NodeTables()
    for name in FILES:
        if name not in files:
            continue
        log = read_log(files[name])
        found.damage += ((name, *span) for span in log.damage)
        for _, item in log.terms:
            for table, key, record, operation in _changes(name, item, found):
                _apply(found, table, key, record, operation)
    found.is_present = bool(found.records.get("rabbit_vhost"))
    return found


def _changes(file: str, item: Any, found: NodeTables) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield table, key, record and operation of an item."""
    if not isinstance(item, tuple) or not item or item[0] == "log_header":
        return
    if file in (LATEST_LOG, PREVIOUS_LOG):
        if item[0] == "commit" and len(item) >= 6:
            found.node = found.node or (str(item[1]) if isinstance(item[1], str) else "")
            for copies in item[3:6]:
                for change in copies if isinstance(copies, list) else ():
                    yield from _change(change)
    elif file.endswith(".DCL"):
        yield from _change(item)
    elif len(item) > 1:
        yield file.removesuffix(".DCD"), item[1], item, "write"


def _change(change: Any) -> Iterator[tuple[str, Any, Any, str]]:
    if isinstance(change, tuple) and len(change) == 3 and isinstance(change[0], tuple) and len(change[0]) == 2:
        (table, key), record, operation = change
        yield table, key, record, operation


def _apply(found: NodeTables, table: Any, key: Any, record: Any, operation: Any) -> None:
    if table not in TABLES:
        return
    rows = found.records.setdefault(str(table), {})
    # By text, as crafted integers can all have one hash.
    if operation == "write" and isinstance(record, tuple):
        rows[repr(key)] = record
    elif operation in ("delete", "delete_object"):
        rows.pop(repr(key), None)


def vhosts(tables: NodeTables) -> list[bytes]:
    """Return the names of the vhosts."""
    return [row[1] for row in tables.table("rabbit_vhost") if len(row) > 1 and isinstance(row[1], bytes)]


def durable_queues(tables: NodeTables) -> list[DurableQueue]:
    """Return the durable queues. A record of another form is left out."""
    return [queue for row in tables.table("rabbit_durable_queue") if (queue := _queue(row)) is not None]


def _queue(row: tuple[Any, ...]) -> DurableQueue | None:
    if len(row) < 6 or not _is_resource(row[1], "queue"):
        return None
    kinds = [str(one) for one in row[6:] if str(one).startswith("rabbit_") and str(one).endswith("_queue")]
    kind = kinds[-1].removeprefix("rabbit_").removesuffix("_queue") if kinds else "classic"
    arguments = [one for one in row[5] if isinstance(one, tuple) and len(one) == 3] if isinstance(row[5], list) else []
    return DurableQueue(row[1][1], row[1][3], kind, row[3] == "true", arguments, _own_directory(kind, row))


def _own_directory(kind: str, row: tuple[Any, ...]) -> str | None:
    state = next((one for one in reversed(row) if isinstance(one, dict) and ("uid" in one or "name" in one)), None)
    if state is None or kind == "classic":
        return None
    value = state.get("uid") if kind == "quorum" else state.get("name")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value) if isinstance(value, str) else text_of(value)


def _is_resource(value: Any, kind: str) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 4
        and value[2] == kind
        and isinstance(value[1], bytes)
        and isinstance(value[3], bytes)
    )
