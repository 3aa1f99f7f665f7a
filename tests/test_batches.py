"""Segments as Arrow record batches: the same records, bodies and damage that a scan and a decode give, whatever the format."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import attrs
import pytest

import foreign_ledger
from msgstore.contract import ConfigError, RecordField, StoreError
from msgstore.files import Files
from msgstore.jobs.inputs import SegmentInput, find_inputs, open_input
from msgstore.jobs.reading.segment_check import SegmentRange, check_segment, checksum
from msgstore.jobs.reports import ScannedSegment
from msgstore.jobs.workers import OpenCodec, open_codec
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from support import DATA, catalogue, failing, filled, needs_foreign, records_in

pytest.importorskip("pyarrow")

from msgstore.jobs.columns import batches as module
from msgstore.jobs.columns.batches import damage_batch, record_batches, segments_batch
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS, project, records_schema

ALL = find_inputs(catalogue(), [DATA]).inputs
BOUND = (("audit", 200), ("checksum", 4))
AUDIT = {"record": "audit", "format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "tests"}}}}


def read(found: SegmentInput, *columns: str, codec: Any = None, **only: Any) -> list[dict[str, Any]]:
    schema = records_schema([found], codec)
    wanted = project(schema, columns or schema.names)
    rows: list[dict[str, Any]] = []
    for batch in record_batches(found, wanted, codec, **only):
        assert batch.schema == wanted
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def scanned(found: SegmentInput) -> SegmentReport:
    return scan_file(Files(), Path(found.path), open_input(found))


def check_whole(found: SegmentInput, *, damaged: bool = False) -> list[dict[str, Any]]:
    """Return the rows, which are those of a scan, and account for every byte."""
    [row] = segments_batch([found]).to_pylist()
    parts = ("header", "live", "dead", "holes", "duplicates", "damaged", "other")
    assert sum(row[part] for part in parts) == row["size"] == Path(found.path).stat().st_size
    assert bool(row["damaged"]) == damaged
    rows = read(found)
    assert [{name: row[name] for name in RECORD.names} for row in rows] == records_in(found)
    return rows


def v2(*bound: tuple[str, int]) -> Any:
    """The format with these record types."""
    return open_input(SegmentInput(0, "", "", "v2", 0, bound))


def inputs_in(*paths: Path) -> tuple[SegmentInput, ...]:
    return find_inputs(catalogue(), paths).inputs


def sizes_of_batches(found: SegmentInput, *columns: str, codec: OpenCodec | None = None) -> list[int]:
    schema = project(records_schema([found], codec), columns)
    return [batch.num_rows for batch in record_batches(found, schema, codec)]


@pytest.fixture
def mixed(tmp_path: Path) -> SegmentInput:
    """Messages, checksums and audits in one segment, with a hole between two of them."""
    form, path = v2(*BOUND).format, tmp_path / "0.sqs"
    data = bytearray(form.header)
    for n in range(30):
        record, _ = form._types[(3, 4, 200)[n % 3]].encode([n.to_bytes(16)], [b"body %d" % n * n])
        data += record
        if n == 10:
            data += struct.pack(">BI", 2, 50) + b"\3" * 45
    path.write_bytes(data)
    return SegmentInput(0, str(tmp_path), str(path), "v2", len(data), BOUND)


# -- every kind of record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ALL, ids=lambda found: str(Path(found.path).relative_to(DATA)))
def test_real_segment_gives_its_scan(found: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in many batches."""
    monkeypatch.setattr(module, "BATCH_ROWS", 64)
    monkeypatch.setattr(module, "BATCH_BYTES", 20_000)
    damage = damaged_spans(scanned(found))
    assert list(check_segment(found).damage) == damage
    check_whole(found, damaged=bool(damage))


@needs_foreign
def test_keys_of_any_length_before_bodies(tmp_path: Path) -> None:
    """How much precedes a body differs from one record of the foreign format to the next."""
    messages = {b"k" * (1 + n % 300): b"body %d" % n for n in range(300)}
    (tmp_path / "0.ledger").write_bytes(foreign_ledger.ledger(messages.items()))
    [found] = inputs_in(tmp_path)
    rows = {row["id"]: row["body"] for row in check_whole(found)}
    assert rows == {foreign_ledger.message_id(key): body for key, body in messages.items()}


