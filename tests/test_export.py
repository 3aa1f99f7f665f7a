"""Job ``export``: the records of a scan as Parquet files that appear when all are written."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import msgstore
from msgstore.contract import ConfigError, StoreError, StoreIOError, StoreLocked
from msgstore.jobs.export import ExportReport, plan_export
from msgstore.jobs.output import datasets
from msgstore.jobs.reconcile import plan_reconcile
from msgstore.jobs.salvage import plan_salvage
from support import ACME_CELLS, DATA, DIRECTORIES, RealDirectory, catalogue, command, filled, json_of, records_of, run_job
from support import failing as raise_io_error


def export(sources: list[Path], to: Path, processes: int = 1, **options: object) -> ExportReport:
    return run_job(plan_export(catalogue(), sources, to, **options), processes)


def rows_of(to: Path) -> list[dict]:
    return in_order(ds.dataset(to, partitioning="hive").to_table().to_pylist())


def in_order(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: (row["store"], row["file"], row["offset"]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Store of a broker."""
    return RealDirectory.load("v2_clean").copy(tmp_path)


@pytest.mark.slow
def test_export_of_every_fixture_equals_scan(tmp_path, monkeypatch):
    monkeypatch.setattr("msgstore.jobs.tasks.group_into_tasks.__defaults__", (2**18,))
    report = export([DATA], tmp_path / "to", processes=2)
    expected = in_order(records_of(DATA))
    assert rows_of(tmp_path / "to") == expected
    assert (report.rows, len(expected) > 3000) == (len(expected), True)
    assert report.as_json()["body_bytes"] == sum(len(row["body"]) for row in expected)
    files = [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert (report.files, report.written) == (len(files), sum(path.stat().st_size for path in files))
    assert len(files) > 5
    assert len(report.damage) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_codec_adds_payload_of_live_messages(name, tmp_path):
    real = RealDirectory.load(name)
    export([DATA / "msg-store" / name], tmp_path / "to", body="erlang", columns=["id", "payload"])
    rows = ds.dataset(tmp_path / "to").to_table()
    assert rows.column_names == ["id", "payload"]
    sizes = {bytes.fromhex(m["id"]): m["payload_size"] for m in real.manifest["messages"]}
    found = {row["id"]: len(row["payload"]) for row in rows.to_pylist() if row["id"] in real.live}
    assert found == {msg_id: sizes[msg_id] for msg_id in real.live}


def test_partitions_have_values_of_their_columns(tmp_path, monkeypatch):
    """A column that is named twice counts once."""
    monkeypatch.setattr(datasets, "FILE_SIZE", 20_000)
    source = DATA / "msg-store"
    report = export([source], tmp_path / "to", partition_by=["store", "format", "type", "store"])
    assert rows_of(tmp_path / "to") == in_order(records_of(source))
    assert "store" not in report.columns
    stores = {path.name for path in (tmp_path / "to").iterdir()}
    assert len(stores) > 10
    assert {path.name for path in (tmp_path / "to").glob("*/format=v1/*")} == {"type=__HIVE_DEFAULT_PARTITION__"}


def test_records_of_third_party_have_its_columns(tmp_path):
    report = export([filled(tmp_path / "store", **ACME_CELLS["ets-v2-audit"].keys)], tmp_path / "to", partition_by=["actor"])
    assert report.rows == 20
    rows = rows_of(tmp_path / "to")
    assert {(row["actor"], row["type"], row["body"]) for row in rows} == {("tests", 200, b"body")}
    assert all(row["time"].year > 2020 for row in rows)


def test_fields_of_format_are_columns(tmp_path):
    """In every environment that tests all cells: acme-stamped-format is installed there."""
    pytest.importorskip("acme_stamped_format")
    before = time.time_ns() // 1000
    filled(tmp_path / "store", [(b"i" * 16, b"body")], format="stamped")
    command("export", tmp_path / "store", tmp_path / "to")
    row = ds.dataset(tmp_path / "to").to_table(columns=["type", "written"]).to_pylist()[0]
    assert row["type"] is None
    assert before <= row["written"].timestamp() * 1_000_000 <= time.time_ns() // 1000


def test_empty_store_has_columns_all_the_same(tmp_path):
    report = export([filled(tmp_path / "store", [])], tmp_path / "to")
    assert (report.rows, report.files) == (0, 1)
    assert ds.dataset(tmp_path / "to").schema.names == report.columns


@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (ConfigError, {"columns": ["ids"]}, "there is no column 'ids'; there are: store, file"),
        (ConfigError, {"partition_by": ["exchange"]}, "there is no column 'exchange'"),
        (ConfigError, {"partition_by": ["body"]}, "rows cannot be parted by the column 'body'"),
        (ConfigError, {"columns": ["format"], "partition_by": ["format"]}, "every column is one that rows are parted by"),
        (StoreError, {"destination": Path("store")}, "lies inside"),
        (StoreError, {"destination": Path("store/to")}, "lies inside"),
        (StoreError, {"destination": Path("x/y")}, "no such directory"),
        (StoreError, {"sources": [Path("stor*")], "destination": Path("store/to")}, "lies inside"),
        (StoreError, {"sources": [Path("*")], "destination": Path("store/to")}, "lies inside"),
    ],
)
def test_wrong_columns_and_places_are_refused(error, options, message, path, tmp_path, monkeypatch):
    """Every job that writes refuses a destination in what it reads, also in matches of a glob."""
    (tmp_path / "deltas").touch()
    monkeypatch.chdir(tmp_path)
    options = {"sources": [path], "destination": tmp_path / "to"} | options
    with pytest.raises(error, match=message):
        plan_export(catalogue(), **options)
    if error is StoreError:
        sources, to = options["sources"], options["destination"]
        for plan in (lambda: plan_salvage(catalogue(), sources, to), lambda: plan_reconcile(catalogue(), sources, [], to=to)):
            with pytest.raises(error, match=message):
                plan()


