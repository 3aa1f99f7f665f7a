"""``map``: bars in the terminal, and the page of ``--html`` without a browser: its data, and what becomes of FILE.

``tests/test_map_browser.py`` looks at the page itself.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import msgstore
from core_support import (
    BROKER,
    STORES,
    columns,
    copy_of,
    counts_of,
    flip,
    manifest_of,
    raising,
    refused,
    rows_of,
    run,
    store_of,
)
from msgstore.cli.commands.map import as_inline_json
from msgstore.cli.commands.scan import scan_inputs
from msgstore.cli.spans import MAX_LISTED_SPANS, Merged, PageData, Span, merge_short, totals
from msgstore.contract import Capability, Combine, Compact, Drop, GcPolicyDescriptor
from msgstore.files import Files
from msgstore.jobs.inputs import find_inputs
from msgstore.plugins.loader import Provider, Registration
from support import filled

COMPACTED = store_of("v2_compacted")


@pytest.mark.parametrize("name", STORES)
def test_map_covers_every_byte_once(name):
    is_dirty = "dirty" in name
    kinds = {"header", "hole", "torn", "record"} if is_dirty else {"header", "hole", "live", "dead"}
    for drawing in rows_of("map", store_of(name), code=1 if "torn" in name else 0):
        at = 0
        for span in drawing["spans"]:
            assert span["offset"] == at
            at += span["size"]
        assert at == drawing["size"]
        assert (drawing["live_percent"] is None) == is_dirty
        assert {span["kind"] for span in drawing["spans"]} <= kinds


def test_map_knows_live_by_counts_or_index(tmp_path):
    store, counts = copy_of("mixed_upgrade", tmp_path / "store"), counts_of("mixed_upgrade", tmp_path / "counts.csv")
    valid = {row["file"]: row["valid_total_size"] for row in manifest_of("mixed_upgrade")["metadata"][0]["file_summary"]}
    by_counts = rows_of("map", "--refcounts", counts, store)
    assert {int(Path(drawing["path"]).stem): drawing["live_bytes"] for drawing in by_counts} == valid
    run("compact", store, "--adopt", "--refcounts", counts, code=0)
    assert all(drawing["live_bytes"] for drawing in rows_of("map", store))
    text = run("map", store).stdout
    assert "█ live" in text
    assert "% live" in text


def test_map_without_colour_tells_kinds_apart(tmp_path):
    """On a narrow terminal, a small gap is drawn as what is around it."""
    contents = ((COMPACTED / "3.sqs").read_bytes(), (store_of("v2_dirty_torn") / "1.sqs").read_bytes(), b"")
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.sqs").write_bytes(content)
    flip(tmp_path / "0.sqs", 64, 0xFF)
    text = run("map", tmp_path, code=1).stdout
    first, second, _ = text.splitlines()[1:4]
    assert ("XXX" in first, "▓~" in second, "\x1b" in text) == (True, True, False)
    narrow, wide = (run("map", store_of("mixed_upgrade"), columns=width).stdout for width in (80, 4000))
    assert "too small to be shown here: hole\n" in narrow
    assert "too small" not in wide


# -- data of the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def draw(tmp_path):
    """``draw(*arguments)``: the data of the page that ``map --html`` makes of them."""

    def drawn(*arguments: object, code: int = 0) -> dict[str, Any]:
        run("map", "--html", tmp_path / "map.html", *arguments, code=code)
        page = (tmp_path / "map.html").read_text(encoding="utf-8")
        [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        found: dict[str, Any] = json.loads(text)
        return found

    return drawn


def page_data(*paths, catalogue=None, **bounds):
    """Return the data of a page of the inputs, without a file."""
    catalogue = catalogue or msgstore.load_catalogue()
    found = find_inputs(catalogue, paths)
    data = PageData(catalogue, found.size, **bounds)
    for report in scan_inputs(found):
        data.add(report, None)
    return data.as_json(0)


def pieces(segment):
    """Return (offset, piece) of each piece, which together have the segment's size."""
    found, at = [], 0
    for piece in segment["pieces"]:
        found.append((at, piece))
        at += piece[0]
    assert at == segment["size"]
    return found


