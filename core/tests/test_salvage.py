"""Salvage: every good record, every damaged span, every byte accounted for, and nothing written into the source.

``test_chains.py`` tests what is found in damaged segments.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
from pathlib import Path

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
from msgstore.builtin.options import LocalOptions
from msgstore.contract import ConfigError, StoreError, StoreIOError
from msgstore.files import Files
from msgstore.jobs.local import LocalRunner
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.salvage import SalvageReport, plan_salvage
from msgstore.scan import FormatSet

CLEAN = store_of("v2_clean")
ONE, TWO, THREE = (bytes([n]) * 16 for n in (1, 2, 3))


@functools.cache
def catalogue():
    return msgstore.load_catalogue()


def salvage(source, destination, *, progress=None, **options) -> SalvageReport:
    return LocalRunner(LocalOptions(processes=1)).salvage(plan_salvage(catalogue(), [source], destination, **options), progress)


def rescue(source, destination, **options) -> SalvageReport:
    """Salvage, and check what holds for every salvage."""
    before = snapshot(source)
    report = salvage(source, destination, **options)
    assert snapshot(source) == before
    for found in report.inputs:
        assert found.header + found.good + found.duplicates + found.holes + found.damaged == found.size
        assert found.size == Path(found.path).stat().st_size
    assert [path for path in destination.parent.iterdir() if path.name.startswith(".")] == []
    return report


def bodies(store) -> dict[bytes, bytes]:
    with msgstore.open_store(store, mode="r") as opened:
        assert opened.stats().recovery.how in ("trust", "new")
        return {entry.msg_id: opened.stored_body(entry) for entry in opened.entries()}


def digests(store) -> dict[str, str]:
    return {msg_id.hex(): hashlib.sha256(body).hexdigest() for msg_id, body in bodies(store).items()}


def digests_in(records) -> dict[str, str]:
    return {record["id"]: record["body_sha256"] for record in records}


def spots_of(report) -> list[tuple[int, int, str]]:
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
    with msgstore.open_store(path, **keys) as store, store.client() as client:
        client.write(ONE, b"hello")


def settings_of(store):
    return json.loads((store / "msgstore.json").read_text())


# -- what is copied -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_salvage_of_real_directory_copies_every_record(name, tmp_path):
    manifest = manifest_of(name)
    report = rescue(store_of(name), tmp_path / "out")
    expected = digests_in(record for segment in manifest["segments"] for record in segment["records"])
    assert digests(tmp_path / "out") == expected
    assert report.messages == len(expected)
    torn = [(manifest["torn"]["record_offset"], "torn")] if "torn" in manifest else []
    assert [(spot.offset, spot.reason) for spot in report.damage] == torn


def test_salvage_of_shared_stores_finds_no_damage(tmp_path):
    stores = sorted({path.parent for path in (DATA / "rabbitmq-3.10").rglob("msg_store_*/*.rdq")})
    assert stores
    for number, directory in enumerate(stores):
        assert rescue(directory, tmp_path / str(number)).damage == []


@pytest.mark.parametrize("case", manifest_of("v2_corrupt")["cases"], ids=lambda case: case["case"])
def test_salvage_of_corrupt_case_keeps_what_recovery_keeps(case, tmp_path):
    report = rescue((BROKER / "v2_corrupt" / case["path"]).parent, tmp_path / "out")
    known = case["dirty_recovery_as_current_file"]["recovered"]
    assert digests_in(known).items() <= digests(tmp_path / "out").items()
    is_damaged = case["scan"].get("scan_error", {}).get("reason") not in (None, "invalid_message_body")
    has_rest = {"stopped_with_bytes_left", "short_header"} & set(case["scan"]["layout"])
    assert bool(report.damage) == (is_damaged or bool(has_rest))


def test_highest_file_wins_and_bad_copy_gives_way(source, tmp_path):
    form = FormatSet(catalogue(), {"checksum": 4}, record="checksum", write_format="v2").by_name("v2").format
    plain = FormatSet(catalogue()).by_name("v1").format
    (source / "1.rdq").write_bytes(plain.encode([ONE, TWO, THREE], [b"old 1", b"old 2", b"old 3"])[0])
    data, sizes = form.encode([ONE, TWO, TWO, ONE], [b"new 1", b"bad 2", b"good 2", b"late 1"])
    (source / "7.sqs").write_bytes(form.header + data)
    flip(source / "7.sqs", 64 + sizes[0] + sizes[1] - 1)
    report = rescue(source, tmp_path / "out", records={"checksum": 4})
    assert bodies(tmp_path / "out") == {ONE: b"new 1", TWO: b"good 2", THREE: b"old 3"}
    assert spots_of(report) == [(64 + sizes[0], sizes[1], "checksum_mismatch")]
    flip(source / "7.sqs", 64 + sum(sizes[:3]) - 1)
    rescue(source, tmp_path / "again", records={"checksum": 4})
    assert bodies(tmp_path / "again")[TWO] == b"old 2"


def test_sources_of_several_formats_and_shapes_are_read(source, tmp_path):
    for name, file, to in (("v1", "0.rdq", "0.rdq"), ("v2", "0.sqs", "0.sqs"), ("v2", "1.sqs", "backup of 1.sqs")):
        shutil.copy(store_of(f"{name}_clean") / file, source / to)
    (source / "notes.txt").write_text("no segment")
    report = rescue(source, tmp_path / "out")
    assert report.messages == 212 + 212 + 213
    assert report.ignored == [str(source / "notes.txt")]
    assert Path(report.inputs[-1].path).name == "backup of 1.sqs"
    assert rescue(BROKER / "v1_clean", tmp_path / "of a tree").messages == 500
    assert salvage(source / "0.sqs", tmp_path / "of a file").messages == 212


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
    report = rescue(source, tmp_path / "out", check_body="erlang")
    assert digests(tmp_path / "out") == digests_in(record for n, record in enumerate(records) if n not in hiding)
    assert spots_of(report) == [(records[n]["offset"], records[n]["total_size"], "invalid_message_body") for n in hiding]
    assert len(report.inputs[0].recovered) == 20


# -- the new store ------------------------------------------------------------------------------------------------------------


def test_new_store_has_settings_of_job_and_source(source, tmp_path):
    make_store(source, body="erlang", record="checksum")
    rescue(source, tmp_path / "out", index="lmdb")
    expected = {"index": "lmdb", "format": "v2", "record": "checksum", "body": "erlang", "records": {"checksum": 4}}
    assert expected.items() <= settings_of(tmp_path / "out").items()
    assert run("get", tmp_path / "out", ONE.hex()).stdout_bytes == b"hello"
    rescue(source, tmp_path / "old", format="v1")
    assert [path.name for path in (tmp_path / "old").glob("*.*q*")] == ["0.rdq"]
    assert settings_of(tmp_path / "old")["record"] == "message"
    assert bodies(tmp_path / "old") == {ONE: b"\x83m\0\0\0\5hello"}
    run("migrate", source, tmp_path / "fresh", "--to", "v2", code=0)
    assert settings_of(tmp_path / "fresh")["record"] == "checksum"
    make_store(tmp_path / "plain")
    rescue(tmp_path / "plain", tmp_path / "checked", record="checksum")
    assert settings_of(tmp_path / "checked")["record"] == "checksum"


def test_record_type_that_source_binds_keeps_its_byte(source, tmp_path):
    """Named once more, it has the byte that it has there: no format assigns one."""
    make_store(source, format={"use": "v2", "records": {"audit": 200}}, record="audit")
    job = plan_salvage(catalogue(), [source], tmp_path / "out", record="audit")
    assert (job.target.record, job.target.records) == ("audit", (("audit", 200),))
    make_store(tmp_path / "other", format={"use": "v2", "records": {"audit": 201}}, record="audit")
    with pytest.raises(ConfigError, match="in different ways: audit=200, audit=201; one store cannot hold both"):
        plan_salvage(catalogue(), [source, tmp_path / "other"], tmp_path / "out")


def test_contradicting_codecs_are_refused(tmp_path):
    """A directory that says nothing is not taken to agree: a broker's has a codec, and does not tell."""
    raw, erlang = tmp_path / "raw", tmp_path / "erlang"
    for path in (raw, erlang):
        make_store(path, body=path.name)
    for sources, message in (([raw, erlang], "different body codecs: raw, erlang"), ([CLEAN, erlang], "erlang, unknown")):
        with pytest.raises(ConfigError, match=message):
            plan_salvage(catalogue(), sources, tmp_path / "out")
    assert plan_salvage(catalogue(), [CLEAN, erlang], tmp_path / "out", body="erlang").target.body == "erlang"
    assert plan_salvage(catalogue(), [CLEAN, raw], tmp_path / "out").target.body == "raw"


