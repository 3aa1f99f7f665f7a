"""Arrow record batches of one segment: the relations ``records``, ``damage`` and ``segments``. Needs pyarrow.

``records`` are the whole, undamaged records of a segment as a scan reports them; of several copies of an id in it the first.
Copies in other segments are records there: which one counts is settled by rank (:class:`msgstore.bulk.inputs.SegmentInput`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from msgstore.bulk.columns.bodies import spans, take_bodies
from msgstore.bulk.columns.codecs import OpenCodec
from msgstore.bulk.columns.schemas import DAMAGE, KINDS, SEGMENTS
from msgstore.bulk.inputs import SegmentInput
from msgstore.bulk.reading.judging import SegmentSummary, Stretch, UnreadableSegmentError, judge, reading
from msgstore.bulk.reports import SpanReport
from msgstore.contract import Buffer, Columns, RecordField
from msgstore.scan import OpenFormat, Values
from msgstore.scan.fields import values_of

BATCH_ROWS = 2**16
BATCH_BYTES = 64 * 2**20
"""Of the span of file that the bodies of a batch are taken from; a larger body is a batch of its own."""


@attrs.frozen
class Wanted:
    """What is asked for of the records: the fewer columns, the cheaper. Small and picklable."""

    columns: tuple[str, ...]
    """In the order of the batches."""
    ids: frozenset[bytes] | None = None
    """Only records of these ids."""
    types: frozenset[int] | None = None
    """Only records of these type bytes."""


def record_batches(
    found: SegmentInput, schema: pa.Schema, wanted: Wanted, codec: OpenCodec | None = None, stretch: Stretch | None = None
) -> Iterator[pa.RecordBatch]:
    """Records by offset, of ``stretch`` if it is given; ``schema`` is that of ``wanted.columns``.

    A segment that cannot be read has none, and one row of damage that says why. So has one whose record types fail to say what
    a record holds, where that is asked for: plugins are done before the first batch. Memory: the segment once, a batch, and the
    columns of record types.

    Raises PluginError if a plugin is missing in this process.
    """
    try:
        with reading(found, stretch) as (form, data, report):
            rows = _rows(report.scan.records, form, wanted)
            if stretch is not None:
                rows = rows.filter(pc.less(rows.column("offset"), stretch.end))
            yield from _Reader(found, form, data, schema, codec).batches(rows)
    except UnreadableSegmentError:
        return


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


def segments_batch(summaries: Iterable[SegmentSummary]) -> pa.RecordBatch:
    return _by_columns([attrs.astuple(summary) for summary in summaries], SEGMENTS)


def _by_columns(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(map(as_text, column), kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(records: Columns, form: OpenFormat, wanted: Wanted) -> pa.RecordBatch:
    """Ids, offsets, sizes and types of the wanted records; the buffers are those of the scan."""
    count = len(records)
    if not len(records.ids) == 16 * count == 16 * len(records.sizes) == 16 * len(records.types):
        raise ValueError("the scan gives columns of different lengths")
    rows = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(records.ids)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(records.offsets)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(records.sizes)]),
            pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(records.types)]),
        ],
        names=["id", "offset", "size", "type"],
    )
    if wanted.ids is not None:
        rows = _only(rows, "id", wanted.ids)
    if wanted.types is not None:
        rows = _only(rows, "type", wanted.types if form.typed else ())
    return rows


def _only(rows: pa.RecordBatch, name: str, values: Collection[object]) -> pa.RecordBatch:
    column = rows.column(name)
    fitting = [value for value in values if not isinstance(value, bytes) or len(value) == 16]
    return rows.filter(pc.is_in(column, pa.array(fitting, column.type)))


@attrs.frozen
class _Reader:
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
            columns = self._columns(rows.slice(first, count), bodies)
            columns |= {name: column.slice(first, count) for name, column in fields.items()}
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
            first += count

    def _columns(self, part: pa.RecordBatch, bodies: pa.BinaryArray | None) -> dict[str, pa.Array]:
        count = part.num_rows
        names = set(self.schema.names)
        texts = {"store": self.found.store, "file": Path(self.found.path).name, "format": self.found.format}
        columns = {name: pa.repeat(as_text(text), count) for name, text in texts.items() if name in names}
        columns |= {name: part.column(name) for name in ("offset", "size")}
        columns["id"] = part.column("id").cast(pa.binary())
        columns["type"] = part.column("type").cast(pa.int16()) if self.form.typed else pa.nulls(count, pa.int16())
        if bodies is not None:
            columns["body"] = bodies
            columns |= self._of_codec(bodies)
        return columns

    def _codec_names(self) -> set[str]:
        return {field.name for field in self.codec.fields} if self.codec else set()

    def _of_codec(self, bodies: pa.BinaryArray) -> dict[str, pa.Array]:
        if self.codec is None or not self._codec_names() & set(self.schema.names):
            return {}
        read = self.codec.read
        return _of_values(self.codec.fields, [None if body is None else read(body) for body in bodies.to_pylist()])

    def _fields(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Columns of what record types declare; null where a record is of another type, or cannot say."""
        columns = {
            name: pa.nulls(rows.num_rows, self.schema.field(name).type)
            for name in set(self.schema.names) - _OWN - self._codec_names()
        }
        for byte, bound in self.form.with_fields.items():
            asked = [field for field in bound.fields if field.name in columns]
            mask = pc.equal(rows.column("type"), byte)
            if not asked or not pc.any(mask).as_py():
                continue
            of_type = rows.filter(mask)
            places = zip(of_type.column("offset").to_pylist(), of_type.column("size").to_pylist(), strict=True)
            found = _of_values(bound.fields, [values_of(bound, self.data[at : at + size]) for at, size in places])
            for field in asked:
                columns[field.name] = pc.replace_with_mask(columns[field.name], mask, found[field.name])
        return columns


_OWN = {"store", "file", "format", "offset", "size", "type", "id", "body"}


def _fitting(begins: pa.Int64Array, ends: pa.Int64Array, first: int, count: int) -> int:
    """How many records from ``first`` on, at least one, have their bodies within BATCH_BYTES of file."""
    limit = begins[first].as_py() + BATCH_BYTES
    low, high = 1, count
    while low < high:
        middle = (low + high + 1) // 2
        if ends[first + middle - 1].as_py() <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _of_values(fields: Sequence[RecordField], rows: Sequence[Values | None]) -> dict[str, pa.Array]:
    return {
        field.name: _column(field, [None if row is None else row[position] for row in rows])
        for position, field in enumerate(fields)
    }


def _column(field: RecordField, values: list[object]) -> pa.Array:
    if field.kind == "time":
        values = [None if value is None else value // 1000 for value in values]  # type: ignore[operator]  # times are numbers
    try:
        return pa.array(values, KINDS[field.kind])
    except UnicodeEncodeError:  # half a surrogate pair, which is no text outside of Python
        return pa.array(map(as_text, values), KINDS[field.kind])


def as_text(value: object) -> object:
    """Names of files that are not UTF-8 are text in Python only."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
