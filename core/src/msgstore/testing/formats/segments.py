"""Segments that a format under test writes, and what has to hold for every scan of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple, get_args

from msgstore.contract import Buffer, Columns, FormatContext, SegmentFormat, SegmentScan
from msgstore.contract.formats import EndState, HeaderState
from msgstore.testing.data import Batch
from msgstore.testing.subjects import Subject

Row = tuple[bytes, int, int]
"""(id, offset, size)."""


class Placed(NamedTuple):
    """A record where a writer has put it."""

    msg_id: bytes
    offset: int
    size: int
    body: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


def made(subject: Subject) -> Any:
    """The format under test, a SegmentFormat. It writes records of its own type."""
    return subject.make(FormatContext(subject.made_options))


def encoded(form: SegmentFormat, messages: Iterable[tuple[bytes, bytes]], at: int) -> tuple[bytes, list[Placed]]:
    """A batch, as it stands at the offset ``at`` of a segment."""
    messages = list(messages)
    data, sizes = form.encode([msg_id for msg_id, _ in messages], [body for _, body in messages])
    assert len(sizes) == len(messages), f"{len(sizes)} sizes for {len(messages)} records"
    assert sum(sizes) == len(data), f"the sizes are {sum(sizes)} bytes together, the records {len(data)}"
    begins = accumulate(sizes[:-1], initial=at)
    return data, [Placed(i, begin, size, body) for (i, body), begin, size in zip(messages, begins, sizes, strict=False)]


def written(form: SegmentFormat, *batches: Batch) -> tuple[bytes, list[Placed]]:
    """A whole segment, as a store writes it: the header, then one batch behind the other."""
    data, everything = form.header, []
    for batch in batches:
        more, placed = encoded(form, batch, len(data))
        data += more
        everything += placed
    return data, everything


def rows(columns: Columns) -> list[Row]:
    return [row[:3] for row in columns.rows()]


def expected(placed: Sequence[Placed]) -> list[Row]:
    return [record[:3] for record in placed]


def body_at(form: SegmentFormat, data: Buffer, offset: int, size: int) -> bytes:
    begin, end = form.body_span(data, offset, size)
    assert offset <= begin <= end <= offset + size, f"the body is at {begin}-{end}, the record at {offset}-{offset + size}"
    return data[begin:end]


def check_body(found: bytes, body: bytes, what: str) -> None:
    if found != body:
        gives, wrote = (f"{one[:40]!r}{'...' * (len(one) > 40)} ({len(one)} bytes)" for one in (found, body))
        raise AssertionError(f"{what} gives {gives}; written was {wrote}")


def check_records(form: SegmentFormat, data: Buffer, columns: Columns, placed: Sequence[Placed]) -> None:
    """``columns`` has these records and no others, and both ways to a body lead to what was written."""
    for number, (found, record) in enumerate(zip_longest(rows(columns), placed)):
        wanted = record and record[:3]
        assert found == wanted, f"record {number} of {len(placed)} should be {wanted} (id, offset, size), and is {found}"
    for record in placed:
        check_body(body_at(form, data, record.offset, record.size), record.body, "body_span")
        check_body(form.decode(record.msg_id, data[record.offset : record.end]), record.body, "decode")


def check_scan(form: SegmentFormat, data: Buffer, scan: SegmentScan, start: int = 0) -> None:
    """Whatever the bytes are: each byte from ``start`` to the end is told once, what is told can be read, ids are told once."""
    end, total = scan.end, len(data)
    assert end.state in get_args(EndState), f"the end is {end}"
    assert end.offset <= max(total, start), f"the end is at {end.offset}, the file has {total} bytes"
    assert end.state != "clean" or end.offset == max(total, start), f"the end is clean at {end.offset} of {total} bytes"
    assert scan.header in (None, *get_args(HeaderState)), f"the header is {scan.header!r}"
    for columns in (scan.records, scan.duplicates):
        lengths = {len(columns), len(columns.ids) / 16, len(columns.sizes), len(columns.types)}
        assert len(lengths) == 1, f"columns differ in length: {lengths}"
        assert list(columns.offsets) == sorted(columns.offsets), "columns are not in the order of the offsets"
    check_tiling(spans(scan), max(start, len(form.header)), end.offset)
    known = scan.records.id_list()
    assert len(set(known)) == len(known), "an id stands twice in records: later copies belong into duplicates"
    assert set(scan.duplicates.id_list()) <= set(known), "duplicates has an id that records does not have"
    for msg_id, offset, size in (*rows(scan.records), *rows(scan.duplicates)):
        body = body_at(form, data, offset, size)
        check_body(form.decode(msg_id, data[offset : offset + size]), body, "decode, not body_span,")


def spans(scan: SegmentScan) -> list[tuple[int, int, str]]:
    """(offset, size, what) of everything that a scan tells, by offset."""
    return sorted(
        [
            *((offset, size, "record") for _, offset, size in rows(scan.records)),
            *((offset, size, "duplicate") for _, offset, size in rows(scan.duplicates)),
            *((offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)),
            *((spot.offset, spot.size, "damage") for spot in scan.damage),
        ]
    )


def check_tiling(found: Sequence[tuple[int, int, str]], begin: int, end: int) -> None:
    at = begin
    for offset, size, what in found:
        assert size > 0, f"a {what} at {offset} has {size} bytes"
        assert offset == at, f"a {what} begins at {offset}, and what is told before it ends at {at}"
        at += size
    if end >= begin:  # a file that is shorter than its header ends there
        assert at == end, f"what is told ends at {at}, the scan at {end}"
    else:
        assert not found, f"told of a file without a whole header: {found}"
