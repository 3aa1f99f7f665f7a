"""Both engines make the same store, to the byte, and say the same about it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

import msgstore
from mess import DAMAGED, DATA, build_corpus
from msgstore.cli.main import main
from msgstore.contract import StoreError
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage

CATALOGUE = msgstore.load_catalogue()
SMALL_TASKS = 2**20
STORES = sorted({path.parent for suffix in ("rdq", "sqs") for path in DATA.rglob(f"*.{suffix}")})
ENGINES = {"local": ("local", {"processes": 1}), "processes": ("local", {"processes": 2}), "spark": ("spark", {})}


def salvage(job, engine):
    return make_runner(CATALOGUE, *ENGINES[engine]).salvage(job)


def contents(store: Path) -> dict[str, str]:
    found = {path.name: digest(path.read_bytes()) for path in store.iterdir() if path.suffix in (".rdq", ".sqs")}
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            found[entry.msg_id.hex()] = f"{digest(opened.stored_body(entry))} {entry.references}"
    return found


def digest(data):
    return hashlib.sha256(data).hexdigest()


def same_from_all(tmp_path, sources, **options):
    """(report, contents by file and message). Every byte of the input is accounted for, and the engines differ in nothing."""
    results = []
    for engine in ENGINES:
        job = plan_salvage(CATALOGUE, sources, tmp_path / engine, **options)
        report = salvage(attrs.evolve(job, task_size=SMALL_TASKS), engine)
        lines = [found.as_json() for found in report.inputs]
        lines += [found for one in report.inputs for found in one.recovered_as_json()]
        lines += [spot.as_json() for spot in report.damage]
        text = "\n".join(json.dumps(line) for line in [*lines, report.as_json()]).replace(job.target.path, "DEST")
        results.append((text, contents(Path(job.target.path))))
    assert results[1:] == results[:1] * 2
    for found in report.inputs:
        parts = found.header + found.good + found.duplicates + found.dead + found.holes + found.damaged
        assert parts == found.size == Path(found.path).stat().st_size
    return report, results[0][1]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.parent.name if path.name == "store" else path.name)
def test_directory_of_broker_is_salvaged_alike(spark, tmp_path, store):
    same_from_all(tmp_path, [store])


def test_all_and_forty_damaged_are_salvaged_alike(spark, tmp_path):
    mess = tmp_path / "mess"
    segments = build_corpus(mess)
    report, stored = same_from_all(tmp_path, [mess / "whole", mess / "damaged"], body="raw")  # the better copies first
    assert len(report.inputs) == len(segments) > DAMAGED
    kinds = {"torn", "flipped", "truncated", "zero-filled", "shuffled"}
    assert {Path(spot.path).parent.name[3:] for spot in report.damage} >= kinds
    whole = {
        record["id"]: record["body_sha256"]
        for manifest in DATA.glob("msg-store/*/manifest.json")
        for segment in json.loads(manifest.read_text()).get("segments", [])
        for record in segment["records"]
    }
    assert whole.items() <= {key: value.split()[0] for key, value in stored.items()}.items()


def test_messages_without_counts_are_dead(spark, tmp_path):
    """One that they name and that is nowhere is missing."""
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
def test_migration_of_damage_makes_nothing(spark, tmp_path, engine):
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.sqs").write_bytes((DATA / "msg-store/v2_clean/store/0.sqs").read_bytes()[:-40])
    with pytest.raises(StoreError, match="are damaged"):
        salvage(plan_salvage(CATALOGUE, [source], tmp_path / "out", complete=True), engine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_records_of_third_party_stay_what_they_are(spark, tmp_path):
    keys = {"format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}, "record": "audit"}
    with msgstore.open_store(tmp_path / "in", **keys) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body %d" % n) for n in range(100))
    same_from_all(tmp_path, [tmp_path / "in"])
    result = CliRunner().invoke(main, ["scan", "--json", str(tmp_path / "spark")])
    records = [record for line in result.stdout.splitlines() for record in json.loads(line)["records"]]
    assert {record["fields"]["actor"] for record in records} == {"billing"}
    assert len(records) == 100


def test_command_says_which_engine_it_takes(spark, tmp_path):
    result = CliRunner().invoke(main, ["salvage", str(DATA / "msg-store/v2_clean/store"), str(tmp_path / "auto")])
    assert "runner local: " in result.stderr
    assert "spark pays from" in result.stderr
