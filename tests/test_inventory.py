"""What there is in stores: what a scan finds, what an opening would find alive, and what policies would do with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import msgstore
from msgstore.contract import ConfigError
from msgstore.jobs.inventory import InventoryReport, plan_inventory
from support import ACME_CELLS, DATA, DIRECTORIES, RealDirectory, catalogue, command, counts_file, filled, json_of, run_job

STORES = sorted({path.parent for path in DATA.rglob("*.rdq")} | {path.parent for path in DATA.rglob("*.sqs")})


def take(*sources: Path, counts: Path | None = None, processes: int = 1) -> InventoryReport:
    return run_job(plan_inventory(catalogue(), list(sources), time.time(), counts=counts), processes)


def live_in(segments) -> dict[str, tuple[int, int]]:
    """File name to the number and bytes of its live records, as an open store has them."""
    return {segment.file: (segment.live_count, segment.live_bytes) for segment in segments}


def live_of(report) -> dict[str, tuple[int, int]]:
    return {Path(segment.path).name: (segment.live, segment.live_bytes) for segment in report.segments()}


def test_inventory_of_every_directory_is_its_scan():
    report = take(DATA, processes=2)
    assert [Path(store.path) for store in report.stores] == STORES
    scans = {line["path"]: line for line in json_of("scan", *STORES, code=None)}
    assert len(scans) == len(list(report.segments())) > 50
    damaged = Counter(spot.path for spot in report.damage)
    for found in report.segments():
        scan = scans[found.path]
        assert (found.format, found.size, found.state) == (scan["format"], scan["size"], scan["end"]["state"])
        assert found.types == scan["records_by_name"]
        counted = {
            "records": (found.records, found.record_bytes),
            "holes": (found.holes, found.hole_bytes),
            "duplicates": (found.duplicates, found.duplicate_bytes),
        }
        assert counted == {what: (len(scan[what]), sum(row["size"] for row in scan[what])) for what in counted}
        parts = found.header + found.record_bytes + found.hole_bytes + found.duplicate_bytes + found.damaged
        assert parts == found.size
        bad_header = scan["header"] not in (None, "ok")
        assert bool(damaged[found.path]) == (scan["end"]["state"] != "clean" or bool(scan["damage"]) or bad_header)
    summary = report.as_json()
    assert summary["size"] == sum(scan["size"] for scan in scans.values())
    assert summary["records"] == sum(len(scan["records"]) for scan in scans.values())


@pytest.mark.parametrize("name", DIRECTORIES)
def test_counts_show_what_an_opening_finds_alive(name, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    report = take(path, counts=counts_file(tmp_path / "counts.csv", real.refcounts.items()))
    unknown = take(path)
    assert (unknown.stores[0].counts, unknown.as_json()["live"]) == ("", None)
    msgstore.open_store(real.copy(tmp_path / "dirty"), adopt=True, index="ets", format="v2").abandon()
    assert {segment.live for segment in take(tmp_path / "dirty").segments()} == {None}
    with msgstore.open_store(path, mode="r", refcounts=real.refcounts.items()) as store:
        truth, entries = live_in(store.segments()), list(store.entries())
    assert live_of(report) == truth
    assert not any(segment.quarantined for segment in report.segments())  # a write that was cut off is no damage
    assert report.stores[0].counts == "given"
    assert sum(segment.live for segment in report.segments()) == len(entries) == len(real.live)


def test_own_counts_of_store_are_used_and_forecast_holds(index, tmp_path):
    real = RealDirectory.load("v2_clean")
    path = real.copy(tmp_path)
    keys = {"index": index, "format": "v2", "gc_interval": 0, "adopt": True}
    with msgstore.open_store(path, **keys, refcounts=real.refcounts.items()) as store:
        entries = list(store.entries())
        first = [entry for entry in entries if entry.number == entries[0].number]
        with store.client() as client:
            for entry in first[: len(first) * 3 // 4]:
                client.remove([entry.msg_id] * entry.references)
        store.flush()
        truth = live_in(store.segments())
        program = [sys.executable, "-c", "from msgstore.cli.main import main; main()"]
        beside = subprocess.run([*program, "inventory", "--json", path], capture_output=True, text=True, check=True)
    while_open = json.loads(beside.stdout.splitlines()[-1])
    assert while_open["live"] == (sum(live for live, _ in truth.values()) if index == "lmdb" else None)
    report = take(path)
    assert report.stores[0].counts == "own"
    assert live_of(report) == truth
    half = next(policy for policy in report.policies() if policy["name"] == "half-empty")
    assert half["steps"] == {"compact": 1}
    before = sum(file.stat().st_size for file in path.glob("*.sqs"))
    with msgstore.open_store(path, gc="half-empty") as store:
        store.compact()
    gained = before - sum(file.stat().st_size for file in path.glob("*.sqs"))
    assert abs(gained - half["gives_back"]) <= 64


def test_damaged_store_has_no_more_live_than_scanned(index, tmp_path):
    with msgstore.open_store(tmp_path / "s", index=index) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, bytes(3000)) for n in range(4))
        store.flush()
        second = sorted(entry.offset for entry in store.entries())[1]
    with (tmp_path / "s" / "0.sqs").open("r+b") as file:
        file.seek(second)
        file.write(b"\xff" * 8)
    (found,) = take(tmp_path / "s").segments()
    assert (found.records, found.live, found.live_bytes, found.garbage) == (1, 1, found.record_bytes, 0)


def test_copies_are_garbage_and_stores_are_apart(tmp_path):
    real = RealDirectory.load("v2_clean")
    one, other = real.copy(tmp_path / "one"), real.copy(tmp_path / "other")
    newest = max(one.glob("*.sqs"), key=lambda path: int(path.stem))
    shutil.copy(newest, one / f"{int(newest.stem) + 1}.sqs")
    mine, theirs = take(one, other, counts=counts_file(tmp_path / "counts.csv", real.refcounts.items())).stores
    assert sum(s.live for s in mine.segments) == sum(s.live for s in theirs.segments) == len(real.live)
    copied = next(s for s in mine.segments if s.path == str(newest))
    assert (copied.live, copied.garbage) == (0, copied.record_bytes + copied.hole_bytes)


def test_unreadable_segment_is_damage_and_deleted_is_gone(tmp_path):
    path = RealDirectory.load("v2_clean").copy(tmp_path)
    job = plan_inventory(catalogue(), [path], time.time())
    (path / "0.sqs").unlink()
    (path / "1.sqs").unlink()
    (path / "1.sqs").mkdir()
    report = run_job(job)
    assert report.gone == 1
    assert [(spot.path, spot.reason) for spot in report.damage] == [(str(path / "1.sqs"), "unreadable: is a directory")]
    assert {segment.state for segment in report.segments()} == {"clean", "unreadable"}
    assert "no store would read it: it was deleted" in report.stores[0].unasked
    (path / "1.sqs").rmdir()
    (path / "2.sqs").unlink()
    report = run_job(job)
    assert (report.gone, list(report.segments())) == (3, [])


def test_command_shows_segments_store_and_policies(tmp_path):
    arguments = ["inventory", "--processes", "1"]
    lines = json_of(*arguments, DATA / "msg-store" / "v2_dirty_torn", code=1)
    assert [line["kind"] for line in lines] == ["segment", "segment", "store", "damage", "summary"]
    assert lines[-1]["states"] == {"clean": 1, "torn": 1}
    assert {policy["name"] for policy in lines[-1]["policies"]} == set(catalogue().names("gc"))
    assert "total" in command(*arguments, DATA / "msg-store", code=1).stdout
    assert "no damage" in command(*arguments, DATA / "msg-store" / "v2_clean").stdout
    own = json_of(*arguments, filled(tmp_path / "own", **ACME_CELLS["ets-v2-audit"].keys))[-1]
    assert (own["types"], own["live"]) == ({"audit": 20}, 20)
    with pytest.raises(ConfigError, match="nowhere: there is no such file of counts"):
        plan_inventory(catalogue(), [DATA], time.time(), counts=tmp_path / "nowhere")
