"""``map --html`` without a browser: that its data is right, that nothing in it can become markup, and what becomes of FILE.

``tests/test_map_browser.py`` looks at the page itself.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import msgstore
from core_support import BROKER, STORES, columns, copy_of, counts_of, manifest_of, raising, refused, rows_of, run, store_of
from msgstore.cli import map_page
from msgstore.cli.commands.scan import scan_inputs
from msgstore.cli.inputs import Inputs
from msgstore.cli.map_data import MAX_LISTED_SPANS, MergedSpans, PageData, downsample
from msgstore.cli.spans import Span
from msgstore.contract import Capability, Combine, Compact, Drop, GcPolicyDescriptor
from msgstore.files import Files
from msgstore.jobs.policy_forecast import forecast
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import Provider, Registration

LETTERS = {"header": "a", "live": "b", "record": "c", "dead": "d", "hole": "e", "other": "f", "torn": "g", "damaged": "h"}
COMPACTED = store_of("v2_compacted")


def data_of(page) -> dict[str, Any]:
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    [text] = re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    assert {name: code for code, name, _ in found["kinds"]} == LETTERS
    return found


@pytest.fixture
def draw(tmp_path):
    """``draw(*arguments)``: the data of the page that ``map --html`` makes of them."""

    def drawn(*arguments, code=0):
        run("map", "--html", tmp_path / "map.html", *arguments, code=code)
        return data_of(tmp_path / "map.html")

    return drawn


def page_data(*paths, catalogue=None, **bounds):
    """What a page has of the inputs, without a file."""
    inputs = Inputs(catalogue or msgstore.load_catalogue())
    found = list(inputs.find(paths))
    data = PageData(inputs, sum(segment.path.stat().st_size for segment in found) if bounds else 0, **bounds)
    for report in scan_inputs(found):
        data.add(report, None)
    return data.as_json(0)


def unrolled(runs):
    return [value for value, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]


def pieces(segment):
    """(letter, offset, size)."""
    found, at = [], 0
    for letter, size in zip(segment["kinds"], segment["sizes"], strict=True):
        found.append((letter, at, size))
        at += size
    assert at == segment["size"]
    return found


def records(segment, words):
    """(id, offset, size, type, references, letter)."""
    ids = base64.b64decode(segment["ids"])
    places = [piece for piece in pieces(segment) if piece[0] in "bcd"]
    assert len(ids) == 16 * len(places)
    rows = zip(places, unrolled(segment["types"]), unrolled(segment["references"]), strict=True)
    return [
        (ids[16 * n : 16 * n + 16].hex(), offset, size, words[word], count, letter)
        for n, ((letter, offset, size), word, count) in enumerate(rows)
    ]


def one_in_five(name, to):
    """Counts that name, of the older half of the segments, only each fifth message."""
    old = {record["id"] for segment in manifest_of(name)["segments"][:2] for record in segment["records"]}
    return counts_of(name, to, lambda message: message["id"] not in old or message["n"] % 5 == 0)


@pytest.mark.parametrize("name", STORES)
def test_page_has_every_record_of_the_broker(name, tmp_path, draw):
    manifest = manifest_of(name)
    counts = {m["id"]: m["refcount"] for m in manifest["messages"]}
    torn = manifest.get("torn", {})
    data = draw(store_of(name), "--refcounts", counts_of(name, tmp_path / "counts.csv"), code=1 if torn else 0)
    [store] = data["stores"]
    assert store["live_known"]
    assert [segment["file"] for segment in store["segments"]] == [segment["name"] for segment in manifest["segments"]]
    latest = {record["id"]: segment["name"] for segment in manifest["segments"] for record in segment["records"]}
    for segment, written in zip(store["segments"], manifest["segments"], strict=True):
        is_old, layout = written["format"] == "v1", written["layout"]
        expected = []
        for msg_id, *place in columns(written["records"], "id", "offset", "total_size"):
            alive = counts[msg_id] if latest[msg_id] == segment["file"] else 0
            expected.append((msg_id, *place, "" if is_old else "message (type 3)", alive, "b" if alive else "d"))
        assert records(segment, data["words"]) == expected
        holes = {(offset, size) for letter, offset, size in pieces(segment) if letter == "e"}
        assert holes >= set(columns(layout["gaps" if is_old else "holes"], "offset", "size"))
        for letter, total in segment["totals"].items():
            same = [size for found, _, size in pieces(segment) if found == letter]
            assert total == [len(same), sum(same)]
        assert segment["totals"].get("g", [0, 0])[0] == (torn.get("file") == segment["file"])
    assert store["spots"] == ([[torn["file"], torn["record_offset"], torn["kept_bytes"], "torn"]] if torn else [])


def test_page_without_index_calls_none_live(tmp_path, draw):
    path = copy_of("v2_compacted", tmp_path / "store")
    (path / "msg_store_index.ets").unlink()  # the broker was killed
    [store] = draw(path)["stores"]
    assert not store["live_known"]
    assert {kind for segment in store["segments"] for kind in segment["kinds"]} == set("ace")


@pytest.mark.parametrize("name", STORES)
def test_policies_see_what_a_store_shows_them(name, tmp_path, monkeypatch, draw):
    counts, copy, is_torn = one_in_five(name, tmp_path / "counts.csv"), copy_of(name, tmp_path / "store"), "torn" in name
    asked = []
    monkeypatch.setattr("msgstore.cli.map_data.forecast", lambda catalogue, picture, now: asked.append(picture) or iter(()))
    draw(copy, "--refcounts", counts, code=1 if is_torn else 0)
    rows = [line.split(",") for line in counts.read_text().splitlines()[1:]]
    refcounts = [(bytes.fromhex(msg_id), int(count)) for msg_id, count in rows]
    # A torn end is cut off, or sealed, when a store is opened: not before.
    unlike = {"size": 0, "sealed_at": 0} if is_torn else {}
    with msgstore.open_store(copy, adopt=True, gc_interval=0, refcounts=refcounts) as store:
        assert [attrs.evolve(s, **unlike) for s in asked[0].stats] == [attrs.evolve(s, **unlike) for s in store.segments()]
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["v1_compacted", "v2_compacted"])
def test_plan_of_policy_is_what_it_does(name, tmp_path, draw):
    counts, store = one_in_five(name, tmp_path / "counts.csv"), copy_of(name, tmp_path / "store")
    [plan] = [p for p in draw(store, "--refcounts", counts)["stores"][0]["plans"] if p["name"] == "half-empty"]
    assert plan["steps"]
    really = {
        c["file"]: c["size_before"] - c["size_after"] - (0 if c["size_after"] else c["written"])  # in place, or a copy of it
        for c in rows_of("compact", store, "--adopt", "--refcounts", counts)
        if c["kind"] == "segment" and c["outcome"] == "compacted"
    }
    assert {step["files"][0]: step["gives_back"] for step in plan["steps"]} == pytest.approx(really, rel=0.02)


def test_record_type_of_third_party_has_its_name(tmp_path, draw):
    binding = 'format = { use = "v2", records = { checksum = 200 } }'
    (tmp_path / "c.toml").write_text(f'[stores.a]\npath = "store"\nrecord = "checksum"\n{binding}\n')
    run("put", "a", "11" * 16, "--config", tmp_path / "c.toml", stdin=b"body", code=0)
    data = draw(tmp_path / "store")
    [[record]] = [records(segment, data["words"]) for segment in data["stores"][0]["segments"]]
    assert record == ("11" * 16, 64, 29, "checksum (type 200)", 1, "b")


# -- more than a page can hold -----------------------------------------------------------------------------------------------

KINDS = ("live", "dead", "hole")


@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from(KINDS))), st.integers(1, 400), st.integers(1, 400))
def test_merging_loses_no_byte_and_ends(lengths, grain, coarser):
    spans, at = [], 0
    for size, kind in lengths:
        spans.append(Span(at, size, kind))
        at += size
    merged = list(downsample(downsample(spans, grain), coarser))
    assert [piece.offset for piece in merged] == [sum(p.size for p in merged[:n]) for n in range(len(merged))]
    assert sum(piece.size for piece in merged) == at
    assert len(merged) <= 3 * at / coarser + 1
    blocks = [piece for piece in merged if isinstance(piece, MergedSpans)]
    for kind in KINDS:
        same = [span.size for span in spans if span.kind == kind]
        alone = [piece.size for piece in merged if isinstance(piece, Span) and piece.kind == kind]
        assert len(alone) + sum(block.counts[kind] for block in blocks) == len(same)
        assert sum(alone) + sum(block.sizes[kind] for block in blocks) == sum(same)


def test_merged_spans_are_counted_exactly():
    stores = (store_of("v1_compacted"), store_of("v2_dirty_torn"))
    whole, merged = page_data(*stores), page_data(*stores, limit=300)
    assert whole["grain"] == 0 < merged["grain"]
    assert sum(len(s["kinds"]) for store in merged["stores"] for s in store["segments"]) < 300 + 6
    for before, after in zip(whole["stores"], merged["stores"], strict=True):
        assert (before["plans"], before["spots"]) == (after["plans"], after["spots"])
        for one, other in zip(before["segments"], after["segments"], strict=True):
            assert one["totals"] == other["totals"]
            counts = {letter: [0, 0] for letter in one["totals"]}
            for letter, _, size in pieces(other):
                for code, count, part in other["blocks"].pop(0) if letter == "+" else [[letter, 1, size]]:
                    counts[code] = [counts[code][0] + count, counts[code][1] + part]
            assert counts == one["totals"]


def test_damage_beyond_bound_is_counted(tmp_path, draw):
    with msgstore.open_store(tmp_path / "store", record="checksum") as store, store.client() as client:
        client.write_many((n.to_bytes(16), b"body") for n in range(MAX_LISTED_SPANS + 50))
    data = bytearray((tmp_path / "store" / "0.sqs").read_bytes())
    for offset in range(64, len(data), 29):
        data[offset + 28] ^= 1
    (tmp_path / "store" / "0.sqs").write_bytes(data)
    [found] = draw(tmp_path / "store", code=1)["stores"]
    assert (len(found["spots"]), found["spot_count"]) == (MAX_LISTED_SPANS, MAX_LISTED_SPANS + 50)
    assert found["spots"][1] == ["0.sqs", 93, 29, "checksum_mismatch"]
    assert found["segments"][0]["quarantined"]


# -- policies of strangers ---------------------------------------------------------------------------------------------------


class Odd:
    """Does what no store would do, or falls over."""

    def __init__(self, options):
        pass

    def plan(self, segments, now):
        if len(segments) < 3:
            raise ZeroDivisionError("no </script> here")
        return [Compact(99), Drop(0, "it is old"), Compact(0), Combine((1, 2)), "nonsense"]


@attrs.frozen
class Needs:
    at_least: int


def test_wrong_policy_says_so_and_others_go_on():
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
    paths = (store_of("v1_compacted"), BROKER / "v2_corrupt" / "duplicate_id")
    many, one = page_data(*paths, catalogue=catalogue)["stores"]
    plans = {plan["name"]: plan for plan in many["plans"]}
    assert plans.keys() == {"combine", "half-empty", "never", "retention", "odd", "untold", "newer"}
    odd = plans["odd"]
    assert columns(odd["steps"], "what", "files") == [("drop", ("0.rdq",)), ("combine", ("1.rdq", "2.rdq"))]
    assert (odd["steps"][0]["messages_lost"], odd["steps"][0]["gives_back"]) == (71, 110196)
    assert odd["provider"] == "acme-policy"
    assert len(odd["passed_over"]) == 3
    for part, text in zip(("no segment 99", "earlier action", "none of"), odd["passed_over"], strict=True):
        assert part in text
    assert "at_least is missing" in plans["untold"]["error"]
    assert "was written against contract 99.0" in plans["newer"]["error"]
    [fallen] = [plan for plan in one["plans"] if plan["name"] == "odd"]
    assert fallen["error"] == "ZeroDivisionError: no </script> here"
    assert "</script>" not in map_page.as_inline_json(one)


def test_segments_of_one_number_are_drawn_unplanned(tmp_path, draw):
    (tmp_path / "in").mkdir()
    for name, to in (("0.rdq", "0.rdq"), ("2.sqs", "0.sqs")):
        shutil.copy(store_of("mixed_upgrade") / name, tmp_path / "in" / to)
    [store] = draw(tmp_path / "in")["stores"]
    assert (len(store["segments"]), store["plans"]) == (2, [])
    assert "have the same number" in store["unasked"]


def test_part_of_directory_is_said_to_be_one(draw):
    [store] = draw(*(store_of("v1_compacted") / name for name in ("0.rdq", "2.rdq")))["stores"]
    assert (store["not_shown"], store["current"]) == (2, "")


def test_catalogue_without_policies_plans_nothing():
    assert list(forecast(Catalogue(), None, 0)) == []


# -- nothing becomes markup --------------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)<\\script>&amp;\"'\u2028"


def test_hostile_names_stay_data_page_loads_nothing(tmp_path, draw):
    directory = copy_of("v2_compacted", tmp_path / HOSTILE)
    assert draw(directory)["stores"][0]["path"] == str(directory)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "alert(2)<" not in page
    draw(COMPACTED)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert re.findall(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttpRequest", page) == []
    assert "default-src 'none'" in page


@given(st.text(st.sampled_from("<>&/!-sript\"'\\\u2028\ud800 ")))
def test_inline_json_restores_any_text(text):
    assert json.loads(map_page.as_inline_json({"reason": text})) == {"reason": text}
    assert not set("<>&") & set(map_page.as_inline_json({"reason": text}))


# -- the file ----------------------------------------------------------------------------------------------------------------


def test_page_replaces_page_and_nothing_else(tmp_path, draw):
    page = tmp_path / "map.html"
    assert draw(store_of("v1_compacted")) != draw(COMPACTED)
    page.write_text("my thesis")
    assert "--force" in refused("map", "--html", page, COMPACTED)
    assert page.read_text() == "my thesis"
    assert draw("--force", COMPACTED)["stores"]
    assert sorted(tmp_path.iterdir()) == [page]


def test_page_behind_link_is_replaced_not_link(tmp_path):
    (tmp_path / "link.html").symlink_to("map.html")
    run("map", "--html", tmp_path / "link.html", COMPACTED, code=0)
    assert (tmp_path / "link.html").is_symlink()
    assert data_of(tmp_path / "map.html")["stores"]


@pytest.mark.parametrize("operation", ["create", "pwrite", "replace"])
def test_page_that_cannot_be_written_leaves_old_one(operation, tmp_path, monkeypatch, draw):
    page = tmp_path / "map.html"
    draw(COMPACTED)
    before = page.read_bytes()
    monkeypatch.setattr(Files, operation, raising(OSError(28, "No space left on device")))
    said = refused("map", "--html", page, store_of("v1_compacted"))
    assert said == f"msgstore: {page}: the page cannot be written: No space left on device. Nothing was left behind.\n"
    assert page.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [page]


def test_page_of_missing_store_is_not_written(tmp_path):
    run("map", "--html", tmp_path / "map.html", tmp_path / "absent", code=2)
    assert list(tmp_path.iterdir()) == []


def test_json_and_page_are_both_written(tmp_path):
    rows = rows_of("map", "--html", tmp_path / "map.html", COMPACTED)
    assert [row["format"] for row in rows] == ["v2"] * 4
    assert len(data_of(tmp_path / "map.html")["stores"][0]["segments"]) == 4
