"""GC policies: pure functions that say which segments are worth collecting. The engine does the work.

A complete one, that compacts whatever is more than nine tenths garbage::

    class NearlyEmpty:
        def __init__(self, options): pass

        def plan(self, segments):
            return [s.number for s in segments if not s.current and s.live_bytes * 10 < s.size]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class GcPolicyDescriptor(Descriptor):
    """``factory(options) -> GcPolicy``."""


@attrs.frozen
class SegmentStats:
    """One segment, as policies, ``store.segments()`` and the command line see it. Sizes in bytes."""

    number: int
    file: str
    """The file's name."""
    format: str
    size: int
    """Of the whole file."""
    live_count: int
    live_bytes: int
    """Of whole live records."""
    header_bytes: int
    current: bool
    """True for the segment that new messages go to."""
    quarantined: bool
    """True if damage was found: the segment is read as it is and never collected."""

    @property
    def garbage_bytes(self) -> int:
        return max(0, self.size - self.header_bytes - self.live_bytes)


class GcPolicy(Protocol):
    def plan(self, segments: Sequence[SegmentStats]) -> Sequence[int]:
        """The numbers of the segments to compact, in that order. Pure. ``segments`` come in number order.

        Numbers of current, quarantined or unknown segments are ignored. Empty segments are deleted without being asked for.
        """
        ...
