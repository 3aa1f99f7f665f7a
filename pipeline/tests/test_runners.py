"""Both runners find the same, say the same, and write the same, on every directory of ours."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
from pathlib import Path
from unittest import mock

import attrs
import pytest
from click.testing import CliRunner

import msgstore
from damaged_corpus import DAMAGED, DATA, build_corpus
from msgstore.cli.main import main
from msgstore.contract import ConfigError, PluginError, StoreError
from msgstore.jobs.counts import read_counts
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.inputs import find_inputs
from msgstore.jobs.inventory import plan_inventory
from msgstore.jobs.live_records import write_live
from msgstore.jobs.reconcile import WRITTEN, plan_reconcile
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from msgstore.jobs.workers import disable_plugins
from msgstore_spark import runner
from support import ACME_CELLS

CATALOGUE = msgstore.load_catalogue()
RUNNERS = {"local": ("local", {"processes": 1}), "processes": ("local", {"processes": 2}), "spark": ("spark", {})}
BOTH = ("local", "spark")
BROKER = DATA / "msg-store"
STORES = sorted({path.parent for suffix in ("rdq", "sqs") for path in DATA.rglob(f"*.{suffix}")})
BROKERS = sorted(path.parent for path in BROKER.glob("*/manifest.json") if (path.parent / "store").is_dir())


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr("msgstore.jobs.tasks.group_into_tasks.__defaults__", (2**17,))


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


def manifest_of(broker):
    return json.loads((BROKER / broker / "manifest.json").read_text())


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


def same_from_all(tmp_path, sources, live=None, **options):
    """Return report and contents by file and message: the same from all runners. Every byte of the input is accounted for."""
    results = []
    for name in RUNNERS:
        job = plan_salvage(CATALOGUE, sources, tmp_path / name, **options)
        report = run(name, "salvage", attrs.evolve(job, task_size=2**20, live=live))
        lines = [line for one in report.inputs for line in (one.as_json(), *one.recovered_as_json())]
        lines += [*(spot.as_json() for spot in report.damage), report.as_json()]
        results.append((json.dumps(lines).replace(job.target.path, "DEST"), contents(Path(job.target.path))))
    assert results[1:] == results[:1] * 2
    for found in report.inputs:
        parts = found.header + found.good + found.duplicates + found.dead + found.holes + found.damaged
        assert parts == found.size == Path(found.path).stat().st_size
    return report, results[0][1]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.parent.name if path.name == "store" else path.name)
def test_directory_of_broker_is_salvaged_alike(spark, tmp_path, store):
    same_from_all(tmp_path, [store])


def test_all_and_forty_damaged_are_salvaged_alike(spark, tmp_path):
    corpus = tmp_path / "corpus"
    segments = build_corpus(corpus)
    report, stored = same_from_all(tmp_path, [corpus / "whole", corpus / "damaged"], body="raw")  # the better copies first
    assert len(report.inputs) == len(segments) > DAMAGED
    kinds = {"torn", "flipped", "truncated", "zero-filled", "shuffled"}
    assert {Path(spot.path).parent.name[3:] for spot in report.damage} >= kinds
    manifests = [json.loads(path.read_text()) for path in BROKER.glob("*/manifest.json")]
    records = [record for one in manifests for segment in one.get("segments", []) for record in segment["records"]]
    assert {(one["id"], one["body_sha256"]) for one in records} <= {(key, row.split()[0]) for key, row in stored.items()}


def test_salvage_with_large_arrow_types(spark, tmp_path, own):
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        report = run("spark", "salvage", plan_salvage(CATALOGUE, [own], tmp_path / "new"))
        assert spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert report.messages == 100


def test_sparse_segment_of_a_tebibyte_is_measured(spark, tmp_path, own):
    copy = shutil.copytree(own, tmp_path / "copy")
    with next(copy.glob("0.sqs")).open("r+b") as file:
        file.truncate(2**40)
    report = both("inventory", plan_inventory(CATALOGUE, [copy], 0.0))
    assert sum(segment.records for segment in report.segments()) == 100


def test_messages_without_counts_are_dead(spark, tmp_path):
    """One that they name and that is nowhere is missing."""
    ids = [record["id"] for segment in manifest_of("v2_compacted")["segments"] for record in segment["records"]]
    rows = [(msg_id, n % 3) for n, msg_id in enumerate(ids)]
    counts = write_lines(tmp_path / "counts.csv", [("id", "count"), *rows, (bytes(16).hex(), 1)])
    report, stored = same_from_all(tmp_path, [BROKER / "v2_compacted" / "store"], counts=counts)
    assert report.missing == 1
    assert {key: int(value.split()[1]) for key, value in stored.items() if " " in value} == {i: n for i, n in rows if n}
    assert sum(found.dead for found in report.inputs) > 0


def test_only_live_copies_are_copied_alike(spark, tmp_path):
    """Not the first one of a message that was removed and written again, nor one in a file that the store does not read."""
    path, live = tmp_path / "in", tmp_path / "live"
    for n in range(2):
        with msgstore.open_store(path, gc="never") as store, store.client() as client:
            client.write_many((bytes([i]) * 16, b"body %d" % i) for i in range(n, 20 - 10 * n))
            store.flush()
            client.remove([bytes([i]) * 16 for i in range(10 * (1 - n))])
    shutil.copyfile(path / "0.sqs", path / "01.sqs")
    live.mkdir()
    with msgstore.open_store(path, mode="r") as store:
        rows = [(i.hex(), n) for i, n in write_live(live, store, find_inputs(CATALOGUE, [path]).inputs)]
    report, _ = same_from_all(tmp_path, [path], str(live), counts=write_lines(tmp_path / "counts.csv", rows))
    assert ([found.records for found in report.inputs], report.missing) == ([0, 19], 0)
    assert report.inputs[1].duplicates == 9 * (21 + len(b"body 1"))
    assert all(found.dead for found in report.inputs)


@pytest.mark.parametrize("verb", ["salvage", "reconcile", "diff"])
def test_later_writer_fails_the_job_alike(spark, tmp_path, own, verb):
    """Its messages may be missing from the result, and those that it removes may be in it."""
    deltas = write_lines(tmp_path / "deltas.csv", [("ab" * 16, 1)])
    if verb == "diff":
        job = plan_diff(CATALOGUE, own, own)
    else:
        kind, more = {"salvage": (plan_salvage, [tmp_path / "new"]), "reconcile": (plan_reconcile, [[deltas]])}[verb]
        job = kind(CATALOGUE, [own], *more)
    msgstore.open_store(own).close()
    for name in BOTH:
        with pytest.raises(StoreError, match="another process has opened the store for writing"):
            run(name, verb, job)
    assert not (tmp_path / "new").exists()


# -- reconcile, inventory, diff, export ---------------------------------------------------------------------------------------


def history(name):
    """Return every write and remove of what a broker did, in any order; and one id that was removed too often."""
    messages = manifest_of(name)["messages"]
    changes = [(m["id"], change) for m in messages for change in [1] * m["writes"] + [-1] * m["removes"]]
    changes += [("ab" * 16, -2), ("cd" * 16, 1), ("cd" * 16, -1)]
    random.Random(name).shuffle(changes)
    return changes


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("broker", BROKERS, ids=lambda path: path.name)
def test_reconcile_is_the_same(spark, tmp_path, broker, changed, monkeypatch):
    """Also where rows do not fit into the memory of a worker, and if nothing is alive: the folder of live ids is empty."""
    changes = history(broker.name) if changed else []
    deltas = [write_lines(tmp_path / "a.csv", changes[::2]), write_lines(tmp_path / "b.csv", changes[1::2])]
    found = []
    for name, in_memory in (("local", 2**20), ("spark", 2**20), ("spark", 20)):
        monkeypatch.setattr("msgstore_spark.jobs._MAX_ROWS_IN_MEMORY", in_memory)
        to = tmp_path / f"{name} {in_memory}"
        report = run(name, "reconcile", plan_reconcile(CATALOGUE, [broker], deltas, to=to))
        said = [report.as_json(), list(report.named_as_json()), [spot.as_json() for spot in report.damage]]
        folders = {which: to / f"class={which}" for which in WRITTEN if which == "live" or (to / f"class={which}").exists()}
        found.append((said, {which: sorted(read_counts(path)) for which, path in folders.items()}))
    assert found[1:] == found[:1] * 2
    assert found[0][1].get("negative") == ([(bytes.fromhex("ab" * 16), -2)] if changed else None)
    assert (found[0][0][0]["classes"]["settled"]["ids"] > 0) == changed == bool(found[0][1]["live"])
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("counted", [False, True])
def test_inventory_is_the_same(spark, tmp_path, own, counted):
    counts = None
    if counted:
        messages = [m for broker in BROKERS for m in manifest_of(broker.name)["messages"]]
        counts = write_lines(tmp_path / "counts.csv", [(m["id"], m["refcount"]) for m in messages])
    report = both("inventory", plan_inventory(CATALOGUE, [DATA, own], 1.8e9, counts=counts))
    assert report.as_json()["types"]["audit"] == 100
    assert {store.counts for store in report.stores} == ({"given"} if counted else {"", "own"})
    assert (sum(segment.live or 0 for segment in report.segments()) > 1000) == counted


def test_counts_are_added_alike(spark, tmp_path):
    some = [(message["id"], 2) for message in manifest_of("mixed_upgrade")["messages"][:100]]
    first, most = some[0][0], 2**48 - 1
    rows = [*some, (first, most), *some, (first, most), *[(i, -3) for i, _ in some], (first, -most), (first, -most)]
    store = Path(shutil.copytree(BROKER / "mixed_upgrade" / "store", tmp_path / "store"))
    (store / "99.rdq").symlink_to("nowhere")
    counts = write_lines(tmp_path / "counts", rows)
    job = plan_inventory(CATALOGUE, [store], 1.8e9, counts=counts)
    report = both("inventory", job)
    assert sum(segment.live or 0 for segment in report.segments()) > 10
    assert [spot.path for spot in report.damage] == [str(store / "99.rdq")]
    write_lines(counts, [*rows, (first, most)])
    for name in BOTH:
        with pytest.raises(ConfigError, match=f"{first} has {2**48} references; at most"):
            run(name, "inventory", job)


def test_diff_is_the_same(spark, tmp_path):
    """A tree of everything against one in which segments are gone, cut, or come twice."""
    other = Path(shutil.copytree(BROKER, tmp_path / "other"))
    segments = sorted(path for path in other.rglob("*.sqs") if path.stat().st_size > 1000)
    segments[0].unlink()
    segments[1].write_bytes(segments[1].read_bytes()[:-500])
    shutil.copy(segments[2], segments[2].with_name("77.sqs"))
    body = bytearray(segments[3].read_bytes())
    body[-1] ^= 1
    segments[3].write_bytes(body)
    there = both("diff", plan_diff(CATALOGUE, BROKER, other))
    assert there.same > 1000
    assert there.ids["only_a"]
    assert run("spark", "diff", plan_diff(CATALOGUE, other, BROKER)).ids["only_b"] == there.ids["only_a"]


def test_diff_decodes_each_side_alike(spark, tmp_path):
    for name in ("raw", "zstd"):
        with msgstore.open_store(tmp_path / name, body=name) as store, store.client() as client:
            client.write_many([(bytes([number]) * 16, b"body %d" % number) for number in range(9)])
            client.write(bytes([9]) * 16, name.encode())
    report = both("diff", plan_diff(CATALOGUE, tmp_path / "raw", tmp_path / "zstd"))
    assert (report.same, report.ids["differing"]) == (9, [bytes([9]) * 16])


def test_failed_job_leaves_nothing(spark, tmp_path):
    """The error of a task has the same text from all runners."""
    deltas = [write_lines(tmp_path / "a.csv", [("0" * 32, 1)]), write_lines(tmp_path / "b.csv", [("1" * 32, 1), ("x", 1)])]
    for name in RUNNERS:
        with pytest.raises(ConfigError, match=f"^{deltas[1]}: line 2 is not"):
            run(name, "reconcile", plan_reconcile(CATALOGUE, [BROKERS[0]], deltas, to=tmp_path / "to"))
    assert sorted(tmp_path.iterdir()) == deltas


@pytest.mark.parametrize("name", RUNNERS)
def test_disabled_plugin_is_omitted_by_workers(spark, name):
    """By those of the job that was begun so."""
    job = plan_inventory(CATALOGUE, [BROKER / "v1_clean"], now=0.0)
    with disable_plugins(["format-v1"]), pytest.raises(PluginError, match="Disabled by the configuration: format-v1"):
        run(name, "inventory", job)
    assert not run(name, "inventory", job).damage


def test_disabled_plugin_on_spark_connect_is_refused(spark, monkeypatch):
    monkeypatch.setattr("msgstore_spark.runner.is_remote", lambda: True)
    with disable_plugins(["format-v1"]), pytest.raises(ConfigError, match=r"Spark Connect cannot omit format-v1\. Use another"):
        run("spark", "inventory", plan_inventory(CATALOGUE, [BROKER / "v2_clean"], now=0.0))


def test_progress_in_tasks_never_falls(monkeypatch):
    """Spark makes stages known late, and repeats one with fewer tasks."""
    polls = [{0: (3, 4)}, {0: (3, 4), 1: (0, 8)}, {0: (0, 1), 1: (2, 8)}, {2: (1, 2)}]
    stages, over, seen = {}, threading.Event(), []

    def active():
        if not polls:
            over.set()
            return []
        stages.update(now := polls.pop(0))
        return list(now)

    def info(stage):
        return mock.Mock(numCompletedTasks=stages[stage][0], numTasks=stages[stage][1])

    spark = mock.Mock()
    spark.sparkContext.statusTracker.return_value = mock.Mock(getActiveStageIds=active, getStageInfo=info)
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(runner, "is_remote", lambda: False)
    monkeypatch.setattr(runner.executors, "count", lambda spark: 1)
    with runner.watch(spark, lambda *numbers: seen.append(numbers)):
        assert over.wait(60)
    assert seen[:4] == [(3, 4), (3, 12), (5, 12), (6, 14)]
    assert seen[-1] == (14, 14)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    "verb",
    [("reconcile", ".", "--deltas", "DELTAS"), ("inventory", "."), ("diff", ".", "../v2_clean"), ("salvage", ".", "TO")],
    ids=lambda verb: verb[0],
)
def test_commands_print_the_same(spark, tmp_path, verb, monkeypatch):
    """With paths as they were given, and the choice of a runner."""
    monkeypatch.setattr("time.time", lambda: 1.8e9)
    monkeypatch.chdir(BROKER / "v2_dirty_torn")
    places = {"DELTAS": write_lines(tmp_path / "d.csv", history("v2_dirty_torn")), "TO": tmp_path / "to"}
    arguments = [str(places.get(word, word)) for word in verb]
    printed = {}
    for name in BOTH:
        result = CliRunner().invoke(main, [*arguments, "--json", "--runner", name])
        assert result.exit_code == 1, result.output
        printed[name] = result.stdout
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
    assert printed["spark"] == printed["local"]
    assert '"path":"store/1.sqs"' in printed["spark"]
    assert "runner local: " in (chosen := CliRunner().invoke(main, arguments).stderr)
    assert "spark pays from" in chosen
