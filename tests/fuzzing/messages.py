"""Good files of Kestrel and RocketMQ, and judges of what their parsers make of damaged ones."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fuzzing.corpus import DATA, corpus
from fuzzing.mutations import Member
from msgstore.contract import SourceDamage
from msgstore.jobs.messages.rows import batch_of, parse_line, queue_of, rows_of
from msgstore_kestrel_journal.files import queue_files
from msgstore_kestrel_journal.records import REMOVE_TENTATIVE_XID, UNREMOVE, encode_addx, encode_xid
from msgstore_kestrel_journal.replay import Replay, replay_journals
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.config import BrokerConfig, read_config
from msgstore_rocketmq_log.files import IndexFile, queue_entries, read_checkpoint
from msgstore_rocketmq_log.flat import InvalidError
from msgstore_rocketmq_log.frame import Frame, decode_v2
from msgstore_rocketmq_log.inner_batch import InnerMessage
from msgstore_rocketmq_log.log import CommitLog, LogFile
from msgstore_rocketmq_log.queues import TopicQueue, build_queues
from msgstore_rocketmq_log.reflow import LAYOUTS, NotDeliverableError, to_v1, to_v2

Family = Callable[[int], bytes]
NOW_MS = 1_700_000_000_000
BEGIN = 1024
"""Offset of the first file of each commit log."""
Log = tuple[CommitLog, dict[tuple[str, int], TopicQueue], list[SourceDamage]]


def vectors(name: str) -> list[dict[str, Any]]:
    found = json.loads((DATA / "vectors" / f"{name}.json").read_bytes())
    return found if isinstance(found, list) else found["vectors"]  # type: ignore[no-any-return]


# -- Kestrel ------------------------------------------------------------------------------------------------------------------


@corpus
def journals() -> Iterator[Member]:
    """Each file of each vector; the fields are the opcodes that can be told without a replay."""
    for vector in vectors("kestrel"):
        for text in vector["journal_files"].values():
            data = bytes.fromhex(text)
            if 0 < len(data) <= 4096:
                yield Member(data, [at for at, byte in enumerate(data) if byte < 10 and not at % 2][:60])


def replay(data: bytes) -> Replay:
    return replay_journals(queue_files(["q"], "q"), [data], NOW_MS, state_dump=bool(len(data) % 2))


def replayed(found: Replay, data: bytes, member: Member) -> None:
    """Every item is there once and stands before the damage; without the damaged end the state is the same."""
    json.dumps(found.to_json())
    places = [*found.state.queue, *found.state.opened.values()]
    assert len(set(places)) == len(places)
    end = found.broken[0].offset if found.broken else len(data)
    assert all(found.item(place).end <= end <= len(data) for place in places)
    if found.broken:
        again = replay_journals(queue_files(["q"], "q"), [data[:end]], NOW_MS, state_dump=found.state_dump)
        assert (again.broken, again.state) == ((), found.state)


# -- RocketMQ -----------------------------------------------------------------------------------------------------------------


def record(offset: int, number: int, topic: str, body: bytes, flag: int = 0, **properties: str) -> bytes:
    text = "".join(f"{name}\1{value}\2" for name, value in properties.items())
    return v1.encode(
        body=body, topic=topic.encode(), properties=text.encode(), queue_offset=number, physical_offset=offset,
        store_timestamp=NOW_MS + number, sys_flag=flag,
    )  # fmt: skip


BATCH = b"".join(struct.pack(">iiiii", 26, 0, 0, 0, 4) + b"body" + struct.pack(">h", 0) for _ in range(3))
MESSAGES: list[tuple[str, bytes, int, dict[str, str]]] = [
    ("T", b"plain", 0, {"TAGS": "a", "own": "x"}),
    ("T", b"", 0, {}),
    ("T", zlib.compress(b"compressed"), 1, {"UNIQ_KEY": "u"}),
    ("T", BATCH, 1 << 4, {"INNER_NUM": "3"}),
    ("SCHEDULE_TOPIC_XXXX", b"later", 0, {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1"}),
    ("RMQ_SYS_TRANS_HALF_TOPIC", b"half", 4, {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": "h"}),
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,1,2", 0, {"TAGS": "d"}),
    ("rmq_sys_wheel_timer", b"wheel", 0, {"REAL_TOPIC": "T", "TIMER_OUT_MS": "99"}),
    ("T", b"committed", 8, {"UNIQ_KEY": "h"}),
]


def make_log(kinds: range, *, layout: int, blank: bool) -> Member:
    data, fields = bytearray(), []
    for number in kinds:
        topic, body, flag, properties = MESSAGES[number % len(MESSAGES)]
        one = record(BEGIN + len(data), number, topic, body, flag, **properties)
        if number % 3 < layout:
            one = to_v2(one, incarnation=1).encode()
        fields += [len(data) + step for step in (0, 4, 8, 12, 20, 28, 36, 84)]
        data += one
    return Member(bytes(data + (v1.blank(40) if blank else bytes(40))), fields)


@corpus
def logs() -> Iterator[Member]:
    """Logs of both layouts, which end in a blank or in zeros."""
    for first in range(0, 9, 2):
        for layout in range(4):
            yield make_log(range(first, first + 6), layout=layout, blank=bool(first % 4))


def read_log(data: bytes) -> Log:
    log = CommitLog([LogFile(BEGIN, "log", len(data))], lambda _: data)
    damage: list[SourceDamage] = []
    return log, build_queues(log, BrokerConfig(), damage), damage


def read(log: Log, data: bytes, member: Member) -> None:
    """Records do not overlap; what is between them is damage or zeros; a body has the checksum of its record."""
    commit, queues, damage = log
    spans = [(scanned[0] - BEGIN, commit.record(scanned[0])) for scanned in commit.scan([])]
    covered = bytearray(data)
    end = 0
    for at, found in spans:
        assert at >= end
        end = at + found.size
        covered[at:end] = bytes(found.size)
        assert data[at:end].count(found.body), "a body that does not stand in its record"
        if found.frame is None and found.body:
            assert zlib.crc32(found.body) & 0x7FFFFFFF == struct.unpack_from(">I", data, at + 8)[0]
        assert found.message_id
        found.properties()
    for span in damage:
        covered[span.offset or 0 : (span.offset or 0) + (span.size or 0)] = bytes(span.size or 0)
    if data[end + 4 : end + 8] == v1.BLANK_MAGIC.to_bytes(4):
        covered[end:] = b""
    assert not any(covered), "bytes that are neither a record nor damage"
    offsets = {at + BEGIN for at, _ in spans}
    for (_, queue_id), queue in queues.items():
        assert set(queue.offsets) <= offsets
        assert -(2**31) <= queue_id < 2**31


@corpus
def log_records() -> Iterator[Member]:
    for vector in vectors("rocketmq"):
        if vector["kind"] == "record" and vector["hex"] and len(vector["hex"]) <= 4096:
            yield Member(bytes.fromhex(vector["hex"]), [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 80, 84])


def recovered(found: dict[str, Any], data: bytes, member: Member) -> None:
    """The decoder and the consume queue agree with what a recovery says."""
    json.dumps([found, v1.decode(data), v1.decode(data, check_crc=True)])
    if found["success"] and found["size"]:
        assert len(v1.consume_queue_entry(data)) == 20
        v1.scan_file(data, 0)
        with contextlib.suppress(NotDeliverableError, InvalidError, ValueError):
            reflowed = to_v1(to_v2(data[: found["size"]]), LAYOUTS)
            assert v1.read_fields(reflowed).queue_offset == v1.read_fields(data).queue_offset


@corpus
def frames() -> Iterator[Member]:
    for vector in vectors("rocketmq_v2"):
        data = bytes.fromhex(vector["hex"])
        yield Member(data, range(0, min(len(data), 400), 2))


def with_frame_crc(data: bytes) -> bytes:
    return data[:8] + zlib.crc32(data[12:]).to_bytes(4) + data[12:] if len(data) > 12 else data


def unframed(frame: Frame | str, data: bytes, member: Member) -> None:
    """A header that is not valid is refused, not read beyond its end."""
    decoded = decode_v2(data)
    if isinstance(frame, str):
        assert decoded is None
        return
    if decoded is not None:
        json.dumps(decoded)
        with contextlib.suppress(NotDeliverableError):
            assert v1.read_fields(to_v1(frame, LAYOUTS)).queue_offset == frame.queue_offset


@corpus
def indexes() -> Iterator[Member]:
    for vector in vectors("rocketmq"):
        if vector["kind"] == "index":
            yield Member(bytes.fromhex(vector["hex"]), range(0, 400, 4))


def looked_up(index: IndexFile, data: bytes, member: Member) -> None:
    for key in ("TopicA#k", "TopicTest#key0", "#", ""):
        assert len(index.lookup(key)) <= max(index.count, 0)


@corpus
def consume_queues() -> Iterator[Member]:
    entries = b"".join(struct.pack(">qiq", 100 * number, 100, -number) for number in range(20))
    yield Member(entries + bytes(60), range(0, 400, 4))
    yield Member(struct.pack(">5q", NOW_MS, NOW_MS, NOW_MS, 0, 0) + bytes(100), range(0, 40, 8))


def read_small(data: bytes) -> list[tuple[int, int, int]]:
    read_checkpoint(data)
    return [*queue_entries(data), *queue_entries(data, batch=True)]


def entered(entries: list[tuple[int, int, int]], data: bytes, member: Member) -> None:
    assert all(offset >= 0 and size > 0 for _, offset, size in entries)
    assert len(entries) <= len(data) // 20 + len(data) // 46


@corpus
def batches() -> Iterator[Member]:
    yield Member(BATCH, range(0, len(BATCH), 4))


def unpacked(found: list[InnerMessage], data: bytes, member: Member) -> None:
    assert sum(len(one[0]) + len(one[1]) + 22 for one in found) == len(data)


TABLES: Mapping[str, bytes] = {
    "topics": b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"readQueueNums":4},"U":{}}}',
    "consumerOffset": b'{"offsetTable":{"T@g":{0:12,1:"x",2:99999999999999999999},"T@h":{}}}',
    "delayOffset": b'{"offsetTable":{1:5,2:7}}',
}


@corpus
def tables() -> Iterator[Member]:
    for data in TABLES.values():
        yield Member(data, [at for at, byte in enumerate(data) if not chr(byte).isalnum()])


def configured(data: bytes) -> BrokerConfig:
    return read_config(frozenset(f"config/{name}.json" for name in TABLES), lambda _: data)


def known(config: BrokerConfig, data: bytes, member: Member) -> None:
    numbers = [
        *(config.delivered or {}).items(),
        *((key[1], at) for its in config.consumed.values() for key, at in its.items()),
    ]
    assert all(0 <= key < 2**31 and 0 <= value < 2**63 for key, value in numbers)


def make_index(head: int) -> Family:
    """An index file whose slots all hold ``head``, and whose header wants one more than there are."""

    def make(size: int) -> bytes:
        return struct.pack(">qqqqii", 1, 2, 3, 4, size // 8, size // 64) + struct.pack(">i", head) * (size // 4)

    return make


def wrong_sums(size: int) -> bytes:
    """Records whose sizes are right, and whose checksum is not."""
    one = bytearray(record(BEGIN, 0, "T", b"x" * 20))
    one[8] ^= 1
    return bytes(one) * (size // len(one))


def magics(total: int) -> Family:
    """Magics behind magics, each with a size that reaches far behind the next."""
    return lambda size: (total.to_bytes(4) + v1.MAGIC.to_bytes(4)) * (size // 8)


def given_back(size: int) -> bytes:
    """Items that are reserved and given back, again and again."""
    steps = encode_xid(REMOVE_TENTATIVE_XID, 7) + encode_xid(UNREMOVE, 7)
    return encode_addx(b"x", 0, 0) * (size // 60) + steps * (size // 20)


ADD = encode_addx(b"", 0, 0)
JSON = {"lists": b"[", "objects": b'{"a":', "digits": b"9", "keys": b'{"a":1,', "quotes": b'"', "bare keys": b"{1:{"}
EXTREMES: dict[str, dict[str, Family]] = {
    "kestrel-journal": {
        "items": lambda size: ADD * (size // 21),
        "removes": lambda size: b"\1" * size,
        "reserved": lambda size: ADD * (size // 26) + encode_xid(REMOVE_TENTATIVE_XID, 1) * (size // 26),
        "given back": given_back,
    },
    "rocketmq-log": {
        "zeros": bytes,
        "wrong sums": wrong_sums,
        "small magics": magics(91),
        "large magics": magics(2**16),
    },
    "rocketmq-record": {"body": lambda size: record(BEGIN, 0, "T", bytes(size))},
    "rocketmq-v2": {"body": lambda size: to_v2(record(BEGIN, 0, "T", bytes(size))).encode()},
    "rocketmq-index": {"zeros": bytes, "empty slots": make_index(0), "full slots": make_index(1)},
    "rocketmq-queue": {"entries": lambda size: struct.pack(">qiq", 1, 1, 1) * (size // 20)},
    "rocketmq-batch": {"messages": lambda size: BATCH * (size // len(BATCH))},
    "rocketmq-config": {kind: partial(lambda text, size: text * (size // len(text)), text) for kind, text in JSON.items()},
    "json-line": {kind: partial(lambda text, size: text * (size // len(text)), text) for kind, text in JSON.items()},
}


# -- JSON Lines ---------------------------------------------------------------------------------------------------------------


@corpus
def lines() -> Iterator[Member]:
    row: dict[str, Any] = {"system": "s", "vhost": "/", "queue": "q", "partition": 1, "position": 5, "sequence": 7}
    row |= {"id": "0f" * 16, "body": "eA==", "exchange": "e", "routing_keys": ["k"], "headers": {"a": [1, {"b": None}]}}
    row |= {"raw": "eA==", "timestamp_ms": NOW_MS, "state": "ready", "verified": True}
    row |= {"origin": {"file": "f", "offset": 1, "size": 2}}
    for names in (list(row), ["system", "body"], ["system", "queue", "body", "origin"]):
        data = json.dumps({name: row[name] for name in names}).encode()
        yield Member(data, [at for at, byte in enumerate(data) if not chr(byte).isalnum()])


def encoded(row: dict[str, Any], data: bytes, member: Member) -> None:
    """What is read as a message can be written again, and is the same then."""
    make = partial(batch_of, queue_of(row), first=0, raw=True)
    [written] = rows_of(make([row]))
    text = json.dumps(written, ensure_ascii=False).encode()
    [again] = rows_of(make([parse_line(text, lambda: "")]))
    assert again == written
