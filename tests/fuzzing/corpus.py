"""Good files to begin with: pieces of what RabbitMQ wrote, and what our own encoders make. All are small."""

from __future__ import annotations

import functools
import itertools
import json
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

from erlang_terms import TERMS
from fuzzing.mutations import Member
from msgstore.cli.checking import DamagedSpan, Inconsistency
from msgstore.cli.commands.verify import ScrubState, write_state
from msgstore.contract import BoundRecord, FormatContext, NoOptions, RecordContext
from msgstore.directory import Settings, write_settings
from msgstore.engine.segment import hints as hint_files
from msgstore.engine.state.clean_shutdown import format_clean
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore_checksum_record.record import ChecksumRecord
from msgstore_ets_index import snapshot
from msgstore_format_v1.format import SegmentFormatV1
from msgstore_format_v2.format import SegmentFormatV2

DATA = Path(__file__).parent.parent / "data"
SMALL = 2048
"""Bytes."""

Form = SegmentFormatV1 | SegmentFormatV2
V1 = SegmentFormatV1(FormatContext(NoOptions()))
V2 = SegmentFormatV2(FormatContext(NoOptions()))
_RECORDS = [
    BoundRecord(name, kind, ChecksumRecord(RecordContext(NoOptions(), kind)))
    for name, kind in (("checksum", 4), ("theirs", 200))
]
CHECKSUM = SegmentFormatV2(FormatContext(NoOptions(), tuple(_RECORDS), "checksum"))


Family = Callable[[int], bytes]
"""Function that returns an input of about the given number of bytes."""


