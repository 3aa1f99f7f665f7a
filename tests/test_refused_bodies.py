"""A body that its codec does not take is refused when it is written; one that it fails for all the same stops nobody else."""

from __future__ import annotations

import logging
import threading
import zlib

import pytest

import msgstore
from msgstore.contract import BodyCodecDescriptor, BodyRefused, CorruptRecord, MessageTooLarge, RecordError, StoredBody
from msgstore.testing import Subject, reference
from msgstore.testing.stores import Stores

A, B, C, D = (bytes([n]) * 16 for n in range(1, 5))


class Limited:
    """Refuses what is too large, and says so before."""

    max_body = 100

    def __init__(self, options):
        pass

    def encode(self, bodies):
        return [body if isinstance(body, StoredBody) else self._encoded(body) for body in bodies]

    def _encoded(self, body):
        if len(body) > 100:
            raise MessageTooLarge(f"{len(body)} bytes")
        return zlib.compress(body)

    def decode(self, stored):
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise RecordError("not_compressed", str(error)) from None

    def is_valid(self, stored):
        return True


class Silent(Limited):
    """Refuses the same, and does not say so."""

    max_body = None


class Faulty(Silent):
    """Has no answer for one body, and wrong ones for others."""

    def encode(self, bodies):
        if b"many" in bodies and len(bodies) > 1:
            raise KeyError("several")
        stored = [self._encoded(body) for body in bodies if body != b"none"]
        return [found if body != b"text" else "text" for found, body in zip(stored, bodies, strict=False)]

    def _encoded(self, body):
        if body == b"odd":
            raise KeyError("oops")
        return bytes(2**21) if body == b"huge" else super()._encoded(body)


@pytest.fixture(autouse=True)
def _small_records(monkeypatch):
    """A record that holds no more than a megabyte."""
    monkeypatch.setattr(reference.PlainFormat, "max_body", 2**20)


def stores(factory, path, contract=(1, 0)):
    descriptor = BodyCodecDescriptor(name="tried", contract=contract, factory=f"{__name__}:{factory.__name__}", summary="tried")
    return Stores(Subject.of(descriptor), path)


@pytest.mark.parametrize("flush", ["1h", "0s"])
def test_what_a_codec_does_not_take_is_refused_by_write(tmp_path, flush):
    confirmed: list[bytes] = []
    with stores(Limited, tmp_path).open(sync_interval=flush) as store, store.client(on_confirm=confirmed.extend) as client:
        client.write(A, b"a")
        for body in (bytes(101), bytearray(101)):
            with pytest.raises(MessageTooLarge, match=r"101 bytes.*100 at most"):
                client.write(B, body)
        assert not client.contains(B)
        client.write(C, bytes(100))
        store.flush()
        assert confirmed == [A, C]
        assert client.read_many([A, B, C]) == {A: b"a", C: bytes(100)}
        client.write(B, b"smaller")
        store.flush()
        assert confirmed == [A, C, B]


def test_a_stored_body_may_be_of_any_size(tmp_path):
    stored = StoredBody(zlib.compress(bytes(range(256))))
    assert len(stored) > 100
    with stores(Limited, tmp_path).open() as store, store.client() as client:
        client.write(A, stored)
        store.flush()
        assert client.read(A) == bytes(range(256))


def test_an_old_codec_may_mean_something_else_by_the_name(tmp_path):
    with stores(Limited, tmp_path, contract=(1, 0)).open() as store, store.client() as client:
        client.write(A, bytes(101))
        with pytest.raises(BodyRefused):
            store.flush()


@pytest.mark.parametrize(
    ("factory", "body", "why"),
    [
        (Silent, bytes(101), "MessageTooLarge: 101 bytes"),
        (Faulty, b"odd", "KeyError: 'oops'"),
        (Faulty, b"none", "ValueError: 0 stored bodies for 1"),
        (Faulty, b"text", "TypeError: a stored body is bytes, not str"),
        (Faulty, b"huge", "MessageTooLarge: a body of 2097152 bytes does not fit into a record of format"),
    ],
)
def test_one_body_stops_nobody(tmp_path, factory, body, why, caplog):
    """What it fails for is gone, told once, and never confirmed; the others are, at the same flush."""
    one: list[bytes] = []
    two: list[bytes] = []
    store = stores(factory, tmp_path).open()
    client, other = store.client("one", on_confirm=one.extend), store.client("two", on_confirm=two.extend)
    client.write(A, b"a")
    client.write(B, body)
    other.write(C, b"c")
    client.write(D, b"d")
    with caplog.at_level(logging.ERROR, "msgstore.writer"), pytest.raises(BodyRefused) as raised:
        store.flush()
    assert raised.value.ids == (B,)
    assert all(word in str(raised.value) for word in (str(tmp_path), "'tried'", B.hex(), why))
    assert raised.value.__cause__ is not None
    assert B.hex() in caplog.text
    assert (one, two) == ([A, D], [C])
    assert client.read_many([A, B, C, D]) == {A: b"a", C: b"c", D: b"d"}
    assert store.stats().pending == 0
    store.flush()
    client.write(B, b"in another form")
    store.close()
    assert (one, two) == ([A, D, B], [C])
    with stores(factory, tmp_path).open() as store, store.client() as client:
        assert store.stats().recovery.how == "trust"
        assert client.read_many([A, B, C, D]) == {A: b"a", B: b"in another form", C: b"c", D: b"d"}


