"""Segments that a format under test writes, and what has to hold for every scan of one, damaged or not."""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product, zip_longest
from typing import Any, NamedTuple, get_args

import attrs

from msgstore.contract import (
    BoundRecord,
    Buffer,
    Capability,
    Columns,
    FormatContext,
    PluginError,
    RecordContext,
    RecordError,
    SegmentFormat,
    SegmentScan,
)
from msgstore.contract.formats import EndState, HeaderState
from msgstore.option_values import structure
from msgstore.testing.probes import SUMMER, WINTER, ZONES, Batch, clock_at, in_zone, numbered
from msgstore.testing.subjects import Subject, with_other_options

_KINDS: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes, "time": int}
_IN_1980 = 10 * 366 * 86400 * 10**9
"""Nanoseconds since the epoch."""
UNASSIGNED = 200
"""Type byte of a record type that has no assigned one."""
_ODD = (
    b"", b"0", b"-1", b"-", b"1.5", b"1e999", b"NaN", b"9" * 19, b"9" * 5000, b"true", b"null", b"2026-02-30", b"{",
    b"[" * 5000, "\u00b2".encode(), b"\xff", b"\xed\xa0\x80", rb"\ud800",
)  # fmt: skip
"""Texts where a client may write a value."""
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
    """The format under test, or that of the record type under test: a SegmentFormat."""
    return format_of(subject) if subject.kind == "record" else subject.make(FormatContext(subject.made_options))


def byte_of(subject: Subject, byte: int | None = None) -> int:
    return byte or subject.descriptor.assigned_byte or UNASSIGNED


def record_of(subject: Subject, byte: int | None = None) -> Any:
    """The record type under test, a RecordType."""
    return subject.make(RecordContext(subject.made_options, byte_of(subject, byte)))


def format_of(subject: Subject, byte: int | None = None) -> Any:
    """The format that a record type's descriptor names. It writes records of the type."""
    form = subject.catalogue.format(subject.descriptor.format)
    name = f"{subject.name}-elsewhere" if byte else subject.name
    binding = BoundRecord(name, byte_of(subject, byte), record_of(subject, byte))
    return subject.catalogue.make(form, FormatContext(form.options(), records=(binding,), record=name))


def written(form: SegmentFormat, *batches: Batch, after: bytes | None = None) -> tuple[bytes, list[Placed]]:
    """A whole segment, as a store writes it: the header, or what stands there, then one batch behind the other."""
    data, everything = form.header if after is None else after, []
    for messages in batches:
        more, sizes = form.encode([msg_id for msg_id, _ in messages], [body for _, body in messages])
        assert isinstance(more, bytes), f"encode gives a {type(more).__name__}, records are bytes"
        assert len(sizes) == len(messages), f"{len(sizes)} sizes for {len(messages)} records"
        assert sum(sizes) == len(more), f"the sizes are {sum(sizes)} bytes together, the records {len(more)}"
        begins = accumulate(sizes[:-1], initial=len(data))
        everything += [Placed(i, at, size, body) for (i, body), at, size in zip(messages, begins, sizes, strict=False)]
        data += more
    return data, everything


def rows(columns: Columns) -> list[Row]:
    return [row[:3] for row in columns.rows()]


def expected(placed: Iterable[Placed]) -> list[Row]:
    return [record[:3] for record in placed]


def body_at(form: SegmentFormat, data: Buffer, offset: int, size: int) -> bytes:
    begin, end = form.body_span(data, offset, size)
    assert offset <= begin <= end <= offset + size, f"the body is at {begin}-{end}, the record at {offset}-{offset + size}"
    return data[begin:end]


def shown(body: bytes) -> str:
    return f"{body[:40]!r}{'...' * (len(body) > 40)} ({len(body)} bytes)"


def check_body(found: bytes, body: bytes, what: str) -> None:
    assert found == body, f"{what} gives {shown(found)}; written was {shown(body)}"


def outcome(form: Any, msg_id: bytes, stored: bytes) -> object:
    """Return what ``decode`` of a format or a codec gives, or the reason for which it refuses."""
    try:
        return form.decode(msg_id, stored)
    except RecordError as error:
        return error.reason


