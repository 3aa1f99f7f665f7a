"""Messages out of stores into files, and into stores out of files that somebody else wrote."""

from __future__ import annotations

import base64
import errno
import json
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import msgstore
from msgstore import StoredBody
from msgstore.contract import BrokenPlugin, RecordField, json_value
from msgstore.files import Files
from msgstore.jobs.messages import store_source
from msgstore.jobs.workers import OpenCodec
from msgstore.scan.segment import Described
from support import ACME_CELLS, DATA, DIRECTORIES, RealDirectory, command, failing, filled, json_lines, json_of, slow

ID = b"\x0f" * 16
PAIRS = [(bytes([number]) * 16, b"%d" % number) for number in range(20)]


def messages_of(*arguments: object, code: int = 0) -> list[dict]:
    return [row for row in json_of("messages", *arguments, code=code) if "body" in row]


def content(path: Path, **keys: object) -> dict[bytes, tuple[bytes, int]]:
    with msgstore.open_store(path, mode="r", **keys) as store, store.client() as client:
        return {entry.msg_id: (client.read(entry.msg_id), entry.references) for entry in store.entries()}


def test_queues_proposes_parquet_only_with_pyarrow(tmp_path, monkeypatch):
    filled(tmp_path)
    assert "NAME.parquet" in command("queues", tmp_path).stdout
    monkeypatch.setattr("msgstore.cli.commands.message_lists.find_spec", lambda _: None)
    assert "NAME.jsonl" in command("queues", tmp_path).stdout


# -- out of a store -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name if name in ("mixed_upgrade", "v2_dirty_torn") else slow(name) for name in DIRECTORIES])
def test_codec_makes_a_payload_and_properties(name):
    real = RealDirectory.load(name)
    rows = messages_of(DATA / "msg-store" / name / "store", "--source-option", "body=erlang", code=None)
    sizes = {m["id"]: m["payload_size"] for m in real.manifest["messages"]}
    found = {row["id"]: row["size"] for row in rows if bytes.fromhex(row["id"]) in real.live}
    assert found == {msg_id.hex(): sizes[msg_id.hex()] for msg_id in real.live}
    known = {"exchange", "routing_key", "properties", "msgstore.references"}
    assert all({*row["properties"]} <= known for row in rows if row["properties"])


def test_codec_that_the_directory_remembers_gives_fields_and_hides_nothing(tmp_path):
    """It has no field for the second body, which is a message all the same. A codec that the user names must read each."""
    broker = next((DATA / "rabbitmq-3.10" / "priority_lazy" / "msg_stores").rglob("msg_store_persistent"))
    with msgstore.open_store(broker, mode="r") as opened:
        message = StoredBody(opened.stored_body(next(iter(opened.entries()))))
    store = filled(tmp_path, [(ID, message), (bytes(16), StoredBody(b"\x83a\x05"))], body="erlang")
    named = json_of("messages", store, "--source-option", "body=erlang", code=1)
    read = [row for row in named if "body" in row]
    other, first = sorted(messages_of(store), key=lambda row: row["id"])
    assert [first] == read
    assert first["properties"]["exchange"] is not None
    assert (base64.b64decode(other["body"]), other["properties"]) == (b"\x83a\x05", None)


@pytest.mark.parametrize("fails", [False, True])
def test_body_of_a_client_stays_whole_beside_the_fields_of_its_codec(fails, tmp_path, monkeypatch):
    """Even if the codec has a field ``payload``, a part of the body, or fails on the fields."""

    def read(msg_id: bytes, stored: bytes) -> tuple[bytes, bytes]:
        if fails:
            raise BrokenPlugin("boom")
        return b"tenant", b"rest"

    fields = (RecordField("tenant", "bytes"), RecordField("payload", "bytes"))
    monkeypatch.setattr(store_source, "open_codec", lambda _: OpenCodec("parted", fields, read))
    store = filled(tmp_path / "store", [(ID, b"tenant and the rest")])
    (row,) = messages_of(store)
    assert base64.b64decode(row["body"]) == b"tenant and the rest"
    assert row["properties"] == (None if fails else {"tenant": json_value(b"tenant")})


