"""Disk logs, DETS and the tables of a node: the worked examples, what Erlang reads in the same files, and damage."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erlang_terms import to_term
from rabbitmq_files.node_tables import FILES, durable_queues, read_tables, vhosts
from rabbitmq_files.tables import CLOSED, LOG_MAGIC, OPEN, read_dets, read_log, text_of
from rabbitmq_files.terms import Atom

DATA = Path(__file__).parents[3] / "tests/data"
CLEAN = DATA / "rabbitmq-3.10/clean"
DUMP = {vhost: CLEAN / "msg_stores/vhosts" / vhost for vhost in json.loads((CLEAN / "erlang_dump.json").read_text())}


@pytest.mark.parametrize("vhost", DUMP)
def test_tables_have_what_erlang_reads_in_them(vhost):
    dump, place = json.loads((CLEAN / "erlang_dump.json").read_text())[vhost], DUMP[vhost]
    recovery = read_dets((place / "recovery.dets").read_bytes())
    expected = dict(re.findall(r'\{"(\w+)",.*\{persistent_bytes,(\d+)\}', "\n".join(dump["recovery_dets"])))
    assert {text_of(key): str(dict(row)["persistent_bytes"]) for _, (key, row) in recovery.terms} == expected
    for store in ("persistent", "transient"):
        for name, tag in (("file_summary", "file_summary"), ("msg_store_index", "msg_location")):
            found = read_log((place / f"msg_store_{store}" / f"{name}.ets").read_bytes())
            rows = [term for _, term in found.terms if isinstance(term, tuple) and term[0] == tag]
            values = [[one.hex() if isinstance(one, bytes) else one for one in row[1:]] for row in rows]
            wanted = [
                [int(one) if key in ("left", "right") and str(one).isdigit() else one for key, one in row.items()]
                for row in dump[f"{name}_{store}"]
            ]
            assert sorted(values, key=str) == sorted(wanted, key=str)
            assert found.damage == []
    assert recovery.damage == []


def item(term: bytes) -> bytes:
    size = len(term).to_bytes(4, "big")
    return size + b"bWLA" + (hashlib.md5(size, usedforsecurity=False).digest() if len(term) >= 65528 else b"") + term


ROW = bytes.fromhex("6808640" + "00c" + b"file_summary".hex() + "610062000123aa640009" + b"undefined".hex() + "640009"
                    + b"undefined".hex() + "62000123aa640005" + b"false".hex() + "6100")  # fmt: skip
SUMMARY = ("file_summary", 0, 74666, "undefined", "undefined", 74666, "false", 0)


def test_example_of_a_row():
    log = LOG_MAGIC + CLOSED + item(b"\x83" + ROW)
    assert log[8:16] == bytes.fromhex("0000004062574c41")
    assert log in (DUMP["14049IPWY5WMKYX4P32YLNPMV"] / "msg_store_persistent/file_summary.ets").read_bytes()[:8] + log[8:]
    assert read_log(log).terms == [(8, SUMMARY)]


@pytest.mark.parametrize("size", [65527, 65528, 65529, 200_000])
def test_large_item_has_a_checksum_before_its_term(size):
    """A transaction of many changes, as disk_log of Erlang/OTP writes it."""
    body = bytes(size - 6)
    log = LOG_MAGIC + OPEN + item(to_term(body)) + item(to_term(5))
    assert read_log(log).terms == [(8, body), (len(log) - 11, 5)]
    assert read_log(log[:-12]).damage


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(0, 200), st.integers(1, 255))
def test_log_round_trip_cut_and_changed(bodies, at, flip):
    """Each item is read, or is in the damage."""
    items, ends = [item(to_term(body)) for body in bodies], [8]
    log = LOG_MAGIC + OPEN + b"".join(items)
    for one in items:
        ends.append(ends[-1] + len(one))
    assert read_log(log).terms == list(zip(ends, bodies, strict=False))
    at = 8 + at % max(len(log) - 8, 1)
    cut = read_log(log[:at])
    assert cut.terms == read_log(log).terms[: len(cut.terms)]
    assert len(cut.terms) == sum(end <= at for end in ends) - 1 if at < len(log) else cut == read_log(log)
    assert bool(cut.damage) == (at not in ends and any(log[max(end for end in ends if end <= at) : at]))
    if at < len(log):
        found = read_log(log[:at] + bytes([log[at] ^ flip]) + log[at + 1 :])
        spans = [(offset, offset + size) for offset, size, _ in found.damage]
        read = [offset for offset, _ in found.terms]
        assert all(end in read or any(begin <= end < stop for begin, stop in spans) for end in ends[:-1])


@pytest.mark.parametrize(
    ("log", "damage"),
    [
        (b"", []),
        (b"\1\2\3", [(0, 3, "has no header of a disk log")]),
        (LOG_MAGIC + b"    ", [(0, 8, "has no header of a disk log")]),
        (LOG_MAGIC + OPEN + bytes(99), []),
        (LOG_MAGIC + OPEN + item(b"\x83a\1") + b"junk", [(19, 4, "is no item of a log, or a torn one")]),
        (LOG_MAGIC + OPEN + item(b"\x83a\1x"), [(8, 12, "1 bytes after the term of an item")]),
        (LOG_MAGIC + OPEN + item(b"\x83a"), [(8, 10, "the term is cut")]),
    ],
)  # fmt: skip
def test_log_with_damage(log, damage):
    assert read_log(log).damage == damage


def bucket(*terms: bytes, size: int | None = None, pad: int = 0) -> bytes:
    inner = b"".join((4 + len(term)).to_bytes(4, "big") + term for term in terms)
    return (8 + len(inner) if size is None else size).to_bytes(4, "big") + b"\x12\x34\x56\x78" + inner + bytes(pad)


DETS = bytes(4) + b"\x00\xab\xcd\xef" + bytes(24)
ONE, MARK = b"\x83a\1", b"\x83m\0\0\0\x04\x12\x34\x56\x78"


@pytest.mark.parametrize(
    ("data", "terms", "damage"),
    [
        (b"", [], [(0, 0, "has no header of a DETS file")]),
        (bytes(99), [], [(0, 8, "has no header of a DETS file")]),
        (DETS, [], []),
        (DETS + bucket(ONE, MARK, pad=9) + bucket(ONE), [(40, 1), (47, b"\x12\x34\x56\x78"), (78, 1)], []),
        (DETS + bucket(ONE)[:-1], [], [(32, 8, "a bucket that is cut")]),
        (DETS + bucket(ONE, size=7) + bucket(ONE), [(55, 1)], [(32, 8, "a bucket that is cut")]),
        (DETS + bucket(ONE, size=2**31) + bucket(ONE), [(55, 1)], [(32, 8, "a bucket that is cut")]),
        (DETS + bucket(ONE, size=20, pad=5), [(40, 1)], [(47, 5, "is no object of a bucket")]),
        (DETS + bucket(b"\x83a", ONE + b"x"), [], [(40, 6, "the term is cut"), (46, 8, "1 bytes after the term of an item")]),
    ],
)  # fmt: skip
def test_buckets_of_dets(data, terms, damage):
    found = read_dets(data)
    assert (found.terms, found.damage) == (terms, damage)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0x41, 0x20AC], "A€"),
        ([], None),
        ("A", None),
        ([b"A"], None),
        ([0xD800], None),
        ([2**70], None),
        ([-1], None),
        ([1.5], None),
    ],
)
def test_string_of_erlang_as_text(value, text):
    assert text_of(value) == text


# -- tables of a node --------------------------------------------------------------------------------------------------------


def test_tables_of_killed_node():
    with tarfile.open(DATA / "rabbitmq-3.10-killed/node.tar.gz") as archive:
        members = {name: f"sre@localhost/{name}" for name in FILES if f"sre@localhost/{name}" in archive.getnames()}
        found = read_tables({name: archive.extractfile(path).read() for name, path in members.items()})
    assert (found.node, found.damage, found.is_present) == ("sre@localhost", [], True)
    assert sorted(vhosts(found)) == [b"/", b"billing/eu", b"orders", "ünïcode 日本".encode()]
    queues = {one.name: one for one in durable_queues(found)}
    assert (len(queues), len(found.table("rabbit_durable_exchange")), len(found.table("rabbit_durable_route"))) == (23, 32, 8)
    assert [queues[name].kind for name in (b"mail.v1", b"qq.audit", b"st.clicks")] == ["classic", "quorum", "stream"]
    assert queues[b"prio"].argument(b"x-max-priority") == 3
    assert queues[b"prio"].argument(b"x-other") is None
    assert queues[b"st.clicks"].directory == "orders_st_clicks_1795423140569518962"


def log(*terms) -> bytes:
    return LOG_MAGIC + OPEN + b"".join(item(to_term(one)) for one in ((Atom("log_header"), Atom("log")), *terms))


def change(name: bytes, operation: str = "write", table: str = "rabbit_vhost"):
    return ((Atom(table), name), (Atom("vhost"), name), Atom(operation))


def commit(*changes):
    return (Atom("commit"), Atom("n@h"), Atom("d"), [], list(changes), [], [], [])


def test_later_changes_win_over_the_image():
    """The order is image, changes, the log that is being copied to them, and the newest log."""
    found = read_tables({
        "LATEST.LOG": log(commit(change(b"new"), change(b"previous", "delete"), change(b"x", table="other"))),
        "PREVIOUS.LOG": log(commit(change(b"previous"), change(b"dcl", "delete_object")), commit()),
        "rabbit_vhost.DCL": log(change(b"dcl"), change(b"image", "delete"), change(b"kept")),
        "rabbit_vhost.DCD": log((Atom("vhost"), b"image"), (Atom("vhost"), b"old")),
    })  # fmt: skip
    assert (sorted(vhosts(found)), found.node, found.damage) == ([b"kept", b"new", b"old"], "n@h", [])
    assert list(found.records) == ["rabbit_vhost"]
    assert {type(key) for key in found.records["rabbit_vhost"]} == {str}, "integers can be crafted to have one hash"


RESOURCE = (Atom("resource"), b"/", Atom("queue"), b"q")


def test_odd_records_are_left_out():
    odd = [
        5, (), (Atom("commit"),), (Atom("commit"), 1, 2, 5, 6, 7), commit(5, (5,), (5, 5, 5), ((5, 5), 5, 5)),
        commit(*(((Atom("rabbit_vhost"), key), (Atom("vhost"),), Atom("write")) for key in ([1, [{}]], {}, 5, b"k"))),
        commit(((Atom("rabbit_vhost"), 1), 5, Atom("write")), ((Atom("rabbit_vhost"), 1), (1,), Atom("other"))),
    ]  # fmt: skip
    rows = [
        (Atom("amqqueue"),), (Atom("amqqueue"), 1, 2, 3, 4, 5), (Atom("amqqueue"), (*RESOURCE[:3], 5), 2, 3, 4, 5),
        (Atom("amqqueue"), RESOURCE, 2, Atom("true"), 4, 5),
        (Atom("amqqueue"), (*RESOURCE[:3], b"r"), 2, 3, 4, [5, (b"k", Atom("long"), 1)], Atom("rabbit_stream_queue"),
         {Atom("name"): [2**40, 5]}),
    ]  # fmt: skip
    found = read_tables({"LATEST.LOG": log(*odd), "rabbit_durable_queue.DCD": log(*rows)})
    assert (found.damage, found.node, vhosts(found)) == ([], "n@h", [])
    first, second = durable_queues(found)
    assert (first.name, first.kind, first.auto_delete, first.arguments, first.directory) == (b"q", "classic", True, [], None)
    assert (second.name, second.kind, second.arguments, second.directory) == (b"r", "stream", [(b"k", "long", 1)], None)
