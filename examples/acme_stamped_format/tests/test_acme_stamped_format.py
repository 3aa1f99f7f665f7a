"""Tests that are specific to stamped segments. msgstore's conformance kit tests the requirements of every format:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-stamped-format
"""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

import msgstore
from acme_stamped_format.format import Stamped
from msgstore.cli.main import main
from msgstore.contract import FormatContext, NoOptions, RecordError

ID = bytes(range(16))


@pytest.fixture
def stamped() -> Stamped:
    return Stamped(FormatContext(NoOptions()))


def test_encode_writes_documented_layout(stamped):
    before = time.time_ns()
    record, sizes = stamped.encode([ID], [b"hello"])
    assert sizes == [len(record)] == [28 + 5]
    assert record[:20] == (33).to_bytes(4) + ID
    assert before <= int.from_bytes(record[20:28]) <= time.time_ns()
    assert record[28:] == b"hello"


def test_field_is_time_of_writing(stamped):
    record, _ = stamped.encode([ID], [b""])
    assert stamped.fields(record) == (int.from_bytes(record[20:28]),)


@pytest.mark.parametrize("damaged", [bytes(28), b"", bytes(20) + (2 * 10**18).to_bytes(8), b"\xff" * 40])
def test_decode_refuses_what_scan_refuses(stamped, damaged):
    with pytest.raises(RecordError, match="invalid_message_size"):
        stamped.decode(ID, damaged)
    assert len(stamped.scan(damaged).records) == 0


def test_tools_show_field(tmp_path):
    with msgstore.open_store(tmp_path / "orders", format="stamped") as store, store.client() as client:
        client.write(ID, b"hello")
    got = json.loads(CliRunner().invoke(main, ["get", str(tmp_path / "orders"), ID.hex(), "--fields", "--json"]).output)
    assert got["record"] is None
    assert list(got["fields"]) == ["written"]
