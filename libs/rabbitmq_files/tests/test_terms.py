"""Terms: what Erlang/OTP 25 wrote, what is refused, and nothing but TermError."""

from __future__ import annotations

import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erlang_terms import to_term
from rabbitmq_files.terms import MAX_DEPTH, MAX_INFLATED, Atom, Opaque, TermError, decode

NODE = "64000d6e6f6e6f6465406e6f686f7374"
ERLANG = [
    ("836c00000007610061ff620000010062ffffffff627fffffff62800000006e0400000000806a",
     [0, 255, 256, -1, 2**31 - 1, -(2**31), 2**31]),
    ("836e0901000000000000000001", -(2**64)),
    ("83463ff8000000000000", 1.5),
    ("8363312e3530303030303030303030303030303030303030652b30300000000000", 1.5),
    ("836c000000046400047472756564000064000268e97600" + "06e697a5e69cac6a", ["true", "", "hé", "日本"]),
    ("836c000000037704747275657700770368c3a96a", ["true", "", "hé"]),
    ("836b0003616263", [97, 98, 99]),
    ("836803610161026103", (1, 2, 3)),
    ("836900000003610161026103", (1, 2, 3)),
    ("83740000000461077400000000640001616d000000016268026d000000017164000872656a65637465646a6d00000001716101",
     {7: {}, "a": b"b", (b"q", "rejected"): [], b"q": 1}),
    ("835000000391789ccb60ca6160603891c2c058318a47f128c68eb37281b92485810e0000d977af82", (["x"] * 200, bytes(100))),
    (f"8358{NODE}000000050000000000000000", Opaque(bytes.fromhex(f"58{NODE}000000050000000000000000"))),
    (f"835a0003{NODE}00000000000000030000000200000001",
     Opaque(bytes.fromhex(f"5a0003{NODE}00000000000000030000000200000001"))),
    (f"8359{NODE}0000000700000000", Opaque(bytes.fromhex(f"59{NODE}0000000700000000"))),
    ("83716400056c697374736400036d61706102", Opaque(bytes.fromhex("716400056c697374736400036d61706102"))),
    ("834d0000000103a0", Opaque(bytes.fromhex("4d0000000103a0"))),
]  # fmt: skip
each_term = pytest.mark.parametrize(("text", "value"), ERLANG, ids=[text[:12] for text, _ in ERLANG])


@each_term
def test_erlang_term_is_decoded_with_its_end(text, value):
    data = bytes.fromhex(text)
    assert decode(data) == (value, len(data))
    assert decode(b"??" + data + b"\x83more", 2) == (value, len(data) + 2)
    assert type(decode(data)[0]) is type(value)


@each_term
def test_cut_term_is_refused(text, value):
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(TermError):
            decode(data[:size])


def compressed(term: bytes, size: int | None = None) -> bytes:
    return b"\x83P" + (len(term) if size is None else size).to_bytes(4, "big") + zlib.compress(term)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"h\0", "byte 104 where a term begins"),
        (b"\x83" + b"h\1" * 100_000, "levels of nesting"),
        (b"\x83" + b"l\0\0\0\1" * (MAX_DEPTH + 1), "levels of nesting"),
        (b"\x83" + b"t\0\0\0\1a\1" * 100_000, "levels of nesting"),
        (b"\x83l\0\0\0\1a\1a\2", "improper list"),
        (b"\x83l\xff\xff\xff\xff" + b"j" * 9, "cut"),
        (b"\x83t\xff\xff\xff\xff", "cut"),
        (b"\x83o\0\0\1\0\0" + bytes(256), "an integer of 256 bytes"),
        (b"\x83F" + b"\x7f\xf8" + bytes(6), "float that is no number"),
        (b"\x83c" + b"nan".ljust(31, b"\0"), "float that is no number"),
        (b"\x83c" + b"1.5x".ljust(31, b"\0"), "float that is no number"),
        (b"\x83w\2\xff\xff", "atom that is no text"),
        (b"\x83d\1\0" + b"a" * 256, "an atom of 256 characters"),
        (b"\x83t\0\0\0\2a\1a\2a\1a\3", "same key twice"),
        (b"\x83t\0\0\0\1ja\1", "key of a map"),
        (b"\x83t\0\0\0\1n\x08\0" + b"\x7f" * 8 + b"a\1", "key of a map"),
        (b"\x83t\0\0\0\1h\1a\1a\1", "key of a map"),
        (b"\x83g" + b"a\1" + bytes(9), "where an atom must be"),
        (b"\x83\xff", "tag 255"),
        (compressed(b"j", MAX_INFLATED + 1), "are inflated"),
        (compressed(b"l" + MAX_INFLATED.to_bytes(4, "big") + b"j" * (MAX_INFLATED + 1)), "are inflated"),
        (compressed(b"j", 2), "not the 2 bytes"),
        (compressed(b"jj", 1), "not the 1 bytes"),
        (compressed(b"jj"), "1 bytes after a compressed term"),
        (compressed(b"j")[:-1], "not the 1 bytes"),
        (b"\x83P\0\0\0\1junk", "cannot be inflated"),
    ],
)  # fmt: skip
def test_bad_term_is_refused(data, reason):
    with pytest.raises(TermError, match=reason):
        decode(data)


TERMS = st.recursive(
    st.binary(max_size=9) | st.integers(-(2**200), 2**200) | st.text(max_size=9).map(Atom)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.binary(max_size=4) | st.text(max_size=4).map(Atom) | st.integers(-9, 999), inner, max_size=4)
    ),
)  # fmt: skip


@given(TERMS, st.binary(max_size=3), st.booleans())
def test_term_round_trip(value, after, is_compressed):
    data = to_term(value)
    data = compressed(data[1:]) if is_compressed else data
    found, end = decode(data + after)
    assert (found, end) == (value, len(data))
    assert to_term(found) == to_term(value)


@given(st.lists(st.sampled_from([*b"\x83Phijlmtwdanobkcg\0\1\2", 255]), max_size=40).map(bytes))
def test_arbitrary_bytes_raise_nothing_else(data):
    try:
        value, end = decode(b"\x83" + data)
    except TermError:
        return
    assert 1 < end <= len(data) + 1
    assert not (isinstance(value, float) and math.isnan(value))
