"""Faults in segment formats."""

from __future__ import annotations

import attrs

from msgstore.contract import Columns, GapFill
from msgstore_format_v1 import plugin as v1
from msgstore_format_v1.format import SegmentFormatV1
from msgstore_format_v2 import plugin as v2
from msgstore_format_v2.format import SegmentFormatV2
from msgstore_format_v2.grammar import HOLE_SIZE, RECORD_SIZE, hole_head
from mutants import mutant

(V1,) = v1.msgstore_segment_formats()
(V2,) = v2.msgstore_segment_formats()


@mutant(V2, "the size of each record is one too small")
class SizesOneShort(SegmentFormatV2):
    def encode(self, ids, bodies):
        data, sizes = super().encode(ids, bodies)
        return data, [size - 1 for size in sizes]


@mutant(V2, "a read does not look at the id")
class DecodeIgnoresTheId(SegmentFormatV2):
    def decode(self, msg_id, record):
        return super().decode(record[5:21], record)


@mutant(V2, "what is not a record makes a read raise what it should not")
class DecodeRaisesWhatItLikes(SegmentFormatV2):
    def decode(self, msg_id, record):
        if record[5] != msg_id[0]:
            raise KeyError(msg_id)
        return super().decode(msg_id, record)


@mutant(V2, "the first byte of a long body is not in it")
class BodySpanOneLate(SegmentFormatV2):
    def body_span(self, data, offset, size):
        begin, end = super().body_span(data, offset, size)
        return begin + (end - begin > 100), end


@mutant(V2, "the last record of a batch of more than four is cut off")
class BatchDiffersFromSingles(SegmentFormatV2):
    def encode(self, ids, bodies):
        data, sizes = super().encode(ids, bodies)
        if len(sizes) > 4 and sizes[-1] > RECORD_SIZE:
            return data[: -sizes[-1]] + super().encode(ids[-1:], [bodies[-1][:-1] + b"\0"])[0], sizes
        return data, sizes


@mutant(V2, "all threads have one buffer")
class SharesABuffer(SegmentFormatV2):
    def encode(self, ids, bodies):
        self._buffer = bytearray()
        sizes = []
        for msg_id, body in zip(ids, bodies, strict=True):
            record, size = super().encode([msg_id], [body])
            self._buffer += record
            sizes += size
        return bytes(self._buffer), sizes


@mutant(V2, "encode remembers the batch before")
class EncodeKeepsState(SegmentFormatV2):
    _before = b""

    def encode(self, ids, bodies):
        bodies = [body or self._before for body in bodies]
        self._before = bytes(len(bodies))
        return super().encode(ids, bodies)


@mutant(V2, "encode empties the list of ids that it is given")
class EncodeTakesTheIds(SegmentFormatV2):
    def encode(self, ids, bodies):
        encoded = super().encode(ids, bodies)
        if isinstance(ids, list):
            ids.clear()
        return encoded


@mutant(V2, "max_body is more than a record can hold")
class MaxBodyTooHigh(SegmentFormatV2):
    def encode(self, ids, bodies):
        if any(len(body) >= 2**20 for body in bodies):
            raise OverflowError("the size does not fit")
        return super().encode(ids, bodies)


class _Scans(SegmentFormatV2):
    """Something is made of what a scan has found."""

    def scan(self, data, *, start=0, check_body=None):
        return self.spoilt(super().scan(data, start=start, check_body=check_body), data)

    def spoilt(self, scan, data):
        raise NotImplementedError


@mutant(V2, "holes are not told")
class DroppedHole(_Scans):
    def spoilt(self, scan, data):
        del scan.hole_offsets[:], scan.hole_sizes[:]
        return scan


@mutant(V2, "records are not told by offset")
class UnsortedScan(_Scans):
    def spoilt(self, scan, data):
        rows = sorted(scan.records.rows())
        scan.records = Columns()
        for row in rows:
            scan.records.add(*row)
        return scan


@mutant(V2, "what is told overlaps: a record reaches into the next")
class OverlappingSpans(_Scans):
    def spoilt(self, scan, data):
        if len(scan.records) > 2:
            scan.records.sizes[1] += 1
        return scan


@mutant(V2, "a damaged end is called clean")
class TornIsClean(_Scans):
    def spoilt(self, scan, data):
        return scan.ended("clean", scan.end.offset) if scan.end.state == "torn" else scan


@mutant(V2, "of the copies of an id the last counts")
class LastCopyWins(_Scans):
    def spoilt(self, scan, data):
        both = sorted([*scan.records.rows(), *scan.duplicates.rows()], key=lambda row: row[1])
        last = {row[0]: row for row in both}
        scan.records, scan.duplicates = Columns(), Columns()
        for row in both:
            (scan.records if last[row[0]] is row else scan.duplicates).add(*row)
        return scan


@mutant(V2, "copies stand beside the first")
class CopiesAreRecords(_Scans):
    def spoilt(self, scan, data):
        rows = sorted([*scan.records.rows(), *scan.duplicates.rows()], key=lambda row: row[1])
        scan.records, scan.duplicates = Columns(), Columns()
        for row in rows:
            scan.records.add(*row)
        return scan


@mutant(V2, "a scan always begins at the beginning")
class ScanIgnoresStart(SegmentFormatV2):
    def scan(self, data, *, start=0, check_body=None):
        return super().scan(data, check_body=check_body)


@mutant(V2, "offsets are told from where the scan began")
class OffsetsFromStart(SegmentFormatV2):
    def scan(self, data, *, start=0, check_body=None):
        scan = super().scan(data, start=start, check_body=check_body)
        for at, offset in enumerate(scan.records.offsets):
            scan.records.offsets[at] = offset - max(start - len(self.header), 0)
        return scan


