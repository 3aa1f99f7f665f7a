"""What records of a third party's type hold beside id and body: from the descriptor to what the verbs show."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

import msgstore
from core_support import installed, rows_of, run
from msgstore.contract import (
    BoundRecord,
    BrokenPlugin,
    Capability,
    RecordError,
    RecordField,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
)
from msgstore.files import Files
from msgstore.jobs import inputs
from msgstore.jobs.workers import worker_catalogue
from msgstore.plugins.descriptor_checks import check_descriptor
from msgstore.scan import Described, FormatSet, WholeRecord, describe, scan_file
from msgstore.scan.segment import check_values, fields_as_json, values_of
from support import slow

MSG_ID = bytes(range(16))

PLUGIN = """
import attrs
from msgstore import hookimpl
from msgstore.contract import Capability, RecordError, RecordField, RecordTypeDescriptor
from msgstore_format_v2.message import MessageRecord

@attrs.frozen
class Options:
    priority: int = 0

class Ranked(MessageRecord):
    overhead = 22
    def __init__(self, context):
        super().__init__(context)
        self._head = bytes([context.options.priority])
    def encode(self, ids, bodies): return super().encode(ids, [self._head + body for body in bodies])
    def decode(self, record): return record[22:]
    def body_span(self, offset, size): return offset + 22, offset + size
    def fields(self, record):
        priority = record[21]
        if priority == 13: raise RecordError("unlucky")
        return priority, chr(priority), None

@hookimpl
def msgstore_record_types():
    fields = RecordField("priority", "int", "the higher the sooner"), RecordField("letter", "text"), RecordField("at", "time")
    return [RecordTypeDescriptor(name="ranked", contract=(1, 0), factory=f"{__name__}:Ranked", format="v2", options=Options,
                                 fields=fields, capabilities=[Capability.FIELDS])]
"""


@pytest.fixture
def ranked(tmp_path, monkeypatch):
    """A distribution that brings the record type ``ranked``."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "acme_ranked.py").write_text(PLUGIN)
    with installed(site, "acme-ranked", {"ranked": "acme_ranked"}, monkeypatch):
        worker_catalogue.cache_clear()
        inputs._open.cache_clear()
        yield
    worker_catalogue.cache_clear()
    inputs._open.cache_clear()


def written(directory, *priorities):
    """A store with a message for each priority; options change, the byte does not."""
    for priority in priorities:
        config = directory / f"{priority}.toml"
        binding = f'format = {{ use = "v2", records = {{ ranked = {{ byte = 200, priority = {priority} }} }} }}'
        config.write_text(f'[stores.a]\npath = "store"\nrecord = "ranked"\n{binding}\n')
        run("put", "a", (priority.to_bytes() * 16).hex(), "--config", config, stdin=b"hello")
    return directory / "store"


def test_fields_of_records_are_shown_by_verbs(ranked, tmp_path):
    store = written(tmp_path, 65, 66)
    [segment] = rows_of("scan", store)
    assert segment["records_by_name"] == {"ranked": 2}
    fields = [{"priority": 65, "letter": "A", "at": None}, {"priority": 66, "letter": "B", "at": None}]
    assert [(r["type"], r["record"], r["fields"]) for r in segment["records"]] == [(200, "ranked", one) for one in fields]
    assert [(entry["record"], entry["fields"]) for entry in rows_of("ls", store)] == [("ranked", one) for one in fields]
    [got] = rows_of("get", store, "42" * 16)
    assert (got["record"], got["fields"]) == ("ranked", fields[1])
    assert run("get", "--fields", store, "42" * 16).stdout.splitlines() == [
        "record    ranked", "priority  66", "letter    B", "at        -", "size      5 B", "refs      1",
    ]  # fmt: skip
    assert run("get", store, "42" * 16).stdout == "hello"
    assert "ranked priority=66 letter=B at=-" in run("ls", "--fields", store).stdout
    assert "2 ranked" in run("scan", store).stdout
    assert "records: 2 ranked" in run("map", store).stdout
    assert json.loads((store / "msgstore.json").read_text())["distributions"] == {"record ranked": "acme-ranked"}


