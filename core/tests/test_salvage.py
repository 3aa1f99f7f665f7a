"""Salvage: every good record, every damaged span, every byte accounted for, and nothing written into the source.

``test_chains.py`` tests what is found in damaged segments, ``test_job_inputs.py`` which segments are read.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import attrs
import pytest

import msgstore
from core_support import (
    BROKER,
    DATA,
    STORES,
    columns,
    copy_of,
    flip,
    manifest_of,
    raising,
    rows_of,
    run,
    snapshot,
    store_of,
)
from msgstore.builtin.plugin import LocalOptions
from msgstore.contract import ConfigError, PluginError, StoreError, StoreIOError
from msgstore.files import Files
from msgstore.jobs.local import LocalRunner
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.salvage import plan_salvage
from msgstore.scan import FormatSet
from support import filled

CLEAN = store_of("v2_clean")
ONE, TWO, THREE = (bytes([n]) * 16 for n in (1, 2, 3))
catalogue = functools.cache(msgstore.load_catalogue)


def salvage(source, destination, *, progress=None, **options):
    """Salvage, and check what holds for every salvage."""
    before = snapshot(source)
    job = plan_salvage(catalogue(), [source], destination, **options)
    report = LocalRunner(LocalOptions(processes=1)).salvage(job, progress)
    assert snapshot(source) == before
    for found in report.inputs:
        assert found.header + found.good + found.duplicates + found.holes + found.damaged == found.size
        assert found.size == Path(found.path).stat().st_size
    assert [path for path in destination.parent.iterdir() if path.name.startswith(".")] == []
    return report


def bodies(store):
    with msgstore.open_store(store, mode="r") as opened:
        assert opened.stats().recovery.how in ("trust", "new")
        return {entry.msg_id: opened.stored_body(entry) for entry in opened.entries()}


def digests(store):
    return {msg_id.hex(): hashlib.sha256(body).hexdigest() for msg_id, body in bodies(store).items()}


def digests_in(records):
    return {record["id"]: record["body_sha256"] for record in records}


def spots_of(report):
    return [(spot.offset, spot.size, spot.reason) for spot in report.damage]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def clean(tmp_path):
    """A copy of a store of 500 messages in three segments."""
    return copy_of("v2_clean", tmp_path / "in")


def make_store(path, **keys):
    """Make a store of one message, ``hello``."""
    filled(path, [(ONE, b"hello")], **keys)


def settings_of(store):
    return json.loads((store / "msgstore.json").read_text())


# -- what is copied -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_salvage_of_real_directory_copies_every_record(name, tmp_path):
    manifest = manifest_of(name)
    report = salvage(store_of(name), tmp_path / "out")
    expected = digests_in(record for segment in manifest["segments"] for record in segment["records"])
    assert digests(tmp_path / "out") == expected
    assert report.messages == len(expected)
    torn = [(manifest["torn"]["record_offset"], "torn")] if "torn" in manifest else []
    assert [(spot.offset, spot.reason) for spot in report.damage] == torn


@pytest.mark.parametrize("case", manifest_of("v2_corrupt")["cases"], ids=lambda case: case["case"])
def test_salvage_of_corrupt_case_keeps_what_recovery_keeps(case, tmp_path):
    report = salvage((BROKER / "v2_corrupt" / case["path"]).parent, tmp_path / "out")
    known = case["dirty_recovery_as_current_file"]["recovered"]
    assert digests_in(known).items() <= digests(tmp_path / "out").items()
    is_damaged = case["scan"].get("scan_error", {}).get("reason") not in (None, "invalid_message_body")
    has_rest = {"stopped_with_bytes_left", "short_header"} & set(case["scan"]["layout"])
    assert bool(report.damage) == (is_damaged or bool(has_rest))


def test_segment_cut_to_nothing_is_damage(clean, tmp_path):
    """A power loss may leave a file of no bytes. Whether it had messages, nobody knows."""
    path = clean / "1.sqs"
    path.write_bytes(b"")
    report = salvage(clean, tmp_path / "out")
    assert [(spot.path, spot.offset, spot.size, spot.reason) for spot in report.damage] == [(str(path), 0, 0, "torn")]


def test_highest_file_wins_and_bad_copy_gives_way(source, tmp_path):
    form = FormatSet(catalogue(), {"checksum": 4}, record="checksum", write_format="v2").by_name("v2").format
    plain = FormatSet(catalogue()).by_name("v1").format
    (source / "1.rdq").write_bytes(plain.encode([ONE, TWO, THREE], [b"old 1", b"old 2", b"old 3"])[0])
    data, sizes = form.encode([ONE, TWO, TWO, ONE], [b"new 1", b"bad 2", b"good 2", b"late 1"])
    (source / "7.sqs").write_bytes(form.header + data)
    flip(source / "7.sqs", 64 + sizes[0] + sizes[1] - 1)
    report = salvage(source, tmp_path / "out", records={"checksum": 4})
    assert bodies(tmp_path / "out") == {ONE: b"new 1", TWO: b"good 2", THREE: b"old 3"}
    assert spots_of(report) == [(64 + sizes[0], sizes[1], "checksum_mismatch")]
    flip(source / "7.sqs", 64 + sum(sizes[:3]) - 1)
    salvage(source, tmp_path / "again", records={"checksum": 4})
    assert bodies(tmp_path / "again")[TWO] == b"old 2"


def test_virtual_hosts_that_become_one_store_are_named(source, tmp_path, caplog):
    for name in ("a", "b"):
        (source / name / "msg_store_persistent").mkdir(parents=True)
        shutil.copy(store_of("v1_clean") / "0.rdq", source / name / "msg_store_persistent")
        (source / name / ".vhost").write_text(f"/{name}")
        salvage(source / name, tmp_path / f"only {name}")
        assert caplog.messages == []
    salvage(source, tmp_path / "both")
    assert caplog.messages == ["the sources are 2 virtual hosts (/a, /b), which become one store"]


def test_sources_of_several_formats_and_shapes_are_read(source, tmp_path):
    for name, file, to in (("v1", "0.rdq", "0.rdq"), ("v2", "0.sqs", "0.sqs"), ("v2", "1.sqs", "backup of 1.sqs")):
        shutil.copy(store_of(f"{name}_clean") / file, source / to)
    (source / "notes.txt").write_text("no segment")
    report = salvage(source, tmp_path / "out")
    assert report.messages == 212 + 212 + 213
    assert report.ignored == [str(source / "notes.txt")]
    assert Path(report.inputs[-1].path).name == "backup of 1.sqs"
    assert salvage(BROKER / "v1_clean", tmp_path / "of a tree").messages == 500
    assert salvage(DATA / "rabbitmq-3.10", tmp_path / "of a broker").damage == []


@pytest.mark.parametrize(("name", "file", "size_at"), [("v2_clean", "0.sqs", 1), ("v1_clean", "0.rdq", 4)])
def test_records_that_invalid_body_hides_are_found(name, file, size_at, source, tmp_path):
    """A record that ends where another one begins is whole in the eyes of its format: the codec alone may tell."""
    [records] = [segment["records"] for segment in manifest_of(name)["segments"] if segment["name"] == file]
    data = bytearray((store_of(name) / file).read_bytes())
    hiding = {10: 20, 13: 5, 40: 1}
    for first, swallowed in hiding.items():
        at, last = records[first]["offset"], records[first + swallowed]
        size = last["offset"] + last["total_size"] - at - (9 if file.endswith(".rdq") else 0)
        data[at + size_at : at + size_at + 4] = size.to_bytes(4, "big")
        data[at + size_at + 20] = 0
    (source / file).write_bytes(data)
    report = salvage(source, tmp_path / "out", check_body="erlang")
    assert digests(tmp_path / "out") == digests_in(record for n, record in enumerate(records) if n not in hiding)
    assert spots_of(report) == [(records[n]["offset"], records[n]["total_size"], "invalid_message_body") for n in hiding]
    assert len(report.inputs[0].recovered) == 20


# -- the new store ------------------------------------------------------------------------------------------------------------


def test_new_store_has_settings_of_job_and_source(source, tmp_path):
    make_store(source, body="erlang", record="checksum")
    salvage(source, tmp_path / "out", index="lmdb")
    expected = {"index": "lmdb", "format": "v2", "record": "checksum", "body": "erlang", "records": {"checksum": 4}}
    assert expected.items() <= settings_of(tmp_path / "out").items()
    assert run("get", tmp_path / "out", ONE.hex()).stdout_bytes == b"hello"
    salvage(source, tmp_path / "old", format="v1")
    assert [path.name for path in (tmp_path / "old").glob("*.*q*")] == ["0.rdq"]
    assert settings_of(tmp_path / "old")["record"] == "message"
    assert bodies(tmp_path / "old") == {ONE: b"\x83m\0\0\0\5hello"}
    run("migrate", source, tmp_path / "fresh", "--to", "v2", code=0)
    assert settings_of(tmp_path / "fresh")["record"] == "checksum"
    make_store(tmp_path / "plain")
    salvage(tmp_path / "plain", tmp_path / "checked", record="checksum")
    assert settings_of(tmp_path / "checked")["record"] == "checksum"


def test_contradictions_of_sources_are_refused(tmp_path):
    """A directory that says nothing is not taken to agree: a broker's has a codec, and does not tell."""
    for name in ("raw", "erlang"):
        make_store(tmp_path / name, body=name)
    for byte in (200, 201):
        make_store(tmp_path / str(byte), format={"use": "v2", "records": {"audit": byte}}, record="audit")

    def plan(*names, **options):
        sources = [CLEAN if name == "broker" else tmp_path / name for name in names]
        return plan_salvage(catalogue(), sources, tmp_path / "out", **options).target

    for names, message in (
        (("raw", "erlang"), "different body codecs: raw, erlang"),
        (("broker", "erlang"), "erlang, unknown"),
        (("200", "201"), "in different ways: audit=200, audit=201; one store cannot hold both"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(*names)
    assert plan("broker", "erlang", body="erlang").body.name == "erlang"
    assert plan("broker", "raw").body.name == "raw"
    named = plan("200", record="audit")  # no format assigns it a byte
    assert (named.record, named.records) == ("audit", (("audit", 200),))


def test_new_store_with_another_codec_is_warned_of(source, tmp_path, caplog):
    make_store(source, body="erlang")
    salvage(source, tmp_path / "same", body="erlang")
    assert not caplog.text
    salvage(source, tmp_path / "other", body="raw")
    assert "some sources remember the body codec erlang, and the new store remembers raw" in caplog.text


def test_migration_keeps_codec_that_configuration_does_not_name(source, tmp_path):
    make_store(source, body="zstd")
    (tmp_path / "msgstore.toml").write_text(f'[stores.orders]\npath = "{source}"\n')
    run("migrate", "--config", tmp_path / "msgstore.toml", "orders", tmp_path / "out", "--to", "v2", code=0)
    assert settings_of(tmp_path / "out")["body"] == "zstd"


def test_missing_codec_of_source_is_named(source, tmp_path):
    make_store(source, body="erlang")
    registrations = tuple(one for one in catalogue().registrations if one.descriptor.name != "erlang")
    with pytest.raises(PluginError, match=f"{source} remembers a body codec .* pip install msgstore-erlang-body"):
        plan_salvage(attrs.evolve(catalogue(), registrations=registrations), [source], tmp_path / "out")


# -- damage, and what leaves nothing ------------------------------------------------------------------------------------------


def test_damaged_settings_of_source_are_damage(source, tmp_path):
    make_store(source, record="checksum")
    (source / "msgstore.json").write_text("{}")
    report = salvage(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {ONE: b"hello"}
    assert [spot.reason for spot in report.damage] == [SETTINGS_DAMAGED]


def test_file_that_cannot_be_read_is_damage(clean, tmp_path, monkeypatch):
    real, wanted = Files._read_all, (clean / "1.sqs").stat()

    def fail(self, fd, size):
        if os.fstat(fd).st_ino == wanted.st_ino:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, fd, size)

    monkeypatch.setattr(Files, "_read_all", fail)
    report = salvage(clean, tmp_path / "out")
    assert report.messages == 212 + 75
    assert [Path(spot.path).name for spot in report.damage] == ["1.sqs"]
    assert spots_of(report) == [(0, wanted.st_size, "unreadable: Input/output error")]


def cut(path, monkeypatch):
    path.write_bytes(path.read_bytes()[:-1])


def move(path, monkeypatch):
    data = path.read_bytes()
    path.write_bytes(data[:64] + data[300:] + data[64:300])


def break_disk(path, monkeypatch):
    monkeypatch.setattr(Files, "_read_all", raising(OSError(errno.EIO, "Input/output error")))


@pytest.mark.parametrize(
    ("happens", "error", "said"),
    [
        (cut, StoreError, r"0\.sqs: changed while it was copied"),
        (move, StoreError, r"0\.sqs: changed while it was copied"),
        (break_disk, StoreIOError, r"\d\.sqs: Input/output error\. Nothing was kept"),
        (lambda *_: raising(KeyboardInterrupt())(), KeyboardInterrupt, None),
    ],
)
def test_salvage_that_fails_leaves_nothing(happens, error, said, clean, tmp_path, monkeypatch):
    """Between the two readings: what was examined is what is copied, or nothing is."""

    def progress(done, total):
        if done * 2 == total:
            happens(clean / "0.sqs", monkeypatch)

    with pytest.raises(error, match=said):
        salvage(clean, tmp_path / "out", progress=progress)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_migration_that_would_lose_messages_is_refused(source, tmp_path):
    shutil.copy(CLEAN / "0.sqs", source)
    flip(source / "0.sqs", 64, 3)
    (tmp_path / "counts.csv").write_text(f"{ONE.hex()},1\n")
    for counts, said in (
        (None, r"0\.sqs: .* bytes at offset 64 are damaged .*, and without counts nobody knows whether a message was there"),
        (tmp_path / "counts.csv", f"1 messages that have references are not there, or damaged: {ONE.hex()}"),
    ):
        with pytest.raises(StoreError, match=said):
            salvage(source, tmp_path / "out", counts=counts, complete=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts.csv", "in"]


def test_body_too_large_for_new_format_is_damage(source, tmp_path):
    """As if the format had small records."""
    filled(source, [(ONE, b"1" * 100), (TWO, b"2" * 101)])
    job = attrs.evolve(plan_salvage(catalogue(), [source], tmp_path / "out"), max_body=100)
    report = LocalRunner(LocalOptions(processes=1)).salvage(job)
    assert [spot.reason for spot in report.damage] == ["message_too_large"]
    assert bodies(tmp_path / "out") == {ONE: b"1" * 100}


# -- the command --------------------------------------------------------------------------------------------------------------


def test_command_prints_recovered_records_and_damage(source, tmp_path):
    shutil.copy(CLEAN / "0.sqs", source)
    records = manifest_of("v2_clean")["segments"][0]["records"]
    path = {"path": str(source / "0.sqs")}
    flip(source / "0.sqs", records[10]["offset"], 3)
    out = rows_of("salvage", source, tmp_path / "out", code=1)
    assert [entry["kind"] for entry in out] == ["input", *["recovered"] * 201, "damage", "summary"]
    assert columns(out[1:202], "offset", "size", "id") == columns(records[11:], "offset", "total_size", "id")
    reason = "unrecognised_record_type"
    [(offset, size)] = columns(records[10:11], "offset", "total_size")
    assert out[-2] == {"kind": "damage", **path, "offset": offset, "size": size, "reason": reason}
    assert out[1] == {"kind": "recovered", **path, **{key: out[1][key] for key in ("offset", "size", "id")}}
    assert columns(out[-1:], "messages", "recovered", "damaged_spans") == [(211, 201, 1)]
    assert digests(tmp_path / "out") == digests_in(record for n, record in enumerate(records) if n != 10)
    text = run("salvage", source, tmp_path / "second").stdout
    assert "The new store has" not in text
    assert "'msgstore salvage' also finds" in run("scan", source, code=1).stdout
    assert "211 messages copied, 201 of them recovered after damage" in text
    assert reason in text


def test_damage_comes_in_number_order(tmp_path):
    """And it is said that the new store has another format than the old one."""
    clean = copy_of("v1_clean", tmp_path / "in")
    for path in clean.glob("*.rdq"):
        with path.open("ab") as file:
            file.write(b"\0" * 8 + b"rest")
    text = run("salvage", clean, tmp_path / "out", code=1).stdout
    table = text.partition("damaged spans")[2]
    assert re.findall(r"^(\d+)\.rdq", table, re.MULTILINE) == sorted(re.findall(r"(\d+)\.rdq", table), key=int) != []
    assert "The new store has the format v2 and the index ets." in text


def test_command_checks_bodies_with_given_codec(tmp_path):
    source = BROKER / "v2_corrupt" / "message_body_bad_tag"
    out = rows_of("salvage", "--body", "erlang", source, tmp_path / "out", code=1)
    assert [entry["reason"] for entry in out if entry["kind"] == "damage"] == ["invalid_message_body"]
    assert (out[-1]["messages"], rows_of("salvage", source, tmp_path / "all")[-1]["messages"]) == (5, 6)


def test_unreadable_segment_is_told_by_every_job(clean, tmp_path):
    (clean / "9.rdq").symlink_to("nowhere")
    (clean / "zz").symlink_to("zz")
    row = {"kind": "damage", "path": str(clean / "9.rdq"), "offset": 0, "size": 0, "reason": "unreadable: is a link to nothing"}
    for verb in (("salvage", clean, tmp_path / "out"), ("inventory", clean), ("diff", clean, clean)):
        assert row in rows_of(*verb, code=1)
