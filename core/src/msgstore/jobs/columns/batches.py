"""Arrow record batches of one segment: the relations ``records``, ``damage`` and ``segments``. Needs pyarrow.

``records`` are the whole, undamaged records of a segment as a scan reports them; of several copies of an id in it the first.
Copies in other segments are records there: which one counts is settled by rank (:class:`msgstore.jobs.inputs.SegmentInput`).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Buffer, Columns, RecordField, SegmentScan, StoreError
from msgstore.jobs.columns.schemas import DAMAGE, KINDS, SEGMENTS
from msgstore.jobs.columns.sums import as_binary, fixed_width, int64
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import UNREADABLE, SegmentRange, UnreadableSegmentError, check_segment, opening
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import OpenCodec
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans
from msgstore.scan.segment import values_of, with_conflicts

T = TypeVar("T")
MAX_VALUE = 2**31 - 1
"""Bytes that a value of a binary column can have."""
BATCH_ROWS = 2**16
_PLACE = ("store", "file", "format")
_SCANNED = ("id", "offset", "size", "type")
Condition = tuple[str, str, Any]
"""(``id``, ``offset``, ``size`` or ``type``; ``equal``, ``is_in``, ``greater``, ``greater_equal``, ``less`` or ``less_equal``;
value, or values of ``is_in``). A null meets none."""
BATCH_BYTES = 64 * 2**20
"""Limit of the span of file that the bodies of a batch are in, and of the values that a codec makes of them, which may be a
thousand times as large. A larger body is a batch of its own."""


def record_batches(
    found: SegmentInput,
    schema: pa.Schema,
    codec: OpenCodec | None = None,
    *,
    only: Sequence[Condition] = (),
    stretch: SegmentRange | None = None,
    constants: Mapping[str, object] = MappingProxyType({}),
    fail_fast: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of ``schema`` of each record, by offset. The fewer columns, the cheaper.

    ``only``: conditions that records must meet. ``stretch``: the part of the file that is read. ``constants``: values of
    columns that are the same for the whole segment. A segment that cannot be read has no rows, and one row of damage that
    says why. A stretch that was changed has none, or no more, and the next batch of its stream reads it; one of a segment that
    was deleted has none. Memory: the segment once, a batch, and the columns of record types.

    Raises PluginError if a plugin is missing in this process. Raises StoreError for any other failure, which would lose rows
    that are in no damaged span; with ``fail_fast`` also for damage, and with ``fail_fast`` or a ``stretch`` for a segment that
    cannot be read.
    """
    begun = False
    try:
        with opening(found) as (form, data):
            if stretch is not None and not stretch.is_of(data):
                return
            scan = form.scan(data, start=stretch.begin if stretch else 0)
            if fail_fast:
                _refuse_damage(found, form, data, scan)
            if stretch is not None:
                only = [*only, ("offset", "less", stretch.end)]
            for batch in _batches(found, form, data, _rows(scan.records, form, only), schema, codec, constants):
                begun = True
                yield batch
    except UnreadableSegmentError as error:
        if stretch is not None:  # the next batch of a stream begins behind it
            is_excused = isinstance(error.__cause__, FileNotFoundError) or _is_changed(found, stretch)
        else:
            is_excused = not (fail_fast or begun) and check_segment(found).segment.state == UNREADABLE
        if not is_excused:
            raise StoreError(f"{found.path}: {error}") from error


def _refuse_damage(found: SegmentInput, form: OpenFormat, data: Buffer, scan: SegmentScan) -> None:
    """Raise UnreadableSegmentError for damage."""
    path = Path(found.path)
    report = SegmentReport(path, form, len(data), with_conflicts(path, form, data, scan))
    if spans := list(damaged_spans(report)):
        more = f", and {len(spans) - 1} more damaged spans" if len(spans) > 1 else ""
        what = f"{spans[0].size} bytes at offset {spans[0].offset} are damaged: {spans[0].reason}{more}"
        raise UnreadableSegmentError(f"{what}. 'msgstore salvage' copies every intact record")


