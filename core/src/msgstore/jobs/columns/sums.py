"""Columns of ids and numbers, made without a call for each value, and rows added up by id. Needs pyarrow.

Ids are ``binary(16)`` for sums, and ``binary`` for Spark and Parquet. What memory does not hold goes to disk, in buckets by a
hash of the id, and is added up by bucket.
"""

from __future__ import annotations

import contextlib
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import StoreIOError

IN_MEMORY = 24 * 2**20
"""Rows that are kept in memory by default: with three columns of numbers some 2 GB."""
_BITS = 5
"""2 to this power buckets, added up one by one: a table of all ids at once fits no cache, and takes twice as long."""
_SPLIT = 2**18
"""Rows that are sorted into buckets together: they fit into the processor's cache."""
_MIX = pa.scalar(0x9E3779B97F4A7C15, pa.uint64())
_ID = 16
_ROWS = 2**16
_OFFSETS = pa.py_buffer(array("i", range(0, _ID * (_ROWS + 1), _ID)))
"""Offsets of up to ``_ROWS`` ids, as Arrow wants them beside the bytes of a column."""


def fixed_width(data: bytes | bytearray, width: int = _ID) -> pa.Array:
    """Return a column of values of ``width`` bytes each, which shares the memory of ``data``."""
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def int64(values: array[int]) -> pa.Int64Array:
    """Return a column that shares the memory of an array of 64-bit numbers, signed or not."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def of_any_length(ids: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of ``binary`` that shares the bytes of one of ``binary(16)``, in chunks of at most 65,536. No id is null.

    A cast would do the same, but where ids come out of a sum it makes its memory grow a little at a time: two million ids
    took it six seconds.
    """
    chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
    parts = [as_binary(chunk.slice(begin, _ROWS)) for chunk in chunks for begin in range(0, len(chunk), _ROWS)]
    return pa.chunked_array(parts, pa.binary())


def as_binary(ids: pa.Array) -> pa.Array:
    """Return at most 65,536 ids of ``binary(16)`` as ``binary``. The column shares their bytes."""
    data = ids.buffers()[1].slice(_ID * ids.offset, _ID * len(ids))
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, _OFFSETS, data])


class IdAggregator:
    """Context manager, for one thread. ``add`` batches of ``schema``, ids of 16 bytes first; at the end take ``totals``, once.

    Of more than ``in_memory`` rows some wait in ``directory``, by default where temporary files belong. Raises StoreIOError if
    there is no room there.
    """

    def __init__(self, schema: pa.Schema, in_memory: int = IN_MEMORY, directory: str | None = None) -> None:
        self._schema = schema
        self._in_memory = in_memory
        self._parent = directory
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._buckets: list[list[pa.RecordBatch]] = [[] for _ in range(2**_BITS)]
        self._in_buckets = 0
        self._directory = Path()
        self._files: list[pa.RecordBatchStreamWriter] = []
        """One for each bucket, once there is one."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> IdAggregator:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _SPLIT:
            self._divide()

    def totals(self) -> Iterator[pa.Table]:
        """Yield tables with each id once over all, with the sums of its numbers under the names of ``schema``."""
        self._divide()
        for number, batches in enumerate(self._buckets):
            with self._on_disk():
                if self._files:
                    self._files[number].close()
                    file = self._stack.enter_context(pa.memory_map(str(self._directory / str(number))))
                    batches = [*pa.ipc.open_stream(file), *batches]
                added_up = self._added_up(pa.Table.from_batches(batches, self._schema))
            batches.clear()
            yield added_up

    def _added_up(self, rows: pa.Table) -> pa.Table:
        ids, *numbers = self._schema.names
        # Threads would each make a table of all ids, and then merge them: four times as slow.
        grouped = rows.group_by(ids, use_threads=False).aggregate([(name, "sum") for name in numbers])
        return grouped.select([ids, *(f"{name}_sum" for name in numbers)]).rename_columns([ids, *numbers])

    def _divide(self) -> None:
        """Move the waiting rows into buckets, and the buckets to disk if memory does not hold them."""
        rows = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._waiting, self._rows = [], 0
        for batch in rows.to_batches(_SPLIT):
            bucket = _buckets_of(batch.column(0))
            ordered = batch.take(pc.sort_indices(bucket))
            begin = 0
            for found in sorted(pc.value_counts(bucket).to_pylist(), key=lambda found: found["values"]):
                self._buckets[found["values"]].append(ordered.slice(begin, found["counts"]))
                begin += found["counts"]
        self._in_buckets += rows.num_rows
        if self._in_buckets >= self._in_memory:
            with self._on_disk():
                self._spill()

    def _spill(self) -> None:
        if not self._files:
            made = tempfile.TemporaryDirectory(prefix="msgstore-", dir=self._parent)
            self._directory = Path(self._stack.enter_context(made))
            for number in range(2**_BITS):
                file = self._stack.enter_context(pa.OSFile(str(self._directory / str(number)), "wb"))
                self._files.append(self._stack.enter_context(pa.ipc.new_stream(file, self._schema)))
        for batches, writer in zip(self._buckets, self._files, strict=True):
            for batch in batches:
                writer.write_batch(batch)
            batches.clear()
        self._in_buckets = 0

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._directory if self._files else self._parent or tempfile.gettempdir()
            raise StoreIOError(
                f"{where}: {error.strerror or error}. Rows that memory does not hold wait there: make room, or name another "
                f"directory (TMPDIR; for Spark spark.local.dir)"
            ) from error


def _buckets_of(ids: pa.Array) -> pa.Array:
    """Return the bucket of each id: from all its bits, because ids that are counted up have most of them in common."""
    count = len(ids)
    halves = pa.Array.from_buffers(pa.uint64(), 2 * count, [None, ids.buffers()[1]], offset=2 * ids.offset)
    even = pc.multiply(pa.array(range(count), pa.int32()), 2)
    mixed = pc.multiply(pc.bit_wise_xor(pc.multiply(halves.take(even), _MIX), halves.take(pc.add(even, 1))), _MIX)
    return pc.cast(pc.shift_right(mixed, pa.scalar(64 - _BITS, pa.uint64())), pa.uint8())
