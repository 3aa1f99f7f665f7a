"""Crafted files: each is refused or read with memory and work in proportion to its bytes.

Work is what is done, not how long it takes: bytes that are read from the file, and calls.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from rabbitmq_files import index_v1, index_v2
from rabbitmq_files.amqp10 import read_sections
from rabbitmq_files.index_v1 import encode_body, encode_journal_mark, encode_mark, encode_publish, read_journal, read_segment
from rabbitmq_files.index_v2 import (
    STORE_MAGIC,
    StoredError,
    encode_header,
    encode_own,
    encode_stored,
    read_index,
    read_stored,
    walk_stored,
)
from rabbitmq_files.messages import MessageError, read_message
from rabbitmq_files.names import read_queue_name
from rabbitmq_files.node_tables import read_tables
from rabbitmq_files.properties import PropertiesError, read_properties
from rabbitmq_files.tables import LOG_MAGIC, OPEN, read_dets, read_log
from rabbitmq_files.terms import TermError, decode

SIZE = 20_000
REFUSALS = (TermError, PropertiesError, MessageError, StoredError)


class Counted(bytes):
    """A file that counts the bytes that are read from it."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += 1 if isinstance(key, int) else len(found)
        return found

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        found = super().find(sub, start)
        self.read += (len(self) if found < 0 else found) - start
        return found


def work_of(parse: Callable[[bytes], object], data: bytes) -> int:
    """Return the bytes that are read, and the calls."""
    counted, calls = Counted(data), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event != "return"

    sys.setprofile(count)
    try:
        with contextlib.suppress(*REFUSALS):
            parse(counted)
    finally:
        sys.setprofile(None)
    return counted.read + calls


def all_stored(data: bytes) -> None:
    """Read ``.qs`` as often as ``.qi``, whose entries all name its message, has it."""
    index = read_index(encode_header(b"RCQI", 0, 4096) + encode_own(64, len(data) - 72, 1) * 1000)
    for entry in index.entries:
        read_stored(data, entry.stored_offset, entry.stored_size)


