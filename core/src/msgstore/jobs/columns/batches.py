"""Arrow record batches of one segment: the relations ``records``, ``damage`` and ``segments``. Needs pyarrow.

``records`` are the whole, undamaged records of a segment as a scan reports them; of several copies of an id in it the first.
Copies in other segments are records there: which one counts is settled by rank (:class:`msgstore.jobs.inputs.SegmentInput`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Buffer, Columns, RecordField, StoreError
from msgstore.jobs.columns.arrays import MAX_VALUE, fixed_width, int64, spans, take_bodies
from msgstore.jobs.columns.schemas import DAMAGE, KINDS, SEGMENTS
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import (
    UNREADABLE,
    SegmentRange,
    UnreadableSegmentError,
    judge,
    opening,
    reading,
)
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import OpenCodec
from msgstore.scan import OpenFormat, Values
from msgstore.scan.fields import values_of

BATCH_ROWS = 2**16
BATCH_BYTES = 64 * 2**20
"""Of the span of file that the bodies of a batch are taken from, and of what a codec makes of them, which may be a thousand
times as much; a larger body is a batch of its own."""


@attrs.frozen
class Wanted:
    """Selection of columns: the fewer columns, the cheaper. Small and picklable."""

    columns: tuple[str, ...]
    """In the order of the batches."""
    ids: frozenset[bytes] | None = None
    """Only records of these ids."""
    types: frozenset[int] | None = None
    """Only records of these type bytes."""


def record_batches(
    found: SegmentInput, schema: pa.Schema, wanted: Wanted, codec: OpenCodec | None = None, stretch: SegmentRange | None = None
) -> Iterator[pa.RecordBatch]:
    """Records by offset, of ``stretch`` if it is given; ``schema`` is that of ``wanted.columns``.

    A segment that cannot be read has none, and one row of damage that says why. So has one whose record types fail to say what
    a record holds, where that is asked for: they are done before the first batch. A stretch that was changed has none, or no
    more, and the next batch of its stream reads it. Memory: the segment once, a batch, and the columns of record types.

    Raises PluginError if a plugin is missing in this process, and StoreError for any other failure: rows that no damage tells
    of would be missed by nobody.
    """
    begun = False
    try:
        with reading(found, stretch) as (form, data, report):
            rows = _rows(report.scan.records, form, wanted)
            if stretch is not None:
                rows = rows.filter(pc.less(rows.column("offset"), stretch.end))
            for batch in _BatchReader(found, form, data, schema, codec).batches(rows):
                begun = True
                yield batch
    except UnreadableSegmentError as error:
        if _is_changed(found, stretch) or (not begun and judge(found).stock.state == UNREADABLE):
            return
        raise StoreError(f"{found.path}: {error}") from error


def _is_changed(found: SegmentInput, stretch: SegmentRange | None) -> bool:
    if stretch is not None:
        with suppress(UnreadableSegmentError), opening(found) as (_, data):
            return not stretch.is_of(data)
    return False


def damage_batch(inputs: Iterable[SegmentInput]) -> pa.RecordBatch:
    """Every span of these segments that is not what was written."""
    rows = [
        (found.store, Path(found.path).name, found.format, spot.offset, spot.size, spot.reason)
        for found in inputs
        for spot in judge(found).damage
    ]
    return _by_columns(rows, DAMAGE)


def spans_batch(spots: Iterable[SpanReport]) -> pa.RecordBatch:
    """The damage that a search for inputs found: of no format."""
    rows = [(*os.path.split(spot.path), None, spot.offset, spot.size, spot.reason) for spot in spots]
    return _by_columns(rows, DAMAGE)


def segments_batch(inputs: Iterable[SegmentInput]) -> pa.RecordBatch:
    """Return a row for each segment. Nothing is known of references: all records are taken to be live."""
    rows = []
    for found in inputs:
        its = judge(found).stock
        live, dead, where = its.record_bytes, 0, (found.store, Path(found.path).name, its.format)
        sizes = (its.size, its.header, its.records, live, dead, its.hole_bytes, its.duplicate_bytes, its.damaged, its.other)
        rows.append((*where, *sizes, its.state))
    return _by_columns(rows, SEGMENTS)


def _by_columns(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(map(as_text, column), kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(records: Columns, form: OpenFormat, wanted: Wanted) -> pa.RecordBatch:
    """Ids, offsets, sizes and types of the wanted records; the buffers are those of the scan."""
    types = pa.Array.from_buffers(pa.uint8(), len(records), [None, pa.py_buffer(records.types)])
    columns = [fixed_width(records.ids), int64(records.offsets), int64(records.sizes), types]
    rows = pa.RecordBatch.from_arrays(columns, names=["id", "offset", "size", "type"])
    # Who asks knows other columns, binary and smallint: what no id and no type byte can be is no value of these.
    if wanted.ids is not None:
        ids = [msg_id for msg_id in wanted.ids if len(msg_id) == 16]
        rows = rows.filter(pc.is_in(rows.column("id"), pa.array(ids, pa.binary(16))))
    if wanted.types is not None:
        known = [byte for byte in wanted.types if 0 <= byte <= 255] if form.typed else []
        rows = rows.filter(pc.is_in(rows.column("type"), pa.array(known, pa.uint8())))
    return rows


@attrs.frozen
class _BatchReader:
    """The columns of one segment that is open."""

    found: SegmentInput
    form: OpenFormat
    data: Buffer
    schema: pa.Schema
    codec: OpenCodec | None

    def batches(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        fields = self._fields(rows)
        placed = None
        if {"body", *self._codec_names()} & set(self.schema.names):
            placed = spans(self.form, self.data, rows.column("offset"), rows.column("size"), rows.column("type"))
        first = 0
        while first < rows.num_rows:
            count = min(BATCH_ROWS, rows.num_rows - first)
            bodies = None
            if placed is not None:
                count = _fitting(*placed, first, count)
                bodies = take_bodies(self.data, *(edge.slice(first, count) for edge in placed))
            begin = first
            for length, decoded in self._decoded(rows.slice(first, count), bodies):
                columns = self._columns(rows.slice(first, length)) | decoded
                columns |= {name: column.slice(first, length) for name, column in fields.items()}
                if bodies is not None:
                    columns["body"] = bodies.slice(first - begin, length)
                yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
                first += length

    def _columns(self, part: pa.RecordBatch) -> dict[str, pa.Array]:
        count = part.num_rows
        names = set(self.schema.names)
        texts = {"store": self.found.store, "file": Path(self.found.path).name, "format": self.found.format}
        columns = {name: pa.repeat(as_text(text), count) for name, text in texts.items() if name in names}
        columns |= {name: part.column(name) for name in ("offset", "size")}
        columns["id"] = part.column("id").cast(pa.binary())
        columns["type"] = part.column("type").cast(pa.int16()) if self.form.typed else pa.nulls(count, pa.int16())
        return columns

    def _codec_names(self) -> set[str]:
        return {field.name for field in self.codec.fields} if self.codec else set()

    def _decoded(self, part: pa.RecordBatch, bodies: pa.BinaryArray | None) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """(rows, those columns of the codec that are asked for): as many rows as have about BATCH_BYTES of values, or one."""
        if self.codec is None or bodies is None or not self._codec_names() & set(self.schema.names):
            yield part.num_rows, {}
            return
        read, fields = self.codec.read, self.codec.fields
        offsets, ids = part.column("offset"), part.column("id").to_pylist()
        asked = [number for number, field in enumerate(fields) if field.name in self.schema.names]
        sized = [number for number in asked if fields[number].kind in ("text", "bytes")]
        rows: list[Values | None] = []
        held = 0
        for at, (msg_id, body) in enumerate(zip(ids, bodies.to_pylist(), strict=True)):
            row: tuple[Any, ...] | None = None if body is None else read(msg_id, body)
            if row is not None:
                if len(asked) < len(fields):
                    row = tuple([value if number in asked else None for number, value in enumerate(row)])
                size = sum([len(row[number]) for number in sized if row[number]])
                if size > MAX_VALUE // _MOST_OF_A_CHARACTER:
                    _check_values(f"at offset {offsets[at]}: the body codec {self.codec.name!r}", fields, row)
                if rows and held + size > BATCH_BYTES:
                    yield len(rows), {fields[number].name: _column(fields[number], number, rows) for number in asked}
                    rows, held = [], 0
                held += size
            rows.append(row)
        yield len(rows), {fields[number].name: _column(fields[number], number, rows) for number in asked}

    def _fields(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Columns of what record types declare; null where a record is of another type, or cannot say."""
        columns = {
            name: pa.nulls(rows.num_rows, self.schema.field(name).type)
            for name in set(self.schema.names) - _OWN - self._codec_names()
        }
        for byte, bound in self.form.with_fields.items():
            asked = [(number, field) for number, field in enumerate(bound.fields) if field.name in columns]
            mask = pc.equal(rows.column("type"), byte)
            if not asked or not pc.any(mask).as_py():
                continue
            of_type = rows.filter(mask)
            places = zip(of_type.column("offset").to_pylist(), of_type.column("size").to_pylist(), strict=True)
            values = [values_of(bound, self.data[at : at + size]) for at, size in places]
            for number, field in asked:
                columns[field.name] = pc.replace_with_mask(columns[field.name], mask, _column(field, number, values))
        return columns