def check_records(form: SegmentFormat, data: Buffer, columns: Columns, placed: Sequence[Placed]) -> None:
    """``columns`` has these records and no others, and both ways to a body lead to what was written."""
    for number, (found, record) in enumerate(zip_longest(rows(columns), placed)):
        wanted = record and record[:3]
        assert found == wanted, f"record {number} of {len(placed)} should be {wanted} (id, offset, size), and is {found}"
    for record in placed:
        check_body(body_at(form, data, record.offset, record.size), record.body, "body_span")
        check_body(form.decode(record.msg_id, data[record.offset : record.end]), record.body, "decode")


def check_framed(subject: Subject, form: SegmentFormat, *segments: tuple[Buffer, Sequence[Placed]]) -> None:
    spans = ((record, form.body_span(data, record.offset, record.size)) for data, placed in segments for record in placed)
    frames = {(begin - record.offset, record.end - end) for record, (begin, end) in spans}
    framed = len(frames) < 2 or not subject.has(Capability.FRAMED)
    assert framed, f"FRAMED is claimed, bytes in front of a body and behind it are {', '.join(map(str, sorted(frames)))}"


def check_scan(form: SegmentFormat, data: Buffer, scan: SegmentScan, start: int = 0) -> None:
    """Check a scan of any bytes: each byte from ``start`` to the end is reported once, records can be read, ids come once."""
    end, total = scan.end, len(data)
    assert end.state in get_args(EndState), f"the end is {end}"
    assert end.offset <= max(total, start), f"the end is at {end.offset}, the file has {total} bytes"
    assert end.state != "clean" or end.offset == max(total, start), f"the end is clean at {end.offset} of {total} bytes"
    assert scan.header in (None, *get_args(HeaderState)), f"the header is {scan.header!r}"
    for reason in (*(spot.reason for spot in scan.damage), *([end.reason] if end.state == "corrupt" else ())):
        assert re.fullmatch(r"[\w-]+", reason or ""), f"the reason of damage is {reason!r}, not one word"
    reported = [(spot.offset, spot.size, "damage") for spot in scan.damage]
    reported += [(offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)]
    for columns, what in ((scan.records, "record"), (scan.duplicates, "duplicate")):
        lengths = {len(columns), len(columns.ids) / 16, len(columns.sizes), len(columns.types)}
        assert len(lengths) == 1, f"columns differ in length: {lengths}"
        assert list(columns.offsets) == sorted(columns.offsets), "columns are not in the order of the offsets"
        reported += [(offset, size, what) for _, offset, size in rows(columns)]
    at = max(start, len(form.header))
    end_of_reported = max(end.offset, at)  # a file that is shorter than its header ends there
    for offset, size, what in sorted(reported):
        assert size > 0, f"a {what} at {offset} has {size} bytes"
        assert offset == at, f"a {what} begins at {offset}, and what is reported before it ends at {at}"
        at += size
    assert at == end_of_reported, f"what is reported ends at {at}, the scan at {end_of_reported}"
    known = scan.records.id_list()
    assert len(set(known)) == len(known), "an id stands twice in records: later copies belong into duplicates"
    assert set(scan.duplicates.id_list()) <= set(known), "duplicates has an id that records does not have"
    for msg_id, offset, size in (*rows(scan.records), *rows(scan.duplicates)):
        body, decoded = body_at(form, data, offset, size), outcome(form, msg_id, data[offset : offset + size])
        what = f"a scan, or the check of a record type, misses at {offset} what decode refuses as {decoded}"
        assert isinstance(decoded, bytes), what
        assert decoded == body, f"decode gives {shown(decoded)}, and body_span {shown(body)}"


def check_anything(form: SegmentFormat, data: bytes, start: int) -> None:
    """Arbitrary bytes are scanned from ``start``, their beginning and behind the header, with and without a codec."""
    for begin in {0, min(start, len(data)), min(len(form.header), len(data))}:
        check_scan(form, data, form.scan(data, start=begin), begin)
    form.scan(data, check_body=lambda _, body: len(body) % 3 == 0)
    check_chain(form, data, start)


