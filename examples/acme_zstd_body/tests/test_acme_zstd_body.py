"""What is particular to zstd. What every codec has to keep is tested by msgstore's conformance kit:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-zstd-body
"""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

import msgstore
from acme_zstd_body.codec import ZstdBody
from acme_zstd_body.plugin import ZstdOptions, msgstore_body_codecs
from msgstore.contract import MessageTooLarge, RecordError, StoredBody

CODEC = ZstdBody(ZstdOptions())


def frame(body: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(body)


def test_text_gets_smaller_and_comes_back():
    body = b"the same line again\n" * 1000
    (stored,) = CODEC.encode([body])
    assert len(stored) < len(body) / 100
    assert CODEC.decode(stored) == body
    assert CODEC.decode(CODEC.encode([b""])[0]) == b""


def test_every_flipped_bit_is_noticed():
    (stored,) = CODEC.encode([b"some body, and some more of it, and more" * 2])
    for bit in range(8 * len(stored)):
        flipped = (int.from_bytes(stored) ^ 1 << bit).to_bytes(len(stored))
        try:
            decoded = CODEC.decode(flipped)
        except RecordError:
            assert not CODEC.is_valid(flipped)
        else:  # a bit that the format leaves unused
            assert decoded == CODEC.decode(stored)


def test_a_stored_body_stays_as_it_is():
    stored = StoredBody(frame(b"hello"))
    assert CODEC.encode([stored, b"plain"])[0] is stored


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"", "zstd_damaged"),
        (b"plain", "zstd_damaged"),
        (frame(b"hello" * 100)[:-1], "zstd_damaged"),
        (frame(b"hello") + b"x", "zstd_damaged"),
        (frame(b"hello", write_content_size=False), "zstd_size_unknown"),
    ],
)
def test_damaged_bodies(stored, reason):
    with pytest.raises(RecordError) as caught:
        CODEC.decode(stored)
    assert caught.value.reason == reason
    assert not CODEC.is_valid(stored)


def test_a_few_bytes_that_claim_to_be_much_take_no_memory():
    hostile = frame(bytes(200 * 2**20))
    assert len(hostile) < 20_000
    claims = bytes.fromhex("28b52ffd") + b"\xc0\x00" + (2**50).to_bytes(8, "little")  # a header without blocks
    tracemalloc.start()
    for stored in (hostile, claims):
        with pytest.raises(RecordError, match=r"zstd_(too_large|damaged)"):
            CODEC.decode(stored)
        assert not CODEC.is_valid(stored)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_what_could_not_be_read_is_not_written():
    small = ZstdBody(ZstdOptions(max_body=10))
    with pytest.raises(MessageTooLarge, match="max_body"):
        small.encode([bytes(11)])
    assert small.decode(small.encode([bytes(10)])[0]) == bytes(10)


@pytest.mark.parametrize(("body", "most"), [("zstd", 128 * 2**20), ({"use": "zstd", "max_body": "1KiB"}, 2**10)])
def test_a_store_refuses_it_when_it_is_written(tmp_path, body, most):
    with msgstore.open_store(tmp_path, body=body) as store, store.client() as client:
        with pytest.raises(MessageTooLarge, match=f"{most} at most"):
            client.write(bytes(16), bytes(most + 1))
        assert not client.contains(bytes(16))
        client.write(bytes([1]) * 16, b"another")
        store.flush()
        assert store.stats().pending == 0


def test_threads_share_one_codec():
    bodies = [bytes([n]) * 10_000 for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda body: CODEC.encode([body])[0], bodies))
        assert list(pool.map(CODEC.decode, stored)) == bodies


@pytest.mark.parametrize("level", [0, 23, -1])
def test_levels_that_there_are_not(level):
    with pytest.raises(ValueError, match="level"):
        ZstdOptions(level=level)


def test_the_descriptor_leads_to_the_codec():
    (descriptor,) = msgstore_body_codecs()
    assert descriptor.load_factory() is ZstdBody
