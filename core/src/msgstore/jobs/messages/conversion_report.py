"""Report of a conversion: each selected message is written, refused or damaged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from msgstore.contract import QueueInfo, SourceDamage
from msgstore.jobs.messages.rows import each_once, name_as_json


@attrs.define
class QueueCounts:
    """Messages of one queue: ``selected == written + refused + damaged``."""

    info: QueueInfo
    selected: int = 0
    written: int = 0
    refused: int = 0
    damaged: int = 0
    bytes: int = 0
    """Size of the bodies that were written."""

    def add(self, other: QueueCounts) -> None:
        """Add the counts of another part of the queue."""
        for name in ("selected", "written", "refused", "damaged", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, Any]:
        """Return the object of the queue that ``convert --json`` prints."""
        return {
            "kind": "queue",
            **name_as_json(self.info.name),
            **attrs.asdict(self, filter=lambda field, _: field.name != "info"),
        }


@attrs.define
class ConvertReport:
    """Result of a conversion. An interrupted part of it counts, too."""

    destination: str
    queues: list[QueueCounts] = attrs.field(factory=list)
    damage: list[SourceDamage] = attrs.field(factory=list)
    reasons: Counter[str] = attrs.field(factory=Counter)
    """Reason of refusals to their number."""
    others: Counter[str] = attrs.field(factory=Counter)
    """State to the number of messages in it that were not selected."""
    not_read: list[QueueInfo] = attrs.field(factory=list)
    kept: int | None = None
    """Messages that had been selected when an interrupted conversion continued. None: it began anew."""
    marked: int = 0
    """Messages that are marked as possible duplicates."""
    lost: int = 0
    """Messages that the source has lost, and that belong to no queue. They count as selected and damaged."""

    def total(self, name: str) -> int:
        """Return the sum of a count over all queues."""
        found: int = sum(getattr(queue, name) for queue in self.queues)
        return found + (self.lost if name in ("selected", "damaged") else 0)

    def as_json(self) -> dict[str, Any]:
        """Return the last object that ``convert --json`` prints."""
        sums = {name: self.total(name) for name in ("selected", "written", "refused", "damaged", "bytes")}
        return {
            "kind": "summary", "destination": self.destination, "queues": len(self.queues), **sums,
            "resumed": self.kept is not None, "marked_duplicates": self.marked, "reasons": dict(self.reasons),
            "damaged_spans": len(each_once(self.damage)), "not_selected": dict(self.others),
        }  # fmt: skip
