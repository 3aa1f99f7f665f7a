"""Selection of messages: queues by name, states, and positions. The same in every command and in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import attrs

from msgstore.contract import LISTED, STATES, ConfigError, MessageBatch, QueueInfo, QueueName, Source, SourceDamage
from msgstore.jobs.messages.sources import nearest


@attrs.frozen
class Selection:
    """Picklable. Created and checked by :func:`select`."""

    vhost: str | None = None
    queue: str | None = None
    """Glob. None: every one, also those without a name."""
    states: tuple[str, ...] = LISTED
    first: int = 0
    """Position in each queue."""
    limit: int | None = None
    """Number of messages in all."""

    def has(self, name: QueueName) -> bool:
        """Return True if the globs match a queue."""
        pairs = ((self.vhost, name.vhost), (self.queue, name.queue))
        return all(glob is None or (text is not None and fnmatchcase(text, glob)) for glob, text in pairs)

    def rows(self, batch: MessageBatch) -> MessageBatch:
        """Return the messages of a batch in the selected states."""
        wanted = [row for row, state in enumerate(batch.states) if state in self.states]
        return batch if len(wanted) == len(batch) else batch.take(wanted)


def select(
    *,
    vhost: str | None = None,
    queue: str | None = None,
    states: tuple[str, ...] = (),
    everything: bool = False,
    first: int = 0,
    limit: int | None = None,
) -> Selection:
    """Return a selection. Without ``states``: what a restart would deliver. Raises ConfigError."""
    for state in states:
        if state not in STATES:
            raise ConfigError(f"--state {state}: there is no such state{nearest(state, list(STATES))}")
    if first < 0 or (limit is not None and limit < 0):
        raise ConfigError("a position and a limit are at least 0")
    return Selection(vhost, queue, STATES if everything else states or LISTED, first, limit)


def selected_queues(source: Source, selection: Selection) -> list[QueueInfo]:
    """Return the selected queues, and what is not read. Raises ConfigError if a glob matches none, with the nearest name."""
    found = list(source.queues())
    queues = [info for info in found if not info.read or selection.has(info.name)]
    if found and not any(info.read for info in queues):
        for option, glob, names in (
            ("--vhost", selection.vhost, {info.name.vhost for info in found}),
            ("--queue", selection.queue, {info.name.queue for info in found}),
        ):
            known = sorted(name for name in names if name is not None)
            if glob is not None and not any(fnmatchcase(name, glob) for name in known):
                raise ConfigError(f"{option} {glob}: nothing here has such a name{nearest(glob, known)}")
    return queues


def selected_messages(
    source: Source, name: QueueName, selection: Selection, taken: int = 0, stop: int | None = None
) -> Iterator[MessageBatch | SourceDamage]:
    """Yield the selected messages of a queue, of which ``taken`` were selected before, and the damage."""
    left = None if selection.limit is None else selection.limit - taken
    if left is not None and left <= 0:
        return
    for item in source.messages(name, selection.first, stop):
        if isinstance(item, SourceDamage):
            yield item
            continue
        batch = selection.rows(item)
        if left is not None and len(batch) >= left:
            yield batch.take(range(left))
            return
        if len(batch):
            left = None if left is None else left - len(batch)
            yield batch
