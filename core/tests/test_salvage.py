"""Salvage: every good record, every damaged span, every byte accounted for, and nothing written into the source."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.builtin.options import LocalOptions
from msgstore.cli.main import main
from msgstore.contract import ConfigError, StoreError
from msgstore.files import Files
from msgstore.jobs.local.runner import LocalRunner
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.salvage import SalvageReport, plan_salvage
from msgstore.scan import FormatSet

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
STORES = sorted((DATA / "msg-store").glob("*/store"))
CORRUPT = sorted(path.parent for path in (DATA / "msg-store" / "v2_corrupt").glob("*/0.sqs"))


@functools.cache
def catalogue() -> msgstore.Catalogue:
    return msgstore.load_catalogue()


def salvage(source: Path, destination: Path, *, progress: Any = None, **options: Any) -> SalvageReport:
    return LocalRunner(LocalOptions(processes=1)).salvage(plan_salvage(catalogue(), [source], destination, **options), progress)


def rescue(source: Path, destination: Path, **options: Any) -> SalvageReport:
    before = snapshot(source)
    report = salvage(source, destination, **options)
    assert snapshot(source) == before
    for found in report.inputs:
        assert found.header + found.good + found.duplicates + found.holes + found.damaged == found.size
        assert found.size == Path(found.path).stat().st_size
    assert sorted(path.name for path in destination.parent.iterdir() if path.name.startswith(".")) == []
    return report


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in [directory, *directory.rglob("*")]}


def bodies(store: Path) -> dict[bytes, bytes]:
    with msgstore.open_store(store, mode="r") as opened:
        return {entry.msg_id: opened.stored_body(entry) for entry in opened.entries()}


def digests(store: Path) -> dict[str, str]:
    return {msg_id.hex(): hashlib.sha256(body).hexdigest() for msg_id, body in bodies(store).items()}


def format_v2(record: str = "message") -> Any:
    records = {} if record == "message" else {record: 4}
    return FormatSet(catalogue(), records, record=record, options_of="v2").by_name("v2").format


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def make_store(path: Path, **keys: Any) -> None:
    """Store of one message, ``hello``."""
    with msgstore.open_store(path, **keys) as store, store.client() as client:
        client.write(id_of(1), b"hello")


def make_segment(count: int, path: Path, *, record: str = "message") -> list[tuple[int, int]]:
    """Write records of messages 0 to ``count``; return their (offset, size)."""
    form = format_v2(record)
    data, sizes = form.encode([id_of(n) for n in range(count)], [body_of(n) for n in range(count)])
    path.write_bytes(form.header + data)
    return list(zip(accumulate(sizes[:-1], initial=len(form.header)), sizes, strict=True))


def id_of(n: int) -> bytes:
    return bytes([0xA0, n >> 8, n & 255]).rjust(16, b"i")


def body_of(n: int) -> bytes:
    return b"message %d " % n * (5 + n % 7)


def flip(path: Path, offset: int, value: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[offset] = data[offset] ^ 0x10 if value is None else value
    path.write_bytes(data)


def cli(*arguments: object) -> tuple[Result, list[dict[str, Any]]]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = result.stdout.splitlines() if "--json" in arguments else []
    return result, [json.loads(line) for line in lines]


@pytest.mark.parametrize("directory", STORES, ids=lambda path: path.parent.name)
def test_every_record_of_a_real_directory(directory: Path, tmp_path: Path) -> None:
    manifest = json.loads((directory.parent / "manifest.json").read_text())
    report = rescue(directory, tmp_path / "out")
    found = digests(tmp_path / "out")
    expected = {r["id"]: r["body_sha256"] for segment in manifest["segments"] for r in segment["records"]}
    assert found == expected
    assert report.messages == len(expected)
    assert [(spot.offset, spot.reason) for spot in report.damage] == (
        [(manifest["torn"]["record_offset"], "torn")] if "torn" in manifest else []
    )
    with msgstore.open_store(tmp_path / "out", mode="r") as store:
        assert store.stats().recovery.how == "trust"


def test_the_shared_stores_of_a_real_broker(tmp_path: Path) -> None:
    found = 0
    for number, directory in enumerate(sorted((DATA / "rabbitmq-3.10").rglob("msg_store_*"))):
        if list(directory.glob("*.rdq")):
            report = rescue(directory, tmp_path / str(number))
            assert report.damage == []
            found += 1
    assert found


@pytest.mark.parametrize("directory", CORRUPT, ids=lambda path: path.name)
def test_every_corrupt_case(directory: Path, tmp_path: Path) -> None:
    case = next(
        c
        for c in json.loads((directory.parent / "manifest.json").read_text())["cases"]
        if c["path"] == f"{directory.name}/0.sqs"
    )
    report = rescue(directory, tmp_path / "out")
    found = digests(tmp_path / "out")
    known = case["dirty_recovery_as_current_file"]["recovered"]
    assert {r["id"]: r["body_sha256"] for r in known}.items() <= found.items()
    damaged = bool(case["scan"].get("scan_error", {}).get("reason") not in (None, "invalid_message_body"))
    torn = "stopped_with_bytes_left" in case["scan"]["layout"] or "short_header" in case["scan"]["layout"]
    assert bool(report.damage) == (damaged or torn)


def test_records_behind_a_corrupt_spot_are_found_again(source: Path, tmp_path: Path) -> None:
    spans = make_segment(100, source / "0.sqs")
    for n in (20, 21, 60):
        flip(source / "0.sqs", spans[n][0], 0)
    report = rescue(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {id_of(n): body_of(n) for n in range(100) if n not in (20, 21, 60)}
    assert [(spot.offset, spot.size, spot.reason) for spot in report.damage] == [
        (spans[20][0], spans[20][1] + spans[21][1], "unrecognised_record_type"),
        (*spans[60], "unrecognised_record_type"),
    ]
    recovered = [(offset, size) for _, offset, size, _ in report.inputs[0].recovered.rows()]
    assert recovered == [spans[n] for n in range(22, 100) if n != 60]


@pytest.mark.parametrize("byte", [1, 2, 3, 4])
def test_a_flipped_size_hides_no_other_record(source: Path, tmp_path: Path, byte: int) -> None:
    spans = make_segment(300, source / "0.sqs")
    flip(source / "0.sqs", spans[50][0] + byte, [0x10, 0x10, 0x10, 0xFF][byte - 1])
    report = rescue(source, tmp_path / "out")
    found = bodies(tmp_path / "out")
    assert found == {id_of(n): body_of(n) for n in range(300) if n != 50}
    [spot] = report.damage
    assert (spot.offset, spot.size) == spans[50]


@pytest.mark.slow
def test_random_flips_lose_only_what_they_hit(source: Path, tmp_path: Path) -> None:
    spans = make_segment(400, source / "0.sqs", record="checksum")
    original = (source / "0.sqs").read_bytes()
    seed = random.Random(7)
    for trial in range(40):
        data = bytearray(original)
        hit = set()
        for _ in range(seed.randrange(1, 6)):
            at = seed.randrange(64, len(data))
            data[at] ^= 1 << seed.randrange(8)
            hit.add(next(n for n, (offset, size) in enumerate(spans) if offset <= at < offset + size))
        (source / "0.sqs").write_bytes(data)
        report = rescue_checksummed(source, tmp_path / f"out{trial}")
        found = bodies(tmp_path / f"out{trial}")
        assert found.items() <= {id_of(n): body_of(n) for n in range(400)}.items()
        missing = {n for n in range(400) if id_of(n) not in found}
        assert missing <= hit | {n + 1 for n in hit if n + 1 < 400 and n + 1 >= 392}, (trial, missing, hit)
        assert report.damage


def rescue_checksummed(source: Path, destination: Path) -> SalvageReport:
    return rescue(source, destination, records={"checksum": 4}, record="checksum")


def grow(path: Path, span: tuple[int, int], size: int) -> None:
    """Let the record at ``span`` say that it has ``size`` bytes."""
    data = bytearray(path.read_bytes())
    data[span[0] + 1 : span[0] + 5] = size.to_bytes(4, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("swallowed", [1, 2, 20])
@pytest.mark.parametrize("record", ["checksum", "message"])
def test_whole_records_inside_a_damaged_one_are_found_again(source: Path, tmp_path: Path, swallowed: int, record: str) -> None:
    form = format_v2("checksum")
    spans = make_segment(60, source / "0.sqs", record=record)
    if record == "message":  # checked records outside, unchecked ones inside
        head, [size] = form.encode([id_of(10)], [body_of(10)])
        data = (source / "0.sqs").read_bytes()
        (source / "0.sqs").write_bytes(data[: spans[10][0]] + head + data[sum(spans[10]) :])
        spans[10:] = [(spans[10][0], size), *[(offset + 4, size) for offset, size in spans[11:]]]
    grow(source / "0.sqs", spans[10], sum(size for _, size in spans[10 : 11 + swallowed]))
    report = rescue_checksummed(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {id_of(n): body_of(n) for n in range(60) if n != 10}
    assert [(spot.offset, spot.size, spot.reason) for spot in report.damage] == [(*spans[10], "checksum_mismatch")]
    recovered = [(offset, size) for _, offset, size, _ in report.inputs[0].recovered.rows()]
    assert recovered == spans[11 : 11 + swallowed]


def test_damage_inside_damage(source: Path, tmp_path: Path) -> None:
    spans = make_segment(60, source / "0.sqs", record="checksum")
    grow(source / "0.sqs", spans[10], sum(size for _, size in spans[10:30]))
    grow(source / "0.sqs", spans[12], sum(size for _, size in spans[12:20]))
    flip(source / "0.sqs", sum(spans[15]) - 1)
    flip(source / "0.sqs", spans[29][0], 0)  # what is inside does not lead to the end, but each record proves itself
    report = rescue_checksummed(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {id_of(n): body_of(n) for n in range(60) if n not in (10, 12, 15, 29)}
    assert [(spot.offset, spot.size) for spot in report.damage] == [spans[n] for n in (10, 12, 15, 29)]


def test_unchecked_records_inside_a_damaged_one_must_lead_to_its_end(source: Path, tmp_path: Path) -> None:
    form = format_v2("checksum")
    quoted, _ = format_v2().encode([id_of(n) for n in range(20)], [body_of(n) for n in range(20)])
    data, sizes = form.encode([id_of(100), id_of(101)], [quoted + b"!", b"behind"])
    (source / "0.sqs").write_bytes(form.header + data)
    flip(source / "0.sqs", 64 + sizes[0] - 1)
    report = rescue_checksummed(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {id_of(101): b"behind"}
    assert [(spot.offset, spot.size, spot.reason) for spot in report.damage] == [(64, sizes[0], "checksum_mismatch")]


def test_searching_inside_damage_takes_linear_time(source: Path, tmp_path: Path) -> None:
    total = 1 << 20  # each record says that it goes on to the end of the file
    heads = (b"\4" + (total - at).to_bytes(4, "big") + b"i" * 20 for at in range(64, total - 25, 25))
    (source / "0.sqs").write_bytes((format_v2().header + b"".join(heads)).ljust(total, b"\0"))
    begin = time.process_time()
    report = rescue_checksummed(source, tmp_path / "out")
    assert time.process_time() - begin < 10
    assert report.messages == 0


def test_the_highest_file_wins_and_a_bad_copy_gives_way(source: Path, tmp_path: Path) -> None:
    form = format_v2("checksum")
    plain = FormatSet(catalogue()).by_name("v1").format
    one, two, three = id_of(1), id_of(2), id_of(3)
    (source / "1.rdq").write_bytes(plain.encode([one, two, three], [b"old 1", b"old 2", b"old 3"])[0])
    data, sizes = form.encode([one, two, two, one], [b"new 1", b"bad 2", b"good 2", b"late 1"])
    (source / "7.sqs").write_bytes(form.header + data)
    flip(source / "7.sqs", 64 + sizes[0] + sizes[1] - 1)
    report = rescue(source, tmp_path / "out", records={"checksum": 4})
    assert bodies(tmp_path / "out") == {one: b"new 1", two: b"good 2", three: b"old 3"}
    assert [(spot.offset, spot.reason) for spot in report.damage] == [(64 + sizes[0], "checksum_mismatch")]
    flip(source / "7.sqs", 64 + sum(sizes[:3]) - 1)
    rescue(source, tmp_path / "again", records={"checksum": 4})
    assert bodies(tmp_path / "again")[two] == b"old 2"


def test_several_formats_and_clashing_numbers(source: Path, tmp_path: Path) -> None:
    shutil.copy(DATA / "msg-store/v1_clean/store/0.rdq", source / "0.rdq")
    shutil.copy(DATA / "msg-store/v2_clean/store/0.sqs", source / "0.sqs")
    shutil.copy(DATA / "msg-store/v2_clean/store/1.sqs", source / "backup of 1.sqs")
    (source / "notes.txt").write_text("no segment")
    report = rescue(source, tmp_path / "out")
    assert report.messages == 212 + 212 + 213
    assert report.ignored == [str(source / "notes.txt")]
    assert Path(report.inputs[-1].path).name == "backup of 1.sqs"


def test_what_the_new_store_is(source: Path, tmp_path: Path) -> None:
    make_store(source, body="erlang")
    rescue(source, tmp_path / "out", index="lmdb", record="checksum")
    settings = json.loads((tmp_path / "out" / "msgstore.json").read_text())
    expected = {"index": "lmdb", "format": "v2", "record": "checksum", "body": "erlang", "records": {"checksum": 4}}
    assert expected.items() <= settings.items()
    assert CliRunner().invoke(main, ["get", str(tmp_path / "out"), id_of(1).hex()]).stdout_bytes == b"hello"
    rescue(source, tmp_path / "old", format="v1")
    assert [path.name for path in (tmp_path / "old").glob("*.*q*")] == ["0.rdq"]
    assert bodies(tmp_path / "old") == {id_of(1): b"\x83m\0\0\0\5hello"}


def test_bodies_must_be_valid_if_a_codec_is_given(tmp_path: Path) -> None:
    result, out = cli(
        "salvage", "--json", "--body", "erlang", DATA / "msg-store/v2_corrupt/message_body_bad_tag", tmp_path / "out"
    )
    assert result.exit_code == 1
    assert [entry["reason"] for entry in out if entry["kind"] == "damage"] == ["invalid_message_body"]
    assert out[-1]["messages"] == 5
    result, out = cli("salvage", "--json", DATA / "msg-store/v2_corrupt/message_body_bad_tag", tmp_path / "all")
    assert (result.exit_code, out[-1]["messages"]) == (0, 6)


@pytest.mark.parametrize(("name", "size_at", "body_at"), [("v2_clean/store/0.sqs", 1, 21), ("v1_clean/store/0.rdq", 4, 24)])
def test_what_an_invalid_body_hides(name: str, size_at: int, body_at: int, source: Path, tmp_path: Path) -> None:
    """A record that ends where another one begins is whole in the eyes of its format: the codec alone may tell."""
    path = source / Path(name).name
    shutil.copy(DATA / "msg-store" / name, path)
    manifest = json.loads((DATA / "msg-store" / name).parents[1].joinpath("manifest.json").read_text())
    [records] = [segment["records"] for segment in manifest["segments"] if segment["name"] == path.name]
    data = bytearray(path.read_bytes())
    for first, swallowed in ((10, 20), (13, 5), (40, 1)):
        at = records[first]["offset"]
        end = records[first + swallowed]["offset"] + records[first + swallowed]["total_size"]
        data[at + size_at : at + size_at + 4] = (end - at - (9 if path.suffix == ".rdq" else 0)).to_bytes(4, "big")
        data[at + body_at] = 0
    path.write_bytes(data)
    report = rescue(source, tmp_path / "out", check_body="erlang")
    found = digests(tmp_path / "out")
    whole = [record for n, record in enumerate(records) if n not in (10, 13, 40)]
    assert found == {record["id"]: record["body_sha256"] for record in whole}
    assert [(spot.offset, spot.size, spot.reason) for spot in report.damage] == [
        (records[n]["offset"], records[n]["total_size"], "invalid_message_body") for n in (10, 13, 40)
    ]
    assert len(report.inputs[0].recovered) == 20


def test_the_settings_of_the_source_are_damaged(source: Path, tmp_path: Path) -> None:
    make_store(source, record="checksum")
    (source / "msgstore.json").write_text("{}")
    report = rescue(source, tmp_path / "out")
    assert bodies(tmp_path / "out") == {id_of(1): b"hello"}
    assert [spot.reason for spot in report.damage] == [SETTINGS_DAMAGED]


def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in"
    shutil.copytree(DATA / "msg-store/v2_clean/store", source)
    real = Files._read_all

    def fail(self: Files, fd: int, size: int) -> bytes:
        if os.fstat(fd).st_ino == (source / "1.sqs").stat().st_ino:
            raise OSError(5, "Input/output error")
        return real(self, fd, size)

    monkeypatch.setattr(Files, "_read_all", fail)
    report = salvage(source, tmp_path / "out")
    assert report.messages == 212 + 75
    assert [(Path(spot.path).name, spot.size, spot.reason) for spot in report.damage] == [
        ("1.sqs", (source / "1.sqs").stat().st_size, "unreadable: Input/output error")
    ]


def test_no_partial_store_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for method in ("pwrite", "replace", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(Files, method, full)
            with pytest.raises(StoreError, match="No space left"):
                salvage(DATA / "msg-store/v2_clean/store", tmp_path / "out")
            assert list(tmp_path.iterdir()) == []


def test_an_interrupted_salvage_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        salvage(DATA / "msg-store/v2_clean/store", tmp_path / "out", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_destinations_that_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(DATA / "msg-store/v2_clean/store", source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for destination in ("full", "full/file", "in", "in/out", "no/such/place"):
        with pytest.raises(StoreError):
            salvage(source, tmp_path / destination)
    (tmp_path / "empty").mkdir()
    assert rescue(source, tmp_path / "empty").messages == 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "in"]


def test_a_tree_of_directories(tmp_path: Path) -> None:
    report = rescue(DATA / "msg-store" / "v1_clean", tmp_path / "out")
    assert {Path(found.path).parent.name for found in report.inputs} == {"store"}
    assert report.messages == 500
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="there are no segments"):
        salvage(tmp_path / "empty", tmp_path / "none")
    with pytest.raises(StoreError, match="no such file or directory"):
        salvage(tmp_path / "nowhere", tmp_path / "none")


def test_what_the_command_prints(source: Path, tmp_path: Path) -> None:
    spans = make_segment(30, source / "0.sqs")
    flip(source / "0.sqs", spans[10][0], 0)
    result, out = cli("salvage", "--json", source, tmp_path / "out")
    assert result.exit_code == 1
    kinds = [entry["kind"] for entry in out]
    assert kinds == ["input", *["recovered"] * 19, "damage", "summary"]
    assert out[1] == {"kind": "recovered", "path": str(source / "0.sqs"), **entry_of(spans[11]), "id": id_of(11).hex()}
    reason = "unrecognised_record_type"
    assert out[-2] == {"kind": "damage", "path": str(source / "0.sqs"), **entry_of(spans[10]), "reason": reason}
    assert (out[-1]["messages"], out[-1]["recovered"], out[-1]["damaged_spans"]) == (29, 19, 1)
    text, _ = cli("salvage", source, tmp_path / "second")
    assert "29 messages copied, 19 of them recovered after damage" in text.stdout
    assert "unrecognised_record_type" in text.stdout


def entry_of(span: tuple[int, int]) -> dict[str, int]:
    return {"offset": span[0], "size": span[1]}


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:64] + data[300:] + data[64:300]])
def test_a_segment_that_changes_between_two_readings(tmp_path: Path, change: Any) -> None:
    """What was examined is what is copied, or nothing is."""
    source = tmp_path / "in"
    shutil.copytree(DATA / "msg-store/v2_clean/store", source)

    def between(done: int, total: int) -> None:
        if done * 2 == total:
            (source / "0.sqs").write_bytes(change((source / "0.sqs").read_bytes()))

    with pytest.raises(StoreError, match=r"0\.sqs: changed while it was copied"):
        salvage(source, tmp_path / "out", progress=between)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_codecs_that_contradict_each_other(tmp_path: Path) -> None:
    """A directory that says nothing is not taken to agree: a broker's has a codec, and does not tell."""
    broker = DATA / "msg-store/v2_clean/store"
    for name in ("raw", "erlang"):
        make_store(tmp_path / name, body=name)
    with pytest.raises(ConfigError, match="different body codecs"):
        plan_salvage(catalogue(), [tmp_path / "raw", tmp_path / "erlang"], tmp_path / "out")
    with pytest.raises(ConfigError, match="does not say which codec"):
        plan_salvage(catalogue(), [broker, tmp_path / "erlang"], tmp_path / "out")
    assert plan_salvage(catalogue(), [broker, tmp_path / "erlang"], tmp_path / "out", body="erlang").target.body == "erlang"
    assert plan_salvage(catalogue(), [broker, tmp_path / "raw"], tmp_path / "out").target.body == "raw"


