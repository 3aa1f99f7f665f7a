"""Replay of a Kestrel journal: from its records to the items of the queue and its open transactions.

An item is kept as one integer, its place, so that a queue of millions of messages fits in memory; its record is read again when
it is delivered.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.files import QueueFiles, queue_files
from msgstore_kestrel_journal.records import ADDX, TIMES, Buffer, Item, read_i32, read_item

FILE_BITS = 40
"""A place is ``number of the file << FILE_BITS | offset of the record``: files of up to 1 TiB."""
_OFFSET = (1 << FILE_BITS) - 1
_SHORTEST_ADDX = 21


@attrs.frozen
class BrokenEnd:
    """Offset from which a file cannot be read on. Nothing behind it is replayed, as records have no mark to search for."""

    file: str
    offset: int
    reason: str
    is_torn: bool
    """True if the file ends within the record, as after a crash."""


@attrs.define
class QueueState:
    """State of a replay. ``queue`` and ``opened`` hold places."""

    queue: deque[int] = attrs.field(factory=deque)
    opened: dict[int, int] = attrs.field(factory=dict)
    """By xid: items that a client has reserved, and neither confirmed nor given back."""
    returned: int = 0
    """Number of items at the head of the queue that were reserved and given back."""
    xid: int = 0
    """Counter of reservations. A REMOVE_TENTATIVE_XID sets it."""

    def next_xid(self) -> int:
        """Advance the counter, which wraps at 32 bits and skips 0 and open numbers."""
        while True:
            self.xid = (self.xid + 1 + 2**31) % 2**32 - 2**31
            if self.xid and self.xid not in self.opened:
                return self.xid

    def in_delivery_order(self) -> list[int]:
        """Return the places in the order in which a started Kestrel delivers: open items by their xid, then the queue."""
        return [self.opened[xid] for xid in sorted(self.opened)] + list(self.queue)


def replay_file(
    journals: Sequence[Buffer], number: int, state: QueueState, *, state_dump: bool = False
) -> tuple[int, str, bool] | None:
    """Apply the records of one of the files to ``state``. Return None, or offset, reason and ``is_torn`` of a record that
    cannot be read.

    ``state_dump``: opcode 8 is STATE_DUMP, at which reading ends, as in builds of March 2011, instead of CONTINUE.
    """
    journal, read = journals[number], read_i32
    queue, opened, base, end, at = state.queue, state.opened, number << FILE_BITS, len(journal), 0
    append, popleft, pop = queue.append, queue.popleft, opened.pop
    while at < end:
        opcode = journal[at]
        if opcode == ADDX and end - at >= _SHORTEST_ADDX:  # first, as most records are items
            (value,) = read(journal, at + 1)
            after = at + 5 + value
            if value < TIMES or after > end:
                return at, *_wrong_size(value, end - at - 5)
            append(base | at)
            at = after
            continue
        if opcode == r.REMOVE:
            if queue:
                popleft()
                if state.returned:
                    state.returned -= 1
            at += 1
            continue
        if opcode == r.REMOVE_TENTATIVE:
            if queue:
                state.returned -= state.returned > 0
                place = popleft()
                opened[_xid_for(place, journals, state)] = place
            at += 1
            continue
        if opcode > r.REMOVE_TENTATIVE_XID:
            return at, f"there is no opcode {opcode}", False
        begin = at + 5
        if begin > end:
            return at, "the record ends early", True
        (value,) = read_i32(journal, at + 1)
        if opcode == r.ADDX or opcode == r.ADD:
            after = begin + value
            if value < (r.TIMES if opcode == r.ADDX else r.ADD_EXPIRY) or after > end:
                return at, *_wrong_size(value, end - begin)
            append(base | at)
            at = after
        elif opcode == r.ADD_XID or opcode == r.CONTINUE:
            if begin + 4 > end:
                return at, "the record ends early", True
            if state_dump and opcode == r.CONTINUE:
                return None
            (size,) = read_i32(journal, begin)
            after = begin + 4 + size
            if size < r.TIMES or after > end:
                return at, *_wrong_size(size, end - begin - 4)
            if opcode == r.CONTINUE:
                pop(value, None)
            append(base | at)
            at = after
        else:
            if opcode == r.REMOVE_TENTATIVE_XID:
                state.xid = value
                if queue:
                    state.returned -= state.returned > 0
                    opened[value] = popleft()
            elif opcode == r.CONFIRM_REMOVE:
                pop(value, None)
            elif opcode == r.SAVE_XID:
                state.xid = value
            elif value in opened:  # UNREMOVE
                queue.appendleft(pop(value))
                state.returned += 1
            at = begin
    return None


def _wrong_size(size: int, left: int) -> tuple[str, bool]:
    if size > left:
        return f"the record has a size of {size} bytes, and {left} are left", True
    return f"a size of {size} is impossible", False


def _xid_for(place: int, journals: Sequence[Buffer], state: QueueState) -> int:
    """Return the xid of a reservation without one: that of the item's ADD_XID if it is free, or the next number.

    Released versions take xid 0 for each, and so lose the item of the reservation before.
    """
    journal, at = journals[place >> FILE_BITS], place & _OFFSET
    if journal[at] == r.ADD_XID and (xid := read_item(journal, at).xid) and xid not in state.opened:
        return xid
    return state.next_xid()


class Journals(Sequence[Buffer]):
    """Contents of the files of a queue, each of which is read when it is needed. Keeps those that are not mapped, and the last
    one of the others: each of these is an open file."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Buffer]) -> None:
        self._names, self._read = names, read
        self._kept: dict[int, Buffer] = {}
        self._last: tuple[int, Buffer] = (-1, b"")

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: Any) -> Any:
        """Return the content of a file. Raises OSError, IndexError."""
        if number in self._kept:
            return self._kept[number]
        if self._last[0] != number:
            found = self._read(self._names[number])
            if isinstance(found, bytes):
                self._kept[number] = found
                return found
            self._last = (number, found)
        return self._last[1]


