"""References of the messages of one part: a file beside its segments, written by the worker and read by the driver.

BatchWriter of count 4, count times id 16, count times references 8; big-endian. It never outlives its job.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgstore.contract import StoreError
from msgstore.contract.formats import split_ids
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.files import Files

_NAME = "references"
_COUNT = struct.Struct(">I")


class Counts:
    """Reference counts of a part that is being written. Methods raise OSError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._fd: int | None = files.create(directory / _NAME)
        self._size = 0

    def add(self, ids: Sequence[bytes], references: Sequence[int], name: str) -> None:
        """``ids`` are checked by who writes the records. StoreError, which begins with ``name``, for what is no count."""
        assert self._fd is not None
        if len(ids) != len(references):
            raise ValueError(f"{len(ids)} ids with {len(references)} counts")
        if ids and not (set(map(type, references)) == {int} and min(references) >= 1 and max(references) <= MAX_REFERENCES):
            msg_id, count = next(
                pair
                for pair in zip(ids, references, strict=True)
                if type(pair[1]) is not int or not 1 <= pair[1] <= MAX_REFERENCES
            )
            raise StoreError(
                f"{name}: {bytes(msg_id).hex()} has {count!r} references; a message has from 1 to {MAX_REFERENCES}. Leave out "
                f"what nobody refers to"
            )
        data = _COUNT.pack(len(ids)) + b"".join(ids) + struct.pack(f">{len(references)}Q", *references)
        self._files.pwrite(self._fd, data, self._size)
        self._size += len(data)

    def finish(self) -> None:
        """On disk when it returns: the driver may read it on another machine."""
        assert self._fd is not None
        self._files.sync(self._fd)
        self.close()

    def close(self) -> None:
        """Nothing to do if it is closed."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)


def read_references(files: Files, directory: Path) -> Iterator[tuple[bytes, int]]:
    """(id, references) of each message of a part. Raises OSError."""
    with files.view(directory / _NAME) as data:
        at = 0
        while at < len(data):
            (count,) = _COUNT.unpack_from(data, at)
            ids = data[at + _COUNT.size : at + _COUNT.size + 16 * count]
            at += _COUNT.size + 16 * count
            yield from zip(split_ids(ids), struct.unpack_from(f">{count}Q", data, at), strict=True)
            at += 8 * count