_OWN = {"store", "file", "format", "offset", "size", "type", "id", "body"}


def _fitting(begins: pa.Int64Array, ends: pa.Int64Array, first: int, count: int) -> int:
    """How many records from ``first`` on, at least one, have their bodies within BATCH_BYTES of file."""
    limit = begins[first].as_py() + BATCH_BYTES
    return int(max(1, pc.sum(pc.less_equal(ends.slice(first, count), limit)).as_py()))


def _column(field: RecordField, number: int, rows: Sequence[Values | None]) -> pa.Array:
    """Return the column of the values with this number in their rows."""
    values = [None if row is None else row[number] for row in rows]
    if field.kind == "time":
        values = [None if value is None else value // 1000 for value in values]  # type: ignore[operator]  # times are numbers
    try:
        column = pa.array(values, KINDS[field.kind])
    except UnicodeEncodeError:  # half a surrogate pair, which is no text outside of Python
        column = pa.array(map(as_text, values), KINDS[field.kind])
    if isinstance(column, pa.ChunkedArray):
        raise UnreadableSegmentError(f"its records have {MAX_VALUE} bytes of {field.name!r}, or more. Read without this column")
    return column


_MOST_OF_A_CHARACTER = 6
"""Bytes that it takes as text: of half a surrogate pair, the others take 4."""


def _check_values(who: str, fields: Sequence[RecordField], row: Values) -> None:
    """A null in place of what is too large would look like a body that the codec did not write."""
    for field, value in zip(fields, row, strict=True):
        held = value.encode(errors="backslashreplace") if isinstance(value, str) else value
        if isinstance(held, bytes) and len(held) > MAX_VALUE:
            raise UnreadableSegmentError(
                f"{who} makes {len(held)} bytes of {field.name!r}, and a value of a column has {MAX_VALUE} at most. Read "
                "without this column"
            )


def as_text(value: object) -> object:
    """Names of files that are not UTF-8 are text in Python only."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
