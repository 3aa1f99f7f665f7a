"""``verify`` finds each way in which index, counts and segments can contradict each other."""

from __future__ import annotations

import os

import pytest

import msgstore
from core_support import columns, objects, rows_of, run
from msgstore.locations import pack_location

IDS = [bytes([n]) * 16 for n in range(10)]


def verify(store):
    """(findings, summary, text), which agree with the exit code."""
    result = run("verify", "--json", store)
    *found, summary = objects(result)
    findings = [finding for one in found if one["kind"] == "segment" for finding in one["findings"]]
    text = run("verify", store, code=result.exit_code).stdout
    assert (result.exit_code, summary["findings"]) == (0 if summary["ok"] else 1, len(findings))
    return findings, summary, text


@pytest.fixture(params=["ets", "lmdb"])
def store(request, tmp_path):
    """Ten messages of 25 bytes each in ``0.sqs``, on disk; whoever damages the index closes it."""
    opened = msgstore.open_store(tmp_path, index=request.param, gc_interval=0)
    with opened.client() as client:
        client.write_many((msg_id, b"body") for msg_id in IDS)
    return opened


def test_verify_of_sound_store_finds_nothing(store):
    store.close()
    findings, summary, text = verify(store.path)
    assert (findings, summary["ok"], summary["counted"], summary["verified"]) == ([], True, 10, 10)
    assert "10 of 10 live messages verified" in text


OUTSIDE = {"outside_the_segment": (3, "the segment's records are between 64 and 314")}
WRONG_LOCATIONS = [
    (3, 64 + 250, 25, OUTSIDE, 1),
    (3, 64 + 230, 50, OUTSIDE | {"overlap": (3, f"the record before it, {IDS[9].hex()}, ends at 314")}, 1),
    (3, 10, 25, OUTSIDE, 1),
    (3, 2**39, 25, OUTSIDE, 1),
    (3, 64 + 4 * 25, 25, {"same_place": (4, f"so is {IDS[3].hex()}")}, 1),  # the record has one id
    (3, 64 + 3 * 25, 26, {"overlap": (4, f"the record before it, {IDS[3].hex()}, ends at 165")}, 1),
    (9, 64 + 9 * 25, 24, {}, 1),
]


@pytest.mark.parametrize(("entry", "offset", "size", "expected", "unreachable"), WRONG_LOCATIONS)
def test_verify_of_wrong_location_names_contradiction(store, entry, offset, size, expected, unreachable):
    store._index.enter([IDS[entry]], [pack_location(0, offset, size)])
    store.close()
    findings, summary, text = verify(store.path)
    assert (summary["ok"], summary["unreachable"], summary["verified"]) == (False, unreachable, 10 - unreachable)
    found = {finding["what"]: finding for finding in findings}
    assert found.keys() == expected.keys() | ({"live_bytes"} if size != 25 else set())
    for what, (owner, detail) in expected.items():
        assert (found[what]["id"], found[what]["detail"]) == (IDS[owner].hex(), detail)
        assert f"0.sqs at offset {found[what]['offset']}: {IDS[owner].hex()}: {what}: {detail}" in text


def test_verify_of_entry_without_reference_fails(tmp_path):
    """With ``lmdb``; ``ets`` has no way to keep such an entry."""
    with msgstore.open_store(tmp_path, index="lmdb") as store:
        with store.client() as client:
            client.write(IDS[3], b"body")
        store._index.enter([IDS[3]], [pack_location(0, 64, 25)], [0])
    findings, summary, _ = verify(tmp_path)
    assert (summary["ok"], columns(findings, "what", "id")) == (False, [("no_reference", IDS[3].hex())])


@pytest.mark.parametrize(("count", "size"), [(1, 0), (0, 5), (-1, -25)])
def test_verify_of_wrong_row_names_count(store, count, size):
    (segment,) = store._segments
    segment.live_count += count
    segment.live_bytes += size
    store.close()
    findings, summary, _ = verify(store.path)
    expected = [(name, None) for name, delta in (("live_count", count), ("live_bytes", size)) if delta]
    assert (summary["ok"], columns(findings, "what", "id"), summary["verified"]) == (False, expected, 10)


def test_verify_of_missing_entry_names_counts(store):
    """The row still counts it: a message was lost by the index."""
    store._index.release([IDS[7]])
    store.close()
    findings, summary, text = verify(store.path)
    assert (summary["ok"], [f["what"] for f in findings], summary["messages"]) == (False, ["live_count", "live_bytes"], 9)
    assert "counts 10 live records, the index has 9" in text


@pytest.mark.parametrize(("size", "said"), [(None, "is missing"), (300, "has 300 of 314 bytes")])
def test_verify_of_lost_segment_fails(store, size, said):
    """Everything that is there agrees; what the index knew of the rest is told, and nothing is written."""
    store.roll()
    with store.client() as client:
        client.write(b"other" + bytes(11), b"body")
    store.close()
    path = store.path / "0.sqs"
    path.unlink() if size is None else os.truncate(path, size)
    for _ in range(2):
        findings, summary, text = verify(store.path)
        assert (findings, summary["ok"], summary["missing"]) == ([], False, 10 if size is None else 1)
        assert summary["lost"] == [f"0.sqs: {said}; the index has 10 live messages in it"]
        assert summary["lost"][0] in text
        assert "no damage" not in text
        for verb in ("info", "scrub"):
            assert summary["lost"][0] in run(verb, store.path, code=1).stdout
        run("ls", store.path, code=1)
    spot = {"kind": "damage", "path": str(path), "offset": size or 0, "size": 314 - (size or 0)}
    assert {**spot, "reason": "missing" if size is None else "shortened"} in rows_of("compact", store.path, code=1)
    if size is None:
        assert verify(store.path)[1]["ok"]
