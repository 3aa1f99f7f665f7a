"""Tests of every body codec."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any, get_type_hints

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import Capability, ConfigError, MessageTooLarge, RecordError, Size, StoredBody
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import (
    OTHER_TIMES,
    LineInterleaver,
    clock_at,
    damaged_at,
    is_linear,
    long_body,
    measured,
    peak_of,
    tried,
    within,
)  # fmt: skip
from msgstore.testing.processes import run_in_parallel
from msgstore.testing.segments import check_body, check_values, odd_bodies, outcome, shown
from msgstore.testing.subjects import Subject, with_other_options

ID, OTHER = bytes(range(16)), bytes(16)
LARGE = 2**20
"""Bytes of the largest body."""
MULTIPLE, BESIDE = 1100, 4 * 2**20
"""Memory that damaged bytes may need: a multiple of their size, the largest factor of zlib, and a constant number of bytes."""
TEXTS = (
    b" text ", b"a\r\nb\rc\n", b"\0text\0", b"\xef\xbb\xbftext", b"\xff\xfet\0", b"\xf0\x9f\x92\xa9", b"\xed\xa0\x80", b"{}",
    b"null", b"\x1f\x8b\x08\0", b"x\x9c", b"(\xb5/\xfd", b"\x83m\0\0", b"%00", b"=",
)  # fmt: skip
"""Bodies that a codec of texts, or one that looks for compressed bodies, may change."""
VALUES = (b"", b"0", b"12345", b"true", b"[1, {}]", b'"text"', b"body" * 20)
"""Bodies that are values of another type in a text, or stored after a change of one byte, such as that of the type."""
_FILLERS = (b"\n", b"\r\n", b" ", b"\0", b"0", b"[", b'"', b"\\", b"=", b"\xff")
"""Bodies of one text again and again, of which a parser may step over each."""
_bodies = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 5000).map(bytes),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(0, 300)),
)


class BodyCodecTests(KitTests):
    kinds = ("body",)

    @pytest.fixture
    def codec(self, subject: Subject) -> Any:
        return subject.make(subject.made_options)

    @pytest.fixture
    def samples(self) -> Sequence[bytes]:
        """Stored bodies as other programs write them, which the codec reads. A subclass may give some."""
        return ()

    @tried(150)
    @given(bodies=st.lists(_bodies, max_size=8))
    def test_what_is_stored_is_read(self, subject: Subject, bodies: list[bytes]) -> None:
        """A failure means that clients read something else than they wrote; that only the object that stored a body can read
        it; that a scan takes a stored body for corruption; that a StoredBody, a message that is moved into another store, is
        encoded twice; that the codec claims PLAIN, but changes bodies: a store does not call it for reads; or that ``fields``
        does not give one value for each of the descriptor's, of its kind or None."""
        # New ones for each example: what one remembers would hide faults.
        codec, reader = subject.make(subject.made_options), subject.make(subject.made_options)
        bodies = [fitting(codec, body) for body in bodies]
        stored = [encoded(codec, body) for body in bodies]
        for raw, body in zip(stored, bodies, strict=True):
            check_sound(codec, raw, body)
            check_sound(reader, raw, body)
            as_new = outcome(codec, OTHER, raw) == outcome(subject.make(subject.made_options), OTHER, raw)
            assert as_new, "with another id, it reads what a new object does not read: it remembers the last body"
            for stored_body in (raw, body):
                check_body(encoded(codec, StoredBody(stored_body)), stored_body, "encode of a StoredBody")
            for like in (raw, raw[: len(raw) // 2] + body):  # a client may write what looks as if it were encoded
                like = fitting(codec, like)
                check_sound(reader, encoded(codec, like), like)
            if subject.descriptor.fields:
                check_values(subject.descriptor.fields, codec.fields(raw))
        assert stored == bodies or not subject.has(Capability.PLAIN), "the codec claims PLAIN, and encode changes bodies"

    def test_no_call_is_remembered(self, subject: Subject) -> None:
        """A failure means that a stored body depends on the calls before, as with a counter: each process begins it anew. Time
        and chance change what two objects encode; a counter only what one does."""
        for body in (b"", b"body" * 9):
            one, other = subject.make(subject.made_options), subject.make(subject.made_options)
            first, second = (encoded(one, fitting(other, body)) for _ in range(2))
            counts = first != second and first == encoded(subject.make(subject.made_options), body)
            assert not counts, "two objects encode a body in the same way, and one object the second time in another"
            for now in OTHER_TIMES:
                with clock_at(now):
                    later = encoded(one, fitting(one, body))
                    read = outcome(one, ID, first)
                    check_sound(one, first, read) if type(read) is bytes else None
                assert read == outcome(one, ID, first), "with another time on the clock, a stored body is read otherwise"
                check_sound(one, later, fitting(one, body))

    def test_options_that_its_class_accepts(self, subject: Subject) -> None:
        """A failure means that a codec with another value of an option, which its class accepts, does not read what it has
        stored; that it raises something else than RecordError for what was stored with the usual value, such as a body above a
        limit; or that it changes a codec that was made before: an option is kept in the class or the module."""
        usual = subject.make(subject.made_options)
        mine = [(encoded(usual, fitted), fitted) for fitted in (fitting(usual, body) for body in (b"", b"body" * 999))]
        for name, value, other in with_other_options(subject):
            try:
                codec = other.make(other.made_options)
                bodies = [fitting(codec, body) for body in (b"", b"x", b"body" * 99, long_body(0))]
                stored = [encoded(codec, body) for body in bodies]
            except Exception:  # it may refuse a value, or each message
                continue
            for raw, body in zip(stored, bodies, strict=True):
                assert outcome(codec, ID, raw) == body, f"with {name} = {value!r}, it does not read {shown(raw)}, its own"
                assert codec.is_valid(ID, raw) is True, f"with {name} = {value!r}, {shown(raw)}, its own, is not valid"
            for raw, body in mine:
                check_anything(subject, codec, raw)
                check_sound(usual, raw, body)
                check_sound(usual, encoded(usual, body), body)

    def test_bodies_of_any_size(self, subject: Subject, codec: Any) -> None:
        """A failure means that a length field of the codec, or a length that stands for another, is wrong for one size: a body,
        or a stored body, may have just as many bytes as a field of one, two or three bytes can say, or one more."""
        body = Random(0).randbytes(2**16 + 2)
        beside = max(len(encoded(codec, fitting(codec, body[:200]))) - 200, 0) % 100
        sizes = [size for bits in range(11, 17) for size in range(2**bits - beside - 2, 2**bits + 3)]
        for size in (*range(1030), *sizes, *(2**24 + more for more in (-1, 0, 1))):
            for whole in (body[:size], bytes(size)):
                short = fitting(codec, whole)
                check_sound(codec, stored := encoded(codec, short), short)
                if fields := subject.descriptor.fields:
                    check_values(fields, codec.fields(stored))
        for text in TEXTS:
            check_sound(codec, encoded(codec, text), text)
            for msg_id in (OTHER, b"\xff" * 16):
                check_body(codec.decode(msg_id, codec.encode(msg_id, text)), text, f"decode of {msg_id.hex()}")

    def test_large_bodies(self, subject: Subject, codec: Any) -> None:
        """A failure means that a length field of the codec is too small for a body of some megabytes, that a large StoredBody
        is refused or changed, or that the largest body that it does not refuse as MessageTooLarge cannot be read, also if an
        option of the type Size is 1000; or that a read of a larger one, stored before, then raises something else than
        RecordError. Or that ``fields`` decodes more of a body than it shows: a few stored bytes may be gigabytes of body."""
        for limited in (codec, *with_low_limits(subject)):
            check_anything(subject, limited, encoded(codec, fitting(codec, b"body" * 999)))
            for body in (bytes(LARGE), b"\xff" * LARGE, bytes(range(256)) * (LARGE // 256), bytes(20 * LARGE)):
                largest = fitting(limited, body)
                stored = encoded(limited, largest)
                check_sound(limited, stored, largest)
                check_body(encoded(limited, StoredBody(body)), body, "encode of a StoredBody")
                if subject.descriptor.fields:
                    values, peak = measured(partial(limited.fields, stored))
                    shown = sum(len(value) for value in values or () if isinstance(value, bytes | str))
                    assert peak <= 16 * (len(stored) + shown) + BESIDE, f"fields of {len(stored)} bytes takes {peak} bytes"

    def test_shortest_bodies(self, subject: Subject, codec: Any) -> None:
        """A failure means that an empty stored body, one of a single byte, or one with any two bytes before zeros, makes a read
        raise something else than RecordError, or ``is_valid`` or ``fields`` raise."""
        marked = (number.to_bytes(2) + bytes(30) for number in range(2**16))
        for data in (b"", *(bytes([byte]) for byte in range(256)), *marked):
            check_anything(subject, codec, data)

    def test_values_of_other_types(self, subject: Subject, codec: Any) -> None:
        """A failure means what one of ``test_damaged_bodies`` does, for stored bodies of which one byte is another, above all
        one that says the type. What has no plain form, such as a number in a format of typed values, is a StoredBody."""
        for body in odd_bodies(subject.descriptor.fields):
            check_anything(subject, codec, body)
            check_anything(subject, codec, encoded(codec, fitting(codec, body)))
        for value in VALUES:
            check_anything(subject, codec, value)
            stored = encoded(codec, fitting(codec, value))
            for at in {*range(min(len(stored), 24)), len(stored) - 1} if stored else ():
                for byte in range(256):
                    check_anything(subject, codec, stored[:at] + bytes([byte]) + stored[at + 1 :])

    @tried(150)
    @given(data=_bodies, is_stored=st.booleans(), at=st.integers(0, 12) | st.integers(0, 5000))
    def test_damaged_bodies(self, subject: Subject, codec: Any, data: bytes, is_stored: bool, at: int) -> None:
        """A failure means that a damaged body, or arbitrary bytes, stops a scan or a read with another error than RecordError;
        that the codec cannot write again what it reads from them; or that ``fields`` raises, or gives wrong values. Or that a
        few bytes on disk can cost a reader all memory or time: compare a size that a body claims with the bytes that are there
        before you use it."""
        stored = encoded(codec, fitting(codec, data)) if is_stored else data
        with within():
            further = (stored + b"\0", stored + b"further", stored * 2)
            for spoilt in (stored, *further, *(damaged_at(stored, at % len(stored)) if stored else ())):
                peak = peak_of(partial(check_anything, subject, codec, spoilt))
                assert peak <= MULTIPLE * len(spoilt) + BESIDE, f"{peak} bytes for {spoilt[:40]!r}"

    def test_bodies_that_are_cut(self, codec: Any) -> None:
        """A failure means that a stored body whose end is missing is read as another body, or is called valid and given back as
        it is: it is damage."""
        body = fitting(codec, b"body" * 99 + bytes(100))
        stored = encoded(codec, body)
        for size in range(len(stored)):
            if not codec.is_valid(ID, stored[:size]):
                continue
            read = codec.decode(ID, stored[:size])
            is_refused = type(read) is bytes or size < len(stored) // 2  # a shorter one may be of another writer
            assert is_refused, f"the first {size} of {len(stored)} bytes are valid, and come as a StoredBody"
            if type(read) is bytes and read != body:
                again = len(encoded(codec, read))
                assert again == size, f"the first {size} of {len(stored)} bytes are a valid body, which takes {again} bytes"

    def test_samples_of_other_writers(self, subject: Subject, codec: Any, samples: Sequence[bytes]) -> None:
        """A failure means what one of ``test_damaged_bodies`` does, for bodies that the codec reads and does not write itself:
        whole, cut, and with each byte set to 0xff, as in a text that is not UTF-8. Give some in the fixture ``samples``."""
        if not samples:
            skip_without("samples of other writers")
        for sample in samples:
            for at in range(len(sample)):
                for spoilt in (sample, sample[:at], sample[:at] + b"\xff" + sample[at + 1 :]):
                    check_anything(subject, codec, spoilt)

    def test_time_is_linear(self, subject: Subject, codec: Any) -> None:
        """A failure means that a large body delays a store by more than its size explains: while it is written, or read, whole
        or damaged."""

        def read(stored: bytes) -> None:
            for data in (stored, stored[:-1]):
                codec.is_valid(ID, data)
                if subject.descriptor.fields:
                    codec.fields(data)
                with contextlib.suppress(RecordError):
                    codec.decode(ID, data)

        with within():
            body = bytes(range(256)) * 400
            linear = is_linear(lambda times: partial(read, encoded(codec, fitting(codec, body * times))), 1)
            assert linear, "the time of reading is not linear"
            linear = is_linear(lambda times: partial(codec.encode, ID, fitting(codec, body * times)), 2)
            assert linear, "the time of encode is not linear"

        def fields_of(filler: bytes, is_encoded: bool, times: int) -> Callable[[], object]:
            return partial(codec.fields, encoded(codec, fitting(codec, filler * times)) if is_encoded else filler * times)

        for filler, is_encoded in product(_FILLERS, (False, True)) if subject.descriptor.fields else ():
            with within():
                linear = is_linear(partial(fields_of, filler, is_encoded), 2**16)
                assert linear, f"the time of fields is not linear, for a body that is {filler!r} again and again"

    def test_any_thread_may_call(self, codec: Any) -> None:
        """A failure means that calls on several threads share state of the codec, such as one decompressor.

        First, a second thread makes a call between every two steps of another call. Then many threads call at once; a
        conflict inside one step depends on chance, so that one failure proves it although the next run may pass.
        """
        bodies = fitting(codec, b"one" * 9), fitting(codec, b"another" * 9)
        one, another = (partial(check_sound, codec, encoded(codec, body), body) for body in bodies)
        LineInterleaver(another).run(one)

        def run(number: int) -> None:
            long = fitting(codec, long_body(number))
            for body in (long, b"%d" % number * 9, b""):
                check_sound(codec, encoded(codec, body), body)

        run_in_parallel(run)


def encoded(codec: Any, body: bytes) -> bytes:
    stored = codec.encode(ID, body)
    assert isinstance(stored, bytes), f"encode gives a {type(stored).__name__}, stored bodies are bytes"
    return stored


def fitting(codec: Any, body: bytes) -> bytes:
    """Return the longest beginning of a body that the codec does not refuse as MessageTooLarge."""

    def is_refused(size: int) -> bool:
        try:
            codec.encode(ID, body[:size])
        except MessageTooLarge:
            return True
        return False

    return body[: bisect_left(range(len(body) + 1), True, key=is_refused) - 1] if is_refused(len(body)) else body


def with_low_limits(subject: Subject) -> Iterator[Any]:
    """Yield the codec with each of its sizes at 1000 bytes, if the options allow it."""
    for name, kind in get_type_hints(subject.descriptor.options).items():
        with contextlib.suppress(ValueError, ConfigError):
            if kind is Size:
                yield subject.make(attrs.evolve(subject.made_options, **{name: Size(1000)}))


def check_sound(codec: Any, stored: bytes, body: bytes) -> None:
    read = codec.decode(ID, stored)
    assert type(read) is bytes, f"decode gives a {type(read).__name__}"
    check_body(read, body, "decode")
    assert codec.is_valid(ID, stored) is True, "is_valid refuses what encode gave"


def check_anything(subject: Subject, codec: Any, data: bytes) -> None:
    """Any bytes are valid or not, and read or refused; what is read can be written again, and is read as the same."""
    if (fields := subject.descriptor.fields) and (values := codec.fields(data)) is not None:
        check_values(fields, values)
    valid = codec.is_valid(ID, data)
    assert valid in (True, False)
    try:
        read = codec.decode(ID, data)
    except RecordError:
        assert not valid, f"is_valid passes what decode refuses: {data[:40]!r}"
        return
    assert isinstance(read, bytes)
    assert read == data or not subject.has(Capability.PLAIN), "the codec claims PLAIN, and decode changes bodies"
    read = read if isinstance(read, StoredBody) else fitting(codec, read)
    again = encoded(codec, read)
    is_changed = type(read) is bytes and read == data != again
    assert not is_changed, f"decode gives {data[:40]!r} as it is, and encode changes it: then it is a StoredBody"
    if isinstance(read, StoredBody):
        check_body(read, data, "decode to a StoredBody, which has the bytes as they are,")
        check_body(again, read, "encode of a StoredBody")
    check_body(codec.decode(ID, again), read, "decode")