# -- damage, and what leaves nothing ------------------------------------------------------------------------------------------


def test_damaged_settings_of_source_are_damage(source, tmp_path):
    make_store(source, record="checksum")
    (source / "msgstore.json").write_text("{}")
    report = rescue(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {ONE: b"hello"}
    assert [spot.reason for spot in report.damage] == [SETTINGS_DAMAGED]


def test_file_that_cannot_be_read_is_damage(clean, tmp_path, monkeypatch):
    real = Files._read_all

    def fail(self, fd, size):
        if os.fstat(fd).st_ino == (clean / "1.sqs").stat().st_ino:
            raise OSError(5, "Input/output error")
        return real(self, fd, size)

    monkeypatch.setattr(Files, "_read_all", fail)
    report = salvage(clean, tmp_path / "out")
    assert report.messages == 212 + 75
    assert [Path(spot.path).name for spot in report.damage] == ["1.sqs"]
    assert spots_of(report) == [(0, (clean / "1.sqs").stat().st_size, "unreadable: Input/output error")]


def cut(done, total, path=None):
    """Change a segment between the two readings: what was examined is what is copied, or nothing is."""
    if done * 2 == total:
        path.write_bytes(path.read_bytes()[:-1])


def move(done, total, path=None):
    if done * 2 == total:
        data = path.read_bytes()
        path.write_bytes(data[:64] + data[300:] + data[64:300])


@pytest.mark.parametrize(
    ("progress", "error", "said"),
    [
        (cut, StoreError, r"0\.sqs: changed while it was copied"),
        (move, StoreError, r"0\.sqs: changed while it was copied"),
        (lambda done, total, path: raising(KeyboardInterrupt())(), KeyboardInterrupt, None),
    ],
)
def test_salvage_that_fails_leaves_nothing(progress, error, said, clean, tmp_path):
    with pytest.raises(error, match=said):
        salvage(clean, tmp_path / "out", progress=functools.partial(progress, path=clean / "0.sqs"))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_disk_error_while_copying_leaves_nothing(clean, tmp_path, monkeypatch):
    """It is no change of the segment, and the error says that no store was made."""
    monkeypatch.setattr("msgstore.jobs.salvage._copy_records", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreIOError, match=r"Input/output error\. Nothing was kept"):
        salvage(clean, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_unusable_places_are_refused(clean, tmp_path):
    for name in ("full", "empty", "nothing"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    for destination in ("full", "full/file", "in", "in/out", "no/such/place"):
        with pytest.raises(StoreError):
            salvage(clean, tmp_path / destination)
    assert rescue(clean, tmp_path / "empty").messages == 500
    for source, message in (("nothing", "there are no segments"), ("nowhere", "no such file or directory")):
        with pytest.raises(StoreError, match=message):
            salvage(tmp_path / source, tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "in", "nothing"]


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
    assert "211 messages copied, 201 of them recovered after damage" in text
    assert reason in text


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
    assert f"{clean}/" in run("migrate", clean, tmp_path / "other", "--to", "v2", code=2).stderr


def test_directories_beneath_store_are_named_by_job(clean):
    shutil.copytree(CLEAN, clean / "backup")
    named = f"left out, beneath directories that have segments of their own: {clean / 'backup'}; name"
    assert run("inventory", clean).stderr.count(named) == 1


def test_too_many_references_are_refused(tmp_path):
    counts = tmp_path / "counts.csv"
    counts.write_text(f"{ONE.hex()},{2**60}\n")
    for verb in (("salvage", CLEAN, tmp_path / "out"), ("info", CLEAN)):
        said = run(*verb, "--refcounts", counts, code=2).stderr
        assert f"counts.csv: line 1 has the count {2**60}; a count is at most" in said
