"""The bodies of many records as one Arrow column, without a call for each where the format allows that. Needs pyarrow."""

from __future__ import annotations

from array import array
from functools import cache
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Buffer
from msgstore.jobs.columns.ids import int64
from msgstore.scan import OpenFormat

MAX_VALUE = 2**31 - 1
"""Bytes that a value of a binary column can have."""


Spans = tuple[pa.Int64Array, pa.Int64Array]
"""(begins, ends)."""


def spans(form: OpenFormat, data: Buffer, offsets: pa.Int64Array, sizes: pa.Int64Array, types: pa.UInt8Array) -> Spans:
    """Return the spans of the bodies of scanned records, of one at least.

    For FRAMED types ``body_span`` is called once. Raises ValueError for a span outside of ``data``.
    """
    begins, ends = _spans(form, data, offsets, sizes, types)
    last = len(begins) - 1
    if begins[0].as_py() < 0 or ends[last].as_py() > len(data) or not pc.all(pc.less_equal(begins, ends)).as_py():
        raise ValueError("a body ends before it begins, or outside of the segment")
    if not pc.all(pc.and_(pc.less_equal(offsets, begins), pc.less_equal(ends, pc.add(offsets, sizes)))).as_py():
        raise ValueError("a body is said to be outside of its record")
    if last and not pc.all(pc.less_equal(ends.slice(0, last), begins.slice(1))).as_py():
        raise ValueError("bodies overlap")
    return begins, ends


def _spans(form: OpenFormat, data: Buffer, offsets: pa.Int64Array, sizes: pa.Int64Array, types: pa.UInt8Array) -> Spans:
    kinds = set(pc.unique(types).to_pylist())
    if kinds <= form.framed:
        before, behind = array("q", bytes(8 * 256)), array("q", bytes(8 * 256))
        for kind in kinds:
            row = pc.index(types, kind).as_py()
            offset, size = offsets[row].as_py(), sizes[row].as_py()
            begin, end = form.format.body_span(data, offset, size)
            before[kind], behind[kind] = begin - offset, offset + size - end
        ends = pc.add(offsets, sizes)
        return pc.add(offsets, int64(before).take(types)), pc.subtract(ends, int64(behind).take(types))
    begins, ends = zip(*map(form.format.body_span, repeat(data), offsets.to_pylist(), sizes.to_pylist()), strict=True)
    return pa.array(begins, pa.int64()), pa.array(ends, pa.int64())


def take_bodies(data: Buffer, begins: pa.Int64Array, ends: pa.Int64Array) -> pa.BinaryArray:
    """Copied out of ``data``, which is held no longer. At least one, ascending; together with what is between them at most
    MAX_VALUE bytes, or a single one: null if it is longer."""
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