def test_known_type_byte_may_be_omitted(ranked, tmp_path):
    store = written(tmp_path, 65)
    run("put", store, "99" * 16, stdin=b"more")  # with the default options
    form = {"use": "v2", "records": {"ranked": {"priority": 67}, "checksum": {}}}
    with msgstore.open_store(store, record="ranked", format=form) as opened, opened.client() as client:
        client.write(MSG_ID, b"")
    assert json.loads((store / "msgstore.json").read_text())["records"] == {"ranked": 200, "checksum": 4}
    for msg_id, priority in (("41" * 16, 65), ("99" * 16, 0), (MSG_ID.hex(), 67)):
        assert rows_of("get", store, msg_id)[0]["fields"]["priority"] == priority
    run("rm", store, "41" * 16)
    run("compact", store, "--all")
    assert {entry["fields"]["priority"] for entry in rows_of("ls", store)} == {0, 67}  # fields move with their records


def test_record_of_an_open_store_is_described(ranked, tmp_path):
    form = {"use": "v2", "records": {"ranked": {"byte": 200, "priority": 68}}}
    with msgstore.open_store(tmp_path / "s", format=form, record="ranked") as store, store.client() as client:
        assert store.entry(MSG_ID) is None
        client.write(MSG_ID, b"hello")
        store.flush()
        assert describe(store.record(store.entry(MSG_ID))).as_text() == {"priority": "68", "letter": "D", "at": "-"}


def test_scan_with_fields_returns_values(ranked, tmp_path):
    store = written(tmp_path, 65, 13)
    form = FormatSet(msgstore.load_catalogue(), {"ranked": 200}).by_name("v2")
    assert form.type_names == {200: "ranked", 3: "message"}
    assert scan_file(Files(), store / "0.sqs", form).values == {}
    report = scan_file(Files(), store / "0.sqs", form, fields=True)
    assert report.values == {64: (65, "A", None), 64 + 27: None}
    assert [one["fields"] for one in report.as_json()["records"]] == [{"priority": 65, "letter": "A", "at": None}, None]
    assert "ranked\n" in run("ls", "--fields", store).stdout


# -- descriptors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"fields": [("time", "time"), ("time", "int")]}, "two fields have the same name: time, time"),
        ({"fields": [("id", "bytes")]}, "a field cannot be named 'id'"),
        ({"fields": [("body", "bytes")]}, "a field cannot be named 'body'"),
        ({"capabilities": [Capability.FIELDS]}, "if, and only if, it claims the capability FIELDS"),
        *(({"fields": [(name, "int")]}, "the name '.*' must be up to 64 lower") for name in ("Time", "1st", "a-b", "")),
        ({"fields": [(3, "int")]}, "the name 3 must be up to 64 lower"),
        *(({"fields": [("time", kind)]}, "'kind' must") for kind in ("date", None)),
        ({"options": attrs.make_class("NamedByte", {"byte": attrs.field(default=3)})}, "cannot be named 'byte'"),
        ({"options": attrs.make_class("Needed", ["actor"])}, "'actor' has no default"),
    ],
)
def test_impossible_descriptor_is_refused(members, reason):
    def make(fields=(), capabilities=None, **members):
        fields = tuple(RecordField(*field) for field in fields)
        capabilities = capabilities or [Capability.FIELDS] * bool(fields)
        return RecordTypeDescriptor(
            name="a", contract=(1, 0), factory="a:b", format="v2", fields=fields, capabilities=capabilities, **members
        )

    with pytest.raises((ValueError, TypeError), match=reason):
        check_descriptor(make(**members))


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ([Capability.FIELDS, Capability.VERBATIM, Capability.TYPED_RECORDS], "its record types have them"),
        ([Capability.FIELDS], "claims the capability VERBATIM"),
        ([Capability.VERBATIM], "if, and only if, it claims the capability FIELDS"),
    ],
)
def test_impossible_format_with_fields_is_refused(capabilities, reason):
    fields = (RecordField("written", "time"),)
    members = {"name": "a", "contract": (1, 0), "factory": "a:b", "extension": ".a", "generation": 1, "fields": fields}
    with pytest.raises(ValueError, match=reason):
        check_descriptor(SegmentFormatDescriptor(capabilities=capabilities, **members))


# -- values ---------------------------------------------------------------------------------------------------------------


