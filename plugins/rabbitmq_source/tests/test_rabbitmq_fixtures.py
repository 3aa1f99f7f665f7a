"""The source on nodes that a broker left, compared with what it delivered itself."""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from msgstore.contract import Candidate, ConfigError, QueueName
from msgstore_rabbitmq_source.definitions import definitions_of
from msgstore_rabbitmq_source.opening import open_node
from msgstore_rabbitmq_source.repair import repair_node
from msgstore_rabbitmq_source.source import detect
from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.properties import read_properties
from rabbitmq_nodes import DATA, KILLED, checksums, facts, listed, rows, truth, unpack, wanted
from support import command, slow


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Unpacks an archive, once for all tests, and returns the node, which no test changes."""
    return functools.cache(lambda archive: unpack(tmp_path_factory.mktemp("node"), archive))


@pytest.fixture(scope="module")
def whole(unpacked: Callable[[Path], Path]) -> Path:
    """The killed node, which no test changes."""
    return unpacked(KILLED / "node.tar.gz")


@pytest.fixture(scope="module")
def in_whole(whole: Path) -> tuple[dict, list]:
    """The messages of each queue of the killed node, and the damage."""
    return rows(whole)


@pytest.fixture
def killed(whole: Path, tmp_path: Path) -> Path:
    """A copy of the killed node."""
    return shutil.copytree(whole, tmp_path / whole.name)


@pytest.mark.parametrize("fixture", ["clean", "priority_lazy"])
def test_stopped_node_has_what_the_broker_delivered(fixture):
    path = DATA / "rabbitmq-3.10" / fixture
    before = checksums(path)
    found, damage = rows(path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert not damage
    for queue in manifest["queues"]:
        got, expected = listed(found.pop((queue["vhost"], queue["name"]), [])), queue["expected"]
        assert facts(got) == facts(expected), queue["name"]
        assert {row["certainty"] for row in got} <= {"certain"}
        for row, one in zip(got, expected, strict=True):
            if one["properties_bin"] is not None:  # the broker has changed the others
                assert row["raw_properties"].hex() == one["properties_bin"]
            properties = dict(one["properties"])
            headers = properties.pop("headers", None)
            assert row["properties"] == properties
            assert row["headers"].keys() == headers.keys() if headers else not row["headers"]
    assert not any(map(listed, found.values()))
    assert checksums(path) == before


def test_changed_properties_have_the_bytes_that_a_broker_sends():
    """Vectors of the broker's own encoding do not exist; the header of a dead letter is compared value by value."""
    found, _ = rows(DATA / "rabbitmq-3.10/clean", "dead.q")
    row = found["/", "dead.q"][0]
    assert row["headers"]["x-death"] == [
        {
            "count": 1, "reason": "rejected", "queue": "dlx.src", "time": {"$timestamp": 1795216535}, "exchange": "",
            "routing-keys": ["dlx.src"],
        }
    ]  # fmt: skip


def test_killed_node_has_what_the_broker_delivered(in_whole):
    found, damage = in_whole
    expected = truth()
    assert not damage
    assert {name: facts(got) for name, all_of in found.items() if (got := listed(all_of))} == {
        name: facts(deliveries) for name, deliveries in expected.items()
    }
    got = Counter((*name, row["sha256"]) for name, all_of in found.items() for row in listed(all_of))
    must = wanted()
    assert must.total() == 2826
    assert not must - got
    unsure = {
        (*name, row["sha256"]) for name, all_of in found.items() for row in all_of if row["certainty"] == "maybe_consumed"
    }
    assert set(got - must) <= unsure
    assert found["/", None][0]["state"] == "orphan"


@pytest.mark.parametrize("node", ["3.8/clean", slow("4.0/clean"), "4.0/khepri", "4.0/killed"])
def test_other_versions_have_what_the_broker_delivered(unpacked, node):
    """Versions 4 send headers sorted by name. They do not send headers that stand for properties of AMQP 1.0 only."""
    base = DATA / f"rabbitmq-{node}"
    found, damage = rows(unpacked(base.with_suffix(".tar.gz")))
    assert not damage
    certainties = set()
    for queue, deliveries in truth(base.with_suffix(".jsonl.gz")).items():
        got = listed(found.pop(queue))
        assert facts(got) == facts(deliveries), queue
        certainties |= {row["certainty"] for row in got}
        for row, one in zip(got, deliveries, strict=True):
            headers = {name: one for name, one in (row["headers"] or {}).items() if not name.startswith("x-amqp-1.0-")}
            properties, wanted_headers = read_properties(bytes.fromhex(one["properties_bin"]))
            assert (row["properties"], headers) == (properties, wanted_headers or {}), (queue, row["position"])
            if row["raw_properties"] is not None:
                assert sorted(row["raw_properties"]) == sorted(bytes.fromhex(one["properties_bin"]))
    assert certainties == {"maybe_consumed" if node.endswith("killed") else "certain"}
    assert not any(map(listed, found.values()))


