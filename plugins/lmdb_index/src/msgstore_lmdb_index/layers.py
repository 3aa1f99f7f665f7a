"""Changes that are not on disk yet, in layers: the newest takes changes, those below it are frozen until they are committed.

Each layer hides what the layers below it, and LMDB below them all, say of the same id. Layers are given newest first. Knows
slots (0 is no entry), not what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

Read = Callable[[bytes], bytes]
"""What LMDB has for an id; empty if nothing."""


@attrs.define(eq=False)
class Layer:
    """What has changed between two freezes."""

    slots: dict[bytes, int] = attrs.Factory(dict)
    """Id to slot."""
    state: dict[bytes, bytes | None] = attrs.Factory(dict)
    """What the freeze gave; None removes a key."""
    cleared: bool = False
    """True of the lowest layer if what LMDB has is void."""
    gained: int = 0
    """Entries more than there are below, or less if negative, apart from ``unknown``."""
    unknown: set[bytes] = attrs.Factory(set)
    """Ids that were entered here and that nobody has looked for below: each that is not there counts one more."""

    def __bool__(self) -> bool:
        return bool(self.slots or self.state or self.cleared)

    def enter(self, ids: Sequence[bytes], slots: Sequence[int]) -> None:
        """ValueError, and no change, if there are more of one than of the other."""
        batch = dict(zip(ids, slots, strict=True))
        mine = self.slots
        if mine and (known := mine.keys() & batch.keys()):
            self.gained += sum(1 for msg_id in known if not mine[msg_id])
            self.unknown.update(batch.keys() - known)
        else:
            self.unknown.update(batch)
        mine.update(batch)

    def absorb(self, newer: Layer) -> None:
        """Also say what the layer above says. A reader may be looking into both, the newer one first."""
        mine = self.slots
        settled = newer.unknown & mine.keys()
        self.gained += newer.gained + sum(1 for msg_id in settled if not mine[msg_id])
        self.unknown |= newer.unknown - settled
        self.state |= newer.state
        mine.update(newer.slots)


def merged(layers: Sequence[Layer]) -> Layer:
    """Slots and state of all layers in one."""
    total = Layer(cleared=layers[-1].cleared)
    for layer in reversed(layers):
        total.slots |= layer.slots
        total.state |= layer.state
    return total


def gained(layers: Sequence[Layer], read: Read) -> int:
    """Entries more than there are below all layers. Looks up what is unknown, once."""
    for depth, layer in enumerate(layers, 1):
        if layer.unknown:
            layer.gained += sum(1 for msg_id in layer.unknown if not _found(msg_id, layers[depth:], read))
            layer.unknown = set()
    return sum(layer.gained for layer in layers)


def recount(layers: Sequence[Layer], read: Read) -> None:
    """Count anew what each of these, the lowest ones, adds: what is stored below them is no longer what it was."""
    for depth, layer in enumerate(layers, 1):
        below = layers[depth:]
        layer.gained = sum((slot != 0) - _found(msg_id, below, read) for msg_id, slot in layer.slots.items())
        layer.unknown = set()


def _found(msg_id: bytes, layers: Sequence[Layer], read: Read) -> bool:
    for layer in layers:
        if (slot := layer.slots.get(msg_id)) is not None:
            return slot != 0
    return bool(read(msg_id))
