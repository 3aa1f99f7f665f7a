"""The benchmark of the pipeline still runs, and says of each requirement whether it is met. No figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "pipeline.py"


def test_benchmark_runs_and_judges_every_requirement(tmp_path):
    command = [sys.executable, str(BENCH), "--size", "0.002", "--bodies", "64", "--rounds", "1", "--dir", str(tmp_path)]
    done = subprocess.run([*command, "--profile", "all", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0]["kind"] == "machine"
    figures = {(row["operation"], row["store"], row["name"]) for row in rows if row["kind"] == "figure"}
    peers = ["plain Python", "local, 2 processes", "Spark local[1]", "Spark local[2]"]
    expected = {
        "pipeline, wall": (peers, ("count", "count of the larger", "per additional GiB", "dedupe")),
        "pipeline, processor": (peers[1:], ("salvage",)),
        "reconcile": ([f"{peer}{what}" for peer in peers[2:] for what in ("", ", bare join of Parquet")], ("wall",)),
        "fixed": (peers[2:], ("session", "first job", "stop")),
    }
    assert figures >= {(table, peer, name) for table, (of, names) in expected.items() for peer in of for name in names}
    required = [row for row in rows if row["kind"] == "requirement"]
    assert len(required) == 10
    for row in required:
        assert row["met"] == (
            row["measured"] >= row["required"] if row["limit"] == "at least" else row["measured"] <= row["required"]
        )
    profiles = [row for row in rows if row["kind"] == "profile"]
    assert [(row["store"], row["what"]) for row in profiles] == [
        (row["store"], row["what"]) for row in required if row["operation"] in ("count", "reconcile")
    ]
    assert all(row["lines"] for row in profiles)
    assert list(tmp_path.iterdir()) == []
