"""The validator: every kind of term is accepted whole, refused cut off, and nothing makes it raise or allocate.

``tests/test_fuzz.py`` tries many more damaged terms, and measures the time.
"""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erlang_terms import TERMS
from msgstore_erlang_body.term import is_term

u8, u16, u32 = (lambda value, size=size: value.to_bytes(size) for size in (1, 2, 4))


def sized(length: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(length) + payload


KINDS = [term[1:] for term in TERMS if term[1:2] != b"P"]
"""Terms without the leading 131 of every kind but the compressed ones."""


def nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    many = st.lists(inner, max_size=4)
    return st.one_of(
        many.map(lambda terms: b"h" + u8(len(terms)) + b"".join(terms)),
        many.map(lambda terms: b"i" + u32(len(terms)) + b"".join(terms)),
        many.map(lambda terms: b"l" + u32(len(terms)) + b"".join(terms) + b"j"),
        many.map(lambda terms: b"t" + u32(len(terms)) + b"".join(2 * terms)),
    )


terms = st.recursive(st.sampled_from(KINDS), nested, max_leaves=12)
payloads = st.binary(max_size=20)


def compressed(term: bytes, level: int = 6) -> bytes:
    return b"\x83P" + u32(len(term)) + zlib.compress(term, level)


@given(terms, st.binary(max_size=5))
def test_term_is_accepted_whole_and_no_shorter(term, trailing):
    assert is_term(b"\x83" + term + trailing)
    assert not any(is_term(b"\x83" + term[:size]) for size in range(len(term)))


@given(terms, payloads)
def test_compressed_term_is_accepted_whole_only(term, trailing):
    packed = compressed(term)
    assert is_term(packed + trailing)
    assert not any(is_term(packed[:size]) for size in range(len(packed)))
    for declared in (len(term) - 1, len(term) + 1, 2**32 - 1):
        assert not is_term(b"\x83P" + u32(declared) + packed[6:])
    assert not is_term(compressed(term[:-1]))
    assert not is_term(compressed(b"\x83" + term))


KNOWN_TAGS = {70, 77, 88, 89, 90, *range(97, 121)}


def test_unknown_tags_are_refused_at_any_depth():
    assert {term[0] for term in KINDS} == KNOWN_TAGS
    assert all(is_term(b"\x83" + term) for term in KINDS)
    for tag in set(range(256)) - KNOWN_TAGS:
        for before in (b"", b"h\1", b"l\0\0\0\1", b"h\2j"):
            assert not is_term(b"\x83" + before + u8(tag) + bytes(64)), (tag, before)


@pytest.mark.parametrize(
    "term",
    [
        b"m\0\0\0\5abcd",
        b"w\1\xff",  # not UTF-8
        b"w\3\xed\xa0\x80",  # a surrogate
        b"d" + sized(2, b"a" * 256),
        b"v" + sized(2, b"a" * 256),
        b"F" + struct.pack(">d", math.inf),
        b"F" + struct.pack(">d", math.nan),
        b"c" + b"1.0e999".ljust(31, b"\0"),
        b"c" + b"1e5".ljust(31, b"\0"),
        b"c" + b"1.5".ljust(31, b"x"),
        b"c" + bytes(31),
        b"M\0\0\0\1\0a",
        b"M\0\0\0\1\x09a",
        b"M\0\0\0\0\1",
        b"r\0\0w\1n" + bytes(40),
        b"r\0\6w\1n" + bytes(40),
        b"gm\0\0\0\1n" + bytes(9),  # the node is no atom
        b"qw\1mw\1fb\0\0\0\2",
        # What binary_to_term of OTP 25 refuses on every node.
        b"gw\3a@b" + bytes(8) + b"\4",  # a creation above 3
        b"fw\3a@b" + bytes(4) + b"\4",
        b"ew\3a@b" + bytes(4) + b"\4",
        b"ew\3a@b\0\4\0\0\0",  # a word above 18 bits
        b"r\0\1w\3a@b\0\0\4\0\0",
        b"r\0\1w\3a@b\4\0\0\0\1",
        b"yj",  # LOCAL_EXT
        b"R\0",  # ATOM_CACHE_REF
        b"\x83j",  # the version twice
        b"P\0\0\0\1" + zlib.compress(b"j")[:-1],
    ],
    ids=lambda term: term[:8].hex(),
)
def test_malformed_term_is_refused(term):
    assert not is_term(b"\x83" + term)


@pytest.mark.parametrize(
    "term",
    [
        b"gw\3a@b" + b"\xff" * 8 + b"\3",
        b"Xw\3a@b" + b"\xff" * 12,
        b"fw\3a@b" + b"\xff" * 4 + b"\0",
        b"Yw\3a@b" + b"\xff" * 8,
        b"xw\3a@b" + b"\xff" * 12,
        b"r\0\2w\3a@b\0\0\3\xff\xff\xff\xff\xff\xff",
        b"Z\0\1w\3a@b\0\0\0\0\xff\xff\xff\xff",
    ],
    ids=lambda term: term[:8].hex(),
)
def test_numbers_of_another_node_are_accepted(term):
    """As binary_to_term of OTP 25 does."""
    assert is_term(b"\x83" + term)


def test_size_in_a_fun_is_not_checked():
    fun = next(term for term in KINDS if term[:1] == b"p")
    for size in (0, 4, len(fun), 2**32 - 1):
        assert is_term(b"\x83p" + u32(size) + fun[5:])


def test_atom_of_255_characters_may_have_more_bytes():
    assert is_term(b"\x83v" + sized(2, "ä".encode() * 255))
    assert not is_term(b"\x83v" + sized(2, "ä".encode() * 256))


BOMB = zlib.compress(bytes(2**24), 9)


@pytest.mark.parametrize(
    "data",
    [tag + b"\xff" * 4 + b"j" * 10_000 for tag in (b"i", b"l", b"t", b"m", b"o", b"M", b"u", b"k", b"Z")]
    + [b"P" + u32(declared) + BOMB for declared in (10, 2**31, 2**32 - 1)],
    ids=lambda data: data[:5].hex(),
)
def test_hostile_counts_and_sizes_cost_nothing(data):
    tracemalloc.start()
    assert not is_term(b"\x83" + data)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_large_compressed_term_is_accepted():
    assert is_term(compressed(b"m" + sized(4, bytes(2**20)), 9))
