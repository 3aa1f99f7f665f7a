"""Jobs ``queues`` and ``messages``: count the messages of each queue, and list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import STATES, MessageBatch, QueueInfo, SourceDamage
from msgstore.jobs.messages.rows import queue_as_json
from msgstore.jobs.messages.selection import Selection, selected_messages, selected_queues
from msgstore.jobs.messages.sources import SourceSpec, files_below, open_source
from msgstore.jobs.tasks import ProgressMeter


@attrs.define
class CountedQueue:
    """One queue in numbers."""

    info: QueueInfo
    messages: int = 0
    """Messages in the selected states: by default, those that a restart would deliver, and expired ones."""
    bytes: int = 0
    """Size of their bodies."""
    states: Counter[str] = attrs.field(factory=Counter)
    """Number of messages by state."""
    certainties: Counter[str] = attrs.field(factory=Counter)
    damage: int = 0
    """Damaged spans."""
    missing: int = 0
    """Messages that are lost."""
    first_ms: int | None = None
    last_ms: int | None = None
    """Earliest and latest time of a message."""

    def add(self, batch: MessageBatch, states: Collection[str]) -> None:
        """Count a batch. Messages in other states than ``states`` are counted apart."""
        self.states.update(batch.states)
        self.certainties.update(batch.certainties or ())
        for state, body in zip(batch.states, batch.bodies, strict=True):
            if state in states:
                self.messages += 1
                self.bytes += len(body)
        times = [time for time in batch.timestamps_ms or () if time is not None]
        self.first_ms = min([*times, self.first_ms] if self.first_ms is not None else times, default=self.first_ms)
        self.last_ms = max([*times, self.last_ms] if self.last_ms is not None else times, default=self.last_ms)

    def as_json(self, *, times: bool) -> dict[str, Any]:
        if not self.info.read:
            return queue_as_json(self.info)
        return queue_as_json(
            self.info,
            messages=self.messages,
            bytes=self.bytes,
            missing=self.missing,
            first_ms=self.first_ms if times else None,
            last_ms=self.last_ms if times else None,
            damage=self.damage,
            states=dict(self.states),
            certainties=dict(self.certainties),
        )


def count_queues(spec: SourceSpec, selection: Selection, meter: ProgressMeter) -> tuple[list[CountedQueue], list[SourceDamage]]:
    """Count the selected messages, and return the queues and all damage. Without a limit, every message is read, and those in
    other states are counted apart. Raises StoreError, ConfigError, PluginError."""
    wanted = selection if selection.limit is not None else attrs.evolve(selection, states=STATES)
    taken = 0
    with open_source(spec) as source:
        queues = [CountedQueue(info) for info in selected_queues(source, selection)]
        damage = list(source.damage())
        for queue in queues:
            for item in selected_messages(source, queue.info.name, wanted, taken) if queue.info.read else ():
                if isinstance(item, SourceDamage):
                    damage.append(item)
                    queue.damage += 1
                    queue.missing += item.messages
                else:
                    queue.add(item, selection.states)
                    taken += len(item)
                    meter.add(sum(item.sizes))
        return queues, damage


def list_messages(
    spec: SourceSpec, selection: Selection, others: Counter[str] | None = None
) -> Iterator[MessageBatch | SourceDamage | QueueInfo]:
    """Yield the selected messages, the damage, and the queues that are not read. ``others`` counts messages in other states.
    Raises as :func:`count_queues`."""
    taken = 0
    with open_source(spec) as source:
        queues = selected_queues(source, selection)
        yield from source.damage()
        for info in queues:
            if not info.read:
                yield info
                continue
            for item in selected_messages(source, info.name, selection, taken, others=others):
                taken += len(item) if isinstance(item, MessageBatch) else 0
                yield item


def size_of(path: Path) -> int:
    """Return the bytes of all files at or below a path, for the progress."""
    return sum(about.st_size for _, about in files_below(path))
