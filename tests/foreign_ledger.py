"""Ledgers as a program writes and reads them that knows nothing of msgstore: by the specification alone, byte by byte."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Generator, Iterable
from pathlib import Path

FOOTER = 16


def message_id(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _number(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


def _numbers(data: bytes, at: int) -> Generator[tuple[int, int], int, None]:
    while True:
        value = shift = 0
        while data[at] & 128:
            value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        value, at = value | data[at] << shift, at + 1
        at = yield value, at


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
    data, rows, end = bytearray(header()), b"", 4096
    count = 0
    for key, body in messages:
        one = record(key, body)
        rows += message_id(key) + _number(0) + _number(len(one))
        data += one
        count += 1
    end = len(data)
    if index:
        payload = _number(count) + rows
        data += _head(b"I", len(payload)) + payload + zlib.crc32(payload).to_bytes(4, "little")
        data += end.to_bytes(8, "little") + b"LEDGEREX"
    return bytes(data)


def read_by_index(path: Path) -> dict[bytes, bytes] | None:
    """Id to whole record, found from the end of the file only; None if there is no index there."""
    data = path.read_bytes()
    if data[-8:] != b"LEDGEREX":
        return None
    begin = int.from_bytes(data[-FOOTER:-8], "little")
    assert data[begin : begin + 1] == b"I"
    numbers = _numbers(data, begin + 1)
    size, at = next(numbers)
    at += 2
    assert at + size + 4 + FOOTER == len(data)
    assert zlib.crc32(data[at : at + size]) == int.from_bytes(data[at + size : at + size + 4], "little")
    numbers = _numbers(data, at)
    count, at = next(numbers)
    found, end = {}, 4096
    for _ in range(count):
        msg_id = data[at : at + 16]
        gap, at = numbers.send(at + 16)
        size, at = numbers.send(at)
        begin, end = end + gap, end + gap + size
        whole = data[begin:end]
        assert zlib.crc32(whole[:-4]) == int.from_bytes(whole[-4:], "little")
        found.setdefault(msg_id, whole)
    return found


def key_of(whole: bytes) -> bytes:
    numbers = _numbers(whole, 1)
    key, at = next(numbers)
    _, at = numbers.send(at)
    return whole[at + 2 : at + 2 + key]
