"""GC policies of core."""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import NoOptions, SegmentStats


class HalfEmpty:
    """Compact each segment of which less than half is live, oldest first: what RabbitMQ 3.13 and later do."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def plan(self, segments: Sequence[SegmentStats]) -> list[int]:
        return [s.number for s in segments if not s.current and s.live_bytes * 2 < s.size - s.header_bytes]
