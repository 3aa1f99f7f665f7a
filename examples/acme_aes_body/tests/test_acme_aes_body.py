"""Tests that are specific to AES. msgstore's conformance kit tests the requirements of every codec:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-aes-body
"""

from __future__ import annotations

import pytest

import msgstore
from acme_aes_body.codec import AesBody
from acme_aes_body.plugin import AesOptions
from msgstore.contract import ConfigError, RecordError

CODEC = AesBody(AesOptions(key="07" * 32))
ID, OTHER = bytes(range(16)), bytes(16)


def test_decode_detects_every_flipped_bit():
    stored = CODEC.encode(ID, b"secret")
    assert b"secret" not in stored
    assert CODEC.decode(ID, stored) == b"secret"
    for bit in range(8 * len(stored)):
        flipped = (int.from_bytes(stored) ^ 1 << bit).to_bytes(len(stored))
        with pytest.raises(RecordError, match="damaged"):
            CODEC.decode(ID, flipped)


@pytest.mark.parametrize(("codec", "msg_id"), [(CODEC, OTHER), (AesBody(AesOptions(key="08" * 32)), ID)])
def test_decode_with_other_id_or_key_is_refused(codec, msg_id):
    stored = CODEC.encode(ID, b"secret")
    assert not codec.is_valid(msg_id, stored)
    with pytest.raises(RecordError, match="of another id, or encrypted with another key"):
        codec.decode(msg_id, stored)


def test_decode_of_too_few_bytes_is_refused():
    with pytest.raises(RecordError) as caught:
        CODEC.decode(ID, bytes(27))
    assert caught.value.reason == "aes_too_short"


def test_key_comes_from_environment_and_no_error_shows_it(tmp_path, monkeypatch):
    body = {"use": "aes-gcm", "key": {"env": "ACME_KEY"}}
    monkeypatch.setenv("ACME_KEY", "not a key")
    with pytest.raises(ConfigError, match="is not 32 or 64 hexadecimal digits") as caught:
        msgstore.open_store(tmp_path, body=body)
    assert "not a key" not in str(caught.value)
    monkeypatch.setenv("ACME_KEY", "ab" * 16)
    with msgstore.open_store(tmp_path, body=body) as store, store.client() as client:
        client.write(ID, b"secret")
    with msgstore.open_store(tmp_path, body=body) as store:
        assert store.read(ID) == b"secret"
