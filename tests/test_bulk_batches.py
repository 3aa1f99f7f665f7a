"""Segments as Arrow record batches: the same records, bodies and damage that a scan and a decode give, whatever the format."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import attrs
import pytest

import foreign_ledger
import msgstore
from msgstore.contract import ConfigError, RecordField, StoreError
from msgstore.files import Files
from msgstore.jobs.columns import batches as module
from msgstore.jobs.inputs import SegmentInput, find_inputs, open_input
from msgstore.jobs.reading.segment_check import SegmentRange, checksum, judge
from msgstore.jobs.reports import SegmentStock
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from support import DATA, catalogue, filled, needs_foreign, records_in

pa = pytest.importorskip("pyarrow")

from msgstore.jobs.columns.batches import Wanted, damage_batch, record_batches, segments_batch  # noqa: E402
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS, project, records_schema  # noqa: E402
from msgstore.jobs.workers import OpenCodec, open_codec  # noqa: E402

ALL = find_inputs(catalogue(), [DATA]).inputs
WITH_BODIES = find_inputs(catalogue(), [DATA / "msg-store" / "*" / "store"]).inputs


def read(found: SegmentInput, *columns: str, codec: Any = None, **only: Any) -> list[dict[str, Any]]:
    schema = records_schema([found], codec)
    names = columns or tuple(schema.names)
    rows: list[dict[str, Any]] = []
    for batch in record_batches(found, project(schema, names), Wanted(names, **only), codec):
        assert batch.schema == project(schema, names)
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def scanned(found: SegmentInput) -> SegmentReport:
    return scan_file(Files(), Path(found.path), open_input(found))


@pytest.mark.parametrize("found", ALL, ids=lambda found: str(Path(found.path).relative_to(DATA)))
def test_real_segments_record_by_record(found: SegmentInput) -> None:
    assert read(found) == records_in(found)
    judgement = judge(found)
    assert list(judgement.damage) == damaged_spans(scanned(found))
    check_sum(found, damaged=bool(judgement.damage))


def check_sum(found: SegmentInput, *, damaged: bool) -> None:
    [row] = segments_batch([found]).to_pylist()
    parts = ("header", "live", "dead", "holes", "duplicates", "damaged", "other")
    assert sum(row[part] for part in parts) == row["size"] == Path(found.path).stat().st_size
    assert bool(row["damaged"]) == damaged


def some_bodies(count: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 7, 100, 5000])) for _ in range(count)]


def written(path: Path, count: int = 500, **keys: Any) -> tuple[SegmentInput, ...]:
    with msgstore.open_store(path, file_size_limit=100_000, **keys) as store, store.client("c") as client:
        for n, body in enumerate(some_bodies(count)):
            client.write(n.to_bytes(16), body)
            if n % 50 == 0:
                store.flush()
    return inputs_in(path)


AUDIT = {"record": "audit", "format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "tests"}}}}


@pytest.mark.parametrize(
    "keys",
    [{"format": "v1"}, {}, {"record": "checksum"}, AUDIT, pytest.param({"format": "ledger"}, marks=needs_foreign)],
    ids=["v1", "v2", "checksum", "audit", "ledger"],
)
def test_every_format_and_record_type(keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 64)
    monkeypatch.setattr(module, "BATCH_BYTES", 20_000)
    inputs = written(tmp_path / "store", **keys)
    assert len(inputs) > 3
    bodies: dict[bytes, bytes] = {}
    for found in inputs:
        rows = read(found)
        assert [{name: row[name] for name in RECORD.names} for row in rows] == records_in(found)
        check_sum(found, damaged=False)
        bodies |= {row["id"]: row["body"] for row in rows}
    assert bodies == {n.to_bytes(16): body for n, body in enumerate(some_bodies(500))}


@needs_foreign
def test_bodies_behind_keys_of_any_length(tmp_path: Path) -> None:
    """Somebody else's ledger: how much stands in front of a body differs from one record to the next."""
    messages = {b"k" * (1 + n % 300): b"body %d" % n for n in range(300)}
    (tmp_path / "0.ledger").write_bytes(foreign_ledger.ledger(messages.items()))
    [found] = inputs_in(tmp_path)
    rows = read(found)
    assert rows == records_in(found)
    assert {row["id"]: row["body"] for row in rows} == {foreign_ledger.message_id(k): body for k, body in messages.items()}


