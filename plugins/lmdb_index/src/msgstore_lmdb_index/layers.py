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

    def __bool__(self) -> bool:
        return bool(self.slots or self.state or self.cleared)

    def absorb(self, newer: Layer) -> None:
        """Add the changes of the layer above. A concurrent reader of both layers looks into ``newer`` first."""
        self.state |= newer.state
        self.slots.update(newer.slots)


def merge(layers: Sequence[Layer]) -> Layer:
    """Return a new layer with the slots and the state of all ``layers``."""
    total = Layer(cleared=layers[-1].cleared)
    for layer in reversed(layers):
        total.absorb(layer)
    return total
