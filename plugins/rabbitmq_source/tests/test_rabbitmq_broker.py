"""Nodes that Debian's broker makes here: stopped, killed under load, damaged; compared with what it delivers from a copy."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from msgstore.cli.main import main

pytest.importorskip("pika")

from msgstore_rabbitmq_source.opening import open_node
from msgstore_rabbitmq_source.repair import repair_node
from rabbitmq_broker import Broker, needs_broker
from rabbitmq_files import names
from rabbitmq_load import QUEUES, Journal, channel_of, consume, declare, drain, publish, under_load
from rabbitmq_nodes import facts, listed, rows

pytestmark = pytest.mark.broker
MESSAGES = 1500


@pytest.fixture(scope="module")
def journal() -> Journal:
    return Journal()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, journal: Journal) -> Path:
    """The data directory of a node that was stopped cleanly."""
    needs_broker()
    base = tmp_path_factory.mktemp("stopped")
    with Broker(base, segment_size=2**18) as broker:
        fill(broker, journal)
        broker.stop()
    return broker.data


def fill(broker: Broker, journal: Journal) -> None:
    declare(broker)
    publish(broker, journal, MESSAGES, seed=1, large=2)
    assert len(journal.confirmed) == MESSAGES
    for queue, count in (("mail.v1", 40), ("mail.v2", 40), ("lazy.v2", 20), ("fan.a", 100), ("fan.b", 30), ("prio.v1", 20)):
        consume(broker, journal, queue, count)
    consume(broker, journal, "source.v1", 10, reject=True)


def delivered(data: Path, tmp_path: Path) -> dict[str, list]:
    """Return what the broker delivers from a copy of the node."""
    broker = Broker(tmp_path / "boot", name=data.name)
    shutil.copytree(data, broker.data)
    with broker:
        return drain(broker)


def compared(data: Path, expected: dict[str, list], journal: Journal | None = None) -> None:
    """Check that the source has what the broker delivers, in order, with the same properties. ``journal``: of a killed node,
    which may have entries without a body, of messages that were acknowledged or never confirmed."""
    found, damage = rows(data)
    assert all("consumed just before the kill" in span.reason for span in damage)
    lost: Counter[str] = Counter()
    for span in damage:
        lost[span.name.queue] += span.messages
    assert lost <= (journal.unsure() if journal else Counter())
    for queue in QUEUES:
        got = listed(found.get(("/", queue), []))
        assert facts(got) == [one[:3] for one in expected[queue]], queue
        for row, (_, _, _, properties) in zip(got, expected[queue], strict=True):
            assert properties_equal(row, properties), (queue, row)


def properties_equal(row: dict, properties) -> bool:
    """Compare by the bytes that pika decodes: it has no access to those that the broker sends."""
    import pika

    ours = pika.BasicProperties()
    ours.decode(row["raw_properties"])
    return ours == properties


def test_stopped_node_has_what_the_broker_delivers(stopped, journal, tmp_path):
    expected = delivered(stopped, tmp_path)
    compared(stopped, expected)
    found, _ = rows(stopped)
    assert {row["certainty"] for all_of in found.values() for row in listed(all_of)} == {"certain"}
    for queue, must in journal.wanted().items():
        got = Counter(row["properties"]["message_id"] for row in listed(found["/", queue]))
        assert got == must, queue


def test_killed_node_has_what_was_confirmed(tmp_path):
    needs_broker()
    journal = Journal()
    with Broker(tmp_path / "killed") as broker:
        fill(broker, journal)
        under_load(broker, journal, seconds=3, end=broker.kill)
    compared(broker.data, delivered(broker.data, tmp_path), journal)
    found, _ = rows(broker.data)
    for queue in QUEUES:
        got = Counter(row["properties"]["message_id"] for row in listed(found.get(("/", queue), [])))
        must = journal.wanted().get(queue, Counter())
        assert not must - got, queue
        assert set(got) <= journal.possible(queue)
        unsure = [row for row in listed(found.get(("/", queue), [])) if row["certainty"] == "maybe_consumed"]
        assert set(got - must) <= {row["properties"]["message_id"] for row in unsure}


def test_compacted_node_has_what_the_broker_delivers(tmp_path):
    """Most messages are consumed, so that the broker combines segments, and then it is killed."""
    needs_broker()
    journal = Journal()
    with Broker(tmp_path / "compacted", segment_size=2**18) as broker:
        fill(broker, journal)
        for queue in QUEUES:
            consume(broker, journal, queue, MESSAGES // 20)
        broker.kill()
    compared(broker.data, delivered(broker.data, tmp_path), journal)


def wrong_sizes(data: Path) -> int:
    """Set wrong sizes in the records of every segment of the store. Return their number."""
    count = 0
    for segment in sorted(data.rglob("msg_store_persistent/*.rdq")):
        content, at = bytearray(segment.read_bytes()), 0
        while at < len(content):
            size = int.from_bytes(content[at : at + 8], "big")
            if hashlib.md5(content[at + 8 : at + 24], usedforsecurity=False).digest()[0] < 12:
                content[at : at + 8] = (size + 5).to_bytes(8, "big")
                count += 1
            at += 9 + size
        segment.write_bytes(content)
    return count


def test_broker_boots_on_a_repaired_copy_and_loses_nothing(stopped, tmp_path):
    expected = delivered(stopped, tmp_path / "whole")
    damaged = tmp_path / "damaged" / stopped.name
    shutil.copytree(stopped, damaged)
    assert wrong_sizes(damaged)
    lost = damage_indexes(damaged)
    with open_node(damaged) as source:
        assert repair_node(source, damaged, tmp_path / stopped.name)
    got = delivered(tmp_path / stopped.name, tmp_path / "repaired")
    for queue in QUEUES:
        whole, found = [one[:3] for one in expected[queue]], [one[:3] for one in got[queue]]
        assert found == whole if queue not in lost else set(found) <= set(whole), queue
        assert len(whole) - len(found) <= lost.get(queue, 0), queue


def damage_indexes(data: Path) -> dict[str, int]:
    """Damage headers and entries. Return the queues that lose messages by it, and how many at most."""
    vhost = data / "msg_stores/vhosts" / names.vhost_directory(b"/")
    (vhost / ".config").write_text("garbage")
    places = {name: vhost / "queues" / names.queue_directory(b"/", name.encode()) for name in ("lazy.v1", "lazy.v2", "mail.v2")}
    for file, offset in ((places["lazy.v2"] / "0.qs", 0), (places["mail.v2"] / "0.qi", 0)):
        content = bytearray(file.read_bytes())
        content[offset : offset + 4] = b"XXXX"
        file.write_bytes(content)
    index = max(places["lazy.v1"].glob("*.idx"), key=lambda file: file.stat().st_size, default=None)
    if index is None:
        return {}
    content = bytearray(index.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 60] = bytes(range(100, 160))
    index.write_bytes(content)
    return {"lazy.v1": 200}


@pytest.mark.parametrize("queues", [0, 1100])
def test_definitions_are_those_that_the_broker_exports(tmp_path, queues):
    """With many queues, Mnesia has dumped its log into the images of the tables."""
    needs_broker()
    with Broker(tmp_path / "node") as broker:
        declare(broker)
        with channel_of(broker) as channel:
            for number in range(queues):
                channel.queue_declare(
                    f"many.{number}", durable=True, arguments={"x-max-length": number, "x-overflow": "reject-publish"}
                )
            for number in range(0, queues, 2):
                channel.queue_delete(f"many.{number}")
            channel.exchange_declare(
                "topics", "topic", durable=True, auto_delete=False, arguments={"alternate-exchange": "fan"}
            )
            channel.queue_bind("mail.v1", "topics", "a.#", arguments={"x-match": "all", "n": 3})
            channel.queue_declare("not durable")
            channel.exchange_bind("fan", "topics", "to.fan")
        broker.rabbitmqctl(
            "set_policy", "--apply-to", "queues", "short", "^mail", '{"max-length": 1000, "overflow": "drop-head"}'
        )
        broker.rabbitmqctl("add_vhost", "billing/eu", "--description", "of the EU", "--tags", "a,b")
        broker.rabbitmqctl("add_user", "reader", "secret")
        broker.rabbitmqctl("set_user_tags", "reader", "monitoring", "management")
        broker.rabbitmqctl("set_permissions", "-p", "billing/eu", "reader", "^$", "^$", ".*")
        broker.rabbitmqctl("set_topic_permissions", "-p", "billing/eu", "reader", "amq.topic", "^a", "^b")
        exported = tmp_path / "exported.json"
        broker.rabbitmqctl("export_definitions", str(exported))
        broker.kill()
    if queues:
        assert (broker.data / "rabbit_durable_queue.DCD").stat().st_size > 1000
    result = CliRunner().invoke(main, ["rabbitmq", "definitions", str(broker.data), "--with-password-hashes"])
    assert result.stderr == ""
    output = result.stdout
    ours, theirs = json.loads(output), json.loads(exported.read_text())
    for kind in ("queues", "exchanges", "bindings", "vhosts", "users", "permissions", "topic_permissions", "policies"):
        found = [{name: value for name, value in one.items() if name in theirs[kind][0]} for one in ours[kind]]
        durable = [one for one in theirs[kind] if one.get("durable", True) and one.get("name") != "not durable"]
        assert sorted(map(canonical, found)) == sorted(map(canonical, durable)), kind
    assert "secret" not in output
    without = CliRunner().invoke(main, ["rabbitmq", "definitions", str(broker.data)]).stdout
    assert not [one["password_hash"] for one in json.loads(without)["users"] if one["password_hash"]]
    with Broker(tmp_path / "other") as other:
        (tmp_path / "ours.json").write_text(output)
        other.rabbitmqctl("import_definitions", str(tmp_path / "ours.json"))
        assert "billing/eu" in other.rabbitmqctl("list_vhosts")


def canonical(value: dict) -> str:
    return json.dumps(value, sort_keys=True)
