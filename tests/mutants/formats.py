"""Faults in segment formats."""

from __future__ import annotations

import time

import attrs

from msgstore.contract import Columns, GapFill
from msgstore_format_v1 import plugin as v1
from msgstore_format_v1.format import SegmentFormatV1
from msgstore_format_v2 import plugin as v2
from msgstore_format_v2.format import SegmentFormatV2
from msgstore_format_v2.grammar import HOLE_SIZE, RECORD_SIZE, hole_head
from mutants import Broken

fault = Broken(v2.msgstore_segment_formats()[0], SegmentFormatV2)
fault_v1 = Broken(v1.msgstore_segment_formats()[0], SegmentFormatV1)


def raises(error):
    raise error


fault("decode-ignores-the-id", "a read does not look at the id", decode=lambda _, old, msg_id, rec: old(rec[5:21], rec))
fault(
    "decode-raises-what-it-likes",
    "a read of other bytes raises another error than RecordError",
    decode=lambda _, old, msg_id, record: raises(KeyError(msg_id)) if record[5] != msg_id[0] else old(msg_id, record),
)
fault(
    "max-body-too-high",
    "max_body is more than a record can hold",
    encode=lambda _, old, ids, bodies: raises(OverflowError()) if any(len(b) >= 2**20 for b in bodies) else old(ids, bodies),
)


@fault.of("encode")
def sizes_one_short(self, old, ids, bodies):
    """The size of each record is one too small."""
    data, sizes = old(ids, bodies)
    return data, [size - 1 for size in sizes]


@fault.of("body_span")
def body_span_one_late(self, old, data, offset, size):
    """The first byte of a long body is not in it."""
    begin, end = old(data, offset, size)
    return begin + (end - begin > 100), end


@fault.of("encode")
def batch_differs_from_singles(self, old, ids, bodies):
    """The last record of a batch of more than four is cut off."""
    data, sizes = old(ids, bodies)
    if len(sizes) > 4 and sizes[-1] > RECORD_SIZE:
        return data[: -sizes[-1]] + old(ids[-1:], [bodies[-1][:-1] + b"\0"])[0], sizes
    return data, sizes


@fault.of("encode")
def encode_keeps_state(self, old, ids, bodies):
    """Encode remembers the batch before."""
    bodies = [body or getattr(self, "_before", b"") for body in bodies]
    self._before = bytes(len(bodies))
    return old(ids, bodies)


@fault.of("encode")
def encode_takes_the_ids(self, old, ids, bodies):
    """Encode empties the list of ids that it is given."""
    encoded = old(ids, bodies)
    if isinstance(ids, list):
        ids.clear()
    return encoded


@fault.of("encode")
def shares_a_buffer(self, old, ids, bodies):
    """All threads share one buffer."""
    self._buffer, sizes = bytearray(), []
    for msg_id, body in zip(ids, bodies, strict=True):
        record, size = old([msg_id], [body])
        self._buffer += record
        sizes += size
        time.sleep(0)  # another thread's turn, also on a loaded machine
    return bytes(self._buffer), sizes


# -- what a scan reports


def spoils(name, what, spoil):
    """``spoil(scan, data)`` changes what a scan reports."""
    fault(name, what, scan=lambda self, old, data, **options: spoil(old(data, **options), data))


def reported(scan, records, duplicates=()):
    scan.records, scan.duplicates = Columns(), Columns()
    for columns, rows in ((scan.records, records), (scan.duplicates, duplicates)):
        for row in rows:
            columns.add(*row)
    return scan


def both(scan):
    return sorted([*scan.records.rows(), *scan.duplicates.rows()], key=lambda row: row[1])


def last_copy(scan, _):
    last = {row[0]: row for row in both(scan)}
    return reported(scan, last.values(), [row for row in both(scan) if last[row[0]] != row])


def without_holes(scan, _):
    del scan.hole_offsets[:], scan.hole_sizes[:]
    return scan


def overlapping(scan, _):
    if len(scan.records) > 2:
        scan.records.sizes[1] += 1
    return scan


def torn_is_whole(scan, data):
    at = scan.end.offset
    if scan.end.state == "torn" and len(data) - at >= RECORD_SIZE:
        scan.records.add(data[at + HOLE_SIZE : at + RECORD_SIZE], at, len(data) - at, 3)
        return scan.ended("clean", len(data))
    return scan


def believes_sizes(scan, data):
    bytes(min(int.from_bytes(data[scan.end.offset + 1 : scan.end.offset + HOLE_SIZE]), 2**27))
    return scan


def quadratic(scan, _):
    offsets = list(scan.records.offsets)
    sorted(offset for offset in offsets if offsets.count(offset) > 1)
    return scan


