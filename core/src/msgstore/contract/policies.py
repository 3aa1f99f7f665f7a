"""GC policies: pure functions that say what is worth collecting. The engine does the work.

A complete one, that compacts whatever is more than nine tenths garbage::

    class NearlyEmpty:
        def __init__(self, options): pass

        def plan(self, segments, now):
            return [Compact(s.number) for s in segments if not s.current and s.garbage_bytes * 10 > s.used_bytes * 9]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class GcPolicyDescriptor(Descriptor):
    """``factory(options) -> GcPolicy``. Capability: DROPS_MESSAGES."""


@attrs.frozen
class SegmentStats:
    """One segment, as policies, ``store.segments()`` and the command line see it. Sizes in bytes."""

    number: int
    """A higher one is younger."""
    file: str
    """The file's name."""
    format: str
    """The name of its format."""
    size: int
    """Of the whole file."""
    live_count: int
    """Live messages."""
    live_bytes: int
    """Of whole live records."""
    header_bytes: int
    """What the format puts before the first record."""
    current: bool
    """True for the segment that new messages go to."""
    quarantined: bool
    """True if damage was found: the segment is read as it is and never collected."""
    sealed_at: float | None = None
    """When its newest message was written, in seconds since the epoch; None while it is written. Collection keeps it."""
    size_limit: int = 0
    """The store's ``file_size_limit``: what is combined must fit into it."""

    @property
    def used_bytes(self) -> int:
        """Everything behind the header, live or not."""
        return max(0, self.size - self.header_bytes)

    @property
    def garbage_bytes(self) -> int:
        """What is neither header nor live."""
        return max(0, self.used_bytes - self.live_bytes)


@attrs.frozen
class Compact:
    """Move the live records of a segment together, in place, and cut off what is behind them."""

    number: int
    """The segment's."""


@attrs.frozen
class Combine:
    """Copy the live records of two segments into a fresh one, in this order, and delete the two."""

    numbers: tuple[int, int]
    """The two segments'."""


@attrs.frozen
class Drop:
    """Delete a segment although messages in it are alive. They are gone; the engine reports it as a warning.

    For policies with the capability DROPS_MESSAGES.
    """

    number: int
    """The segment's."""
    reason: str
    """Why, in words that follow "dropped:"."""


@attrs.frozen
class Migrate:
    """Rewrite a segment of an older format in the store's own."""

    number: int
    """The segment's."""


Action = Compact | Combine | Drop | Migrate
"""What a policy can ask for."""


class GcPolicy(Protocol):
    def plan(self, segments: Sequence[SegmentStats], now: float) -> Sequence[Action]:
        """What to do, in that order. Pure. ``segments`` come in number order; ``now`` is in seconds since the epoch.

        An action that cannot be carried out is passed over, and the log says why: one that names a segment that is current,
        quarantined, unknown, or named by an action before it, or combines what does not fit into one segment. Segments
        without a live record are deleted without being asked for.
        """
        ...
