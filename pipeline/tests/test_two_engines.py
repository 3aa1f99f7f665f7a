"""Both runners find the same, say the same, and write the same, on every directory of ours."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import msgstore
from mess import DAMAGED, DATA, build_corpus
from msgstore.cli.main import main
from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.counts import read_counts
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.export import plan_export
from msgstore.jobs.inventory import plan_inventory
from msgstore.jobs.reconcile import WRITTEN, plan_reconcile
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from support import ACME_CELLS

CATALOGUE = msgstore.load_catalogue()
RUNNERS = {"local": ("local", {"processes": 1}), "processes": ("local", {"processes": 2}), "spark": ("spark", {})}
BOTH = ("local", "spark")
STORES = sorted({path.parent for suffix in ("rdq", "sqs") for path in DATA.rglob(f"*.{suffix}")})
BROKERS = sorted(path.parent for path in (DATA / "msg-store").glob("*/manifest.json") if (path.parent / "store").is_dir())
TORN = DATA / "msg-store" / "v2_dirty_torn"


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr("msgstore.jobs.tasks.pack.__defaults__", (2**17,))


@pytest.fixture
def own(tmp_path):
    """A store of a third party's records."""
    with msgstore.open_store(tmp_path / "own", **ACME_CELLS["ets-v2-audit"].keys) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body %d" % n) for n in range(100))
    return tmp_path / "own"


def run(name, verb, job):
    return getattr(make_runner(CATALOGUE, *RUNNERS[name]), verb)(job)


def both(verb, job):
    """Return what both runners report of a job: the same, or the test fails."""
    local, spark = (run(name, verb, job) for name in BOTH)
    assert spark == local
    return spark


def both_refuse(verb, job):
    """Return the one error with which both runners refuse a job."""
    said = set()
    for name in BOTH:
        with pytest.raises(ConfigError) as caught:
            run(name, verb, job)
        said.add(str(caught.value))
    [one] = said
    return one


def messages_of(broker):
    return json.loads((DATA / "msg-store" / broker / "manifest.json").read_text())["messages"]


def write_lines(path, rows):
    path.write_text("".join(f"{msg_id},{count}\n" for msg_id, count in rows))
    return path


# -- salvage: the same store, to the byte -------------------------------------------------------------------------------------


def digest(data):
    return hashlib.sha256(data).hexdigest()


def contents(store: Path) -> dict[str, str]:
    found = {path.name: digest(path.read_bytes()) for path in store.iterdir() if path.suffix in (".rdq", ".sqs")}
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            found[entry.msg_id.hex()] = f"{digest(opened.stored_body(entry))} {entry.references}"
    return found


def same_from_all(tmp_path, sources, **options):
    """Return report and contents by file and message: the same from all runners. Every byte of the input is accounted for."""
    results = []
    for name in RUNNERS:
        job = plan_salvage(CATALOGUE, sources, tmp_path / name, **options)
        report = run(name, "salvage", attrs.evolve(job, task_size=2**20))
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
    rows = [(msg_id, n % 3) for n, msg_id in enumerate(ids)]
    counts = write_lines(tmp_path / "counts.csv", [("id", "count"), *rows, (bytes(16).hex(), 1)])
    report, stored = same_from_all(tmp_path, [store], counts=counts)
    assert report.missing == 1
    assert {key: int(value.split()[1]) for key, value in stored.items() if " " in value} == {i: n for i, n in rows if n}
    assert sum(found.dead for found in report.inputs) > 0


