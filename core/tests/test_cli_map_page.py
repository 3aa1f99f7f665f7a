"""``map --html`` without a browser: that its data is right, that nothing in it can become markup, and what becomes of FILE.

``tests/test_map_browser.py`` looks at the page itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import msgstore
from msgstore.cli import map_page
from msgstore.cli.commands.scan import scan_inputs
from msgstore.cli.inputs import Inputs
from msgstore.cli.main import main
from msgstore.cli.map_data import MAX_LISTED_SPANS, MergedSpans, PageData, downsample
from msgstore.cli.spans import Span
from msgstore.contract import Capability, Combine, Compact, Drop, GcPolicyDescriptor
from msgstore.files import Files
from msgstore.jobs.policy_forecast import forecast
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import Provider, Registration

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
STORES = sorted(path.parent for path in DATA.glob("*/store"))
LETTERS = {"header": "a", "live": "b", "record": "c", "dead": "d", "hole": "e", "other": "f", "torn": "g", "damaged": "h"}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def data_of(page: Path) -> dict[str, Any]:
    [text] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    found: dict[str, Any] = json.loads(text)
    assert {name: code for code, name, _ in found["kinds"]} == LETTERS
    return found


def drawn(*arguments: object, page: Path, exit_code: int = 0) -> dict[str, Any]:
    result = run("map", "--html", page, *arguments)
    assert result.exit_code == exit_code, result.output
    return data_of(page)


def unrolled(runs: list[int]) -> list[int]:
    return [value for value, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]


def pieces(segment: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(letter, offset, size)."""
    found, at = [], 0
    for letter, size in zip(segment["kinds"], segment["sizes"], strict=True):
        found.append((letter, at, size))
        at += size
    assert at == segment["size"]
    return found


def records(segment: dict[str, Any], words: list[str]) -> list[tuple[str, int, int, str, int, str]]:
    """(id, offset, size, type, references, letter)."""
    ids = base64.b64decode(segment["ids"])
    places = [piece for piece in pieces(segment) if piece[0] in "bcd"]
    types, references = unrolled(segment["types"]), unrolled(segment["references"])
    assert len(ids) == 16 * len(places)
    return [
        (ids[16 * n : 16 * n + 16].hex(), offset, size, words[word], count, letter)
        for n, ((letter, offset, size), word, count) in enumerate(zip(places, types, references, strict=True))
    ]


def counts_file(manifest: Mapping[str, Any], path: Path, every: int = 1) -> Path:
    """The references that the broker had; of the older half of the segments only of each so-manieth message."""
    old = {record["id"] for segment in manifest["segments"][:2] for record in segment["records"]} if every > 1 else set()
    alive = [m for m in manifest["messages"] if m["refcount"] and (m["id"] not in old or m["n"] % every == 0)]
    path.write_text("id,count\n" + "".join(f"{m['id']},{m['refcount']}\n" for m in alive))
    return path


@pytest.mark.parametrize("directory", STORES, ids=lambda path: path.name)
def test_the_page_has_every_record_that_the_broker_wrote(directory: Path, tmp_path: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    counts = {m["id"]: m["refcount"] for m in manifest["messages"]}
    torn = manifest.get("torn", {})
    data = drawn(
        directory / "store", "--refcounts", counts_file(manifest, tmp_path / "counts.csv"),
        page=tmp_path / "map.html", exit_code=1 if torn else 0,
    )  # fmt: skip
    [store] = data["stores"]
    assert store["live_known"]
    assert [segment["file"] for segment in store["segments"]] == [segment["name"] for segment in manifest["segments"]]
    latest = {record["id"]: segment["name"] for segment in manifest["segments"] for record in segment["records"]}
    for segment, written in zip(store["segments"], manifest["segments"], strict=True):
        told = records(segment, data["words"])
        assert [(found[0], found[1], found[2]) for found in told] == [
            (record["id"], record["offset"], record["total_size"]) for record in written["records"]
        ]
        assert {found[3] for found in told} == {"" if written["format"] == "v1" else "message (type 3)"}
        for msg_id, _, _, _, references, letter in told:
            alive = counts[msg_id] if latest[msg_id] == segment["file"] else 0
            assert (letter, references) == (("b", alive) if alive else ("d", 0))
        holes = [(offset, size) for letter, offset, size in pieces(segment) if letter == "e"]
        layout = written["layout"]
        assert set(holes) >= {(h["offset"], h["size"]) for h in layout["gaps" if written["format"] == "v1" else "holes"]}
        for letter, total in segment["totals"].items():
            same = [size for found, _, size in pieces(segment) if found == letter]
            assert total == [len(same), sum(same)]
        assert segment["totals"].get("g", [0, 0])[0] == (torn.get("file") == segment["file"])
    assert store["spots"] == ([[torn["file"], torn["record_offset"], torn["kept_bytes"], "torn"]] if torn else [])


def test_without_an_index_nobody_is_called_live_or_dead(tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / "v2_compacted" / "store", tmp_path / "store"))
    (path / "msg_store_index.ets").unlink()  # the broker was killed
    data = drawn(path, page=tmp_path / "map.html")
    [store] = data["stores"]
    assert not store["live_known"]
    assert {kind for segment in store["segments"] for kind in segment["kinds"]} == set("ace")