def bound(kind: Any, values: object) -> BoundRecord:
    """A record type with these fields, or one that raises this exception."""
    says = mock.Mock(**{"fields.side_effect" if isinstance(values, Exception) else "fields.return_value": values})
    return BoundRecord("mine", 200, says, (RecordField("it", kind),))


@pytest.mark.parametrize(
    ("kind", "value", "as_json", "shown"),
    [
        ("int", -5, -5, "-5"),
        ("float", 0.5, 0.5, "0.5"),
        ("float", float("nan"), "nan", "nan"),
        ("text", "a\x1b[31m\nü", "a\x1b[31m\nü", "a\\x1b[31m\\nü"),
        ("bytes", b"\x00\xff", "00ff", "00ff"),
        ("time", 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z", "2023-11-14T22:13:20.123456789Z"),
        ("time", -1, "1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z"),
        ("time", -(2**63), "1677-09-21T00:12:43.145224192Z", "1677-09-21T00:12:43.145224192Z"),
        ("text", None, None, "-"),
        ("text", RecordError("unreadable"), None, None),
    ],
)
def test_values_are_shown_by_kind(kind, value, as_json, shown):
    record = bound(kind, value if isinstance(value, RecordError) else (value,))
    values = values_of(mock.Mock(), record, b"")
    is_readable = shown is not None
    assert fields_as_json(record, values) == ({"it": as_json} if is_readable else None)
    assert Described("mine", record, values).as_text() == ({"it": shown} if is_readable else {})


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("int", ("1",), "for the field 'it' of kind 'int'"),
        ("int", (True,), "of kind 'int'"),
        ("int", (2**63,), "of kind 'int'"),
        ("text", (b"",), "of kind 'text'"),
        ("text", ("a", "b"), r"it returns ('a', 'b') (tuple), not a tuple with 1 values"),
        ("text", ["a"], "it returns ['a'] (list), not a tuple"),
        ("text", 3, "it returns 3 (int), not a tuple"),
    ],
)
def test_wrong_values_are_refused(kind, values, reason):
    with pytest.raises(TypeError, match=re.escape(reason)):
        check_values((RecordField("it", kind),), values)


def test_two_types_of_one_byte_are_refused(ranked):
    """As a directory may remember them whose msgstore.json was edited."""
    with pytest.raises(BrokenPlugin, match="cannot have type byte 200: another record type is bound to it"):
        FormatSet(msgstore.load_catalogue(), {"checksum": 200, "ranked": 200}).by_name("v2")


def test_record_that_says_nothing_has_no_fields(ranked):
    """Garbage, or of a format without types; a format of one type is not asked."""
    plain = FormatSet(msgstore.load_catalogue())
    old, one_type = plain.by_name("v1"), attrs.evolve(plain.by_name("v2"), format=object())
    typed = FormatSet(msgstore.load_catalogue(), {"ranked": 200}).by_name("v2")
    assert (old.type_names, old.with_fields) == ({}, {})
    for form, name in ((old, None), (typed, None), (one_type, "message")):
        assert describe(WholeRecord(Path("7.sqs"), 64, form, b"anything", b"")) == Described(name)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("priority, priority % 66 and 'A', None", "TypeError: it returns 0 for the field 'letter'"),
        ("(priority, 'A', None) if priority == 65 else 3", "TypeError: it returns 3 (int), not a tuple with 3 values"),
        ("priority, {65: 'A'}[priority], None", "KeyError: 66 (acme_ranked.py:"),
    ],
)
@pytest.mark.parametrize(
    "verb", [["ls", "--fields"], *map(slow, (["ls", "--json"], ["get", "--fields"], ["scan", "--json"]))], ids=" ".join
)
def test_wrong_values_name_file_offset_and_plugin(ranked, tmp_path, verb, values, reason):
    store = written(tmp_path, 65, 66)
    broken = tmp_path / "site-packages" / "acme_ranked.py"
    broken.write_text(broken.read_text().replace("return priority, chr(priority), None", f"return {values}"))
    sys.modules.pop("acme_ranked", None)
    found = run(*verb, store, *(["42" * 16] if verb[0] == "get" else []), code=2)
    offset = 64 + 27  # behind the first
    assert f"{store}/0.sqs at offset {offset}: the record type 'ranked' of acme-ranked 1.0 (entry point" in found.stderr
    assert f"failed in fields: {reason}" in found.stderr
