"""Filling gaps: what is written, and that a crash anywhere in between loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msgstore.contract import FormatContext, GapFill, NoOptions
from msgstore_format_v2.format import SegmentFormatV2

V2 = SegmentFormatV2(FormatContext(NoOptions()))


def encode(msg_id: bytes, body: bytes) -> bytes:
    return V2.encode([msg_id], [body])[0]


def bodies_of(data: bytes) -> dict[bytes, bytes]:
    """The first copy of each id, from a segment in which nothing is wrong."""
    scan = V2.scan(data)
    assert scan.end.state == "clean"
    assert not scan.damage
    return {i: V2.decode(i, data[offset : offset + size]) for i, offset, size, _ in scan.records.rows()}


def crashes(data: bytes, fill: GapFill) -> Iterator[bytes]:
    """The segment after every write, and inside each after every sector; last, the whole of it."""
    state = bytearray(data)
    for offset, new in (*fill.prepare, *fill.inside, *fill.seal):
        first_boundary = offset // 512 * 512 + 512
        for cut in range(first_boundary, offset + len(new), 512):
            yield bytes(state[:offset]) + new[: cut - offset] + bytes(state[cut:])
            yield bytes(state[:cut]) + new[cut - offset :] + bytes(state[offset + len(new) :])
        state[offset : offset + len(new)] = new
        yield bytes(state)


@settings(database=None)
@given(
    before=st.binary(max_size=600),
    dead=st.lists(st.binary(max_size=700), min_size=1, max_size=5),
    moved=st.lists(st.binary(max_size=400), max_size=4),
    after=st.binary(max_size=40),
)
def test_a_crash_anywhere_leaves_every_live_record(before, dead, moved, after):
    first, gap = encode(b"before".ljust(16), before), b"".join(encode(b"dead%12d" % at, body) for at, body in enumerate(dead))
    offset = 64 + len(first)
    room = V2.gap_room(offset, len(gap))
    records: list[bytes] = []
    for at, body in enumerate(moved):
        record = encode(b"live%12d" % at, body)
        if len(b"".join(records)) + len(record) <= room:
            records.append(record)
    live = {b"before".ljust(16): before, b"after".ljust(16): after} | {record[5:21]: record[21:] for record in records}
    data = V2.header + first + gap + encode(b"after".ljust(16), after) + b"".join(records)
    fill = V2.fill_gap(offset, len(gap), records)
    end = data
    for end in crashes(data, fill):
        found = bodies_of(end)
        assert {msg_id: found[msg_id] for msg_id in live} == live

    moved_bytes = sum(map(len, records))
    written = sum(len(new) for _, new in (*fill.prepare, *fill.inside, *fill.seal))
    assert written <= (moved_bytes + 10 if records else 0)
    if records:
        scan = V2.scan(end)
        assert end[offset : offset + moved_bytes] == b"".join(records)
        left = len(gap) - moved_bytes
        assert list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)) == [(offset + moved_bytes, left)] * (left > 0)
        assert len(scan.duplicates) == len(records)


def test_bytes_inside_before_the_seal_are_hidden():
    rng = random.Random(7)
    records = [encode(bytes([at]) * 16, rng.randbytes(500)) for at in range(4)]
    run = b"".join(records)
    data = V2.header + encode(b"dead".ljust(16), bytes(len(run))) + encode(b"next".ljust(16), b"") + run
    fill = V2.fill_gap(64, len(run) + 21, records)
    ((offset, inside),) = fill.inside
    ((_, head),) = fill.prepare
    for _ in range(50):
        noise = rng.randbytes(len(inside))
        found = bodies_of(data[:64] + head + noise + data[offset + len(noise) :])
        assert len(found) == 5


def test_room():
    assert V2.gap_room(64, 20) == 0
    assert V2.gap_room(64, 21) == 21
    assert [V2.gap_room(offset, 100) for offset in range(506, 514)] == [100, 100, 0, 0, 0, 0, 100, 100]
    assert V2.fill_gap(64, 1000, []) == GapFill()
    with pytest.raises(ValueError, match="room for 0"):
        V2.fill_gap(510, 100, [encode(b"x" * 16, b"")])
