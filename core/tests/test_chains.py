"""Reading a damaged segment to its end: what a wrong end hides is found, what belongs into a body stays there.

``tests/test_fuzz.py`` measures the time that hostile segments take.
"""

from __future__ import annotations

import copy
import functools
import random
from itertools import pairwise

import pytest

import msgstore
from core_support import store_of
from msgstore.jobs.reading.chains import SIZE_MISMATCH, SegmentSpan, read_spans
from msgstore.scan import FormatSet

CLEAN, COMPACTED, OLD = (
    store_of(name) / file for name, file in (("v2_clean", "0.sqs"), ("v2_compacted", "0.sqs"), ("v1_clean", "0.rdq"))
)
CHAIN = 8
"""Records in a row that are found after a corrupt span, wherever they are."""
BAD_TYPE, BAD_SUM = "unrecognised_record_type", "checksum_mismatch"


@functools.cache
def form(name):
    catalogue = msgstore.load_catalogue()
    if name != "checksum":
        return FormatSet(catalogue).by_name(name).format
    return FormatSet(catalogue, {name: 4}, record=name, write_format="v2").by_name("v2").format


def read(name, data) -> tuple[list[tuple[int, int, bytes]], list[SegmentSpan]]:
    """Return the records, (offset, size, id) each, and all spans. Fails unless every byte is told once."""
    spans = read_spans(form(name), data)
    assert spans[0].offset in (0, len(form(name).header))
    assert all(one.end == other.offset and one.size for one, other in pairwise(spans)), "neither gap nor overlap"
    assert spans[-1].end == len(data)
    return [span[:3] for span in spans if span.id], spans


def damage_in(spans):
    return [(span.offset, span.size, span.reason) for span in spans if span.reason]


def holes_in(spans):
    return {span.offset: span.size for span in spans if not (span.id or span.reason)}


@pytest.mark.parametrize("answer", [lambda start: start - 1, lambda start: 10**6], ids=["before", "behind"])
def test_chain_outside_the_search_is_refused(answer):
    """A format that always looks from the beginning: the search would not end."""
    wrong = copy.copy(form("v2"))
    wrong.find_chain = lambda data, start, length=8: answer(start)
    with pytest.raises(ValueError, match="find_chain returns"):
        read_spans(wrong, wrong.header + b"?" * 90)


