"""Layers of changes that are not on disk yet: the newest layer receives changes, the layers below it are frozen.

An id in a layer hides the same id in the layers below and in LMDB, which is below all layers. Sequences of layers are newest
first. A value is a *slot*, an integer whose meaning is not known here; 0 means no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

ReadSlot = Callable[[bytes], bytes]
"""Returns the value that LMDB has for an id; empty if none."""


@attrs.define(eq=False)
class Layer:
    """Changes between two freezes."""

    slots: dict[bytes, int] = attrs.Factory(dict)
    """Id to slot."""
    state: dict[bytes, bytes | None] = attrs.Factory(dict)
    """State given to the freeze; None removes a key."""
    cleared: bool = False
    """True if LMDB's contents are void. Only the lowest layer has it."""
    gained: int = 0
    """Entries added minus entries removed, relative to everything below, without the ids in ``unknown``."""
    unknown: set[bytes] = attrs.Factory(set)
    """Entered ids that were not looked up below yet. Each one that is not found there adds one entry."""

    def __bool__(self) -> bool:
        return bool(self.slots or self.state or self.cleared)

    def enter(self, ids: Sequence[bytes], slots: Sequence[int]) -> None:
        """Set the slots of these ids. Raises ValueError before any change if the lengths differ."""
        batch = dict(zip(ids, slots, strict=True))
        own = self.slots
        if own and (known := own.keys() & batch.keys()):
            self.gained += sum(1 for msg_id in known if not own[msg_id])
            self.unknown.update(batch.keys() - known)
        else:
            self.unknown.update(batch)
        own.update(batch)

    def absorb(self, newer: Layer) -> None:
        """Add the changes of the layer above. A concurrent reader of both layers looks into ``newer`` first."""
        own = self.slots
        known = newer.unknown & own.keys()
        self.gained += newer.gained + sum(1 for msg_id in known if not own[msg_id])
        self.unknown |= newer.unknown - known
        self.state |= newer.state
        own.update(newer.slots)


def merge(layers: Sequence[Layer]) -> Layer:
    """Return a new layer with the slots and the state of all ``layers``."""
    total = Layer(cleared=layers[-1].cleared)
    for layer in reversed(layers):
        total.slots |= layer.slots
        total.state |= layer.state
    return total


def count_gained(layers: Sequence[Layer], read: ReadSlot) -> int:
    """Return how many entries all layers add to LMDB's; negative if they remove more. Looks up each unknown id once."""
    for depth, layer in enumerate(layers, 1):
        if layer.unknown:
            layer.gained += sum(1 for msg_id in layer.unknown if not _exists(msg_id, layers[depth:], read))
            layer.unknown = set()
    return sum(layer.gained for layer in layers)


def recount(layers: Sequence[Layer], read: ReadSlot) -> None:
    """Recompute ``gained`` of these layers, the lowest ones, after LMDB's contents have changed."""
    for depth, layer in enumerate(layers, 1):
        below = layers[depth:]
        layer.gained = sum((slot != 0) - _exists(msg_id, below, read) for msg_id, slot in layer.slots.items())
        layer.unknown = set()


def _exists(msg_id: bytes, layers: Sequence[Layer], read: ReadSlot) -> bool:
    for layer in layers:
        if (slot := layer.slots.get(msg_id)) is not None:
            return slot != 0
    return bool(read(msg_id))
