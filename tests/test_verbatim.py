"""What a stranger's record type keeps beside the body stays as it is, wherever the record goes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from msgstore.contract import Combine, Compact
from support import ACME_CELLS, collect, open_with

pytestmark = pytest.mark.skipif(
    find_spec("acme_audit_record") is None, reason="python -m pip install -e ./examples/acme_audit_record"
)


def records(store):
    return {entry.msg_id: store.record(entry).data for entry in store.entries()}


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("action", [Combine((0, 1)), Compact(0)], ids=["combine", "compact"])
def test_records_are_moved_byte_for_byte(index, tmp_path, action, erase):
    cell = ACME_CELLS[f"{index}-v2-audit"]
    with open_with(tmp_path, **cell.keys, erase=erase) as store, store.client() as client:
        ids = [bytes([number]) * 16 for number in range(20)]
        for part in (ids[:10], ids[10:]):
            client.write_many((msg_id, msg_id * 9) for msg_id in part)
            store.roll()
        client.remove(ids[::3])
        store.flush()
        before = records(store)
        assert {done.outcome for done in collect(store, action)} <= {"combined", "compacted"}
        assert records(store) == before
        assert all(b"tests" in record for record in before.values())
