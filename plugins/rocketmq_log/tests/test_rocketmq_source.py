"""Store directories: queues and states, damage, what the broker's own files say, and conversions."""

from __future__ import annotations

import base64
import errno
import json
import os
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import flatbuffers
import pytest

from msgstore.contract import ConfigError, MessageBatch, QueueName, SourceDamage, StoreIOError
from msgstore.jobs.detection import detect
from msgstore.jobs.messages import sources as opening
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.convert import convert
from msgstore.jobs.messages.listing import count_queues
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import open_source, source_spec
from msgstore.jobs.tasks import ProgressMeter
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import load_catalogue
from msgstore_rocketmq_log import check, flat, rows, scan_file
from msgstore_rocketmq_log import log as log_module
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.files import BATCH_ENTRY, FILLER, file_name
from msgstore_rocketmq_log.frame import Frame, make_frame
from msgstore_rocketmq_log.incarnations import Incarnation, TopicTable, table_of
from msgstore_rocketmq_log.log import CommitLog, log_files
from support import DATA, flip, json_lines, slow

STORE_MS = 1_700_000_000_000


class Writer:
    """A commit log, record by record, as a broker appends them."""

    def __init__(self, store: Path, size: int = 2000) -> None:
        self.store, self.size = store, size
        self.position = 0
        self.numbers: dict[tuple[str, int], int] = {}
        self.data = bytearray()

    def add(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        *,
        properties: dict | None = None,
        incarnation: int | None = None,
        header: dict | bytes = b"",
        **fields,
    ) -> int:
        """Return the offset of the record."""
        number = self.numbers.get((topic, queue_id), 0)
        fields = {"queue_offset": number, "store_timestamp": STORE_MS + self.position} | fields

        def encode() -> bytes:
            if incarnation is not None:
                place = {name: fields[name] for name in ("queue_offset", "store_timestamp")}
                if isinstance(header, bytes) and header:
                    return Frame(self.position, number, fields["store_timestamp"], header, body).encode()
                values = {"topic": topic, "queue_id": queue_id, "topic_incarnation": incarnation, "body_crc": zlib.crc32(body)}
                return make_frame(values | dict(header), body, physical_offset=self.position, **place).encode()
            pairs = p.encode((properties or {}).items()).encode()
            return v1.encode(
                body=body, topic=topic.encode(), properties=pairs, queue_id=queue_id, physical_offset=self.position,
                store_host=b"\x0a\0\0\1", store_port=10911, **fields,
            )  # fmt: skip

        room = self.size - self.position % self.size
        if len(encode()) + 8 > room:
            self.data += v1.blank(room).ljust(room, b"\xee")
            self.position += room
        record = encode()
        self.numbers[topic, queue_id] = number + 1
        self.data += record
        self.position += len(record)
        return self.position - len(record)

    def save(self, begin: int = 0) -> Path:
        (self.store / "commitlog").mkdir(parents=True, exist_ok=True)
        for at in range(0, len(self.data), self.size):
            content = bytes(self.data[at : at + self.size]).ljust(self.size, b"\0")
            (self.store / "commitlog" / file_name(begin + at)).write_bytes(content)
        return self.store

    def configure(self, name: str, text: str) -> None:
        """Write a file of ``config``, where the broker has its own tables."""
        (self.store / "config").mkdir(exist_ok=True)
        (self.store / "config" / name).write_text(text)

    def read(self, **options):
        """Save the log, and read all of it."""
        return read(self.save(), **options)


@pytest.fixture
def log(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def read(path: Path, *, raw: bool = False, **options):
    """Return (queue, partition, position, state, sequence, body) of every message, and all damage."""
    spec = source_spec(load_catalogue(), path, Backend("rocketmq", options), raw=raw)
    found, damage = [], []
    with open_source(spec) as source:
        for info in source.queues():
            for item in source.messages(info.name, 0, None) if info.read else ():
                if isinstance(item, SourceDamage):
                    damage.append(item)
                    continue
                name = item.name
                found += [
                    (name.queue, name.partition, *row)
                    for row in zip(item.positions, item.states, item.sequences, item.bodies, strict=True)
                ]
        damage += source.damage()
    return found, damage


@pytest.mark.parametrize("name", ["file_512_bad_crc_in_second", "file_exact_plus_8"])
def test_file_of_the_real_code(name, tmp_path):
    [vector] = [one for one in json.loads((DATA / "vectors/rocketmq.json").read_text())["vectors"] if one["name"] == name]
    data = bytes.fromhex(vector["file_hex"])
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / file_name(vector["file_from_offset"])).write_bytes(data)
    assert [name for name, one in detect(load_catalogue(), tmp_path) if one.likelihood == "certain"] == ["rocketmq"]
    found, damage = read(tmp_path)
    assert len(found) >= len(vector["scan"])
    if name == "file_exact_plus_8":
        assert (len(found), damage) == (1, [])
        return
    assert [row[3] for row in found] == ["ready", "orphan", "orphan"]  # a broker would cut off the last two
    assert [(one.offset, one.size, one.reason) for one in damage] == [(113, 113, "the checksum of the body is wrong")]


def test_queues_over_several_files(log):
    for number in range(60):
        log.add("T", b"message %d" % number, number % 3, properties={"TAGS": "a", "k": "v"})
    found, damage = log.read()
    assert len(list((log.store / "commitlog").iterdir())) > 3
    assert not damage
    assert [row[5] for row in found] == [b"message %d" % number for queue in range(3) for number in range(queue, 60, 3)]
    assert [row[2] for row in found] == [row[4] for row in found] == [*range(20)] * 3