def _is_changed(found: SegmentInput, stretch: SegmentRange) -> bool:
    with suppress(UnreadableSegmentError), opening(found) as (_, data):
        return not stretch.is_of(data)
    return False


def damage_batch(inputs: Iterable[SegmentInput]) -> pa.RecordBatch:
    """Return every damaged span of these segments."""
    rows = [(*_place(found), spot.offset, spot.size, spot.reason) for found in inputs for spot in check_segment(found).damage]
    return _by_columns(rows, DAMAGE)


def spans_batch(spots: Iterable[SpanReport]) -> pa.RecordBatch:
    """Return the damage that a search for inputs found. It has no format."""
    rows = [(*os.path.split(spot.path), None, spot.offset, spot.size, spot.reason) for spot in spots]
    return _by_columns(rows, DAMAGE)


def segments_batch(inputs: Iterable[SegmentInput]) -> pa.RecordBatch:
    """Return a row for each segment. Nothing is known of references: all records are taken to be live."""
    rows = []
    for found in inputs:
        its = check_segment(found).segment
        sizes = (its.size, its.header, its.records, its.record_bytes, 0, its.hole_bytes, its.duplicate_bytes, its.damaged)
        rows.append((*_place(found), *sizes, its.other, its.state))
    return _by_columns(rows, SEGMENTS)


def _place(found: SegmentInput) -> tuple[str, str, str]:
    return found.store, Path(found.path).name, found.format


