"""Large inputs of the kinds that make a careless parser slow or greedy, each of about the size that is asked for."""

from __future__ import annotations

import itertools
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from random import Random

from fuzzing.corpus import CHECKSUM, HINTED, NARROW, V1, V2, WIDE, frame, real, written
from msgstore.engine.segment.hints import write_hint
from msgstore_ets_index import snapshot

Family = Callable[[int], bytes]


def _ids() -> Iterator[bytes]:
    return (n.to_bytes(16) for n in itertools.count())


def _filled(pattern: bytes, head: bytes = b"") -> Family:
    return lambda size: head + pattern * (size // len(pattern))


def _v2(pattern: bytes) -> Family:
    return _filled(pattern, V2.header)


def _many(form: object, least: int) -> Family:
    def make(size: int) -> bytes:
        count = size // least
        return form.header + form.encode(list(itertools.islice(_ids(), count)), [b""] * count)[0]  # type: ignore[attr-defined]

    return make


def _broken_checksums(size: int) -> bytes:
    """Every record whole, every checksum wrong."""
    data = bytearray(_many(CHECKSUM, 25)(size))
    data[64 + 21 :: 25] = bytes(byte ^ 1 for byte in data[64 + 21 :: 25])
    return bytes(data)


def _nested(size: int) -> bytes:
    """A record with a wrong checksum in whose body is a record with a wrong checksum, and so on."""
    depth = 40
    step = size // depth
    heads = b"".join((struct.pack(">BI16sI", 4, step * (depth - n), bytes(16), 1)).ljust(step, b"\xaa") for n in range(depth))
    return CHECKSUM.header + heads


def _corrupt_often(size: int) -> bytes:
    """Three good records, a bad byte, three good records, a bad byte."""
    piece = V2.encode([b"a" * 16] * 3, [b"x" * 9] * 3)[0] + b"\x07"
    return V2.header + piece * (size // len(piece))


def _chains(size: int) -> bytes:
    """Chains that are just long enough to be found, a bad byte behind each."""
    piece = V2.encode([bytes([n]) * 16 for n in range(9)], [b""] * 9)[0] + b"\x07"
    return V2.header + piece * (size // len(piece))


def _swallowed(size: int) -> bytes:
    """The same, each chain inside a message that ends at the bad byte."""
    inner = V2.encode([bytes([n]) * 16 for n in range(9)], [b""] * 9)[0]
    piece = V2.encode([b"o" * 16], [inner + b"\x08"])[0] + b"\x07"
    return V2.header + piece * (size // len(piece))


def _false_ends(kind: int, step: int) -> Family:
    """A chain whose last record has the next chain inside, and so on: each ends a byte behind or in front of the one around it,
    and the innermost behind them all."""

    def make(size: int) -> bytes:
        chain = V2.encode([bytes([n]) * 16 for n in range(8)], [b""] * 8)[0]
        count = size // 2 // (len(chain) + 25)
        behind = 64 + count * (len(chain) + 25)
        ends = [*range(behind + count, behind + count + step * (count - 1), step), behind + 2 * count]
        data = V2.header
        for n, end in enumerate(ends):
            data += chain
            data += struct.pack(">BI16sI", kind, end - len(data), bytes(16), n)
        return data.ljust(size, b"\x07")

    return make


def _overlapping(size: int) -> bytes:
    """Messages each of which reaches to the very end of the file."""
    count = size // 21
    return V2.header + b"".join(struct.pack(">BI16s", 3, 21 * (count - n) + 1, n.to_bytes(16)) for n in range(count))


def _overlapping_v1(size: int) -> bytes:
    """The same, with an end mark in the last byte, and nothing that may follow it."""
    count = size // 26
    heads = (struct.pack(">Q16sBB", 26 * (count - n) - 9, n.to_bytes(16), 255, 1) for n in range(count))
    return b"".join(heads)[:-1] + b"\xff"


def _mixed(form: object) -> Family:
    return lambda size: written(form, Random(7), size)  # type: ignore[arg-type]


def _real(suffix: str) -> Family:
    whole = b"".join(path.read_bytes() for path in real(suffix))
    return lambda size: (whole * (size // len(whole) + 1))[:size]


def _snapshot(size: int) -> bytes:
    count = size // 28
    return b"".join(snapshot.write(dict(zip(_ids(), range(2**90, 2**90 + count), strict=False)), {}, {}))


def _counts(size: int) -> bytes:
    ids = list(itertools.islice(_ids(), size // 40))
    return b"".join(snapshot.write(dict.fromkeys(ids, 0), dict.fromkeys(ids, 2), {}))


def _pairs(size: int) -> bytes:
    """A forged snapshot with nothing but empty keys and values."""
    count = size // 8
    head = struct.pack(">8sIIQQQ", b"msg-ets\n", 1, 0, 0, 0, 8 * count)
    body = head + bytes(8 * count)
    return body + zlib.crc32(body).to_bytes(4)


def _hint(segment_size: int, *columns: str) -> Family:
    """Of records that need these columns."""

    def make(size: int) -> bytes:
        count = size // 32
        sizes = array("Q", [21 + n % 2 for n in range(count)] if "sizes" in columns else [21] * count)
        offsets = array("Q", [64 + 25 * n for n in range(count)])
        ids = bytes(16 * count)
        return b"".join(write_hint((ids, offsets if "offsets" in columns else 64, sizes), HINTED, segment_size, 1))

    return make


def _state(size: int) -> bytes:
    rows = {b"segment:%d.sqs" % n: bytes(33) for n in range(size // 55)}
    return frame(rows)


def _bomb(filling: bytes) -> Family:
    """A compressed term of a hundred times ``size``; what is inflated is a thousand times what is stored."""

    def make(size: int) -> bytes:
        inflated = filling * (size * 100 // len(filling))
        term = b"l" + (len(inflated) // len(filling)).to_bytes(4) + inflated + b"j"
        return b"\x83P" + len(term).to_bytes(4) + zlib.compress(term, 9)

    return make


SEGMENTS_V1 = {
    "zeros": _filled(b"\0"),
    "end marks": _filled(b"\xff"),
    "ones": _filled(b"\1"),
    "half zeros": _filled(bytes(7) + b"\x10"),
    "sizes everywhere": _filled(bytes(5) + b"\x10\xff\xff"),
    "phantoms": _filled(bytes(6) + b"\x01\x10" + b"\xff" * 300),
    "least records": _many(V1, 25),
    "overlapping": _overlapping_v1,
    "mixed": _mixed(V1),
    "real": _real(".rdq"),
}
SEGMENTS_V2 = {
    "zeros": _v2(b"\0"),
    "heads": _v2(b"\3\0\0\0\x15"),
    "heads without sizes": _v2(b"\3\0"),
    "types": _v2(b"\3"),
    "chains that nearly hold": _v2(b"\3\0\0\0\x19" * 30 + b"\x09" * 25),
    "small holes": _v2(V2.encode([b"s" * 16], [b""])[0] + b"\1"),
    "least records": _many(V2, 21),
    "one id": _v2(V2.encode([b"s" * 16], [b""])[0]),
    "corrupt often": _corrupt_often,
    "chains": _chains,
    "swallowed chains": _swallowed,
    "false ends, each further": _false_ends(3, 1),
    "false ends, each nearer": _false_ends(3, -1),
    "overlapping": _overlapping,
    "mixed": _mixed(V2),
    "real": _real(".sqs"),
}
CHECKSUMS = {
    **SEGMENTS_V2,
    "least records": _many(CHECKSUM, 25),
    "broken checksums": _broken_checksums,
    "nested": _nested,
    "false ends and checksums, each further": _false_ends(4, 1),
    "false ends and checksums, each nearer": _false_ends(4, -1),
    "mixed": _mixed(CHECKSUM),
}
EXTREMES: dict[str, dict[str, Family]] = {
    "v1-scan": SEGMENTS_V1,
    "v2-scan": SEGMENTS_V2,
    "checksum-scan": CHECKSUMS,
    "v1-salvage": SEGMENTS_V1,
    "v2-salvage": SEGMENTS_V2,
    "checksum-salvage": CHECKSUMS,
    "checksum-record": {"body": lambda size: CHECKSUM.encode([bytes(16)], [bytes(size)])[0]},
    "ets-snapshot": {"entries": _snapshot, "counts": _counts, "pairs": _pairs, "zeros": _filled(b"\0")},
    "hint": {
        "ids": _hint(NARROW),
        "sizes": _hint(NARROW, "sizes"),
        "offsets": _hint(WIDE, "offsets"),
        "sizes and offsets": _hint(WIDE, "sizes", "offsets"),
        "zeros": _filled(b"\0"),
    },
    "state-rows": {"rows": _state},
    "lmdb-slots": {"rows": lambda size: bytes(range(40)) * (size // 40)},
    "settings": {
        "lists": _filled(b"["),
        "objects": _filled(b'{"a":'),
        "digits": _filled(b"9"),
        "members": lambda size: b"{" + b",".join(b'"%d":0' % n for n in range(size // 9)) + b"}",
    },
    "scrub-state": {
        "lists": _filled(b"["),
        "objects": _filled(b'{"a":'),
        "digits": _filled(b"9"),
        "spots": lambda size: b'{"spots":[' + b",".join([b'{"file":"0.sqs"}'] * (size // 17)) + b"]}",
    },
    "clean-dot": {
        "numbers": lambda size: b"{client_refs,[<<" + b"1," * (size // 2) + b"1>>]}.",
        "names": lambda size: b"{client_refs,[" + b",".join(b"<<%d>>" % (n % 256) for n in range(size // 7)) + b"]}.",
        "different names": lambda size: b"{client_refs,[" + b",".join(b'<<"%d">>' % n for n in range(size // 12)) + b"]}.",
        "blanks": _filled(b" ", b"{client_refs,["),
        "begins": _filled(b"{client_refs"),
        "begins with blanks": _filled(b"{ "),
        "open": _filled(b"<<1,", b"{client_refs,["),
        "quotes": _filled(b'"', b"{client_refs,[<<"),
    },
    "lock-file": {"digits": _filled(b"9"), "blanks": _filled(b" ")},
    "erlang-term": {
        "nils": lambda size: b"\x83l" + size.to_bytes(4) + b"j" * (size + 1),
        "tuples in tuples": _filled(b"h\1", b"\x83"),
        "lists in lists": _filled(b"l\0\0\0\1", b"\x83"),
        "atoms": lambda size: b"\x83l" + (size // 3).to_bytes(4) + b"w\1a" * (size // 3) + b"j",
        "large atoms": lambda size: b"\x83l" + (size // 258).to_bytes(4) + (b"d\0\xff" + b"a" * 255) * (size // 258) + b"j",
        "a large number": lambda size: b"\x83o" + size.to_bytes(4) + b"\0" + b"\xff" * size,
        "floats": lambda size: (
            b"\x83l" + (size // 32).to_bytes(4) + (b"c" + b"1" * 9 + b".5" + bytes(20)) * (size // 32) + b"j"
        ),
        "funs": lambda size: b"\x83" + b"u\0\0\0\1gw\1n" + (bytes(9) + b"w\1ma\1a\1u\0\0\0\1gw\1n") * (size // 24),
        "bomb of nils": _bomb(b"j"),
        "bomb of zeros": _bomb(b"m" + (2**20).to_bytes(4) + bytes(2**20)),
        "bomb of atoms": _bomb(b"w\0"),
    },
}
"""Target to what is tried with it."""
