"""Files that are missing, or too short, and do not look damaged: what is lost is named, and what usual nodes lack is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from msgstore_rabbitmq_source import naming
from msgstore_rabbitmq_source.opening import open_node
from msgstore_rabbitmq_source.repair import repair_node
from rabbitmq_files import index_v2, names
from rabbitmq_files.messages import encode_message
from rabbitmq_files.node_tables import DurableQueue
from rabbitmq_files.properties import encode_properties
from rabbitmq_files.tables import read_log
from rabbitmq_nodes import facts, listed, rows, truth, unpack
from support import command

VHOST = Path("msg_stores/vhosts") / names.vhost_directory(b"/")
ALIGNED = 126
"""Entries with which an index ends at a multiple of 4,096 bytes."""
STORED = 140


def killed(base: Path, *parts: str) -> Path:
    """Unpack the killed node, and leave the files whose paths have one of ``parts``."""
    node = unpack(base)
    for file in node.rglob("*"):
        if file.is_file() and not any(part in str(file.relative_to(node)) for part in parts):
            file.unlink()
    return node


def queue_of(node: Path, version: int, name: bytes = b"q") -> Path:
    """Make the directory of a queue, with its name only."""
    place = node / VHOST / "queues" / names.queue_directory(b"/", name)
    place.mkdir(parents=True)
    (place / ".queue_name").write_bytes(names.encode_queue_name(b"/", name, version))
    (node / VHOST / ".vhost").write_bytes(b"/")
    return place


def make_index(place: Path, count: int, *, cut: int = 0) -> None:
    """Write messages into ``0.qs``, and entries for the first ``count`` of them into ``0.qi``, without its last bytes."""
    entries = [index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4096)]
    stored = index_v2.encode_header(index_v2.STORE_MAGIC, 0, 4096)
    for number in range(STORED):
        body = b"message %d" % number
        properties = encode_properties({"delivery_mode": 2})
        term = encode_message(
            vhost=b"/", exchange=b"", routing_keys=[b"q"], raw_properties=properties, body=body, msg_id=bytes(16)
        )
        entries.append(index_v2.encode_own(len(stored), len(term), len(body)))
        stored += index_v2.encode_stored(term)
    data = b"".join(entries[: 1 + count])
    (place / "0.qi").write_bytes(data[: len(data) - cut])
    (place / "0.qs").write_bytes(stored)


def end_cleanly(place: Path, count: int) -> None:
    """Write ``recovery.dets``: the queue had so many messages in its segment when it ended."""
    counted = b"h\2d\0\x0ev2_index_state" + b"h\2a\2t\0\0\0\1a\0a" + bytes([count])
    persistent = b"h\2d\0\x10persistent_counta" + bytes([count])
    row = b"\x83h\2k" + len(place.name).to_bytes(2, "big") + place.name.encode() + b"l\0\0\0\2" + counted + persistent + b"j"
    size = len(row) + 4
    bucket = (size + 8).to_bytes(4, "big") + b"\x12\x34\x56\x78" + size.to_bytes(4, "big") + row
    (place.parent.parent / "recovery.dets").write_bytes(b"\0\0\0\0\0\xab\xcd\xef".ljust(64, b"\0") + bucket)


def states(node: Path) -> tuple[Counter[str], list[str]]:
    """Return the messages of the queue ``q`` by state, with their certainty if it is not that of the state, and the damage."""
    found, damage = rows(node, "q")
    counts = Counter(f"{row['state']} {row['certainty']}" for row in found["/", "q"])
    return counts, [span.reason.partition(":")[0] for span in damage if not span.reason.startswith("the queue directory")]


def test_index_cut_at_block_lists_messages_behind(tmp_path):
    """The entries of 719 messages are gone: 461 of these are in the ``.qs`` file, and the others in the shared store."""
    node = killed(tmp_path, "14049IPWY5WMKYX4P32YLNPMV", "LATEST.LOG")
    index = next(node.rglob("E3RYC60PCSAUV6D7I2MOFR3C1/0.qi"))
    whole = [fact for fact, row in zip(facts(truth()["orders", "orders.all"]), range(845), strict=True) if row < 126]
    with index.open("r+b") as file:
        file.truncate(4096)
    found, damage = rows(node, "orders.all")
    got = facts(found["orders", "orders.all"])
    assert (got[:126], len(got)) == (whole, 126 + 461)
    assert {row["certainty"] for row in listed(found["orders", "orders.all"])} == {"maybe_consumed"}
    (span,) = damage
    assert span.reason.startswith("ends before the entries of the last 461 messages in 0.qs")
    with open_node(node) as source:
        (change,) = (one for one in repair_node(source, node, tmp_path / "copy") if "0.qi" in one)
    assert "the entries of 461 messages are added" in change
    again, damage = rows(tmp_path / "copy", "orders.all")
    assert (facts(again["orders", "orders.all"]), damage) == (got, [])


@pytest.mark.parametrize(
    ("entries", "ended", "expected", "is_damage"),
    [
        (ALIGNED, 126, {"ready certain": 126}, False),  # the others were acknowledged before they were written
        (5, 140, {"ready maybe_consumed": 140}, True),
        (5, None, {"ready maybe_consumed": 5, "orphan maybe_consumed": 135}, False),
        (14, None, {"ready maybe_consumed": 14, "orphan maybe_consumed": 126}, False),  # a multiple of 512 bytes
        (ALIGNED, None, {"ready maybe_consumed": 140}, True),
        (STORED, None, {"ready maybe_consumed": 140}, False),
    ],
)
def test_index_shorter_than_messages_depends_on_stop(tmp_path, entries, ended, expected, is_damage):
    """A node that is well has such an index: the broker does not write entries of messages that are acknowledged soon."""
    place = queue_of(tmp_path, 2)
    make_index(place, entries)
    if ended is not None:
        end_cleanly(place, ended)
    reason = f"ends before the entries of the last {STORED - entries} messages in 0.qs"
    assert states(tmp_path) == (expected, [reason] if is_damage else [])


def test_index_cut_in_an_entry_lists_messages_behind(tmp_path):
    make_index(queue_of(tmp_path, 2), 6, cut=1)
    counts, damage = states(tmp_path)
    assert counts == {"ready maybe_consumed": 140}
    assert damage == [
        "an entry that is cut, or after the last number of the segment",
        "ends before the entries of the last 135 messages in 0.qs",
    ]


def test_acknowledged_entries_explain_messages_behind(tmp_path):
    """At a multiple of 4,096 bytes as well: each message without an entry may be one of those that are empty."""
    place = queue_of(tmp_path, 2)
    make_index(place, STORED)
    data = (place / "0.qi").read_bytes()
    (place / "0.qi").write_bytes(data[: 64 + 32 * 10] + bytes(32 * (2 * ALIGNED + 2 - 10)))
    assert states(tmp_path) == ({"ready maybe_consumed": 10}, [])


def test_queue_that_tables_lost_is_listed_with_damage(tmp_path):
    """The tables name the vhosts, and no queue: a persistent message says that its queue is durable."""
    node = killed(tmp_path, "14049IPWY5WMKYX4P32YLNPMV", "LATEST.LOG")
    log = (node / "LATEST.LOG").read_bytes()
    (node / "LATEST.LOG").write_bytes(
        log[: next(at for at, item in read_log(log).terms if "rabbit_durable_queue" in str(item))]
    )
    found, damage = rows(node)
    for name in ("orders.all", "orders.new"):
        assert len(listed(found["orders", name])) == len(truth()["orders", name])
    spans = {span.name.queue: span for span in damage if "the node's tables do not name this queue" in span.reason}
    assert spans.keys() == {"orders.all", "orders.new"}
    assert all((node / span.file).is_file() for span in spans.values())


def test_queue_without_persistent_messages_needs_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr(naming, "durable_queues", lambda _: [DurableQueue(b"/", b"other", "classic", False, [])])
    place = queue_of(tmp_path, 2)
    make_index(place, STORED)
    data = bytearray((place / "0.qi").read_bytes())
    for at in range(64, len(data), 32):
        data[at + 1] = 0
    (place / "0.qi").write_bytes(data)
    assert states(tmp_path) == ({"transient maybe_consumed": 140}, [])


@pytest.mark.parametrize("name", [b"/names.dets", b"quorum"])
def test_damaged_names_of_quorum_queues_cost_no_message(tmp_path, name):
    """One flipped bit: in the name of a directory, or in the kind of a term."""
    node = killed(tmp_path, "17N4MNU9RWND4Q6IMKM7R2L5C", "LATEST.LOG", "quorum/", ".vhost", ".config")
    (file,) = node.rglob("quorum/*/names.dets")
    data = bytearray(file.read_bytes())
    at = data.index(b"ORDERSB")
    if name == b"quorum":
        at = data.index(b"\x83h\2", 0x1500) + 1  # of the tuple, so that the row is an integer, and bytes are left
        data[at] = ord("a")
    else:
        data[at] |= 0x80
    file.write_bytes(data)
    found, damage = rows(node, "mail.v1")
    assert listed(found["/", "mail.v1"])
    assert [span.file for span in damage if span.file.endswith("names.dets")] == (
        [str(file.relative_to(node))] if name == b"quorum" else []
    )
    assert "qq.audit" in command("queues", node, code=None).output


def test_row_of_quorum_names_that_is_no_tuple_is_skipped(tmp_path):
    place = queue_of(tmp_path, 2)
    make_index(place, STORED)
    (tmp_path / "quorum/node").mkdir(parents=True)
    object_ = b"\0\0\0\7\x83a\1"
    bucket = (8 + len(object_)).to_bytes(4, "big") + b"\x12\x34\x56\x78" + object_
    (tmp_path / "quorum/node/names.dets").write_bytes(b"\0\0\0\0\0\xab\xcd\xef".ljust(64, b"\0") + bucket)
    assert states(tmp_path) == ({"ready maybe_consumed": 140}, [])


def test_missing_journal_is_named_and_written_anew(tmp_path):
    node = tmp_path / "node"
    queue_of(node, 1)
    assert states(node) == ({}, ["journal.jif is missing"])
    with open_node(node) as source:
        repair_node(source, node, tmp_path / "copy")
    assert states(tmp_path / "copy") == ({}, [])


@pytest.mark.parametrize(("version", "file"), [(2, None), (1, "journal.jif"), (1, "msgstore-queue.json")])
def test_queue_that_was_just_declared_has_no_damage(tmp_path, version, file):
    place = queue_of(tmp_path, version)
    if file:
        (place / file).touch()
    assert states(tmp_path) == ({}, [])


class Passes(list[DurableQueue]):
    """Queues of the tables, which count how often they are gone through."""

    count = 0

    def __iter__(self) -> Iterator[DurableQueue]:
        self.count += 1
        return super().__iter__()


@pytest.mark.parametrize("has_name", [True, False])
def test_names_cost_one_pass_over_tables(tmp_path, monkeypatch, has_name):
    found = Passes(DurableQueue(b"/", b"q%d" % number, "classic", False, []) for number in range(50))
    monkeypatch.setattr(naming, "durable_queues", lambda _: found)
    for queue in found[:]:
        place = queue_of(tmp_path, 1, queue.name)
        (place / "journal.jif").touch()
        if not has_name:
            (place / ".queue_name").unlink()
    with open_node(tmp_path) as source:
        assert {name.queue for name in source.node.queues} == {f"q{number}" for number in range(50)}
    assert found.count <= 3
