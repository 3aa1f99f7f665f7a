"""GC policies: pure functions from segment statistics to actions. The engine carries the actions out.

A complete policy that compacts segments with more than nine tenths garbage::

    class NearlyEmpty:
        def __init__(self, options): pass

        def plan(self, segments, now):
            sealed = [s for s in segments if not (s.current or s.quarantined)]
            return [Compact(s.number) for s in sealed if s.garbage_bytes * 10 > s.used_bytes * 9]
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
    """Statistics of one segment, for policies, ``store.segments()`` and the command line. Sizes in bytes.

    A segment that was created later has a higher number, also if a collection has created it with older messages. ``file`` is
    the file name, ``format`` the name of the format, ``header_bytes`` the size of its header; ``live_bytes`` counts whole
    records.
    """

    number: int
    file: str
    format: str
    size: int
    live_count: int
    live_bytes: int
    header_bytes: int
    current: bool
    """True for the segment that receives new messages."""
    quarantined: bool
    """True if the segment is damaged: it stays readable and is never collected."""
    sealed_at: float | None = None
    """Time of its newest message, in seconds since the epoch: a compaction does not change it, and a combined segment has that
    of the younger one. None if it is unknown, as for the current segment: a policy that goes by age leaves such a segment
    alone."""
    size_limit: int = 0
    """``file_size_limit`` of the store, which combined segments must not exceed."""

    @property
    def used_bytes(self) -> int:
        """Bytes after the header, live or not."""
        return max(0, self.size - self.header_bytes)

    @property
    def garbage_bytes(self) -> int:
        """Bytes that are neither header nor live record."""
        return max(0, self.used_bytes - self.live_bytes)


@attrs.frozen
class Compact:
    """Compact a segment: move its live records together and truncate it, or copy them if the format is not COMPACTABLE."""

    number: int


@attrs.frozen
class Combine:
    """Copy the live records of two segments, in this order, into a new one, and delete the two."""

    numbers: tuple[int, int]


@attrs.frozen
class Drop:
    """Delete a segment with its live messages. The engine logs a warning. For policies with DROPS_MESSAGES."""

    number: int
    reason: str
    """Reason, as words that follow "dropped:"."""


@attrs.frozen
class Migrate:
    """Copy the live records of a segment of an older format into the store's own format, and delete the segment."""

    number: int


Action = Compact | Combine | Drop | Migrate
"""One step of a plan."""


class GcPolicy(Protocol):
    """Called by one thread at a time."""

    def plan(self, segments: Sequence[SegmentStats], now: float) -> Sequence[Action]:
        """Return the actions, in the order of execution. Pure: it keeps nothing, and asks no clock. ``segments`` are in number
        order; ``now`` is in seconds since the epoch, and may be earlier than at the call before. The policy may be
        asked again about the same segments, later. It takes time linear in their number, apart from sorting them.

        The engine skips and logs an action that names an unknown, current or quarantined segment, or one that an earlier
        action names, and a Combine above the size limit. If anything in the plan is not an action, it carries out nothing. It
        deletes segments without live records by itself.
        """
