"""The benchmark runs every operation, and says of each requirement whether it is met. No figure is judged here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

BENCH = Path(__file__).parents[1] / "bench"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ["rocksdict", "lmdb", "msgstore_ets_index", "msgstore_lmdb_index", "msgstore_format_v2"])),
        reason="the bench compares with every peer and needs both indexes",
    ),
]


def bench(program: str, *arguments: object) -> str:
    command = [sys.executable, BENCH / program, "--rounds", "1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def quick(directory: Path, *arguments: str) -> str:
    return bench("run.py", "--quick", "--messages", 600, "--dir", directory, *arguments)


def test_bench_runs_and_judges_everything(tmp_path):
    rows = [json.loads(line) for line in quick(tmp_path, "--sizes", "64,1024", "--json", "--profile", "all").splitlines()]
    assert rows[0]["kind"] == "machine"

    def found(kind, *keys):
        return {tuple(row[key] for key in keys) for row in rows if row["kind"] == kind}

    stores = ["msgstore", "RocksDB", "LMDB", "SQLite"]
    results, figures = found("result", "operation", "store"), found("figure", "operation", "store")
    assert results >= {(name, store) for name in ("put", "get", "read_many", "remove", "lifecycle") for store in stores}
    assert figures >= {(name, store) for name in ("fsync", "latency", "reopen") for store in stores}
    assert figures >= {("fsync", "floor"), ("latency", "clock alone"), ("reopen", "msgstore, lmdb"), ("compaction", "msgstore")}
    assert figures >= {("deletion", "msgstore"), ("deletion", "bare unlinks")}
    expected = {"put", "get", "lifecycle", "fsync", "latency", "reopen", "deletion", "startup"}
    if sys.platform == "linux":  # elsewhere neither written bytes nor memory are counted
        assert figures >= {(name, store) for name in ("lifecycle", "amplification") for store in stores} | {
            ("memory", "bare dict")
        }
        expected |= {"amplification", "memory"}
    assert found("requirement", "operation") == {(name,) for name in expected}
    for row in rows:
        if row["kind"] == "requirement":
            at_least = row["limit"] == "at least"
            assert row["met"] == (row["measured"] >= row["required"] if at_least else row["measured"] <= row["required"])
        if row["kind"] == "profile":
            assert all(line["what"] and isinstance(line["value"], float) for line in row["lines"]), row
            assert row["lines"]
    assert found("profile", "store", "operation", "size") == found("requirement", "store", "operation", "size")
    assert list(tmp_path.iterdir()) == []


def test_bench_prints_what_is_asked_for(tmp_path):
    """A profile is made of what is missed."""
    text = quick(tmp_path, "--only", "deletion,compaction,latency", "--sizes", "1024", "--stores", "msgstore,LMDB")
    for title in ("Microseconds per call of write", "Compaction of a segment", "Deletion of empty segments"):
        assert text.count(title) == 1
    assert "Nanoseconds per message" not in text
    assert "RocksDB" not in text
    assert text.count("MISSED") + text.count("│ met ") == 2
    output = quick(tmp_path, "--only", "deletion,latency,fsync", "--sizes", "1024", "--json")
    rows = [json.loads(line) for line in output.splitlines()]
    missed = {(row["operation"], row["what"]) for row in rows if row["kind"] == "requirement" and not row["met"]}
    assert {(row["operation"], row["what"]) for row in rows if row["kind"] == "profile"} == missed


@pytest.mark.parametrize("limit", ["at least", "at most"])
@pytest.mark.parametrize("measured", [1.19, 1.1999999, 1.2, 1.2000001, 1.21])
def test_missed_requirement_is_printed_as_missed(limit, measured, monkeypatch):
    """Also one that would be met if the figure were rounded."""
    monkeypatch.syspath_prepend(BENCH)
    figures, tables = importlib.import_module("figures"), importlib.import_module("tables")
    bound, console = figures.Bound("msgstore", "deletion", "time", 64, "", limit, 1.2, measured), Console(width=200)
    with console.capture() as captured:
        tables.print_required([], [bound], console)
    met = measured >= 1.2 if limit == "at least" else measured <= 1.2
    assert (tables.bound_object(bound)["met"], "MISSED" not in captured.get()) == (met, met)
    assert f"{measured:.2f}" in captured.get()


def test_bench_of_messages_judges_both_sources():
    printed = bench("messages.py", "--messages", "300")
    for what in ("kestrel: source", "rocketmq: source"):
        assert sum(what in line and ("met" in line or "MISSED" in line) for line in printed.splitlines()) == 2
    assert all(name in printed for name in ("kestrel into rocketmq", "into jsonl: loop", "v2: reflow to v1"))