def check_chain(form: SegmentFormat, data: bytes, start: int) -> int | None:
    """Return what ``find_chain`` finds from ``start`` on. Fails if a scan finds nothing there."""
    found = form.find_chain(data, start)
    assert found is None or start <= found < len(data), f"a chain at {found}, asked for from {start} on"
    if found is not None:
        scan = form.scan(data, start=found)
        assert len(scan.records) or scan.damage, f"no record at {found}, where find_chain has found some: {scan.end}"
    return found


@contextlib.contextmanager
def mapped(data: bytes) -> Iterator[Any]:
    """Give the same bytes in an ``mmap``, which cannot be closed while a view of it is held. No bytes cannot be mapped."""
    if not data:
        yield data
        return
    with mmap.mmap(-1, len(data)) as copy:
        copy.write(data)
        yield copy


def check_spoilt(form: SegmentFormat, data: bytes, placed: Sequence[Placed]) -> SegmentScan:
    """Scans, with a codec or without, of bytes or of an ``mmap``, and reads detect the same damage in records whose type, size
    and id are intact. Return the scan."""
    scan, begin = form.scan(data), len(form.header)
    check_scan(form, data, scan)
    assert form.scan(data, check_body=lambda *_: True) == scan, "with a codec that finds no damage, a scan finds another"
    with mapped(data) as copy:
        assert form.scan(copy) == scan, "a scan of an mmap differs from that of the same bytes"
        assert form.find_chain(copy, begin) == check_chain(form, data, begin), "in an mmap, find_chain finds something else"
    check_chain(form, data, scan.end.offset)
    nothing = {*(spot.offset for spot in scan.damage), *scan.hole_offsets, scan.end.offset}
    for record in placed:
        found = outcome(form, record.msg_id, data[record.offset : record.end])
        is_right = isinstance(found, str) if record.offset in nothing else isinstance(found, str) or type(found) is bytes
        assert is_right, f"a scan finds damage, a hole, or its end at {record.offset}, and decode gives {found!r}"
    return scan


def salvaged(form: SegmentFormat, data: bytes) -> set[Row]:
    """Return the records that a salvage finds when it goes from chain to chain."""
    start: int | None = len(form.header)
    found: set[Row] = set()
    while start is not None:
        scan = form.scan(data, start=start)
        found.update(rows(scan.records), rows(scan.duplicates))
        start = form.find_chain(data, scan.end.offset + 1) if scan.end.state != "clean" else None
    return found


def odd_bodies(fields: Sequence[Any]) -> Iterator[bytes]:
    """Yield bodies that a client may write, for a field that comes from the body: with values that are no number, or too large,
    or no UTF-8, alone, on a line, and as members of JSON."""
    for value in _ODD:
        yield from (value, value + b"\n", value + b"\nmore\n", value + b" more", value + b"\0more")
        for form in (b"%b=%b\n", b"%b: %b\r\n\r\n", b'{"%b": %b}', b'{"%b": "%b"}', b'{"%b": [%b]}'):
            yield from (form % (field.name.encode(), value) for field in fields)


def check_values(fields: Sequence[Any], values: object) -> None:
    """``fields``: the descriptor's RecordFields."""
    assert isinstance(values, tuple), f"fields are a tuple, not {values!r}"
    assert len(values) == len(fields), f"{len(values)} values for {len(fields)} fields"
    for field, value in zip(fields, values, strict=True):
        if value is not None:
            assert type(value) is _KINDS[field.kind], f"{field.name} is {value!r}, and said to be of kind {field.kind}"
            assert not isinstance(value, int) or -(2**63) <= value < 2**63, f"{field.name} does not fit into 64 bits"
            is_unicode = not isinstance(value, str) or value.encode(errors="replace") == value.encode(errors="surrogatepass")
            assert is_unicode, f"{field.name} is {value!r}, with a surrogate, which cannot be written as UTF-8"


