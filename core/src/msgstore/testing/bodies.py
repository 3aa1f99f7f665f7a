"""Tests of every body codec."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import BodyCodec, BodyCodecDescriptor, Capability, RecordError, StoredBody
from msgstore.testing.concurrency import BetweenLines, at_once, long_body
from msgstore.testing.data import tried
from msgstore.testing.formats.segments import check_body
from msgstore.testing.guard import KitTests, skip_without
from msgstore.testing.limits import is_linear, peak_of, within
from msgstore.testing.records import check_values
from msgstore.testing.subjects import Subject

ID = bytes(range(16))
LARGE = 2**20
"""Bytes of the largest body."""
MULTIPLE, BESIDE = 1100, 4 * 2**20
"""Memory that damaged bytes may need: a multiple of their size, the largest factor of zlib, and a constant number of bytes."""

edits = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3)
"""(place, byte) to overwrite."""
_bodies = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 5000).map(bytes),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(0, 300)),
)


class BodyCodecTests(KitTests):
    kinds = ("body",)

    @pytest.fixture
    def codec(self, subject: Subject) -> Any:
        return _made(subject)

    @tried(150)
    @given(bodies=st.lists(_bodies, max_size=8), stored_before=st.integers(0, 255))
    def test_what_is_stored_is_read(self, subject: Subject, bodies: list[bytes], stored_before: int) -> None:
        """A failure means that clients read something else than they wrote; that only the object that stored a body can read
        it; that a scan takes a stored body for corruption; or that a StoredBody, a message that is moved into another store,
        is encoded twice."""
        codec, reader = _made(subject), _made(subject)  # new ones for each example: what one remembers would hide faults
        stored = encoded(codec, bodies)
        for raw, body in zip(stored, bodies, strict=True):
            check_sound(codec, raw, body)
            check_sound(reader, raw, body)
        marks = [bool(stored_before >> n & 1) for n in range(len(bodies))]
        mixed = [StoredBody(raw) if mark else body for raw, mark, body in zip(stored, marks, bodies, strict=True)]
        for again, raw, mark, body in zip(encoded(codec, mixed), stored, marks, bodies, strict=True):
            if mark:
                check_body(again, raw, "encode of a StoredBody")
            check_body(codec.decode(ID, again), body, "decode")

    def test_large_bodies(self, codec: Any) -> None:
        """A failure means that a length field of the codec is too small for a body of a megabyte."""
        bodies = [bytes(LARGE), b"\xff" * LARGE, bytes(range(256)) * (LARGE // 256)]
        for stored, body in zip(encoded(codec, bodies), bodies, strict=True):
            check_sound(codec, stored, body)

    @tried(300)
    @given(data=_bodies, is_stored=st.booleans(), edits=edits, size=st.integers(0, 5000))
    def test_damaged_bodies(
        self, subject: Subject, codec: Any, data: bytes, is_stored: bool, edits: list[tuple[int, int]], size: int
    ) -> None:
        """A failure means that a damaged body, or arbitrary bytes, stops a scan or a read with another error than RecordError;
        that the codec cannot write again what it reads from them; or that ``fields`` raises, or gives wrong values."""
        spoilt = bytearray(encoded(codec, [data])[0] if is_stored else data)
        for at, byte in edits:
            if spoilt:
                spoilt[at % len(spoilt)] = byte
        check_anything(subject, codec, bytes(spoilt[:size] if size < 300 else spoilt))

    def test_damage_is_cheap(self, subject: Subject, codec: Any) -> None:
        """A failure means that a few bytes on disk can cost a reader all memory or time: compare a size that a body claims
        with the bytes that are there before you use it."""
        with within():
            for body in (b"", bytes(1000), bytes(range(256)) * 4):
                (stored,) = encoded(codec, [body])
                for at in range(min(len(stored), 40)):
                    for change in (b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)):
                        spoilt = (stored[:at] + change + stored[at + 4 :])[: len(stored)]
                        peak = peak_of(partial(check_anything, subject, codec, spoilt))
                        assert peak <= MULTIPLE * len(spoilt) + BESIDE, f"{spoilt[:40]!r}"

    def test_time_is_linear(self, subject: Subject, codec: Any) -> None:
        """A failure means that a large body delays a store by more than its size explains, whole or damaged."""

        def reading(size: int) -> Any:
            (stored,) = encoded(codec, [bytes(range(256)) * (size // 256)])

            def read() -> None:
                for data in (stored, stored[:-1]):
                    codec.is_valid(ID, data)
                    if fields_of(subject):
                        codec.fields(data)
                    with contextlib.suppress(RecordError):
                        codec.decode(ID, data)

            return read

        with within():
            assert is_linear(reading, 100_000), "the time of reading is not linear"

    @tried(40)
    @given(bodies=st.lists(_bodies, max_size=5))
    def test_plain_means_unchanged(self, subject: Subject, codec: Any, bodies: list[bytes]) -> None:
        """A failure means that the codec claims PLAIN, but changes bodies: a store does not call it for reads."""
        subject.needs(Capability.PLAIN)
        assert encoded(codec, bodies) == bodies
        assert [codec.decode(ID, body) for body in bodies] == bodies

    @tried(60)
    @given(body=_bodies)
    def test_fields(self, subject: Subject, codec: Any, body: bytes) -> None:
        """A failure means that tools cannot show what the descriptor says that bodies hold: ``fields`` gives one value for each
        of the descriptor's fields, of its kind or None, for each body that the codec wrote."""
        fields = fields_of(subject)
        if not fields:
            skip_without("fields")
        values = codec.fields(encoded(codec, [body])[0])
        assert values is not None, "fields gives None for a body that the codec itself wrote"
        check_values(fields, values)

    def test_any_thread_may_call(self, subject: Subject, codec: Any) -> None:
        """A failure means that calls on several threads share state of the codec, such as one decompressor.

        First, a second thread makes a call between every two Python lines of another call. Then many threads call at once; a
        conflict inside one line depends on chance, so that one failure proves it although the next run may pass.
        """
        bodies = b"one" * 9, b"another" * 9
        one, another = encoded(codec, bodies)
        BetweenLines(partial(check_sound, codec, another, bodies[1])).run(partial(check_sound, codec, one, bodies[0]))

        def run(number: int) -> None:
            mine = [long_body(number), b"%d" % number * 9, b""]
            for stored, body in zip(encoded(codec, mine), mine, strict=True):
                check_sound(codec, stored, body)

        at_once(run)