def test_new_messages_are_written_as_before(source: Path, tmp_path: Path) -> None:
    make_store(source, record="checksum")
    rescue(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "msgstore.json").read_text())["record"] == "checksum"
    rescue(source, tmp_path / "old", format="v1")
    assert json.loads((tmp_path / "old" / "msgstore.json").read_text())["record"] == "message"
    result, _ = cli("migrate", source, tmp_path / "fresh", "--to", "v2")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "fresh" / "msgstore.json").read_text())["record"] == "checksum"


def test_a_segment_is_salvaged_beside_itself(tmp_path: Path) -> None:
    shutil.copy(DATA / "msg-store/v2_clean/store/0.sqs", tmp_path)
    assert salvage(tmp_path / "0.sqs", tmp_path / "out").messages == 212


def test_what_has_a_segments_name_and_cannot_be_read_is_told_by_every_job(tmp_path: Path) -> None:
    source = Path(shutil.copytree(DATA / "msg-store/v2_clean/store", tmp_path / "in"))
    (source / "9.rdq").symlink_to("nowhere")
    (source / "zz").symlink_to("zz")
    row = {"kind": "damage", "path": str(source / "9.rdq"), **entry_of((0, 0)), "reason": "unreadable: is a link to nothing"}
    for verb in (("salvage", source, tmp_path / "out"), ("inventory", source), ("diff", source, source)):
        result, rows = cli(*verb, "--json")
        assert result.exit_code == 1, result.output
        assert row in rows
    result, _ = cli("migrate", source, tmp_path / "other", "--to", "v2")
    assert result.exit_code == 2
    assert "9.rdq" in result.stderr


def test_more_references_than_are_counted(tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text(f"{id_of(1).hex()},{2**60}\n")
    for verb in (("salvage", DATA / "msg-store/v2_clean/store", tmp_path / "out"), ("info", DATA / "msg-store/v2_clean/store")):
        result, _ = cli(*verb, "--refcounts", counts)
        assert result.exit_code == 2
        assert f"counts.csv: refcounts: {id_of(1).hex()} has {2**60} references; at most" in result.stderr


def test_a_record_type_that_the_sources_bind(source: Path, tmp_path: Path) -> None:
    """Named once more, it has the byte that it has there: no format assigns one."""
    make_store(source, format={"use": "v2", "records": {"audit": 200}}, record="audit")
    job = plan_salvage(catalogue(), [source], tmp_path / "out", record="audit")
    assert (job.target.record, job.target.records) == ("audit", (("audit", 200),))