def reader_of(subject: Subject) -> Any:
    """Return what has the method ``fields``: the record type under test, or the format."""
    return record_of(subject) if subject.kind == "record" else made(subject)


def fields_of(subject: Subject, record: bytes) -> tuple[Any, ...]:
    """Return what a record type or a format calls the fields of a record."""
    values: tuple[Any, ...] = reader_of(subject).fields(record)
    check_values(subject.descriptor.fields, values)
    return values


def check_times(subject: Subject) -> None:
    """A field of the kind ``time``, of a record that was just written with a body of zeros, has nanoseconds since the epoch. If
    it follows the clock, it does so in winter and in summer, and in each zone."""
    times: list[list[set[Any]]] = [[set() for _ in subject.descriptor.fields] for _ in (WINTER, SUMMER)]
    for now, found in zip((WINTER, SUMMER), times, strict=True):
        for zone, reader in product(ZONES, ZONES):
            with clock_at(now), in_zone(zone):
                data, (record,) = written(made(subject), numbered(1, bytes(64)))
            with in_zone(reader), contextlib.suppress(RecordError):
                for value, seen in zip(fields_of(subject, data[record.offset : record.end]), found, strict=True):
                    seen.add(value)
    for field, *seen in zip(subject.descriptor.fields, *times, strict=True):
        if field.kind == "time" and all(isinstance(value, int) for value in (*seen[0], *seen[1])):
            is_right = all(value == 0 or value > _IN_1980 for value in (*seen[0], *seen[1]))
            assert is_right, f"{field.name} is {seen}: times are in nanoseconds since the epoch"
            later, passed = [after - before for before, after in product(*seen)], (SUMMER - WINTER) * 10**9
            is_same = max(later) < passed / 2 or {*later} == {passed}  # or it does not follow the clock
            assert is_same, f"{field.name} differs with the zone, or with the time of year: {seen}"


def _check_shown_options(subject: Subject, shown: Sequence[tuple[str, Any, tuple[Any, ...]]]) -> None:
    """A field that is the option of its name for one value is it for others, too: 0 is a value, and a text is whole. Only the
    default of the option may be no value. ``shown``: name and value of an option, and the fields of a record that was written
    with it."""
    defaults = structure(subject.descriptor.options, {}, "options")
    for number, field in enumerate(subject.descriptor.fields):
        found = [(value, fields[number]) for name, value, fields in shown if name == field.name]
        if not any(value == shown and value in (1, 2, "x") for value, shown in found):
            continue
        for value, shown_value in found:
            if shown_value is None and value == getattr(defaults, field.name):
                continue
            if isinstance(value, str):
                is_right = value == (shown_value or "") or (len(value) > 8 and value.startswith(shown_value or "-"))
            else:
                is_right = value < 0 or value == shown_value
            assert is_right, f"{field.name} is {shown_value!r}, written with the option {value!r}"


def check_options(subject: Subject) -> None:
    """With another value of an option, which its class accepts, records are written, and a reader with the default options
    reads them; a scan with this value finds those that are written without it."""
    data, placed = written(made(subject), [*numbered(3, b"body"), (bytes(16), b"")])
    without, shown = attrs.evolve(subject, options={}), []
    reader, segments = made(without), [(data, placed)]
    for name, value, other in with_other_options(subject):
        try:
            given = made(other)
        except PluginError:  # the factory may refuse the option
            continue
        scan = given.scan(data)
        is_same = (rows(scan.records), scan.damage, scan.end.state) == (expected(placed), [], "clean")
        assert is_same, f"with {name} = {value!r}, a scan finds other records, or damage: {scan.end}"
        more, found = written(given, [(record.msg_id, record.body) for record in placed])
        check_records(reader, more, reader.scan(more).records, found)
        segments.append((more, found))
        for record in (more[it.offset : it.end] for it in found if subject.has(Capability.FIELDS)):
            shown.append((name, getattr(other.made_options, name), fields_of(other, record)))
            assert fields_of(without, record) == shown[-1][2], f"other fields are read without {name} = {value!r}"
    _check_shown_options(subject, shown)
    check_framed(subject, reader, *segments)