def filled(pattern: bytes, head: bytes = b"") -> Family:
    return lambda size: head + pattern * (size // len(pattern))


def numbered(head: bytes, pattern: bytes, end: bytes = b"") -> Family:
    """So many members, after their number."""
    return lambda size: head + (size // len(pattern)).to_bytes(4) + pattern * (size // len(pattern)) + end


def terms_of(pattern: bytes) -> Family:
    """An Erlang list of so many."""
    return numbered(b"\x83l", pattern, b"j")


def corpus(make: Callable[..., Iterable[Member]]) -> Callable[..., list[Member]]:
    """Make the members once, and tell each of the others."""

    @functools.cache
    def members(*arguments: str) -> list[Member]:
        found = list(make(*arguments))
        for member in found:
            member.others = found
        return found

    return members


def real(*suffixes: str) -> list[Path]:
    return sorted(path for path in DATA.rglob("*") if path.suffix in suffixes or path.name in suffixes)


@corpus
def segments(name: str) -> Iterator[Member]:
    """Small segments of the format ``name``: runs of real records, the whole small files, and written ones."""
    form: Form = {"v1": V1, "v2": V2, "checksum": CHECKSUM}[name]
    suffix = ".rdq" if name == "v1" else ".sqs"
    random = Random(1)
    whole = [path.read_bytes() for path in real(suffix)]
    found = [data for data in whole if len(data) <= SMALL]
    for data in (data for data in whole if len(data) > SMALL):
        offsets = starts(form, data)
        for _ in range(5):
            first = random.choice(offsets)
            end = max(offset for offset in offsets if offset <= first + SMALL)
            found += [form.header + data[first:end]] if end > first else []
    found += [written(form, random) for _ in range(60)]
    yield from (Member(data, starts(form, data)) for data in found)


def written(form: Form, random: Random, size: int = SMALL) -> bytes:
    """A segment with holes of every size, copies, records of every type, and bodies that look like records."""
    data, ids = bytearray(form.header), [random.randbytes(16) for _ in range(40)]
    after_hole = False
    while len(data) < size - 200:
        gap = random.choice([0, 0, 1, 3, 4, 5, 6, 7, 8, 20, 25, 40]) if not after_hole else 0
        after_hole = bool(gap)
        data += form.encode([random.choice(ids)], [random.choice(bodies(form, random))])[0]
        if gap and form is V1:
            data += bytes(gap)
        elif gap:
            data += b"\1" * gap if gap < 5 else struct.pack(">BI", 2, gap) + random.randbytes(gap - 5)
        if form is CHECKSUM and random.random() < 0.3:
            data += V2.encode([random.choice(ids)], [b"plain"])[0]
    return bytes(data)


def bodies(form: Form, random: Random) -> list[bytes]:
    return [
        b"",
        bytes(random.randrange(30)),
        random.choice(TERMS),
        random.randbytes(random.randrange(120)),
        b"\xff" * random.randrange(30),
        form.encode([bytes(16), b"i" * 16], [b"inner", b""])[0],
    ]


def starts(form: Form, data: bytes) -> list[int]:
    """The offsets of everything that a scan finds, and where it ends."""
    scan = form.scan(data)
    spots = [spot.offset for spot in scan.damage]
    return sorted({*scan.records.offsets, *scan.duplicates.offsets, *scan.hole_offsets, *spots, scan.end.offset})


@corpus
def records() -> Iterator[Member]:
    """One checksummed record each, of type byte 4, all of one id."""
    random = Random(2)
    for body in (body for _ in range(10) for body in bodies(CHECKSUM, random)):
        yield Member(CHECKSUM.encode([bytes(range(16))], [body])[0], [0, 1, 5, 21, 25])


@corpus
def snapshots() -> Iterator[Member]:
    random = Random(3)
    for entries in (0, 1, 2, 7, 30, 60):
        clean = {b"layout": b"1", b"clean": format_clean([b"h1", b"shop"], 3)}
        for state in ({}, rows(random), clean, {**rows(random), b"k": b""}):
            ids = [random.randbytes(16) for _ in range(entries)]
            located = {msg_id: pack_location(random.randrange(9), 64 + 99 * n, 21 + n) for n, msg_id in enumerate(ids)}
            counts = {msg_id: random.choice([2, 3, 2**48 - 1]) for msg_id in ids[::3]}
            data = b"".join(snapshot.write(located, counts, state))
            _, _, width, n, m, _ = struct.unpack_from(">8sIIQQQ", data)
            ends = [40 + 16 * n, 40 + (16 + width) * n, 40 + (16 + width) * n + 24 * m]
            yield Member(data, [8, 12, 16, 24, 32, 40, *ends])


HINTED = "0.sqs"
"""The segment of each hint."""
NARROW, WIDE = 2**24, 2**33
"""Its size: columns of 4 bytes, and of 8."""


@corpus
def hints() -> Iterator[Member]:
    """Of one segment, at one time: with and without a column of offsets, and one of sizes."""
    random = Random(6)
    for size, count, varied, spread in itertools.product((NARROW, WIDE), (0, 1, 2, 9, 40), (False, True), (False, True)):
        ids, sizes = random.randbytes(16 * count), [random.randrange(21, 400) if varied else 40 for _ in range(count)]
        begin = array("Q", [64 + 500 * n for n in range(count)]) if spread else 64
        data = b"".join(hint_files.write_hint((ids, begin, array("Q", sizes)), HINTED, size, 1))
        yield Member(data, [8, 12, 13, 16, 24, 32, 40, 48, 56, 56 + 16 * count, len(data) - 12])


def rows(random: Random) -> dict[bytes, bytes]:
    """The state of an index, with the rows of some segments."""
    names = [b"segment:%d.sqs" % n for n in range(5)] + [b"segment:0.rdq"]
    numbers = [(random.randrange(8), random.randrange(2**24), random.choice([-1, 1_700_000_000 * 10**9])) for _ in names]
    packed = [struct.pack(">BQqQQ", *three, random.randrange(99), random.randrange(2**20)) for three in numbers]
    summed = [row + zlib.crc32(name + row).to_bytes(4) for name, row in zip(names, packed, strict=True)]
    return {b"layout": b"1", **dict(zip(names, summed, strict=True))}


def frame(state: Mapping[bytes, bytes]) -> bytes:
    """A state as one string, so that it can be mutated: each pair behind the lengths of its two halves."""
    return b"".join(struct.pack(">HH", len(key), len(value)) + key + value for key, value in state.items())


def unframe(data: bytes) -> dict[bytes, bytes]:
    """The pairs; what is cut off is taken as it is."""
    state, at = {}, 0
    while at + 4 <= len(data):
        key_size, value_size = struct.unpack_from(">HH", data, at)
        state[data[at + 4 : at + 4 + key_size]] = data[at + 4 + key_size : at + 4 + key_size + value_size]
        at += 4 + key_size + value_size
    return state


@corpus
def states() -> Iterator[Member]:
    random = Random(4)
    for _ in range(12):
        state, at, fields = rows(random), 0, []
        for key, value in state.items():
            fields += [at, at + 4, at + 4 + len(key)]
            at += 4 + len(key) + len(value)
        yield Member(frame(state), fields)


@corpus
def slots() -> Iterator[Member]:
    """Rows of LMDB's entries: id 16, slot 24."""
    random = Random(5)
    for entries in (1, 2, 5, 20):
        pairs = [(random.randbytes(16), pack_location(n, 64 + n, 21 + n) << 48 | 1 + n) for n in range(entries)]
        yield Member(b"".join(msg_id + slot.to_bytes(24) for msg_id, slot in pairs), range(0, 40 * entries, 8))


def saved(write: Callable[[Files, Path, Any], object], value: object) -> Member:
    """Return what a function that writes a file of text writes."""
    files = Mock()
    write(files, Path(), value)
    data = b"".join(files.write_file.call_args.args[1])
    return Member(data, _punctuation(data))


@corpus
def settings() -> Iterator[Member]:
    providers = {"record audit": "acme-audit-record", "body zstd": "acme.zstd_body"}
    for values in (
        Settings(),
        Settings("lmdb", "v1", "message", "erlang", {}),
        Settings("ets", "v2", "audit", "zstd", {"audit": 200}, providers),
        Settings("ets", "v2", "checksum", "raw", {"checksum": 4}),
        Settings("ets", "v2", "stämp", "raw", {"stämp": 128, "checksum": 200, "x" * 40: 255}),
    ):
        yield saved(write_settings, values)
    yield Member(json.dumps([[[[{"layout": {"crc32": 0}}]]]] * 20).encode())


@corpus
def scrubs() -> Iterator[Member]:
    spots = [DamagedSpan("0.sqs", 64, 100, "torn"), DamagedSpan("17.rdq", 0, 2**30, "id_mismatch", "0f" * 16)]
    findings = [
        Inconsistency("0.sqs", "live_count", "2, not 3"),
        Inconsistency("1.sqs", "overlap", "ends at 7", "0f" * 16, 0, 7),
    ]
    for state in (ScrubState(), ScrubState(3, 4, 500, 2**24, "raw", spots, findings), ScrubState(10**17, spots=spots * 20)):
        yield saved(write_state, state)


@corpus
def cleans() -> Iterator[Member]:
    texts = [path.read_bytes() for path in real("clean.dot")]
    texts += [format_clean(refs, last) for refs in ([], [b""], [b"h1"], [bytes(range(256))]) for last in (None, 7)]
    texts += [
        b'{client_refs,[<<"h1">>, <<"shop">>,\n <<1,2,3>>]}.\n{last_v1_file,none}.\n',
        b"{ client_refs , [ << 1 , 2 >> ] } .",
    ]
    yield from (Member(text, _punctuation(text)) for text in texts)


@corpus
def pids() -> Iterator[Member]:
    yield from map(Member, (b"", b"1\n", b"4242\n", b"2147483647\n", b"99999999999999999999\n", b"-1\n", b"1" * 60))
    yield Member(b"4242\n0123456789abcdef\n")


@corpus
def terms() -> Iterator[Member]:
    yield from (Member(term, range(1, min(len(term), 40))) for term in TERMS)
    for path in real(".sqs"):
        data = path.read_bytes()
        scan = V2.scan(data)
        real_bodies = [data[at + 21 : at + size] for at, size in zip(scan.records.offsets, scan.records.sizes, strict=True)]
        yield from (Member(body, range(1, min(len(body), 60))) for body in real_bodies[:3] if len(body) <= SMALL)
    yield Member(b"\x83" + b"h\1" * 200 + b"j", range(1, 400, 7))
    yield Member(b"\x83" + b"l\0\0\0\1" * 100 + b"j" * 101, range(1, 500, 5))


def _punctuation(text: bytes) -> list[int]:
    return [at for at, byte in enumerate(text) if not chr(byte).isalnum()]