def test_file_that_cannot_be_read_costs_its_messages_only(tmp_path, monkeypatch):
    log = Writer(tmp_path, size=1000)
    for number in range(30):
        log.add("T", b"message %d" % number)
    log.save()
    whole, _ = read(tmp_path)
    names = sorted((tmp_path / "commitlog").iterdir())
    of_second = read(names[1])[0]
    read_file = opening._read

    def failing(files, path, name):
        if path / name == names[1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(names[1]))
        return read_file(files, path, name)

    monkeypatch.setattr(opening, "_read", failing)
    found, damage = read(tmp_path)
    assert [row[5] for row in found] == [row[5] for row in whole if row[5] not in {other[5] for other in of_second}]
    assert (f"commitlog/{names[1].name}", "cannot be read: Input/output error") in {(one.file, one.reason) for one in damage}
    with pytest.raises(StoreIOError):  # nothing else is there
        read(names[1])
    with open_source(source_spec(load_catalogue(), tmp_path)) as source:
        (queue,) = source.queues()
        names[1] = names[2]  # read before, and not now
        monkeypatch.setattr(source.backend._log, "_kept", {})  # type: ignore[attr-defined]  # of a CheckedSource
        with pytest.raises(OSError, match="Input/output error"):
            list(source.messages(queue.name, 0, None))
    monkeypatch.setattr(opening, "_read", lambda *_: os.open(tmp_path / "absent", os.O_RDONLY))
    with pytest.raises(StoreIOError):  # not of the file alone
        read(tmp_path)


