"""The format ``ledger`` alone: round trips, gaps, trailers, damage, and files that somebody else wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreign_ledger
from msgstore.contract import FormatContext, NoOptions, RecordError

pytest.importorskip("foreign_backends", reason="pip install -e ./tests/foreign")

from foreign_backends.grammar import GAP_HEAD, HEADER, gap_head  # type: ignore[import-not-found]
from foreign_backends.ledger import LedgerFormat  # type: ignore[import-not-found]

FORM = LedgerFormat(FormatContext(NoOptions()))
ids = st.binary(min_size=16, max_size=16)
bodies = st.binary(max_size=300) | st.sampled_from([b"", b"R" * 200, b"F\x01\x00" * 50, HEADER[:64], bytes(150)])
messages = st.dictionaries(ids, bodies, min_size=1, max_size=20)
keyed = st.dictionaries(st.binary(min_size=1, max_size=400), bodies, min_size=1, max_size=20)


def segment(written: dict[bytes, bytes]) -> tuple[bytes, list[int]]:
    data, sizes = FORM.encode(list(written), list(written.values()))
    assert len(data) == sum(sizes)
    return HEADER + data, sizes


def found(data: bytes) -> dict[bytes, bytes]:
    return {i: FORM.decode(i, data[at : at + size]) for i, at, size, _ in FORM.scan(data).records.rows()}


@given(messages)
def test_what_is_encoded_is_found(written):
    data, sizes = segment(written)
    scan = FORM.scan(data)
    assert (scan.header, scan.end.state, scan.end.offset) == ("ok", "clean", len(data))
    assert list(scan.records.sizes) == sizes
    assert found(data) == written
    for _, at, size, _ in scan.records.rows():
        begin, end = FORM.body_span(data, at, size)
        assert data[begin:end] == written[scan.records.id_list()[list(scan.records.offsets).index(at)]]


@given(keyed, st.booleans())
def test_what_somebody_else_wrote_is_found(written, index):
    data = foreign_ledger.ledger(written.items(), index=index)
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert bool(scan.trailer) == index
    assert found(data) == {foreign_ledger.message_id(key): body for key, body in written.items()}


@given(keyed)
def test_a_trailer_is_what_somebody_else_would_write(written):
    data = foreign_ledger.ledger(written.items(), index=False)
    assert data + FORM.trailer(data) == foreign_ledger.ledger(written.items())


@given(messages, messages)
def test_what_is_written_behind_a_trailer_is_found(before, after):
    data, _ = segment(before)
    data += FORM.trailer(data)
    more, _ = segment({i: body for i, body in after.items() if i not in before})
    whole = data + more[len(HEADER) :]
    assert found(whole) == {**after, **before}
    assert bool(FORM.scan(whole).trailer) == (whole == data)
    assert found(whole + FORM.trailer(whole)) == found(whole)


@given(messages, st.data())
def test_a_file_that_is_cut_anywhere_is_torn_behind_whole_records(written, data):
    whole, sizes = segment(written)
    end = len(whole)
    whole += FORM.trailer(whole)
    cut = data.draw(st.integers(0, len(whole) - 1))
    scan = FORM.scan(whole[:cut])
    complete = [at for at in range(len(sizes)) if len(HEADER) + sum(sizes[: at + 1]) <= cut]
    assert len(scan.records) == len(complete)
    boundary = cut in (end, *(len(HEADER) + sum(sizes[:at]) for at in range(len(sizes))))
    assert scan.end.state == ("clean" if boundary else "torn")
    assert not scan.damage
    assert not scan.trailer


@given(messages, st.data())
def test_no_flipped_bit_goes_unnoticed(written, data):
    whole, _ = segment(written)
    whole += FORM.trailer(whole)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    scan = FORM.scan(bytes(flipped))
    noticed = scan.header != "ok" or scan.damage or scan.end.state != "clean"
    assert noticed
    assert found(bytes(flipped)).items() <= written.items()
    if bit // 8 >= len(HEADER) and scan.damage:  # a body or a key: reading goes on behind it
        assert len(scan.records) == len(written) - 1


@given(messages)
def test_a_file_that_has_grown_by_zeros_is_torn(written):
    whole, _ = segment(written)
    scan = FORM.scan(whole + bytes(5000))
    assert (scan.end.state, scan.end.offset) == ("torn", len(whole))
    assert FORM.trailer(whole + bytes(5000)) == b""
    assert FORM.scan(whole + b"\0" * 5 + b"x").end.state == "corrupt"


@given(messages, st.data())
def test_a_chain_is_found_behind_a_corrupt_spot(written, data):
    whole, sizes = segment(written)
    at = data.draw(st.integers(0, len(sizes) - 1))
    offset = len(HEADER) + sum(sizes[:at])
    damaged = bytearray(whole)
    damaged[offset] = 0xEE
    scan = FORM.scan(bytes(damaged))
    assert (scan.end.state, scan.end.offset, scan.end.reason) == ("corrupt", offset, "unknown_element")
    behind = FORM.find_chain(bytes(damaged), offset + 1)
    assert (
        behind == (offset + sizes[at] if at + 1 < len(sizes) else None) or behind < offset + sizes[at]
    )  # a body may be a ledger


@given(st.integers(1, 3000), st.integers(0, 600), messages)
def test_at_no_step_of_a_fill_is_anything_outside_lost(gap, shift, written):
    left = {b"\x01" * 16: bytes(shift)}
    right = {b"\x02" * 16: b"right"}
    data, _ = segment(left)
    dead, _ = FORM.encode([b"\x03" * 16], [bytes(gap)])
    offset = len(data)
    end = offset + len(dead)
    data = bytearray(data + dead + segment(right)[0][len(HEADER) :])
    room = FORM.gap_room(offset, len(dead))
    moved = {i: body for i, body in written.items() if i not in (*left, *right)}
    records = [FORM.encode([i], [body])[0] for i, body in moved.items()]
    while sum(map(len, records)) > room:
        records.pop()
    fill = FORM.fill_gap(offset, len(dead), records)
    for step in (fill.prepare, fill.inside, fill.seal):
        for at, chunk in step:
            assert offset <= at <= at + len(chunk) <= end
            if step is not fill.inside:
                assert at // 512 == (at + len(chunk) - 1) // 512
            half = bytearray(data)
            half[at : at + len(chunk) // 2] = chunk[: len(chunk) // 2]
            if step is fill.inside:
                assert found(bytes(half)).keys() >= {*left, *right}
            data[at : at + len(chunk)] = chunk
        assert found(bytes(data)).keys() >= {*left, *right}
        assert FORM.scan(bytes(data)).end.state == "clean"
    if records:
        assert found(bytes(data)) == {**left, **right, **dict(list(moved.items())[: len(records)])}


@pytest.mark.parametrize("size", [1, GAP_HEAD - 1, GAP_HEAD, 200, 2**20])
def test_a_gap_of_any_size_can_be_hidden(size):
    data = HEADER + gap_head(size).ljust(size, b"?")
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert sum(scan.hole_sizes) == size


def test_a_record_says_what_is_wrong_with_it():
    (data, _), msg_id = FORM.encode([b"\x07" * 16], [b"body"]), b"\x07" * 16
    for record, reason in [
        (data[:-1], "size_mismatch"),
        (data + b"x", "size_mismatch"),
        (b"", "size_mismatch"),
        (b"G" + data[1:], "head_checksum_mismatch"),
        (data[:6] + b"x" + data[7:], "id_mismatch"),
        (data[:-5] + b"x" + data[-4:], "checksum_mismatch"),
        (gap_head(40).ljust(40), "not_a_record"),
    ]:
        with pytest.raises(RecordError) as caught:
            FORM.decode(msg_id, record)
        assert caught.value.reason == reason
    assert FORM.decode(msg_id, data) == b"body"


@given(st.binary(max_size=2000))
def test_no_bytes_make_it_raise(garbage):
    for data in (garbage, HEADER + garbage):
        FORM.scan(data)
        FORM.find_chain(data, 0)
        FORM.trailer(data)
