"""Files of a store, and what is in those beside the commit log: consume queues, index files, the checkpoint. All integers are
big-endian.

A consume queue has entries of 20 bytes: physical offset 8, bytes of the record 4, tags code 8; entry n stands at n * 20. A
queue that begins later is filled with (0, 0x7fffffff, 0). Batch queues have entries of 46 bytes.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from msgstore_rocketmq_log.properties import java_hash
from msgstore_rocketmq_log.records import ENTRY, Buffer

FILLER = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""Entry before the first one of a queue that begins at a number above 0."""
BATCH_ENTRY = struct.Struct(">qiqqqhii")
"""Physical offset, bytes, tags code, store time, base offset, number of inner messages, compacted offset, reserved."""
NAME_DIGITS = 20
_INDEX_HEAD = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
INDEX_SLOTS, INDEX_ENTRIES = 5_000_000, 20_000_000
CHECKPOINT_BYTES = 4096
_CHECKPOINT = struct.Struct(">5q")
_MARGIN_MS = 3000
_TRIES = 20
"""Comparisons for each byte of an index file, at most, to find its number of slots."""


def list_files(store: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the size of each regular file below a directory, and the reason for each other name that is no directory, or that
    cannot be examined, but for names that no broker makes. Names are relative. Raises OSError if the directory itself cannot be
    listed."""
    sizes, skipped = dict[str, int](), dict[str, str]()

    def skip(error: OSError) -> None:
        if Path(error.filename) == store:
            raise error
        is_foreign = Path(error.filename).name.startswith((".", "lost+found"))  # of an editor, of a file system
        if not is_foreign and (not isinstance(error, FileNotFoundError) or Path(error.filename).is_symlink()):
            skipped[Path(error.filename).relative_to(store).as_posix()] = (
                f"cannot be examined: {error.strerror}"  # not one that was deleted meanwhile
            )

    for place, directories, names in os.walk(store, onerror=skip):
        for path in (Path(place, name) for name in (*directories, *names)):
            name = path.relative_to(store).as_posix()
            try:
                about = path.stat()
            except OSError as error:
                skip(error)
                continue
            if stat.S_ISREG(about.st_mode):
                sizes[name] = about.st_size
            elif not stat.S_ISDIR(about.st_mode):
                skipped[name] = "is no regular file, and is not read"
            elif path.is_symlink():
                skipped[name] = "is a link to a directory, and is not read. Copy the store with cp -aL"
    return dict(sorted(sizes.items())), dict(sorted(skipped.items()))


def file_name(offset: int) -> str:
    """Return the name of the file that begins at an offset of the log, or at one of a queue, in bytes."""
    return f"{offset:0{NAME_DIGITS}}"


def file_offset(name: str) -> int | None:
    """Return the offset that a name says; None for another name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def queue_entries(data: Buffer, *, batch: bool = False) -> Iterator[tuple[int, int, int]]:
    """Yield number, physical offset and bytes of the record of each entry of a file, up to the first that is not written."""
    layout = BATCH_ENTRY if batch else ENTRY
    whole = len(data) // layout.size * layout.size
    for number, (offset, size, *_) in enumerate(layout.iter_unpack(memoryview(data)[:whole])):
        if offset < 0 or size <= 0:
            return
        if (offset, size) != (0, 0x7FFFFFFF):
            yield number, offset, size


# -- index files --------------------------------------------------------------------------------------------------------------


def index_hash(key: str) -> int:
    """Return the hash of a key, ``topic#key``."""
    found = abs(java_hash(key))
    return 0 if found == 2**31 else found


@attrs.frozen
class IndexFile:
    """An index file: hash slots, and chains of entries from the newest to the oldest."""

    data: Buffer = attrs.field(repr=False)
    slots: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    count: int
    """Number of the next entry. The first is 1."""

    def lookup(self, key: str) -> list[int]:
        """Return the physical offsets of the records that may have ``topic#key``, the newest first: only hashes are
        compared."""
        wanted = index_hash(key)
        (number,) = _SLOT.unpack_from(self.data, _INDEX_HEAD.size + wanted % self.slots * _SLOT.size)
        found = []
        for _ in range(self.count):  # a chain in a damaged file may be a circle
            if not 0 < number < self.count:
                break
            its_hash, offset, _, number = self._entry(number)
            if its_hash == wanted:
                found.append(offset)
        return found

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        at = _INDEX_HEAD.size + self.slots * _SLOT.size + number * _INDEX_ENTRY.size
        its_hash, offset, seconds, before = _INDEX_ENTRY.unpack_from(self.data, at)
        return its_hash, offset, seconds, before


def read_index(data: Buffer, slots: int | None = None) -> IndexFile:
    """Return an index file. ``slots``: number of its hash slots; None: the broker's default, or else the number that fits.

    Raises ValueError for what is no index file.
    """
    if len(data) < _INDEX_HEAD.size:
        raise ValueError(f"an index file has at least {_INDEX_HEAD.size} bytes, not {len(data)}")
    *head, used, count = _INDEX_HEAD.unpack_from(data)
    room = len(data) - _INDEX_HEAD.size
    if count < 0 or count * _INDEX_ENTRY.size > room:
        raise ValueError(f"{count} entries do not fit into an index file of {len(data)} bytes")
    if slots is None:
        default = INDEX_SLOTS * _SLOT.size + INDEX_ENTRIES * _INDEX_ENTRY.size
        slots = INDEX_SLOTS if room == default else _fitting_slots(data, room, used, count)
    if slots < 1 or slots * _SLOT.size + count * _INDEX_ENTRY.size > room:
        raise ValueError(f"{slots} hash slots and {count} entries do not fit into an index file of {len(data)} bytes")
    begin_ms, end_ms, begin_offset, end_offset = head
    return IndexFile(data, slots, begin_ms, end_ms, begin_offset, end_offset, count)


def _fitting_slots(data: Buffer, room: int, used: int, count: int) -> int:
    """Return the number of slots with which every slot and every entry is what it must be. The file does not say it."""
    step = _INDEX_ENTRY.size // _SLOT.size
    first = room // _SLOT.size % step or step
    last = (room - count * _INDEX_ENTRY.size) // _SLOT.size
    heads = memoryview(data)[_INDEX_HEAD.size : _INDEX_HEAD.size + last * _SLOT.size]
    filled: list[tuple[int, int]] = []
    left = _TRIES * len(data)
    for at, (head,) in enumerate(_SLOT.iter_unpack(heads)):
        if not 0 <= head < max(count, 1) or len(filled) > used or left < 0:
            break
        filled += [(at, head)] if head else []
        slots = at + 1
        if len(filled) == used and slots >= first and (slots - first) % step == 0:
            base = _INDEX_HEAD.size + slots * _SLOT.size
            left -= used + 1
            if all(_SLOT.unpack_from(data, base + its * _INDEX_ENTRY.size)[0] % slots == place for place, its in filled):
                return slots
    raise ValueError(f"no number of hash slots fits to this index file of {len(data)} bytes; give it")


def index_parts(
    keys: Sequence[tuple[str, int, int]], slots: int = INDEX_SLOTS, entries: int = INDEX_ENTRIES
) -> tuple[list[tuple[int, bytes]], int]:
    """Return (offset, bytes) of what stands in an index file, and its size: what is not written is zeros.

    ``keys``: (``topic#key``, physical offset, store time) in the order of the log. Raises ValueError for too many.
    """
    if len(keys) >= entries:
        raise ValueError(f"an index file has room for {entries - 1} keys, not {len(keys)}")
    heads: dict[int, int] = {}
    body = [bytes(_INDEX_ENTRY.size)]
    begin_ms, begin_offset = (keys[0][2], keys[0][1]) if keys else (0, 0)
    for number, (key, offset, store_ms) in enumerate(keys, 1):
        its_hash = index_hash(key)
        seconds = min(max((store_ms - begin_ms) // 1000, 0), 2**31 - 1)
        body.append(_INDEX_ENTRY.pack(its_hash, offset, seconds, heads.get(its_hash % slots, 0)))
        heads[its_hash % slots] = number
    end_ms, end_offset = (keys[-1][2], keys[-1][1]) if keys else (0, 0)
    parts = [(0, _INDEX_HEAD.pack(begin_ms, end_ms, begin_offset, end_offset, len(heads), len(keys) + 1))]
    parts += ((_INDEX_HEAD.size + slot * _SLOT.size, _SLOT.pack(number)) for slot, number in sorted(heads.items()))
    table = _INDEX_HEAD.size + slots * _SLOT.size
    return [*parts, (table, b"".join(body))], table + entries * _INDEX_ENTRY.size


# -- the checkpoint -----------------------------------------------------------------------------------------------------------


def read_checkpoint(data: Buffer) -> dict[str, int]:
    """Return the five values of a checkpoint, and the two times from which a recovery after a crash begins. Raises
    ValueError."""
    if len(data) < _CHECKPOINT.size:
        raise ValueError(f"a checkpoint has {_CHECKPOINT.size} bytes at least, not {len(data)}")
    physical, logical, index, master, confirmed = _CHECKPOINT.unpack_from(data)
    earliest = max(min(physical, logical) - _MARGIN_MS, 0)
    return {
        "physic_msg_timestamp": physical,
        "logics_msg_timestamp": logical,
        "index_msg_timestamp": index,
        "master_flushed_offset": master,
        "confirm_phy_offset": confirmed,
        "min_timestamp": earliest,
        "min_timestamp_index": min(earliest, index),
    }


def encode_checkpoint(store_ms: int, index_ms: int) -> bytes:
    """Return a checkpoint after a clean stop: everything up to this store time was flushed."""
    return _CHECKPOINT.pack(store_ms, store_ms, index_ms, 0, 0).ljust(CHECKPOINT_BYTES, b"\0")
