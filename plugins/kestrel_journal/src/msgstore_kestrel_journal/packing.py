"""Files of one journal: rotation, and packing by checkpoints.

A checkpoint is the state at the end of a rotated file: which items were open, and which were in the queue, in their order. The
packed file restores exactly that state, so whatever the later files hold applies to it. An item that is gone since is an empty
one in the packed file: a later record removes it before anybody gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import attrs

from msgstore.contract import StoreError
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.disk import Disk
from msgstore_kestrel_journal.files import LAST_NUMBER, TEMPORARY, QueueFiles, queue_files
from msgstore_kestrel_journal.replay import BrokenEnd

_BLOCK = 2**20
"""Bytes that are written at once."""
_ROTATIONS = 2**31
"""Numbers that must be left for the files of one opening."""


class StoredItem(Protocol):
    """An item, as a packed file needs it."""

    data: bytes
    add_ms: int
    expiry_ms: int


@attrs.define
class Checkpoint:
    """State at the end of a rotated file. Items are named by their numbers."""

    number: int
    """Number of the file in :class:`JournalFiles`."""
    opened: dict[int, int]
    """By xid."""
    xid: int
    order: list[int]
    """Items of the queue, the head first. Those that were not in memory are added when they are read."""

    def records(self, find: Callable[[int], StoredItem | None]) -> Iterator[bytes]:
        """Yield the records that restore the state: open items, the counter, and the queue."""

        def encode(number: int) -> bytes:
            item = find(number)
            return r.encode_addx(b"", 0, 0) if item is None else r.encode_addx(item.data, item.add_ms, item.expiry_ms)

        for xid in sorted(self.opened, reverse=True):
            yield encode(self.opened[xid]) + r.encode_xid(r.REMOVE_TENTATIVE_XID, xid)
        if self.xid:
            yield r.encode_xid(r.SAVE_XID, self.xid)
        yield from map(encode, self.order)


class JournalFiles:
    """The files of one queue. The rotated ones have the numbers 0, 1, 2 ... in the order of replay, and the live one the
    next."""

    def __init__(self, directory: Path, queue: str, disk: Disk, clock_ms: Callable[[], int]) -> None:
        self._directory, self._queue, self._disk, self._clock = directory, queue, disk, clock_ms
        self._rotated: dict[int, tuple[str, int]] = {}
        """Number to name and bytes. A packed file has the number of the last that it replaces."""
        self._last_ms = 0
        self._fd: int | None = None
        self.live_number = 0
        self.live_size = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.live_size + sum(size for _, size in self._rotated.values())

    def settle(self) -> tuple[QueueFiles, list[r.Buffer]]:
        """Do what a start of Kestrel does: delete temporary files, let packed files replace others. Return the files to replay,
        with their content. Raises StoreError, and changes nothing, if no numbers are left for rotated files."""
        files = queue_files(self._disk.names(self._directory), self._queue)
        rotated = [now for name, now in files.order if name != self._queue]
        if rotated and int(rotated[-1].split(".")[1]) > LAST_NUMBER - _ROTATIONS:
            raise StoreError(
                f"{self._directory / rotated[-1]}: no number is left for a file after it. Rename it: the number is a time in "
                "milliseconds, in whose order the files are read."
            )
        for name in files.temporary:
            self._disk.unlink(self._directory / name)
        for name, now in files.order:
            if name != now:
                self._put_in_place(now, name, files.replaced)
        journals = [self._disk.read(self._directory / name) for name, _ in files.order]
        for number, ((name, _), journal) in enumerate(zip(files.order, journals, strict=True)):
            if name == self._queue:
                self.live_size = len(journal)
            else:
                self._rotated[number] = (name, len(journal))
                self._last_ms = int(name.rpartition(".")[2])
        self.live_number = len(self._rotated)
        return files, journals

    def number_of(self, name: str) -> int:
        """Return the number of a file by its name."""
        return next((number for number, (other, _) in self._rotated.items() if other == name), self.live_number)

    def cut_broken(self, broken: BrokenEnd, content: r.Buffer, *, cut_damage: bool) -> None:
        """Cut the live file at a torn end; with ``cut_damage`` any file where it is broken. Raises StoreError for damage."""
        rest = bytes(content[broken.offset :])
        is_torn = broken.file == self._queue and (broken.is_torn or not rest.strip(b"\0"))
        if not is_torn and not cut_damage:
            raise StoreError(
                f"{self._directory / broken.file} at offset {broken.offset}: {broken.reason}; {len(rest)} bytes from there "
                f"on cannot be read. Copy the directory, and see 'msgstore messages'. The option cut_damage cuts the file "
                f"there, as Kestrel does."
            )
        name, size = broken.file, broken.offset
        fd = self._disk.open_append(self._directory / name)
        try:
            self._disk.truncate(fd, size)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        if name == self._queue:
            self.live_size = size
        else:
            self._rotated[self.number_of(name)] = (name, size)

    def open_live(self) -> None:
        """Open the live file, and create it if it is missing."""
        self._disk.sync_directory(self._directory)  # the file that had the name must keep its new one if the power fails
        self._fd = self._disk.open_append(self._directory / self._queue)
        self._disk.sync_directory(self._directory)

    def append(self, record: bytes) -> None:
        assert self._fd is not None
        self._disk.append(self._fd, record)
        self.live_size += len(record)

    def take_back(self) -> None:
        """Cut what a failed ``append`` left."""
        assert self._fd is not None
        self._disk.truncate(self._fd, self.live_size)

    def sync(self) -> None:
        if self._fd is not None:
            self._disk.sync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def read(self, number: int, size: int, offset: int) -> bytes:
        """Return bytes of a file; fewer at its end."""
        fd = self._disk.open_read(self.path(number))
        try:
            return self._disk.pread(fd, size, offset)
        finally:
            self._disk.close(fd)

    def path(self, number: int) -> Path:
        name = self._queue if number == self.live_number else self._rotated[number][0]
        return self._directory / name

    def numbers_after(self, number: int) -> int | None:
        """Return the number of the next file; None after the live one."""
        later = [other for other in (*self._rotated, self.live_number) if other > number]
        return min(later, default=None)

    def rotate(self) -> None:
        """Give the live file a number, and begin another. Between the two steps there is none, which is an empty one."""
        assert self._fd is not None
        self._disk.sync(self._fd)
        self._last_ms = max(self._clock(), self._last_ms + 1)
        name = f"{self._queue}.{self._last_ms}"
        self._disk.rename(self._directory / self._queue, self._directory / name)
        self._disk.close(self._fd)
        self._fd = None
        self._rotated[self.live_number] = (name, self.live_size)
        self.live_number, self.live_size = self.live_number + 1, 0
        self.open_live()

    def pack(self, checkpoint: Checkpoint, find: Callable[[int], StoredItem | None]) -> None:
        """Replace the files up to a checkpoint by one. The rename does it: a start deletes the replaced files if we do not."""
        name, _ = self._rotated[checkpoint.number]
        temporary = self._directory / f"{self._queue}{TEMPORARY}{self._last_ms}"
        packed, size = f"{name}.pack", 0
        fd = self._disk.open_append(temporary)
        try:
            self._disk.truncate(fd, 0)
            held: list[bytes] = []
            for record in checkpoint.records(find):
                held.append(record)
                size += len(record)
                if sum(map(len, held)) >= _BLOCK:
                    self._disk.append(fd, b"".join(held))
                    held = []
            self._disk.append(fd, b"".join(held))
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self.sync()  # an item that was removed since is packed without data: what removes it must be there first
        self._disk.rename(temporary, self._directory / packed)
        numbers = [number for number in self._rotated if number <= checkpoint.number]
        self._put_in_place(packed, name, [self._rotated[number][0] for number in numbers])
        for number in numbers:
            del self._rotated[number]
        self._rotated[checkpoint.number] = (name, size)

    def _put_in_place(self, packed: str, name: str, replaced: Iterable[str]) -> None:
        """Delete what a packed file replaces, and give it its number. Each step is durable before the next one: a power loss
        must not leave the deletions alone, or the last name beside a file that it replaces."""
        self._disk.sync_directory(self._directory)
        for old in replaced:
            self._disk.unlink(self._directory / old)
        self._disk.sync_directory(self._directory)
        self._disk.rename(self._directory / packed, self._directory / name)
        self._disk.sync_directory(self._directory)