def test_only_wanted_columns_and_rows_are_read(mixed: SegmentInput) -> None:
    everything = check_whole(mixed)
    assert [row["type"] for row in everything] == [3, 4, 200] * 10
    fields = {(row["type"], row["actor"], row["time"] is None) for row in everything}
    assert fields == {(3, None, True), (4, None, True), (200, "", False)}
    assert read(mixed, "id", "actor") == [{"id": row["id"], "actor": row["actor"]} for row in everything]
    some = ("id", "is_in", [(4).to_bytes(16), (5).to_bytes(16), b"x" * 16, b"short", None])
    audits = [row for row in everything if row["type"] == 200]
    place = everything[4]["offset"]
    conditions: list[tuple[list[Any], list[dict[str, Any]]]] = [
        ([some], [everything[4], everything[5]]),
        ([("id", "is_in", [])], []),
        ([("id", "equal", None)], []),
        ([some, ("type", "equal", 4)], [everything[4]]),
        ([("type", "is_in", [200, 300, -56, 2**15 - 1])], audits),
        ([("type", "is_in", [256 + 200, -(2**15)])], []),
        ([("type", "less", 40_000), ("offset", "less", 2**63 - 1)], everything),
        ([("offset", "less", place)], everything[:4]),
        ([("offset", "greater_equal", place), ("offset", "less_equal", everything[6]["offset"])], everything[4:7]),
        ([("id", "greater", everything[27]["id"])], everything[28:]),
        ([("size", "greater", everything[0]["size"]), ("type", "greater", 4)], audits),
    ]
    for only, rows in conditions:
        assert read(mixed, only=only) == rows
    with pytest.raises(ConfigError, match="no column 'actors'; there are: store"):
        project(records_schema([mixed]), ["actors"])


def test_columns_of_one_name_must_be_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    form = v2(("audit", 200))
    bound = form.with_fields[200]

    def schema_with(kind: str) -> Any:
        """The schema of audits, and of another type with the same fields."""
        other = attrs.evolve(bound, name="x", fields=(bound.fields[0], attrs.evolve(bound.fields[1], kind=kind)))
        types = attrs.evolve(form, with_fields={200: bound, 201: other})
        monkeypatch.setattr("msgstore.jobs.columns.schemas.open_input", lambda found: types)
        return records_schema([SegmentInput(0, "s", "s/0.sqs", "v2", 0)])

    assert schema_with("text").names == [*RECORD.names, "time", "actor"]
    with pytest.raises(ConfigError, match="record type 'audit' has a field 'actor' of kind text, the record type 'x' one of"):
        schema_with("bytes")


# -- codecs -------------------------------------------------------------------------------------------------------------------


def decoding(read_body: Any) -> OpenCodec:
    return OpenCodec("test", (RecordField("note", "text"), RecordField("payload", "bytes")), read_body)


