"""Messages of a RabbitMQ node, whose shared bodies Spark joins."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import msgstore_spark
from msgstore.contract import ConfigError

DATA = Path(__file__).parents[2] / "tests/data"
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("node")
    with tarfile.open(DATA / "rabbitmq-3.10-killed/node.tar.gz") as archive:
        archive.extraction_filter = lambda member, path: member  # the argument ``filter`` came with Python 3.11.4
        archive.extractall(directory)
    return str(directory / "sre@localhost")


def rows_of(df) -> list:
    return sorted(df.collect(), key=lambda row: (row["vhost"], row["queue"], row["position"]))


def test_joined_messages_are_those_of_the_source(spark, node):
    looked_up = rows_of(spark.read.format("msgstore").option("source", "rabbitmq").load(node))
    joined = msgstore_spark.join_messages(spark, node, source="rabbitmq")
    assert rows_of(joined) == looked_up
    assert len(looked_up) == 2843
    counts = joined.groupBy("queue").count().collect()
    assert {row["queue"]: row["count"] for row in counts}["fan.b"] == 690


def test_selection_and_damage_are_those_of_the_source(spark, node):
    for segment in Path(node).rglob("msg_store_persistent/0.rdq"):
        content = bytearray(segment.read_bytes())
        content[4321:4329] = bytes(8) if len(content) > 4329 else content[4321:4329]
        segment.write_bytes(content)
    options = {"source": "rabbitmq", "queue": "fan.*"}
    looked_up = rows_of(spark.read.format("msgstore").options(**options).load(node))
    assert rows_of(msgstore_spark.join_messages(spark, node, **options)) == looked_up
    assert {row["queue"] for row in looked_up} == {"fan.a", "fan.b", "fan.c"}


def test_other_sources_are_read_as_they_are(spark):
    kestrel = str(DATA / "kestrel")
    expected = spark.read.format("msgstore").option("source", "kestrel").load(kestrel).count()
    assert msgstore_spark.join_messages(spark, kestrel).count() == expected


def test_orphans_are_refused(node):
    with pytest.raises(ConfigError, match="without the state 'orphan'"):
        msgstore_spark.join_messages(None, node, source="rabbitmq", state="all")
