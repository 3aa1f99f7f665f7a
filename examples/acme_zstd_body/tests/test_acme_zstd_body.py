"""Tests that are specific to zstd. msgstore's conformance kit tests the requirements of every codec:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-zstd-body
"""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard

import msgstore
from acme_zstd_body.codec import ZstdBody
from acme_zstd_body.plugin import ZstdOptions
from msgstore.contract import MessageTooLarge, RecordError

CODEC = ZstdBody(ZstdOptions())
ID = bytes(range(16))


def frame(body: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(body)


def test_encode_compresses_and_decode_restores():
    body = b"the same line again\n" * 1000
    stored = CODEC.encode(ID, body)
    assert len(stored) < len(body) / 100
    assert CODEC.decode(ID, stored) == body
    assert CODEC.decode(ID, CODEC.encode(ID, b"")) == b""


def test_decode_detects_every_flipped_bit():
    stored = CODEC.encode(ID, b"some body, and some more of it, and more" * 2)
    for bit in range(8 * len(stored)):
        flipped = (int.from_bytes(stored) ^ 1 << bit).to_bytes(len(stored))
        try:
            decoded = CODEC.decode(ID, flipped)
        except RecordError:
            assert not CODEC.is_valid(ID, flipped)
        else:  # a bit that the format leaves unused
            assert decoded == CODEC.decode(ID, stored)


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
def test_decode_damaged_body_raises_record_error(stored, reason):
    with pytest.raises(RecordError) as caught:
        CODEC.decode(ID, stored)
    assert caught.value.reason == reason
    assert not CODEC.is_valid(ID, stored)


def test_decode_hostile_size_allocates_no_memory():
    hostile = frame(bytes(200 * 2**20))
    assert len(hostile) < 20_000
    claims = bytes.fromhex("28b52ffd") + b"\xc0\x00" + (2**50).to_bytes(8, "little")  # a header without blocks
    tracemalloc.start()
    for stored in (hostile, claims):
        with pytest.raises(RecordError, match=r"zstd_(too_large|damaged)"):
            CODEC.decode(ID, stored)
        assert not CODEC.is_valid(ID, stored)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(("body", "most"), [("zstd", 128 * 2**20), ({"use": "zstd", "max_body": "1KiB"}, 2**10)])
def test_write_above_max_body_raises_message_too_large(tmp_path, body, most):
    with msgstore.open_store(tmp_path, body=body) as store, store.client() as client:
        with pytest.raises(MessageTooLarge, match=f"{most} at most"):
            client.write(bytes(16), bytes(most + 1))
        assert not client.contains(bytes(16))
        client.write(bytes([1]) * 16, b"another")
        store.flush()
        assert store.stats().pending == 0


@pytest.mark.parametrize("level", [0, 23, -1])
def test_options_reject_invalid_level(level):
    with pytest.raises(ValueError, match="level"):
        ZstdOptions(level=level)
