"""Reader of the items that an open journal does not hold in memory."""

from __future__ import annotations

from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.packing import JournalFiles

_BLOCK = 2**20
"""Bytes that are read at once."""
_LONGEST_HEAD = 25


class ReadBehind:
    """Reader of the items that are not in memory: from a record on, through the files, up to the end of the live one."""

    def __init__(self, files: JournalFiles, number: int, offset: int) -> None:
        self._files = files
        self.number, self._offset = number, offset
        self._block, self._block_at = b"", 0

    def next_item(self) -> tuple[int, bytes, int | None, int] | None:
        """Return number of the file, data, time of the add and expiry of the next item. None at the end of the live file."""
        while True:
            head = self._bytes(_LONGEST_HEAD)
            if not head:
                following = self._files.numbers_after(self.number)
                if following is None:
                    return None
                self.number, self._offset, self._block = following, 0, b""
                continue
            size = r.size_of(head)
            if head[0] in r.ITEMS:
                record = self._bytes(size)
                item = r.read_item(record, 0)
                self._offset += size
                return self.number, record[item.begin : item.end], item.add_ms, item.expiry_ms
            self._offset += size

    def close(self) -> None:
        self._block = b""

    def _bytes(self, size: int) -> bytes:
        """Return up to ``size`` bytes at the offset."""
        at = self._offset - self._block_at
        if not (self._block and at >= 0 and at + size <= len(self._block)):
            self._block = self._files.read(self.number, max(size, _BLOCK), self._offset)
            self._block_at, at = self._offset, 0
        return self._block[at : at + size]