def test_fields_of_records_are_properties(tmp_path):
    store = filled(tmp_path / "store", **ACME_CELLS["ets-v2-audit"].keys)
    rows = messages_of(store)
    assert {(row["properties"]["actor"], row["body"]) for row in rows} == {("tests", base64.b64encode(b"body").decode())}
    assert all(row["properties"]["time"] > "2020" for row in rows)


def test_fields_of_a_format_are_properties(tmp_path):
    """In every environment that tests all cells: acme-stamped-format is installed there."""
    pytest.importorskip("acme_stamped_format")
    filled(tmp_path / "store", [(ID, b"body")], format="stamped")
    error = command("migrate", tmp_path / "store", "--to", "v2", code=2).stderr
    assert f"msgstore migrate {tmp_path / 'store'} DEST --to v2" in error
    copied = command("migrate", tmp_path / "store", tmp_path / "copy", "--to", "v2").stderr
    assert "written. To keep them: --to stamped" in copied
    assert messages_of(tmp_path / "store")[0]["properties"]["written"] > "2020"


@pytest.mark.parametrize("damaged", [0, 7, 19])
def test_damaged_message_costs_only_itself(damaged, tmp_path):
    """Its neighbours are read together with it."""
    store = filled(tmp_path / "store", PAIRS, record="checksum")
    segment = store / "0.sqs"
    data = bytearray(segment.read_bytes())
    data[data.index(PAIRS[damaged][1], data.index(PAIRS[damaged][0], 64))] ^= 1
    segment.write_bytes(data)
    rows = json_of("messages", store, code=1)
    assert [row["id"] for row in rows if "body" in row] == [msg_id.hex() for msg_id, _ in PAIRS if msg_id != PAIRS[damaged][0]]


@pytest.mark.parametrize("saved", ["ets", "lmdb"])
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
def test_messages_that_only_the_index_has_are_damage(lose, saved, tmp_path):
    """They are selected and damaged, once: nothing else says that they were there."""
    store = tmp_path / "store"
    for pairs in (PAIRS[:8], PAIRS[8:13], PAIRS[13:]):
        filled(store, pairs, index=saved, format="v2", file_size_limit=200)
    segments = sorted(store.glob("*.sqs"))
    lost = {row["id"] for row in messages_of(store) if row["origin"]["file"] == segments[1].name}
    assert 0 < len(lost) < len(PAIRS)
    lose(segments[1])
    rows = json_of("messages", store, code=1)
    assert {row["id"] for row in rows if "body" in row} == {msg_id.hex() for msg_id, _ in PAIRS} - lost
    assert sum(row["messages"] for row in rows if row.get("kind") == "damage") == len(lost)
    reasons = [row["reason"] for row in json_of("queues", store, code=1) if row.get("messages") and "reason" in row]
    assert any(reason.startswith(f"{len(lost)} messages of the index are in no segment") for reason in reasons)
    *_, summary = json_of("convert", store, tmp_path / "out.jsonl", code=1)
    counts = {name: summary[name] for name in ("selected", "written", "refused", "damaged")}
    assert counts == {"selected": 20, "written": 20 - len(lost), "refused": 0, "damaged": len(lost)}


def test_chosen_columns(tmp_path):
    store = filled(tmp_path / "store", PAIRS)
    command("convert", store, tmp_path / "ids.parquet", "--sink-option", "columns=id,size,origin")
    table = pq.read_table(tmp_path / "ids.parquet")
    assert table.column_names == ["id", "size", "origin"]
    assert table["id"].to_pylist() == [msg_id.hex() for msg_id, _ in PAIRS]
    told = command("convert", store, tmp_path / "no.parquet", "--sink-option", "columns=id,sise", code=2).stderr
    assert "there is no column 'sise'; there are: system, vhost" in told
    command("convert", store, tmp_path / "no.parquet", "--sink-option", "columns=id, size")  # nothing hinders it
    assert (
        "there must be a column 'body'; the columns are: id, size, origin"
        in command("messages", tmp_path / "ids.parquet", code=2).output
    )