def test_codec_that_is_not_plain_gives_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes of small bodies is cut into batches, too."""
    bodies = [bytes(1500)] * 7 + [bytes(50_000), b"", b""] + [bytes(10)] * 20
    messages = [(n.to_bytes(16), body) for n, body in enumerate(bodies)]
    [one] = inputs_in(filled(tmp_path / "zstd", messages, body="zstd", **AUDIT))
    codec = open_codec("zstd")
    everything = read(one, codec=codec)
    assert [row["payload"] for row in everything] == bodies
    assert all(row["body"] != row["payload"] for row in everything)
    assert {row["actor"] for row in everything} == {"tests"}
    monkeypatch.setattr(module, "BATCH_BYTES", 4000)
    assert read(one, codec=codec) == everything
    assert sizes_of_batches(one, "body", codec=codec) == [30]
    assert sizes_of_batches(one, "payload", codec=codec) == [2, 2, 2, 1, 1, 22]
    [plain] = inputs_in(filled(tmp_path / "plain", [(b"i" * 16, b"not compressed")]))
    assert read(plain, "body", "payload", codec=codec) == [{"body": b"not compressed", "payload": None}]
    assert records_schema([plain], open_codec("raw")) == records_schema([plain]) == RECORD


# -- sizes --------------------------------------------------------------------------------------------------------------------


def test_large_gaps_and_bodies_end_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    form = v2().format
    ids = [n.to_bytes(16) for n in range(6)]
    data = form.header + form.encode(ids[:3], [b"a", b"b" * 5000, b"c"])[0]
    data += struct.pack(">BI", 2, 3000) + bytes(2995) + form.encode(ids[3:], [b"", b"e", b"f"])[0]
    (tmp_path / "0.sqs").write_bytes(data)
    [found] = inputs_in(tmp_path)
    assert sizes_of_batches(found, "body") == [1, 1, 1, 3]
    assert read(found) == records_in(found)


def test_body_larger_than_a_value_is_null(tmp_path: Path) -> None:
    """The file has no blocks but the first and the last."""
    form, size, path = v2().format, 2**31 + 21, tmp_path / "0.sqs"
    path.write_bytes(form.header + struct.pack(">BI16s", 3, size, b"L" * 16))
    os.truncate(path, 64 + size)
    with path.open("ab") as file:
        file.write(form.encode([b"S" * 16], [b"small"])[0])
    [found] = inputs_in(tmp_path)
    assert [(row["id"], row["size"], row["body"]) for row in read(found, "id", "size", "body")] == [
        (b"L" * 16, size, None),
        (b"S" * 16, 26, b"small"),
    ]


def test_mapped_segment_can_be_closed_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping cannot be closed while anything points into it."""
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 0)
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    [found] = inputs_in(filled(tmp_path, record="checksum"))
    batches: Any = record_batches(found, RECORD)
    first = next(batches)
    batches.close()
    assert first.to_pylist() == records_in(found)[:3]


# -- damage, and what is an error ---------------------------------------------------------------------------------------------


def test_damage_and_states_of_segments(tmp_path: Path) -> None:
    form = v2(*BOUND).format
    ids = [n.to_bytes(16) for n in range(9)]
    records = b"".join(form._types[3].encode([msg_id], [b"body"])[0] for msg_id in ids)
    checked = form._types[4].encode([b"c" * 16], [b"body"])[0]
    whole = form.header + records
    contents = {
        0: b"X" + whole[1:],
        1: form.header + b"\3" + bytes(len(records) - 1),
        2: whole[:-3],
        3: b"",
        4: whole,
        5: whole + checked[:-1] + bytes([checked[-1] ^ 1]) + form._types[3].encode([b"z" * 16], [b"z"])[0],
    }
    for number, content in contents.items():
        (tmp_path / f"{number}.sqs").write_bytes(content)
    inputs = find_inputs(catalogue(), [tmp_path], records={"checksum": 4}).inputs
    (tmp_path / "4.sqs").unlink()
    size = 64 + 9 * 25
    assert [(row["file"], row["offset"], row["length"], row["reason"]) for row in damage_batch(inputs).to_pylist()] == [
        ("5.sqs", size, len(checked), "checksum_mismatch"),
        ("4.sqs", 0, size, "unreadable: No such file or directory"),
        ("3.sqs", 0, 0, "torn"),
        ("2.sqs", 64 + 8 * 25, 22, "torn"),
        ("1.sqs", 64, 9 * 25, "invalid_message_size"),
        ("0.sqs", 0, 64, "bad_magic"),
    ]
    states = {row["file"]: row["state"] for row in segments_batch(inputs).to_pylist()}
    assert [states[f"{n}.sqs"] for n in range(6)] == ["corrupt", "corrupt", "torn", "torn", "unreadable", "corrupt"]
    assert [len(read(found)) for found in inputs] == [10, 0, 0, 8, 0, 9]
    gone = check_segment(inputs[1])
    assert gone.is_gone
    assert gone.segment == ScannedSegment(inputs[1].path, "v2", size, "unreadable", damaged=size, quarantined=True)
    assert (damage_batch([]).schema, segments_batch([]).schema) == (DAMAGE, SEGMENTS)