@pytest.mark.parametrize("queue", ["amqp1", slow("mqtt")])
def test_lost_index_of_other_protocols_is_repaired(unpacked, tmp_path, queue):
    clean = unpacked(DATA / "rabbitmq-4.0/clean.tar.gz")
    node = shutil.copytree(clean, tmp_path / clean.name)
    expected = facts(rows(node, queue)[0]["/", queue])
    next(node.rglob(f"{names.queue_directory(b'/', queue.encode())}/0.qi")).unlink()
    with open_node(node) as source:
        repair_node(source, node, tmp_path / "copy")
    found, damage = rows(tmp_path / "copy", queue)
    assert not damage
    assert facts(found["/", queue]) == [row for row in expected if row in facts(found["/", queue])]
    assert len(found["/", queue]) >= 3


def test_node_with_khepri_says_that_its_tables_are_not_read(unpacked):
    node = unpacked(DATA / "rabbitmq-4.0/khepri.tar.gz")
    output = command("rabbitmq", "check", node, code=None).output
    assert "node rabbit@localhost, stopped cleanly" in output
    assert "tables in Khepri" in output
    assert "rabbit@localhost-feature_flags" in output
    assert "tables in Khepri" in command("rabbitmq", "definitions", node, code=None).output


def test_quorum_queue_and_stream_are_named(whole):
    with open_node(whole) as source:
        assert [(str(one.name), one.type, one.details.get("path")) for one in source.queues() if not one.read] == [
            ("qq.audit in vhost orders", "quorum", "quorum/sre@localhost/ORDERSBNMU33V2OW5A"),
            ("st.clicks in vhost orders", "stream", "stream/orders_st_clicks_1795423140569518962"),
        ]


@pytest.mark.parametrize("tables", [True, False])
def test_names_are_found_without_the_files_that_say_them(killed, in_whole, tables):
    """By the node's tables, or without them by names that the messages mention."""
    expected = {name: facts(listed(found)) for name, found in in_whole[0].items() if listed(found)}
    for file in killed.rglob(".*"):
        if file.name in (".vhost", ".queue_name"):
            file.unlink()
    if not tables:
        for file in killed.glob("*.*"):
            file.unlink()
    found = {name: facts(listed(all_of)) for name, all_of in rows(killed)[0].items() if listed(all_of)}
    if not tables:  # messages of these came through exchanges with other keys
        for queue in ("fan.a", "fan.b", "fan.c", "orders.all", "orders.new"):
            name = next(name for name in expected if name[1] == queue)
            hashed = names.queue_directory(name[0].encode(), queue.encode())
            found[name] = found.pop((name[0], hashed), None) or found[name]
    assert found == expected


@pytest.mark.parametrize("part", ["vhost", "queues", "queue", "store"])
def test_parts_of_a_node_are_read_by_themselves(whole, part):
    expected = truth()["/", "fan.b"]
    vhost = whole / "msg_stores/vhosts" / names.vhost_directory(b"/")
    queue = vhost / "queues" / names.queue_directory(b"/", b"fan.b")
    path = {"vhost": vhost, "queues": vhost / "queues", "queue": queue, "store": vhost / "msg_store_persistent"}[part]
    found, damage = rows(path) if part in ("vhost", "store") else rows(path, "fan.b")
    got = listed(found["/", "fan.b"])
    if part == "vhost":
        assert (facts(got), damage) == (facts(expected), [])
    elif part == "store":
        with open_node(whole) as source:
            (vhost,) = (one for one in source.node.files.vhosts.values() if source.node.vhost_names[one.directory] == b"/")
            referenced = set(source.node.references(vhost))
        assert Counter(row["state"] for row in found[None, None]) == {"orphan": len(referenced) + 176}
    else:  # without the shared store
        small = [row for row in expected if row["sha256"] in {one["sha256"] for one in got}]
        assert facts(got) == facts(small)
        assert (
            sum(span.messages for span in damage if span.name and span.name.queue == "fan.b") == len(expected) - len(got) == 236
        )