def filled(head: bytes, pattern: bytes) -> bytes:
    return head + pattern * (SIZE // len(pattern))


def overlapping_buckets() -> bytes:
    """Buckets in the objects of buckets, each of which reaches to the end of the file."""
    data = b""
    for _ in range(SIZE // 24):
        rest = b"\x83m" + len(data).to_bytes(4, "big") + data
        data = (len(rest) + 12).to_bytes(4, "big") + b"\x12\x34\x56\x78" + (len(rest) + 4).to_bytes(4, "big") + rest
        if len(data) > SIZE:
            break
    return b"\0\0\0\0\0\xab\xcd\xef" + data


def beyond_the_end() -> bytes:
    """Buckets that claim to be larger than the file, with objects that follow each other over all of them."""
    return filled(b"\0\0\0\0\0\xab\xcd\xef", b"\x7f\xff\xff\xff\x12\x34\x56\x78\0\0\0\x14\x83m\0\0\0\x0a" + b"ab")


def nested_names() -> bytes:
    """Maps of AMQP 1.0 as keys of maps: as text, each level has twice as many quotes."""
    name = b"\xa1\1\\"
    for _ in range(90):
        name = b"\xd1" + (len(name) + 5).to_bytes(4, "big") + b"\0\0\0\2" + name + b"\x40"
    return b"\0\x53\x74" + name


def tables(data: bytes) -> object:
    return read_tables({"LATEST.LOG": data, "rabbit_vhost.DCD": data})


KEYS = [b"n\x0a\0" + (number * (2**61 - 1)).to_bytes(10, "little") for number in range(1, SIZE // 14)]
"""Integers whose hash is 0."""
FILES: dict[str, tuple[Callable[[Any], object], bytes]] = {
    "tuples in tuples": (decode, filled(b"\x83", b"h\1")),
    "maps in maps": (decode, filled(b"\x83", b"t\0\0\0\1a\1")),
    "claimed members": (decode, b"\x83" + b"l\xff\xff\xff\xff" * 150 + bytes(SIZE)),
    "large integer": (decode, b"\x83o" + SIZE.to_bytes(4, "big") + b"\0" + b"\xff" * SIZE),
    "keys with one hash": (decode, b"\x83t" + len(KEYS).to_bytes(4, "big") + b"".join(key + b"j" for key in KEYS)),
    "compressed": (decode, b"\x83P\x07\xff\xff\xff" + zlib.compress(b"l\x07\xff\xff\xf0" + b"j" * 2**22)),
    "many atoms": (decode, filled(b"\x83l\0\0\x0d\x05", b"d\0\3abc") + b"j"),
    "tables in tables": (read_properties, filled(b"\x20\0\0\0\x4e\x20", b"\0F\0\0\x4d\xf0")),
    "empty values": (read_properties, filled(b"\x20\0" + SIZE.to_bytes(4, "big"), b"\0V")),
    "maps as keys": (read_sections, nested_names()),
    "lists of AMQP 1.0": (read_sections, b"\0\x53\x77\xd0\0\0\x4e\x24\0\0\x4e\x20" + b"\x45" * SIZE),
    "no message": (read_message, filled(b"\x83h\4w\2mcw\7mc_mqttl\0\0\x4e\x20", b"j") + b"jt\0\0\0\0"),
    "buckets in each other": (read_dets, overlapping_buckets()),
    "buckets beyond the end": (read_dets, beyond_the_end()),
    "marks": (read_dets, filled(b"\0\0\0\0\0\xab\xcd\xef", b"\x12\x34\x56\x78")),
    "items": (read_log, filled(LOG_MAGIC + OPEN, b"\0\0\0\2bWLA\x83j")),
    "items that claim the rest": (read_log, filled(LOG_MAGIC + OPEN, b"\0\0\0\6bWLA\x83m\0\0\xff\xff")),
    "keys of a table": (tables, LOG_MAGIC + OPEN + b"".join(
        (len(key) + 11).to_bytes(4, "big") + b"bWLA\x83h\2w\5vhost" + key for key in KEYS[: SIZE // 50]
    )),
    "marks of a segment": (read_segment, encode_mark(5) * (SIZE // 2)),
    "one publish": (read_segment, encode_publish(5, encode_body(b"i" * 16, 1, b"t")) * (SIZE // 35)),
    "marks of a journal": (read_journal, b"".join(encode_journal_mark(n, is_acknowledged=True) for n in range(SIZE // 8))),
    "entries with one message": (all_stored, encode_header(STORE_MAGIC, 0, 4096) + encode_stored(bytes(SIZE))),
    "empty messages": (lambda data: list(walk_stored(data)), filled(encode_header(STORE_MAGIC, 0, 4096), b"\0\0\0\1\0\0\0\0j")),
    "queue names": (read_queue_name, filled(b"VHOST: ", b"\nQUEUE: ")),
}  # fmt: skip
each_file = pytest.mark.parametrize("name", FILES)


@each_file
def test_work_is_in_proportion_to_the_bytes(name):
    parse, data = FILES[name]
    assert work_of(parse, data) <= 16 * len(data) + 10_000


@each_file
def test_memory_is_in_proportion_to_the_bytes(name):
    """An empty list has 56 bytes for one in the file, and 8 in another list; some are decoded twice."""
    parse, data = FILES[name]
    tracemalloc.start()
    try:
        with contextlib.suppress(*REFUSALS):
            parse(data)
        assert tracemalloc.get_traced_memory()[1] <= 150 * len(data) + 2**20
    finally:
        tracemalloc.stop()


def test_junk_after_the_head_of_a_compressed_term_is_not_copied():
    assert work_of(decode, b"\x83P\0\x0f\xff\xff" + bytes(SIZE)) < 5000


@pytest.mark.parametrize("head", [b"", encode_header(b"RCQI", 0, 2**40), encode_header(STORE_MAGIC, 0, 2**40), encode_mark(5)])
def test_sparse_file_costs_what_is_checked(tmp_path, monkeypatch, head):
    monkeypatch.setattr(index_v1, "_SEARCHED", 2**16)
    for module in (index_v1, index_v2):
        monkeypatch.setattr(module, "_CHECKED_REST", 2**16)
        monkeypatch.setattr(module, "MAX_ENTRIES", 2**10)
    place = tmp_path / "file"
    place.write_bytes(head)
    with place.open("r+b") as file:
        file.truncate(2**36)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            tracemalloc.start()
            try:
                for parse in (read_index, read_segment, read_journal, lambda data: list(walk_stored(data))):
                    parse(data)
                assert tracemalloc.get_traced_memory()[1] < 2**20
            finally:
                tracemalloc.stop()
