"""Calls that fail: a refused body is not taken, and holds up no others; an error of the disk says what the call did."""

from __future__ import annotations

import zlib
from functools import partial

import pytest

import msgstore
from msgstore.contract import BodyCodecDescriptor, BodyRefused, MessageTooLarge, RecordError, StoredBody
from msgstore.testing import Subject
from msgstore.testing.stores import StoreFactory
from support import A, B, C, Deflate, FullDisk, failing, open_with

IDS = [bytes([n]) * 16 for n in range(40)]


class Faulty(Deflate):
    """Binds a stored body to its id, and refuses some bodies in several ways."""

    def encode(self, msg_id, body):
        if body == b"odd":
            raise KeyError("oops")
        if body == b"long":
            raise MessageTooLarge("4 bytes; the codec takes 3")
        if body == b"memory":
            raise MemoryError
        if isinstance(body, StoredBody):
            return body
        return {b"text": "text", b"none": None, b"huge": bytes(2**21)}.get(body, msg_id + zlib.compress(body))

    def decode(self, msg_id, stored):
        if stored[:16] != msg_id:
            raise RecordError("not_of_this_id")
        return super().decode(msg_id, stored[16:])


def test_stored_body_is_bound_to_its_id_and_kept(tmp_path):
    """A codec sees the id of each body. A body that is encoded already is stored as it is."""
    stored = StoredBody(A + zlib.compress(bytes(range(256))))
    with stores(Faulty, tmp_path).open() as store, store.client() as client:
        client.write(A, stored)
        client.write(B, b"other")
        for _ in range(2):
            assert client.read(A) == bytes(range(256))
            assert client.read_many([A, B]) == {A: bytes(range(256)), B: b"other"}
            store.flush()
        assert store.stored_body(store.entry(A)) == stored
        with pytest.raises(RecordError, match="not_of_this_id"):
            store._opened.backends.decode_body(B, stored)


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
        (b"odd", BodyRefused, "the body codec 'tried' of "),
        (b"odd", BodyRefused, "KeyError: 'oops' (test_refused_calls.py:"),
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


# -- what an error of the disk says -----------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path):
    """A store that flushes with each write, a client, and its disk."""
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval=0)
    yield store, store.client(), files
    store.abandon()


def test_write_that_flushes_says_it_was_taken(full):
    store, client, files = full
    files.full = True
    with pytest.raises(msgstore.StoreIOError, match="The message was taken: do not repeat the write") as caught:
        client.write(IDS[1], b"1")
    assert (caught.value.applied, caught.value.taken, client.read(IDS[1])) == (True, 1, b"1")
    with pytest.raises(msgstore.StoreIOError, match="The message was not taken: repeat the write") as caught:
        client.write(IDS[2], b"2")
    assert (caught.value.applied, caught.value.taken, client.contains(IDS[2])) == (False, 0, False)
    files.full = False
    client.write(IDS[2], b"2")
    assert (store.references(IDS[1]), store.references(IDS[2])) == (1, 1)


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_write_many_says_how_many_were_taken(tmp_path, kind):
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval="1h", max_unconfirmed="4KiB", gc_interval=0)
    client = store.client()
    files.full = True
    with pytest.raises(msgstore.StoreIOError, match=r"The \d+ messages before it were taken") as caught:
        client.write_many(kind([(msg_id, msg_id * 30) for msg_id in IDS]))
    taken = caught.value.taken
    assert [client.contains(msg_id) for msg_id in IDS] == [True] * taken + [False] * (40 - taken)
    assert (0 < taken < 10, caught.value.applied) == (True, True)
    store.abandon()


def test_remove_of_unreadable_entries_removes_none(tmp_path, index, monkeypatch):
    """What is on disk keeps its references, also a message with another reference in memory, which is gone. A repeated call
    with ``error.ids`` removes one of each."""
    store = open_with(tmp_path, index=index, sync_interval="1h", gc_interval=0)
    client, other = store.client(), store.client()
    client.write_many([(msg_id, b"disk") for msg_id in IDS[:4]])
    store.flush()
    for writer, msg_id in ((client, IDS[4]), (other, IDS[4]), (client, IDS[3])):
        writer.write(msg_id, b"memory")
    monkeypatch.setattr(store._accounting.index, "release", failing())
    with pytest.raises(msgstore.StoreIOError) as caught:
        client.remove([IDS[0], IDS[4], IDS[1], IDS[3]])
    assert (caught.value.applied, caught.value.ids) == (False, (IDS[0], IDS[1]))
    assert [store.references(IDS[n]) for n in (0, 1, 3, 4)] == [1, 1, 1, 1], "a failed removal took references"
    monkeypatch.undo()
    client.remove(caught.value.ids)
    assert [store.references(IDS[n]) for n in (0, 1, 3, 4)] == [0, 0, 1, 1]
    store.close()


def test_refused_call_has_no_frames_of_earlier_ones(tmp_path):
    """The error is one object: its traceback would grow with each call."""
    store = open_with(tmp_path, index="ets")
    client, closed = store.client(), store.client()
    closed.close()
    store.close()
    for call in (store.flush, partial(store.read, A), partial(client.write, A, b"body"), partial(closed.read, A)):
        lengths = set()
        for _ in range(3):
            with pytest.raises(msgstore.StoreClosed) as refused:
                call()
            lengths.add(len(refused.traceback))
        assert len(lengths) == 1
