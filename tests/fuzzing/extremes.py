"""Large inputs of the kinds that make a careless parser slow or greedy, each of about the size that is asked for."""

from __future__ import annotations

import struct
import zlib
from array import array
from random import Random

from fuzzing import messages, rabbitmq
from fuzzing.corpus import CHECKSUM, HINTED, NARROW, V1, V2, WIDE, Family, Form, filled, frame, real, terms_of, written
from msgstore.engine.segment.hints import write_hint
from msgstore_ets_index import snapshot


def _ids(count: int) -> list[bytes]:
    return [n.to_bytes(16) for n in range(count)]


def _v2(pattern: bytes) -> Family:
    return filled(pattern, V2.header)


def _chain(count: int) -> bytes:
    return V2.encode([bytes([n]) * 16 for n in range(count)], [b""] * count)[0]


def _many(form: Form, least: int) -> Family:
    return lambda size: form.header + form.encode(_ids(size // least), [b""] * (size // least))[0]


def _broken_checksums(size: int) -> bytes:
    """Every record whole, every checksum wrong."""
    data = bytearray(_many(CHECKSUM, 25)(size))
    data[64 + 21 :: 25] = bytes(byte ^ 1 for byte in data[64 + 21 :: 25])
    return bytes(data)


def _nested(size: int) -> bytes:
    """A record with a wrong checksum in whose body is a record with a wrong checksum, and so on."""
    step = size // 40
    heads = (struct.pack(">BI16sI", 4, step * depth, bytes(16), 1).ljust(step, b"\xaa") for depth in range(40, 0, -1))
    return CHECKSUM.header + b"".join(heads)


def _false_ends(kind: int, step: int) -> Family:
    """A chain whose last record has the next chain inside, and so on: each ends a byte behind or in front of the one around it,
    and the innermost behind them all."""

    def make(size: int) -> bytes:
        chain = _chain(8)
        count = size // 2 // (len(chain) + 25)
        behind = 64 + count * (len(chain) + 25)
        ends = [*range(behind + count, behind + count + step * (count - 1), step), behind + 2 * count]
        data = V2.header
        for n, end in enumerate(ends):
            data += chain
            data += struct.pack(">BI16sI", kind, end - len(data), bytes(16), n)
        return data.ljust(size, b"\x07")

    return make


def _overlapping_v1(size: int) -> bytes:
    """Messages each of which reaches to the very end of the file: an end mark, and nothing that may follow it."""
    count = size // 26
    heads = (struct.pack(">Q16sBB", 26 * (count - n) - 9, n.to_bytes(16), 255, 1) for n in range(count))
    return b"".join(heads)[:-1] + b"\xff"


def _overlapping_v2(size: int) -> bytes:
    count = size // 21
    return V2.header + b"".join(struct.pack(">BI16s", 3, 21 * (count - n) + 1, n.to_bytes(16)) for n in range(count))


def _mixed(form: Form) -> Family:
    return lambda size: written(form, Random(7), size)


def _real(suffix: str) -> Family:
    whole = b"".join(path.read_bytes() for path in real(suffix))
    return lambda size: (whole * (size // len(whole) + 1))[:size]


def _entries(size: int) -> bytes:
    return b"".join(snapshot.write({msg_id: 2**90 + n for n, msg_id in enumerate(_ids(size // 28))}, {}, {}))


def _counts(size: int) -> bytes:
    ids = _ids(size // 40)
    return b"".join(snapshot.write(dict.fromkeys(ids, 0), dict.fromkeys(ids, 2), {}))


def _pairs(size: int) -> bytes:
    """A forged snapshot with nothing but empty keys and values."""
    body = struct.pack(">8sIIQQQ", b"msg-ets\n", 1, 0, 0, 0, size // 8 * 8) + bytes(size // 8 * 8)
    return body + zlib.crc32(body).to_bytes(4)


def _hint(segment_size: int, *columns: str) -> Family:
    """Of records that need these columns."""

    def make(size: int) -> bytes:
        count = size // 32
        sizes = array("Q", [21 + n % 2 for n in range(count)] if "sizes" in columns else [21] * count)
        begin = array("Q", [64 + 25 * n for n in range(count)]) if "offsets" in columns else 64
        return b"".join(write_hint((bytes(16 * count), begin, sizes), HINTED, segment_size, 1))

    return make


def _bomb(filling: bytes) -> Family:
    """A compressed term of a hundred times ``size``; what is inflated is a thousand times what is stored."""

    def make(size: int) -> bytes:
        term = terms_of(filling)(size * 100)[1:]
        return b"\x83P" + len(term).to_bytes(4) + zlib.compress(term, 9)

    return make


ZEROS = {"zeros": filled(b"\0")}
SEGMENTS_V1 = ZEROS | {
    "end marks": filled(b"\xff"),
    "ones": filled(b"\1"),
    "half zeros": filled(bytes(7) + b"\x10"),
    "sizes everywhere": filled(bytes(5) + b"\x10\xff\xff"),
    "phantoms": filled(bytes(6) + b"\x01\x10" + b"\xff" * 300),
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
    "small holes": _v2(_chain(1) + b"\1"),
    "least records": _many(V2, 21),
    "one id": _v2(_chain(1)),
    "corrupt often": _v2(V2.encode([b"a" * 16] * 3, [b"x" * 9] * 3)[0] + b"\x07"),
    "chains just long enough to be found, a bad byte behind each": _v2(_chain(9) + b"\x07"),
    "each chain inside a message that ends at the bad byte": _v2(V2.encode([b"o" * 16], [_chain(9) + b"\x08"])[0] + b"\x07"),
    "false ends, each further": _false_ends(3, 1),
    "false ends, each nearer": _false_ends(3, -1),
    "overlapping": _overlapping_v2,
    "mixed": _mixed(V2),
    "real": _real(".sqs"),
}
CHECKSUMS = SEGMENTS_V2 | {
    "least records": _many(CHECKSUM, 25),
    "broken checksums": _broken_checksums,
    "nested": _nested,
    "false ends and checksums, each further": _false_ends(4, 1),
    "false ends and checksums, each nearer": _false_ends(4, -1),
    "mixed": _mixed(CHECKSUM),
}
JSON = {"lists": filled(b"["), "objects": filled(b'{"a":'), "digits": filled(b"9")}
EXTREMES: dict[str, dict[str, Family]] = {
    "v1-scan": SEGMENTS_V1,
    "v2-scan": SEGMENTS_V2,
    "checksum-scan": CHECKSUMS,
    "v1-salvage": SEGMENTS_V1,
    "v2-salvage": SEGMENTS_V2,
    "checksum-salvage": CHECKSUMS,
    "checksum-record": {"body": lambda size: CHECKSUM.encode([bytes(16)], [bytes(size)])[0]},
    "ets-snapshot": ZEROS | {"entries": _entries, "counts": _counts, "pairs": _pairs},
    "hint": ZEROS | {
        "ids": _hint(NARROW),
        "sizes": _hint(NARROW, "sizes"),
        "offsets": _hint(WIDE, "offsets"),
        "sizes and offsets": _hint(WIDE, "sizes", "offsets"),
    },
    "state-rows": {"rows": lambda size: frame({b"segment:%d.sqs" % n: bytes(33) for n in range(size // 55)})},
    "lmdb-slots": {"rows": lambda size: bytes(range(40)) * (size // 40)},
    "settings": JSON | {"members": lambda size: b"{" + b",".join(b'"%d":0' % n for n in range(size // 9)) + b"}"},
    "scrub-state": JSON | {
        "spots": lambda size: b'{"spots":[' + b",".join([b'{"file":"0.sqs"}'] * (size // 17)) + b"]}",
    },
    "clean-dot": {
        "numbers": lambda size: b"{client_refs,[<<" + b"1," * (size // 2) + b"1>>]}.",
        "names": lambda size: b"{client_refs,[" + b",".join(b"<<%d>>" % (n % 256) for n in range(size // 7)) + b"]}.",
        "different names": lambda size: b"{client_refs,[" + b",".join(b'<<"%d">>' % n for n in range(size // 12)) + b"]}.",
        "blanks": filled(b" ", b"{client_refs,["),
        "begins": filled(b"{client_refs"),
        "begins with blanks": filled(b"{ "),
        "open": filled(b"<<1,", b"{client_refs,["),
        "quotes": filled(b'"', b"{client_refs,[<<"),
    },
    "lock-file": {"digits": filled(b"9"), "blanks": filled(b" ")},
    "erlang-term": {
        "nils": terms_of(b"j"),
        "tuples in tuples": filled(b"h\1", b"\x83"),
        "lists in lists": filled(b"l\0\0\0\1", b"\x83"),
        "atoms": terms_of(b"w\1a"),
        "large atoms": terms_of(b"d\0\xff" + b"a" * 255),
        "a large number": lambda size: b"\x83o" + size.to_bytes(4) + b"\0" + b"\xff" * size,
        "floats": terms_of(b"c" + b"1" * 9 + b".5" + bytes(20)),
        "funs": lambda size: b"\x83" + b"u\0\0\0\1gw\1n" + (bytes(9) + b"w\1ma\1a\1u\0\0\0\1gw\1n") * (size // 24),
        "bomb of nils": _bomb(b"j"),
        "bomb of zeros": _bomb(b"m" + (2**20).to_bytes(4) + bytes(2**20)),
        "bomb of atoms": _bomb(b"w\0"),
    },
    **messages.EXTREMES,
    **rabbitmq.EXTREMES,
}  # fmt: skip
"""Target to what is tried with it."""
