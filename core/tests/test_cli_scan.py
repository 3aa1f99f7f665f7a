"""``scan`` and ``map`` against what RabbitMQ wrote, and against what it says of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from msgstore.cli.main import main

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
STORES = sorted(path.parent for path in DATA.glob("*/store"))
CORRUPT = json.loads((DATA / "v2_corrupt" / "manifest.json").read_text())["cases"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def objects(result: Result) -> list[dict[str, Any]]:
    lines = result.stdout.splitlines()
    for line in lines:
        assert line == json.dumps(json.loads(line), separators=(",", ":"))
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("directory", STORES, ids=lambda path: path.name)
def test_scan_agrees_with_the_manifest_record_by_record(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    result = run("scan", "--json", directory / "store")
    reports = objects(result)
    torn = manifest.get("torn", {})
    assert result.exit_code == (1 if torn else 0)
    assert [Path(report["path"]).name for report in reports] == [segment["name"] for segment in manifest["segments"]]
    for report, segment in zip(reports, manifest["segments"], strict=True):
        found = [(r["id"], r["offset"], r["size"]) for r in report["records"]]
        assert found == [(r["id"], r["offset"], r["total_size"]) for r in segment["records"]]
        assert report["format"] == segment["format"]
        assert report["header"] == (None if segment["format"] == "v1" else "ok")
        assert {r["type"] for r in report["records"]} == {None if segment["format"] == "v1" else 3}
        assert (report["duplicates"], report["damage"]) == ([], [])
        if torn.get("file") == segment["name"]:
            assert report["end"] == {"state": "torn", "offset": torn["record_offset"], "reason": None}
        else:
            assert report["end"] == {"state": "clean", "offset": report["size"], "reason": None}
        layout = segment["layout"]
        if segment["format"] == "v1":
            holes = [(gap["offset"], gap["size"]) for gap in layout["gaps"]]
        else:
            holes = [(hole["offset"], hole["size"]) for hole in layout["holes"]]
            assert layout["small_hole_bytes"] == sum(h["size"] for h in report["holes"] if h["size"] < 5)
        assert [(h["offset"], h["size"]) for h in report["holes"] if h["size"] >= 5 or segment["format"] == "v1"] == holes


@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: case["case"])
def test_scan_agrees_with_every_corrupt_case(case: dict[str, Any]) -> None:
    upstream = case["scan"]
    error = upstream.get("scan_error")
    path = DATA / "v2_corrupt" / case["path"]
    result = run("scan", "--json", "--body", "erlang", path)
    [report] = objects(result)
    if error:
        assert report["end"] == {"state": "corrupt", "offset": error["offset"], "reason": error["reason"]}
    elif "short_header" in upstream["layout"]:
        assert report["end"] == {"state": "torn", "offset": 0, "reason": None}
        assert report["header"] is None
    else:
        state = "torn" if upstream["layout"].get("stopped_with_bytes_left") else "clean"
        assert report["end"] == {"state": state, "offset": upstream["layout"]["end_offset"], "reason": None}
    assert result.exit_code == (0 if report["end"]["state"] == "clean" else 1)
    # What upstream's recovery keeps is what it scanned in front of the error.
    expected = case["dirty_recovery_as_current_file"]["recovered"] if error else upstream["records"]
    found = [(r["id"], r["offset"], r["size"]) for r in report["records"]]
    assert found == sorted(((r["id"], r["offset"], r["total_size"]) for r in expected), key=lambda row: row[1])
    if "messages" in upstream["layout"] and not error:
        assert len(report["records"]) + len(report["duplicates"]) == upstream["layout"]["messages"]
    if error and error["reason"] == "invalid_message_body":
        [without] = objects(run("scan", "--json", path))
        assert without["end"]["state"] == "clean"


def test_a_type_byte_is_known_if_it_is_bound(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "c.toml").write_text('[stores.a]\npath = "store"\nrecord = "checksum"\n')
    CliRunner().invoke(main, ["put", "a", "11" * 16, "--config", str(tmp_path / "c.toml")], input="body")
    [remembered] = objects(run("scan", "--json", store))
    assert remembered["records"] == [{"offset": 64, "size": 29, "type": 4, "record": "checksum", "id": "11" * 16}]
    (store / "msgstore.json").unlink()
    [unknown] = objects(run("scan", "--json", store))
    assert unknown["end"] == {"state": "corrupt", "offset": 64, "reason": "unrecognised_record_type"}
    [bound] = objects(run("scan", "--json", "--record", "checksum=4", store))
    assert bound["records"] == remembered["records"]
    data = bytearray((store / "0.sqs").read_bytes())
    data[-1] ^= 1
    (store / "0.sqs").write_bytes(data)
    damaged = run("scan", "--json", "--record", "checksum=4", store)
    assert damaged.exit_code == 1
    assert objects(damaged)[0]["damage"] == [{"offset": 64, "size": 29, "reason": "checksum_mismatch"}]


@pytest.mark.parametrize(("header", "state"), [(b"XSQS\2", "bad_magic"), (b"RSQS\3", "bad_version"), (bytes(5), "bad_magic")])
def test_a_wrong_header_is_damage_and_the_records_are_read(tmp_path: Path, header: bytes, state: str) -> None:
    data = (DATA / "v2_clean" / "store" / "2.sqs").read_bytes()
    (tmp_path / "2.sqs").write_bytes(header + data[5:])
    result = run("scan", "--json", tmp_path)
    assert result.exit_code == 1
    assert objects(result)[0]["header"] == state
    assert len(objects(result)[0]["records"]) == 75
    assert state in run("scan", tmp_path).stdout


def test_duplicates_alone_are_fine() -> None:
    result = run("scan", "--json", DATA / "v2_corrupt" / "duplicate_id")
    assert result.exit_code == 0
    assert len(objects(result)[0]["duplicates"]) == 1


def test_a_directory_is_its_segments_in_number_order_also_when_numbers_clash(tmp_path: Path) -> None:
    for name in ("10.sqs", "9.rdq", "9.sqs", "2.sqs", "02.sqs", "x.sqs", "note.txt"):
        (tmp_path / name).write_bytes(b"")
    names = [Path(report["path"]).name for report in objects(run("scan", "--json", tmp_path))]
    assert names == ["2.sqs", "9.rdq", "9.sqs", "10.sqs"]


def test_people_see_a_table_and_the_damaged_spans() -> None:
    result = run("scan", DATA / "v2_dirty_torn" / "store")
    assert "1.sqs" in result.stdout
    assert "torn" in result.stdout
    assert "228,047" in result.stdout
    assert "no damage" in run("scan", DATA / "v1_clean" / "store").stdout


def test_a_damaged_settings_file_does_not_stop_a_scan(tmp_path: Path) -> None:
    shutil.copy(DATA / "v2_clean" / "store" / "0.sqs", tmp_path)
    (tmp_path / "msgstore.json").write_text("{")
    result = run("scan", "--json", tmp_path)
    assert result.exit_code == 1
    assert len(objects(result)[0]["records"]) == 212
    assert "msgstore.json" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no such file or directory"),
        ([DATA / "v1_clean" / "manifest.json"], "*.rdq (v1), *.rdt (v1), *.sqs (v2)"),
        ([DATA / "v1_clean"], "directories beneath it that have some: store"),
        (["--record", "checksum=5", DATA], "or 4, which is assigned to it"),
        (["--record", "message=200", DATA], "message is the format's own record type, and has byte 3"),
        (["--record", "checksum", DATA], "not of the form NAME=BYTE"),
        (["--record", "nothing=200", DATA], "no installed plugin provides the record type"),
        (["--body", "erlan", DATA], "Did you mean 'erlang'?"),
        ([], "Missing argument"),
    ],
)
def test_misuse_is_told(arguments: list[object], message: str) -> None:
    for verb in ("scan", "map") if "--" not in str(arguments[:1]) else ("scan",):
        result = run(verb, *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
@pytest.mark.parametrize("verb", ["scan", "map"])
def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "0.sqs")
    result = run(verb, tmp_path / "0.sqs")
    assert result.exit_code == 2
    assert "neither a regular file nor a directory" in result.stderr


def test_map_covers_every_byte_once() -> None:
    for directory in STORES:
        result = run("map", "--json", directory / "store")
        assert result.exit_code == (1 if "torn" in directory.name else 0)
        for drawing in objects(result):
            at = 0
            for span in drawing["spans"]:
                assert span["offset"] == at
                at += span["size"]
            assert at == drawing["size"]
            is_dirty = "dirty" in directory.name
            assert (drawing["live_percent"] is None) == is_dirty
            kinds = {"header", "hole", "torn", "record"} if is_dirty else {"header", "hole", "live", "dead"}
            assert {span["kind"] for span in drawing["spans"]} <= kinds


def test_map_knows_what_is_live_by_counts_or_by_the_saved_index(tmp_path: Path) -> None:
    store = shutil.copytree(DATA / "mixed_upgrade" / "store", tmp_path / "store")
    manifest = json.loads((DATA / "mixed_upgrade" / "manifest.json").read_text())
    counts = tmp_path / "counts.csv"
    counts.write_text("id,count\n" + "".join(f"{m['id']},{m['refcount']}\n" for m in manifest["messages"] if m["refcount"]))
    by_counts = objects(run("map", "--json", "--refcounts", counts, store))
    valid = {row["file"]: row["valid_total_size"] for row in manifest["metadata"][0]["file_summary"]}
    assert {int(Path(d["path"]).stem): d["live_bytes"] for d in by_counts} == valid
    with_index = run("compact", store, "--adopt", "--refcounts", counts)
    assert with_index.exit_code == 0
    assert all(drawing["live_bytes"] for drawing in objects(run("map", "--json", store)))
    text = run("map", store).stdout
    assert "█ live" in text
    assert "% live" in text


def test_map_says_what_is_too_small_to_be_seen() -> None:
    """On a narrow terminal a small gap is drawn as what is around it; nobody should believe that there is none."""
    store = str(DATA / "mixed_upgrade" / "store")
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["map", store]).stdout
    wide = CliRunner(env={"COLUMNS": "4000"}).invoke(main, ["map", store]).stdout
    assert "too small to be shown here: hole\n" in narrow
    assert "too small" not in wide


def test_map_draws_every_kind_apart_without_colour(tmp_path: Path) -> None:
    data = bytearray((DATA / "v2_compacted" / "store" / "3.sqs").read_bytes())
    data[64] = 0
    (tmp_path / "0.sqs").write_bytes(data)
    (tmp_path / "1.sqs").write_bytes((DATA / "v2_dirty_torn" / "store" / "1.sqs").read_bytes())
    (tmp_path / "2.sqs").write_bytes(b"")
    result = run("map", tmp_path)
    assert result.exit_code == 1
    first, second, _ = result.stdout.splitlines()[1:4]
    assert "XXX" in first
    assert "▓~" in second
    assert "\x1b" not in result.stdout