def flip(data, name, row, bit):
    """Flip a bit of the size that a record says that it has; return where it ends then."""
    last, more = (row[0] + 7, 9) if name == "v1" else (row[0] + 4, 0)
    data[last - bit // 8] ^= 1 << bit % 8
    return row[0] + int.from_bytes(data[last - 3 : last + 1], "big") + more


def id_of(n):
    return bytes([0xA0, n >> 8, n & 255]).rjust(16, b"i")


def segment(*parts):
    """Return the bytes and the records of a segment of v2; each part: the type of some records, and how many."""
    data, rows = bytearray(form("checksum").header), []
    for name, count in parts:
        numbers = range(len(rows), len(rows) + count)
        bodies = [b"message %d " % n * (5 + n % 7) for n in numbers]
        encoded, sizes = form(name).encode([id_of(n) for n in numbers], bodies)
        for n, size in zip(numbers, sizes, strict=True):
            rows.append((sum(rows[-1][:2]) if rows else len(data), size, id_of(n)))
        data += encoded
    return data, rows


def grow(data, rows, first, end):
    """Let the size of the first record reach over all up to the last."""
    data[rows[first][0] + 1 : rows[first][0] + 5] = sum(row[1] for row in rows[first:end]).to_bytes(4)


def check(name, data, rows, lost):
    """Check that all records are found but those of ``lost``, number to reason; return those that were found again."""
    found, spans = read(name, bytes(data))
    assert found == [row for n, row in enumerate(rows) if n not in lost]
    assert damage_in(spans) == [(*rows[n][:2], reason) for n, reason in lost.items()]
    return [span[:3] for span in spans if span.recovered and span.id]


def test_records_after_corrupt_span_are_found():
    data, rows = segment(("v2", 100))
    for n in (20, 60):
        data[rows[n][0]] = 0
    recovered = check("v2", data, rows, {20: BAD_TYPE, 60: BAD_TYPE})
    assert recovered == [row for n, row in enumerate(rows) if n > 20 and n != 60]


@pytest.mark.parametrize("swallowed", [1, 2, 20])
@pytest.mark.parametrize("inside", ["checksum", "v2"])
def test_records_inside_damaged_one_are_found(swallowed, inside):
    """With checks of their own, or without."""
    data, rows = segment((inside, 10), ("checksum", 1), (inside, 49))
    grow(data, rows, 10, 11 + swallowed)
    assert check("checksum", data, rows, {10: BAD_SUM}) == rows[11 : 11 + swallowed]


def test_damage_inside_damage_loses_only_what_it_hits():
    data, rows = segment(("checksum", 60))
    grow(data, rows, 10, 30)
    grow(data, rows, 12, 20)
    data[sum(rows[15][:2]) - 1] ^= 0x10
    data[rows[29][0]] = 0  # what is inside does not lead to the end, but each record proves itself
    check("checksum", data, rows, {10: BAD_SUM, 12: BAD_SUM, 15: BAD_SUM, 29: BAD_TYPE})


def test_unchecked_records_inside_must_lead_to_end():
    quoted, _ = segment(("v2", 20))
    data, sizes = form("checksum").encode([id_of(100), id_of(101)], [bytes(quoted[64:]) + b"!", b"after"])
    data = bytearray(form("checksum").header + data)
    data[64 + sizes[0] - 1] ^= 0x10
    check("checksum", data, [(64, sizes[0], id_of(100)), (64 + sizes[0], sizes[1], id_of(101))], {0: BAD_SUM})


def test_random_flips_lose_only_what_they_hit():
    original, rows = segment(("checksum", 400))
    chance = random.Random(7)
    for trial in range(40):
        data, hit = bytearray(original), set()
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(64, len(data))
            data[at] ^= 1 << chance.randrange(8)
            hit.add(next(n for n, (offset, size, _) in enumerate(rows) if offset <= at < offset + size))
        found, spans = read("checksum", bytes(data))
        assert set(found) <= set(rows)
        missing = {n for n, row in enumerate(rows) if row not in found}
        assert missing <= hit | {n + 1 for n in hit if n + 1 < 400 and n + 1 >= 392}, (trial, missing, hit)
        assert damage_in(spans)


@pytest.mark.parametrize("name", ["v2", "checksum"])
@pytest.mark.parametrize(
    ("first", "last"), [(20, 20), (-2, 3), (-2, 5), (0, 0)], ids=["before", "around", "far around", "at the wrong end"]
)
def test_other_damage_near_wrong_end_is_passed(name, first, last):
    """The size of record 10 is wrong. Of the records between two others that are damaged there are too few for a chain."""
    data = bytearray(CLEAN.read_bytes())
    rows, _ = read("v2", bytes(data))
    if name == "checksum":
        bodies = [data[slice(*form("v2").body_span(data, offset, size))] for offset, size, _ in rows]
        data = bytearray(form(name).header + form(name).encode([msg_id for _, _, msg_id in rows], bodies)[0])
        rows, _ = read(name, bytes(data))
    end = flip(data, name, rows[10], 14)
    at_end = next(n for n, (offset, size, _) in enumerate(rows) if offset < end < offset + size)
    first, last = (first, last) if first > 0 else (at_end + first, at_end + last)
    for n in {first, last}:
        data[rows[n][0]] ^= 0x40
    found, spans = read(name, bytes(data))
    assert found == rows[:10] + rows[11:first] + rows[last + 1 :]
    lost = (rows[first][0], sum(rows[last][:2]) - rows[first][0], BAD_TYPE)
    assert damage_in(spans) == [(*rows[10][:2], SIZE_MISMATCH), lost]


def test_wrong_end_at_hole_byte_is_found():
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
    rows, spans = read("v2", data)
    at = next(at for at, size in holes_in(spans).items() if size > 4)
    first = next(n for n, row in enumerate(rows) if row[0] > at)
    damaged = bytearray(data)
    damaged[at + 3] ^= 0x10
    damaged[rows[first + 12][0]] ^= 0x40
    found, spans = read("v2", bytes(damaged))
    assert found == rows[: first + 12] + rows[first + 13 :]
    assert damage_in(spans)[0] == (at, rows[first][0] - at, SIZE_MISMATCH)


def test_body_that_is_a_segment_stays_one():
    """Whatever is damaged in it, and although the record after it is damaged: what is inside ends where the body does."""
    inner = COMPACTED.read_bytes()
    rows, _ = read("v2", inner)
    bodies = [inner, inner + b"and more"]
    for n in (0, 20, 50, 95):
        for at, bits in ((rows[n][0], 0x40), (rows[n][0] + 3, 0x08), (rows[n][0] + 1, 0x80)):
            bodies.append(inner[:at] + bytes([inner[at] ^ bits]) + inner[at + 1 :])
    ids = [bytes([n]) * 16 for n in range(40)]
    for body in bodies:
        head, sizes = form("v2").encode(ids[:21], [b"before"] * 20 + [body])
        tail, [size, *_] = form("v2").encode(ids[21:], [b"after"] * 19)
        data = bytearray(form("v2").header + head + tail)
        spot = len(form("v2").header) + sum(sizes)
        data[spot] = 0x77
        found, spans = read("v2", bytes(data))
        assert [msg_id for _, _, msg_id in found] == ids[:21] + ids[22:]
        assert found[20][:2] == (spot - sizes[-1], sizes[-1])
        assert damage_in(spans) == [(spot, size, BAD_TYPE)]


def damage(name, data, rows, chance):
    """Damage two or three records, at least one of them with a wrong end: return which, and the wrong ends."""
    ends = {}
    for n in chance.sample(range(len(rows)), chance.choice((2, 3))):
        if not ends or chance.random() < 0.6:
            said = rows[n][1] - (9 if name == "v1" else 0)
            ends[n] = flip(data, name, rows[n], chance.choice([bit for bit in range(8, 18) if not said >> bit & 1]))
        else:
            data[rows[n][0]] ^= 1 << chance.randrange(3, 8)
            ends[n] = None
    return ends


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path", "seeds"), [("v2", CLEAN, 400), ("v2", COMPACTED, 300), ("v1", OLD, 300)])
def test_damage_costs_no_run_of_intact_records(name, path, seeds):
    """Except with ends that look right: where a record or a hole begins, in v1 after a byte 255, and in another damaged record
    if a hole follows. A run is long enough for a chain, or leads to the end of the file.
    """
    data = path.read_bytes()
    rows, spans = read(name, data)
    holes = holes_in(spans)
    borders = {len(data), *(row[0] for row in rows)}
    borders.update(at + n for at, size in holes.items() for n in range(max(1, min(size, 5))))
    tried = 0
    for seed in range(seeds):
        damaged = bytearray(data)
        ends = damage(name, damaged, rows, random.Random(seed))
        wrong = {end: sum(rows[n][:2]) in holes for n, end in ends.items() if end is not None and end <= len(data)}
        unclear = {rows[n][0] + at for n in ends for at in range(1, rows[n][1])}
        if any(
            end in borders or (end in unclear and has_hole) or (name == "v1" and damaged[end - 1] == 255)
            for end, has_hole in wrong.items()
        ):
            continue
        found, _ = read(name, bytes(damaged))
        runs = [range(begin + 1, end) for begin, end in pairwise([-1, *sorted(ends), len(rows)])]
        intact = {n for run in runs if len(run) >= CHAIN or run.stop == len(rows) for n in run}
        assert [n for n in intact if rows[n] not in found] == [], (seed, ends)
        tried += 1
    assert tried > seeds * 0.8