def test_store_in_use_is_refused(path, tmp_path):
    with msgstore.open_store(path, adopt=True), pytest.raises(StoreLocked):
        plan_export(catalogue(), [path], tmp_path / "to")
    plan_salvage(catalogue(), [path / "0.sqs"], path / "to")  # next to a segment that is named itself


@pytest.mark.parametrize("failing", ["create", "pwrite", "sync"])
def test_failed_export_leaves_nothing(path, failing, tmp_path, monkeypatch):
    """And can be repeated."""
    fail = raise_io_error(errno.ENOSPC)
    with monkeypatch.context() as patch:
        patch.setattr(f"msgstore.files.Files.{failing}", fail)
        with pytest.raises(StoreIOError, match=rf"^{tmp_path / 'to'}: No space left on device"):
            export([path], tmp_path / "to")
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    export([path], tmp_path / "to")
    assert rows_of(tmp_path / "to") == in_order(records_of(path))


def test_task_of_ended_job_brings_nothing_back(tmp_path):
    rows = pa.table({"a": [1]})
    with datasets.dataset(str(tmp_path / "to"), []) as staging:
        writer = datasets.DatasetWriter(staging.path, 0, rows.schema)
        writer.write("b=c/d=e", rows)
    with pytest.raises(StoreIOError, match="No such file or directory"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_deleted_segment_is_damage(path, tmp_path):
    job = plan_export(catalogue(), [path], tmp_path / "to")
    (path / "0.sqs").unlink()
    spots = [(spot.path, spot.reason) for spot in run_job(job).damage]
    assert spots == [(str(path / "0.sqs"), "unreadable: No such file or directory")]
    assert rows_of(tmp_path / "to") == in_order(records_of(path))


def test_value_that_is_too_large_is_refused(tmp_path, monkeypatch):
    """The error has the place of the record."""
    pytest.importorskip("acme_zstd_body")
    filled(tmp_path / "store", [(b"i" * 16, bytes(1000))], body="zstd")
    monkeypatch.setattr("msgstore.jobs.columns.batches.MAX_VALUE", 999)
    arguments = ["export", tmp_path / "store", tmp_path / "to", "--processes", "1", "--body", "zstd"]
    result = command(*arguments, code=2)
    assert f"{tmp_path / 'store' / '0.sqs'}: at offset 64: the body codec 'zstd' makes 1000 bytes of 'payload'" in result.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    command(*arguments, "--columns", "id,body")


def test_command_prints_inputs_damage_and_summary(tmp_path):
    arguments = ["export", DATA / "msg-store" / "v2_dirty_torn", tmp_path / "to", "--processes", "1"]
    lines = json_of(*arguments, "--columns", "id, size", code=1)
    assert [line["kind"] for line in lines] == ["input", "input", "damage", "summary"]
    assert lines[-1]["columns"] == ["id", "size"]
    assert lines[-1]["rows"] == ds.dataset(tmp_path / "to").count_rows()
    assert "choose a new name" in command(*arguments, code=2).stderr