@pytest.mark.parametrize("fault", ["raises", "columns of different lengths"])
def test_scan_that_fails_is_damage(fault: str, mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scanned(mixed).scan
    scan.records.types.pop()
    monkeypatch.setattr(type(open_input(mixed).format), "scan", lambda *_, **__: 1 / 0 if fault == "raises" else scan)
    [spot] = check_segment(mixed).damage
    assert spot.reason.startswith("unreadable: plugin failed: the segment format 'v2' of msgstore-format-v2 ")
    assert ("failed in scan: " in spot.reason, read(mixed, "id")) == (True, [])


def audit_method(name: str, method: Any) -> Any:
    """A replacement of a method of the record type."""
    return lambda found, patch: patch.setattr(type(open_input(found).with_fields[200].record), name, method)


def break_disk_once(found: SegmentInput, patch: pytest.MonkeyPatch) -> None:
    once, view = iter([failing()]), Files.view
    patch.setattr(Files, "view", lambda self, path: next(once, view)(self, path))


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (
            audit_method("fields", lambda self, record: ("tomorrow", "ü")),
            "plugin failed: the record type 'audit' of .* failed in fields: TypeError: it returns 'tomorrow' for the field",
        ),
        (
            audit_method("body_span", lambda self, offset, size: (0, size)),
            "ValueError: a body is said to be outside of its record",
        ),
        (break_disk_once, "Input/output error"),
        (lambda found, patch: patch.setattr(module, "BATCH_ROWS", "many"), "TypeError"),
    ],
)
def test_failure_without_damage_is_error(breaks: Any, said: str, mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would miss the rows."""
    with monkeypatch.context() as patch:
        breaks(mixed, patch)
        with pytest.raises(StoreError, match=rf"0\.sqs: unreadable: {said}"):
            read(mixed)
    assert check_segment(mixed).damage == ()
    assert len(read(mixed)) == 30


def test_half_a_character_is_shown_escaped(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    audit_method("fields", lambda self, record: (-1, "half \ud800"))(mixed, monkeypatch)
    assert [row["actor"] for row in read(mixed, "actor", only=[("type", "equal", 200)])] == ["half \\ud800"] * 10


def test_segment_that_was_begun_is_error(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it would be rows, and all of it damage."""
    monkeypatch.setattr(module, "BATCH_BYTES", 100)

    def delete(msg_id: bytes, body: bytes) -> tuple[str, bytes]:
        if body == b"body 9" * 9:
            Path(mixed.path).unlink()
            raise FileNotFoundError(2, "No such file or directory")
        return "", body

    with pytest.raises(StoreError, match="No such file"):
        read(mixed, codec=decoding(delete))
    assert check_segment(mixed).segment.state == "unreadable"
    assert read(mixed, codec=decoding(delete)) == []


def test_stretch_that_was_changed_has_no_records(mixed: SegmentInput) -> None:
    data = Path(mixed.path).read_bytes()

    def rows(stretch: SegmentRange, codec: OpenCodec | None = None) -> int:
        return sum(batch.num_rows for batch in record_batches(mixed, records_schema([mixed], codec), codec, stretch=stretch))

    def change(msg_id: bytes, body: bytes) -> None:
        Path(mixed.path).write_bytes(data[:-1] + b"?")
        raise ValueError("moved")

    offset = scanned(mixed).scan.records.offsets[12]
    stretch = SegmentRange(64, offset, checksum(data, offset))
    assert rows(stretch) == 12
    assert rows(attrs.evolve(stretch, crc32=0)) == rows(SegmentRange(64, len(data) + 1, 0)) == 0
    with pytest.raises(StoreError, match=r"0\.sqs: unreadable: ZeroDivisionError"):
        rows(stretch, decoding(lambda msg_id, body: 1 / 0))
    assert rows(SegmentRange(64, len(data), checksum(data, len(data))), decoding(change)) == 0
    Path(mixed.path).unlink()
    assert rows(stretch) == 0
    Path(mixed.path).mkdir()
    with pytest.raises(StoreError, match=r"0\.sqs: unreadable: "):  # else the next batch would begin behind it
        rows(stretch)


def test_checksum_does_not_depend_on_holes(tmp_path, monkeypatch):
    """Else a copy of a sparse file, or one that has grown, would count as changed."""
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 0)
    sparse, whole = tmp_path / "sparse", tmp_path / "whole"
    with sparse.open("wb") as file:
        file.write(b"begin")
        file.seek(8 * 2**20)
        file.write(b"end")
    whole.write_bytes(sparse.read_bytes())
    with Files().view(sparse) as holes, Files().view(whole) as data:
        for end in (3, 5, 7 * 2**20 + 1, 8 * 2**20 + 2, len(data)):
            assert checksum(holes, end) == checksum(data, end) == checksum(bytes(data), end)
