"""Faults in segment formats."""

from __future__ import annotations

from array import array  # noqa: F401 - the tables use it
from datetime import datetime

import attrs  # noqa: F401 - the tables use it

from acme_stamped_format import plugin as stamped
from acme_stamped_format.format import Stamped
from foreign_backends import plugin as foreign
from foreign_backends.ledger import CRC, LedgerFormat, is_intact, measure
from msgstore.contract import Capability, Columns, GapFill
from msgstore_format_v1 import plugin as v1
from msgstore_format_v1.format import SegmentFormatV1
from msgstore_format_v2 import plugin as v2
from msgstore_format_v2.format import SegmentFormatV2
from msgstore_format_v2.grammar import HOLE_SIZE, RECORD_SIZE, hole_head
from mutants import add_mutants


def into_a_buffer(self, ids, bodies, encode):
    self.buffer, sizes = bytearray(), []
    for msg_id, body in zip(ids, bodies, strict=True):
        record, size = encode([msg_id], [body])
        self.buffer += record
        sizes += size
    return bytes(self.buffer), sizes


def reported(scan, records, duplicates=()):
    """Change what a scan reports."""
    scan.records, scan.duplicates = Columns(), Columns()
    for columns, rows in ((scan.records, records), (scan.duplicates, duplicates)):
        for row in rows:
            columns.add(*row)
    return scan


def both(scan):
    return sorted([*scan.records.rows(), *scan.duplicates.rows()], key=lambda row: row[1])


def last_copies(scan):
    last = {row[0]: row for row in both(scan)}
    return reported(scan, last.values(), [row for row in both(scan) if last[row[0]] != row])


def first_copies(check_body):
    seen = set()
    return lambda msg_id, body: msg_id in seen or seen.add(msg_id) or check_body(msg_id, body)


def with_torn(scan, data):
    at = scan.end.offset
    if scan.end.state == "torn" and len(data) - at >= RECORD_SIZE:
        scan.records.add(data[at + HOLE_SIZE : at + RECORD_SIZE], at, len(data) - at, 3)
        scan.ended("clean", len(data))
    return scan


def filled(offset, size, records):
    if not records:
        return GapFill()
    run = b"".join(records)
    inside = run[HOLE_SIZE:] + hole_head(size - len(run))
    return GapFill([(offset, hole_head(size))], [(offset + HOLE_SIZE, inside)], [(offset, run[:HOLE_SIZE])])