BOUND = (("audit", 200), ("checksum", 4))


def v2(*bound: tuple[str, int]) -> Any:
    """The format with these record types."""
    return open_input(SegmentInput(0, "", "", "v2", 0, bound))


def inputs_in(*paths: Path) -> tuple[SegmentInput, ...]:
    return find_inputs(catalogue(), paths).inputs


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


def test_several_types_in_one_segment(mixed: SegmentInput) -> None:
    rows = read(mixed)
    assert [{name: row[name] for name in RECORD.names} for row in rows] == records_in(mixed)
    assert [row["type"] for row in rows] == [3, 4, 200] * 10
    assert {(row["type"], row["actor"], row["time"] is None) for row in rows} == {
        (3, None, True),
        (4, None, True),
        (200, "", False),
    }


def test_columns_and_rows_that_are_asked_for(mixed: SegmentInput) -> None:
    everything = read(mixed)
    assert read(mixed, "id", "actor") == [{"id": row["id"], "actor": row["actor"]} for row in everything]
    some = frozenset({(4).to_bytes(16), (5).to_bytes(16), b"x" * 16, b"short"})
    assert read(mixed, ids=some) == [everything[4], everything[5]]
    assert read(mixed, types=frozenset({200, 99})) == [row for row in everything if row["type"] == 200]
    assert read(mixed, types=frozenset({200, 300, -56, 2**15 - 1})) == [row for row in everything if row["type"] == 200]
    assert read(mixed, types=frozenset({256 + 200, -(2**15)})) == []
    assert read(mixed, "body", ids=some, types=frozenset({4})) == [{"body": everything[4]["body"]}]
    assert read(mixed, ids=frozenset()) == []
    with pytest.raises(ConfigError, match="no column 'actors'; there are: store"):
        project(records_schema([mixed]), ["actors"])


def test_a_codec_that_is_not_plain_gives_the_payload(tmp_path: Path) -> None:
    bodies = {n.to_bytes(16): b"text %d " % n * n for n in range(20)}
    found = find_inputs(catalogue(), [filled(tmp_path, bodies.items(), body="zstd")])
    assert found.codecs == ("zstd",)
    [one] = found.inputs
    assert {row["id"]: row["payload"] for row in read(one, "id", "payload", codec=open_codec("zstd"))} == bodies
    assert all(row["body"] != row["payload"] for row in read(one, codec=open_codec("zstd")))
    assert records_schema([one], open_codec("raw")) == records_schema([one]) == RECORD


def test_a_body_that_a_codec_did_not_write_has_no_payload(tmp_path: Path) -> None:
    [one] = inputs_in(filled(tmp_path, [(b"i" * 16, b"not compressed")]))
    assert read(one, "body", "payload", codec=open_codec("zstd")) == [{"body": b"not compressed", "payload": None}]


def decoding(read_body: Any) -> OpenCodec:
    return OpenCodec("test", (RecordField("note", "text"), RecordField("payload", "bytes")), read_body)


def sizes_of_batches(found: SegmentInput, *columns: str, codec: OpenCodec) -> list[int]:
    schema = project(records_schema([found], codec), columns)
    return [batch.num_rows for batch in record_batches(found, schema, Wanted(columns), codec)]


def test_what_a_codec_makes_of_small_bodies_is_cut_into_batches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [bytes(1500)] * 7 + [bytes(50_000), b"", b""] + [bytes(10)] * 20
    messages = [(n.to_bytes(16), body) for n, body in enumerate(bodies)]
    [one] = inputs_in(filled(tmp_path, messages, body="zstd", **AUDIT))
    everything = read(one, codec=open_codec("zstd"))
    assert [row["payload"] for row in everything] == bodies
    monkeypatch.setattr(module, "BATCH_BYTES", 4000)
    assert read(one, codec=open_codec("zstd")) == everything
    assert {row["actor"] for row in everything} == {"tests"}
    assert sizes_of_batches(one, "body", codec=open_codec("zstd")) == [30]
    assert sizes_of_batches(one, "payload", codec=open_codec("zstd")) == [2, 2, 2, 1, 1, 22]


