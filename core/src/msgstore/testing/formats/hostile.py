"""Hostile segments of any size, which make a careless parser slow or use too much memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgstore.contract import SegmentFormat
from msgstore.testing.data import numbered
from msgstore.testing.formats.segments import encoded


def hostile(form: SegmentFormat, kind: str, size: int) -> bytes:
    """A segment of about ``size`` bytes."""
    return form.header + HOSTILE[kind](form, size)


def _filled(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece) + 1)


def _records(form: SegmentFormat, count: int, body: bytes = b"") -> bytes:
    return encoded(form, numbered(count, body), 0)[0]


def _one_id(form: SegmentFormat, size: int) -> bytes:
    record = _records(form, 1)
    return encoded(form, [(bytes(16), b"")] * (size // len(record)), 0)[0]


def _nested(form: SegmentFormat, size: int) -> bytes:
    record = _records(form, 1)
    while len(record) < size:
        record = _records(form, 1, record)
    return record


HOSTILE: dict[str, Callable[[SegmentFormat, int], bytes]] = {
    "zeros": lambda _, size: bytes(size),
    "ones": lambda _, size: b"\1" * size,
    "high bytes": lambda _, size: b"\xff" * size,
    "noise": lambda _, size: Random(size).randbytes(size),
    "smallest records": lambda form, size: _records(form, size // len(_records(form, 1))),
    "smallest records, cut off": lambda form, size: _records(form, size // len(_records(form, 1)))[:-1],
    "records of one id": _one_id,
    "heads of large records": lambda form, size: _filled(_records(form, 1, bytes(size // 2))[:24], size),
    "half heads": lambda form, size: _filled(_records(form, 1)[:3], size),
    "records in records": _nested,
    "records in records, cut off": lambda form, size: _nested(form, size)[: size // 2],
    "chains that break": lambda form, size: _filled(_records(form, 9)[:-1], size),
    "records that are cut off": lambda form, size: _filled(_records(form, 1, b"x" * 60)[:40], size),
}
"""Name to a function that makes the segment, without its header."""