@attrs.frozen
class Replay:
    """Result of the replay of one queue. ``journals`` has the files in the order of replay."""

    files: QueueFiles
    journals: Sequence[Buffer]
    state: QueueState
    broken: tuple[BrokenEnd, ...]
    now_ms: int
    state_dump: bool = False
    others: tuple[Path, ...] = attrs.field(default=(), repr=False)
    """Every file beside them. Only :meth:`to_json` reads them."""

    def split(self, place: int) -> tuple[int, int]:
        """Return number of the file and offset of the record."""
        return place >> FILE_BITS, place & _OFFSET

    def item(self, place: int) -> Item:
        return read_item(self.journals[place >> FILE_BITS], place & _OFFSET)

    def data(self, place: int) -> bytes:
        item = self.item(place)
        return bytes(self.journals[place >> FILE_BITS][item.begin : item.end])

    def is_expired(self, item: Item) -> bool:
        """Return True if Kestrel would not deliver an item."""
        return item.expiry_ms != 0 and item.expiry_ms < self.now_ms

    def to_json(self) -> dict[str, Any]:
        """Return the state before and after the start of a Kestrel, with data as hexadecimal digits."""
        state = self.state
        opened = {str(xid): self.data(place).hex() for xid, place in state.opened.items()}
        truncated = bool(self.broken)
        if self.state_dump:
            queue = [self.data(place).hex() for place in state.queue]
            return {"queue": queue, "open_transactions": opened, "current_xid": state.xid, "truncated": truncated}
        after = state.in_delivery_order()
        expired = [self.is_expired(self.item(place)) for place in after]
        return {
            "replay_order": [name for name, _ in self.files.order] + self._missing_live_file(),
            "queue": [self._item_json(place) for place in state.queue],
            "open_transactions": opened,
            "open_items": {str(xid): self._item_json(place) for xid, place in state.opened.items()},
            "current_xid": state.xid,
            **self._sums(state.queue),
            "truncated": truncated,
            "truncated_at": [{"file": one.file, "offset": one.offset} for one in self.broken],
            "after_backout": {
                "queue": [self.data(place).hex() for place in after],
                **self._sums(after),
                "files": {name: content.hex() for name, content in self._files_after_start().items()},
            },
            "deliverable_at_now": [self.data(place).hex() for place, late in zip(after, expired, strict=True) if not late],
            "expired_at_now": [self.data(place).hex() for place, late in zip(after, expired, strict=True) if late],
        }

    def _missing_live_file(self) -> list[str]:
        return [] if any(name == self.files.queue for name, _ in self.files.order) else [self.files.queue]

    def _item_json(self, place: int) -> dict[str, Any]:
        item = self.item(place)
        add_ms = self.now_ms if item.add_ms is None else item.add_ms
        return {"data": self.data(place).hex(), "add_time_ms": add_ms, "expiry_ms": item.expiry_ms}

    def _sums(self, places: Iterable[int]) -> dict[str, int]:
        items = [self.item(place) for place in places]
        return {"length": len(items), "bytes": sum(item.end - item.begin for item in items)}

    def _files_after_start(self) -> dict[str, bytes]:
        """Return the directory as a start leaves it: files renamed, deleted, cut, and open items given back."""
        queue = self.files.queue
        files = {path.name: path.read_bytes() for path in self.others}
        files |= {name: bytes(journal) for (name, _), journal in zip(self.files.order, self.journals, strict=True)}
        for broken in self.broken:
            files[broken.file] = files[broken.file][: broken.offset]
        given_back = (r.encode_xid(r.UNREMOVE, xid) for xid in sorted(self.state.opened, reverse=True))
        files[queue] = files.get(queue, b"") + b"".join(given_back)
        return files


def capped_expiry(expiry_ms: int, add_ms: int | None, now_ms: int, max_age_ms: int) -> int:
    """Return the time after which Kestrel does not deliver an item with the current ``maxAge``. An ADD counts as added now.

    The time fits in 64 bits. It is never 0, which is no expiry: -1 is as late.
    """
    last = min((now_ms if add_ms is None else add_ms) + max_age_ms, 2**63 - 1) or -1
    return min(expiry_ms, last) if expiry_ms else last


def replay_journals(
    files: QueueFiles,
    journals: Sequence[Buffer],
    now_ms: int,
    *,
    state_dump: bool = False,
    others: Iterable[Path] = (),
) -> Replay:
    """Replay the files of one queue, in the order of ``files``."""
    state = QueueState()
    broken = []
    for number, (name, _) in enumerate(files.order):
        if found := replay_file(journals, number, state, state_dump=state_dump):
            broken.append(BrokenEnd(name, *found))
    return Replay(files, journals, state, tuple(broken), now_ms, state_dump, tuple(others))


def replay(directory: str | Path, queue: str, now_ms: int | None = None, state_dump: bool = False) -> Replay:
    """Replay ``queue`` of ``directory``, which is only read. Its files are read into memory.

    ``now_ms``: time of the replay, for what has expired; None is now. Raises OSError.
    """
    root = Path(directory)
    with os.scandir(root) as entries:
        names = {entry.name: root / entry.name for entry in entries if entry.is_file()}
    files = queue_files(names, queue)
    others = names.keys() - {now for _, now in files.order} - {*files.replaced} - {*files.temporary}
    return replay_journals(
        files,
        [names[now].read_bytes() for _, now in files.order],
        time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        state_dump=state_dump,
        others=[names[name] for name in sorted(others)],
    )
