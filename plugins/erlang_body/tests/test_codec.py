"""The codec, alone and on the segments that RabbitMQ wrote."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import BodyCodec, MessageTooLarge, NoOptions, StoredBody
from msgstore_erlang_body import plugin

DATA = Path(__file__).parents[3] / "tests" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="real segments are in the repository only")


def make() -> BodyCodec:
    (descriptor,) = plugin.msgstore_body_codecs()
    codec: BodyCodec = descriptor.load_factory()(NoOptions())
    return codec


CODEC = make()
ID = bytes(16)


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


def corrupt_case(name: str) -> list[bytes]:
    return list(bodies_v2((DATA / "msg-store" / "v2_corrupt" / name / "0.sqs").read_bytes()))


@given(st.lists(st.binary()))
def test_bytes_come_back(bodies: list[bytes]) -> None:
    stored = [CODEC.encode(ID, body) for body in bodies]
    assert [CODEC.decode(ID, body) for body in stored] == bodies
    assert [type(CODEC.decode(ID, body)) for body in stored] == [bytes] * len(bodies)
    assert all(map(partial(CODEC.is_valid, ID), stored))


def test_the_stored_bytes() -> None:
    assert [CODEC.encode(ID, body) for body in (b"", b"hello")] == [b"\x83m\0\0\0\0", b"\x83m\0\0\0\5hello"]


def test_trailing_bytes_are_dropped() -> None:
    assert CODEC.is_valid(ID, b"\x83m\0\0\0\2hi!!!")
    assert CODEC.decode(ID, b"\x83m\0\0\0\2hi!!!") == b"hi"


@given(st.one_of(st.binary(), st.binary().map(lambda tail: b"\x83m" + tail), st.just(b"\x83h\2a\1j")))
def test_what_is_not_a_whole_binary_reads_and_is_written_as_it_is_stored(stored: bytes) -> None:
    read = CODEC.decode(ID, stored)
    if type(read) is StoredBody:
        assert read == stored
        assert CODEC.encode(ID, read) == stored
    else:
        assert stored.startswith(b"\x83m" + len(read).to_bytes(4) + read)


def test_a_body_that_no_term_can_hold() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(MessageTooLarge, match="4294967296"):
        CODEC.encode(ID, Huge())


@needs_data
@pytest.mark.parametrize(
    "store", ["v1_clean", "v1_compacted", "v2_clean", "v2_compacted", "v2_dirty", "v2_dirty_torn", "mixed_upgrade"]
)
def test_bodies_of_a_real_store_are_binaries(store: str) -> None:
    seen = 0
    for path in sorted(path for path in (DATA / "msg-store" / store / "store").iterdir() if path.suffix in (".rdq", ".sqs")):
        for stored in (bodies_v1 if path.suffix == ".rdq" else bodies_v2)(path.read_bytes()):
            assert CODEC.is_valid(ID, stored)
            body = CODEC.decode(ID, stored)
            assert type(body) is bytes
            assert CODEC.encode(ID, body) == stored
            seen += 1
    assert seen > 10


@needs_data
def test_bodies_of_a_real_broker_are_tuples() -> None:
    seen = 0
    for path in sorted((DATA / "rabbitmq-3.10").rglob("*.rdq")):
        for stored in bodies_v1(path.read_bytes()):
            assert stored.startswith(b"\x83h\6d\0\x0dbasic_message")
            assert CODEC.is_valid(ID, stored)
            assert not CODEC.is_valid(ID, stored[:-1])
            assert type(CODEC.decode(ID, stored)) is StoredBody
            assert CODEC.encode(ID, CODEC.decode(ID, stored)) == stored
            seen += 1
    assert seen > 100


@needs_data
@pytest.mark.parametrize("case", ["message_body_not_term", "message_body_bad_tag", "message_size21_empty_body"])
def test_bodies_that_upstream_refuses(case: str) -> None:
    assert [CODEC.is_valid(ID, stored) for stored in corrupt_case(case)].count(False) == 1


@needs_data
def test_a_body_that_upstream_accepts_with_what_follows_it() -> None:
    bodies = corrupt_case("message_body_trailing_bytes")
    assert all(map(partial(CODEC.is_valid, ID), bodies))
    assert [len(stored) - len(CODEC.decode(ID, stored)) for stored in bodies].count(6 + 3) == 1
