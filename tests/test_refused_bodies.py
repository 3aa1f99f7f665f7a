"""A body that its codec refuses is refused by write: the message is not taken, and others are not held up."""

from __future__ import annotations

import zlib

import pytest

from msgstore.contract import BodyCodecDescriptor, BodyRefused, MessageTooLarge, RecordError, StoredBody
from msgstore.testing import Subject
from msgstore.testing.stores import StoreFactory

A, B, C = (bytes([n]) * 16 for n in range(1, 4))


class Deflate:
    def __init__(self, options):
        pass

    def encode(self, msg_id, body):
        return body if isinstance(body, StoredBody) else zlib.compress(body)

    def decode(self, msg_id, stored):
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise RecordError("not_compressed", str(error)) from None

    def is_valid(self, msg_id, stored):
        return True


class Faulty(Deflate):
    """Refuses some bodies in several ways."""

    def encode(self, msg_id, body):
        if body == b"odd":
            raise KeyError("oops")
        if body == b"long":
            raise MessageTooLarge("4 bytes; the codec takes 3")
        if body == b"memory":
            raise MemoryError
        return {b"text": "text", b"none": None, b"huge": bytes(2**21)}.get(body, zlib.compress(body))


class Bound(Deflate):
    """Binds a stored body to its id."""

    def encode(self, msg_id, body):
        return msg_id + body

    def decode(self, msg_id, stored):
        if stored[:16] != msg_id:
            raise RecordError("not_of_this_id")
        return stored[16:]

    def is_valid(self, msg_id, stored):
        return stored[:16] == msg_id


@pytest.fixture(autouse=True)
def _small_records(monkeypatch):
    """A record that holds no more than a megabyte."""
    monkeypatch.setattr("msgstore_format_v2.format.MAX_RECORD", 2**20)


def stores(factory, path):
    descriptor = BodyCodecDescriptor(name="tried", contract=(1, 0), factory=f"{__name__}:{factory.__name__}", summary="tried")
    return StoreFactory(Subject.of(descriptor), path)


@pytest.mark.parametrize("flush", ["1h", "0s"])
@pytest.mark.parametrize(
    ("body", "error", "why"),
    [
        (b"odd", BodyRefused, "KeyError: 'oops'"),
        (b"none", BodyRefused, "a stored body is bytes, not NoneType"),
        (b"text", BodyRefused, "a stored body is bytes, not str"),
        (b"long", MessageTooLarge, "4 bytes; the codec takes 3"),
        (b"huge", MessageTooLarge, "a body of 2097152 bytes does not fit into a record of format"),
        (b"memory", MemoryError, ""),
    ],
)
def test_write_of_refused_body_takes_nothing(tmp_path, body, error, why, flush):
    confirmed: list[bytes] = []
    with stores(Faulty, tmp_path).open(sync_interval=flush) as store, store.client(on_confirm=confirmed.extend) as client:
        client.write(A, b"a")
        with pytest.raises(error) as caught:
            client.write(B, body)
        assert why in str(caught.value)
        assert error is MemoryError or str(caught.value).startswith(str(tmp_path))
        assert not client.contains(B)
        client.write(C, b"c")
        store.flush()
        assert confirmed == [A, C]
        assert client.read_many([A, B, C]) == {A: b"a", C: b"c"}
        client.write(B, b"another")
        store.flush()
        assert confirmed == [A, C, B]
    with stores(Faulty, tmp_path).open() as store:
        assert store.stats().messages == 3


def test_write_of_bytearray_is_encoded_at_once(tmp_path):
    with stores(Deflate, tmp_path).open() as store, store.client() as client:
        body = bytearray(b"first")
        client.write(A, body)
        body[:] = b"later"
        assert client.read(A) == b"first"
        store.flush()
        assert client.read(A) == b"first"


def test_stored_body_is_stored_unchanged(tmp_path):
    stored = StoredBody(zlib.compress(bytes(range(256))))
    with stores(Deflate, tmp_path).open() as store, store.client() as client:
        client.write(A, stored)
        assert client.read(A) == bytes(range(256))
        store.flush()
        assert client.read(A) == bytes(range(256))
        (entry,) = store.entries()
        assert store.stored_body(entry) == stored


def test_codec_sees_the_id_of_each_body(tmp_path):
    """So it can bind a stored body to its message."""
    with stores(Bound, tmp_path).open() as store, store.client() as client:
        client.write(A, b"body")
        client.write(B, b"other")
        assert client.read(A) == b"body"
        store.flush()
        assert client.read_many([A, B]) == {A: b"body", B: b"other"}
        stored = store.stored_body(store.entry(A))
        with pytest.raises(RecordError, match="not_of_this_id"):
            store._opened.backends.decode_body(B, stored)