@pytest.mark.parametrize("directory", STORES, ids=lambda path: path.name)
def test_policies_are_shown_what_a_store_shows_them(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    counts = counts_file(manifest, tmp_path / "counts.csv", every=5)
    shutil.copytree(directory / "store", tmp_path / "store")
    asked = []
    monkeypatch.setattr("msgstore.cli.map_data.forecast", lambda catalogue, picture, now: asked.append(picture) or iter(()))
    drawn(tmp_path / "store", "--refcounts", counts, page=tmp_path / "map.html", exit_code=1 if "torn" in directory.name else 0)
    [picture] = asked
    with msgstore.open_store(
        tmp_path / "store", adopt=True, gc_interval=0, refcounts=[(bytes.fromhex(i), int(n)) for i, n in _rows(counts)]
    ) as store:
        # A torn end is cut off, or sealed, when a store is opened: not before.
        assert [attrs.evolve(s, size=0, sealed_at=0) if "torn" in directory.name else s for s in picture.stats] == [
            attrs.evolve(s, size=0, sealed_at=0) if "torn" in directory.name else s for s in store.segments()
        ]


def _rows(counts: Path) -> list[list[str]]:
    return [line.split(",") for line in counts.read_text().splitlines()[1:]]


@pytest.mark.parametrize("fixture", ["v1_compacted", "v2_compacted"])
def test_what_a_policy_would_do_is_what_it_does(fixture: str, tmp_path: Path) -> None:
    manifest = json.loads((DATA / fixture / "manifest.json").read_text())
    counts = counts_file(manifest, tmp_path / "counts.csv", every=5)
    store = shutil.copytree(DATA / fixture / "store", tmp_path / "store")
    data = drawn(store, "--refcounts", counts, page=tmp_path / "map.html")
    [plan] = [plan for plan in data["stores"][0]["plans"] if plan["name"] == "half-empty"]
    assert plan["steps"]
    done = run("compact", store, "--adopt", "--refcounts", counts, "--json")
    collected = [json.loads(line) for line in done.stdout.splitlines()]
    really = {
        c["file"]: c["size_before"] - c["size_after"] - (0 if c["size_after"] else c["written"])  # in place, or a copy of it
        for c in collected
        if c["kind"] == "segment" and c["outcome"] == "compacted"
    }
    told = {step["files"][0]: step["gives_back"] for step in plan["steps"]}
    assert told.keys() == really.keys()
    assert all(abs(told[file] - really[file]) < 0.02 * really[file] for file in told)


def test_a_record_type_of_a_third_party_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[stores.a]\npath = "store"\nrecord = "checksum"\nformat = { use = "v2", records = { checksum = 200 } }\n'
    )
    put = CliRunner().invoke(main, ["put", "a", "11" * 16, "--config", str(tmp_path / "c.toml")], input="body")
    assert put.exit_code == 0, put.output
    data = drawn(tmp_path / "store", page=tmp_path / "map.html")
    [[record]] = [records(segment, data["words"]) for segment in data["stores"][0]["segments"]]
    assert record == ("11" * 16, 64, 29, "checksum (type 200)", 1, "b")


# -- more than a page can hold -----------------------------------------------------------------------------------------------

KINDS = st.sampled_from(["live", "dead", "hole"])


@given(st.lists(st.tuples(st.integers(1, 300), KINDS)), st.integers(1, 400), st.integers(1, 400))
def test_merging_loses_no_byte_and_comes_to_an_end(lengths: list[tuple[int, str]], grain: int, coarser: int) -> None:
    spans, at = [], 0
    for size, kind in lengths:
        spans.append(Span(at, size, kind))
        at += size
    merged = list(downsample(downsample(spans, grain), coarser))
    assert [piece.offset for piece in merged] == [sum(p.size for p in merged[:n]) for n in range(len(merged))]
    assert sum(piece.size for piece in merged) == at
    assert len(merged) <= 3 * at / coarser + 1
    for kind in ("live", "dead", "hole"):
        same = [span.size for span in spans if span.kind == kind]
        alone = [piece.size for piece in merged if isinstance(piece, Span) and piece.kind == kind]
        blocks = [piece for piece in merged if isinstance(piece, MergedSpans)]
        assert len(alone) + sum(block.counts[kind] for block in blocks) == len(same)
        assert sum(alone) + sum(block.sizes[kind] for block in blocks) == sum(same)