def _by_columns(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(map(as_text, column), kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(records: Columns, form: OpenFormat, only: Sequence[Condition]) -> pa.RecordBatch:
    """Return the wanted records. Without a condition, the buffers are those of the scan."""
    types = pa.Array.from_buffers(pa.uint8(), len(records), [None, pa.py_buffer(records.types)])
    columns = [fixed_width(records.ids), int64(records.offsets), int64(records.sizes), types]
    rows = pa.RecordBatch.from_arrays(columns, names=_SCANNED)
    for name, comparison, value in only:
        column = _shown(rows, name, form)
        if name != "id":
            column = column.cast(pa.int64())  # any number can be compared with it
        if comparison == "is_in":
            rows = rows.filter(pc.is_in(column, pa.array(value, column.type), skip_nulls=True))
        else:
            rows = rows.filter(pc.call_function(comparison, [column, pa.scalar(value, column.type)]))
    return rows


def _shown(rows: pa.RecordBatch, name: str, form: OpenFormat) -> pa.Array:
    """Return a column of ``_rows`` with the type and the nulls of ``RECORD``."""
    column = rows.column(name)
    if name == "type":
        return column.cast(pa.int16()) if form.typed else pa.nulls(rows.num_rows, pa.int16())
    return column.cast(pa.binary()) if name == "id" else column


def _batches(
    found: SegmentInput,
    form: OpenFormat,
    data: Buffer,
    rows: pa.RecordBatch,
    schema: pa.Schema,
    codec: OpenCodec | None,
    constants: Mapping[str, object],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of ``rows``, in batches that fit into memory."""
    if not rows.num_rows:
        return
    names = set(schema.names)
    asked = [(number, field) for number, field in enumerate(codec.fields if codec else ()) if field.name in names]
    same = {**dict(zip(_PLACE, map(as_text, _place(found)), strict=True)), **constants}
    columns = {name: pa.repeat(pa.scalar(same[name], schema.field(name).type), rows.num_rows) for name in names & same.keys()}
    columns |= {name: _shown(rows, name, form) for name in names & set(_SCANNED) - {"id"}}
    ids = rows.column("id")
    others = names - same.keys() - {*_SCANNED, "body"} - {field.name for _, field in asked}
    columns |= {name: _field(form, data, rows, name, schema.field(name).type) for name in others}

    def batch(begin: int, length: int, more: dict[str, pa.Array]) -> pa.RecordBatch:
        part = {name: column.slice(begin, length) for name, column in columns.items()} | more
        if "id" in names:
            part["id"] = as_binary(ids.slice(begin, length))  # a cast takes as long as the scan of a small segment
        return pa.RecordBatch.from_arrays([part[name] for name in schema.names], schema=schema)

    if not asked and "body" not in names:
        yield from (batch(first, BATCH_ROWS, {}) for first in range(0, rows.num_rows, BATCH_ROWS))
        return
    begins, ends = _spans(form, data, rows)
    first = 0
    while first < rows.num_rows:
        limit = begins[first].as_py() + BATCH_BYTES
        count = max(1, pc.sum(pc.less_equal(ends.slice(first, min(BATCH_ROWS, rows.num_rows - first)), limit)).as_py())
        bodies = _take_bodies(data, begins.slice(first, count), ends.slice(first, count))
        at = 0
        for length, decoded in _decoded(codec, asked, rows.slice(first, count), bodies):
            body = {"body": bodies.slice(at, length)} if "body" in names else {}
            yield batch(first + at, length, decoded | body)
            at += length
        first += count


def _spans(form: OpenFormat, data: Buffer, rows: pa.RecordBatch) -> tuple[pa.Int64Array, pa.Int64Array]:
    """Return begins and ends of the bodies of ``rows``, of one at least. For FRAMED types ``body_span`` is called once.

    Raises ValueError for a body outside of its record.
    """
    offsets, sizes, types = (rows.column(name) for name in ("offset", "size", "type"))
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


def _take_bodies(data: Buffer, begins: pa.Int64Array, ends: pa.Int64Array) -> pa.BinaryArray:
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


def _decoded(
    codec: OpenCodec | None, asked: Sequence[tuple[int, RecordField]], part: pa.RecordBatch, bodies: pa.BinaryArray
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield (rows, the columns of the codec that are asked for): as many rows as have about BATCH_BYTES of values, or one."""
    if codec is None or not asked:
        yield part.num_rows, {}
        return
    rows: list[list[object]] = []
    held = 0

    def taken() -> tuple[int, dict[str, pa.Array]]:
        return len(rows), {field.name: _column(field, [row[at] for row in rows]) for at, (_, field) in enumerate(asked)}

    for at, (msg_id, body) in enumerate(zip(part.column("id").to_pylist(), bodies.to_pylist(), strict=True)):
        values = None if body is None else codec.read(msg_id, body)
        row = [None if values is None else values[number] for number, _ in asked]
        sizes = [len(value) if isinstance(value, (str, bytes)) else 0 for value in row]
        if max(sizes) > MAX_VALUE:
            raise UnreadableSegmentError(
                f"at offset {part.column('offset')[at]}: the body codec {codec.name!r} makes {max(sizes)} bytes of "
                f"{asked[sizes.index(max(sizes))][1].name!r}, and a value of a column has {MAX_VALUE} at most. Read without "
                "this column"
            )
        if rows and held + sum(sizes) > BATCH_BYTES:
            yield taken()
            rows, held = [], 0
        rows.append(row)
        held += sum(sizes)
    yield taken()


def _field(form: OpenFormat, data: Buffer, rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column of what record types declare; null where a record is of another type, or cannot say."""
    column = pa.nulls(rows.num_rows, kind)
    for byte, bound in form.with_fields.items():
        mask = pc.equal(rows.column("type"), byte)
        number = next((number for number, field in enumerate(bound.fields) if field.name == name), None)
        if number is None or not pc.any(mask).as_py():
            continue
        of_type = rows.filter(mask)
        places = zip(of_type.column("offset").to_pylist(), of_type.column("size").to_pylist(), strict=True)
        found = [values_of(form, bound, data[at : at + size]) for at, size in places]
        values = _column(bound.fields[number], [None if one is None else one[number] for one in found])
        column = pc.replace_with_mask(column, mask, values)
    return column


def _column(field: RecordField, values: Sequence[object]) -> pa.Array:
    if field.kind == "time":
        values = [None if value is None else value // 1000 for value in values]  # type: ignore[operator]  # times are numbers
    try:
        return pa.array(values, KINDS[field.kind])
    except UnicodeEncodeError:  # half a surrogate pair, which is no text outside of Python
        return pa.array(map(as_text, values), KINDS[field.kind])


def as_text(value: T) -> T | str:
    """Names of files that are not UTF-8 are text in Python only."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