add_mutants(v2.msgstore_segment_formats()[0], SegmentFormatV2, r"""
decode-ignores-the-id: a read does not look at the id
    decode: record[_HEAD] == _pack_head(MESSAGE, len(record), msg_id) => record[:1] == b"\3"
decode-ignores-the-size: a read does not look at the size
    decode: record[_HEAD] == _pack_head(MESSAGE, len(record), msg_id) => record[:1] == b"\3" and record[5:21] == msg_id
decode-raises-what-it-likes: a read of other bytes raises another error than RecordError
    _decode_other: raise RecordError("id_mismatch", f"the record has the id {found.hex()}") => raise KeyError(msg_id)
records-are-a-bytearray: encode gives what its caller can change
    encode > (bytearray(_[0]), _[1])
sizes-one-short: the size of each record is one too small
    encode > (_[0], [size - 1 for size in _[1]])
body-span-one-late: the first byte of a long body is not in it
    body_span > (_[0] + (_[1] - _[0] > 100), _[1])
batch-differs-from-singles: the fifth record of a batch is cut off
    encode: ids, bodies) => ids, [*bodies[:4], *(body[:-1] + bytes(len(body[-1:])) for body in bodies[4:5]), *bodies[5:]])
encode-keeps-state: encode remembers its first batch
    encode: ids, bodies) => ids, [body or bytes(self.__dict__.setdefault("first", len(ids))) for body in bodies])
encode-takes-the-ids: encode empties the list of ids that it is given
    encode > (_, isinstance(ids, list) and ids.clear())[0]
max-body-too-high: max_body is more than a record can hold
    encode: ids, bodies) => ids, [body[: 2**20] for body in bodies])
max-body-fills-the-size: max_body is what the size field holds, and leaves no room for what a record has beside the body
    __init__ > self.__dict__.update(max_body=2**32 - 1)
shares-a-buffer: all threads share one buffer
    encode > into_a_buffer(self, ids, bodies, old)
dropped-hole: holes are not reported
    scan > attrs.evolve(_, hole_offsets=array("Q"), hole_sizes=array("Q"))
unsorted-scan: records are not in the order of offsets
    scan > reported(_, sorted(_.records.rows()))
overlapping-spans: a record reaches into the next
    scan > reported(_, [(i, at, size + (n == 1), kind) for n, (i, at, size, kind) in enumerate(_.records.rows())])
torn-is-clean: a damaged end is called clean
    scan > _.ended("clean", _.end.offset) if _.end.state == "torn" else _
last-copy-wins: the last copy of an id counts
    scan > last_copies(_)
copies-are-records: copies are records, too
    scan > reported(_, both(_))
torn-is-whole: a record that the end of the file cuts off is reported as a whole one
    scan > with_torn(_, data)
scan-raises: a corrupt spot makes a scan raise
    scan > {}[data] if _.end.reason == "unrecognised_record_type" else _
scan-believes-sizes: a scan allocates memory for the size that a record claims
    scan > (_, bytes(min(int.from_bytes(data[_.end.offset + 1 : _.end.offset + HOLE_SIZE]), 2**27)))[0]
chain-in-one-part: a record that reaches over a hole of a sparse file is not found
    find_chain: if end <= total and => if end <= match.endpos and
quadratic-in-holes: each hole copies the rest of the segment
    scan > (sum(len(data[at:]) for at in _.hole_offsets), _)[1]
copies-the-rest: each record copies the rest of the segment
    scan > (sum(len(data[at:]) for at in _.records.offsets), _)[1]
quadratic-scan: the time of a scan is quadratic in the number of records
    scan > (_, [at for at in _.records.offsets if _.records.offsets.count(at) > 1])[0]
scan-ignores-start: a scan always begins at the beginning
    scan: data, start, => data, 0,
offsets-from-start: offsets are counted from where the scan began
    scan > reported(_, [(i, at - max(start - 64, 0), *more) for i, at, *more in _.records.rows()], _.duplicates.rows())
check-body-ignored: bodies are not given to the codec
    scan: self._smallest, check_body) => self._smallest, None)
check-body-forty-times: after forty records, bodies are not given to the codec
    scan: check_body) => check_body and (lambda i, body, n=iter(range(40)): next(n, None) is None or check_body(i, body)))
check-body-of-one-type: bodies are given to the codec if new records are of the type message only
    scan: self._smallest, check_body) => self._smallest, check_body if self._record_type is self._types[MESSAGE] else None)
check-body-of-first-copies: later copies of an id are not given to the codec
    scan: check_body) => check_body and first_copies(check_body))
hole-is-read: a read gives the body of a record that has become a hole
    _decode_other: if kind not in self._types: => if (kind := {HOLE: MESSAGE}.get(kind, kind)) not in self._types:
gaps-above-four-gib: a gap of more than 4 GiB has room, and cannot be filled
    gap_room: <= size <= MAX_RECORD => <= size
gap-of-another-thread: fill_gap keeps its result where another thread replaces it
    fill_gap > (self.__dict__.update(fill=_), self.fill)[1]
mapped-once: an mmap is read once, and changes of its bytes are not seen
    scan > _ if isinstance(data, bytes) else self.__dict__.setdefault("mapped", {}).setdefault((id(data), start, check_body), _)
copies-behind-start: copies are told apart if a whole segment is scanned only
    scan > reported(_, both(_)) if start > 64 else _
find-chain-skips: a chain that is found is never the first
    find_chain > _ if _ is None else old(data, _ + 1, length)
find-chain-gives-up: no chain is found behind a corrupt spot
    find_chain > None
find-chain-is-quadratic: a chain has to hold to the end of the file, however many records that are
    find_chain: offset, length, => offset, len(data),
seals-first: the bytes of a gap appear before they are whole, because it is sealed first
    fill_gap > GapFill(_.prepare, _.seal, _.inside)
gap-not-prepared: a gap is not prepared, so that what is written inside it can be seen
    fill_gap > attrs.evolve(_, prepare=())
writes-outside-the-gap: a gap is filled beyond its end
    fill_gap > attrs.evolve(_, inside=[(at, chunk.ljust(size, b"\0")) for at, chunk in _.inside])
left-over-not-marked: what is left over of a gap is not marked
    fill_gap > attrs.evolve(_, inside=[(at, chunk[: len(b"".join(records)) - HOLE_SIZE]) for at, chunk in _.inside])
no-room: no gap has room
    gap_room > 0
too-much-room: a gap promises more room than it has
    gap_room > _ and size + 1
prepare-is-torn: what hides a gap may be torn between two sectors
    gap_room > size if size >= RECORD_SIZE else 0
    fill_gap > filled(offset, size, records)
""")  # fmt: skip


