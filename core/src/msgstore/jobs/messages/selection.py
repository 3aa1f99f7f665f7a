"""Selection of messages: queues by name, ids, states, and positions. The same in every command; Spark has no option for ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

import attrs

from msgstore.contract import LISTED, STATES, ConfigError, MessageBatch, QueueInfo, QueueName, Source, SourceDamage
from msgstore.jobs.messages.sources import nearest


@attrs.frozen
class Selection:
    """Picklable. Created and checked by :func:`select`."""

    vhosts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    """Globs, of which a name matches one. Without any: every queue, also those without a name."""
    ids: tuple[str, ...] = ()
    """Ids as lists show them, in small letters. Without any: every message, also those without an id."""
    states: tuple[str, ...] = LISTED
    first: int = 0
    """Position in each queue."""
    limit: int | None = None
    """Number of messages in all."""

    def has(self, name: QueueName) -> bool:
        """Return True if the globs match a queue."""
        pairs = ((self.vhosts, name.vhost), (self.queues, name.queue))
        return all(not globs or (text is not None and any(fnmatchcase(text, glob) for glob in globs)) for globs, text in pairs)

    def rows(self, batch: MessageBatch, others: Counter[str]) -> MessageBatch:
        """Return the messages of a batch with the selected ids in the selected states. ``others`` counts those with such an id
        in other states."""
        if self.ids:
            batch = batch.take([row for row, found in enumerate(batch.ids or ()) if found and found.lower() in self.ids])
        wanted = [row for row, state in enumerate(batch.states) if state in self.states]
        if len(wanted) == len(batch):
            return batch
        others.update(state for state in batch.states if state not in self.states)
        return batch.take(wanted)


def select(
    *,
    vhosts: tuple[str, ...] = (),
    queues: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    everything: bool = False,
    first: int = 0,
    limit: int | None = None,
) -> Selection:
    """Return a selection. Without ``states``: what a restart would deliver. Raises ConfigError."""
    for state in states:
        if state not in STATES:
            raise ConfigError(f"state {state}: there is no such state{nearest(state, list(STATES))}")
    if first < 0 or (limit is not None and limit < 0):
        raise ConfigError("a position and a limit are at least 0")
    ids = tuple(one.lower() for one in ids)
    return Selection(vhosts, queues, ids, STATES if everything else states or LISTED, first, limit)


def selected_queues(source: Source, selection: Selection) -> list[QueueInfo]:
    """Return the selected queues, and what is not read. Raises ConfigError if a glob matches none, with the nearest name."""
    found = list(source.queues())
    for what, globs, names in (
        ("vhost", selection.vhosts, {info.name.vhost for info in found}),
        ("queue", selection.queues, {info.name.queue for info in found}),
    ):
        known = sorted(name for name in names if name is not None)
        for glob in globs if found else ():
            if not any(fnmatchcase(name, glob) for name in known):
                raise ConfigError(f"{what} {glob}: nothing here has such a name{nearest(glob, known)}")
    return [info for info in found if not info.read or selection.has(info.name)]


def selected_messages(
    source: Source,
    name: QueueName,
    selection: Selection,
    taken: int = 0,
    stop: int | None = None,
    others: Counter[str] | None = None,
) -> Iterator[MessageBatch | SourceDamage]:
    """Yield the selected messages of a queue, of which ``taken`` were selected before, and the damage. ``others`` counts the
    messages in other states."""
    others = Counter() if others is None else others
    left = None if selection.limit is None else selection.limit - taken
    if left is not None and left <= 0:
        return
    for item in source.messages(name, selection.first, stop):
        if isinstance(item, SourceDamage):
            yield item
            continue
        batch = selection.rows(item, others)
        if left is not None and len(batch) >= left:
            yield batch.take(range(left))
            return
        if len(batch):
            left = None if left is None else left - len(batch)
            yield batch
