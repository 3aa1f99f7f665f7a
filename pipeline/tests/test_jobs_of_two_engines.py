"""Reconcile, inventory, diff and export: both engines find the same and say the same, on every directory of ours."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import msgstore
from msgstore.cli.main import main
from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.counts import read_counts
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.export import plan_export
from msgstore.jobs.inventory import plan_inventory
from msgstore.jobs.reconcile import WRITTEN, plan_reconcile
from msgstore.jobs.runner import make_runner
from support import ACME_CELLS, DATA

CATALOGUE = msgstore.load_catalogue()
ENGINES = ("local", "spark")
BROKERS = sorted(path.parent for path in (DATA / "msg-store").glob("*/manifest.json") if (path.parent / "store").is_dir())


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr("msgstore.jobs.tasks.pack.__defaults__", (2**17,))


def engine(name):
    return make_runner(CATALOGUE, name, {"processes": 1} if name == "local" else {})


def both(verb, job):
    """Return what both engines report of a job: the same, or the test fails."""
    local, spark = (getattr(engine(name), verb)(job) for name in ENGINES)
    assert spark == local
    return spark


def both_refuse(verb, job):
    """Return the one error with which both engines refuse a job."""
    said = []
    for name in ENGINES:
        with pytest.raises(ConfigError) as caught:
            getattr(engine(name), verb)(job)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def messages_of(broker):
    return json.loads((DATA / "msg-store" / broker / "manifest.json").read_text())["messages"]


def history(name):
    """Every write and remove of what a broker did, in any order; and one id that was removed too often."""
    changes = [(m["id"], change) for m in messages_of(name) for change in [1] * m["writes"] + [-1] * m["removes"]]
    changes += [("ab" * 16, -2), ("cd" * 16, 1), ("cd" * 16, -1)]
    random.Random(name).shuffle(changes)
    return changes


def write_lines(path, rows):
    path.write_text("".join(f"{msg_id},{count}\n" for msg_id, count in rows))
    return path


@pytest.fixture
def own(tmp_path):
    """A store of a third party's records."""
    with msgstore.open_store(tmp_path / "own", **ACME_CELLS["ets-v2-audit"].keys) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body %d" % n) for n in range(100))
    return tmp_path / "own"


@pytest.mark.parametrize("in_memory", [None, 20], ids=["in memory", "on disk"])
@pytest.mark.parametrize("broker", BROKERS, ids=lambda path: path.name)
def test_reconcile_is_the_same(spark, tmp_path, broker, in_memory, monkeypatch):
    if in_memory:
        monkeypatch.setattr("msgstore_spark.jobs.reconcile._MAX_ROWS_IN_MEMORY", in_memory)
    changes = history(broker.name)
    deltas = [write_lines(tmp_path / "a.csv", changes[::2]), write_lines(tmp_path / "b.csv", changes[1::2])]
    said, written = [], []
    for name in ENGINES:
        report = engine(name).reconcile(plan_reconcile(CATALOGUE, [broker], deltas, to=tmp_path / name))
        said.append([report.as_json(), list(report.named_as_json()), [spot.as_json() for spot in report.damage]])
        folders = {which: tmp_path / name / f"class={which}" for which in WRITTEN}
        written.append({which: sorted(read_counts(path)) if path.exists() else [] for which, path in folders.items()})
    assert said[0] == said[1]
    assert written[0] == written[1]
    assert written[1]["negative"] == [(bytes.fromhex("ab" * 16), -2)]
    assert said[1][0]["classes"]["settled"]["ids"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", *ENGINES]


@pytest.mark.parametrize("wrong", ["nonsense", "0" * 32 + ",9223372036854775807"])
def test_reconcile_of_bad_changes_leaves_nothing(spark, tmp_path, wrong):
    deltas = [write_lines(tmp_path / "a.csv", [("0" * 32, 1)]), tmp_path / "b.csv"]
    deltas[1].write_text(f"{'1' * 32},1\n{wrong}\n")
    said = both_refuse("reconcile", plan_reconcile(CATALOGUE, [BROKERS[0]], deltas, to=tmp_path / "to"))
    assert str(deltas[1]) in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


def test_reconcile_with_nothing_alive_is_empty(spark, tmp_path):
    for name in ENGINES:
        job = plan_reconcile(CATALOGUE, [BROKERS[0]], [write_lines(tmp_path / "none.csv", [])], to=tmp_path / name)
        assert engine(name).reconcile(job).classes["live"].ids == 0
        assert list(read_counts(tmp_path / name / "class=live")) == []


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


def test_inventory_says_paths_as_given(spark, monkeypatch):
    monkeypatch.chdir(DATA)
    report = both("inventory", plan_inventory(CATALOGUE, [Path("msg-store/v2_dirty_torn")], 1.8e9))
    assert {segment.path for segment in report.segments()} == {f"msg-store/v2_dirty_torn/store/{n}.sqs" for n in (0, 1)}


@pytest.mark.parametrize("form", ["lines", "Parquet"])
def test_files_of_counts_are_read_alike(spark, tmp_path, form):
    """In any form. The counts of an id are added."""
    some = [(message["id"], 2) for message in messages_of(BROKERS[0].name)[:100]]
    first, large = some[0][0], (some[0][0], 2**48 - 1)
    rows = [*some, large, *some, large, *[(msg_id, -3) for msg_id, _ in some], (first, 1 - 2**48), (first, 1 - 2**48)]
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
    write([*rows, (first, 2**48 - 1)])
    assert f"{first} has {2**48} references; at most" in both_refuse("inventory", job)


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
    back = engine("spark").diff(plan_diff(CATALOGUE, other, whole))
    assert back.ids["only_b"] == there.ids["only_a"]
    same = engine("spark").diff(plan_diff(CATALOGUE, BROKERS[0], BROKERS[0]))
    assert not any(same.ids.values())


@pytest.mark.parametrize("options", [{}, {"partition_by": ["format", "type"], "columns": ["id", "body"]}, {"body": "erlang"}])
def test_export_is_the_same(spark, tmp_path, own, options):
    found = {}
    for name in ENGINES:
        report = engine(name).export(plan_export(CATALOGUE, [DATA, own], tmp_path / name, **options))
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
        engine("spark").export(job)
    (tmp_path / "to").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "verb",
    [
        ("reconcile", "SOURCE", "--deltas", "DELTAS"),
        ("inventory", "SOURCE"),
        ("diff", "SOURCE", "OTHER"),
        ("salvage", "SOURCE", "TO"),
    ],
    ids=lambda verb: verb[0],
)
def test_commands_print_the_same(spark, tmp_path, verb, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.8e9)
    deltas = write_lines(tmp_path / "d.csv", history("v2_dirty_torn"))
    store, to = DATA / "msg-store" / "v2_dirty_torn" / "store", tmp_path / "to"
    places = {"SOURCE": store, "DELTAS": deltas, "OTHER": DATA / "msg-store" / "v2_clean", "TO": to}
    printed = {}
    for name in ENGINES:
        result = CliRunner().invoke(main, [*(str(places.get(word, word)) for word in verb), "--json", "--runner", name])
        assert result.exit_code == 1, result.output
        printed[name] = result.stdout
        shutil.rmtree(to, ignore_errors=True)
    assert printed["spark"] == printed["local"]