def test_body_that_the_codec_cannot_read_is_damage(tmp_path):
    """Not the stored bytes, under the name of a body."""
    zipped = filled(tmp_path / "zipped", [(b"z" * 16, b"body")], body="zstd")
    filled(zipped, [(b"s" * 16, StoredBody(b"no zstd"))], body="zstd")
    rows = json_of("convert", zipped, tmp_path / "x.jsonl", "--source-option", "body=zstd", code=1)
    assert (rows[-1]["written"], rows[-1]["damaged"]) == (1, 1)


def test_payload_of_a_record_type_is_a_property(tmp_path, monkeypatch):
    fields = (RecordField("actor", "text"), RecordField("payload", "bytes"))
    store = filled(tmp_path / "store", **ACME_CELLS["ets-v2-audit"].keys)
    described = Described("audit", attrs.make_class("Bound", ["fields"])(fields), ("me", b"of the record"))
    monkeypatch.setattr(store_source, "describe", lambda _: described)
    rows = messages_of(store, "--limit", "1")
    assert base64.b64decode(rows[0]["body"]) == b"body"
    assert base64.b64decode(rows[0]["properties"]["payload"]["$bytes"]) == b"of the record"


@pytest.mark.parametrize("option", ["--source-option", "--sink-option"])
@pytest.mark.parametrize("value", ["body={'use':'aes-gcm','key':'5e5e5e5e'}", "body:5e5e5e5e", "body={5e5e5e5e"])
def test_no_error_shows_a_key(option, value, tmp_path):
    store = filled(tmp_path / "store", PAIRS)
    assert "5e5e" not in command("convert", store, tmp_path / "to", "--sink", "store", option, value, code=2).output
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


# -- into a store -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string_view(), pa.string()])
def test_parquet_with_views_and_interleaved_queues(kind, tmp_path):
    columns = {"queue": pa.array(["a", "b", "a", None], kind), "system": [None] * 4, "body": [b"1", b"2", b"3", b"4"]}
    pq.write_table(pa.table(columns), path := tmp_path / "m.parquet")
    rows = messages_of(path)
    assert [(row["system"], row["queue"], base64.b64decode(row["body"])) for row in rows] == [
        ("msgstore", "a", b"1"), ("msgstore", "a", b"3"), ("msgstore", "b", b"2"), ("msgstore", None, b"4"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.binary(16), pa.binary(), pa.string()])
def test_parquet_with_ids_and_bodies(kind, tmp_path):
    ids = [msg_id.hex() if kind == pa.string() else msg_id for msg_id, _ in PAIRS]
    bodies = [body for _, body in PAIRS]
    pq.write_table(pa.table({"id": pa.array(ids, kind), "body": bodies, "references": bodies}), tmp_path / "m.parquet")
    options = ["--sink-option", "index=lmdb", "--sink-option", "record=checksum"]
    arguments = ["convert", tmp_path / "m.parquet", tmp_path / "store", "--sink", "store", *options]
    assert "a message does not have the columns references. Leave them out" in command(*arguments, code=2).stderr
    command(*arguments, "--source-option", "ignore_others=true")
    assert content(tmp_path / "store", index="lmdb") == {msg_id: (body, 1) for msg_id, body in PAIRS}


def test_lines_with_ids_and_texts(tmp_path):
    lines = [{"id": ID.hex(), "text": "Grüße"}, {"id": "ab" * 16, "body": base64.b64encode(b"x").decode()}]
    (path := tmp_path / "m.jsonl").write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    command("convert", path, tmp_path / "store", "--sink", "store")
    assert content(tmp_path / "store") == {ID: ("Grüße".encode(), 1), b"\xab" * 16: (b"x", 1)}


