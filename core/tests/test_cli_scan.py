"""``scan`` against what RabbitMQ wrote, and against its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core_support import BROKER, STORES, columns, flip, manifest_of, objects, rows_of, run, store_of
from msgstore.cli.commands import scan as scan_verb
from msgstore.scan import scan_file
from support import filled


@pytest.mark.parametrize("name", STORES)
def test_scan_agrees_with_manifest(name):
    manifest = manifest_of(name)
    torn = manifest.get("torn", {})
    result = run("scan", "--json", store_of(name), code=1 if torn else 0)
    reports = objects(result)
    assert result.stdout.splitlines() == [json.dumps(report, separators=(",", ":")) for report in reports]
    assert [Path(report["path"]).name for report in reports] == [segment["name"] for segment in manifest["segments"]]
    for report, segment in zip(reports, manifest["segments"], strict=True):
        is_old, is_torn = segment["format"] == "v1", torn.get("file") == segment["name"]
        records = columns(report["records"], "id", "offset", "size", "type")
        expected = columns(segment["records"], "id", "offset", "total_size")
        assert records == [(*record, None if is_old else 3) for record in expected]
        assert (report["format"], report["header"]) == (segment["format"], None if is_old else "ok")
        assert (report["duplicates"], report["damage"]) == ([], [])
        end = ("torn", torn["record_offset"]) if is_torn else ("clean", report["size"])
        assert report["end"] == {"state": end[0], "offset": end[1], "reason": None}
        holes = [hole for hole in report["holes"] if is_old or hole["size"] >= 5]
        assert columns(holes, "offset", "size") == columns(segment["layout"]["gaps" if is_old else "holes"], "offset", "size")
    text = run("scan", store_of(name)).stdout
    parts = (torn["file"], "torn", f"{torn['record_offset']:,}") if torn else ["no damage"]
    assert all(part in text for part in parts)


@pytest.mark.parametrize(
    ("case", "options", "state", "duplicates"),
    [
        ("message_body_bad_tag", [], "clean", 0),
        ("message_body_bad_tag", ["--body", "erlang"], "corrupt", 0),
        ("header_truncated_63", [], "torn", 0),
        ("duplicate_id", [], "clean", 1),  # duplicates alone are no damage
    ],
)
def test_scan_of_corrupt_case_has_exit_code(case, options, state, duplicates):
    [report] = rows_of("scan", *options, BROKER / "v2_corrupt" / case, code=0 if state == "clean" else 1)
    assert (report["end"]["state"], len(report["duplicates"])) == (state, duplicates)
    assert (report["header"] is None) == (case == "header_truncated_63")


def test_scan_knows_bound_type_byte(tmp_path):
    filled(tmp_path, [(b"\x11" * 16, b"body")], record="checksum")
    [remembered] = rows_of("scan", tmp_path)
    assert remembered["records"] == [{"offset": 64, "size": 29, "type": 4, "record": "checksum", "id": "11" * 16}]
    assert "1 checksum" in run("scan", tmp_path).stdout
    for name in ("msgstore.json", "msgstore.json.copy"):
        (tmp_path / name).write_bytes(b"{")
    report, damage = rows_of("scan", tmp_path, code=1)  # tries all record types
    assert (len(report["records"]), damage["reason"], damage["path"]) == (1, "settings_damaged", f"{tmp_path}/msgstore.json")
    for verb in ("scan", "map"):
        result = run(verb, tmp_path, code=1)
        assert ("settings_damaged" in result.stdout, "--record NAME=BYTE" in result.stderr) == (True, True)
    for name in ("msgstore.json", "msgstore.json.copy"):
        (tmp_path / name).unlink()
    [unknown] = rows_of("scan", tmp_path, code=1)
    assert unknown["end"] == {"state": "corrupt", "offset": 64, "reason": "unrecognised_record_type"}
    bind = ("scan", "--record", "checksum=4", tmp_path)
    assert rows_of(*bind)[0]["records"] == remembered["records"]
    flip(tmp_path / "0.sqs", -1)
    assert rows_of(*bind, code=1)[0]["damage"] == [{"offset": 64, "size": 29, "reason": "checksum_mismatch"}]


@pytest.mark.parametrize(("header", "state"), [(b"XSQS\2", "bad_magic"), (b"RSQS\3", "bad_version"), (bytes(5), "bad_magic")])
def test_scan_of_wrong_header_reads_records(tmp_path, header, state):
    (tmp_path / "2.sqs").write_bytes(header + (store_of("v2_clean") / "2.sqs").read_bytes()[5:])
    [report] = rows_of("scan", tmp_path, code=1)
    assert (report["header"], len(report["records"])) == (state, 75)
    assert state in run("scan", tmp_path).stdout


@pytest.mark.parametrize("verb", ["scan", "map"])
def test_segments_come_in_number_order_without_deleted(verb, tmp_path, monkeypatch):
    for name in ("10.sqs", "9.rdq", "9.sqs", "2.sqs", "note.txt"):
        (tmp_path / name).write_bytes(b"")

    def collected_meanwhile(files, path, *arguments, **keys):
        (tmp_path / "9.sqs").unlink(missing_ok=True)
        return scan_file(files, path, *arguments, **keys)

    monkeypatch.setattr(scan_verb, "scan_file", collected_meanwhile)
    assert [Path(row["path"]).name for row in rows_of(verb, tmp_path, code=1)] == ["2.sqs", "9.rdq", "10.sqs"]
    assert len(rows_of(verb, tmp_path / "9.rdq")) == 1
    run(verb, "--json", tmp_path / "9.sqs", code=2)
