"""Items of an open journal: those at the head in memory, those behind them in its files, and the reserved ones.

Only the state changes here. Its caller has written the record of each change before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from msgstore_kestrel_journal.packing import Checkpoint, JournalFiles
from msgstore_kestrel_journal.read_behind import ReadBehind
from msgstore_kestrel_journal.replay import Replay


@attrs.define
class QueueItem:
    """An item in memory."""

    data: bytes
    add_ms: int
    expiry_ms: int
    number: int
    """Number that this journal object gave the item. Checkpoints refer to it."""


class ItemQueue:
    """State of one queue. ``max_memory``: bytes of data in memory, from which on items stay in the files."""

    def __init__(self, files: JournalFiles, max_memory: int, clock_ms: Callable[[], int]) -> None:
        self._files, self._max_memory, self._clock = files, max_memory, clock_ms
        self.memory: deque[QueueItem] = deque()
        self._memory_bytes = 0
        self.length = self.size = 0
        """Number of items, and bytes of their data, those in the files included. Reserved ones do not count."""
        self.opened: dict[int, QueueItem] = {}
        """Reserved items, by xid."""
        self.reserved_ms: dict[int, int] = {}
        """By xid: time of the reservation."""
        self.xid = self._numbers = 0
        self.checkpoint: Checkpoint | None = None
        self._behind: ReadBehind | None = None

    def load(self, found: Replay) -> None:
        """Take over the items of a replay. Those that were reserved are at the head."""
        self.xid = found.state.xid
        places = found.state.in_delivery_order()
        returned = len(found.state.opened) + found.state.returned
        for at, place in enumerate(places):
            item = found.item(place)
            if self._memory_bytes >= self._max_memory and at >= returned:
                # Behind the items that came back, the queue has what was added last, without a gap: items leave at the head.
                self._behind = ReadBehind(self._files, *found.split(place))
                break
            add_ms = found.now_ms if item.add_ms is None else item.add_ms
            self._remember(self.new_item(found.data(place), add_ms, item.expiry_ms))
        self.length = len(places)
        self.size = sum((item := found.item(place)).end - item.begin for place in places)
        self.refill()

    def new_item(self, data: bytes, add_ms: int, expiry_ms: int) -> QueueItem:
        self._numbers += 1
        return QueueItem(bytes(data), add_ms, expiry_ms, self._numbers)

    def next_xid(self) -> int:
        """Return the xid of the next reservation, which changes nothing."""
        xid = self.xid
        while True:
            xid = (xid + 1 + 2**31) % 2**32 - 2**31
            if xid and xid not in self.opened:
                return xid

    def append(self, item: QueueItem, written: int) -> None:
        """Enter an item whose record of ``written`` bytes is the last of the live file."""
        if self._behind is None and self._memory_bytes >= self._max_memory:
            self._behind = ReadBehind(self._files, self._files.live_number, self._files.live_size - written)
        if self._behind is None:
            self._remember(item)
        self.length += 1
        self.size += len(item.data)

    def pop(self) -> QueueItem:
        """Remove the head, which :meth:`refill` has brought to memory."""
        item = self.memory.popleft()
        self._memory_bytes -= len(item.data)
        self.length -= 1
        self.size -= len(item.data)
        if not self.length:
            self.close()
        return item

    def reserve(self, xid: int) -> QueueItem:
        """Move the head to the reserved items."""
        self.xid = xid
        item = self.opened[xid] = self.pop()
        self.reserved_ms[xid] = self._clock()
        return item

    def confirm(self, xid: int) -> QueueItem:
        """Forget a reserved item."""
        self.reserved_ms.pop(xid, None)
        return self.opened.pop(xid)

    def give_back(self, xid: int) -> None:
        """Move a reserved item to the head."""
        item = self.confirm(xid)
        self.memory.appendleft(item)
        self._memory_bytes += len(item.data)
        self.length += 1
        self.size += len(item.data)

    @property
    def is_all_in_memory(self) -> bool:
        return self._behind is None

    def is_read_up_to(self, number: int) -> bool:
        """Return True if no item of the files up to this number is still to be read."""
        return self._behind is None or self._behind.number > number

    def set_checkpoint(self) -> None:
        """Note the state at the end of the file that was rotated last."""
        self.checkpoint = Checkpoint(
            number=self._files.live_number - 1,
            opened={xid: item.number for xid, item in self.opened.items()},
            xid=self.xid,
            order=[item.number for item in self.memory],
        )

    def close(self) -> None:
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def _remember(self, item: QueueItem) -> None:
        self.memory.append(item)
        self._memory_bytes += len(item.data)

    def refill(self) -> None:
        """Read items behind those in memory, until memory is full or all are there. Called before the record of a removal is
        written, as reading may fail."""
        while self._behind is not None and (self._memory_bytes < self._max_memory or not self.memory):
            found = self._behind.next_item()
            if found is None:
                self.close()
                break
            number, data, add_ms, expiry_ms = found
            item = self.new_item(data, self._clock() if add_ms is None else add_ms, expiry_ms)
            self._remember(item)
            if self.checkpoint is not None and number <= self.checkpoint.number:
                self.checkpoint.order.append(item.number)
