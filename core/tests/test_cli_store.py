"""The verbs that take a STORE, on copies of what RabbitMQ wrote and on stores of our own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.main import main

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
ID = "00112233445566778899aabbccddeeff"


def run(*arguments: object, stdin: bytes = b"") -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(p): (p.stat().st_size, p.stat().st_mtime_ns, b"" if p.is_dir() else p.read_bytes())
        for p in [directory, *directory.rglob("*")]
    }


def counts_of(name: str, to: Path) -> Path:
    manifest = json.loads((DATA / name / "manifest.json").read_text())
    live = [m for m in manifest["messages"] if m["refcount"]]
    to.write_text("".join(f"{m['id']},{m['refcount']}\n" for m in live))
    return to


def live_of(name: str) -> dict[str, tuple[int, str]]:
    manifest = json.loads((DATA / name / "manifest.json").read_text())
    torn = manifest.get("torn", {}).get("id")
    live = [m for m in manifest["messages"] if m["refcount"] and m["confirmed"] and m["id"] != torn]
    return {m["id"]: (m["refcount"], m["body_sha256"]) for m in live}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "mixed_upgrade" / "store", tmp_path / "store"))


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    store = tmp_path / "fresh"
    store.mkdir()
    return store


@pytest.mark.parametrize("stop", ["clean", "dirty"])
@pytest.mark.parametrize("index", [None, "ets", "lmdb"])
def test_reading_verbs_write_nothing(copy: Path, tmp_path: Path, index: str | None, stop: str) -> None:
    if index:
        store = msgstore.open_store(copy, index=index, adopt=True)
        with store.client() as client:
            client.write(bytes.fromhex(ID), b"body")
        (store.close if stop == "clean" else store.abandon)()
    elif stop == "dirty":
        (copy / "clean.dot").unlink()
    some_id = ID if index else objects(run("ls", "--json", copy))[0]["id"]
    before = snapshot(copy)
    for verb in ("scan", "info", "verify", "ls", "map"):
        for extra in ([], ["--json"]):
            assert run(verb, copy, *extra).exit_code == 0
    assert run("get", copy, some_id).exit_code == 0
    assert run("salvage", copy, tmp_path / "rescued").exit_code == 0
    assert snapshot(copy) == before


@pytest.mark.parametrize("name", ["mixed_upgrade", "v1_compacted", "v2_clean", "v2_dirty_torn"])
def test_ls_lists_the_live_messages(tmp_path: Path, name: str) -> None:
    counts = counts_of(name, tmp_path / "counts.csv")
    result = run("ls", "--json", "--refcounts", counts, DATA / name / "store")
    assert result.exit_code == (1 if name == "v2_dirty_torn" else 0)
    found = objects(result)
    assert {m["id"]: (m["refs"], m["body_sha256"]) for m in found} == live_of(name)
    assert list(found[0]) == ["id", "file", "offset", "size", "refs", "record", "body_sha256"]
    assert [(m["file"], m["offset"]) for m in found] == sorted((m["file"], m["offset"]) for m in found)
    lines = run("ls", "--refcounts", counts, DATA / name / "store").stdout.splitlines()
    assert len(lines) == len(found) + 1
    assert found[0]["body_sha256"] in lines[1]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/store")))
def test_the_reading_verbs_agree_on_damage(name: str) -> None:
    codes = {verb: run(verb, DATA / name / "store").exit_code for verb in ("scan", "map", "info", "verify", "ls")}
    assert set(codes.values()) == {1 if name.endswith("torn") else 0}


def test_ls_remembers_the_damage_that_an_earlier_opening_found(fresh: Path) -> None:
    shutil.copy(DATA.parent / "msg-store" / "v2_corrupt" / "type0_byte" / "0.sqs", fresh)
    id_ = objects(run("ls", "--json", fresh))[0]["id"]
    run("put", fresh, ID, "--adopt")
    result = run("ls", fresh)
    assert result.exit_code == run("info", fresh).exit_code == 1
    assert "damage was found in 1 segment earlier" in result.stderr
    assert run("get", fresh, id_).exit_code == 0


def test_ls_of_a_clean_stop_lists_the_live() -> None:
    found = {m["id"] for m in objects(run("ls", "--json", DATA / "mixed_upgrade" / "store"))}
    assert found == set(live_of("mixed_upgrade"))


def test_ls_without_counts_lists_everything(tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / "mixed_upgrade" / "store", tmp_path / "store"))
    (path / "msg_store_index.ets").unlink()
    found = {m["id"] for m in objects(run("ls", "--json", path))}
    assert found > set(live_of("mixed_upgrade"))


@pytest.mark.parametrize(("body", "shown"), [(b"no end", b"no end\r\n"), (b"its own\n", b"its own\r\n")])
def test_on_a_terminal_get_ends_the_line(fresh: Path, body: bytes, shown: bytes) -> None:
    run("put", fresh, ID, stdin=body)
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", "from msgstore.cli.main import main; main()", "get", str(fresh), ID]
    subprocess.run(command, stdout=terminal, check=True, timeout=60)
    assert os.read(ours, 1000) == shown
    os.close(terminal)
    os.close(ours)


def test_put_get_rm(fresh: Path) -> None:
    body = bytes(range(256)) + b"\r\n"
    assert run("put", fresh, ID, stdin=body).stdout == ID + "\n"
    assert run("get", fresh, ID).stdout_bytes == body
    again = run("put", "--json", fresh, ID, stdin=b"ignored")
    assert objects(again) == [{"id": ID, "size": 7, "refs": 2}]
    assert "existed already" in again.stderr
    [shown] = objects(run("get", "--json", fresh, ID))
    assert base64.b64decode(shown.pop("body_base64")) == body
    sha256 = hashlib.sha256(body).hexdigest()
    assert shown == {"id": ID, "size": len(body), "refs": 2, "record": "message", "as_stored": True, "body_sha256": sha256}
    assert run("rm", fresh, ID).stdout == f"{ID} (1 reference left)\n"
    mixed = run("rm", "--json", fresh, "ff" * 16, ID, ID)
    assert mixed.exit_code == 2
    assert objects(mixed) == [
        {"id": "ff" * 16, "removed": 0, "absent": True, "refs": 0},
        {"id": ID, "removed": 1, "absent": True, "refs": 0},
    ]
    assert "ff" * 16 in mixed.stderr
    assert run("get", fresh, ID).exit_code == 2
    assert run("ls", "--json", fresh).stdout == ""


def test_a_name_in_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "msgstore.toml"
    file.write_text('[stores.orders]\npath = "data/orders"\nindex = "lmdb"\nrecord = "checksum"\nbody = "erlang"\n')
    assert run("put", "orders", ID, "--config", file, stdin=b"hello").exit_code == 0
    assert run("get", "orders", ID, "--config", file).stdout_bytes == b"hello"
    directory = tmp_path / "data" / "orders"
    [facts] = objects(run("info", "--json", directory))
    assert {key: facts[key] for key in ("index", "format", "record", "body", "records", "known", "messages")} == {
        "index": "lmdb",
        "format": "v2",
        "record": "checksum",
        "body": "erlang",
        "records": {"checksum": 4},
        "known": True,
        "messages": 1,
    }
    assert run("get", directory, ID).stdout_bytes == b"hello"
    [listed] = objects(run("ls", "--json", directory))
    assert listed["body_sha256"] == hashlib.sha256(b"\x83m\0\0\0\5hello").hexdigest()
    wrong = run("info", "order", "--config", file)
    assert wrong.exit_code == 2
    assert "Did you mean 'orders'?" in wrong.stderr


def test_info_says_how_a_store_would_come_up(copy: Path, tmp_path: Path) -> None:
    [foreign] = objects(run("info", "--json", "--refcounts", counts_of("mixed_upgrade", tmp_path / "c.csv"), copy))
    assert foreign["recovery"]["how"] == "rebuild"
    assert not foreign["known"]
    assert foreign["messages"] == len(live_of("mixed_upgrade"))
    assert (foreign["last_v1_file"], foreign["client_refs"], foreign["formats"]) == (1, 1, {"v1": 2, "v2": 2})
    run("put", copy, ID, "--adopt")
    [ours] = objects(run("info", "--json", copy))
    assert ours["recovery"]["how"] == "trust"
    assert ours["known"]
    text = run("info", copy).stdout
    assert "as it was saved at the last clean shutdown" in text
    torn = run("info", DATA / "v2_dirty_torn" / "store")
    assert torn.exit_code == 1
    assert "1.sqs at offset 228047: torn" in torn.stdout


def test_verify_agrees_with_a_good_store(copy: Path, tmp_path: Path) -> None:
    counts = counts_of("mixed_upgrade", tmp_path / "c.csv")
    result = run("verify", "--json", "--refcounts", counts, copy)
    assert result.exit_code == 0
    *segments, summary = objects(result)
    assert [segment["kind"] for segment in segments] == ["segment"] * 4
    assert all(segment["ok"] and segment["counts_agree"] for segment in segments)
    assert summary["kind"] == "summary"
    assert summary["verified"] == summary["messages"] == len(live_of("mixed_upgrade"))
    assert "468 of 468 live messages verified" in run("verify", "--refcounts", counts, copy).stdout


def test_verify_names_what_cannot_be_read(fresh: Path, tmp_path: Path) -> None:
    with msgstore.open_store(fresh, record="checksum") as store, store.client() as client:
        client.write_many((bytes([i]) * 16, b"body %d" % i) for i in range(10))
    path = fresh / "0.sqs"
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(b"body 3")] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    result = run("verify", "--json", fresh)
    assert result.exit_code == 1
    damage, segment, summary = objects(result)
    assert (damage["kind"], damage["id"]) == ("damage", "03" * 16)
    assert [(entry["id"], entry["reason"]) for entry in segment["unreachable"]] == [("03" * 16, "checksum_mismatch")]
    assert segment["damage"][0]["reason"] == "checksum_mismatch"
    assert (summary["messages"], summary["verified"], summary["ok"]) == (10, 9, False)
    text = run("verify", fresh)
    assert "03" * 16 in text.stdout
    got = run("get", fresh, "03" * 16)
    assert got.exit_code == 1
    assert "checksum_mismatch" in got.stderr
    listed = run("ls", "--json", fresh)
    assert listed.exit_code == 1
    assert [m["id"] for m in objects(listed) if m["body_sha256"] is None] == ["03" * 16]
    assert run("scan", fresh).exit_code == 1
    compacted = run("compact", "--all", fresh)
    assert "Traceback" not in compacted.stderr


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_migrate_then_compact_loses_nothing(copy: Path, tmp_path: Path, index: str) -> None:
    counts = counts_of("mixed_upgrade", tmp_path / "c.csv")
    file = tmp_path / "m.toml"
    file.write_text(f'[stores.a]\npath = "store"\nindex = "{index}"\non_legacy = "refuse"\n')
    assert run("put", "a", ID, "--config", file).exit_code == 2
    result = run("migrate", "--json", "--adopt", "--to", "v2", "a", "--config", file, "--refcounts", counts)
    assert result.exit_code == 0
    *segments, summary = objects(result)
    assert [segment["file"] for segment in segments] == ["0.rdq", "1.rdq"]
    assert summary["segments"] == 2
    assert not list(copy.glob("*.rdq"))
    *collected, _ = objects(run("compact", "--json", "--all", copy))
    assert {segment["skipped"] for segment in collected} == {None}
    listed = {m["id"]: (m["refs"], m["body_sha256"]) for m in objects(run("ls", "--json", copy))}
    assert listed == live_of("mixed_upgrade")
    assert "nothing to migrate" in run("migrate", "--to", "v2", copy).stdout
    assert run("verify", copy).exit_code == 0
    older = run("migrate", "--to", "v1", copy)
    assert older.exit_code == 2
    assert "newer than 'v1'" in older.stderr


@pytest.mark.parametrize("verb", ["migrate", "compact"])
def test_a_torn_end_goes_but_not_unseen(tmp_path: Path, verb: str) -> None:
    source, segment = ("v1_clean", "0.rdq") if verb == "migrate" else ("v2_clean", "0.sqs")
    copies = [shutil.copytree(DATA / source / "store", tmp_path / name) for name in ("one", "two")]
    size = (copies[0] / segment).stat().st_size
    for copy in copies:
        with (copy / segment).open("ab") as stream:
            stream.write(b"\3\0\0\1")
    extra = ["--to", "v2"] if verb == "migrate" else ["--all"]
    result = run(verb, "--json", "--adopt", *extra, copies[0])
    assert result.exit_code == 1
    spot = {"kind": "damage", "path": str(copies[0] / segment), "offset": size, "size": 4, "reason": "torn"}
    assert [found for found in objects(result) if found["kind"] == "damage"] == [spot]
    assert objects(result)[-1]["damaged_spans"] == 1
    assert "kept as it is" not in result.stderr
    text = run(verb, "--adopt", *extra, copies[1])
    assert text.exit_code == 1
    assert f"{size:,}" in text.stdout
    assert run("verify", copies[0]).exit_code == 0
    assert len(objects(run("ls", "--json", copies[0]))) == 500
    assert run(verb, *extra, copies[0]).exit_code == 0


def test_compact_says_where_there_is_nothing_to_gain(fresh: Path) -> None:
    with msgstore.open_store(fresh) as store, store.client() as client:
        client.write_many((bytes([i]) * 16, b"x" * (1000 + i)) for i in range(3))
        store.flush()
        client.remove([bytes([0]) * 16])
    [done, summary] = objects(run("compact", "--all", "--json", fresh))
    assert done["size_before"] == done["size_after"]
    assert (done["written"], done["moved_records"], done["skipped"], summary["written"]) == (0, 0, None, 0)
    assert "nothing to gain" in run("compact", "--all", fresh).stdout


def test_compact_all_reaches_the_newest_segment(fresh: Path) -> None:
    with msgstore.open_store(fresh) as store, store.client() as client:
        client.write_many((bytes([i]) * 16, b"x" * 1000) for i in range(50))
    assert run("rm", fresh, *(f"{i:02x}" * 16 for i in range(40))).exit_code == 0
    assert run("compact", fresh).stdout == "nothing to compact\n"
    [done, summary] = objects(run("compact", "--all", "--json", fresh))
    assert (done["size_before"], done["size_after"]) == (64 + 50 * 1021, 64 + 10 * 1021)
    assert (summary["size_after"], summary["skipped"]) == (64 + 10 * 1021, [])
    assert len(objects(run("ls", "--json", fresh))) == 10
    run("rm", fresh, *(f"{i:02x}" * 16 for i in range(40, 50)))
    run("compact", "--all", fresh)
    assert not list(fresh.glob("*.sqs"))
    assert run("scan", fresh).exit_code == run("verify", fresh).exit_code == 0


def test_a_damaged_segment_is_left_as_it_is(copy: Path) -> None:
    path = copy / "2.sqs"
    data = bytearray(path.read_bytes())
    data[64] = 99
    path.write_bytes(data)
    (copy / "0.rdq").unlink()
    path.rename(copy / "0.sqs")
    result = run("compact", "--json", "--adopt", "--all", copy)
    assert result.exit_code == 1
    assert "0.sqs" in objects(result)[-1]["skipped"]
    assert (copy / "0.sqs").read_bytes() == data
    assert "skipped: " in run("compact", "--all", copy).stderr


def test_a_store_that_is_open_elsewhere(fresh: Path, tmp_path: Path) -> None:
    with msgstore.open_store(fresh) as store, store.client() as client:
        client.write(bytes.fromhex(ID), b"body")
        store.flush()
        for verb in ("info", "verify", "ls"):
            assert run(verb, fresh).exit_code == 2
        locked = run("put", fresh, ID)
        assert locked.exit_code == 2
        assert "has the store open for writing" in locked.stderr
        assert run("salvage", fresh, tmp_path / "out").exit_code == 2
        assert run("scan", fresh).exit_code == 0
        drawn = run("map", "--json", fresh)
        assert drawn.exit_code == 0
        assert objects(drawn)[0]["live_bytes"] is None
        assert "Drawn without live records" in drawn.stderr


@pytest.mark.parametrize("verb", ["info", "verify", "ls", "get", "put", "rm", "compact", "migrate"])
def test_a_missing_directory(tmp_path: Path, verb: str) -> None:
    arguments = [ID] if verb in ("get", "put", "rm") else ["--to", "v2"] if verb == "migrate" else []
    result = run(verb, tmp_path / "nowhere", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("msgstore: ")
    assert "there is no such directory" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("text", ["12", "g" * 32, "00" * 17, "00 " * 10 + "00"])
def test_a_wrong_id(fresh: Path, text: str) -> None:
    result = run("get", fresh, text)
    assert result.exit_code == 2
    assert "32 hexadecimal digits" in result.stderr


def test_wrong_counts(copy: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text(f"id,count\n{ID},1\n\n{ID}\n")
    result = run("ls", "--refcounts", counts, copy)
    assert result.exit_code == 2
    assert "line 4 is not 'id,count'" in result.stderr


_OF_STORES = [
    ["info"],
    ["verify"],
    ["scrub"],
    ["top", "--once", "--interval", "100ms"],
    ["ls"],
    ["get", ID],
    ["rm", ID],
    ["compact"],
]


@pytest.mark.parametrize("verb", _OF_STORES, ids=lambda verb: verb[0])
def test_a_directory_that_is_no_store(tmp_path: Path, verb: list[str]) -> None:
    """Nothing is said of it, least of all that it has no damage; and no store is made of it."""
    (tmp_path / "letter.txt").write_text("Dear all,")
    name, *more = verb
    result = run(name, tmp_path, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"msgstore: {tmp_path}: there are no segments in this directory (")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "store.toml").write_text(f'[stores.letters]\npath = "{tmp_path}"\nindex = "ets"\n')
    result = run(name, "letters", *more, "--config", tmp_path / "store.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there are no segments in this directory (" in result.stderr


def test_put_makes_a_store_and_an_empty_one_is_one(tmp_path: Path) -> None:
    assert run("put", tmp_path, ID, stdin=b"body").exit_code == 0
    assert run("rm", tmp_path, ID).exit_code == 0
    for verb in ("verify", "info", "scrub", "ls"):
        assert run(verb, tmp_path).exit_code == 0


def test_a_closed_input_is_one_line(tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "msgstore", "put", str(tmp_path / "store"), ID]
    msgstore.open_store(tmp_path / "store").close()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "msgstore: standard input: is closed\n")
