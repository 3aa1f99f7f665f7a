"""The codec, alone and on the segments that RabbitMQ wrote."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import MessageTooLarge, NoOptions, StoredBody
from msgstore_erlang_body import plugin

DATA = Path(__file__).parents[3] / "tests" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="real segments are in the repository only")
(DESCRIPTOR,) = plugin.msgstore_body_codecs()
CODEC = DESCRIPTOR.load_factory()(NoOptions())
ID = bytes(16)


def is_valid(stored):
    return CODEC.is_valid(ID, stored)


def bodies_v1(data: bytes) -> Iterator[bytes]:
    """size 8 = 16 + body, id 16, body, 255; a record is looked for at every byte."""
    at = 0
    while at + 25 <= len(data):
        (size,) = struct.unpack_from(">Q", data, at)
        if 16 <= size <= len(data) - at - 9 and data[at + 8 + size] == 255:
            yield data[at + 24 : at + 8 + size]
            at += 9 + size
        else:
            at += 1


def bodies_v2(data: bytes) -> Iterator[bytes]:
    """From 64 on: 1 is a hole of a byte, 2 a hole, 3 a message: type 1, size 4 of the whole record, id 16, body."""
    at = 64
    while at < len(data):
        if data[at] == 1:
            at += 1
            continue
        size = int.from_bytes(data[at + 1 : at + 5])
        if data[at] not in (2, 3) or at + size > len(data):
            return
        if data[at] == 3:
            yield data[at + 21 : at + size]
        at += size


def bodies_in(directory: Path) -> list[bytes]:
    """Every stored body of the segments beneath a directory."""
    readers = {".rdq": bodies_v1, ".sqs": bodies_v2}
    paths = sorted(path for path in directory.rglob("*") if path.suffix in readers)
    return [stored for path in paths for stored in readers[path.suffix](path.read_bytes())]


@given(st.lists(st.binary()))
def test_bytes_come_back(bodies):
    stored = [CODEC.encode(ID, body) for body in bodies]
    decoded = [CODEC.decode(ID, body) for body in stored]
    assert decoded == bodies
    assert [type(body) for body in decoded] == [bytes] * len(bodies)
    assert all(map(is_valid, stored))


def test_stored_bytes_are_external_terms():
    assert [CODEC.encode(ID, body) for body in (b"", b"hello")] == [b"\x83m\0\0\0\0", b"\x83m\0\0\0\5hello"]


def test_trailing_bytes_are_dropped():
    assert is_valid(b"\x83m\0\0\0\2hi!!!")
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


@needs_data
@pytest.mark.parametrize(
    "store", ["v1_clean", "v1_compacted", "v2_clean", "v2_compacted", "v2_dirty", "v2_dirty_torn", "mixed_upgrade"]
)
def test_bodies_of_real_store_are_binaries(store):
    bodies = bodies_in(DATA / "msg-store" / store / "store")
    assert len(bodies) > 10
    for stored in bodies:
        assert is_valid(stored)
        body = CODEC.decode(ID, stored)
        assert type(body) is bytes
        assert CODEC.encode(ID, body) == stored


@needs_data
def test_bodies_of_real_broker_are_tuples():
    bodies = bodies_in(DATA / "rabbitmq-3.10")
    assert len(bodies) > 100
    for stored in bodies:
        assert stored.startswith(b"\x83h\6d\0\x0dbasic_message")
        assert is_valid(stored)
        assert not is_valid(stored[:-1])
        assert type(CODEC.decode(ID, stored)) is StoredBody
        assert CODEC.encode(ID, CODEC.decode(ID, stored)) == stored


@needs_data
@pytest.mark.parametrize("case", ["message_body_not_term", "message_body_bad_tag", "message_size21_empty_body"])
def test_body_that_upstream_refuses_is_invalid(case):
    assert list(map(is_valid, bodies_in(DATA / "msg-store" / "v2_corrupt" / case))).count(False) == 1


@needs_data
def test_body_with_trailing_bytes_is_valid_as_upstream():
    bodies = bodies_in(DATA / "msg-store" / "v2_corrupt" / "message_body_trailing_bytes")
    assert all(map(is_valid, bodies))
    assert [len(stored) - len(CODEC.decode(ID, stored)) for stored in bodies].count(6 + 3) == 1
