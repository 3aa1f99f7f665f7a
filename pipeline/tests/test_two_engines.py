"""Both engines make the same store, to the byte, and say the same about it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import msgstore
from mess import DAMAGED, DATA, build_corpus
from msgstore.cli.main import main
from msgstore.contract import StoreError
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import SalvageJob, SalvageReport, plan_salvage

CATALOGUE = msgstore.load_catalogue()
SMALL_TASKS = 2**20
STORES = sorted({path.parent for suffix in ("rdq", "sqs") for path in DATA.rglob(f"*.{suffix}")})
ENGINES = {"local": {"processes": 1}, "processes": {"processes": 2}, "spark": {}}


def everything(job: SalvageJob, engine: str) -> tuple[SalvageReport, str, dict[str, str]]:
    """What it reports, as text too, and what stands in the store, by file and by message."""
    made = make_runner(CATALOGUE, "spark" if engine == "spark" else "local", ENGINES[engine])
    report = made.salvage(job)
    lines = [found.as_json() for found in report.inputs]
    lines += [found for one in report.inputs for found in one.recovered_as_json()]
    lines += [spot.as_json() for spot in report.damage]
    text = "\n".join(json.dumps(line) for line in [*lines, report.as_json()]).replace(job.target.path, "DEST")
    return report, text, contents(Path(job.target.path))


def contents(store: Path) -> dict[str, str]:
    found = {path.name: digest(path.read_bytes()) for path in store.iterdir() if path.suffix in (".rdq", ".sqs")}
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            found[entry.msg_id.hex()] = f"{digest(opened.stored_body(entry))} {entry.references}"
    return found


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def same_from_all(tmp_path: Path, sources: list[Path], **options: Any) -> tuple[SalvageReport, dict[str, str]]:
    """Every byte of the input is accounted for, and the engines differ in nothing."""
    results = []
    for engine in ENGINES:
        job = plan_salvage(CATALOGUE, sources, tmp_path / engine, **options)
        results.append(everything(attrs.evolve(job, task_size=SMALL_TASKS), engine))
    report, text, stored = results[0]
    for _, other_text, other_stored in results[1:]:
        assert other_text == text
        assert other_stored == stored
    for found in report.inputs:
        parts = found.header + found.good + found.duplicates + found.dead + found.holes + found.damaged
        assert parts == found.size == Path(found.path).stat().st_size
    return report, stored


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.parent.name if path.name == "store" else path.name)
def test_a_directory_of_a_broker(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    same_from_all(tmp_path, [store])


def test_all_of_them_and_forty_damaged_ones(spark: SparkSession, tmp_path: Path) -> None:
    segments = build_corpus(tmp_path / "mess")
    mess = tmp_path / "mess"
    report, stored = same_from_all(tmp_path, [mess / "whole", mess / "damaged"], body="raw")  # the better copies first
    assert len(report.inputs) == len(segments) > DAMAGED
    assert {Path(spot.path).parent.name[3:] for spot in report.damage} >= {
        "torn",
        "flipped",
        "truncated",
        "zero-filled",
        "shuffled",
    }
    whole = {
        record["id"]: record["body_sha256"]
        for manifest in DATA.glob("msg-store/*/manifest.json")
        for segment in json.loads(manifest.read_text()).get("segments", [])
        for record in segment["records"]
    }
    assert whole.items() <= {key: value.split()[0] for key, value in stored.items()}.items()


def test_with_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Ids that they do not name are dead; one that they name and that is nowhere is missing."""
    store = DATA / "msg-store" / "v2_compacted" / "store"
    manifest = json.loads((store.parent / "manifest.json").read_text())
    ids = [record["id"] for segment in manifest["segments"] for record in segment["records"]]
    counts = tmp_path / "counts.csv"
    counts.write_text("id,count\n" + "".join(f"{id_},{n % 3}\n" for n, id_ in enumerate(ids)) + f"{bytes(16).hex()},1\n")
    report, stored = same_from_all(tmp_path, [store], counts=counts)
    assert report.missing == 1
    wanted = {id_: n % 3 for n, id_ in enumerate(ids) if n % 3}
    assert {key: int(value.split()[1]) for key, value in stored.items() if " " in value} == wanted
    assert sum(found.dead for found in report.inputs) > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_migration_loses_nothing_or_makes_nothing(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.sqs").write_bytes((DATA / "msg-store/v2_clean/store/0.sqs").read_bytes()[:-40])
    job = plan_salvage(CATALOGUE, [source], tmp_path / "out", complete=True)
    with pytest.raises(StoreError, match="are damaged"):
        make_runner(CATALOGUE, "spark" if engine == "spark" else "local", ENGINES[engine]).salvage(job)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_third_partys_records_stay_what_they_are(spark: SparkSession, tmp_path: Path) -> None:
    keys = {"format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}, "record": "audit"}
    with msgstore.open_store(tmp_path / "in", **keys) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body %d" % n) for n in range(100))
    same_from_all(tmp_path, [tmp_path / "in"])
    result = CliRunner().invoke(main, ["scan", "--json", str(tmp_path / "spark")])
    records = [record for line in result.stdout.splitlines() for record in json.loads(line)["records"]]
    assert {record["fields"]["actor"] for record in records} == {"billing"}
    assert len(records) == 100


def test_the_command_says_which_engine_it_takes(spark: SparkSession, tmp_path: Path) -> None:
    printed = {}
    for name in ("local", "spark"):
        out = tmp_path / "out"
        arguments = ["salvage", "--json", str(DATA / "msg-store/v2_dirty_torn/store"), str(out), "--runner", name]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        printed[name] = result.stdout
        for path in sorted(out.rglob("*"), reverse=True):
            path.unlink()
        out.rmdir()
    assert printed["local"] == printed["spark"]
    result = CliRunner().invoke(main, ["salvage", str(DATA / "msg-store/v2_clean/store"), str(tmp_path / "auto")])
    assert "runner local: " in result.stderr
    assert "spark pays from" in result.stderr
