"""The codec, and what is in a message: alone, on segments that RabbitMQ wrote, and against bytes that nobody wrote."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import msgstore
from fuzzing.mutations import Member, mutated
from msgstore.contract import MessageTooLarge, NoOptions, StoredBody
from msgstore.scan import FormatSet
from msgstore.testing import BodyCodecTests, Subject
from msgstore_erlang_body import plugin
from msgstore_erlang_body.message import read_message
from msgstore_erlang_body.properties import read_header

DATA = Path(__file__).parents[3] / "tests" / "data"
BROKERS = sorted((DATA / "rabbitmq-3.10").glob("*/manifest.json"))
STORES = [path for path in sorted((DATA / "msg-store").glob("*/manifest.json")) if path.parent.name != "v2_corrupt"]
(DESCRIPTOR,) = plugin.msgstore_body_codecs()
CODEC = DESCRIPTOR.load_factory()(NoOptions())
ID = bytes(16)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="session")
def stored_in():
    """``stored_in(directory)``: every stored body of the segments beneath a directory of ``tests/data``."""
    if not DATA.is_dir():
        pytest.skip("real segments are in the repository only")
    for name in ("msgstore_format_v1", "msgstore_format_v2"):
        pytest.importorskip(name, reason="real segments are of formats v1 and v2")
    formats = FormatSet(msgstore.load_catalogue())

    def bodies(directory):
        found = []
        for path in sorted(path for path in (DATA / directory).rglob("*") if path.suffix in (".rdq", ".sqs")):
            form, data = formats.by_extension(path.suffix).format, path.read_bytes()
            for columns in (form.scan(data).records, form.scan(data).duplicates):
                found += [form.decode(msg_id, data[at : at + size]) for msg_id, at, size, _ in columns.rows()]
        return found

    return bodies


def is_valid(stored):
    return CODEC.is_valid(ID, stored)


@given(st.lists(st.binary()))
def test_bytes_come_back(bodies):
    stored = [CODEC.encode(ID, body) for body in bodies]
    decoded = [CODEC.decode(ID, body) for body in stored]
    assert decoded == bodies
    assert [type(body) for body in decoded] == [bytes] * len(bodies)
    assert all(map(is_valid, stored))


def test_stored_bytes_are_external_terms():
    assert [CODEC.encode(ID, body) for body in (b"", b"hello")] == [b"\x83m\0\0\0\0", b"\x83m\0\0\0\5hello"]
    assert CODEC.decode(ID, b"\x83m\0\0\0\2hi!!!") == b"hi"


@given(st.one_of(st.binary(), st.binary().map(lambda tail: b"\x83m" + tail), st.just(b"\x83h\2a\1j")))
def test_body_that_is_no_binary_stays_as_stored(stored):
    read = CODEC.decode(ID, stored)
    if type(read) is StoredBody:
        assert read == stored
        assert CODEC.encode(ID, read) == stored
    else:
        assert stored.startswith(b"\x83m" + len(read).to_bytes(4) + read)


def test_body_that_no_term_holds_is_refused():
    class Huge(bytes):
        def __len__(self):
            return 2**32

    with pytest.raises(MessageTooLarge, match="4294967296"):
        CODEC.encode(ID, Huge())


@pytest.mark.parametrize("manifest", STORES, ids=lambda path: path.parent.name)
def test_bodies_of_real_store_are_binaries(stored_in, manifest):
    """A binary is nothing but a payload."""
    sizes = {one["body_sha256"]: one["payload_size"] for one in json.loads(manifest.read_text())["messages"]}
    bodies = stored_in(manifest.parent)
    assert len(bodies) > 10
    for stored in bodies:
        assert is_valid(stored)
        body = CODEC.decode(ID, stored)
        assert (type(body), len(body)) == (bytes, sizes[sha256(stored)])
        assert CODEC.encode(ID, body) == stored
        assert read_message(stored) == (None, None, None, body)


def test_bodies_of_real_broker_are_tuples(stored_in):
    bodies = stored_in("rabbitmq-3.10")
    assert len(bodies) > 100
    for stored in bodies:
        assert stored.startswith(b"\x83h\6d\0\x0dbasic_message")
        assert is_valid(stored)
        assert not is_valid(stored[:-1])
        assert type(CODEC.decode(ID, stored)) is StoredBody
        assert CODEC.encode(ID, CODEC.decode(ID, stored)) == stored


@pytest.mark.parametrize(
    ("case", "refused"),
    [
        ("message_body_not_term", 1), ("message_body_bad_tag", 1), ("message_size21_empty_body", 1),
        ("message_body_trailing_bytes", 0),
    ],
)  # fmt: skip
def test_body_that_upstream_refuses_is_invalid(stored_in, case, refused):
    bodies = stored_in(f"msg-store/v2_corrupt/{case}")
    assert list(map(is_valid, bodies)).count(False) == refused
    assert refused or [len(stored) - len(CODEC.decode(ID, stored)) for stored in bodies].count(6 + 3) == 1


# -- what is in a message -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", BROKERS, ids=lambda path: path.parent.name)
def test_message_of_broker_is_one_published(stored_in, manifest):
    """Each is one that was published: exchange, key, payload and properties, those that the broker changed included."""
    published: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for queue in json.loads(manifest.read_text())["queues"]:
        for sent in queue["expected"] + queue["gone"]:
            published.setdefault((sent["exchange"], sent["routing_key"], sent["sha256"]), []).append(sent["properties"])
    stored = stored_in(manifest.parent)
    seen: set[str] = set()
    for body in stored:
        message = read_message(body)
        assert message is not None
        exchange, key, properties, payload = message
        assert properties is not None
        assert payload is not None
        assert json.loads(properties) in published[exchange, key, sha256(payload)]
        seen |= json.loads(properties).keys() | json.loads(properties).get("headers", {}).keys()
    assert len(stored) > 10
    if manifest.parent.name == "clean":
        assert {"delivery_mode", "headers", "timestamp", "content_encoding", "dec", "nested", "x-death", "bin"} <= seen


def term(value: object) -> bytes:
    """As OTP 26 writes it: strings are atoms, bytes are binaries."""
    if isinstance(value, str):
        return bytes([119, len(value.encode())]) + value.encode()
    if isinstance(value, bytes):
        return b"m" + struct.pack(">I", len(value)) + value
    if isinstance(value, int):
        return bytes([97, value]) if 0 <= value < 256 else b"b" + struct.pack(">i", value)
    if isinstance(value, tuple):
        return bytes([104, len(value)]) + b"".join(map(term, value))
    if isinstance(value, list):
        return (b"l" + struct.pack(">I", len(value)) + b"".join(map(term, value)) if value else b"") + b"j"
    assert isinstance(value, dict)
    return b"t" + struct.pack(">I", len(value)) + b"".join(term(part) for pair in value.items() for part in pair)


def message(value: object) -> tuple[Any, ...] | None:
    return CODEC.fields(b"\x83" + term(value))


HEADER = b"\x90\x00\x10application/json\x02"
AMQPL = ("content", 60, "none", HEADER, "rabbit_framing_amqp_0_9_1", [b"world", b"hello "])
BARE = b"\0\x53\x75\xa0\x05hello" + b"\0\x53\x75\xb0\0\0\0\x06 world" + b"\0\x53\x78\xc1\x01\0"
V1 = ("v1", [], BARE, [], [], 0, 0x75)
PROPERTIES = '{"content_type":"application/json","delivery_mode":2}'


def test_containers_of_later_brokers_are_read():
    noted = {"id": b"i" * 16, "rk": [b"k", b"cc"], "x": b"fan", b"x-header": b"1"}
    assert message(("mc", "mc_amqpl", AMQPL, noted)) == ("fan", "k", PROPERTIES, b"hello world")
    assert message(("mc", "mc_amqp", V1, noted)) == ("fan", "k", None, b"hello world")
    for payload, read in ((b"hello", b"hello"), ([b"he", b"llo"], b"hello"), ([b"he", 5], None), (5, None)):
        assert message(("mc", "mc_mqtt", ("mqtt_msg", 0, 1, b"t/1", 0, 1, payload, {}, 0), noted)) == ("fan", "k", None, read)
    assert message(("mc", "mc_mqtt", ("mqtt_msg", 1, b"topic"), noted)) == ("fan", "k", None, None)
    assert message(("mc", "mc_amqp", (*V1[:6], 0x77), noted)) == ("fan", "k", None, None)
    assert message(("mc", "mc_amqp", (*V1[:2], BARE[:7], *V1[3:]), noted)) == ("fan", "k", None, None)
    assert message(("mc", "mc_mqtt", ("mqtt_msg",), {"x": b"amq.topic"})) == ("amq.topic", None, None, None)


def basic(content: object, keys: Sequence[bytes] = (b"key",)) -> object:
    return ("basic_message", ("resource", b"/", "exchange", b"ex"), list(keys), content, b"i" * 16, "true")


@pytest.mark.kit
class TestErlang(BodyCodecTests):
    @pytest.fixture
    def subject(self) -> Subject:
        return Subject.of(DESCRIPTOR)

    @pytest.fixture
    def samples(self) -> list[bytes]:
        """Messages of RabbitMQ before and since 3.13."""
        containers = [("mc", "mc_amqpl", AMQPL, {"rk": [b"k"], "x": b"fan"}), ("mc", "mc_amqp", V1, {"x": b"fan"})]
        return [b"\x83" + term(value) for value in (basic(AMQPL), *containers)]


def test_damaged_part_hides_no_other():
    assert message(basic(AMQPL)) == ("ex", "key", PROPERTIES, b"hello world")
    assert message(basic((*AMQPL[:3], HEADER[:-1], *AMQPL[4:]))) == ("ex", "key", None, b"hello world")
    assert message(basic((*AMQPL[:5], b"?"))) == ("ex", "key", PROPERTIES, None)
    assert message(basic((*AMQPL[:5], []))) == ("ex", "key", PROPERTIES, b"")
    assert message(basic(("content", 60))) == ("ex", "key", None, None)
    assert message(basic(AMQPL, [])) == ("ex", None, PROPERTIES, b"hello world")
    assert message(basic(AMQPL, [b"\xff"])) == ("ex", "\\xff", PROPERTIES, b"hello world")
    assert message(("something", b"else")) is message([]) is message("none") is read_message(b"") is None


def decoded(**given: object) -> object:
    names = ["content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to"]
    names += ["expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"]
    record = ("P_basic", *(given.get(name, "undefined") for name in names))
    content = ("content", 60, record, "none", "none", [])
    found = message(("basic_message", ("resource", b"/", "exchange", b""), [b"q"], content, b"i" * 16, "true"))
    assert found is not None
    return None if found[2] is None else json.loads(found[2])


def test_properties_that_broker_changed_are_read():
    headers = [
        (b"table", "table", [(b"a", "array", [("longstr", b"x"), ("void", "undefined"), ("bool", "false")])]),
        (b"bytes", "binary", b"\0\xff"),
        (b"text", "longstr", b"\xff"),
        (b"dec", "decimal", (2, 1234)),
        (b"at", "timestamp", 1_700_000_000),
        (b"n", "signedint", -5),
    ]
    assert decoded(headers=headers, priority=4, timestamp=7, type=b"t") == {
        "headers": {
            "table": {"a": ["x", None, False]},
            "bytes": {"$bytes": "00ff"},
            "text": {"$bytes": "ff"},
            "dec": {"$decimal": "12.34"},
            "at": {"$timestamp": 1_700_000_000},
            "n": -5,
        },
        "priority": 4,
        "timestamp": 7,
        "type": "t",
    }
    nested: object = ("void", "undefined")
    for _ in range(40):
        nested = ("array", [nested])
    assert decoded(headers=[(b"deep", *nested)]) is None  # type: ignore[misc]
    assert decoded(priority="high") is None


def test_numbers_of_every_width_are_read():
    values = {
        "d": (struct.pack(">d", float("inf")), "inf"), "b": (b"\xff", -1), "B": (b"\xff", 255), "l": (b"\xff" * 8, -1),
        "i": (b"\xff" * 4, 2**32 - 1), "u": (b"\xff\xff", 65535), "s": (b"\xff\xff", -1), "f": (struct.pack(">f", 0.5), 0.5),
    }  # fmt: skip
    table = b"".join(b"\1" + 2 * name.encode() + data for name, (data, _) in values.items())
    expected = {name: value for name, (_, value) in values.items()}
    assert read_header(b"\x20\x00" + struct.pack(">I", len(table)) + table) == {"headers": expected}


VALID = b"\x83" + term(("mc", "mc_amqpl", AMQPL, {"rk": [b"k"], "x": b"fan"}))


@given(st.builds(Random, st.integers(0, 2**32)))
def test_damaged_message_gives_right_types(random):
    found = read_message(mutated(random, Member(VALID)))
    kinds = (str, str, str, bytes)
    assert found is None or all(part is None or type(part) is kind for part, kind in zip(found, kinds, strict=True))
    assert read_message(VALID) == ("fan", "k", PROPERTIES, b"hello world")