def test_a_codec_that_fails_for_the_batch_only(tmp_path):
    with stores(Faulty, tmp_path).open() as store, store.client() as client:
        client.write_many([(A, b"a"), (B, b"many"), (C, b"c")])
        store.flush()
        assert client.read(B) == b"many"


def test_close_is_done_and_says_so(tmp_path):
    store = stores(Faulty, tmp_path).open()
    client = store.client()
    client.write_many([(A, b"a"), (B, b"odd")])
    with pytest.raises(BodyRefused, match=B.hex()):
        store.close()
    store.close()
    with stores(Faulty, tmp_path).open() as store:
        assert store.stats().recovery.how == "trust"
        assert [entry.msg_id for entry in store.entries()] == [A]


def test_so_is_close_of_a_client(tmp_path):
    with stores(Faulty, tmp_path).open() as store:
        client = store.client()
        client.write(B, b"odd")
        with pytest.raises(BodyRefused, match=B.hex()):
            client.close()
        with pytest.raises(msgstore.StoreClosed):
            client.write(A, b"a")


def test_what_a_flush_in_the_background_drops_is_told_by_the_next_one(tmp_path):
    confirmed = threading.Event()
    with stores(Faulty, tmp_path).open(sync_interval="10ms") as store:
        client = store.client(on_confirm=lambda _: confirmed.set())
        client.write_many([(B, b"odd"), (A, b"a")])
        assert confirmed.wait(10)
        with pytest.raises(BodyRefused, match=B.hex()):
            store.flush()


def test_the_write_that_flushes_is_told(tmp_path):
    with stores(Faulty, tmp_path).open(sync_interval=0) as store, store.client() as client:
        with pytest.raises(BodyRefused, match=B.hex()):
            client.write(B, b"odd")
        client.write(A, b"a")
        assert not client.contains(B)


def test_several_references_of_several_clients(tmp_path):
    one: list[bytes] = []
    two: list[bytes] = []
    with stores(Faulty, tmp_path).open() as store:
        client, other = store.client(on_confirm=one.extend), store.client(on_confirm=two.extend)
        for writer in (client, other, client):
            writer.write(B, b"odd")
        with pytest.raises(BodyRefused):
            store.flush()
        with pytest.raises(msgstore.MessageNotFound):
            client.remove([B])
        other.write(B, b"even")
        store.flush()
        assert (one, two) == ([], [B])


def test_want_of_memory_is_no_fault_of_a_body(tmp_path, monkeypatch):
    with stores(Faulty, tmp_path).open() as store, store.client() as client:
        client.write(A, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(Faulty, "_encoded", lambda *_: (_ for _ in ()).throw(MemoryError))
            with pytest.raises(MemoryError):
                store.flush()
            assert client.read(A) == b"a"
        store.flush()
        assert store.stats().pending == 0


def test_a_body_that_is_looked_at_before_it_is_taken(tmp_path, monkeypatch):
    """So large that only the codec can say whether a record holds it."""
    monkeypatch.setattr(Silent, "_encoded", lambda _, body: {}[len(body)])
    with stores(Silent, tmp_path).open() as store, store.client() as client:
        with pytest.raises(BodyRefused, match=rf"{A.hex()}: KeyError: {2**20}"):
            client.write(A, bytes(2**20))
        assert not client.contains(A)


class Forgetful(Silent):
    """Does not give back what it reads; or raises something of its own."""

    def decode(self, stored):
        body = super().decode(stored)
        if body == b"odd":
            raise KeyError("oops")
        return body if body == b"good" else None


def test_a_codec_that_cannot_read_what_it_wrote_says_so_of_this_body(tmp_path):
    with stores(Forgetful, tmp_path).open() as store, store.client() as client:
        client.write_many([(A, b"lost"), (B, b"odd"), (C, b"good")])
        store.flush()
        for msg_id, said in ((A, "codec_failed: tried gave no bytes, but NoneType"), (B, "tried raised KeyError: 'oops'")):
            for read in (client.read, lambda msg_id: client.read_many([msg_id])):
                with pytest.raises(CorruptRecord, match=said):
                    read(msg_id)
        assert client.read(C) == b"good"