spoils("dropped-hole", "holes are not reported", without_holes)
spoils("unsorted-scan", "records are not in the order of offsets", lambda scan, _: reported(scan, sorted(scan.records.rows())))
spoils("overlapping-spans", "a record reaches into the next", overlapping)
spoils(
    "torn-is-clean",
    "a damaged end is called clean",
    lambda scan, _: scan.ended("clean", scan.end.offset) if scan.end.state == "torn" else scan,
)
spoils("last-copy-wins", "the last copy of an id counts", last_copy)
spoils("copies-are-records", "copies are records, too", lambda scan, _: reported(scan, both(scan)))
spoils("torn-is-whole", "a record that the end of the file cuts off is reported as a whole one", torn_is_whole)
spoils(
    "scan-raises",
    "a corrupt spot makes a scan raise",
    lambda scan, _: raises(ValueError()) if scan.end.reason == "unrecognised_record_type" else scan,
)
spoils("scan-believes-sizes", "a scan allocates memory for the size that a record claims", believes_sizes)
spoils("quadratic-scan", "the time of a scan is quadratic in the number of records", quadratic)
fault(
    "scan-ignores-start",
    "a scan always begins at the beginning",
    scan=lambda _, old, data, start=0, check_body=None: old(data, check_body=check_body),
)
fault(
    "check-body-ignored",
    "bodies are not given to the codec",
    scan=lambda _, old, data, start=0, check_body=None: old(data, start=start),
)


@fault.of("scan")
def offsets_from_start(self, old, data, *, start=0, check_body=None):
    """Offsets are counted from where the scan began."""
    scan = old(data, start=start, check_body=check_body)
    for at, offset in enumerate(scan.records.offsets):
        scan.records.offsets[at] = offset - max(start - len(self.header), 0)
    return scan


# -- chains


@fault.of("find_chain")
def find_chain_skips(self, old, data, start, length=8):
    """A chain that is found is never the first."""
    found = old(data, start, length)
    return None if found is None else old(data, found + 1, length)


fault("find-chain-gives-up", "no chain is found behind a corrupt spot", find_chain=lambda _, old, data, start, length=8: None)
fault(
    "find-chain-is-quadratic",
    "a chain has to hold to the end of the file, however many records that are",
    find_chain=lambda _, old, data, start, length=8: old(data, start, len(data)),
)

# -- gaps


def changes(name, what, change):
    """``change(fill, size, records)`` changes how a gap is filled."""
    fault(name, what, fill_gap=lambda _, old, at, size, records: change(old(at, size, records), size, records))


def writes(fill, cut):
    return attrs.evolve(fill, inside=[(at, cut(chunk)) for at, chunk in fill.inside])


changes("seals-first", "a gap is sealed before it is whole", lambda fill, *_: GapFill(fill.prepare, fill.seal, fill.inside))
changes("gap-not-prepared", "what is written inside a gap can be seen", lambda fill, *_: attrs.evolve(fill, prepare=()))
changes(
    "writes-outside-the-gap",
    "a gap is filled beyond its end",
    lambda fill, size, _: writes(fill, lambda chunk: chunk.ljust(size, b"\0")),
)
changes(
    "left-over-not-marked",
    "what is left over of a gap is not marked",
    lambda fill, _, records: writes(fill, lambda chunk: chunk[: len(b"".join(records)) - HOLE_SIZE]),
)
fault("no-room", "no gap has room", gap_room=lambda _, old, offset, size: 0)
fault("too-much-room", "a gap promises more room than it has", gap_room=lambda _, old, at, size: old(at, size) and size + 1)


def fills_torn(self, old, offset, size, records):
    if not records:
        return GapFill()
    run = b"".join(records)
    inside = run[HOLE_SIZE:] + hole_head(size - len(run))
    return GapFill([(offset, hole_head(size))], [(offset + HOLE_SIZE, inside)], [(offset, run[:HOLE_SIZE])])


fault(
    "prepare-is-torn",
    "what hides a gap may be torn between two sectors",
    gap_room=lambda _, old, offset, size: size if size >= RECORD_SIZE else 0,
    fill_gap=fills_torn,
)

# -- v1


@fault_v1.of("encode")
def v1_without_its_last_byte(self, old, ids, bodies):
    """The last record of a batch does not end in its mark."""
    data, sizes = old(ids, bodies)
    return data[:-1] + b"\xfe" if data else data, sizes


@fault_v1.of("scan")
def v1_stops_at_a_hole(self, old, data, *, start=0, check_body=None):
    """A scan stops at the first bytes that are no record."""
    scan = old(data, start=start, check_body=check_body)
    if not len(scan.hole_offsets):
        return scan
    stop = scan.hole_offsets[0]
    cut = old(data[:stop], start=start, check_body=check_body)
    return cut.ended("torn" if stop < len(data) else "clean", stop)


fault_v1(
    "frames-differ-v1",
    "it claims FRAMED, and writes a byte in front of a body of more than 64",
    max_body=SegmentFormatV1.max_body - 1,
    encode=lambda _, old, ids, bodies: old(ids, [b"\0" * (len(body) > 64) + body for body in bodies]),
    decode=lambda _, old, msg_id, record: old(msg_id, record)[len(record) > 25 + 64 :],
    body_span=lambda _, old, data, at, size: (old(data, at, size)[0] + (size > 25 + 64), old(data, at, size)[1]),
)
