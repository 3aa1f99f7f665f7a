"""Ledgers as a program writes them that knows nothing of msgstore: by the specification alone, byte by byte."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable


def message_id(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _number(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _head(kind: bytes, *numbers: int) -> bytes:
    head = kind + b"".join(map(_number, numbers))
    return head + zlib.crc32(head).to_bytes(4, "little")[:2]


def header() -> bytes:
    plain = b"LEDGER\r\n" + (1).to_bytes(4, "little") + (4096).to_bytes(4, "little") + bytes(4076)
    return plain + zlib.crc32(plain).to_bytes(4, "little")


def record(key: bytes, body: bytes) -> bytes:
    plain = _head(b"F", len(key), len(body)) + key + body
    return plain + zlib.crc32(plain).to_bytes(4, "little")


def ledger(messages: Iterable[tuple[bytes, bytes]], *, index: bool = True) -> bytes:
    """A whole file; ``messages`` are keys and bodies."""
    data, rows, messages = bytearray(header()), b"", list(messages)
    for key, body in messages:
        one = record(key, body)
        rows += message_id(key) + _number(0) + _number(len(one))
        data += one
    end = len(data)
    if index:
        payload = _number(len(messages)) + rows
        data += _head(b"I", len(payload)) + payload + zlib.crc32(payload).to_bytes(4, "little")
        data += end.to_bytes(8, "little") + b"LEDGEREX"
    return bytes(data)


def key_of(whole: bytes) -> bytes:
    key, at = _read_number(whole, 1)
    _, at = _read_number(whole, at)
    return whole[at + 2 : at + 2 + key]