def records(segment):
    """Return (id, offset, size, type, references, kind) of each record."""
    rows = ((at, [*piece, *[""] * 6][:6]) for at, piece in pieces(segment))
    return [(msg_id, at, size, name, count or 0, kind) for at, (size, kind, _, msg_id, name, count) in rows if msg_id]


@pytest.mark.parametrize("name", STORES)
def test_page_has_every_record_of_the_broker(name, tmp_path, draw):
    manifest = manifest_of(name)
    counts = {m["id"]: m["refcount"] for m in manifest["messages"]}
    torn = manifest.get("torn", {})
    [store] = draw(store_of(name), "--refcounts", counts_of(name, tmp_path / "counts.csv"), code=1 if torn else 0)["stores"]
    assert store["live_known"]
    latest = {record["id"]: segment["name"] for segment in manifest["segments"] for record in segment["records"]}
    for segment, written in zip(store["segments"], manifest["segments"], strict=True):
        is_old, layout = written["format"] == "v1", written["layout"]
        assert segment["file"] == written["name"]
        expected = []
        for msg_id, *place in columns(written["records"], "id", "offset", "total_size"):
            alive = counts[msg_id] if latest[msg_id] == segment["file"] else 0
            expected.append((msg_id, *place, "" if is_old else "message (type 3)", alive, "live" if alive else "dead"))
        assert records(segment) == expected
        holes = {(offset, piece[0]) for offset, piece in pieces(segment) if piece[1] == "hole"}
        assert holes >= set(columns(layout["gaps" if is_old else "holes"], "offset", "size"))
    assert store["damage"] == ([[torn["file"], torn["record_offset"], torn["kept_bytes"], "torn"]] if torn else [])


def one_in_five(name, to):
    """Counts that name, of the older half of the segments, only each fifth message."""
    old = {record["id"] for segment in manifest_of(name)["segments"][:2] for record in segment["records"]}
    return counts_of(name, to, lambda message: message["id"] not in old or message["n"] % 5 == 0)


@pytest.mark.parametrize("name", STORES)
def test_policies_see_what_a_store_shows_them(name, tmp_path, monkeypatch, draw):
    counts, copy, is_torn = one_in_five(name, tmp_path / "counts.csv"), copy_of(name, tmp_path / "store"), "torn" in name
    asked = []
    monkeypatch.setattr("msgstore.cli.spans.forecast", lambda catalogue, seen, now: asked.append(seen) or iter(()))
    draw(copy, "--refcounts", counts, code=1 if is_torn else 0)
    rows = [line.split(",") for line in counts.read_text().splitlines()[1:]]
    refcounts = [(bytes.fromhex(msg_id), int(count)) for msg_id, count in rows]
    # A torn end is cut off, or sealed, when a store is opened: not before.
    unlike = {"size": 0, "sealed_at": 0} if is_torn else {}
    with msgstore.open_store(copy, adopt=True, gc_interval=0, refcounts=refcounts) as store:
        assert [attrs.evolve(s, **unlike) for s in asked[0].stats] == [attrs.evolve(s, **unlike) for s in store.segments()]


@pytest.mark.parametrize("name", ["v1_compacted", "v2_compacted"])
def test_plan_of_policy_is_what_it_does(name, tmp_path, draw):
    counts, store = one_in_five(name, tmp_path / "counts.csv"), copy_of(name, tmp_path / "store")
    [plan] = [p for p in draw(store, "--refcounts", counts)["stores"][0]["plans"] if p["name"] == "half-empty"][:1]
    assert plan["steps"]
    really = {
        c["file"]: c["size_before"] - c["size_after"] - (0 if c["size_after"] else c["written"])  # in place, or a copy of it
        for c in rows_of("compact", store, "--adopt", "--refcounts", counts)
        if c["kind"] == "segment" and c["outcome"] == "compacted"
    }
    assert {step["files"][0]: step["gives_back"] for step in plan["steps"]} == pytest.approx(really, rel=0.02)


