"""Tests of what the format of ``tests/foreign`` does beyond the contract, which the conformance kit tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreign_ledger
from msgstore.contract import FormatContext, NoOptions

pytest.importorskip("foreign_backends", reason="pip install -e ./tests/foreign")

from foreign_backends.ledger import GAP_HEAD, HEADER, LedgerFormat, gap_head  # type: ignore[import-not-found]

FORM = LedgerFormat(FormatContext(NoOptions()))
bodies = st.binary(max_size=300) | st.sampled_from([b"", b"R" * 200, b"F\x01\x00" * 50, HEADER[:64], bytes(150)])
messages = st.dictionaries(st.binary(min_size=16, max_size=16), bodies, min_size=1, max_size=20)
keyed = st.dictionaries(st.binary(min_size=1, max_size=400), bodies, min_size=1, max_size=20)


@given(keyed, messages, st.booleans())
def test_scan_finds_records_of_another_program(before, after, index):
    data = foreign_ledger.ledger(before.items(), index=index)
    written = {foreign_ledger.message_id(key): body for key, body in before.items()}
    assert len(FORM.scan(data).hole_offsets) == index, "an INDEX is a hole"
    more = {msg_id: body for msg_id, body in after.items() if msg_id not in written}
    data += FORM.encode(list(more), list(more.values()))[0]
    scan = FORM.scan(data)
    assert scan.end.state == "clean"
    assert {i: FORM.decode(i, data[at : at + size]) for i, at, size, _ in scan.records.rows()} == {**more, **written}
    assert FORM.scan(data + bytes(5000)).end.state == "torn"  # a file may grow by zeros when its writer loses power
    assert FORM.scan(data + b"\0" * 5 + b"x").end.state == "corrupt"


@pytest.mark.parametrize("size", [1, GAP_HEAD - 1, GAP_HEAD, 200, 2**20])
def test_gap_head_hides_gap_of_any_size(size):
    scan = FORM.scan(HEADER + gap_head(size).ljust(size, b"?"))
    assert (scan.end.state, sum(scan.hole_sizes)) == ("clean", size)
