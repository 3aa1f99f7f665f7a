"""Filling gaps: what is written, and what a crash in between leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from msgstore.contract import FormatContext, GapFill, NoOptions
from msgstore_format_v1.format import SegmentFormatV1

V1 = SegmentFormatV1(FormatContext(NoOptions()))


def encode(msg_id: bytes, body: bytes) -> bytes:
    return V1.encode([msg_id], [body])[0]


def crashes(data: bytes, fill: GapFill) -> Iterator[bytes]:
    """The segment after every write, and inside each after every sector; last, the whole of it."""
    state = bytearray(data)
    for offset, new in (*fill.prepare, *fill.inside, *fill.seal):
        for cut in range(offset // 512 * 512 + 512, offset + len(new), 512):
            yield bytes(state[:offset]) + new[: cut - offset] + bytes(state[cut:])
        state[offset : offset + len(new)] = new
        yield bytes(state)


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_anywhere_leaves_every_live_record(seed: int) -> None:
    """Bodies are random: of those that are made of fake records a scan of this format can be the victim at any time."""
    rng = random.Random(seed)
    same_size = rng.choice([0, 0, 700, 3000])

    def body() -> bytes:
        return rng.randbytes(same_size or rng.choice([rng.randrange(100), rng.randrange(3000), rng.randrange(60_000)]))

    dead = [encode(rng.randbytes(16), body()) for _ in range(rng.randrange(1, 6))]
    live = {rng.randbytes(16): body() for _ in range(rng.randrange(2, 7))}
    first, after, *movable = [encode(msg_id, stored) for msg_id, stored in live.items()]
    gap = b"".join(dead)
    if rng.random() < 0.5:
        gap += bytes(rng.randrange(1, 2000))
    moved: list[bytes] = []
    for one in movable:
        if len(b"".join(moved)) + len(one) <= V1.gap_room(len(first), len(gap)):
            moved.append(one)
    data = first + gap + after + b"".join(movable)
    fill = V1.fill_gap(len(first), len(gap), moved)
    end = data
    for end in crashes(data, fill):
        scan = V1.scan(end)
        assert scan.end.state == "clean"
        first_copies = {i: V1.decode(i, end[offset : offset + size]) for i, offset, size, _ in scan.records.rows()}
        assert {msg_id: first_copies[msg_id] for msg_id in live} == live
        places = {(offset, size) for columns in (scan.records, scan.duplicates) for _, offset, size, _ in columns.rows()}
        at = len(first) + len(gap)
        for one in (after, *movable):
            assert (at, len(one)) in places
            at += len(one)

    run = b"".join(moved)
    assert end == first + run.ljust(len(gap), b"\0") + after + b"".join(movable)


def test_an_old_end_mark_never_completes_a_torn_record() -> None:
    """Dead and moved record of one size: written over each other without zeros, a crash would leave a record of both."""
    gap, moved = encode(b"dead".ljust(16), b"d" * 2000), encode(b"live".ljust(16), b"l" * 2000)
    for end in crashes(gap + moved, V1.fill_gap(0, len(gap), [moved])):
        scan = V1.scan(end)
        for msg_id, offset, size, _ in scan.records.rows():
            assert set(V1.decode(msg_id, end[offset : offset + size])) == {msg_id[0]}
        assert b"live".ljust(16) in scan.records.id_list()


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_among_the_moved_records_shows_no_half_copy(seed: int) -> None:
    """Zeros are synced before, sizes are written after: of what is between any sector may be missing."""
    rng = random.Random(seed)
    live = {rng.randbytes(16): rng.randbytes(rng.randrange(400, 3000)) for _ in range(4)}
    first, *moved = [encode(msg_id, body) for msg_id, body in live.items()]
    fill = V1.fill_gap(len(first), 10_000, moved)
    start = first + bytes(10_000) + b"".join(moved)
    data = bytearray(start)
    for offset, new in fill.inside:
        data[offset : offset + len(new)] = new
    for at in range(0, len(data), 512):
        if rng.random() < 0.5:
            data[at : at + 512] = start[at : at + 512]
    scan = V1.scan(bytes(data))
    assert scan.end.state == "clean"
    assert {i: V1.decode(i, bytes(data[at : at + size])) for i, at, size, _ in scan.records.rows()} == live


def test_room() -> None:
    assert V1.gap_room(0, 24) == 0
    assert V1.gap_room(0, 25) == 25
    assert V1.gap_room(510, 1000) == 1000
    assert V1.fill_gap(7, 30, []) == GapFill(prepare=[(7, bytes(30))])
    assert V1.fill_gap(500, 600, []).prepare == [(1024, bytes(76)), (512, bytes(512)), (500, bytes(12))]
    assert V1.fill_gap(512, 0, []) == V1.fill_gap(512, 0, [b""]) == GapFill(prepare=[])
    with pytest.raises(ValueError, match="no room"):
        V1.fill_gap(0, 24, [encode(b"x" * 16, b"")])