def test_page_bounds_list_of_damage(tmp_path, draw):
    """It names record types of third parties, and marks segments that no policy may touch."""
    keys = {"record": "checksum", "format": {"use": "v2", "records": {"checksum": 200}}}
    filled(tmp_path / "store", ((n.to_bytes(16), b"body") for n in range(MAX_LISTED_SPANS + 51)), **keys)
    data = bytearray((tmp_path / "store" / "0.sqs").read_bytes())
    for offset in range(64, len(data) - 29, 29):
        data[offset + 28] ^= 1
    (tmp_path / "store" / "0.sqs").write_bytes(data)
    [found] = draw(tmp_path / "store", code=1)["stores"]
    assert (len(found["damage"]), found["damage_count"]) == (MAX_LISTED_SPANS, MAX_LISTED_SPANS + 50)
    assert found["damage"][1] == ["0.sqs", 93, 29, "checksum_mismatch"]
    [segment] = found["segments"]
    assert (segment["quarantined"], [record[3] for record in records(segment)]) == (True, ["checksum (type 200)"])


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from(["live", "dead", "hole"]))),
    st.integers(1, 400),
    st.integers(1, 400),
)
def test_merge_short_loses_no_span(lengths, grain, coarser):
    spans = [Span(0, size, kind) for size, kind in lengths]
    merged = merge_short(merge_short(spans, grain), coarser)
    assert totals(merged) == totals(spans)
    assert sum(piece.size for piece in merged) == sum(size for size, _ in lengths)
    assert len(merged) <= 3 * sum(size for size, _ in lengths) / coarser + 1
    assert all(piece.size == sum(size for _, size in piece.kinds.values()) for piece in merged if isinstance(piece, Merged))


def test_page_of_many_spans_counts_exactly():
    stores = (store_of("v1_compacted"), store_of("v2_dirty_torn"))
    whole, merged = page_data(*stores), page_data(*stores, limit=300)
    assert whole["grain"] == 0 < merged["grain"]
    assert sum(len(s["pieces"]) for store in merged["stores"] for s in store["segments"]) < 300 + 6
    for before, after in zip(whole["stores"], merged["stores"], strict=True):
        assert (before["plans"], before["damage"]) == (after["plans"], after["damage"])
        for one, other in zip(before["segments"], after["segments"], strict=True):
            spans = [Merged(*p) if isinstance(p[1], dict) else Span(0, *p[:2]) for p in other["pieces"]]
            assert one["totals"] == other["totals"] == totals(spans)


# -- policies -----------------------------------------------------------------------------------------------------------------


class Odd:
    """Plans what no store would do, or raises."""

    def __init__(self, options):
        pass

    def plan(self, segments, now):
        if len(segments) < 3:
            raise ZeroDivisionError("no </script> here")
        return [Compact(99), Drop(0, "it is old"), Compact(0), Combine((1, 2))]


@attrs.frozen
class Needs:
    at_least: int


