"""Properties of AMQP 0-9-1: bytes of real messages, every type, and JSON values that come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitmq_files.properties import (
    NAMES,
    PropertiesError,
    add_headers,
    encode_header,
    encode_p_basic,
    encode_properties,
    read_properties,
)

FAN_B = bytes.fromhex(
    "30000000004803782d6e490000004a046e616d65530000000668c3a96c6c6f04666c61677401066e6573746564460000001c016149000000010162"
    "410000000e530000000178490000000274005602"
)
HEADERS = {"x-n": 74, "name": "héllo", "flag": True, "nested": {"a": 1, "b": ["x", 2, False, None]}}
REAL = [
    (FAN_B, {"delivery_mode": 2}, HEADERS),
    (
        bytes.fromhex("1e38020404632d313109616d712e7265706c790d6f726465722e63726561746564056775657374026832"),
        {"delivery_mode": 2, "priority": 4, "correlation_id": "c-11", "reply_to": "amq.reply", "type": "order.created",
         "user_id": "guest", "app_id": "h2"},
        None,
    ),
    (
        bytes.fromhex("90c0106170706c69636174696f6e2f6a736f6e02096d73672d30303030390000000065e079f9"),
        {"content_type": "application/json", "delivery_mode": 2, "message_id": "msg-00009", "timestamp": 1709210105},
        None,
    ),
    (bytes.fromhex("0000"), {}, None),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "properties", "headers"), REAL)
def test_real_properties_are_read_and_encoded_again(raw, properties, headers):
    assert read_properties(raw) == (properties, headers)
    assert encode_properties(properties, headers) == raw


VALUES = {
    "longstr": ("53000000016b", b"k", "k"),
    "signedint": ("49ffffffff", -1, -1),
    "decimal": ("4402000004d2", (2, 1234), {"$decimal": "12.34"}),
    "timestamp": ("5400000000ffffffff", 2**32 - 1, {"$timestamp": 2**32 - 1}),
    "table": ("4600000003016b56", [(b"k", "void", "undefined")], {"k": None}),
    "array": ("410000000456740156", [("void", 0), ("bool", "true"), ("void", 0)], [None, True, None]),
    "byte": ("62ff", -1, -1),
    "double": ("643ff8000000000000", 1.5, 1.5),
    "float": ("663fc00000", 1.5, 1.5),
    "long": ("6c8000000000000000", -(2**63), -(2**63)),
    "short": ("738000", -(2**15), -(2**15)),
    "bool": ("7401", "true", True),
    "binary": ("7800000002ff00", b"\xff\0", {"$bytes": "/wA="}),
    "unsignedbyte": ("42ff", 255, 255),
    "unsignedshort": ("75ffff", 2**16 - 1, 2**16 - 1),
    "unsignedint": ("69ffffffff", 2**32 - 1, 2**32 - 1),
    "void": ("56", "undefined", None),
}
"""Type to the bytes, the value in a decoded ``P_basic``, and as JSON."""


@pytest.mark.parametrize("kind", VALUES)
def test_value_of_each_type(kind):
    text, value, as_json = VALUES[kind]
    header = encode_header(b"n", kind, value)
    assert header == b"\1n" + bytes.fromhex(text)
    raw = add_headers(b"\0\0", [header])
    assert read_properties(raw) == ({}, {"n": as_json})
    assert read_properties(encode_properties({}, {"n": as_json})) == ({}, {"n": as_json})
    assert encode_p_basic(["P_basic", "undefined", "undefined", [(b"n", kind, value)], *["undefined"] * 11]) == raw
    for size in range(len(raw)):
        with pytest.raises(PropertiesError):
            read_properties(raw[:size])


def test_not_a_number_and_bytes_are_objects():
    raw = add_headers(b"\0\0", [b"\1nf\x7f\xc0\0\0", b"\1\xffS\0\0\0\1\xff"])
    assert read_properties(raw)[1] == {"n": {"$float": "nan"}, "\\xff": {"$bytes": "/w=="}}


def table(inner: bytes) -> bytes:
    return b"\x20\0" + len(inner).to_bytes(4, "big") + inner


def deep(levels: int) -> bytes:
    inner = b""
    for _ in range(levels):
        inner = b"\0F" + len(inner).to_bytes(4, "big") + inner
    return table(inner)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "cut"),
        (b"\0\1\0\0", "flags that no message has"),
        (b"\0\2", "flags that no message has"),
        (b"\0\0x", "1 bytes after the properties"),
        (b"\x80\0\5abc", "cut"),
        (b"\x20\0\xff\xff\xff\xff", "cut, or nested"),
        (table(b"\1kS\0\0\0\5a"), "does not end with it"),
        (table(b"\1kA\0\0\0\1S"), "cut"),
        (table(b"\1kA\0\0\0\1V") + b"V", "bytes after"),
        (table(b"\1kA\0\0\0\1t") + b"t", "does not end with it"),
        (table(b"\1k?"), "type 63"),
        (table(b"\1k"), "cut"),
        (deep(100), "nested too deeply"),
        (deep(1000), "nested too deeply"),
    ],
)  # fmt: skip
def test_bad_bytes_are_refused(raw, reason):
    with pytest.raises(PropertiesError, match=reason):
        read_properties(raw)


@pytest.mark.parametrize(
    ("encode", "given"),
    [
        *((encode_header, (b"n", kind, value)) for kind, value in (
            ("float", 1e300), ("double", 10**400), ("long", 2**63), ("timestamp", -1), ("timestamp", 1.5),
            ("decimal", (256, 1)), ("decimal", 5), ("bool", "maybe"), ("bool", [1]), ("longstr", 5), ("longstr", "text"),
            ("table", 5), ("table", [5]), ("table", [(b"k", ["x"], 1)]), ("table", [(5, "void", 1)]),
            ("table", [(b"k" * 256, "void", 1)]), ("array", [5]), ("array", 5), ("short", 2**15), ("short", "x"), ("other", 1),
            (["list"], 1), (b"longstr", b"x"),
        )),
        *((encode_p_basic, (record,)) for record in (
            [], ["P_basic"], ["P_basix"] * 15, ["P_basic", 5, *["undefined"] * 13],
            ["P_basic", "undefined", "undefined", 5, *["undefined"] * 11],
        )),
        *((encode_properties, (properties, None)) for properties in (
            {"headers": {}}, {"typ": "x"}, {"type": "x" * 256}, {"type": 5}, {"type": ["x"]}, {"type": {}},
            {"type": {"$bytes": "?"}}, {"priority": 256}, {"priority": "4"}, {"timestamp": -1}, {"timestamp": 1.5},
            {"type": "\ud800"},
        )),
        *((encode_properties, ({}, headers)) for headers in (
            {"\ud800": 1}, {"k": "\ud800"}, {"k" * 256: 1}, {"k": 2**63}, {"k": b"bytes"}, {"k": object()},
        )),
        *((encode_properties, ({}, {"k": {name: value}})) for name, value in (
            ("$bytes", "?"), ("$timestamp", -1), ("$decimal", "x"), ("$decimal", 5), ("$float", "x"), ("$float", 10**400),
        )),
    ],
)  # fmt: skip
def test_wrong_value_is_not_encoded(encode, given):
    with pytest.raises(PropertiesError):
        encode(*given)


def test_deep_json_is_refused():
    value: list = []
    for _ in range(100):
        value = [value]
    with pytest.raises(PropertiesError, match="nested too deeply"):
        encode_properties({}, {"k": value})


def test_added_headers_replace_those_of_the_same_name():
    raw = encode_properties({"content_type": "t", "content_encoding": "e", "app_id": "a"}, {"x-death": 1, "k": {"x": [1]}})
    found = add_headers(raw, [encode_header(b"x-death", "long", 2), encode_header(b"new", "void", None)])
    assert read_properties(found) == (read_properties(raw)[0], {"k": {"x": [1]}, "x-death": 2, "new": None})
    assert found.count(b"x-death") == 1
    assert add_headers(add_headers(raw, []), []) == raw


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
OBJECTS = (
    st.binary(max_size=9).map(lambda raw: read_properties(add_headers(b"\0\0", [encode_header(b"k", "binary", raw)]))[1]["k"])
    | st.integers(0, 2**64 - 1).map(lambda seconds: {"$timestamp": seconds})
    | st.decimals(0, 9999, places=3).map(lambda number: {"$decimal": str(number)})
    | st.sampled_from(["nan", "inf", "-inf"]).map(lambda text: {"$float": text})
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | OBJECTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(lambda name: name[:1] != "$"), inner, max_size=4),
    max_leaves=9,
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={name: TEXT for name in NAMES if name not in ("headers", "delivery_mode", "priority", "timestamp")}
    | {"delivery_mode": st.integers(0, 255), "priority": st.integers(0, 255), "timestamp": st.integers(0, 2**64 - 1)},
)


@given(PROPERTIES, st.none() | st.dictionaries(TEXT.filter(lambda name: name[:1] != "$"), JSON, max_size=4), st.data())
def test_properties_round_trip(properties, headers, data):
    raw = encode_properties(properties, headers)
    assert read_properties(raw) == (properties, headers)
    assert encode_properties(*read_properties(raw)) == raw
    at = data.draw(st.integers(0, len(raw) - 1))
    for changed in (raw[:at], raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]):
        try:
            found, more = read_properties(changed)
        except PropertiesError:
            continue
        again = encode_properties(found, more)
        assert read_properties(again) == (found, more) or b"$" in changed
