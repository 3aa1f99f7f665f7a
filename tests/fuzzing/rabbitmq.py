"""Good files of RabbitMQ, and judges of what the parsers of ``rabbitmq_files`` make of damaged ones."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

from erlang_terms import encode, to_term
from fuzzing.corpus import SMALL, Family, corpus, filled, numbered, real, terms_of
from fuzzing.mutations import Member
from rabbitmq_files import index_v1, index_v2
from rabbitmq_files.messages import MessageError, encode_message, read_message
from rabbitmq_files.node_tables import NodeTables, durable_queues, read_tables, vhosts
from rabbitmq_files.properties import PropertiesError, add_headers, encode_header, encode_properties, read_properties
from rabbitmq_files.tables import CLOSED, LOG_MAGIC, OPEN, Table, read_dets, read_log
from rabbitmq_files.terms import Atom, decode

# -- terms and messages -------------------------------------------------------------------------------------------------------


HEADERS = {"text": "x", "n": 1, "big": 2**40, "f": 1.5, "b": True, "v": None, "l": [1, "x", {"k": []}], "t": {"$timestamp": 1}}
OTHERS = [("float", 1.5), ("short", 1), ("byte", -1), ("unsignedint", 1), ("decimal", (2, 1234)), ("binary", b"\xff")]
RAW = add_headers(
    encode_properties({"content_type": "t", "delivery_mode": 2, "message_id": "i", "timestamp": 5}, HEADERS),
    [encode_header(kind.encode(), kind, value) for kind, value in OTHERS],
)
P_BASIC = (
    Atom("P_basic"), *[Atom("undefined")] * 2, [(kind.encode(), Atom(kind), value) for kind, value in OTHERS], 2,
    *[Atom("undefined")] * 10,
)  # fmt: skip
KEY = (b"q", Atom("rejected"))
DEATH = (Atom("death"), b"e", [b"k"], 2, {Atom("first_time"): 5000, Atom("last_time"): 6000, Atom("ttl"): 7})
DEATHS = ([(KEY, DEATH)], (Atom("deaths"), KEY, KEY, {KEY: DEATH, (b"r", Atom("expired")): DEATH}))


def compound(code: int, *values: bytes) -> bytes:
    """A list or a map of AMQP 1.0."""
    inner = b"".join(values)
    return bytes([code, len(inner) + 1, len(values)]) + inner


STAMP = b"\x83" + (1000).to_bytes(8)
SECTIONS = (
    b"\0Ss" + compound(0xC0, b"\xa1\1i", b"\xa0\1u", b"\xa1\1t", *[b"\x40"] * 6, STAMP, b"\xa3\1g")
    + b"\0St" + compound(0xC1, b"\xa1\1a", b"\x54\1", b"\xa1\1b", b"\xe0\4\2\xa1\0\0", b"\xa1\1c", compound(0xC0, b"\x41"))
    + b"\0Su\xa0\4body"
)  # fmt: skip
ANNOTATIONS = [
    ((Atom("symbol"), b"x-k"), (Atom("utf8"), b"v")),
    ((Atom("symbol"), b"x-cc"), (Atom("list"), [(Atom("utf8"), b"k"), (Atom("timestamp"), 5000)])),
]


def made_messages() -> Iterator[bytes]:
    """Messages of each protocol: some sound, and many with a member of another type."""
    content = (Atom("content"), 60, Atom("none"), RAW, Atom("rabbit_framing_amqp_0_9_1"), [b"b", b"a"])
    decoded_content = (Atom("content"), 60, P_BASIC, Atom("none"), Atom("none"), [b"b"])
    data = {
        "mc_amqpl": content, "mc_amqp": (Atom("v1"), ANNOTATIONS, SECTIONS, 0, [], 5, 0x75), "mc_mqtt": (Atom("mqtt_msg"), 1),
    }  # fmt: skip
    for seed in range(60):
        random = Random(seed) if seed > 1 else None
        for kind in data:
            annotations = {
                Atom("rk"): [b"k"], Atom("x"): b"e", Atom("id"): bytes(16), Atom("deaths"): DEATHS[seed % 2],
                Atom("rts"): 2**40, Atom("p"): 4, Atom("ttl"): 5, b"x-k": b"v", b"x-n": 1, Atom("bcc"): [b"c"],
            }  # fmt: skip
            yield to_term((Atom("mc"), Atom(kind), data[kind], annotations), random)
        resource = (Atom("resource"), b"/", Atom("exchange"), b"e")
        for one in (content, decoded_content):
            yield to_term((Atom("basic_message"), resource, [b"k"], one, bytes(16), Atom("true")), random)


@corpus
def terms() -> Iterator[Member]:
    """Messages of every kind; the fields are bytes that may be tags."""
    found = list(made_messages())
    for path in real(".qs"):
        data = path.read_bytes()
        found += [data[at + 8 : at + 8 + size] for at, size in index_v2.walk_stored(data) if size <= SMALL]
    found += [data for path in real(".jif") for data in _embedded(path.read_bytes())]
    found += [b"\x83P" + (len(data) - 1).to_bytes(4) + zlib.compress(data[1:]) for data in found[:6]]
    for data in found:
        yield Member(data, [at for at, byte in enumerate(data) if byte in b"hlmdwtnaj"][:80])


def _embedded(data: bytes) -> list[bytes]:
    publishes = index_v1.read_journal(data).publishes.values()
    return [data[one.term_offset : one.term_offset + one.term_size] for one in publishes if 0 < one.term_size <= SMALL]


def read_term(data: bytes) -> tuple[Any, int]:
    with contextlib.suppress(MessageError):
        read_message(data)
    return decode(data)


def decoded(found: tuple[Any, int], data: bytes, member: Member) -> None:
    """A term ends in the data and does not need what follows; a message can be written, as JSON and again."""
    _, end = found
    assert 1 < end <= len(data)
    repr(decode(data[:end])[0])
    try:
        message, message_end = read_message(data)
    except MessageError:
        return
    assert message_end == end
    assert len(message.body) <= len(data) or data[1] == 80
    json.dumps([message.properties, message.headers, message.timestamp_ms, message.protocol]).encode()
    if message.raw_properties is not None:
        assert read_properties(message.raw_properties) == (message.properties, message.headers)
    if message.protocol == "basic_message":
        again = encode_message(
            vhost=message.vhost or b"", exchange=message.exchange, routing_keys=message.routing_keys, body=message.body,
            raw_properties=message.raw_properties or b"", msg_id=message.msg_id or b"", is_persistent=message.is_persistent,
        )  # fmt: skip
        assert read_message(again) == (message, len(again))


# -- properties ---------------------------------------------------------------------------------------------------------------


@corpus
def properties() -> Iterator[Member]:
    yield Member(RAW, range(0, len(RAW), 2))
    for data in (b"\0\0", encode_properties({"type": "t", "priority": 1}, {}), encode_properties({}, {"k": HEADERS})):
        yield Member(data, range(len(data)))


def propertied(found: tuple[dict[str, Any], dict[str, Any] | None], data: bytes, member: Member) -> None:
    """What is read is JSON; encoded again, unless a name is too long as text, it is the same."""
    json.dumps(found).encode()
    assert read_properties(add_headers(data, []))[0] == found[0]
    with contextlib.suppress(PropertiesError):
        again = read_properties(encode_properties(*found))
        assert again == found or "$" in json.dumps(found)


# -- queue indexes ------------------------------------------------------------------------------------------------------------


@corpus
def indexes_v1() -> Iterator[Member]:
    """Segments and journals; the fields are records."""
    for path in real(".idx", ".jif"):
        data = path.read_bytes()[: 2 * SMALL]
        found = index_v1.read_segment(data) if path.suffix == ".idx" else index_v1.read_journal(data)
        yield Member(data, [one.offset for one in found.publishes.values()])
    for number in (0, 5):
        body = index_v1.encode_body(bytes(15) + b"i", 9, b"term" * number, number)
        marks = index_v1.encode_mark(number) * 2 + index_v1.encode_publish(number + 1, body, is_persistent=False)
        yield Member(index_v1.encode_publish(number, body) + marks, (0, 18, 26, 30, 34))
        marks = index_v1.encode_journal_mark(number, is_acknowledged=True) + index_v1.encode_journal_publish(number + 1, body)
        yield Member(index_v1.encode_journal_publish(number, body) + marks + bytes(60), (0, 24, 32, 36, 40))


def read_v1(data: bytes) -> list[index_v1.IndexFile]:
    return [index_v1.read_segment(data), index_v1.read_journal(data)]


def indexed_v1(found: list[index_v1.IndexFile], data: bytes, member: Member) -> None:
    """Publishes and damage are in the file and do not overlap; the part before the damage is sound by itself."""
    for one, read in zip(found, (index_v1.read_segment, index_v1.read_journal), strict=True):
        publishes = one.publishes.values()
        spans = sorted([(place.offset, place.size) for place in publishes] + [span[:2] for span in one.damage])
        assert all(offset + size <= other for (offset, size), (other, _) in pairwise([*spans, (len(data), 0)]))
        assert all(place.term_offset + place.term_size == place.offset + place.size for place in publishes)
        again = read(data[: one.damage[0][0] if one.damage else len(data)])
        assert (again.publishes.items() <= one.publishes.items(), again.acknowledged <= one.acknowledged) == (True, True)
        assert again.damage == []


@corpus
def indexes_v2() -> Iterator[Member]:
    for path in real(".qi", ".qs"):
        data = path.read_bytes()[: 2 * SMALL]
        yield Member(data, [4, 5, 13, *range(64, len(data), 32)] if path.suffix == ".qi" else [64, 68, 71])


def read_v2(data: bytes) -> tuple[index_v2.Segment, list[tuple[int, int]]]:
    return index_v2.read_index(data), list(index_v2.walk_stored(data))


def indexed_v2(found: tuple[index_v2.Segment, list[tuple[int, int]]], data: bytes, member: Member) -> None:
    """Entries are in the order of the queue, and their messages do not overlap; each byte of ``.qs`` is in a place, or zero."""
    segment, places = found
    assert all(one.number < other.number < segment.stop for one, other in pairwise(segment.entries))
    own = sorted((one.stored_offset, one.stored_offset + 8 + one.stored_size) for one in segment.entries if one.place == "own")
    assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
    assert all(0 <= offset < offset + size <= len(data) for offset, size, _ in segment.damage)
    is_entry = {one.offset for one in segment.entries} | {offset for offset, _, _ in segment.damage}
    if segment.stop:
        assert all(
            at in is_entry or not data[at] for at in range(64, min(len(data), 64 + 32 * (segment.stop - segment.first)), 32)
        )
    end = 64
    for at, size in places:
        assert at == 0 or (at >= end and not any(data[end:at]))  # zeros of RabbitMQ 4 are read over
        end = at + 8 + size
        with contextlib.suppress(index_v2.StoredError):
            term, _ = index_v2.read_stored(data, at, size)
            assert term + size <= len(data)
    assert end >= len(data) or not any(data[end:]) or not places


# -- tables -------------------------------------------------------------------------------------------------------------------


def log(*items: bytes, end: bytes = OPEN) -> bytes:
    return LOG_MAGIC + end + b"".join((len(item) + 1).to_bytes(4) + b"bWLA\x83" + item for item in items)


@corpus
def tables() -> Iterator[Member]:
    """Disk logs, and the buckets of DETS without the free space before them."""
    for path in real(".ets"):
        data = path.read_bytes()[: 2 * SMALL]
        yield Member(data, [4, *(at for at, _ in read_log(data).terms)])
    for path in real(".dets"):
        data = path.read_bytes()
        begin = data.find(b"\x12\x34\x56\x78") - 4
        if begin > 0:
            data = data[:16] + data[begin : begin + SMALL]
            yield Member(data, [4, 16, 20, *(at for at, _ in read_dets(data).terms)])
    queue = (Atom("resource"), b"/", Atom("queue"), b"q")
    arguments, state = [(b"k", Atom("long"), 1)], {Atom("name"): [97, 98]}
    record = (
        Atom("amqqueue"), queue, Atom("true"), Atom("false"), Atom("none"), arguments, Atom("rabbit_stream_queue"), state,
    )  # fmt: skip
    changes = [
        ((Atom("rabbit_durable_queue"), queue), record, Atom("write")),
        ((Atom("rabbit_vhost"), b"/"), (Atom("vhost"), b"/"), Atom("write")),
        ((Atom("rabbit_vhost"), b"x"), [], Atom("delete")),
    ]
    commit = (Atom("commit"), Atom("n@h"), Atom("d"), [], changes, [], [], [])
    for seed in range(40):
        random = Random(seed) if seed else None
        for values in ([commit, commit], [record], changes):
            data = log(*(encode(value, random) for value in values), end=CLOSED if seed % 2 else OPEN)
            yield Member(data, [8, 12, *(at for at, byte in enumerate(data) if byte in b"hlmwt")][:80])


def read_all(data: bytes) -> tuple[Table, Table, NodeTables]:
    found = read_tables({"LATEST.LOG": data, "rabbit_durable_queue.DCD": data, "rabbit_vhost.DCL": data})
    return read_log(data), read_dets(data), found


def listed(found: tuple[Table, Table, NodeTables], data: bytes, member: Member) -> None:
    """Terms and damage do not overlap; each byte after the head of a log is in one of them, or zero."""
    disk_log, dets, node = found
    for table in (disk_log, dets):
        places = [(at, at + size) for at, size, _ in table.damage] + [(at, at + 1) for at, _ in table.terms]
        assert all(0 <= begin <= end <= len(data) for begin, end in places)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(places)))
    end = 8
    for at in sorted([at for at, _ in disk_log.terms] + [at for at, _, _ in disk_log.damage]):
        assert at == end or at == 0
        size = int.from_bytes(data[at : at + 4])
        end = at + 8 + size + 16 * (size >= 65528)
    assert end >= len(data) or disk_log.damage or not any(data[end:])
    json.dumps([node.node, [str(name) for name in vhosts(node)]])
    for queue in durable_queues(node):
        json.dumps([queue.kind, queue.directory]).encode()
        queue.argument(b"x-max-priority")


# -- extremes -----------------------------------------------------------------------------------------------------------------


def one_hash(size: int) -> bytes:
    """A log with keys that are integers whose hash is 0."""
    keys = (b"n\x0a\0" + (number * (2**61 - 1)).to_bytes(10, "little") for number in range(1, size // 40))
    return log(*(b"h\2w\5vhost" + key for key in keys))


def table(inner: bytes) -> Family:
    return lambda size: b"\x20\0" + (size // len(inner) * len(inner)).to_bytes(4) + inner * (size // len(inner))


EXTREMES: dict[str, dict[str, Family]] = {
    "rabbitmq-term": {
        "nils": terms_of(b"j"),
        "atoms": terms_of(b"w\1a"),
        "tuples in tuples": filled(b"h\1", b"\x83"),
        "lists in lists": filled(b"l\0\0\0\1", b"\x83"),
        "claims": filled(b"l\xff\xff\xff\xff", b"\x83"),
        "integers as keys": numbered(b"\x83t", b"n\x08\0" + b"\xff" * 7 + b"\x1fj"),
        "binaries as keys": lambda size: b"\x83t" + (size // 10).to_bytes(4) + b"".join(
            encode(number.to_bytes(4)) + b"j" for number in range(size // 10)
        ),
        "a large integer": lambda size: b"\x83o" + size.to_bytes(4) + b"\0" + b"\xff" * size,
        "bomb": lambda size: b"\x83P\0\x10\0\0" + zlib.compress(b"m\0\x0f\xff\xfb" + bytes(0xFFFFB)) + bytes(size),
        "body in pieces": lambda size: encode_message(
            vhost=b"", exchange=b"", routing_keys=[b"k"] * (size // 6), raw_properties=b"\0\0", body=b"", msg_id=bytes(16)
        ),
    },
    "rabbitmq-properties": {
        "void": table(b"\0V"), "texts": table(b"\1kS\0\0\0\1x"), "tables": table(b"\0F\0\0\0\0"),
        "nested": table(b"\0F\0\0\xff\xff"),
        "decimals": table(b"\1kD\xff\0\0\0\1"), "bytes": table(b"\1kx\0\0\0\0"),
    },
    "rabbitmq-index-v1": {
        "marks": filled(index_v1.encode_mark(5)), "zeros": bytes,
        "publishes": filled(index_v1.encode_publish(5, index_v1.encode_body(b"i" * 16, 1))),
        "marks of a journal": lambda size: b"".join(
            index_v1.encode_journal_mark(number, is_acknowledged=True) for number in range(size // 8)
        ),
    },
    "rabbitmq-index-v2": {
        "shared": filled(index_v2.encode_shared(b"i" * 16, 1), index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 2**40)),
        "one place": filled(index_v2.encode_own(64, 2**31, 1), index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 2**40)),
        "bad entries": filled(b"\x07" * 32, index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 2**40)),
        "stored": filled(b"\0\0\0\1\0\0\0\0j", index_v2.encode_header(index_v2.STORE_MAGIC, 0, 2**40)),
    },
    "rabbitmq-tables": {
        "items": filled(b"\0\0\0\2bWLA\x83j", LOG_MAGIC + OPEN),
        "items that claim the rest": filled(b"\0\0\0\6bWLA\x83m\0\0\xff\xff", LOG_MAGIC + OPEN),
        "keys with one hash": one_hash,
        "marks": filled(b"\x12\x34\x56\x78", b"\0\0\0\0\0\xab\xcd\xef"),
        "buckets beyond the end": filled(
            b"\x7f\xff\xff\xff\x12\x34\x56\x78\0\0\0\x14\x83m\0\0\0\x0aab", b"\0\0\0\0\0\xab\xcd\xef"
        ),
    },
}  # fmt: skip
