"""Incarnations of topics: what tells two topics of one name apart, of which the first was deleted.

A table beside the log, ``config/topicIncarnations.json``: each creation of a topic takes the next number, which is on disk
before the first record. Own design after RIP-47; a broker knows nothing of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import SourceDamage
from msgstore_rocketmq_log.config import parse
from msgstore_rocketmq_log.records import Buffer

FILE = "config/topicIncarnations.json"


@attrs.define
class Incarnation:
    """One life of a topic."""

    number: int
    created: int
    """Offset of the log's end at its creation."""
    deleted: int | None = None


@attrs.define
class TopicTable:
    """All topics that there are or were. A number is never used again."""

    last: int = 0
    topics: dict[str, list[Incarnation]] = attrs.field(factory=dict)

    def create(self, topic: str, end_of_log: int) -> int:
        """Return the number of a new incarnation. Raises ValueError if the topic lives."""
        if self.live(topic) is not None:
            raise ValueError(f"the topic {topic!r} exists")
        self.last += 1
        self.topics.setdefault(topic, []).append(Incarnation(self.last, end_of_log))
        return self.last

    def delete(self, topic: str, end_of_log: int) -> None:
        """End the incarnation of a topic. Raises ValueError if it does not live."""
        its = self.live(topic)
        if its is None:
            raise ValueError(f"there is no topic {topic!r}")
        its.deleted = end_of_log

    def live(self, topic: str) -> Incarnation | None:
        """Return the incarnation that lives."""
        its = self.topics.get(topic, [])
        return its[-1] if its and its[-1].deleted is None else None

    def is_live(self, topic: str, number: int, offset: int) -> bool:
        """Return True if a record belongs to the incarnation of its topic that lives.

        ``number`` 0: a record of v1, which belongs to the incarnation in whose time it was written; to the first one before.
        """
        its = self.live(topic)
        if its is None:
            return False
        if number:
            return number == its.number
        return offset >= its.created or its is self.topics[topic][0]

    def save(self, store: Path) -> None:
        """Write the table. It outlasts a power loss when this returns. Raises OSError."""
        path = store / FILE
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(json.dumps(attrs.asdict(self), indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fd = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def table_of(values: Any) -> TopicTable:
    """Return a table from JSON. Raises ValueError, TypeError, KeyError."""
    topics = {str(topic): [Incarnation(**one) for one in its] for topic, its in values["topics"].items()}
    for one in (found for its in topics.values() for found in its):
        _check_numbers(one.number, one.created, one.deleted or 0)
    _check_numbers(values["last"])
    return TopicTable(values["last"], topics)


def _check_numbers(*values: object) -> None:
    if wrong := [type(value).__name__ for value in values if type(value) is not int]:
        raise TypeError(f"{wrong[0]} in the place of a whole number")


def read_table(sizes: Mapping[str, int], read: Callable[[str], Buffer], damage: list[SourceDamage]) -> TopicTable | None:
    """Return the table of a store; None without one, and if it cannot be read, which is damage."""
    if FILE not in sizes:
        return None
    try:
        return table_of(parse(read(FILE)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        damage.append(SourceDamage(file=FILE, size=sizes[FILE], reason=f"cannot be read: {error}"))
        return None
