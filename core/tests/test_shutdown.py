"""``clean.dot``: read as RabbitMQ writes it, written as RabbitMQ reads it. ``tests/test_fuzz.py`` tries damaged ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_support import DATA
from msgstore.engine.open import clean_shutdown as shutdown
from msgstore.engine.open.clean_shutdown import format_clean, parse_client_refs


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