def test_name_that_cannot_be_examined_is_damage(tmp_path, monkeypatch):
    """Links to disks that are not mounted, and a directory without permission: nothing is left out in silence."""
    log = Writer(tmp_path / "in", size=1000)
    for number in range(30):
        log.add("T", b"message %d" % number)
    *_, last = sorted((log.save() / "commitlog").iterdir())
    whole, _ = read(log.store)
    last.unlink()
    last.symlink_to(tmp_path / "absent")
    (tmp_path / "timers").mkdir()
    (log.store / "timerlog").symlink_to(tmp_path / "timers")
    (log.store / "config").mkdir()
    (log.store / ".#lock").symlink_to(tmp_path / "absent")
    (log.store / "lost+found").mkdir()
    scandir = os.scandir

    def failing(place):
        if str(place) in (str(log.store / "config"), str(log.store / "lost+found")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", failing)
    found, damage = read(log.store)
    assert found == whole[: len(found)]
    assert 0 < len(found) < len(whole)
    assert {one.file: one.reason for one in damage} == {
        f"commitlog/{last.name}": "cannot be examined: No such file or directory",
        "config": "cannot be examined: Permission denied",
        "timerlog": "is a link to a directory, and is not read. Copy the store with cp -aL",
    }
    with pytest.raises(ConfigError, match=r": config cannot be examined: Permission denied\. Make it readable: "):
        read(log.store, group="g")
    assert copy(log.store, tmp_path / "out").total("written") == len(found)


def test_one_file_of_a_log_is_read(log, tmp_path):
    for number in range(60):
        log.add("T", b"message %d" % number)
    log.save()
    second = sorted((tmp_path / "commitlog").iterdir())[1]
    found, damage = read(second)
    assert found
    assert not damage
    assert len(found) == len(scan_file(second.read_bytes(), log.size)["scan"])


def test_damage_within_a_file_loses_only_what_it_covers(tmp_path):
    store = tmp_path / "in"
    log = Writer(store, size=1000)
    offsets = [log.add("T", b"message %d" % number * 3) for number in range(30)]
    log.save()
    flip(store / "commitlog" / file_name(0), offsets[2] + 90, 1)
    queue = store / "consumequeue/T/0"
    queue.mkdir(parents=True)
    entries = [v1.ENTRY.pack(offset, 91 + 1 + len(b"message %d" % number * 3), 0) for number, offset in enumerate(offsets)]
    (queue / file_name(0)).write_bytes(FILLER + b"".join(entries) + bytes(200))
    found, damage = read(store)
    assert [row[4] for row in found] == [number for number in range(30) if number != 2]
    assert {row[3] for row in found} == {"ready"}
    name = QueueName("rocketmq", queue="T", partition=0)
    assert damage == [
        SourceDamage(
            file=f"commitlog/{file_name(0)}", offset=offsets[2], size=offsets[3] - offsets[2], name=name, messages=1,
            reason="the checksum of the body is wrong",
        )
    ]  # fmt: skip
    spec = source_spec(load_catalogue(), store)
    with open_source(spec) as source:
        parts = [item for first, stop in ((0, 10), (10, 29)) for item in source.messages(name, first, stop)]
    assert parts.count(damage[0]) == 1
    [counted] = count_queues(spec, select(), ProgressMeter(0))[0]
    assert (counted.messages, counted.damage, counted.missing) == (29, 1, 1)
    report = copy(store, tmp_path / "out")
    assert [report.total(one) for one in ("selected", "written", "refused", "damaged")] == [30, 29, 0, 1]


@pytest.mark.parametrize(
    ("damaged", "lost"),
    [
        ([1], [("T", 0, 1)]),
        ([5], [("T", 0, 1)]),  # followed by the blank
        ([1, 2], [(None, None, 0)]),  # one span: the record behind the first is not good
        ([6], [("U", 0, 1)]),  # the only message of its queue
        ([7], [(None, None, 0)]),  # of the broker's own topic: its queue is not known
        ([8], [(None, None, 0)]),  # the last one, before zeros
    ],
)
def test_damaged_record_in_a_whole_frame_is_a_lost_message(damaged, lost, tmp_path):
    store = tmp_path / "in"
    log = Writer(store, size=700)
    offsets = [log.add("T", b"message %d" % number) for number in range(6)]
    offsets += [log.add(topic, b"x") for topic in ("U", v1.SCHEDULE_TOPIC, "T")]
    log.save()
    for number in damaged:
        flip(store / "commitlog" / file_name(offsets[number] // 700 * 700), offsets[number] % 700 + 88, 1)
    found = read(store)[1]
    assert [(*((one.name.queue, one.name.partition) if one.name else (None, None)), one.messages) for one in found] == lost
    report = copy(store, tmp_path / "out")
    sums = [report.total(one) for one in ("selected", "written", "refused", "damaged")]
    assert (sums[0], sums[3]) == (sum(sums[1:]), lost[0][2])


def with_entries(log: Writer, offsets: dict[tuple[str, int], list[int]], *, size: int) -> None:
    """Write consume queues of records of one size."""
    for (topic, queue_id), its in offsets.items():
        (queue := log.store / "consumequeue" / topic / str(queue_id)).mkdir(parents=True)
        entries = b"".join(v1.ENTRY.pack(offset, size, 0) for offset in its)
        (queue / file_name(0)).write_bytes(entries.ljust(800, b"\0"))


def two_queues(store: Path, properties: dict | None = None) -> tuple[Writer, dict[tuple[str, int], list[int]]]:
    """Make a log of 20 records of one size in two queues, and of a delayed one."""
    log = Writer(store, size=4000)
    offsets: dict[tuple[str, int], list[int]] = {("T", 0): [], ("T", 1): []}
    for number in range(20):
        offsets["T", number % 2].append(log.add("T", b"message %02d" % number, number % 2, properties=properties))
    log.save()
    return log, offsets


@pytest.mark.parametrize(
    ("at", "bit", "said"),
    [
        (12, 0, "T/16777216, number 3"),
        (15, 0, "T/1, number 3"),
        (27, 0, "T/0, number 2"),
        (27, 5, "T/0, number 35"),
        (-2, 1, "V/0, number 3"),  # the topic
    ],
)
def test_damaged_place_of_a_record_follows_its_entry(at, bit, said, tmp_path):
    """The checksum covers the body only. A topic that is not in the table would make the message an orphan."""
    log, offsets = two_queues(tmp_path / "in")
    with_entries(log, offsets, size=offsets["T", 1][0])
    log.configure("topics.json", '{"topicConfigTable": {"T": {}}}')
    whole, _ = read(log.store)
    damaged = offsets["T", 0][3]
    topic = damaged + 88 + len("message 00")
    flip(log.store / "commitlog" / file_name(0), damaged + at if at > 0 else topic + 1, 1 << bit)
    found, damage = read(log.store)
    assert found == whole
    assert [(one.file, one.offset, one.messages, str(one.name)) for one in damage] == [
        (f"commitlog/{file_name(0)}", damaged, 0, str(QueueName("rocketmq", queue="T", partition=0)))
    ]
    assert damage[0].reason == f"the record says {said}; the consume queue says T/0, number 3, and is followed"
    report = copy(log.store, tmp_path / "out")  # with raw records, of which this is none
    assert [report.total(one) for one in ("selected", "written", "refused", "damaged")] == [20, 20, 0, 0]


def test_damaged_place_of_a_batch_follows_its_entry(log):
    """An entry of a batch queue says the number of the first message itself."""
    log.add("B", b"a")
    at = log.add("B", INNER * 2, sys_flag=v1.INNER_BATCH, properties={"INNER_NUM": "2"}, queue_offset=7)
    (queue := log.store / "batchconsumequeue/B/0").mkdir(parents=True)
    entries = BATCH_ENTRY.pack(0, at, 0, 0, 0, 1, 0, 0) + BATCH_ENTRY.pack(at, len(log.data) - at, 0, 0, 7, 2, 0, 0)
    (queue / file_name(0)).write_bytes(entries.ljust(1000, b"\0"))
    whole, damage = log.read()
    assert ([row[4] for row in whole], damage) == ([0, 7, 8], [])
    for place, said in ((at + 14, "B/256, number 7"), (at + 27, "B/0, number 6")):
        log.data[place] ^= 1
        found, damage = log.read()
        assert found == whole
        reasons = [f"the record says {said}; the consume queue says B/0, number 7, and is followed"]
        assert [one.reason for one in damage] == reasons
        log.data[place] ^= 1


@pytest.mark.parametrize("seals", [False, True])
def test_damaged_entry_moves_no_record(seals, tmp_path):
    """It names a record of another queue: one that has an entry of its own, or whose checksum covers its queue."""
    log, offsets = two_queues(tmp_path / "in", {p.CRC_NAME.rstrip("#") + "#": "0000000000"} if seals else None)
    if seals:
        ends = [*sorted(offset for its in offsets.values() for offset in its), len(log.data)]
        for begin, end in pairwise(ends):
            log.data[end - p.CRC_BYTES : end] = v1.crc_property(bytes(log.data[begin : end - p.CRC_BYTES]))
        log.save()
    whole, damage = read(log.store)
    assert (len(whole), damage) == (20, [])
    entries = {queue: list(its) for queue, its in offsets.items()}
    entries["T", 0][3] = offsets["T", 1][5]
    if seals:
        entries["T", 0].append(offsets["T", 1][6])  # nothing is there of that number
        del entries["T", 1]
    with_entries(log, entries, size=offsets["T", 1][0])
    found, damage = read(log.store)
    assert found == whole
    queue = f"consumequeue/T/0/{file_name(0)}"
    expected = [(queue, 60, 0, f"the record of this entry, at {offsets['T', 1][5]} in the log, says T/1, number 5")]
    if seals:
        expected.append((queue, 200, 1, f"the record of this entry, at {offsets['T', 1][6]} in the log, says T/1, number 6"))
    assert [(one.file, one.offset, one.messages, one.reason) for one in damage] == expected


@pytest.mark.parametrize("files", [None, [], ["foreign"]])
def test_entries_without_a_commit_log_are_damage(files, tmp_path):
    queue = tmp_path / "consumequeue/T/0"
    queue.mkdir(parents=True)
    (queue / file_name(0)).write_bytes(v1.ENTRY.pack(0, 100, 0) + v1.ENTRY.pack(5000, 100, 0))
    if files is not None:
        (tmp_path / "commitlog").mkdir()
        for name in files:
            (tmp_path / "commitlog" / name).write_bytes(b"")
    found, damage = read(tmp_path)
    assert (found, [(one.offset, one.messages) for one in damage]) == ([], [(0, 1), (20, 1)])


def test_old_record_behind_the_end_does_not_come_back(tmp_path):
    """The bytes behind the end of a log that was cut are not zeroed."""
    log = Writer(tmp_path, size=1000)
    log.add("T", b"kept")
    end = log.position
    log.data += v1.encode(body=b"old", topic=b"T", properties=b"", queue_offset=1, physical_offset=end + 500)
    found, damage = log.read()
    assert [row[5] for row in found] == [b"kept"]
    assert [(one.offset, one.reason) for one in damage] == [
        (end, f"the record says that it stands at {end + 500}: it is an old one, or damaged")
    ]


def test_delayed_messages_have_their_real_names(log):
    real = {"REAL_TOPIC": "T", "REAL_QID": "1"}
    for level in (3, 1, 2):
        log.add(v1.SCHEDULE_TOPIC, b"level %d" % level, level - 1, properties={"DELAY": str(level)} | real)
    log.add(v1.SCHEDULE_TOPIC, b"delivered", 4, properties={"DELAY": "5"} | real)
    log.add("T", b"delivered", 1, properties={"DELAY": "5"} | real)
    log.configure("delayOffset.json", '{"offsetTable":{5:1,1:0}}')
    found, _ = log.read()
    assert found == [
        ("T", 1, 0, "ready", 0, b"delivered"),
        ("T", 1, 1, "delayed", None, b"level 1"),
        ("T", 1, 2, "delayed", None, b"level 2"),
        ("T", 1, 3, "delayed", None, b"level 3"),
        ("T", 1, 4, "consumed", None, b"delivered"),
    ]


def half(log: Writer, unique: str, body: bytes, **more: str) -> int:
    properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "TRAN_MSG": "true", "UNIQ_KEY": unique} | more
    return log.add("RMQ_SYS_TRANS_HALF_TOPIC", body, properties=properties)


def test_transactions(log):
    committed, rolled_back, open_, put_back, crashed = (half(log, name, name.encode()) for name in "croux")
    log.add("T", b"c", properties={"UNIQ_KEY": "c"}, sys_flag=v1.COMMITTED, prepared_transaction_offset=committed)
    log.add("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,1", properties={"TAGS": "d"})
    half(log, "u", b"u", TRANSACTION_CHECK_TIMES="1")
    log.add("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"3", properties={"TAGS": "d"})
    for _ in range(2):  # a commit record, a crash before the op message, and a second commit
        log.add("T", b"x", properties={"UNIQ_KEY": "x"}, sys_flag=v1.COMMITTED, prepared_transaction_offset=crashed)
    found, _ = log.read()
    assert [(row[3], row[5]) for row in found] == [
        ("committed", b"c"), ("committed", b"x"), ("orphan", b"x"), ("rolled_back", b"r"), ("half", b"o"), ("half", b"u"),
    ]  # fmt: skip
    assert rolled_back < open_ < put_back


def test_transactions_before_4_3(log):
    one, two = (log.add("T", body, sys_flag=v1.PREPARED, queue_offset=0) for body in (b"kept", b"gone"))
    log.add("T", b"kept", sys_flag=v1.COMMITTED, prepared_transaction_offset=one, queue_offset=0)
    log.add("T", b"", sys_flag=v1.ROLLED_BACK, prepared_transaction_offset=two, queue_offset=0)
    found, _ = log.read()
    assert [(row[3], row[5]) for row in found] == [("committed", b"kept"), ("rolled_back", b"gone")]


def test_delayed_transactions(log):
    """Their commit records wait in the topic of delayed messages. The delivered message names no half record."""
    halves = {name: half(log, name, name.encode(), DELAY="3") for name in "oabw"}
    for name in ("a", "b", "w", "w"):  # the last one twice, because of a crash
        properties = {"UNIQ_KEY": name, "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}
        to = {"properties": properties, "sys_flag": v1.COMMITTED, "prepared_transaction_offset": halves[name]}
        log.add(v1.SCHEDULE_TOPIC, name.encode(), 2, **to)
    log.add("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"1,2,3", properties={"TAGS": "d"})
    for name in "ab":
        log.add("T", name.encode(), properties={"UNIQ_KEY": name}, sys_flag=v1.COMMITTED)
    log.configure("delayOffset.json", '{"offsetTable":{3:2}}')
    found, _ = log.read()
    assert [(row[3], row[5]) for row in found if row[3] not in ("consumed", "orphan")] == [
        ("committed", b"a"), ("committed", b"b"), ("delayed", b"w"), ("half", b"o"),
    ]  # fmt: skip
    assert sorted((row[3], row[5]) for row in found if row[3] in ("consumed", "orphan")) == [
        ("consumed", b"a"), ("consumed", b"b"), ("orphan", b"w"),
    ]  # fmt: skip


def test_transaction_at_the_begin_of_the_log_is_committed_once(log):
    """Its commit records name the offset 0, as copies of any committed message do."""
    assert half(log, "x", b"x") == 0
    for key in "xxy":
        log.add("T", key.encode(), properties={"UNIQ_KEY": key}, sys_flag=v1.COMMITTED)
    found, _ = log.read()
    assert [(row[3], row[5]) for row in found] == [("committed", b"x"), ("orphan", b"x"), ("committed", b"y")]


def test_retries_of_committed_messages_are_delivered(log):
    """The broker copies flag and key, and names no half record."""
    log.add("T", b"first")
    committed = half(log, "c", b"c")
    copy = {"properties": {"UNIQ_KEY": "c"}, "sys_flag": v1.COMMITTED}
    log.add("T", b"c", **copy, prepared_transaction_offset=committed)
    log.add("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0", properties={"TAGS": "d"})
    for group in "gh":
        log.add(f"%RETRY%{group}", b"c", **copy)
        waits = {"UNIQ_KEY": "c", "DELAY": "3", "REAL_TOPIC": f"%RETRY%{group}", "REAL_QID": "0"}
        log.add(v1.SCHEDULE_TOPIC, b"c", 2, **copy | {"properties": waits})
    found, _ = log.read()
    assert [(row[0], row[3]) for row in found] == [
        ("%RETRY%g", "committed"), ("%RETRY%g", "delayed"), ("%RETRY%h", "committed"), ("%RETRY%h", "delayed"),
        ("T", "ready"), ("T", "committed"),
    ]  # fmt: skip


def test_what_a_group_has_consumed(log, tmp_path):
    for number in range(5):
        log.add("T", b"%d" % number)
    log.configure("consumerOffset.json", '{"offsetTable":{"T@g":{0:3},"T@h":{"0":5},"U@g":{7:"x"}}}')
    found, damage = log.read(group="g")
    assert [row[3] for row in found] == ["consumed"] * 3 + ["ready"] * 2
    assert not damage
    with open_source(source_spec(load_catalogue(), tmp_path)) as source:
        [info] = source.queues()
    assert info.details == {"lag": {"g": 2, "h": 0}}
    flip(tmp_path / "commitlog" / file_name(0), 0, 1)  # what is behind it in the last file is not there for a broker
    with open_source(source_spec(load_catalogue(), tmp_path)) as source:
        [info] = source.queues()
    assert info.details == {"lag": {"g": 0, "h": 0}}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('{"offsetTable":{"T@billing":{0:3}}}', "has no group 'biling'. Did you mean 'billing'[?] There are: billing."),
        ('{"offsetTable":{"T@x":{0:3}}}', "has no group 'biling'. There are: x."),
        ("{", "cannot be read: .*. Leave --group out."),
        (None, "is not there. Leave --group out."),
    ],
)
def test_group_unknown_is_an_error(table, told, log):
    log.add("T", b"a")
    if table is not None:
        log.configure("consumerOffset.json", table)
    with pytest.raises(ConfigError, match=f": config/consumerOffset.json {told}$"):
        log.read(group="biling")


def test_messages_of_deleted_topics_are_orphans_and_config_may_be_damaged(log):
    log.add("T", b"a")
    log.add("U", b"b")
    log.configure("topics.json", "{")
    log.configure("topics.json.bak", '{"topicConfigTable": {"T": {}}}')
    log.configure("delayOffset.json", "[]")
    found, damage = log.read()
    assert [(row[0], row[3]) for row in found] == [("T", "ready"), ("U", "orphan")]
    assert [one.file for one in damage] == ["config/delayOffset.json"]


def test_two_incarnations_of_a_topic(log):
    """Create, send, delete, create again, send, crash: only the second topic's message is delivered."""
    table = TopicTable()
    first = table.create("T", log.position)
    log.add("T", b"old", incarnation=first)
    log.add("T", b"older, in v1")
    table.delete("T", log.position)
    log.numbers.clear()
    second = table.create("T", log.position)
    log.add("T", b"new", incarnation=second)
    log.add("T", b"newer, in v1")
    table.save(log.save())
    found, damage = read(log.store)
    assert [row[5] for row in found if row[3] == "ready"] == [b"new", b"newer, in v1"]
    assert [row[5] for row in found if row[3] == "orphan"] == [b"old", b"older, in v1"]
    assert not damage
    assert (first, second) == (1, 2)


def test_mixed_log(log):
    for number in range(20):
        log.add("T", b"%d" % number, incarnation=0 if number % 2 else None)
    found, damage = log.read()
    assert [row[5] for row in found] == [b"%d" % number for number in range(20)]
    assert not damage


def test_compressed_bodies(log):
    log.add("T", zlib.compress(b"small" * 10), sys_flag=v1.COMPRESSED)
    log.add("T", zlib.compress(b"small" * 10), sys_flag=v1.COMPRESSED | v1.ZLIB << 8)
    log.add("T", zlib.compress(bytes(10**6)), sys_flag=v1.COMPRESSED)
    log.add("T", zlib.compress(b"x" * 100)[:-5], sys_flag=v1.COMPRESSED)
    log.add("T", b"x", sys_flag=v1.COMPRESSED | 7 << 8)
    found, damage = log.read(max_body=1000)
    assert [row[5] for row in found] == [b"small" * 10] * 2
    assert [one.reason.partition(" with")[0] for one in damage] == [
        "the body has more than 1000 bytes", "the compressed body ends early", "there is no codec 7",
    ]  # fmt: skip
    assert [one.messages for one in damage] == [1, 1, 1]


def test_inner_batch_is_split(log):
    log.add("T", b"before")
    inner = b"".join(
        struct.pack(">iIiii", 22 + len(body) + 4, 0, 0, 0, len(body)) + body + struct.pack(">h", 4) + b"k\x01v\x02"
        for body in (b"one", b"two", b"three")
    )
    log.add("T", inner, sys_flag=v1.INNER_BATCH, properties={"INNER_NUM": "3"})
    log.numbers["T", 0] = 4
    log.add("T", b"after")
    found, damage = log.read()
    assert [(row[2], row[4], row[5]) for row in found] == [
        (0, 0, b"before"), (1, 1, b"one"), (2, 2, b"two"), (3, 3, b"three"), (4, 4, b"after"),
    ]  # fmt: skip
    assert not damage


INNER = struct.pack(">iIiii", 25, 0, 0, 0, 3) + b"one" + struct.pack(">h", 0)
"""One message of a batch."""


@pytest.mark.parametrize("claim", [None, "1", "2", "65535"])
def test_messages_of_a_batch_are_counted(claim, log):
    """Whatever the record says: three are there."""
    log.add("T", INNER * 3, sys_flag=v1.INNER_BATCH, properties={"INNER_NUM": claim} if claim else {})
    log.add("T", b"", sys_flag=v1.INNER_BATCH, properties={"INNER_NUM": "65535"})
    found, damage = log.read()
    assert [row[5] for row in found] == [b"one"] * 3
    assert len(damage) == 1


def test_other_layouts_are_named(tmp_path):
    Writer(tmp_path).save()
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    (tmp_path / "dledger-n0" / "data" / file_name(0)).write_bytes(b"x")
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog" / file_name(0)).write_bytes(b"x")
    with open_source(source_spec(load_catalogue(), tmp_path, Backend("rocketmq"))) as source:
        found = list(source.queues())
    assert [(info.type, info.read) for info in found] == [("DLedger log", False), ("timer log", False)]


def copy(origin: Path, destination: Path, *, v2: bool = False, **choices):
    sink = Backend("rocketmq", {"file_size": 2000, "queue_entries": 10, "v2": v2})
    job = plan_convert(load_catalogue(), origin, str(destination), select(everything=True), sink=sink, **choices)
    return convert(job, ProgressMeter(0))


def test_sink_writes_what_the_brokers_rules_accept(tmp_path):
    log = Writer(tmp_path / "in", size=1500)
    for number in range(40):
        log.add("T", b"message %d" % number, number % 2, properties={"TAGS": "a", "KEYS": f"k{number} all"}, flag=number)
    log.save()
    report = copy(tmp_path / "in", tmp_path / "out")
    assert (report.total("written"), report.total("refused")) == (40, 0)
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"checkpoint", "config/topics.json", f"consumequeue/T/1/{file_name(200)}"} <= names
    valid = 0
    for file in sorted((tmp_path / "out/commitlog").iterdir()):
        assert file.stat().st_size == 2000
        found = scan_file(file.read_bytes(), int(file.name))
        assert all(one["phy"] == int(file.name) + one["at"] for one in found["scan"])
        valid += len(found["scan"])
    assert valid == 40
    entries = b"".join(file.read_bytes() for file in sorted((tmp_path / "out/consumequeue/T/1").iterdir()))
    where = [v1.ENTRY.unpack_from(entries, 20 * number) for number in range(20)]
    for number, (offset, size, code) in enumerate(where):
        data = (tmp_path / "out/commitlog" / file_name(offset // 2000 * 2000)).read_bytes()
        verdict = check(data, offset % 2000)
        assert (verdict["size"], verdict["cq_offset"], verdict["tags_code"]) == (size, number, code)
    before, _ = read(tmp_path / "in")
    after, damage = read(tmp_path / "out")
    assert (after, damage) == (before, [])
    assert not list(tmp_path.glob(".*"))


def header_of_version(fields: int) -> bytes:
    """A header of a version with so many fields: its topic, and the last field. This version has 13."""
    builder = flatbuffers.Builder(64)
    topic = builder.CreateString("t")
    builder.StartObject(fields)
    builder.PrependUOffsetTRelativeSlot(0, topic, 0)
    if fields > 13:
        builder.PrependInt32Slot(fields - 1, 77, 0)
    builder.Finish(builder.EndObject(), file_identifier=flat.IDENTIFIER)
    return bytes(builder.Output())


def frames(store: Path) -> list[Frame | str]:
    files = sorted((store / "commitlog").iterdir())
    log = CommitLog(
        log_files({file.name: file.stat().st_size for file in files}, ""), lambda name: files[0].with_name(name).read_bytes()
    )
    return [log.record(place).frame for place, *_ in log.scan([])]


def test_records_of_v2_go_through_v1_and_back(tmp_path):
    """A header with a field of a later version, one without the newest field, incarnations, and v1 records among them."""
    log, table = Writer(tmp_path / "in"), TopicTable(last=6)
    for topic in ("T", "t"):
        table.create(topic, 0)
    log.add("T", b"plain", properties={"TAGS": "a"})
    log.add("T", b"v2", incarnation=7, header={"system": {"tags": "b"}, "user_properties": [{"name": "k", "value": b"v"}]})
    log.add("t", b"later", incarnation=0, header=header_of_version(14))
    log.add("t", b"older", incarnation=0, header=header_of_version(12))
    table.save(log.save())
    copied = copy(tmp_path / "in", tmp_path / "v2", v2=True)
    assert (copied.total("written"), copied.total("refused")) == (4, 0)
    reflowed = copy(tmp_path / "v2", tmp_path / "v1")
    assert (reflowed.total("written"), reflowed.total("refused")) == (4, 0)
    assert not any(frames(tmp_path / "v1"))
    assert not (tmp_path / "v1/config/recordLayout.json").exists()
    copy(tmp_path / "v1", tmp_path / "again", v2=True)
    stored = {frame.body: frame.header_bytes for frame in frames(tmp_path / "in") if frame}
    for place in ("v2", "again"):
        made = {frame.body: frame.header_bytes for frame in frames(tmp_path / place)}
        assert {body: made[body] for body in (b"later", b"v2" if place == "v2" else b"later")}.items() <= stored.items()
        assert len(made) == 4
        assert read(tmp_path / place)[1] == []
    assert TopicTable(7, {"T": [Incarnation(7, 0)], "t": [Incarnation(0, 0)]}) == table_of(
        json.loads((tmp_path / "v2/config/topicIncarnations.json").read_bytes())
    )
    bodies = [sorted(row[5] for row in read(tmp_path / place)[0]) for place in ("in", "v2", "v1", "again")]
    assert bodies == [bodies[0]] * 4


def test_record_without_a_form_for_the_reader_is_refused(tmp_path):
    log = Writer(tmp_path / "in")
    log.add("T", b"shadow", incarnation=0, header={"user_properties": [{"name": "TAGS", "value": b"x"}]})
    log.add("T", b"six", born_host=bytes(range(16)))
    log.save()
    assert copy(tmp_path / "in", tmp_path / "v2", v2=True).total("written") == 2
    report = copy(tmp_path / "in", tmp_path / "v1")
    assert (report.total("written"), report.total("refused")) == (1, 1)
    assert "'TAGS' has the name of a system property" in next(iter(report.reasons))
    source = Backend("rocketmq", {"reflow_prefix": True})
    assert copy(tmp_path / "in", tmp_path / "prefixed", source=source).total("written") == 2
    found = [batch.properties for batch in read_batches(tmp_path / "prefixed")]
    assert found == [[{}, {}]]
    plain = copy(tmp_path / "in", tmp_path / "plain", accepts=("v1",), source=source)
    assert plain.total("written") == 2
    [batch] = read_batches(tmp_path / "plain")
    assert batch.headers[1]["__BORN_HOST"].startswith("[1:")


def test_two_incarnations_do_not_become_one_topic(tmp_path):
    rows = []
    for number in (1, 2):
        frame = make_frame({"topic": "T", "topic_incarnation": number}, b"x%d" % number)
        raw = base64.b64encode(frame.encode()).decode()
        rows.append({"system": "rocketmq", "queue": "T", "body": base64.b64encode(frame.body).decode(), "raw": raw})
    report = copy(json_lines(tmp_path / "m.jsonl", rows), tmp_path / "out", v2=True)
    assert (report.total("written"), report.total("refused")) == (1, 1)
    assert "another incarnation" in next(iter(report.reasons))


def test_refused_names_and_values(tmp_path):
    row = {"system": "other", "body": "eA==", "queue": "a.b"}
    rows = [
        row,
        row | {"queue": "ok", "headers": {"h": 1, "i": True}},
        row | {"queue": "ok", "headers": {"h": {"$bytes": "eA=="}}},
    ]
    report = copy(json_lines(tmp_path / "m.jsonl", rows), tmp_path / "out")
    assert (report.total("written"), report.total("refused")) == (1, 2)
    [batch] = read_batches(tmp_path / "out")
    assert (batch.name, batch.headers) == (QueueName("rocketmq", queue="ok", partition=0), [{"h": "1", "i": "true"}])


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("state", "told"), [("expired", "no expiry"), ("consumed", "again"), ("rolled_back", "rolled back")])
def test_sink_message_that_has_ended_is_refused(state, told, raw, tmp_path):
    record = base64.b64encode(v1.encode(body=b"x", topic=b"T", properties=b"")).decode()
    rows = [{"system": "rocketmq", "queue": "T", "body": "eA==", "state": one, "raw": record} for one in ("ready", state)]
    report = copy(json_lines(tmp_path / "m.jsonl", (row if raw else row | {"raw": None} for row in rows)), tmp_path / "out")
    assert (report.total("written"), report.total("refused")) == (1, 1)
    assert told in next(iter(report.reasons))


def read_batches(path: Path) -> list[MessageBatch]:
    with open_source(source_spec(load_catalogue(), path)) as source:
        return [batch for info in source.queues() for batch in source.messages(info.name, 0, None)]


def test_heads_that_claim_the_rest_of_the_file_cost_bounded_time(tmp_path, monkeypatch):
    """Good records with false heads between them: each head alone would cost a checksum over the rest."""
    log, examined = Writer(tmp_path, size=2**20), []
    for number in range(400):
        log.add("T", b"%d" % number)
        false = v1.encode(body=bytes(2**20 - len(log.data) - 400), topic=b"", properties=b"", physical_offset=log.position)
        log.data += false[:88]
        log.position += 88
    checksum = zlib.crc32
    monkeypatch.setattr(v1, "body_crc", lambda body: examined.append(len(body)) or checksum(body) & 0x7FFFFFFF)
    assert log.read()[1]
    assert sum(examined) < 40 * 2**20


def odd(offset: int, *, body: bytes = b"", topic: bytes = b"T", properties: bytes = b"", **fields) -> bytes:
    return v1.encode(body=body, topic=topic, properties=properties, physical_offset=offset, **fields)


def odd_v2(offset: int, **header) -> bytes:
    return make_frame({"topic": "T"} | header, b"", physical_offset=offset).encode()


def negative_body(size: int):
    return lambda at: (record := odd(at, topic=b"N", properties=b"k\1v\2"))[:84] + struct.pack(">i", size) + record[88:]


FAR_PORT = {"hi": 0, "lo": 0, "port": 2**32 - 1, "family": "None"}


@pytest.mark.parametrize(
    ("make", "bodies", "reasons"),
    [
        slow(
            lambda at: odd(at, body=zlib.compress(INNER * 65_600), sys_flag=0x81), 0, ["the batch has more than 32767 messages"]
        ),
        slow(
            lambda at: odd(at, body=bytes(70_000), sys_flag=0x80, properties=b"INNER_NUM\00199999\2"), 0, ["a message"] * 32767
        ),
        (lambda at: odd(at, body=INNER * 2, sys_flag=0x80, queue_offset=2**63 - 1), 0, ["a batch of messages begins at"]),
        (lambda at: odd(at, properties=b"__CRC32#\0011\2"), 1, []),
        (lambda at: odd_v2(at, store_host=FAR_PORT), 1, []),
        (odd_v2, 1, []),
        (negative_body(-(2**31)), 1, []),
        (negative_body(-5), 1, []),
    ],
)
@pytest.mark.parametrize("accepts", [None, ("v1",)])
def test_odd_record_leaves_the_others_readable(make, bodies, reasons, accepts, tmp_path):
    (tmp_path / "commitlog").mkdir()
    data = odd(0, topic=b"U", body=b"good")
    data += odd(len(data), born_host=bytes(16), queue_offset=1)
    (tmp_path / "commitlog" / file_name(0)).write_bytes(data + make(len(data)))
    with open_source(source_spec(load_catalogue(), tmp_path, raw=True, accepts=accepts)) as source:
        items = [item for info in source.queues() for item in source.messages(info.name, 0, None)] + [*source.damage()]
    batches = [item for item in items if isinstance(item, MessageBatch)]
    assert sum(map(len, batches)) == 2 + bodies
    assert all(batch.raws or batch.refusals for batch in batches)
    found = [item.reason for item in items if isinstance(item, SourceDamage)]
    assert [reason[: len(told)] for reason, told in zip(found, reasons, strict=True)] == reasons
    headers = [(one, headers) for batch in batches for one, headers in zip(batch.verified, batch.headers, strict=True)]
    assert ((None, {"k": "v"}) in headers) == (b"k\1v" in make(0))


@pytest.mark.parametrize("last", ['"x"', "Infinity", "1.5", "null"])
@pytest.mark.parametrize("field", ["number", "created", "deleted", "last"])
def test_incarnations_with_wrong_types_are_damage(field, last, log):
    if (field, last) == ("deleted", "null"):
        return
    log.add("T", b"a")
    values = {"number": "1", "created": "0", "deleted": "5", "last": "1"} | {field: last}
    one = ",".join(f'"{name}":{values[name]}' for name in ("number", "created", "deleted"))
    log.configure("topicIncarnations.json", f'{{"last":{values["last"]},"topics":{{"T":[{{{one}}}]}}}}')
    found, damage = log.read()
    assert ([row[3] for row in found], [one.file for one in damage]) == (["ready"], ["config/topicIncarnations.json"])


def test_batch_of_large_bodies_ends_after_some_mib(tmp_path):
    log = Writer(tmp_path, size=2**20)
    for _ in range(6):
        log.add("T", zlib.compress(bytes(3 * 2**20)), sys_flag=v1.COMPRESSED)
    assert [len(batch) for batch in read_batches(log.save())] == [2, 2, 2]


def test_overlapping_batches_are_split_once_each(tmp_path, monkeypatch):
    log, calls = Writer(tmp_path, size=2**20), []
    for _ in range(3):
        log.add("T", INNER * 500, sys_flag=v1.INNER_BATCH, queue_offset=7)
    split = rows.split
    monkeypatch.setattr(rows, "split", lambda body: calls.append(1) or split(body))
    found, damage = log.read()
    assert ([row[3] for row in found], damage) == (["ready"] * 500 + ["orphan"] * 1000, [])
    assert len(calls) == 3


def test_entries_of_one_record_read_it_once(tmp_path, monkeypatch):
    log, calls = Writer(tmp_path, size=2**16), []
    log.add("T", b"x" * 1000, incarnation=0)
    size = len(log.data)
    log.save()
    queue = tmp_path / "consumequeue/T/0"
    queue.mkdir(parents=True)
    (queue / file_name(0)).write_bytes(v1.ENTRY.pack(0, size, 0) * 500 + v1.ENTRY.pack(0, size + 1, 0))
    read_frame = log_module.read_frame
    monkeypatch.setattr(log_module, "read_frame", lambda *given: calls.append(1) or read_frame(*given))
    assert [one.offset for one in read(tmp_path)[1]] == [500 * 20]
    assert len(calls) < 5


def test_files_that_alternate_are_loaded_once(log):
    loaded = []
    for number in range(40):
        log.add("T", b"%d" % number, queue_offset=number * 7 % 40)
    files = sorted((log.save() / "commitlog").iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    commit = CommitLog(log_files(sizes, ""), lambda name: loaded.append(name) or files[0].with_name(name).read_bytes())
    for number in [*range(len(files))] * 3:
        commit.content(number)
    assert sorted(loaded) == sorted(sizes)


def test_file_that_reaches_over_the_next_one_ends_there(tmp_path):
    (tmp_path / "commitlog").mkdir()
    first = odd(0, body=b"first")
    (tmp_path / "commitlog" / file_name(0)).write_bytes(first + odd(len(first), body=b"wrong", queue_offset=1))
    (tmp_path / "commitlog" / file_name(len(first))).write_bytes(odd(len(first), body=b"right", queue_offset=1))
    found, damage = read(tmp_path)
    assert [row[5] for row in found] == [b"first", b"right"]
    assert [one.reason.partition(":")[0] for one in damage] == ["the log has a gap"]