def test_wrong_policy_is_reported_others_are_asked():
    common: dict[str, Any] = {"contract": (1, 0), "factory": f"{__name__}:Odd"}
    provider = Provider("acme-policy", "1.0", "acme", "acme_policy")
    descriptors = (
        GcPolicyDescriptor(name="odd", capabilities=[Capability.DROPS_MESSAGES], **common),
        GcPolicyDescriptor(name="untold", options=Needs, **common),
        GcPolicyDescriptor(name="newer", **common | {"contract": (99, 0)}),
    )
    catalogue = msgstore.load_catalogue()
    added = [Registration("gc", descriptor, provider) for descriptor in descriptors]
    catalogue = attrs.evolve(catalogue, registrations=(*catalogue.registrations, *added))
    many, one = page_data(store_of("v1_compacted"), BROKER / "v2_corrupt" / "duplicate_id", catalogue=catalogue)["stores"]
    plans = {plan["name"]: plan for plan in many["plans"]}
    assert plans.keys() == {"combine", "half-empty", "never", "retention", "odd", "untold", "newer"}
    odd = plans["odd"]
    assert columns(odd["steps"], "what", "files") == [("drop", ("0.rdq",)), ("combine", ("1.rdq", "2.rdq"))]
    assert (odd["steps"][0]["messages_lost"], odd["steps"][0]["gives_back"]) == (71, 110196)
    assert odd["provider"] == "acme-policy"
    for part, text in zip(("no segment 99", "earlier action"), odd["passed_over"], strict=True):
        assert part in text
    assert "'at_least' is missing" in plans["untold"]["error"]
    assert "was written against contract 99.0" in plans["newer"]["error"]
    [fallen] = [plan for plan in one["plans"] if plan["name"] == "odd"]
    assert fallen["error"] == "ZeroDivisionError: no </script> here"
    assert "</script>" not in as_inline_json(one)


def test_segments_of_one_number_are_drawn_unplanned(tmp_path, draw):
    (tmp_path / "in").mkdir()
    for name, to in (("0.rdq", "0.rdq"), ("2.sqs", "0.sqs")):
        shutil.copy(store_of("mixed_upgrade") / name, tmp_path / "in" / to)
    [store] = draw(tmp_path / "in")["stores"]
    assert (len(store["segments"]), store["plans"], store["live_known"]) == (2, [], False)
    assert "have the same number" in store["unasked"]
    [store] = draw(*(store_of("v1_compacted") / name for name in ("0.rdq", "2.rdq")))["stores"]
    assert store["not_shown"] == 2


# -- the file -----------------------------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)<\\script>&amp;\"'\u2028"


def test_hostile_names_stay_data_page_loads_nothing(tmp_path, draw):
    directory = copy_of("v2_compacted", tmp_path / HOSTILE)
    assert draw(directory)["stores"][0]["path"] == str(directory)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert not any(part in page for part in ("<img", "alert(2)<"))
    draw(COMPACTED)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert re.findall(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttpRequest", page) == []
    assert "default-src 'none'" in page


@given(st.text(st.sampled_from("<>&/!-sript\"'\\\u2028\ud800 ")))
def test_inline_json_restores_any_text(text):
    assert json.loads(as_inline_json({"reason": text})) == {"reason": text}
    assert not set("<>&") & set(as_inline_json({"reason": text}))


def test_page_replaces_page_and_nothing_else(tmp_path, draw):
    page = tmp_path / "map.html"
    assert draw(store_of("v1_compacted")) != draw(COMPACTED)
    page.write_text("my thesis")
    assert "--force" in refused("map", "--html", page, COMPACTED)
    assert page.read_text() == "my thesis"
    assert draw("--force", COMPACTED)["stores"]
    (tmp_path / "link.html").symlink_to("map.html")
    assert [row["format"] for row in rows_of("map", "--html", tmp_path / "link.html", store_of("v1_compacted"))] == ["v1"] * 4
    assert "v1_compacted" in page.read_text()
    assert (tmp_path / "link.html").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("operation", ["create", "pwrite", "replace"])
def test_page_that_cannot_be_written_leaves_old_one(operation, tmp_path, monkeypatch, draw):
    page = tmp_path / "map.html"
    draw(COMPACTED)
    before = page.read_bytes()
    monkeypatch.setattr(Files, operation, raising(OSError(28, "No space left on device")))
    message = refused("map", "--html", page, store_of("v1_compacted"))
    assert message == f"msgstore: {page}: the page cannot be written: No space left on device. Nothing was left behind.\n"
    assert page.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [page]
