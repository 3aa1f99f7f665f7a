"""Arrow columns of ids and numbers: ids of 16 bytes each for sums, or of any length for Spark and Parquet."""

from __future__ import annotations

from array import array

import pyarrow as pa

_ID = 16
_ROWS = 2**16
_OFFSETS = pa.py_buffer(array("i", range(0, _ID * (_ROWS + 1), _ID)))
"""Of so many ids, and of fewer."""


def fixed_width(data: bytes | bytearray, width: int = _ID) -> pa.Array:
    """Return a column of values of ``width`` bytes each, which shares the memory of ``data``."""
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def int64(values: array[int]) -> pa.Int64Array:
    """Return a column that shares the memory of an array of 64-bit numbers, signed or not."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def of_any_length(ids: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of ``binary`` that shares the bytes of one of ``binary(16)``, in chunks of at most 65,536. No id is null.

    A cast would do the same, but where ids come out of a sum it makes its memory grow a little at a time: two million ids
    took it six seconds.
    """
    chunks = []
    for chunk in ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]:
        for begin in range(0, len(chunk), _ROWS):
            part = chunk.slice(begin, _ROWS)
            data = part.buffers()[1].slice(_ID * part.offset, _ID * len(part))
            chunks.append(pa.Array.from_buffers(pa.binary(), len(part), [None, _OFFSETS, data]))
    return pa.chunked_array(chunks, pa.binary())
