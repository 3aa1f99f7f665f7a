"""Reading a damaged segment to its end: what a false end hides is found, what belongs into a body stays there.

``tests/test_fuzz.py`` measures the time that hostile segments take.
"""

from __future__ import annotations

import functools
import random
from itertools import pairwise

import pytest

import msgstore
from core_support import store_of
from msgstore.contract import Damage
from msgstore.jobs.reading.chains import SIZE_MISMATCH, Span, read_spans
from msgstore.scan import FormatSet

CLEAN, COMPACTED, OLD = (
    store_of(name) / file for name, file in (("v2_clean", "0.sqs"), ("v2_compacted", "0.sqs"), ("v1_clean", "0.rdq"))
)
Row = tuple[int, int, bytes]
CHAIN = 8
"""Records in a row that are found behind a corrupt spot, wherever they are."""


@functools.cache
def form(name):
    catalogue = msgstore.load_catalogue()
    if name != "checksum":
        return FormatSet(catalogue).by_name(name).format
    return FormatSet(catalogue, {name: 4}, record=name, write_format="v2").by_name("v2").format


def read(name, data) -> tuple[list[Row], list[Span]]:
    """Return the records, (offset, size, id) each, and all spans. Fails unless every byte is told once."""
    spans = read_spans(form(name), data)
    assert spans[0].offset in (0, len(form(name).header))
    assert all(one.end == other.offset for one, other in pairwise(spans)), "neither gap nor overlap"
    assert spans[-1].end == len(data)
    assert all(span.size > 0 for span in spans)
    return [span[:3] for span in spans if span.id], spans


def damage_in(spans):
    return [span.damage for span in spans if span.reason]


def spots(spans):
    return [(spot.offset, spot.size) for spot in damage_in(spans)]


def holes_in(spans):
    return {span.offset: span.size for span in spans if not (span.id or span.reason)}