def test_text_and_columns_that_nobody_asks_for(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = decoding(lambda msg_id, body: ("ü" * 100, bytes(300)) if body else None)
    monkeypatch.setattr(module, "BATCH_BYTES", 10_000)
    assert sizes_of_batches(mixed, "note", "payload", codec=codec) == [26, 4]  # the first body is empty
    assert len(sizes_of_batches(mixed, "note", codec=codec)) == 1
    assert [row["note"] for row in read(mixed, "note", codec=codec)] == [None, *["ü" * 100] * 29]


@pytest.mark.parametrize("read_whole", [0, 2**30])
def test_a_decoded_value_larger_than_a_value_can_be_is_an_error(
    read_whole: int, mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgstore.files.READ_WHOLE", read_whole)
    monkeypatch.setattr(module, "MAX_VALUE", 199)
    codec = decoding(lambda msg_id, body: ("ü" * (100 if body == b"body 9" * 9 else 1), bytes(199)))
    offset = scanned(mixed).scan.records.offsets[9]
    with pytest.raises(StoreError) as caught:
        read(mixed, codec=codec)
    assert str(caught.value) == (
        f"{mixed.path}: at offset {offset}: the body codec 'test' makes 200 bytes of 'note', and a value of a column has 199 "
        "at most. Read without this column"
    )
    assert [row["payload"] for row in read(mixed, "payload", codec=codec)] == [bytes(199)] * 30


def test_what_damage_does_not_tell_of_is_an_error(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(mixed).damage == ()
    with pytest.raises(StoreError, match=r"0\.sqs: unreadable: ZeroDivisionError: division by zero"):
        read(mixed, codec=decoding(lambda msg_id, body: 1 / 0))
    for step in ("spans", "take_bodies", "_column"):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, raising(MemoryError()))
            with pytest.raises(StoreError, match=r"0\.sqs: unreadable: MemoryError"):
                read(mixed)
    view, once = Files.view, iter([raising(OSError(5, "Input/output error"))])
    monkeypatch.setattr(Files, "view", lambda self, path: next(once, view)(self, path))
    with pytest.raises(StoreError, match=r"0\.sqs: unreadable: Input/output error"):
        read(mixed)
    assert len(read(mixed)) == 30


def raising(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_segment_that_was_begun_is_not_dropped(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it would be rows, and all of it damage."""
    monkeypatch.setattr(module, "BATCH_BYTES", 100)

    def delete(msg_id: bytes, body: bytes) -> tuple[str, bytes]:
        if body == b"body 9" * 9:
            Path(mixed.path).unlink()
            raise FileNotFoundError(2, "No such file or directory")
        return "", body

    with pytest.raises(StoreError, match="No such file"):
        read(mixed, codec=decoding(delete))
    assert judge(mixed).stock.state == "unreadable"
    assert read(mixed, codec=decoding(delete)) == []


def test_a_stretch_that_was_changed_has_no_records_and_is_no_error(mixed: SegmentInput) -> None:
    data = Path(mixed.path).read_bytes()

    def rows(stretch: SegmentRange, codec: OpenCodec | None = None) -> int:
        schema = records_schema([mixed], codec)
        batches = record_batches(mixed, schema, Wanted(tuple(schema.names)), codec, stretch)
        return sum(batch.num_rows for batch in batches)

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


def test_more_of_a_field_than_a_column_can_have(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    array = pa.array

    def several_chunks(values: Any, kind: Any) -> Any:
        return pa.chunked_array([array(values, kind)]) if kind == pa.string() else array(values, kind)

    monkeypatch.setattr(pa, "array", several_chunks)
    with pytest.raises(StoreError, match=r"0\.sqs: its records have 2147483647 bytes of 'actor', or more\. Read without"):
        read(mixed, "id", "actor")
    assert len(read(mixed, "id", "time")) == 30


def test_bodies_beside_large_gaps_and_large_bodies_are_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    form = v2().format
    ids = [n.to_bytes(16) for n in range(6)]
    data = form.header + form.encode(ids[:3], [b"a", b"b" * 5000, b"c"])[0]
    data += struct.pack(">BI", 2, 3000) + bytes(2995) + form.encode(ids[3:], [b"", b"e", b"f"])[0]
    (tmp_path / "0.sqs").write_bytes(data)
    [found] = inputs_in(tmp_path)
    schema = project(records_schema([found]), ["body"])
    sizes = [batch.num_rows for batch in record_batches(found, schema, Wanted(("body",)))]
    assert sizes == [1, 1, 1, 3]
    assert read(found) == records_in(found)


def test_a_body_larger_than_a_value_can_be_is_null(tmp_path: Path) -> None:
    """The file has no blocks but the first and the last."""
    form = v2().format
    size = 2**31 + 21
    path = tmp_path / "0.sqs"
    path.write_bytes(form.header + struct.pack(">BI16s", 3, size, b"L" * 16))
    os.truncate(path, 64 + size)
    with path.open("ab") as file:
        file.write(form.encode([b"S" * 16], [b"small"])[0])
    [found] = inputs_in(tmp_path)
    assert [(row["id"], row["size"], row["body"]) for row in read(found, "id", "size", "body")] == [
        (b"L" * 16, size, None),
        (b"S" * 16, 26, b"small"),
    ]


def test_a_mapped_segment_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 0)
    [found, *_] = written(tmp_path / "store")
    schema = records_schema([found])
    everything = read(found)
    batches: Any = record_batches(found, schema, Wanted(tuple(schema.names)))
    first = next(batches)
    batches.close()  # the mapping cannot be closed while anything points into it
    assert first.to_pylist() == everything[: first.num_rows] == records_in(found)[: first.num_rows]


def damaged(tmp_path: Path) -> list[SegmentInput]:
    """A segment each: bad header, flipped size, torn, empty, deleted since it was listed, checksum mismatch."""
    form = v2(("checksum", 4))
    data = form.format.header + form.format.encode([n.to_bytes(16) for n in range(9)], [b"body"] * 9)[0]
    check, _ = form.format._types[4].encode([b"c" * 16], [b"checked"])  # type: ignore[attr-defined]
    for number, content in enumerate(
        [
            b"\xff" + data[1:],
            data[:65] + b"\0" + data[66:68] + b"\0" + data[69:],
            data[:-3],
            b"",
            data,
            data + check[:-1] + b"?" + check,
        ]
    ):
        (tmp_path / f"{number}.sqs").write_bytes(content)
    inputs = find_inputs(catalogue(), [tmp_path], records={"checksum": 4}).inputs
    (tmp_path / "4.sqs").unlink()
    return list(inputs)


def test_damage_and_segments(tmp_path: Path) -> None:
    inputs = damaged(tmp_path)
    rows = damage_batch(inputs).to_pylist()
    size = 64 + 9 * 25
    assert [(row["file"], row["offset"], row["length"], row["reason"]) for row in rows] == [
        ("5.sqs", size, 32, "checksum_mismatch"),
        ("4.sqs", 0, size, "unreadable: No such file or directory"),
        ("3.sqs", 0, 0, "torn"),
        ("2.sqs", 64 + 8 * 25, 22, "torn"),
        ("1.sqs", 64, 9 * 25, "invalid_message_size"),
        ("0.sqs", 0, 64, "bad_magic"),
    ]
    assert {row["store"] for row in rows} == {str(tmp_path)}
    states = {row["file"]: row["state"] for row in segments_batch(inputs).to_pylist()}
    assert states == dict(
        zip((f"{n}.sqs" for n in range(6)), ["clean", "corrupt", "torn", "torn", "unreadable", "clean"], strict=True)
    )
    assert [len(read(found)) for found in inputs] == [10, 0, 0, 8, 0, 9]
    gone = next(found for found in inputs if found.path.endswith("4.sqs"))
    assert judge(gone).stock == SegmentStock(gone.path, "v2", size, "unreadable", damaged=size, quarantined=True)


def test_no_rows_are_a_batch_too() -> None:
    assert damage_batch([]).schema == DAMAGE
    assert segments_batch([]).schema == SEGMENTS


def test_a_plugin_that_raises_is_damage_and_not_a_failed_job(mixed: SegmentInput, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = open_input(mixed).with_fields[200].record
    monkeypatch.setattr(type(audit), "fields", lambda self, record: ("tomorrow", "ü"))
    assert judge(mixed).stock.state == "unreadable"
    assert [spot.reason for spot in judge(mixed).damage] == [
        (
            "unreadable: BrokenPlugin: at offset 116: "
            "the record type 'audit' returns 'tomorrow' for its field 'time' of kind 'time'"
        )
    ]
    assert read(mixed) == read(mixed, "actor") == []
    assert len(read(mixed, "id", "body")) == 30
    monkeypatch.setattr(type(audit), "fields", lambda self, record: (-1, "half \ud800"))
    assert [row["actor"] for row in read(mixed, "actor", types=frozenset({200}))] == ["half \\ud800"] * 10
    monkeypatch.setattr(type(audit), "body_span", lambda self, offset, size: (0, size))
    said = ["unreadable: ValueError: at offset 116: the body is said to be outside of its record"]
    assert [spot.reason for spot in judge(mixed).damage] == said
    assert read(mixed, "body") == []
    scan = scanned(mixed).scan
    scan.records.types.pop()
    monkeypatch.setattr(type(open_input(mixed).format), "scan", lambda *_, **__: scan)
    [spot] = judge(mixed).damage
    assert spot.reason.startswith("unreadable: BrokenPlugin: the segment format 'v2' of msgstore-format-v2 ")
    assert "failed in scan: ValueError: the scan returns records in columns of different lengths" in spot.reason
    assert read(mixed, "id") == []
    monkeypatch.setattr(type(open_input(mixed).format), "scan", lambda *_, **__: 1 / 0)
    assert "failed in scan: ZeroDivisionError: division by zero" in judge(mixed).damage[0].reason
    assert read(mixed, "id") == []


@pytest.mark.parametrize("end", [1, -1])
def test_a_constant_frame_that_is_none_is_damage(end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [found, *_] = written(tmp_path / "store")
    message = type(open_input(found).format._types[3])  # type: ignore[attr-defined]
    monkeypatch.setattr(message, "body_span", lambda self, offset, size: (offset + 21, offset + 22 + size // end))
    assert [spot.reason for spot in judge(found).damage] == [
        "unreadable: ValueError: at offset 64: the body is said to be outside of its record"
    ]
    assert read(found, "body") == []
    assert len(read(found, "id")) > 50
    monkeypatch.setattr(message, "body_span", raising(ZeroDivisionError("frame")))
    assert [spot.reason for spot in judge(found).damage] == ["unreadable: ZeroDivisionError: frame"]
    assert read(found, "body") == []


def test_columns_of_one_name_are_one_kind(tmp_path: Path) -> None:
    def known(name: str) -> SegmentInput:
        return SegmentInput(0, "s", "s/0.sqs", "v2", 0, (("audit", 200), (name, 201)))

    form = v2(("audit", 200))
    bound = form.with_fields[200]
    fields = {
        "same": attrs.evolve(bound, name="same", byte=201),
        "other": attrs.evolve(
            bound, name="other", byte=201, fields=(bound.fields[0], attrs.evolve(bound.fields[1], kind="bytes"))
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "msgstore.jobs.columns.schemas.open_input",
            lambda found: attrs.evolve(form, with_fields={200: bound, 201: fields[found.records[1][0]]}),
        )
        assert records_schema([known("same")]).names == [*RECORD.names, "time", "actor"]
        with pytest.raises(
            ConfigError, match="record type 'audit' has a field 'actor' of kind text, the record type 'other' one of"
        ):
            records_schema([known("other")])
