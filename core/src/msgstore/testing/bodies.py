"""What every body codec keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import BodyCodec, Capability, RecordError, StoredBody
from msgstore.testing.concurrency import BetweenLines, at_once, long_body
from msgstore.testing.data import tried
from msgstore.testing.guard import KitTests
from msgstore.testing.limits import is_linear, peak_of, within
from msgstore.testing.records import check_values
from msgstore.testing.segments import check_body
from msgstore.testing.subjects import Subject, skip_without

HANG = 20.0
"""Seconds of the processor, after which a test gives up."""
ID = bytes(range(16))
LARGE = 2**20
"""Bytes of the largest body."""
MULTIPLE, BESIDE = 1100, 4 * 2**20
"""What damaged bytes may take of the memory: so many times their size, which is the most that zlib can make of them, and so
many bytes beside."""

_bodies = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 5000).map(bytes),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(0, 300)),
)


def _made(subject: Subject) -> Any:
    """A BodyCodec."""
    return subject.make(subject.made_options)


class BodyCodecTests(KitTests):
    kinds = ("body",)

    @tried(150)
    @given(bodies=st.lists(_bodies, max_size=8))
    def test_what_is_stored_is_read(self, subject: Subject, bodies: list[bytes]) -> None:
        """A failure means that clients read something else than they have written, or that a body which the codec itself has
        stored is called invalid: a scan would take it for corruption."""
        codec = _made(subject)
        for stored, body in zip(encoded(codec, bodies), bodies, strict=True):
            read = codec.decode(ID, stored)
            assert type(read) is bytes, f"decode gives a {type(read).__name__}"
            check_body(read, body, "decode")
            assert codec.is_valid(ID, stored) is True, "is_valid refuses what encode gave"

    def test_large_bodies(self, subject: Subject) -> None:
        """A failure means that a length field of the codec is too small for a body of a megabyte."""
        codec = _made(subject)
        bodies = [bytes(LARGE), b"\xff" * LARGE, bytes(range(256)) * (LARGE // 256)]
        for stored, body in zip(encoded(codec, bodies), bodies, strict=True):
            check_body(codec.decode(ID, stored), body, "decode")
            assert codec.is_valid(ID, stored) is True

    @tried(60)
    @given(body=_bodies)
    def test_another_object_reads_it(self, subject: Subject, body: bytes) -> None:
        """A failure means that a stored body is read only by the object that has stored it."""
        (stored,) = encoded(_made(subject), [body])
        check_body(_made(subject).decode(ID, stored), body, "decode of another object")

    @tried(60)
    @given(bodies=st.lists(_bodies, min_size=1, max_size=5), which=st.data())
    def test_a_stored_body_passes_unchanged(self, subject: Subject, bodies: list[bytes], which: st.DataObject) -> None:
        """A failure means that a message which is moved into another store is encoded twice: a StoredBody is stored as it is,
        beside others in the same batch."""
        codec = _made(subject)
        stored = encoded(codec, bodies)
        marked = which.draw(st.lists(st.booleans(), min_size=len(bodies), max_size=len(bodies)))
        mixed = [StoredBody(raw) if mark else body for raw, mark, body in zip(stored, marked, bodies, strict=True)]
        for again, raw, mark, body in zip(encoded(codec, mixed), stored, marked, bodies, strict=True):
            if mark:
                check_body(again, raw, "encode of a StoredBody")
            check_body(codec.decode(ID, again), body, "decode")

    @tried(200)
    @given(data=st.binary(max_size=300))
    def test_arbitrary_bytes(self, subject: Subject, data: bytes) -> None:
        """A failure means that a damaged body stops a scan or a read with something else than RecordError, or that what the
        codec reads from it cannot be written again."""
        check_anything(_made(subject), data)

    @tried(80)
    @given(body=_bodies, damage=st.data())
    def test_damaged_bodies(self, subject: Subject, body: bytes, damage: st.DataObject) -> None:
        """A failure means the same as for arbitrary bytes; these are stored bodies with some bytes changed or cut off, which
        the codec gets further into."""
        codec = _made(subject)
        (stored,) = encoded(codec, [body])
        spoilt = bytearray(stored)
        for _ in range(damage.draw(st.integers(0, 3))):
            if spoilt:
                spoilt[damage.draw(st.integers(0, len(spoilt) - 1))] = damage.draw(st.integers(0, 255))
        check_anything(codec, bytes(spoilt[: damage.draw(st.integers(0, len(spoilt)))]))

    def test_damage_is_cheap(self, subject: Subject) -> None:
        """A failure means that some bytes on disk can eat the memory or the time of who reads them: a size that a body claims
        has to be compared with what is there before it is believed."""
        codec = _made(subject)
        with within(HANG):
            for body in (b"", bytes(1000), bytes(range(256)) * 4):
                (stored,) = encoded(codec, [body])
                for at in range(min(len(stored), 40)):
                    for change in (b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)):
                        spoilt = (stored[:at] + change + stored[at + 4 :])[: len(stored)]
                        limit = MULTIPLE * len(spoilt) + BESIDE
                        assert peak_of(partial(check_anything, codec, spoilt)) <= limit, f"{spoilt[:40]!r}"
                        if subject.descriptor.fields:  # type: ignore[union-attr]  # of a codec
                            assert peak_of(partial(codec.fields, spoilt)) <= limit, f"fields of {spoilt[:40]!r}"

    def test_time_is_linear(self, subject: Subject) -> None:
        """A failure means that a large body holds a store up for longer than its size explains, whole or damaged."""
        codec = _made(subject)

        def reading(size: int) -> Any:
            (stored,) = encoded(codec, [bytes(range(256)) * (size // 256)])

            def read() -> None:
                for data in (stored, stored[:-1]):
                    codec.is_valid(ID, data)
                    if subject.descriptor.fields:  # type: ignore[union-attr]  # of a codec
                        codec.fields(data)
                    with contextlib.suppress(RecordError):
                        codec.decode(ID, data)

            return read

        with within(HANG):
            assert is_linear(reading, 100_000), "the time of reading is not linear"

    @tried(40)
    @given(bodies=st.lists(_bodies, max_size=5))
    def test_plain_means_unchanged(self, subject: Subject, bodies: list[bytes]) -> None:
        """A failure means that the codec claims PLAIN, and changes bodies all the same: a store does not call it for reads."""
        subject.needs(Capability.PLAIN)
        codec = _made(subject)
        assert encoded(codec, bodies) == bodies
        assert [codec.decode(ID, body) for body in bodies] == bodies

    @tried(150)
    @given(data=st.one_of(st.binary(max_size=300), _bodies), damage=st.data())
    def test_fields(self, subject: Subject, data: bytes, damage: st.DataObject) -> None:
        """A failure means that tools cannot show what the descriptor says that bodies hold: ``fields`` gives one value for each
        of the descriptor's, of its kind or None, or None for all; whatever the bytes, and never raises."""
        codec, fields = _made(subject), subject.descriptor.fields  # type: ignore[union-attr]  # of a codec
        if not fields:
            skip_without("fields")
        (stored,) = encoded(codec, [data])
        values = codec.fields(stored)
        assert values is not None, "fields says that the codec did not write what it has just written"
        check_values(fields, values)
        spoilt = bytearray(stored)
        for _ in range(damage.draw(st.integers(0, 3))):
            spoilt[damage.draw(st.integers(0, len(spoilt) - 1))] = damage.draw(st.integers(0, 255))
        for other in (data, bytes(spoilt), bytes(spoilt[: damage.draw(st.integers(0, len(spoilt)))])):
            values = codec.fields(other)
            if values is not None:
                check_values(fields, values)

    def test_any_thread_may_call(self, subject: Subject) -> None:
        """A failure means that calls on several threads share state of the codec, such as one decompressor.

        First, a second thread makes a call between every two Python lines of another call. Then many threads call at once; a
        conflict inside one line depends on chance, so that one failure proves it although the next run may pass.
        """
        codec = _made(subject)
        bodies = b"one" * 9, b"another" * 9
        one, another = encoded(codec, bodies)

        def call_with(stored: bytes, body: bytes) -> None:
            check_body(codec.decode(ID, stored), body, "during another thread's call, decode")
            assert codec.is_valid(ID, stored) is True, "during another thread's call, is_valid refuses what encode gave"

        BetweenLines(partial(call_with, another, bodies[1])).run(partial(call_with, one, bodies[0]))

        def run(number: int) -> None:
            mine = [long_body(number), b"%d" % number * 9, b""]
            for stored, body in zip(encoded(codec, mine), mine, strict=True):
                check_body(codec.decode(ID, stored), body, "beside other threads, decode")
                assert codec.is_valid(ID, stored) is True, "beside other threads, is_valid refuses what encode gave"

        at_once(run)


def encoded(codec: BodyCodec, bodies: Sequence[bytes]) -> list[bytes]:
    stored = [codec.encode(ID, body) for body in bodies]
    assert all(isinstance(body, bytes) for body in stored), "stored bodies are bytes"
    return stored


def check_anything(codec: BodyCodec, data: bytes) -> None:
    """Whatever the bytes are: judged, and read or refused; what is read can be written again, and is read as the same."""
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
