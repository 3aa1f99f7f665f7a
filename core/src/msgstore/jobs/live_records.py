"""Live records: for each segment of a job a file with the ids and offsets of the records that the index points to.

A store may have several copies of a record, of which one is live. The others were removed, and may be damaged unnoticed. The
files are small enough for a worker, and lie where every worker of a runner reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import eq
from pathlib import Path

from msgstore.contract import Columns
from msgstore.engine.stats import StoredMessage
from msgstore.engine.store import Store
from msgstore.jobs.inputs import SegmentInput

_ROW = struct.Struct(">16sQ")


def write_live(directory: Path, store: Store, inputs: Iterable[SegmentInput]) -> Iterator[tuple[bytes, int]]:
    """Write a file for each of ``inputs``, which are those of ``store``. Yield (id, references) of every live message.

    Segments that the store does not read have no live records. Raises OSError.
    """
    files = {Path(item.path).name: _file_of(directory, item) for item in inputs}
    for empty in files.values():
        empty.touch()
    numbered = {segment.number: files.get(segment.file) for segment in store.segments()}
    for number, entries in groupby(store.entries(), lambda entry: entry.number):
        rows: list[StoredMessage] = list(entries)
        if file := numbered.get(number):  # else the records are missing
            file.write_bytes(b"".join(_ROW.pack(entry.msg_id, entry.offset) for entry in rows))
        yield from ((entry.msg_id, entry.references) for entry in rows)


def find_live(directory: Path, item: SegmentInput, records: Columns) -> bytes:
    """Return 1 for each record of a segment that is live, else 0. Raises OSError."""
    offsets = dict(_ROW.iter_unpack(_file_of(directory, item).read_bytes()))
    return bytes(map(eq, map(offsets.get, records.id_list()), records.offsets))


def _file_of(directory: Path, item: SegmentInput) -> Path:
    return directory / f"{item.rank}.live"
