"""Messages: those of real nodes, the worked examples, containers of 4.x, and terms that are no message."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erlang_terms import to_term
from rabbitmq_files import messages
from rabbitmq_files.index_v1 import read_journal, read_segment
from rabbitmq_files.index_v2 import walk_stored
from rabbitmq_files.messages import TERM_TYPE, MessageError, encode_message, read_message
from rabbitmq_files.properties import add_headers, encode_header, encode_properties
from rabbitmq_files.terms import Atom, decode

DATA = Path(__file__).parents[3] / "tests/data"
PROPERTIES = bytes.fromhex(
    "30000000004803782d6e490000004a046e616d65530000000668c3a96c6c6f04666c61677401066e6573746564460000001c016149000000010162"
    "410000000e530000000178490000000274005602"
)
FAN_B = b"".join((
    b"\x83h\6d\0\rbasic_message", b"h\4d\0\x08resourcem\0\0\0\1/d\0\x08exchangem\0\0\0\3fan",
    b"l\0\0\0\1m\0\0\0\x0bignored.keyj",
    b"h\6d\0\7contenta\x3cd\0\4none", b"m\0\0\0\x4f", PROPERTIES, b"d\0\x19rabbit_framing_amqp_0_9_1",
    b'l\0\0\0\1m\0\0\0\x14clean/74|{"id":74000j', b"m\0\0\0\x10",
    bytes.fromhex("71c0d9db314440918e549cc8a3d69607"), b"d\0\4true",
))  # fmt: skip
MC = b"".join((
    b"\x83h\4w\2mcw\x08mc_amqpl", b"h\6w\7contenta\x3cw\4nonem\0\0\0\x14\x90\0\x10application/json\2",
    b"w\x19rabbit_framing_amqp_0_9_1",
    b"l\0\0\0\2m\0\0\0\5worldm\0\0\0\6hello j", b"t\0\0\0\4w\2idm\0\0\0\x10", bytes(range(1, 17)), b"w\2rkl\0\0\0\1m\0\0\0\1kj",
    b"w\3rtsn\6\0\x40\x2e\xe3\x4b\x93\1", b"w\1xm\0\0\0\3fan",
))  # fmt: skip
MC_AMQP = (
    b"\x83h\4w\2mcw\7mc_amqph\7w\2v1jm\0\0\0\n\0Su\xa0\5hellojja\0a\x75"
    b"t\0\0\0\3w\1dw\5falsew\2rkl\0\0\0\1m\0\0\0\1qjw\1xm\0\0\0\0"
)


def test_example_of_basic_message():
    message, end = read_message(b"before" + FAN_B + b"after", 6)
    assert end == 6 + 271 == 6 + len(FAN_B)
    assert (message.protocol, message.vhost, message.exchange, message.routing_keys) == (
        "basic_message", b"/", b"fan", [b"ignored.key"],
    )  # fmt: skip
    assert (message.body, message.is_persistent, message.msg_id.hex()) == (
        b'clean/74|{"id":74000', True, "71c0d9db314440918e549cc8a3d69607",
    )  # fmt: skip
    assert message.headers["nested"] == {"a": 1, "b": ["x", 2, False, None]}
    assert encode_message(
        vhost=b"/", exchange=b"fan", routing_keys=[b"ignored.key"], raw_properties=message.raw_properties, body=message.body,
        msg_id=message.msg_id,
    ) == FAN_B  # fmt: skip


def test_compressed_message_is_read():
    data = b"\x83P" + (len(FAN_B) - 1).to_bytes(4, "big") + zlib.compress(FAN_B[1:])
    assert read_message(data + b"after") == (read_message(FAN_B)[0], len(data))


def test_examples_of_containers():
    message, end = read_message(MC)
    assert (end, message.body, message.exchange, message.routing_keys) == (len(MC), b"hello world", b"fan", [b"k"])
    assert (message.timestamp_ms, message.is_persistent, message.vhost) == (1732145000000, True, None)
    assert message.properties == {"content_type": "application/json", "delivery_mode": 2}
    assert message.msg_id == bytes(range(1, 17))
    message, _ = read_message(MC_AMQP)
    assert (message.body, message.exchange, message.routing_keys, message.is_persistent) == (b"hello", b"", [b"q"], False)
    assert (message.msg_id, message.raw_properties, message.properties) == (None, None, {"delivery_mode": 1})


def terms_in(name: str, data: bytes) -> Iterator[bytes]:
    """Yield each message in a file of a queue or of a shared store."""
    if name.endswith((".idx", ".jif")):
        found = read_segment(data) if name.endswith(".idx") else read_journal(data)
        assert not found.damage
        for one in found.publishes.values():
            yield data[one.term_offset : one.term_offset + one.term_size]
    elif name.endswith(".qs"):
        yield from (data[at + 8 : at + 8 + size] for at, size in walk_stored(data))
    elif name.endswith(".rdq"):
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "big")
            yield data[at + 24 : at + 8 + size]
            at += size + 9


def facts(message: Any) -> tuple[Any, ...]:
    digest = hashlib.sha256(message.body).hexdigest()
    return digest, message.exchange.decode(), message.routing_keys[0].decode(), message.is_persistent


@pytest.mark.parametrize("node", ["clean", "priority_lazy"])
def test_messages_of_real_node_are_those_of_its_manifest(node):
    files = [path for path in sorted((DATA / "rabbitmq-3.10" / node).rglob("*")) if path.is_file()]
    found = {}
    for term in (term for path in files for term in terms_in(path.name, path.read_bytes()) if term):
        message, end = read_message(term)
        assert end == len(term)
        found.setdefault(facts(message), []).append(message)
    queues = json.loads((DATA / "rabbitmq-3.10" / node / "manifest.json").read_text())["queues"]
    for one in (one for queue in queues for one in queue["expected"]):
        same = found[one["sha256"], one["exchange"], one["routing_key"], one["persistent"]]
        if one["properties_bin"] is not None:
            assert one["properties_bin"] in [message.raw_properties.hex() for message in same]
        properties = {name: value for name, value in one["properties"].items() if name != "headers"}
        assert properties in [message.properties for message in same]


def test_messages_of_killed_node_are_read_and_encoded_again():
    count = 0
    with tarfile.open(DATA / "rabbitmq-3.10-killed/node.tar.gz") as archive:
        for member in archive:
            data = archive.extractfile(member).read() if member.isfile() else b""
            for term in filter(None, terms_in(member.name, data)):
                message, _ = read_message(term)
                count += 1
                again = encode_message(
                    vhost=message.vhost, exchange=message.exchange, routing_keys=message.routing_keys, body=message.body,
                    raw_properties=message.raw_properties, msg_id=message.msg_id, is_persistent=message.is_persistent,
                )  # fmt: skip
                if len(decode(term)[0][3][5]) < 2 and b"P_basic" not in term:
                    assert again == term
                assert read_message(again)[0] == message
    assert count > 3000


# -- containers ------------------------------------------------------------------------------------------------------------


def container(protocol="mc_amqpl", data=None, **annotations) -> bytes:
    """``annotations``: names that begin with ``x_`` are binaries."""
    content = (Atom("content"), 60, Atom("none"), encode_properties({"priority": 1}), Atom("p"), [b"body"])
    keys = {name.replace("_", "-").encode() if name.startswith("x_") else Atom(name): one for name, one in annotations.items()}
    return to_term(
        (Atom("mc"), Atom(protocol), content if data is None else data, {Atom("rk"): [b"k"], Atom("x"): b"e"} | keys)
    )


KEY = (b"q", Atom("rejected"))
DEATH = (Atom("death"), b"e", [b"k"], 2, {Atom("first_time"): 5000, Atom("last_time"): 9000, Atom("ttl"): 7})
LATER = (Atom("death"), b"", [], 1, {Atom("first_time"): 6000, Atom("last_time"): 99000})
TABLE = {
    "original-expiration": "7", "count": 2, "reason": "rejected", "queue": "q", "time": {"$timestamp": 5}, "exchange": "e",
    "routing-keys": ["k"],
}  # fmt: skip


@pytest.mark.parametrize(
    "deaths",
    [
        [((b"r", Atom("expired")), LATER), (KEY, DEATH)],
        (Atom("deaths"), KEY, KEY, {KEY: DEATH, (b"r", Atom("expired")): LATER}),
    ],
)  # fmt: skip
def test_annotations_of_broker_become_headers(deaths):
    message, _ = read_message(
        container(deaths=deaths, x_last_death_queue=b"q", x_n=5, x_flag=Atom("true"), x_list=[1], x_gone=Atom("undefined"))
    )
    assert message.headers["x-death"][1] == TABLE
    assert [one["queue"] for one in message.headers["x-death"]] == ["r", "q"]
    assert {"x-last-death-queue": "q", "x-n": 5, "x-flag": True}.items() < message.headers.items()
    assert len(message.headers) == 4
    assert message.properties == {"priority": 1}


def test_dead_letter_does_not_expire_again():
    raw = encode_properties({"expiration": "5", "priority": 1, "timestamp": 1}, {"z": 1, "a": 2})
    content = (Atom("content"), 60, Atom("none"), raw, Atom("p"), [b"body"])
    message, _ = read_message(container(data=content, ttl=Atom("undefined"), ts=5000, x_n=5))
    assert message.raw_properties == add_headers(
        encode_properties({"priority": 1, "timestamp": 5}, {"a": 2, "z": 1}), [encode_header(b"x-n", "long", 5)]
    )
    assert list(message.headers) == ["a", "x-n", "z"]
    assert read_message(container(data=content, ttl=5, ts=1999))[0].raw_properties == raw


def test_keys_of_bcc_follow_once():
    assert read_message(container(rk=[b"k", b"cc", b"b"], bcc=[b"b", b"c"]))[0].routing_keys == [
        b"k",
        b"cc",
        b"b",
        b"c",
    ]


def amqp10(sections: bytes, more=(), **annotations) -> bytes:
    return container("mc_amqp", (Atom("v1"), list(more), sections, [], [], 0, 0x75), **annotations)


def section(code: int, value: bytes) -> bytes:
    return b"\0\x53" + bytes([code]) + value


def listed(*values: bytes, code: int = 0xC0) -> bytes:
    inner = bytes([len(values)]) + b"".join(values)
    return bytes([code, len(inner)]) + inner


def text(value: str) -> bytes:
    return b"\xa1" + bytes([len(value)]) + value.encode()


DATA_SECTION = section(0x75, b"\xa0\4body")
STAMP = b"\x83" + (1_700_000_000_123).to_bytes(8, "big")


def test_sections_of_amqp10_become_properties_and_headers():
    sections = section(0x73, listed(
        b"\x98" + bytes(range(16)), b"\xa0\1u", text("to"), b"\x40", text("reply"), b"\xa0\1c", b"\xa3\1t", b"\xa3\1e", b"\x40",
        STAMP, text("app"),
    )) + section(0x74, listed(
        text("a"), b"\x54\xff", text("b"), b"\x41", text("c"), STAMP, text("d"), b"\x72\x7f\xc0\0\0", text("e"),
        listed(b"\x43", listed(b"\x40", b"\x45", code=0xC1)), text("f"), b"\xe0\4\2\xa0\0\0", b"\xa0\1\xff", b"\x40", code=0xC1,
    ))  # fmt: skip
    more = [
        ((Atom("symbol"), b"x-cc"), (Atom("list"), [(Atom("utf8"), b"k")])),
        ((Atom("symbol"), b"x-time"), (Atom("timestamp"), 5000)),
        ((Atom("symbol"), b"x-flag"), Atom("true")),
        ((Atom("symbol"), b"x-odd"), (Atom("decimal"), 1)),
        ((Atom("symbol"), b"x-basic-type"), (Atom("utf8"), b"t")),
        ((Atom("symbol"), b"x-opt-a"), (Atom("utf8"), b"o")),
        ((Atom("symbol"), b"x-opt-rabbitmq-received-time"), (Atom("timestamp"), 7)),
        "odd",
    ]
    message, _ = read_message(amqp10(sections + DATA_SECTION * 2, more[:-1], p=4, ttl=60000, x_n=1))
    assert message.properties == {
        "message_id": "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f", "user_id": "u", "reply_to": "reply", "content_type": "t",
        "content_encoding": "e", "timestamp": 1_700_000_000, "app_id": "app", "delivery_mode": 2, "priority": 4,
        "expiration": "60000",
    }  # fmt: skip
    assert message.headers == {
        "x-amqp-1.0-to": "to", "x-correlation-id": {"$bytes": "Yw=="}, "a": -1, "b": True, "c": {"$timestamp": 1_700_000_000},
        "d": {"$float": "nan"}, "e": [0, {"None": []}], "f": [{"$bytes": ""}, {"$bytes": ""}], "\\xff": None,
        "CC": ["k"], "x-time": {"$timestamp": 5}, "x-flag": True, "x-odd": None, "x-n": 1,
        "x-opt-a": "o", "timestamp_in_ms": 7,
    }  # fmt: skip
    assert message.body == b"bodybody"
    assert message.indexed_size == len(sections + DATA_SECTION * 2)
    encode_properties(message.properties, message.headers)


def test_body_that_is_a_value_stays_encoded():
    value = section(0x77, text("x"))
    symbolic = b"\0\xa3\x10amqp:data:binary\xa0\1b"
    assert read_message(amqp10(value))[0].body == value
    assert read_message(amqp10(value))[0].properties["type"] == "amqp-1.0"
    assert read_message(amqp10(symbolic + section(0x78, listed(code=0xC1))))[0].body == b"b"


@pytest.mark.parametrize(("payload", "body"), [(b"x", b"x"), ([b"a", [98, b"c"]], b"abc"), ([256], None), (5, None)])
def test_message_of_mqtt_becomes_properties_and_headers(payload, body):
    about = {
        Atom("Content-Type"): b"text", Atom("Correlation-Data"): b"\xff", Atom("Response-Topic"): b"a/+",
        Atom("User-Property"): [(b"n", b"v"), 5],
    }  # fmt: skip
    data = (Atom("mqtt_msg"), Atom("false"), 1, b"t/1", Atom("false"), 1, payload, about, Atom("undefined"))
    if body is None:
        with pytest.raises(MessageError, match="payload"):
            read_message(container("mc_mqtt", data))
        return
    message, _ = read_message(container("mc_mqtt", data, ttl=9000, ts=5000))
    assert (message.body, message.indexed_size) == (body, len(body))
    assert message.properties == {"content_type": "text", "delivery_mode": 2, "expiration": "9000", "timestamp": 5}
    assert message.headers == {"n": "v", "x-correlation-id": {"$bytes": "/w=="}, "x-reply-to-topic": "a.*"}


def test_message_of_other_protocol_has_its_term_as_body():
    data = (Atom("mqtt_msg"), 1, b"topic")
    for head in (b"h\4", b"i\0\0\0\4"):
        message, _ = read_message(container("mc_mqtt", data).replace(b"h\4", head, 1))
        assert message.body == to_term(data)
        assert message.properties == {"content_type": TERM_TYPE, "type": "mc_mqtt", "delivery_mode": 2}


MESSAGE = decode(FAN_B)[0]
CONTENT = MESSAGE[3]


def changed(place: int, value: Any, of: tuple[Any, ...] = MESSAGE) -> tuple[Any, ...]:
    return (*of[:place], value, *of[place + 1 :])


NO_MESSAGES = {
    "atom": Atom("x"), "tuple": (), "short": MESSAGE[:5], "other": changed(0, Atom("basic")), "vhost": changed(1, (1, 2, 3, 4)),
    "no resource": changed(1, b"/"), "keys": changed(2, b"k"), "key": changed(2, [Atom("k")]), "id": changed(4, b"x"),
    "persistent": changed(5, Atom("maybe")), "content": changed(3, []), "fragments": changed(3, changed(5, b"x", CONTENT)),
    "fragment": changed(3, changed(5, [1], CONTENT)), "properties": changed(3, changed(3, Atom("none"), CONTENT)),
    "p_basic": changed(3, changed(2, (Atom("P_basic"),), changed(3, Atom("none"), CONTENT))),
    "bytes": changed(3, changed(3, b"\0", CONTENT)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_term_that_is_no_message_is_refused(name):
    with pytest.raises(MessageError):
        read_message(to_term(NO_MESSAGES[name]))


WRONG = [
    {"rk": 5}, {"rk": b"k"}, {"rk": [Atom("k")]}, {"bcc": 5}, {"x": Atom("e")}, {"id": b"short"}, {"x_n": 2**64},
    {"deaths": Atom("none")}, {"deaths": (1, 2, 3)}, {"deaths": (1, 2, 3, {b"k": 5})}, {"deaths": [5]},
    {"deaths": [(KEY, LATER, 3)]}, {"deaths": [((5, 5), DEATH)]},
    *({"deaths": [(KEY, changed(place, value, DEATH))]} for place, value in (
        (4, {}), (4, b""), (2, 5), (3, 2**70), (4, {Atom("first_time"): b"x"}),
        (4, {Atom("first_time"): 1, Atom("ttl"): b"x"}),
    )),
    {"deaths": (1, 2, 3, {KEY: DEATH, (b"r", b"s"): changed(4, {Atom("last_time"): b"x"}, DEATH)})},
]  # fmt: skip


@pytest.mark.parametrize("annotations", WRONG, ids=str)
def test_wrong_annotation_is_refused(annotations):
    with pytest.raises(MessageError):
        read_message(container(**annotations))


NESTED_NAME = b"\xa1\1\\"
for _ in range(60):
    NESTED_NAME = b"\xd1" + (len(NESTED_NAME) + 5).to_bytes(4, "big") + b"\0\0\0\2" + NESTED_NAME + b"\x40"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        (b"\1", "byte 1 where a section"),
        (b"\0", "cut"),
        (section(0x75, b"\xa0\5x"), "cut"),
        (section(0x75, text("x")), "another content"),
        (section(0x73, b"\x40"), "another content"),
        (section(0x73, listed(*[b"\x40"] * 14)), "another content"),
        (section(0x74, b"\x45"), "another content"),
        (section(0x79, b"\x45"), "does not have"),
        (b"\0\x45\x45", "does not have"),
        (section(0x77, b"\x3f"), "type 0x3F"),
        (section(0x77, b"\0\x40" * 200 + b"\x40"), "nested too deeply"),
        (section(0x77, b"\xd0\0\0\0\4\xff\xff\xff\xff"), "cut"),
        (section(0x77, b"\xc0\2\1\x40\x41"), "byte 65"),
        (section(0x77, b"\xc0\3\1\x40\x40"), "does not end with it"),
        (section(0x77, b"\xc1\2\1\x40"), "does not end with it"),
        (section(0x77, b"\xe0\4\2\x45\x45\x45"), "does not end with it"),
        (section(0x77, b"\xf0\0\0\0\5\xff\xff\xff\xff\x40"), "cut"),
        (section(0x74, NESTED_NAME), "as the key of a map"),
    ],
)  # fmt: skip
def test_bad_sections_are_refused(sections, reason):
    with pytest.raises(MessageError, match=reason):
        read_message(amqp10(sections))


def test_timestamp_of_other_type_is_a_header():
    for value, as_json in (
        (listed(text("x"), b"\x40", code=0xC1), {"x": None}),
        (b"\x43", 0),
        (b"\x83" + b"\xff" * 8, {"$timestamp": -1}),
    ):
        message, _ = read_message(amqp10(section(0x73, listed(*[b"\x40"] * 9, value)) + DATA_SECTION))
        assert message.headers == {"x-amqp-1.0-creation-time": as_json}


@given(
    st.binary(max_size=9), st.lists(st.binary(max_size=9), max_size=3), st.binary(max_size=50),
    st.binary(min_size=16, max_size=16), st.booleans(), st.integers(0, 999), st.integers(1, 255),
)  # fmt: skip
def test_message_round_trip_and_changed_byte(name, keys, body, msg_id, persistent, at, flip):
    raw = encode_properties({"delivery_mode": 2, "type": base64.b64encode(name).decode()}, {"k": len(body)})
    data = encode_message(
        vhost=name, exchange=name[1:], routing_keys=keys, raw_properties=raw, body=body, msg_id=msg_id, is_persistent=persistent
    )
    message, end = read_message(data)
    assert (message.vhost, message.exchange, message.routing_keys, message.raw_properties) == (name, name[1:], keys, raw)
    assert (message.body, message.msg_id, message.is_persistent, end) == (body, msg_id, persistent, len(data))
    at %= len(data)
    with contextlib.suppress(MessageError):
        read_message(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


@pytest.mark.parametrize("change", [0, 1, 0x80])
def test_usual_encoding_is_read_as_any_other(change, monkeypatch):
    """Each byte is changed, and the message cut there: the short way gives what the general one gives, or the same error."""

    def outcomes() -> list[Any]:
        found: list[Any] = []
        for at in range(len(FAN_B)):
            data = FAN_B[:at] if change == 0 else FAN_B[:at] + bytes([FAN_B[at] ^ change]) + FAN_B[at + 1 :]
            try:
                found.append(read_message(data + b"rest"))
            except MessageError as error:
                found.append(str(error))
        return found

    short = outcomes()
    monkeypatch.setattr(messages, "_read_usual", lambda data, at: None)
    assert short == outcomes()
