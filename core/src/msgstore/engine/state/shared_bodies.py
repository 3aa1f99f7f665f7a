"""A bounded cache of bodies that have several references, so that their many readers get one object, not a copy each.

It saves memory more than time: a body that a hundred queues hold is read a hundred times, and may be kept as long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class SharedBodies:
    """Of one open store. Methods are called under the store's lock; whether an id is in ``ids`` may be asked without it."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of bodies that are kept; the ones that nobody has read for longest go first."""
        self.ids: set[bytes] = set()
        """Those that had several references when somebody looked, and live."""
        self._limit = limit
        self._bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, msg_id: bytes) -> bytes | None:
        body = self._bodies.get(msg_id)
        if body is not None:
            self._bodies.move_to_end(msg_id)
        return body

    def put(self, msg_id: bytes, body: bytes) -> None:
        if len(body) <= self._limit and msg_id not in self._bodies:
            self._bodies[msg_id] = body
            self._bytes += len(body)
            while self._bytes > self._limit:
                self._bytes -= len(self._bodies.popitem(last=False)[1])

    def forget(self, dead: Iterable[tuple[bytes, int]]) -> None:
        """(id, location) of messages that have lost their last reference."""
        for msg_id, _ in dead:
            if msg_id in self.ids:
                self.ids.discard(msg_id)
                self._bytes -= len(self._bodies.pop(msg_id, b""))