def test_other_members_are_damage_unless_they_are_ignored(tmp_path):
    (path := tmp_path / "m.jsonl").write_text('{"text":null}\n')
    assert "its 'text' is None" in command("messages", path, code=1).stdout
    path.write_text(f'{{"id":"{ID.hex()}","text":"x","colour":1}}\n')
    assert "'colour' is no member of a message" in command("messages", path, code=1).stdout
    assert len(messages_of(path, "--source-option", "ignore_others=true")) == 1


def test_equal_messages_are_stored_once(tmp_path):
    """In one batch, too. Another body under an id is refused."""
    rows = [*PAIRS, *PAIRS[:5], (PAIRS[0][0], b"other")]
    path = json_lines(tmp_path / "m.jsonl", ({"id": msg_id.hex(), "text": body.decode()} for msg_id, body in rows))
    summary = json_of("convert", path, tmp_path / "store", "--sink", "store", code=1)[-1]
    assert (summary["selected"], summary["written"], summary["refused"]) == (26, 25, 1)
    assert content(tmp_path / "store") == {msg_id: (body, 1 + (n < 5)) for n, (msg_id, body) in enumerate(PAIRS)}
    assert sum(path.read_bytes().count(PAIRS[3][0]) for path in (tmp_path / "store").glob("*.sqs")) == 1


@pytest.mark.parametrize("name", ["m.jsonl", "m.parquet"])
def test_equal_rows_without_a_place_are_several_messages(name, tmp_path):
    path, origins = tmp_path / name, [{}, {"origin": None}, {"origin": {}}, {"origin": {"file": None}}]
    if name == "m.jsonl":
        json_lines(path, ({"text": "a"} | origin for origin in origins))
    else:
        pq.write_table(pa.table({"system": ["s"] * 4, "queue": ["q"] * 4, "body": [b"a"] * 4}), path)
    command("convert", path, tmp_path / "store", "--sink", "store")
    assert list(content(tmp_path / "store").values()) == [(b"a", 1)] * 4


def test_record_type_of_a_third_party_is_bound(tmp_path):
    store = filled(tmp_path / "store", PAIRS)
    bound = ["--sink-option", 'records={"audit":200}', "--sink-option", "record=audit"]
    command("convert", store, tmp_path / "copy", "--sink", "store", *bound)
    assert all(row["properties"]["time"] > "2020" for row in messages_of(tmp_path / "copy"))


@pytest.mark.parametrize("sink", ["store", "parquet"])
def test_full_disk_names_the_destination_and_what_is_kept(sink, tmp_path, monkeypatch):
    store = filled(tmp_path / "store", PAIRS)
    monkeypatch.setattr(Files, "pwrite", failing(errno.ENOSPC))
    told = command("convert", store, tmp_path / "to", "--sink", sink, code=2).stderr
    assert told.startswith(f"msgstore: {tmp_path / 'to'}: No space left on device. Nothing was kept; mend the cause")
    assert "continues" not in told


# -- the former verbs ---------------------------------------------------------------------------------------------------------


def test_export_and_import_are_conversions(tmp_path):
    store = filled(tmp_path / "store", PAIRS)
    told = command("export", store, tmp_path / "rows").stderr
    assert "deprecated. Use convert --sink parquet" in told
    command("convert", store, tmp_path / "same.parquet")
    assert pq.read_table(tmp_path / "rows") == pq.read_table(tmp_path / "same.parquet")
    told = command("import", tmp_path / "rows", tmp_path / "copy", "--format", "v1", "--index", "lmdb").stderr
    assert "deprecated. Use convert --sink store" in told
    assert content(tmp_path / "copy", index="lmdb") == content(store)
    assert list((tmp_path / "copy").glob("*.rdq"))
    key = json.dumps({"use": "aes-gcm", "key": "ab" * 16})
    command("import", tmp_path / "rows", tmp_path / "secret", "--body", key)
    command("export", tmp_path / "secret", tmp_path / "plain", "--body", key, "--columns", "id, body")
    assert pq.read_table(tmp_path / "plain") == pq.read_table(tmp_path / "rows", columns=["id", "body"])