@pytest.mark.parametrize("name", RUNNERS)
def test_migration_of_damage_makes_nothing(spark, tmp_path, name):
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.sqs").write_bytes((DATA / "msg-store/v2_clean/store/0.sqs").read_bytes()[:-40])
    with pytest.raises(StoreError, match="are damaged"):
        run(name, "salvage", plan_salvage(CATALOGUE, [source], tmp_path / "out", complete=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_records_of_third_party_stay_what_they_are(spark, tmp_path, own):
    same_from_all(tmp_path, [own])
    result = CliRunner().invoke(main, ["scan", "--json", str(tmp_path / "spark")])
    records = [record for line in result.stdout.splitlines() for record in json.loads(line)["records"]]
    assert [record["fields"]["actor"] for record in records] == ["tests"] * 100


# -- reconcile ----------------------------------------------------------------------------------------------------------------


def history(name):
    """Return every write and remove of what a broker did, in any order; and one id that was removed too often."""
    changes = [(m["id"], change) for m in messages_of(name) for change in [1] * m["writes"] + [-1] * m["removes"]]
    changes += [("ab" * 16, -2), ("cd" * 16, 1), ("cd" * 16, -1)]
    random.Random(name).shuffle(changes)
    return changes


@pytest.mark.parametrize("broker", BROKERS, ids=lambda path: path.name)
def test_reconcile_is_the_same(spark, tmp_path, broker, monkeypatch):
    """Also where rows do not fit into the memory of a worker."""
    changes = history(broker.name)
    deltas = [write_lines(tmp_path / "a.csv", changes[::2]), write_lines(tmp_path / "b.csv", changes[1::2])]
    found = []
    for name, in_memory in (("local", 2**20), ("spark", 2**20), ("spark", 20)):
        monkeypatch.setattr("msgstore_spark.jobs._MAX_ROWS_IN_MEMORY", in_memory)
        to = tmp_path / f"{name} {in_memory}"
        report = run(name, "reconcile", plan_reconcile(CATALOGUE, [broker], deltas, to=to))
        said = [report.as_json(), list(report.named_as_json()), [spot.as_json() for spot in report.damage]]
        folders = {which: to / f"class={which}" for which in WRITTEN}
        found.append((said, {which: sorted(read_counts(path)) if path.exists() else [] for which, path in folders.items()}))
    assert found[1:] == found[:1] * 2
    assert found[0][1]["negative"] == [(bytes.fromhex("ab" * 16), -2)]
    assert found[0][0][0]["classes"]["settled"]["ids"] > 0
    assert len(list(tmp_path.iterdir())) == 5


def test_reconcile_of_bad_changes_leaves_nothing(spark, tmp_path):
    deltas = [write_lines(tmp_path / "a.csv", [("0" * 32, 1)]), write_lines(tmp_path / "b.csv", [("1" * 32, 1), ("x", 1)])]
    said = both_refuse("reconcile", plan_reconcile(CATALOGUE, [BROKERS[0]], deltas, to=tmp_path / "to"))
    assert f"{deltas[1]}: line 2" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


def test_reconcile_with_nothing_alive_writes_empty_class(spark, tmp_path):
    for name in BOTH:
        job = plan_reconcile(CATALOGUE, [BROKERS[0]], [write_lines(tmp_path / "none.csv", [])], to=tmp_path / name)
        assert run(name, "reconcile", job).classes["live"].ids == 0
        assert list(read_counts(tmp_path / name / "class=live")) == []


# -- inventory, and files of counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
def test_inventory_is_the_same(spark, tmp_path, own, counted):
    counts = None
    if counted:
        messages = [m for broker in BROKERS for m in messages_of(broker.name)]
        counts = write_lines(tmp_path / "counts.csv", [(m["id"], m["refcount"]) for m in messages])
    report = both("inventory", plan_inventory(CATALOGUE, [DATA, own], 1.8e9, counts=counts))
    assert report.as_json()["types"]["audit"] == 100
    assert {store.counts for store in report.stores} == ({"given"} if counted else {"", "own"})
    assert (sum(segment.live or 0 for segment in report.segments()) > 1000) == counted


@pytest.mark.parametrize("form", ["lines", "Parquet"])
def test_files_of_counts_are_read_alike(spark, tmp_path, form):
    """In any form. The counts of an id are added."""
    some = [(message["id"], 2) for message in messages_of(BROKERS[0].name)[:100]]
    first, most = some[0][0], 2**48 - 1
    rows = [*some, (first, most), *some, (first, most), *[(i, -3) for i, _ in some], (first, -most), (first, -most)]
    store = Path(shutil.copytree(BROKERS[0] / "store", tmp_path / "store"))
    (store / "99.rdq").symlink_to("nowhere")
    counts = tmp_path / "counts"

    def write(rows):
        if form == "lines":
            counts.write_bytes(b"\xef\xbb\xbf" + write_lines(tmp_path / "lines", rows).read_bytes())
            return
        (counts / "day=1").mkdir(parents=True, exist_ok=True)
        (counts / "README.txt").write_text("not a count")
        for name, some in {"a.parquet": rows[:50], "part-1": rows[50:99], "day=1/000000_0": rows[99:]}.items():
            kind = pa.int8() if name == "a.parquet" else pa.int64()
            ids = pa.array([bytes.fromhex(msg_id) for msg_id, _ in some], pa.binary())
            pq.write_table(pa.table({"count": pa.array([count for _, count in some], kind), "id": ids}), counts / name)

    write(rows)
    job = plan_inventory(CATALOGUE, [store], 1.8e9, counts=counts)
    report = both("inventory", job)
    assert sum(segment.live or 0 for segment in report.segments()) > 10
    assert [spot.path for spot in report.damage] == [str(store / "99.rdq")]
    write([*rows, (first, most)])
    assert f"{first} has {2**48} references; at most" in both_refuse("inventory", job)


# -- diff and export ----------------------------------------------------------------------------------------------------------


def test_diff_is_the_same(spark, tmp_path):
    """A tree of everything against one in which segments are gone, cut, or come twice."""
    whole, other = DATA / "msg-store", Path(shutil.copytree(DATA / "msg-store", tmp_path / "other"))
    segments = sorted(path for path in other.rglob("*.sqs") if path.stat().st_size > 1000)
    segments[0].unlink()
    segments[1].write_bytes(segments[1].read_bytes()[:-500])
    shutil.copy(segments[2], segments[2].with_name("77.sqs"))
    body = bytearray(segments[3].read_bytes())
    body[-1] ^= 1
    segments[3].write_bytes(body)
    there = both("diff", plan_diff(CATALOGUE, whole, other))
    assert there.same > 1000
    assert there.ids["only_a"]
    assert run("spark", "diff", plan_diff(CATALOGUE, other, whole)).ids["only_b"] == there.ids["only_a"]


@pytest.mark.parametrize("options", [{}, {"partition_by": ["format", "type"], "columns": ["id", "body"]}, {"body": "erlang"}])
def test_export_is_the_same(spark, tmp_path, own, options):
    found = {}
    for name in BOTH:
        report = run(name, "export", plan_export(CATALOGUE, [DATA, own], tmp_path / name, **options))
        said = [report.as_json() | {"destination": ""}, [one.as_json() for one in report.inputs], report.damage]
        table = ds.dataset(tmp_path / name, partitioning="hive").to_table()
        files = {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.parquet")}
        found[name] = (said, table.schema, files)
    assert found["spark"] == found["local"]
    assert len(found["spark"][2]) > 5
    rows = spark.read.parquet(str(tmp_path / "spark"))
    assert rows.count() == found["spark"][0][0]["rows"]
    if not options:
        assert {row.actor for row in rows.where("store like '%/own'").select("actor").distinct().collect()} == {"tests"}


def test_failed_export_leaves_nothing(spark, tmp_path):
    """Something came into its place after it was planned."""
    job = plan_export(CATALOGUE, [BROKERS[0]], tmp_path / "to")
    (tmp_path / "to").write_text("in the way")
    with pytest.raises(StoreError, match="is there already"):
        run("spark", "export", job)
    (tmp_path / "to").unlink()
    assert list(tmp_path.iterdir()) == []


# -- the commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [("reconcile", ".", "--deltas", "DELTAS"), ("inventory", "."), ("diff", ".", "../v2_clean"), ("salvage", ".", "TO")],
    ids=lambda verb: verb[0],
)
def test_commands_print_the_same(spark, tmp_path, verb, monkeypatch):
    """With paths as they were given, and the choice of a runner."""
    monkeypatch.setattr("time.time", lambda: 1.8e9)
    monkeypatch.chdir(TORN)
    places = {"DELTAS": write_lines(tmp_path / "d.csv", history(TORN.name)), "TO": tmp_path / "to"}
    printed = {}
    for name in BOTH:
        result = CliRunner().invoke(main, [*(str(places.get(word, word)) for word in verb), "--json", "--runner", name])
        assert result.exit_code == 1, result.output
        printed[name] = result.stdout
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
    assert printed["spark"] == printed["local"]
    assert '"path":"store/1.sqs"' in printed["spark"]
    result = CliRunner().invoke(main, [*(str(places.get(word, word)) for word in verb)])
    assert "runner local: " in result.stderr
    assert "spark pays from" in result.stderr