def flip(data, name, row, bit):
    """Flip a bit of the size that a record says that it has; returns where it ends then."""
    last, more = (row[0] + 7, 9) if name == "v1" else (row[0] + 4, 0)
    data[last - bit // 8] ^= 1 << bit % 8
    return row[0] + int.from_bytes(data[last - 3 : last + 1], "big") + more


def with_checksums(data):
    """The same messages as records with a checksum."""
    rows, _ = read("v2", data)
    bodies = [data[slice(*form("v2").body_span(data, offset, size))] for offset, size, _ in rows]
    return form("checksum").header + form("checksum").encode([msg_id for _, _, msg_id in rows], bodies)[0]


def id_of(n):
    return bytes([0xA0, n >> 8, n & 255]).rjust(16, b"i")


def segment(*parts):
    """(bytes, records) of a segment of v2; each part: the type of some records, and their numbers."""
    data, rows = bytearray(form("checksum").header), []
    for name, numbers in parts:
        bodies = [b"message %d " % n * (5 + n % 7) for n in numbers]
        encoded, sizes = form(name).encode([id_of(n) for n in numbers], bodies)
        for n, size in zip(numbers, sizes, strict=True):
            rows.append((sum(rows[-1][:2]) if rows else len(data), size, id_of(n)))
        data += encoded
    return data, rows


def grow(data, rows, first, end):
    """Let the size of the first record reach over all up to the last."""
    data[rows[first][0] + 1 : rows[first][0] + 5] = sum(row[1] for row in rows[first:end]).to_bytes(4)


def check_damage(data, rows, lost, reason, spans=None):
    """All records are found but some, those behind the first damage again; the damage is the spans of the lost ones."""
    found, read_back = read("checksum", bytes(data))
    assert found == [row for n, row in enumerate(rows) if n not in lost]
    assert spots(read_back) == [row[:2] for row in spans or [rows[n] for n in lost]]
    assert {spot.reason for spot in damage_in(read_back)} <= set(reason.split())
    return [span[:3] for span in read_back if span.recovered and span.id]


def test_records_behind_corrupt_spot_are_found():
    data, rows = segment(("v2", range(100)))
    for n in (20, 21, 60):
        data[rows[n][0]] = 0
    spans = [(rows[20][0], rows[20][1] + rows[21][1]), rows[60]]
    recovered = check_damage(data, rows, (20, 21, 60), "unrecognised_record_type", spans)
    assert recovered == [row for n, row in enumerate(rows) if n > 21 and n != 60]


@pytest.mark.parametrize(("byte", "value"), [(1, 0x10), (2, 0x10), (3, 0x10), (4, 0xFF)])
def test_flipped_size_hides_no_other_record(byte, value):
    data, rows = segment(("v2", range(300)))
    data[rows[50][0] + byte] = value
    found, chains = read("v2", bytes(data))
    assert (found, spots(chains)) == (rows[:50] + rows[51:], [rows[50][:2]])


@pytest.mark.parametrize("swallowed", [1, 2, 20])
@pytest.mark.parametrize("inside", ["checksum", "v2"])
def test_records_inside_damaged_one_are_found(swallowed, inside):
    """With checks of their own, or without."""
    data, rows = segment((inside, range(10)), ("checksum", range(10, 11)), (inside, range(11, 60)))
    grow(data, rows, 10, 11 + swallowed)
    assert check_damage(data, rows, [10], "checksum_mismatch") == rows[11 : 11 + swallowed]


def test_damage_inside_damage_loses_only_what_it_hits():
    data, rows = segment(("checksum", range(60)))
    grow(data, rows, 10, 30)
    grow(data, rows, 12, 20)
    data[sum(rows[15][:2]) - 1] ^= 0x10
    data[rows[29][0]] = 0  # what is inside does not lead to the end, but each record proves itself
    check_damage(data, rows, (10, 12, 15, 29), "checksum_mismatch unrecognised_record_type")


def test_unchecked_records_inside_must_lead_to_end():
    quoted, _ = segment(("v2", range(20)))
    data, sizes = form("checksum").encode([id_of(100), id_of(101)], [bytes(quoted[64:]) + b"!", b"behind"])
    data = bytearray(form("checksum").header + data)
    data[64 + sizes[0] - 1] ^= 0x10
    found, chains = read("checksum", bytes(data))
    assert found == [(64 + sizes[0], sizes[1], id_of(101))]
    assert damage_in(chains) == [Damage(64, sizes[0], "checksum_mismatch")]


def test_random_flips_lose_only_what_they_hit():
    original, rows = segment(("checksum", range(400)))
    chance = random.Random(7)
    for trial in range(40):
        data, hit = bytearray(original), set()
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(64, len(data))
            data[at] ^= 1 << chance.randrange(8)
            hit.add(next(n for n, (offset, size, _) in enumerate(rows) if offset <= at < offset + size))
        found, chains = read("checksum", bytes(data))
        assert set(found) <= set(rows)
        missing = {n for n, row in enumerate(rows) if row not in found}
        assert missing <= hit | {n + 1 for n in hit if n + 1 < 400 and n + 1 >= 392}, (trial, missing, hit)
        assert damage_in(chains)


@pytest.mark.parametrize("name", ["v2", "checksum"])
@pytest.mark.parametrize(
    ("first", "last"), [(20, 20), (-2, 3), (-2, 5), (0, 0)], ids=["before", "around", "far around", "at the false end"]
)
def test_other_damage_near_false_end_is_passed(name, first, last):
    """The size of record 10 is wrong. Of the records between two others that are damaged there are too few for a chain."""
    data = bytearray(CLEAN.read_bytes() if name == "v2" else with_checksums(CLEAN.read_bytes()))
    rows, _ = read(name, bytes(data))
    end = flip(data, name, rows[10], 14)
    at_end = next(n for n, (offset, size, _) in enumerate(rows) if offset < end < offset + size)
    first, last = (first, last) if first > 0 else (at_end + first, at_end + last)
    for n in {first, last}:
        data[rows[n][0]] ^= 0x40
    found, chains = read(name, bytes(data))
    assert found == rows[:10] + rows[11:first] + rows[last + 1 :]
    assert spots(chains) == [rows[10][:2], (rows[first][0], sum(rows[last][:2]) - rows[first][0])]
    assert [spot.reason for spot in damage_in(chains)] == [SIZE_MISMATCH, "unrecognised_record_type"]


def test_false_end_at_hole_byte_is_found():
    data = CLEAN.read_bytes()
    rows, _ = read("v2", data)
    tried = 0
    for n, row in enumerate(rows[:-CHAIN]):
        for bit in range(18):
            damaged = bytearray(data)
            end = flip(damaged, "v2", row, bit)
            if row[0] + row[1] < end < len(data) and data[end] == 1:
                assert read("v2", bytes(damaged))[0] == rows[:n] + rows[n + 1 :]
                tried += 1
    assert tried > 5


def test_records_swallowed_by_hole_are_found():
    data = COMPACTED.read_bytes()
    rows, chains = read("v2", data)
    at = next(at for at, size in holes_in(chains).items() if size > 4)
    first = next(n for n, row in enumerate(rows) if row[0] > at)
    damaged = bytearray(data)
    damaged[at + 3] ^= 0x10
    damaged[rows[first + 12][0]] ^= 0x40
    found, chains = read("v2", bytes(damaged))
    assert found == rows[: first + 12] + rows[first + 13 :]
    assert damage_in(chains)[0] == Damage(at, rows[first][0] - at, SIZE_MISMATCH)


def test_body_that_is_a_segment_stays_one():
    """Although the record after it is damaged: the records inside lead exactly to the end of the body."""
    ids = [bytes([n]) * 16 for n in range(40)]
    head, sizes = form("v2").encode(ids[:21], [b"before"] * 20 + [COMPACTED.read_bytes()])
    tail, [size, *_] = form("v2").encode(ids[21:], [b"after"] * 19)
    data = bytearray(form("v2").header + head + tail)
    spot = len(form("v2").header) + sum(sizes)
    data[spot] = 0x77
    found, chains = read("v2", bytes(data))
    assert [msg_id for _, _, msg_id in found] == ids[:21] + ids[22:]
    assert found[20][:2] == (spot - sizes[-1], sizes[-1])
    assert damage_in(chains) == [Damage(spot, size, "unrecognised_record_type")]


def intact_runs(count, hit):
    """Which records stand among so many undamaged ones that they make a chain, or lead to the end of the file."""
    borders = [-1, *sorted(hit), count]
    runs = [range(begin + 1, end) for begin, end in pairwise(borders)]
    return {n for run in runs if len(run) >= CHAIN or run.stop == count for n in run}


def damage(name, data, rows, chance):
    """Two or three records, at least one of them with a false end: which, and the false ends."""
    ends = {}
    for n in chance.sample(range(len(rows)), chance.choice((2, 3))):
        if not ends or chance.random() < 0.6:
            said = rows[n][1] - (9 if name == "v1" else 0)
            ends[n] = flip(data, name, rows[n], chance.choice([bit for bit in range(8, 18) if not said >> bit & 1]))
        else:
            data[rows[n][0]] ^= 1 << chance.randrange(3, 8)
            ends[n] = None
    return ends


@pytest.mark.parametrize(("name", "path", "seeds"), [("v2", CLEAN, 400), ("v2", COMPACTED, 300), ("v1", OLD, 300)])
def test_damage_costs_no_run_of_intact_records(name, path, seeds):
    """Except with ends that look right: where a record or a hole begins, and in v1 after a byte 255."""
    data = path.read_bytes()
    rows, chains = read(name, data)
    holes = holes_in(chains)
    borders = {len(data), *(row[0] for row in rows), *holes}
    borders.update(at + n for at, size in holes.items() for n in range(min(size, 5)))
    tried = 0
    for seed in range(seeds):
        damaged = bytearray(data)
        ends = damage(name, damaged, rows, random.Random(seed))
        false_ends = [end for end in ends.values() if end is not None and end <= len(data)]
        if any(end in borders or (name == "v1" and damaged[end - 1] == 255) for end in false_ends):
            continue
        found, _ = read(name, bytes(damaged))
        lost = [n for n in intact_runs(len(rows), set(ends)) if rows[n] not in found]
        assert lost == [], (seed, ends)
        tried += 1
    assert tried > seeds * 0.8