@mutant(V2, "bodies are not shown to the codec")
class CheckBodyIgnored(SegmentFormatV2):
    def scan(self, data, *, start=0, check_body=None):
        return super().scan(data, start=start)


@mutant(V2, "a record that the end of the file cuts off is told as a whole one")
class TornIsWhole(_Scans):
    def spoilt(self, scan, data):
        at = scan.end.offset
        if scan.end.state == "torn" and len(data) - at >= RECORD_SIZE:
            scan.records.add(data[at + HOLE_SIZE : at + RECORD_SIZE], at, len(data) - at, 3)
            return scan.ended("clean", len(data))
        return scan


@mutant(V2, "a corrupt spot makes a scan raise")
class ScanRaises(_Scans):
    def spoilt(self, scan, data):
        if scan.end.reason == "unrecognised_record_type":
            raise ValueError(scan.end)
        return scan


@mutant(V2, "a scan takes memory for the size that a record claims")
class ScanBelievesSizes(_Scans):
    def spoilt(self, scan, data):
        claimed = data[scan.end.offset + 1 : scan.end.offset + HOLE_SIZE]
        self._last = len(bytes(min(int.from_bytes(claimed), 2**27)))
        return scan


@mutant(V2, "the time of a scan is quadratic in the number of records")
class QuadraticScan(_Scans):
    def spoilt(self, scan, data):
        offsets = list(scan.records.offsets)
        sorted(offset for offset in offsets if offsets.count(offset) > 1)
        return scan


@mutant(V2, "a chain that is found is never the first")
class FindChainSkips(SegmentFormatV2):
    def find_chain(self, data, start, length=8):
        found = super().find_chain(data, start, length)
        return None if found is None else super().find_chain(data, found + 1, length)


@mutant(V2, "there is no way behind a corrupt spot")
class FindChainGivesUp(SegmentFormatV2):
    def find_chain(self, data, start, length=8):
        return None


@mutant(V2, "a chain has to hold to the end of the file, however many records that are")
class FindChainIsQuadratic(SegmentFormatV2):
    def find_chain(self, data, start, length=8):
        return super().find_chain(data, start, len(data))


@mutant(V2, "the bytes of a gap appear before they are whole: it is sealed first")
class SealsFirst(SegmentFormatV2):
    def fill_gap(self, offset, size, records):
        fill = super().fill_gap(offset, size, records)
        return GapFill(fill.prepare, fill.seal, fill.inside)


@mutant(V2, "a gap is not prepared: what is written inside it can be seen")
class GapNotPrepared(SegmentFormatV2):
    def fill_gap(self, offset, size, records):
        return attrs.evolve(super().fill_gap(offset, size, records), prepare=())


@mutant(V2, "what hides a gap may be torn between two sectors")
class PrepareIsTorn(SegmentFormatV2):
    def gap_room(self, offset, size):
        return size if size >= RECORD_SIZE else 0

    def fill_gap(self, offset, size, records):
        if not records:
            return GapFill()
        run = b"".join(records)
        inside = run[HOLE_SIZE:] + hole_head(size - len(run))
        return GapFill([(offset, hole_head(size))], [(offset + HOLE_SIZE, inside)], [(offset, run[:HOLE_SIZE])])


@mutant(V2, "a gap is filled beyond its end")
class WritesOutsideTheGap(SegmentFormatV2):
    def fill_gap(self, offset, size, records):
        fill = super().fill_gap(offset, size, records)
        return attrs.evolve(fill, inside=[(at, chunk + b"\0" * (size - len(chunk))) for at, chunk in fill.inside])


@mutant(V2, "what is left over of a gap is not marked")
class LeftOverNotMarked(SegmentFormatV2):
    def fill_gap(self, offset, size, records):
        fill = super().fill_gap(offset, size, records)
        run = len(b"".join(records))
        return attrs.evolve(fill, inside=[(at, chunk[: run - HOLE_SIZE]) for at, chunk in fill.inside])


@mutant(V2, "no gap has room")
class NoRoom(SegmentFormatV2):
    def gap_room(self, offset, size):
        return 0


@mutant(V2, "a gap promises more room than it has")
class TooMuchRoom(SegmentFormatV2):
    def gap_room(self, offset, size):
        return super().gap_room(offset, size) and size + 1


@mutant(V1, "the last record of a batch does not end in its mark")
class V1WithoutItsLastByte(SegmentFormatV1):
    def encode(self, ids, bodies):
        data, sizes = super().encode(ids, bodies)
        return data[:-1] + b"\xfe" if data else data, sizes


@mutant(V1, "a scan stops at the first bytes that are no record")
class V1StopsAtAHole(SegmentFormatV1):
    def scan(self, data, *, start=0, check_body=None):
        scan = super().scan(data, start=start, check_body=check_body)
        if not len(scan.hole_offsets):
            return scan
        stop = scan.hole_offsets[0]
        cut = super().scan(data[:stop], start=start, check_body=check_body)
        return cut.ended("torn" if stop < len(data) else "clean", stop)


@mutant(V1, "it claims FRAMED, and writes a byte in front of a body of more than 64")
class FramesDifferV1(SegmentFormatV1):
    max_body = SegmentFormatV1.max_body - 1

    def encode(self, ids, bodies):
        return super().encode(ids, [b"\0" * (len(body) > 64) + body for body in bodies])

    def decode(self, msg_id, record):
        return super().decode(msg_id, record)[len(record) > 25 + 64 :]

    def body_span(self, data, offset, size):
        begin, end = super().body_span(data, offset, size)
        return begin + (size > 25 + 64), end