def test_what_is_merged_is_counted_and_the_rest_stays_exact(tmp_path: Path) -> None:
    inputs = Inputs(msgstore.load_catalogue())
    found = list(inputs.find([DATA / "v1_compacted" / "store", DATA / "v2_dirty_torn" / "store"]))
    exact = PageData(inputs, 0)
    few = PageData(inputs, sum(segment.path.stat().st_size for segment in found), limit=300)
    for report in scan_inputs(found):
        exact.add(report, None)
        few.add(report, None)
    whole, merged = exact.as_json(0), few.as_json(0)
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


def test_damage_is_listed_up_to_a_bound_and_counted_beyond(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[stores.a]\npath = "store"\nrecord = "checksum"\n')
    with msgstore.load_config(tmp_path / "c.toml").open("a") as store, store.client() as client:
        client.write_many((n.to_bytes(16), b"body") for n in range(MAX_LISTED_SPANS + 50))
    data = bytearray((tmp_path / "store" / "0.sqs").read_bytes())
    for offset in range(64, len(data), 29):
        data[offset + 28] ^= 1
    (tmp_path / "store" / "0.sqs").write_bytes(data)
    [found] = drawn(tmp_path / "store", page=tmp_path / "map.html", exit_code=1)["stores"]
    assert (len(found["spots"]), found["spot_count"]) == (MAX_LISTED_SPANS, MAX_LISTED_SPANS + 50)
    assert found["spots"][1] == ["0.sqs", 93, 29, "checksum_mismatch"]
    assert found["segments"][0]["quarantined"]


# -- policies of strangers ---------------------------------------------------------------------------------------------------


class Odd:
    """Does what no store would do, or falls over."""

    def __init__(self, options: object) -> None:
        pass

    def plan(self, segments: Any, now: float) -> list[object]:
        if len(segments) < 3:
            raise ZeroDivisionError("no </script> here")
        return [Compact(99), Drop(0, "it is old"), Compact(0), Combine((1, 2)), "nonsense"]


@attrs.frozen
class Needs:
    at_least: int


def _with_policies(catalogue: Catalogue, *descriptors: GcPolicyDescriptor) -> Catalogue:
    provider = Provider("acme-policy", "1.0", "acme", "acme_policy")
    return attrs.evolve(
        catalogue, registrations=(*catalogue.registrations, *(Registration("gc", d, provider) for d in descriptors))
    )


def test_a_policy_that_is_wrong_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    factory = f"{__name__}:Odd"
    odd = GcPolicyDescriptor(name="odd", contract=(1, 0), factory=factory, capabilities=[Capability.DROPS_MESSAGES])
    untold = GcPolicyDescriptor(name="untold", contract=(1, 0), factory=factory, options=Needs)
    newer = GcPolicyDescriptor(name="newer", contract=(99, 0), factory=factory)
    catalogue = _with_policies(msgstore.load_catalogue(), odd, untold, newer)
    inputs = Inputs(catalogue)
    data = PageData(inputs, 0)
    for report in scan_inputs(inputs.find([DATA / "v1_compacted" / "store", DATA / "v2_corrupt" / "duplicate_id"])):
        data.add(report, None)
    many, one = data.as_json(0)["stores"]
    plans = {plan["name"]: plan for plan in many["plans"]}
    assert plans.keys() == {"combine", "half-empty", "never", "retention", "odd", "untold", "newer"}
    assert [(step["what"], step["files"]) for step in plans["odd"]["steps"]] == [
        ("drop", ("0.rdq",)),
        ("combine", ("1.rdq", "2.rdq")),
    ]
    assert (plans["odd"]["steps"][0]["messages_lost"], plans["odd"]["steps"][0]["gives_back"]) == (71, 110196)
    assert plans["odd"]["provider"] == "acme-policy"
    passed = plans["odd"]["passed_over"]
    assert [part in text for part, text in zip(("no segment 99", "earlier action", "none of"), passed, strict=True)] == [
        True
    ] * 3
    assert "at_least is missing" in plans["untold"]["error"]
    assert "was written against contract 99.0" in plans["newer"]["error"]
    [fallen] = [plan for plan in one["plans"] if plan["name"] == "odd"]
    assert fallen["error"] == "ZeroDivisionError: no </script> here"
    assert "</script>" not in map_page.as_inline_json(one)


def test_two_segments_of_one_number_are_drawn_but_no_policy_is_asked(tmp_path: Path) -> None:
    shutil.copy(DATA / "mixed_upgrade" / "store" / "0.rdq", tmp_path / "0.rdq")
    shutil.copy(DATA / "mixed_upgrade" / "store" / "2.sqs", tmp_path / "0.sqs")
    [store] = drawn(tmp_path, page=tmp_path / "map.html")["stores"]
    assert len(store["segments"]) == 2
    assert store["plans"] == []
    assert "have the same number" in store["unasked"]


def test_policies_of_a_part_of_a_directory_say_that_it_is_a_part(tmp_path: Path) -> None:
    directory = DATA / "v1_compacted" / "store"
    [store] = drawn(directory / "0.rdq", directory / "2.rdq", page=tmp_path / "map.html")["stores"]
    assert store["not_shown"] == 2
    assert store["current"] == ""


# -- nothing becomes markup --------------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)<\\script>&amp;\"'\u2028"


def test_what_stands_on_disk_stays_data(tmp_path: Path) -> None:
    directory = tmp_path / HOSTILE
    shutil.copytree(DATA / "v2_compacted" / "store", directory)
    data = drawn(directory, page=tmp_path / "map.html")
    assert data["stores"][0]["path"] == str(directory)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "alert(2)<" not in page


@given(st.text(st.sampled_from("<>&/!-sript\"'\\\u2028\ud800 ")))
def test_any_text_is_read_back_as_it_was(text: str) -> None:
    assert json.loads(map_page.as_inline_json({"reason": text})) == {"reason": text}
    assert not set("<>&") & set(map_page.as_inline_json({"reason": text}))


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    drawn(DATA / "v2_compacted" / "store", page=tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert re.findall(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttpRequest", page) == []
    assert "default-src 'none'" in page


# -- the file ----------------------------------------------------------------------------------------------------------------


def test_a_page_is_replaced_by_a_newer_one_and_nothing_else_is(tmp_path: Path) -> None:
    page = tmp_path / "map.html"
    first = drawn(DATA / "v1_compacted" / "store", page=page)
    assert drawn(DATA / "v2_compacted" / "store", page=page) != first
    page.write_text("my thesis")
    refused = run("map", "--html", page, DATA / "v2_compacted" / "store")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert page.read_text() == "my thesis"
    assert run("map", "--html", page, "--force", DATA / "v2_compacted" / "store").exit_code == 0
    assert data_of(page)["stores"]
    assert sorted(tmp_path.iterdir()) == [page]


def test_behind_a_symbolic_link_the_page_is_replaced_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("map.html")
    drawn(DATA / "v2_compacted" / "store", page=tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert data_of(tmp_path / "map.html")["stores"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("there", "is a directory"),
        ("absent/map.html", "there is no directory"),
        ("file/map.html", "there is no such directory"),
        ("file", "not a page of 'msgstore map'"),
        ("7.sqs", "the name of a part of a store"),
        ("msgstore.json", "the name of a part of a store"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_read(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("text")
    result = run("map", "--html", tmp_path / name, tmp_path / "no store at all")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


def test_a_link_to_itself_is_no_place_for_a_page(tmp_path: Path) -> None:
    (tmp_path / "map.html").symlink_to("map.html")
    result = run("map", "--html", tmp_path / "map.html", DATA / "v2_compacted" / "store")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "map.html").is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "map.html")
    result = run("map", "--html", tmp_path / "map.html", "--force", DATA / "v2_compacted" / "store")
    assert result.exit_code == 2
    assert "not a regular file" in result.stderr


@pytest.mark.parametrize("operation", ["create", "pwrite", "replace"])
def test_a_page_that_cannot_be_written_leaves_the_old_one(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "map.html"
    drawn(DATA / "v2_compacted" / "store", page=page)
    before = page.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, operation, fail)
    result = run("map", "--html", page, DATA / "v1_compacted" / "store")
    assert result.exit_code == 2
    assert result.stderr == f"msgstore: {page}: the page cannot be written: No space left on device. Nothing was left behind.\n"
    assert page.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [page]


def test_force_alone_and_a_wrong_path_are_told(tmp_path: Path) -> None:
    assert "--html" in run("map", "--force", tmp_path).stderr
    result = run("map", "--html", tmp_path / "map.html", tmp_path / "absent")
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_with_json_the_objects_are_printed_and_the_page_is_written(tmp_path: Path) -> None:
    result = run("map", "--json", "--html", tmp_path / "map.html", DATA / "v2_compacted" / "store")
    assert [json.loads(line)["format"] for line in result.stdout.splitlines()] == ["v2"] * 4
    assert len(data_of(tmp_path / "map.html")["stores"][0]["segments"]) == 4


def test_plans_come_from_policies_alone() -> None:
    """Nobody is named: a catalogue without policies plans nothing."""
    assert list(forecast(Catalogue(), None, 0)) == []  # type: ignore[arg-type]
