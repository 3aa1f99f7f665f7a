"""``option("source", NAME)``: the messages of sources as core has them, and each once."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import msgstore
from msgstore.cli.main import main
from msgstore.contract import ConfigError
from msgstore.contract.messages import SourceDamage
from msgstore.jobs.messages import parallel
from msgstore.jobs.messages.columns import MESSAGES, record_batch
from msgstore.jobs.messages.selection import select, selected_messages, selected_queues
from msgstore.jobs.messages.sources import open_source, source_spec
from msgstore.option_values import Backend
from msgstore_spark import ExecutorMismatch, tasks
from msgstore_spark.messages import MessageOptions, MessageReader

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SOURCES = {"kestrel": DATA / "kestrel", "rocketmq": DATA / "rocketmq", "store": DATA / "msg-store" / "v2_dirty" / "store"}


def rows_of_core(name: str, path: Path, **selection):
    found = []
    chosen = select(**selection)
    with open_source(source_spec(msgstore.load_catalogue(), path, Backend(name))) as source:
        for info in selected_queues(source, chosen):
            for item in selected_messages(source, info.name, chosen):
                if not isinstance(item, SourceDamage):
                    found += record_batch(item).to_pylist()
    return found


def key(row):
    return (row["queue"] or "", row.get("partition") or 0, row["position"])


def rows_of(df):
    return sorted((row.asDict(recursive=True) for row in df.collect()), key=key)


@pytest.mark.parametrize("name", SOURCES)
def test_rows_are_those_of_core(spark, name):
    df = spark.read.format("msgstore").option("source", name).option("state", "all").load(str(SOURCES[name]))
    expected = sorted(rows_of_core(name, SOURCES[name], everything=True), key=key)
    assert expected
    assert rows_of(df) == expected


@pytest.mark.parametrize("schema", ["queue string, size bigint", "Queue string NOT NULL, SIZE bigint NOT NULL, raw binary"])
def test_schema_by_hand_gives_these_columns(spark, schema):
    expected = [(row["queue"], row["size"]) for row in rows_of_core("kestrel", SOURCES["kestrel"])]
    df = spark.read.format("msgstore").option("source", "kestrel").schema(schema).load(str(SOURCES["kestrel"]))
    assert sorted(row[:2] for row in df.collect()) == sorted(expected)
    with pytest.raises(PySparkException, match="the column 'size' is bigint, not int; cast it after"):
        spark.read.format("msgstore").option("source", "kestrel").schema("size int").load(str(SOURCES["kestrel"])).count()


def test_selection_is_that_of_the_command(spark):
    df = spark.read.format("msgstore").options(source="kestrel", queue="roll*").load(str(SOURCES["kestrel"]))
    rows = rows_of_core("kestrel", SOURCES["kestrel"], queues=("roll*",))
    names = ("queue", "position", "body")
    assert rows_of(df.select(*names)) == [{name: row[name] for name in names} for row in rows]
    assert df.count() == len(rows) > 0


@pytest.mark.parametrize("size", [1, 2])
def test_split_queue_has_each_message_once(monkeypatch, size):
    """Without a session: the parts of a queue are read one after the other."""
    monkeypatch.setattr(parallel, "TASK_MESSAGES", size)
    monkeypatch.setattr(parallel, "MAX_PARTS", 1000)
    options = MessageOptions.of({"path": str(SOURCES["rocketmq"]), "source": "rocketmq", "state": "all"})
    reader = MessageReader(options, from_arrow_schema(MESSAGES))
    parts = list(reader.partitions())
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(parts) > 1
    assert sorted(found, key=key) == sorted(rows_of_core("rocketmq", SOURCES["rocketmq"], everything=True), key=key)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source": "kestrell"}, "Did you mean 'kestrel'"),
        ({"source": "{nonsense"}, "is no table, neither"),
        ({"source": json.dumps({"use": "rocketmq", "gruop": "g"})}, "gruop"),
        ({"source": "kestrel", "relation": "damage"}, "See its damage with: msgstore queues /"),
        ({"source": "kestrel", "path": f"{SOURCES['kestrel']}/*"}, "a source reads one path"),
        ({"source": "kestrel", "raw": "yes"}, "neither true nor false"),
        ({"source": "kestrel", "state": "redy"}, "redy"),
    ],
)
def test_wrong_options_are_named(options, expected):
    with pytest.raises((ConfigError, msgstore.MsgStoreError)) as caught:
        MessageOptions.of({"path": str(SOURCES["kestrel"]), **options})
    assert expected in str(caught.value)


def test_failfast_names_the_damage(spark):
    load = spark.read.format("msgstore").option("source", "kestrel").option("queue", "broken")
    assert load.load(str(SOURCES["kestrel"])).count()
    with pytest.raises(PySparkException, match=r"broken.* at offset \d+: .*FAILFAST"):
        load.option("mode", "FAILFAST").load(str(SOURCES["kestrel"])).count()


def test_missing_plugin_of_executor_names_host(monkeypatch):
    options = MessageOptions.of({"path": str(SOURCES["kestrel"]), "source": "kestrel"})
    reader = MessageReader(options, StructType().add("queue", "string"))
    part, *_ = reader.partitions()
    without = msgstore.load_catalogue(["msgstore-kestrel-journal:kestrel-journal"])
    monkeypatch.setattr("msgstore.jobs.messages.sources.worker_catalogue", lambda: without)
    where = re.escape(f"on {socket.gethostname()} ({sys.executable}): ")
    with pytest.raises(
        msgstore.PluginError, match=f"{where}no installed plugin provides the source 'kestrel'.*check_executors"
    ):
        list(reader.read(part))
    reader = MessageReader(attrs.evolve(options, spec=attrs.evolve(options.spec, path="/no/such")), StructType())
    with pytest.raises(msgstore.StoreError, match=r"\), user \w+: /no/such: No such file .*Executors need it under this path"):
        list(reader.read(part))
    with pytest.raises(msgstore.PluginError, match=r"provides 'stork'\. check_executors"), tasks.name_host():
        raise msgstore.PluginError("nothing provides 'stork'. Did you mean 'store'?")


def test_stream_of_messages_is_refused(spark):
    with pytest.raises(PySparkException, match=r"there is no stream of them\n SQLSTATE"):  # no later error hides it
        spark.readStream.format("msgstore").option("source", "kestrel").load(str(SOURCES["kestrel"])).writeStream.format(
            "memory"
        ).queryName("q").start().processAllAvailable()


def test_command_shows_a_line_for_each_difference(spark, tmp_path, monkeypatch):
    def refuse(*_):
        raise ExecutorMismatch("executors differ\non a: x\non b: y")

    monkeypatch.setattr("msgstore_spark.executors.check_executors", refuse)
    done = CliRunner().invoke(main, ["convert", str(SOURCES["kestrel"]), str(tmp_path / "out.parquet"), "--master", "local[2]"])
    assert done.stderr.splitlines() == ["msgstore: executors differ", "msgstore: on a: x", "msgstore: on b: y"]


def test_command_converts_on_spark(spark, tmp_path):
    arguments = ["convert", str(SOURCES["kestrel"]), str(tmp_path / "out.parquet"), "--master", "local[2]", "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1, done.output  # one of the journals is broken
    local = CliRunner().invoke(main, [*arguments[:2], str(tmp_path / "local.parquet"), "--json"])
    assert [json.loads(line) for line in done.stdout.splitlines()][:-1] == [
        json.loads(line) for line in local.stdout.splitlines()
    ][:-1]
    expected = rows_of_core("parquet", tmp_path / "local.parquet")
    assert rows_of_core("parquet", tmp_path / "out.parquet") == sorted(expected, key=key)
    refused = CliRunner().invoke(main, [*arguments[:2], str(tmp_path / "out"), "--sink", "kestrel", "--runner", "spark"])
    assert refused.exit_code == 2
    assert "Use --runner local" in refused.output
