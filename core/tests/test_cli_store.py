"""The verbs that take a STORE, on copies of what RabbitMQ wrote and on stores of our own."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys

import pytest

import msgstore
from core_support import (
    BROKER,
    STORES,
    columns,
    copy_of,
    counts_of,
    flip,
    live_of,
    objects,
    rows_of,
    run,
    snapshot,
    store_of,
)
from msgstore.cli.main import main
from support import filled, slow

ID = "00112233445566778899aabbccddeeff"
READING = ("scan", "map", "info", "verify", "scrub", "ls")


@pytest.fixture
def copy(tmp_path):
    return copy_of("mixed_upgrade", tmp_path / "store")


@pytest.fixture
def counts(tmp_path):
    return counts_of("mixed_upgrade", tmp_path / "counts.csv")


@pytest.fixture
def fresh(tmp_path):
    (tmp_path / "fresh").mkdir()
    return tmp_path / "fresh"


def id_of(number):
    return bytes([number]) * 16


def hexes(*numbers):
    return [id_of(number).hex() for number in numbers]


@pytest.mark.parametrize("words", ["ls", "info", "top", "verify", f"rm {ID}", "compact", "migrate --to v2"])
def test_verb_makes_no_store_that_is_only_configured(words, tmp_path):
    (tmp_path / "store.toml").write_text('[stores.orders]\npath = "absent"\n')
    verb, *rest = words.split()
    result = run(verb, "orders", *rest, "--config", tmp_path / "store.toml", code=2)
    assert "absent: there is no such directory" in result.stderr
    assert not (tmp_path / "absent").exists()


def make_store(path, count, size, **keys):
    filled(path, ((id_of(n), (b"body %d" % n).ljust(size, b"x")) for n in range(count)), **keys)


@pytest.mark.parametrize(("index", "stop"), [("ets", "clean"), ("lmdb", "dirty"), slow("ets", "dirty"), slow("lmdb", "clean")])
def test_reading_verbs_write_nothing(copy, tmp_path, index, stop):
    """tests/test_adoption.py has the directories of brokers."""
    store = msgstore.open_store(copy, index=index, adopt=True)
    with store.client() as client:
        client.write(bytes.fromhex(ID), b"body")
    (store.close if stop == "clean" else store.abandon)()
    before = snapshot(copy)
    for verb in READING if index == "lmdb" else (*READING, "top"):  # a live reader of LMDB registers in its lock file
        for extra in ([], ["--json"]):
            run(verb, copy, *(["--once", "--interval", "100ms"] if verb == "top" else []), *extra, code=0)
    run("get", copy, ID, code=0)
    run("salvage", copy, tmp_path / "rescued", code=0)
    assert snapshot(copy) == before


@pytest.mark.parametrize("name", STORES)
def test_reading_verbs_agree_on_damage(name, tmp_path):
    copy = copy_of(name, tmp_path / "store")
    assert {run(verb, copy).exit_code for verb in READING} == {1 if name.endswith("torn") else 0}
    reasons = [row["reason"] for row in objects(run("scrub", "--json", copy)) if row["kind"] == "damage"]
    assert reasons == (["torn"] if name.endswith("torn") else [])


@pytest.mark.parametrize("name", ["mixed_upgrade", "v1_compacted", "v2_clean", "v2_dirty_torn"])
def test_ls_lists_live_messages(tmp_path, name):
    arguments = ("ls", "--refcounts", counts_of(name, tmp_path / "counts.csv"), store_of(name))
    found = rows_of(*arguments, code=1 if name == "v2_dirty_torn" else 0)
    assert {m["id"]: (m["refs"], m["body_sha256"]) for m in found} == live_of(name)
    assert list(found[0]) == ["id", "file", "offset", "size", "refs", "record", "body_sha256"]
    assert columns(found, "file", "offset") == sorted(columns(found, "file", "offset"))
    lines = run(*arguments).stdout.splitlines()
    assert (len(lines), found[0]["body_sha256"] in lines[1]) == (len(found) + 1, True)


def test_ls_without_counts_uses_saved_index(copy):
    """A clean stop of a broker has one; without it, everything is listed."""
    live = set(live_of("mixed_upgrade"))
    assert {row["id"] for row in rows_of("ls", copy)} == live
    (copy / "msg_store_index.ets").unlink()
    assert {row["id"] for row in rows_of("ls", copy)} > live


def test_ls_remembers_damage_of_earlier_opening(fresh):
    shutil.copy(BROKER / "v2_corrupt" / "type0_byte" / "0.sqs", fresh)
    found = rows_of("ls", fresh, code=1)[0]["id"]
    run("put", fresh, ID, "--adopt")
    assert "damage was found in 1 segment earlier" in run("ls", fresh, code=1).stderr
    run("info", fresh, code=1)
    run("get", fresh, found, code=0)


def test_get_on_terminal_ends_the_line(fresh, monkeypatch):
    """With one line end, also if the body has its own."""
    ours, terminal = os.openpty()
    for msg_id, body in zip(hexes(1, 2), (b"no end", b"its own\n"), strict=True):
        run("put", fresh, msg_id, stdin=body)
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        for msg_id in hexes(1, 2):
            main(["get", str(fresh), msg_id], standalone_mode=False)
        monkeypatch.undo()
        expected, found = b"no end\r\nits own\r\n", b""
        while len(found) < len(expected):  # a terminal gives what was written in pieces
            found += os.read(ours, 1000)
        assert found == expected
    os.close(ours)


def test_put_get_rm_count_references(fresh):
    body = bytes(range(256)) + b"\r\n"
    assert run("put", fresh, ID, stdin=body, code=0).stdout == ID + "\n"
    assert run("get", fresh, ID).stdout_bytes == body
    again = run("put", "--json", fresh, ID, stdin=b"ignored")
    assert objects(again) == [{"id": ID, "size": 7, "refs": 2}]
    assert "existed already" in again.stderr
    [shown] = rows_of("get", fresh, ID)
    assert base64.b64decode(shown.pop("body_base64")) == body
    assert rows_of("get", fresh, ID, "--fields") == [shown]
    sha256 = hashlib.sha256(body).hexdigest()
    assert shown == {"id": ID, "size": len(body), "refs": 2, "record": "message", "as_stored": True, "body_sha256": sha256}
    assert run("rm", fresh, ID).stdout == f"{ID} (1 reference left)\n"
    mixed = run("rm", "--json", fresh, "ff" * 16, ID, ID, code=2)
    assert objects(mixed) == [
        {"id": "ff" * 16, "removed": 0, "absent": True, "refs": 0},
        {"id": ID, "removed": 1, "absent": True, "refs": 0},
    ]
    assert "ff" * 16 in mixed.stderr
    run("get", fresh, ID, code=2)
    assert run("ls", "--json", fresh).stdout == ""
    for verb in ("verify", "info", "scrub", "ls"):  # an empty store is one
        run(verb, fresh, code=0)


def test_get_of_long_field_is_never_cut(fresh, monkeypatch):
    make_store(fresh, 1, 6)
    monkeypatch.setattr("msgstore.scan.Described.as_text", lambda self: {"note": "x" * 1000})
    assert f"\nnote    {'x' * 1000}\n" in run("get", "--fields", fresh, *hexes(0), columns=100).stdout


def test_name_in_configuration_is_found(tmp_path):
    file, directory = tmp_path / "msgstore.toml", tmp_path / "data" / "orders"
    file.write_text('[stores.orders]\npath = "data/orders"\nindex = "lmdb"\nrecord = "checksum"\nbody = "erlang"\n')
    run("put", "orders", ID, "--config", file, stdin=b"hello", code=0)
    assert run("get", "orders", ID, "--config", file).stdout_bytes == b"hello"
    [facts] = rows_of("info", directory)
    wanted = {"index": "lmdb", "format": "v2", "record": "checksum", "body": "erlang", "records": {"checksum": 4}}
    assert facts.items() >= (wanted | {"known": True, "messages": 1}).items()
    assert run("get", directory, ID).stdout_bytes == b"hello"
    assert rows_of("ls", directory)[0]["body_sha256"] == hashlib.sha256(b"\x83m\0\0\0\5hello").hexdigest()
    assert "Did you mean 'orders'?" in run("info", "order", "--config", file, code=2).stderr


def test_info_describes_next_opening(copy, counts):
    [foreign] = rows_of("info", "--refcounts", counts, copy)
    assert (foreign["recovery"]["how"], foreign["known"]) == ("rebuild", False)
    assert foreign["messages"] == len(live_of("mixed_upgrade"))
    assert (foreign["last_v1_file"], foreign["client_refs"], foreign["formats"]) == (1, 1, {"v1": 2, "v2": 2})
    assert "468 of 468 live messages verified (rebuild; counts: as given)" in run("verify", "--refcounts", counts, copy).stdout
    run("put", copy, ID, "--adopt")
    [ours] = rows_of("info", copy)
    assert (ours["recovery"]["how"], ours["known"]) == ("trust", True)
    assert "as it was saved at the last clean shutdown" in run("info", copy).stdout
    assert "1.sqs at offset 228047: torn" in run("info", store_of("v2_dirty_torn"), code=1).stdout


def test_verbs_name_message_that_cannot_be_read(fresh):
    make_store(fresh, 10, 6, record="checksum")
    flip(fresh / "0.sqs", (fresh / "0.sqs").read_bytes().index(b"body 3"), unseen=True)
    [three] = hexes(3)
    assert rows_of("verify", fresh, code=1)[0]["id"] == three
    assert "checksum_mismatch" in run("get", fresh, three, code=1).stderr
    assert [row["id"] for row in rows_of("ls", fresh, code=1) if row["body_sha256"] is None] == [three]
    assert run("ls", fresh, code=1).stdout.count("damaged") == 1


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_migrate_then_compact_loses_nothing(copy, counts, tmp_path, index):
    file = tmp_path / "m.toml"
    file.write_text(f'[stores.a]\npath = "store"\nindex = "{index}"\non_legacy = "refuse"\n')
    run("put", "a", ID, "--config", file, code=2)
    *segments, summary = rows_of("migrate", "--adopt", "--to", "v2", "a", "--config", file, "--refcounts", counts)
    assert columns(segments, "file", "outcome") == [("0.rdq", "migrated"), ("1.rdq", "migrated")]
    assert summary["segments"] == 2
    assert not list(copy.glob("*.rdq"))
    *collected, _ = rows_of("compact", "--all", copy)
    assert {segment["skipped"] for segment in collected} == {None}
    assert {m["id"]: (m["refs"], m["body_sha256"]) for m in rows_of("ls", copy)} == live_of("mixed_upgrade")
    assert "nothing to migrate" in run("migrate", "--to", "v2", copy).stdout
    run("verify", copy, code=0)
    assert "newer than 'v1'" in run("migrate", "--to", "v1", copy, code=2).stderr


@pytest.mark.parametrize(
    ("verb", "source", "segment"),
    [(("migrate", "--to", "v2"), "v1_clean", "0.rdq"), (("compact", "--all"), "v2_clean", "0.sqs")],
    ids=["migrate", "compact"],
)
def test_torn_end_is_removed_and_reported(tmp_path, verb, source, segment):
    one, two = (copy_of(source, tmp_path / name) for name in ("one", "two"))
    size = (one / segment).stat().st_size
    for copy in (one, two):
        with (copy / segment).open("ab") as stream:
            stream.write(b"\3\0\0\1")
    *found, summary = rows_of(*verb, "--adopt", one, code=1)
    spot = {"kind": "damage", "path": str(one / segment), "offset": size, "size": 4, "reason": "torn"}
    assert [row for row in found if row["kind"] == "damage"] == [spot]
    assert summary["damaged_spans"] == 1
    assert f"{size:,}" in run(*verb, "--adopt", two, code=1).stdout
    run("verify", one, code=0)
    assert len(rows_of("ls", one)) == 500
    run(*verb, one, code=0)


def test_compact_all_reaches_newest_segment(fresh):
    make_store(fresh, 50, 1000)
    run("rm", fresh, *hexes(*range(40)), code=0)
    told = "nothing to compact: the policy half-empty names no segment now. --all compacts all with garbage, also the newest: "
    done = run("compact", fresh)
    assert done.stdout == f"{told}39.9 KiB in 1 segment\n"
    assert "a directory does not remember its policy: half-empty, the default, was asked. See --config" in done.stderr
    [done, summary] = rows_of("compact", "--all", fresh)
    assert (done["size_before"], done["size_after"]) == (64 + 50 * 1021, 64 + 10 * 1021)
    assert (summary["size_after"], summary["skipped"]) == (64 + 10 * 1021, [])
    assert len(rows_of("ls", fresh)) == 10
    run("rm", fresh, *hexes(*range(40, 50)))
    run("compact", "--all", fresh)
    assert not list(fresh.glob("*.sqs"))
    with msgstore.open_store(fresh) as store, store.client() as client:
        client.write_many((id_of(n), b"x" * (100 + 1000 * n)) for n in range(3))
        store.flush()
        client.remove([id_of(0)])  # a gap that no other record fits into
    assert "unchanged" in run("compact", "--all", fresh, code=0).stdout


def test_compact_leaves_damaged_segment(copy):
    data = flip(copy / "2.sqs", 64, 3 ^ 99)
    (copy / "0.rdq").unlink()
    (copy / "2.sqs").rename(copy / "0.sqs")
    assert "0.sqs" in rows_of("compact", "--adopt", "--all", copy, code=1)[-1]["skipped"]
    assert (copy / "0.sqs").read_bytes() == data
    assert "skipped: " in run("compact", "--all", copy).stderr


def test_store_open_elsewhere_is_refused_or_drawn(fresh, tmp_path):
    with msgstore.open_store(fresh) as store, store.client() as client:
        client.write(bytes.fromhex(ID), b"body")
        store.flush()
        for verb in ("info", "verify", "scrub", "ls"):
            run(verb, fresh, code=2)
        assert "has the store open for writing" in run("put", fresh, ID, code=2).stderr
        run("salvage", fresh, tmp_path / "out", code=2)
        run("scan", fresh, code=0)
        drawn = run("map", "--json", fresh, code=0)
        assert objects(drawn)[0]["live_bytes"] is None
        assert "Drawn without live records" in drawn.stderr