def test_node_before_3_7_is_read(whole, tmp_path):
    """One pair of stores, hashes of another kind, no ``.queue_name``: made from a vhost, as no such node is at hand."""
    vhost, old = whole / "msg_stores/vhosts" / names.vhost_directory(b"/"), tmp_path / "old"
    (old / "queues").mkdir(parents=True)
    shutil.copytree(vhost / "msg_store_persistent", old / "msg_store_persistent")
    shutil.copy(vhost / ".config", old)
    for queue in (b"mail.v1", b"bulk.lazy"):
        source, place = (
            vhost / "queues" / names.queue_directory(b"/", queue),
            old / "queues" / names.old_queue_directory(b"/", queue),
        )
        shutil.copytree(source, place, ignore=lambda *_: [".queue_name"])
    found, damage = rows(old)
    assert not damage
    for queue in ("mail.v1", "bulk.lazy"):
        assert facts(listed(found["/", queue])) == facts(truth()["/", queue])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (".", "certain"),
        ("msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L", "certain"),
        ("msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L/queues", None),
        ("msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L/queues/3FTPYETAJKSZ6Y0OFFFEWPMO7", "certain"),
        ("msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L/msg_store_persistent", "perhaps"),
        ("quorum", None),
    ],
)
def test_detect_of_a_part_has_a_likelihood(whole, place, expected):
    found: Candidate | None = detect(whole / place)
    assert (found and found.likelihood) == expected


def test_several_nodes_are_refused(tmp_path):
    base = tmp_path / "base"
    for name in ("rabbit@a", "rabbit@b"):
        shutil.copytree(DATA / "rabbitmq-3.10/clean", base / name)
    with pytest.raises(ConfigError, match="has the nodes rabbit@a, rabbit@b"), open_node(base):
        pass


def test_queue_that_nobody_used_before_the_kill_is_certain(killed):
    newest = max(file.stat().st_mtime for file in killed.rglob("*") if file.is_file())
    queue = killed / "msg_stores/vhosts" / names.vhost_directory(b"/") / "queues" / names.queue_directory(b"/", b"fan.a")
    for age, certainty in ((59, "maybe_consumed"), (60, "certain")):
        for file in queue.iterdir():
            os.utime(file, (newest - age, newest - age))
        found, _ = rows(killed, "fan.a", "fan.b")
        assert {row["certainty"] for row in found["/", "fan.a"]} == {certainty}
        assert {row["certainty"] for row in found["/", "fan.b"]} == {"maybe_consumed"}


def test_copy_without_times_is_not_certain(killed, tmp_path):
    """Each file of such a copy has the time at which it was copied, however long that took."""
    now = time.time()
    for number, file in enumerate(sorted(file for file in killed.rglob("*") if file.is_file())):
        os.utime(file, (now - 3600 + number, now - 3600 + number))
    with open_node(killed) as source:
        assert source.node.stopped() == "killed"
        batch = next(source.messages(QueueName("rabbitmq", "/", "fan.a"), 0, None))
        assert PurePosixPath(batch.files[0]).parts[0] == "msg_stores"


def test_definitions_of_a_killed_node_have_its_topology(whole):
    with open_node(whole) as source:
        found, problems = definitions_of(source.node.tables)
    assert not problems
    assert {kind: len(rows) for kind, rows in json.loads(json.dumps(found)).items() if isinstance(rows, list) and rows} == {
        "users": 1, "vhosts": 4, "permissions": 4, "global_parameters": 1, "policies": 1, "queues": 23, "exchanges": 4,
        "bindings": 8,
    }  # fmt: skip


def test_failed_start_after_the_kill_makes_no_message_certain(killed):
    """It changes the node's own files only."""
    (killed / "LATEST.LOG").touch()
    os.utime(killed / "LATEST.LOG", (2e9, 2e9))
    with open_node(killed) as source:
        assert not any(queue.is_final for queue in source.node.queues.values())


def test_index_of_both_versions_is_read_in_the_order_of_the_queue(killed):
    """As a kill leaves it while the broker changes the version: here, a second half of the queue, made again as version 1."""
    vhost = killed / "msg_stores/vhosts" / names.vhost_directory(b"/")
    queue = vhost / "queues" / names.queue_directory(b"/", b"fan.b")
    found = index_v2.read_index((queue / "0.qi").read_bytes())
    shared = [entry for entry in found.entries if entry.place == "shared"]
    bodies = ((entry.number, index_v1.encode_body(entry.msg_id, entry.body_size)) for entry in shared[::2])
    (queue / "0.idx").write_bytes(b"".join(index_v1.encode_publish(number, body) for number, body in bodies))
    assert facts(listed(rows(killed, "fan.b")[0]["/", "fan.b"])) == facts(truth()["/", "fan.b"])


def test_lost_queue_is_named_with_the_messages_that_were_routed_to_it(killed):
    shutil.rmtree(next(killed.rglob(names.queue_directory(b"/", b"mail.v1"))))
    output = command("rabbitmq", "check", killed, code=None).output
    assert "mail.v1 in vhost / (97 orphans routed to it)" in output