def before_holes(scan, data, old):
    if not len(scan.hole_offsets):
        return scan
    stop = scan.hole_offsets[0]
    return old(data[:stop]).ended("torn" if stop < len(data) else "clean", stop)


add_mutants(v1.msgstore_segment_formats()[0], SegmentFormatV1, r"""
v1-without-its-last-byte: the last record of a batch does not end in its mark
    encode > (_[0][:-1] + b"\xfe"[: len(_[0])], _[1])
v1-takes-long-records: a read takes a record and what follows it
    decode: size + UNCOUNTED == len(record) and record[-1] == 255 => size + UNCOUNTED <= len(record)
v1-startswith: a scan calls a method that an mmap does not have, where bytes are no record
    scan > (_, len(_.hole_sizes) and data.startswith(b"x"))[0]
v1-stops-at-a-hole: a scan stops at the first bytes that are no record
    scan > before_holes(_, data, lambda cut: old(cut, start=start, check_body=check_body))
frames-differ-v1: it claims FRAMED, and writes a byte in front of a body of more than 64
    max_body = SegmentFormatV1.max_body - 1
    encode > old(ids, [b"\0" * (len(body) > 64) + body for body in bodies])
    decode > _[len(record) > 25 + 64 :]
    body_span > (_[0] + (size > 25 + 64), _[1])
""")  # fmt: skip


def seconds_now():
    return int(datetime.now().timestamp())  # noqa: DTZ005 - seconds since the epoch, whatever the zone


def behind_damage(scan, data):
    ids = [data[spot.offset + 5 : spot.offset + 21] for spot in scan.damage]
    records, copies = list(scan.records.rows()), list(scan.duplicates.rows())
    moved = [row for row in records if row[0] in ids]
    return reported(scan, [row for row in records if row not in moved], sorted([*copies, *moved], key=lambda row: row[1]))


def is_known(self, data, offset, size):
    known, place = self.__dict__.setdefault("known", set()), (data[offset : offset + 20], size)
    if is_intact(data, offset, size):
        known.add(place)
    return place in known


def rewritten(record):
    _, at, key, _ = measure(record, 0, len(record))
    (encoded, _) = LedgerFormat.encode(None, [record[at : at + key]], [b"\0" + record[at + key + 1 : -CRC]])
    return encoded


