"""What a directory remembers, and how damage to it shows."""

from __future__ import annotations

import json
import re
import shutil
import zlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_support import DATA, objects, run, store_of
from msgstore import StoreError, StoreMismatch
from msgstore.directory import SETTINGS, Settings, find_segments, read_settings, write_settings
from msgstore.engine.state import clean_shutdown as shutdown
from msgstore.engine.state.clean_shutdown import format_clean, parse_client_refs
from msgstore.files import Files


def test_settings_are_remembered(tmp_path):
    assert read_settings(Files(), tmp_path) is None
    settings = Settings("lmdb", "v2", "checksum", "erlang", {"checksum": 4})
    write_settings(Files(), tmp_path, settings)
    assert read_settings(Files(), tmp_path) == settings
    assert "distributions" not in (tmp_path / SETTINGS).read_text()
    settings = attrs.evolve(settings, distributions={"record audit": "acme-audit-record"})
    write_settings(Files(), tmp_path, settings)
    assert read_settings(Files(), tmp_path) == settings


def test_nested_settings_are_refused_at_any_depth(tmp_path):
    """Reading them and taking their checksum need different depths of the stack."""
    for depth in range(900, 1001):
        (tmp_path / SETTINGS).write_text('{"crc32": 1, "x": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(StoreError, match=SETTINGS):
            read_settings(Files(), tmp_path)


def forge(path, **changes):
    """Settings with a right checksum, whatever is in them."""
    members = {"layout": 1, "index": "ets", "format": "v2", "record": "message", "body": "raw", "records": {}} | changes
    path.write_text(json.dumps({**members, "crc32": zlib.crc32(json.dumps(members, sort_keys=True).encode())}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"records": None}, "'records' must be <class 'dict'>"),
        ({"records": [1]}, "'records' must be <class 'dict'>"),
        ({"records": {"checksum": 300}}, "from 0 to 255"),
        ({"records": {"checksum": -1}}, "from 0 to 255"),
        ({"records": {"checksum": True}}, "from 0 to 255"),
        ({"records": {"checksum": 4.0}}, "from 0 to 255"),
        ({"records": {"checksum": "4"}}, "from 0 to 255"),
        ({"index": None}, "'index' must be <class 'str'>"),
        ({"body": ["raw"]}, "'body' must be <class 'str'>"),
        ({"distributions": ["acme"]}, "'distributions' must"),
        ({"distributions": {"record audit": None}}, "'distributions' must"),
        ({"distributions": {"record audit": "acme; rm -rf ~"}}, "'distributions' must"),
        ({"distributions": {"record audit": "--index-url=http://acme"}}, "'distributions' must"),
        ({"layout": 2}, "newer msgstore"),
        ({"more": 1}, "more"),
    ],
)
def test_settings_with_wrong_member_are_refused(tmp_path, changes, reason):
    forge(tmp_path / SETTINGS)
    assert read_settings(Files(), tmp_path) == Settings()
    forge(tmp_path / SETTINGS, **changes)
    with pytest.raises(StoreError, match=rf"{SETTINGS}: cannot be used: .*{reason}.*\. Restore it from a backup"):
        read_settings(Files(), tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a":' * 100_000, "[]", "null", "{}", "", "\xff", "1" * 10_000, json.dumps({"crc32": "x" * 2**20})],
    ids=lambda text: text[:10],
)
def test_unparsable_settings_are_refused(tmp_path, text):
    place = tmp_path / "store"
    place.mkdir()
    (place / SETTINGS).write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="cannot be used"):
        read_settings(Files(), place)
    shutil.copy(store_of("v2_clean") / "0.sqs", place)
    assert SETTINGS in run("info", place, code=2).stderr
    scanned = run("scan", "--json", place, code=1)
    assert (SETTINGS in scanned.stderr, len(objects(scanned)[0]["records"])) == (True, 212)
    run("salvage", place, tmp_path / "rescued", code=1)


def test_segments_are_found_in_number_order(tmp_path):
    """There is one of each number."""
    for name in ("10.sqs", "9.rdq", "0.sqs", "01.sqs", "x.sqs", "3.rdt", "msgstore.json", "5.sqs.tmp"):
        (tmp_path / name).write_bytes(b"")
    assert [found.path.name for found in find_segments(Files(), tmp_path, {".rdq", ".sqs"})] == ["0.sqs", "9.rdq", "10.sqs"]
    (tmp_path / "9.sqs").write_bytes(b"")
    with pytest.raises(StoreMismatch, match="same number"):
        find_segments(Files(), tmp_path, {".rdq", ".sqs"})


# -- clean.dot: read as RabbitMQ writes it, written as RabbitMQ reads it; fuzzing tries damaged ones --------------------------


@pytest.mark.parametrize("path", sorted(DATA.rglob("clean.dot")), ids=lambda path: str(path.relative_to(DATA)))
def test_real_clean_markers_are_read(path):
    text = path.read_bytes()
    refs = parse_client_refs(text)
    assert len(refs) == text.count(b"<<")
    ours = format_clean(refs, None).splitlines()[0]
    assert ours == text.splitlines()[0]


@given(st.sets(st.binary(max_size=20)), st.none() | st.integers(0, 10**6))
def test_written_client_refs_are_read(refs, boundary):
    assert parse_client_refs(format_clean(refs, boundary)) == refs


@pytest.mark.parametrize(
    ("text", "refs"),
    [
        (b'{client_refs,[<<"h1">>, << 1 , 2 >>]}.\n', {b"h1", b"\x01\x02"}),
        (b"{ client_refs , [ << >> , <<7 , 255>>\n] } .", {b"", b"\x07\xff"}),
        (b"{client_refs,[<<1>>]}", set()),
        (b"{client_refs,[<<1>>", set()),
        (b"{client_refs,[<<1>>}.", set()),
        (b"{client_refs,[", set()),
        (b"{client_refs,[<<1>>]}." + b" " * 2**24, set()),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
def test_client_refs_are_read_if_the_term_ends(text, refs):
    assert parse_client_refs(text) == refs


@pytest.mark.parametrize(
    "refs",
    [b"<<1 2>>", b"<<256>>", b"<<1234>>", b"<<" + b"9" * 5000 + b">>", b"<<1>>,", b",<<1>>", b"<<1>> <<2>>", b"<<1,>>", b"<<1>",
     b'<<"a\\"">>', b"x", b"<<1>>,x"],
    ids=lambda refs: repr(refs[:20]),
)  # fmt: skip
def test_irregular_client_refs_give_none(refs):
    assert parse_client_refs(b"{client_refs,[<<104,49>>," + refs + b"]}.") == set()


def test_patterns_repeat_no_group_possessively():
    """Early Python 3.11, such as the 3.11.2 of Debian 12, forgets what such a group captured: every client was lost."""
    patterns = (shutdown._REFS, shutdown._REF, shutdown._NUMBER)
    assert not [pattern.pattern for pattern in patterns if re.search(rb"\)(?:[*+?]|\{[\d,]*\})\+", pattern.pattern)]
