"""Tests of what the format ``ledger`` promises beyond the contract, which the conformance kit tests."""

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


@given(keyed, st.booleans())
def test_scan_finds_records_of_another_program(written, index):
    data = foreign_ledger.ledger(written.items(), index=index)
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert len(scan.hole_offsets) == index, "an INDEX is a hole"
    assert found(data) == {foreign_ledger.message_id(key): body for key, body in written.items()}


@given(keyed, messages)
def test_scan_finds_records_after_index(before, after):
    data = foreign_ledger.ledger(before.items())
    written = {foreign_ledger.message_id(key): body for key, body in before.items()}
    more, _ = segment({i: body for i, body in after.items() if i not in written})
    whole = data + more[len(HEADER) :]
    assert found(whole) == {**after, **written}


@given(messages, st.data())
def test_scan_detects_every_flipped_bit(written, data):
    whole, _ = segment(written)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    scan = FORM.scan(bytes(flipped))
    is_detected = scan.header != "ok" or scan.damage or scan.end.state != "clean"
    assert is_detected
    assert found(bytes(flipped)).items() <= written.items()
    if bit // 8 >= len(HEADER) and scan.damage:  # damage to a body or key: the scan continues after it
        assert len(scan.records) == len(written) - 1


@given(messages)
def test_scan_of_file_with_trailing_zeros_ends_torn(written):
    whole, _ = segment(written)
    scan = FORM.scan(whole + bytes(5000))
    assert (scan.end.state, scan.end.offset) == ("torn", len(whole))
    assert FORM.scan(whole + b"\0" * 5 + b"x").end.state == "corrupt"


@given(messages, st.data())
def test_find_chain_after_damage_returns_next_record(written, data):
    whole, sizes = segment(written)
    at = data.draw(st.integers(0, len(sizes) - 1))
    offset = len(HEADER) + sum(sizes[:at])
    damaged = bytearray(whole)
    damaged[offset] = 0xEE
    scan = FORM.scan(bytes(damaged))
    assert (scan.end.state, scan.end.offset, scan.end.reason) == ("corrupt", offset, "unknown_element")
    chain = FORM.find_chain(bytes(damaged), offset + 1)
    next_record = offset + sizes[at] if at + 1 < len(sizes) else None
    assert chain == next_record or chain < offset + sizes[at]  # a body may contain a ledger


@pytest.mark.parametrize("size", [1, GAP_HEAD - 1, GAP_HEAD, 200, 2**20])
def test_gap_head_hides_gap_of_any_size(size):
    data = HEADER + gap_head(size).ljust(size, b"?")
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert sum(scan.hole_sizes) == size


def test_decode_invalid_record_raises_with_reason():
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