def _made(subject: Subject) -> Any:
    """Return the BodyCodec."""
    return subject.make(subject.made_options)


def fields_of(subject: Subject) -> Any:
    assert isinstance(subject.descriptor, BodyCodecDescriptor)
    return subject.descriptor.fields


def encoded(codec: BodyCodec, bodies: Sequence[bytes]) -> list[bytes]:
    stored = [codec.encode(ID, body) for body in bodies]
    assert all(isinstance(body, bytes) for body in stored), "stored bodies are bytes"
    return stored


def check_sound(codec: BodyCodec, stored: bytes, body: bytes) -> None:
    read = codec.decode(ID, stored)
    assert type(read) is bytes, f"decode gives a {type(read).__name__}"
    check_body(read, body, "decode")
    assert codec.is_valid(ID, stored) is True, "is_valid refuses what encode gave"


def check_anything(subject: Subject, codec: Any, data: bytes) -> None:
    """Any bytes are valid or not, and read or refused; what is read can be written again, and is read as the same."""
    if fields := fields_of(subject):
        values = codec.fields(data)
        if values is not None:
            check_values(fields, values)
    valid = codec.is_valid(ID, data)
    assert valid in (True, False)
    try:
        read = codec.decode(ID, data)
    except RecordError:
        assert not valid, f"is_valid passes what decode refuses: {data[:40]!r}"
        return
    assert isinstance(read, bytes)
    (again,) = encoded(codec, [read])
    if isinstance(read, StoredBody):
        check_body(again, read, "encode of a StoredBody")
    check_body(codec.decode(ID, again), read, "decode")