add_mutants(foreign.msgstore_segment_formats()[0], LedgerFormat, r"""
sector-edge: what hides a gap may be torn at the last bytes of a sector
    gap_room: _SECTOR - GAP_HEAD => _SECTOR - CRC
first-gap-is-sealed-first: a gap before the first live record is sealed first
    fill_gap > GapFill(_.seal, _.inside) if offset == len(self.header) else _
left-over-wraps: what is left over of a gap has a size of two bytes
    fill_gap: gap_head(size - len(run)) => gap_head((size - len(run)) % 2**16)
damaged-copy-counts: behind a copy that is damaged, an intact one is a duplicate
    scan > behind_damage(_, data)
decode-unchecked: a scan ends at a record with a wrong checksum, and a read returns it
    _scan_elements: scan.damage.append(Damage(offset, size, "checksum_mismatch")) => return scan.ended("corrupt", offset, "no")
    decode: if not is_intact(record, 0, size): => if False:
damage-copies-the-rest: for each damaged record, the rest of the segment is copied
    _scan_elements: Damage(offset, size, "checksum => Damage(offset, len(data[offset:]) and size, "checksum
sound-once: a record that was sound once is not checked again
    decode: is_intact(record => is_known(self, record
    _scan_elements: is_intact(data => is_known(self, data
gap-rewrites-records: a record that is moved into a gap is written anew, without what it has beside id and body
    encode > old(ids, [b"\1" + body for body in bodies])
    decode > _[1:]
    body_span > (_[0] + 1, _[1])
    _scan_elements: data[at + key : offset + size - CRC] => data[at + key + 1 : offset + size - CRC]
    fill_gap: run = b"".join(records) => run = b"".join(rewritten(record) for record in records)
head-outgrows-its-field: the head of a record of more than 4 GiB is not one
    max_body = 2**32
    encode: head(RECORD, ID, length) => (head(RECORD, ID, length) if length < 2**32 else b"?" * 9)
length-wraps: a length of more than 4 GiB loses its upper bits
    max_body = 2**32
    encode: head(RECORD, ID, length) => head(RECORD, ID, length % 2**32)
""")  # fmt: skip

add_mutants(stamped.msgstore_segment_formats()[0], Stamped, """
damaged-is-torn: a last record that is whole and damaged is taken for one that is cut off, and a store cuts it off
    scan > _.ended("torn", _.end.offset) if _.end.state == "corrupt" and len(data) - _.end.offset < 120 else _
decode-ignores-the-time: a scan ends at a record whose time is damage, and a read gives its body
    decode: self._size_at(record, 0) != len(record) => int.from_bytes(record[:4], "big") != len(record)
header-of-a-time: after a hundred million seconds the header is another one
    __init__ > self.__dict__.update(header=(int(time.time()) // 10**8).to_bytes(8))
    scan: SegmentScan(), start, => SegmentScan(), max(start, min(8, len(data))),
    scan > attrs.evolve(_, header="ok" if data[:8] == self.header else "bad_magic")
    find_chain: range(start, => range(max(start, 8),
from-the-future: a time that is later than that of the clock is taken for damage
    _size_at: written <= _LAST_TIME => written <= time.time_ns()
time-of-the-object: records have the time at which the object was made
    __init__ > self.__dict__.update(made=time.time_ns())
    encode: time.time_ns() => self.made
time-never-goes-back: a clock that is set back is ignored
    encode: time.time_ns() => self.__dict__.update(last=max(self.__dict__.get("last", 0), time.time_ns())) or self.last
chain-of-sizes: a chain begins at a record with a damaged time, at which a scan ends
    _is_chain: self._size_at(data, offset) => int.from_bytes(data[offset : offset + 4]) or None
two-bytes-are-full-format: a body of 65535 bytes is not found
    _size_at > None if _ == 65535 + _HEAD.size else _
""")  # fmt: skip

add_mutants(stamped.msgstore_segment_formats()[0], Stamped, """
time-not-claimed: its records keep a time, and it does not claim VERBATIM
datetime-not-claimed: its records keep a time of datetime.now, and it does not claim VERBATIM
    encode: time.time_ns() => seconds_now() * 10**9
""", capabilities=[Capability.FRAMED], fields=())  # fmt: skip
