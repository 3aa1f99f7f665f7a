"""Arrow columns of ids, numbers and bodies, made without a call for each value where possible. Needs pyarrow.

Ids are ``binary(16)`` for sums, and ``binary`` for Spark and Parquet.
"""

from __future__ import annotations

from array import array
from functools import cache
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Buffer
from msgstore.scan import OpenFormat

MAX_VALUE = 2**31 - 1
"""Bytes that a value of a binary column can have."""
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
    chunks = []
    for chunk in ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]:
        for begin in range(0, len(chunk), _ROWS):
            part = chunk.slice(begin, _ROWS)
            data = part.buffers()[1].slice(_ID * part.offset, _ID * len(part))
            chunks.append(pa.Array.from_buffers(pa.binary(), len(part), [None, _OFFSETS, data]))
    return pa.chunked_array(chunks, pa.binary())


Spans = tuple[pa.Int64Array, pa.Int64Array]
"""(begins, ends)."""


def spans(form: OpenFormat, data: Buffer, offsets: pa.Int64Array, sizes: pa.Int64Array, types: pa.UInt8Array) -> Spans:
    """Return the spans of the bodies of scanned records, of one at least. For FRAMED types ``body_span`` is called once.

    Raises ValueError for a body outside of its record.
    """
    kinds = set(pc.unique(types).to_pylist())
    if kinds <= form.framed:
        before, behind = array("q", bytes(8 * 256)), array("q", bytes(8 * 256))
        for kind in kinds:
            row = pc.index(types, kind).as_py()
            offset, size = offsets[row].as_py(), sizes[row].as_py()
            begin, end = form.format.body_span(data, offset, size)
            before[kind], behind[kind] = begin - offset, offset + size - end
        begins = pc.add(offsets, int64(before).take(types))
        ends = pc.subtract(pc.add(offsets, sizes), int64(behind).take(types))
    else:
        found = map(form.format.body_span, repeat(data), offsets.to_pylist(), sizes.to_pylist())
        begins, ends = (pa.array(edge, pa.int64()) for edge in zip(*found, strict=True))
    inside = pc.and_(pc.less_equal(offsets, begins), pc.less_equal(ends, pc.add(offsets, sizes)))
    if not pc.all(pc.and_(inside, pc.less_equal(begins, ends))).as_py():
        raise ValueError("a body is said to be outside of its record")
    return begins, ends


def take_bodies(data: Buffer, begins: pa.Int64Array, ends: pa.Int64Array) -> pa.BinaryArray:
    """Return bodies that are copied out of ``data``. At least one, ascending; together with what is between them they have at
    most MAX_VALUE bytes, or there is a single one: null if it is longer."""
    base, end = begins[0].as_py(), ends[-1].as_py()
    if end - base > MAX_VALUE:
        return pa.nulls(1, pa.binary())
    count = len(begins)
    # The file is one column of bodies and what stands between them: every other value is a body.
    edges = array("i", bytes(8 * count))
    edges[0::2] = _int32(pc.subtract(begins, base))
    edges[1::2] = _int32(pc.subtract(ends, base))
    window = pa.py_buffer(data).slice(base, end - base)
    view = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), window])
    return view.take(_even_numbers(1 << (count - 1).bit_length())[:count])


@cache
def _even_numbers(count: int) -> pa.Int32Array:
    return pa.array(range(0, 2 * count, 2), pa.int32())


def _int32(column: pa.Int64Array) -> array[int]:
    values = array("i")
    values.frombytes(memoryview(column.cast(pa.int32()).buffers()[1])[: 4 * len(column)])
    return values
