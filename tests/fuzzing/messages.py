"""Good files of Kestrel and RocketMQ, and judges of what their parsers make of damaged ones."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.corpus import DATA, Family, corpus, filled
from fuzzing.mutations import Member
from msgstore.contract import MessageBatch, SourceContext, SourceDamage
from msgstore.jobs.messages.rows import batch_of, parse_line, queue_of, rows_of
from msgstore_kestrel_journal.files import queue_files
from msgstore_kestrel_journal.records import REMOVE_TENTATIVE_XID, UNREMOVE, encode_addx, encode_xid
from msgstore_kestrel_journal.replay import Replay, replay_journals
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.config import BrokerConfig, read_config
from msgstore_rocketmq_log.files import IndexFile, file_name, queue_entries, read_checkpoint
from msgstore_rocketmq_log.flat import InvalidError
from msgstore_rocketmq_log.frame import Frame, decode_v2, make_frame
from msgstore_rocketmq_log.inner_batch import InnerMessage
from msgstore_rocketmq_log.log import CommitLog, LogFile
from msgstore_rocketmq_log.plugin import RocketmqSourceOptions
from msgstore_rocketmq_log.queues import TopicQueue, build_queues
from msgstore_rocketmq_log.reflow import LAYOUTS, NotDeliverableError, to_v1, to_v2
from msgstore_rocketmq_log.source import RocketmqSource

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
        covered[span.offset : span.offset + span.size] = bytes(span.size)
        end = max(end, span.offset + span.size)  # a blank may follow a damaged record
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


# -- whole stores: each file stands behind SEPARATOR, its name, and a zero ---------------------------------------------------

SEPARATOR = b"<file>"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_NAME = re.compile(rb"\w[\w.]{0,30}(/\w[\w.]{0,30}){1,3}", re.ASCII)
LOG_NAME = f"commitlog/{file_name(BEGIN)}"
INCARNATIONS = b'{"last":2,"topics":{"T":[{"number":1,"created":0,"deleted":9},{"number":2,"created":9}]}}'
ODD: list[tuple[str, bytes, int, dict[str, str]]] = [
    ("T", b"c", 0, {"__CRC32#": "1"}),
    ("T", b"c", 0, {"__CRC32#": "1", "more": "x"}),
    ("T", BATCH + b"early", 1 << 7, {"INNER_NUM": "99999"}),
    ("T", zlib.compress(BATCH), 0x81, {"__MQV2": "AAAA", "__V1_PROPERTIES": "x"}),
]
FIELDS = ("queue_id", "queue_offset", "sys_flag", "store_timestamp", "store_port", "born_port", "prepared_transaction_offset")
NUMBERS = (0, 1, 2, -1, -5, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))


def odd_record(random: Random, offset: int, number: int) -> bytes:
    """A good record, some of whose fields have an extreme value."""
    topic, body, flag, properties = random.choice(MESSAGES * 2 + ODD)
    values: dict[str, Any] = {"queue_offset": number, "sys_flag": flag, "store_timestamp": NOW_MS}
    for name in FIELDS:
        value = random.choice(NUMBERS)
        if random.random() < 0.1 and (-(2**31) <= value < 2**31 or name in ("queue_offset", "store_timestamp")):
            values[name] = value | flag if name == "sys_flag" else value
    values |= {"born_host": bytes(range(16))} if random.random() < 0.2 else {}
    kind, text = random.random(), "".join(f"{name}\1{value}\2" for name, value in properties.items())
    if kind < 0.1:
        return make_frame({"topic": topic}, b"", physical_offset=offset).encode()
    one = v1.encode(body=body, topic=topic.encode(), properties=text.encode(), physical_offset=offset, **values)
    if kind < 0.4:
        with contextlib.suppress(ValueError):
            return to_v2(one, random.choice((0, 1, 2))).encode()
    if not body and kind < 0.8:
        return one[:84] + struct.pack(">i", random.choice((-1, -5, -(2**31)))) + one[88:]
    return one


@corpus
def stores() -> Iterator[Member]:
    for seed in range(150):
        random = Random(seed)
        log, places = b"", []
        for number in range(random.randrange(1, 7)):
            places.append(len(log))
            log += odd_record(random, BEGIN + len(log), number)
        if not seed:
            log += record(BEGIN + len(log), 0, "T", zlib.compress(BATCH[:26] * 65_600), 0x81)
        cut = random.choice([0, 0, places[-1]])  # into two files
        parts = {LOG_NAME: log[:cut] if cut else log + random.choice((b"", v1.blank(8), bytes(40)))}
        parts |= {f"commitlog/{file_name(BEGIN + cut)}": log[cut:]} if cut else {}
        entries = [struct.pack(">qiq", BEGIN + at, 100, 0) for at in places]
        parts |= {f"consumequeue/T/{random.choice((0, 1, 'x'))}/{file_name(0)}": b"".join(entries)} if seed % 3 else {}
        tables = {f"config/{name}.json": data for name, data in (*TABLES.items(), ("topicIncarnations", INCARNATIONS))}
        parts |= {name: data for name, data in tables.items() if random.random() < 0.4}
        data, fields = b"", []
        for name, content in parts.items():
            begin = len(data) + len(SEPARATOR) + len(name) + 1
            data += SEPARATOR + name.encode() + b"\0" + content
            head = range(0, len(content), 8) if "/T/" in name or "config" in name else ()
            fields += [begin + at for at in head]
            if name == LOG_NAME:
                fields += [begin + at + step for at in places for step in (0, 4, 16, 20, 28, 36, 40, 48, 76, 84, 88)]
        yield Member(data, [at for at in fields if at < len(data)])


def with_sums(data: bytes) -> bytes:
    """Makes the checksums right behind every magic, as far as the sizes are."""
    found = bytearray(data)
    for at in (match.start() - 4 for match in re.finditer(b"\xda\xa3\x20[\xa7\xab\xaf]", data) if match.start() >= 4):
        size = int.from_bytes(found[at : at + 4])
        if found[at + 7] == 0xAF and size <= len(data) - at:
            found[at + 8 : at + 12] = zlib.crc32(found[at + 12 : at + size]).to_bytes(4)
        elif found[at + 7] != 0xAF:
            with contextlib.suppress(v1.UnreadableError):
                fields = v1.read_fields(bytes(found), at)
                found[at + 8 : at + 12] = v1.body_crc(bytes(found[fields.body : fields.body_end])).to_bytes(4)
    return bytes(found[: len(data)])


def read_store(data: bytes) -> list[tuple[int, int, int]]:
    """Return of each queue: its messages as counted, as read, and as damaged on reading."""
    kind = zlib.crc32(data) % 4
    accepts = (None, None, frozenset({"v1"}), frozenset({"v1", "v1-long", "v2"}))[kind]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        place = Path(folder)
        (place / "commitlog").mkdir()
        for part in data.split(SEPARATOR)[1:]:
            name, _, content = part.partition(b"\0")
            if _NAME.fullmatch(name):
                with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                    (place / name.decode()).parent.mkdir(parents=True, exist_ok=True)
                    (place / name.decode()).write_bytes(content)
        options = RocketmqSourceOptions(max_body=20_000_000)  # type: ignore[arg-type]
        source = RocketmqSource(
            SourceContext(
                path=place, options=options, read=lambda name: (place / name).read_bytes(), now_ms=NOW_MS, raw=kind > 0,
                accepts=accepts,
            )
        )  # fmt: skip
        json.dumps([one.details for one in source.queues()])
        reported = [*source.damage()]
        found = []
        for info in source.queues():
            if not info.read:
                continue
            messages, damaged = 0, -sum(one.messages for one in source._damage.get(info.name, ()))
            for item in source.messages(info.name, 0, None):
                if isinstance(item, MessageBatch):
                    messages += len(item)
                    for row in rows_of(item):
                        json.dumps(row)
                else:
                    damaged += item.messages
                    reported.append(item)
            found.append((source.count(info.name), messages, damaged))
        assert all((place / one.file).is_file() and one.offset >= 0 <= one.size for one in reported)
    return found


def all_there(found: list[tuple[int, int, int]], data: bytes, member: Member) -> None:
    """Each message that was counted is read, or is damage."""
    assert all(counted == messages + damaged for counted, messages, damaged in found), found


def store_of(log: bytes, *more: tuple[str, bytes]) -> bytes:
    return b"".join(SEPARATOR + name.encode() + b"\0" + content for name, content in ((LOG_NAME, log), *more))


def one_batch(size: int) -> bytes:
    inner = struct.pack(">iiiii", 122, 0, 0, 0, 100) + bytes(100) + struct.pack(">h", 0)
    return store_of(record(BEGIN, 0, "T", inner * (size // 122), 1 << 7))


def many_groups(size: int) -> bytes:
    log = b""
    while len(log) < size // 2:
        log += record(BEGIN + len(log), 0, "T", b"")
    groups = b",".join(b'"T@%d":{"0":1}' % number for number in range(size // 100))
    return store_of(log, ("config/consumerOffset.json", b'{"offsetTable":{%s}}' % groups))


def one_record_often(size: int) -> bytes:
    """Entries of a consume queue that all name one large record."""
    log = record(BEGIN, 0, "T", bytes(size // 2))
    return store_of(log, (f"consumequeue/T/0/{file_name(0)}", struct.pack(">qiq", BEGIN, len(log), 0) * (size // 40)))


def make_index(head: int) -> Family:
    """An index file whose slots all hold ``head``, and whose header wants one more than there are."""

    def make(size: int) -> bytes:
        return struct.pack(">qqqqii", 1, 2, 3, 4, size // 8, size // 64) + struct.pack(">i", head) * (size // 4)

    return make


def magics(total: int) -> Family:
    """Magics behind magics, each with a size that reaches far behind the next."""
    return filled(total.to_bytes(4) + v1.MAGIC.to_bytes(4))


def given_back(size: int) -> bytes:
    """Items that are reserved and given back, again and again."""
    steps = encode_xid(REMOVE_TENTATIVE_XID, 7) + encode_xid(UNREMOVE, 7)
    return encode_addx(b"x", 0, 0) * (size // 60) + steps * (size // 20)


ADD, SOUND = encode_addx(b"", 0, 0), record(BEGIN, 0, "T", b"x" * 20)
JSON = {
    "lists": filled(b"["), "objects": filled(b'{"a":'), "digits": filled(b"9"), "keys": filled(b'{"a":1,'),
    "quotes": filled(b'"'), "bare keys": filled(b"{1:{"),
}  # fmt: skip
EXTREMES: dict[str, dict[str, Family]] = {
    "kestrel-journal": {
        "items": filled(ADD),
        "removes": filled(b"\1"),
        "reserved": lambda size: ADD * (size // 26) + encode_xid(REMOVE_TENTATIVE_XID, 1) * (size // 26),
        "given back": given_back,
    },
    "rocketmq-log": {
        "zeros": bytes,
        "wrong sums": filled(SOUND[:8] + bytes([SOUND[8] ^ 1]) + SOUND[9:]),
        "small magics": magics(91),
        "large magics": magics(2**16),
    },
    "rocketmq-record": {"body": lambda size: record(BEGIN, 0, "T", bytes(size))},
    "rocketmq-v2": {"body": lambda size: to_v2(record(BEGIN, 0, "T", bytes(size))).encode()},
    "rocketmq-index": {"zeros": bytes, "empty slots": make_index(0), "full slots": make_index(1)},
    "rocketmq-queue": {"entries": filled(struct.pack(">qiq", 1, 1, 1))},
    "rocketmq-batch": {"messages": filled(BATCH)},
    "rocketmq-store": {
        "batch": one_batch,
        "entries": one_record_often,
        "groups": many_groups,
        "escapes": lambda size: store_of(b"", ("config/topics.json", b'{"topicConfigTable": "' + b'\\"' * (size // 2))),
    },
    "rocketmq-config": JSON,
    "json-line": JSON,
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
    [again] = rows_of(make([parse_line(text)]))
    assert again == written
