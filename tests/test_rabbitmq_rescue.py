"""The whole rescue: a node is killed under load, and its messages go into a fresh one, which has what the clients know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pika")

from msgstore_rabbitmq_source.opening import open_node
from rabbitmq_broker import Broker, needs_broker
from rabbitmq_files.tables import read_log
from rabbitmq_load import QUEUES, Journal, consume, declare, drain, publish, under_load
from rabbitmq_nodes import listed, rows

pytestmark = pytest.mark.broker
MESSAGES = 5000


def msgstore(*arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([sys.executable, "-m", "msgstore", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def killed_node(base: Path, journal: Journal) -> Path:
    """Publish, consume a part, and kill the node under load. Return its data directory."""
    with Broker(base) as broker:
        declare(broker)
        publish(broker, journal, MESSAGES, seed=1, large=3)
        taken = {"mail.v1": 150, "mail.v2": 90, "lazy.v2": 60, "fan.a": 400, "fan.b": 200, "prio.v1": 50}
        for queue, count in taken.items():
            consume(broker, journal, queue, count)
        consume(broker, journal, "source.v1", 20, reject=True)
        under_load(broker, journal, seconds=3, end=broker.kill)
    return broker.data


def test_messages_of_a_killed_node_are_in_a_fresh_one(tmp_path):
    needs_broker()
    journal = Journal()
    node = killed_node(tmp_path / "old", journal)
    (tmp_path / "definitions.json").write_text(msgstore("rabbitmq", "definitions", node, "--with-password-hashes"))
    found, damage = rows(node)
    assert all("consumed just before the kill" in span.reason for span in damage)
    with Broker(tmp_path / "new", name="rabbit2@localhost") as fresh:
        fresh.rabbitmqctl("import_definitions", str(tmp_path / "definitions.json"))
        lines = msgstore("convert", node, fresh.url, "--journal", tmp_path / "journal", "--json", codes=(0, 1))
        summary = json.loads(lines.splitlines()[-1])
        fresh.stop()
        again, _ = rows(fresh.data)
        with fresh.start():
            drained = drain(fresh)
    assert summary["refused"] == 0
    for queue in QUEUES:
        ours, theirs = listed(found.get(("/", queue), [])), listed(again.get(("/", queue), []))
        assert [row["sha256"] for row in ours] == [row[0] for row in drained[queue]], queue
        # straight to the queue, and every byte of the properties
        assert [(row["sha256"], row["raw_properties"]) for row in ours] == [
            (row["sha256"], row["raw_properties"]) for row in theirs
        ]
        got = Counter(properties.message_id for _, _, _, properties in drained[queue])
        must = journal.wanted().get(queue, Counter())
        assert not must - got, queue
        unsure = {row["properties"]["message_id"] for row in ours if row["certainty"] == "maybe_consumed"}
        assert set(got - must) <= unsure & journal.possible(queue)


def test_counts_are_those_that_the_broker_saved(tmp_path):
    """After a clean stop, ``msg_store_index.ets`` has a count for each message."""
    needs_broker()
    journal = Journal()
    with Broker(tmp_path / "node") as broker:
        declare(broker)
        publish(broker, journal, 600, seed=3)
        consume(broker, journal, "fan.a", 30)
        consume(broker, journal, "mail.v1", 10)
        broker.stop()
    saved = {}
    for _, row in read_log(next(broker.data.rglob("msg_store_persistent/msg_store_index.ets")).read_bytes()).terms:
        if row[0] == "msg_location" and row[2]:
            saved[row[1]] = row[2]
    with open_node(broker.data) as source:
        counts = Counter(one for vhost in source.node.files.vhosts.values() for one in source.node.references(vhost))
    assert counts == saved
    assert len(saved) > 50
    printed = msgstore("rabbitmq", "counts", broker.data).splitlines()
    assert {bytes.fromhex(line.split(",")[0]): int(line.split(",")[1]) for line in printed} == saved
    (tmp_path / "counts.csv").write_text("\n".join(printed))
    classes = msgstore("reconcile", broker.data, "--deltas", tmp_path / "counts.csv", "--to", tmp_path / "classes", codes=(3,))
    assert f"{len(saved)}" in classes
