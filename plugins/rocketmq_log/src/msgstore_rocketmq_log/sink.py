"""Sink ``rocketmq``: a store directory with a commit log of v1, consume queues, an index, a checkpoint, and ``topics.json``.

While messages come, only the commit log is written. Everything else follows from it, and is written at the end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import MessageBatch, QueueName, SinkContext
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.config import encode
from msgstore_rocketmq_log.files import INDEX_ENTRIES, encode_checkpoint, file_name, index_parts
from msgstore_rocketmq_log.incarnations import Incarnation, TopicTable
from msgstore_rocketmq_log.log import OWN_TOPICS, CommitLog, LogRecord, log_files
from msgstore_rocketmq_log.message_records import MAX_QUEUE_ID, MadeRecord, make_record
from msgstore_rocketmq_log.plugin import RocketmqSinkOptions
from msgstore_rocketmq_log.reflow import LAYOUTS, V2

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_MAX_BODY = 4 * 2**20
"""Bytes of a body that a broker takes, by default."""
_BLANK = 8
"""Bytes that a file of the log must have left behind a record."""


def accepted(options: RocketmqSinkOptions) -> tuple[str, ...]:
    """Return the layouts of stored records that are copied as they are."""
    return LAYOUTS if options.v2 else tuple(layout for layout in LAYOUTS if layout != V2)


class RocketmqSink:
    """Writer of a store. With the option ``v2``, its records have the v2 layout, which no released broker reads: a file
    ``config/recordLayout.json`` says so.

    Kept: topic, queue id, order, body, time, and RocketMQ's own properties; with ``--raw``, all fields but the offsets. Headers
    of other systems become user properties as text, their properties ones with the system's name before them.
    """

    def __init__(self, context: SinkContext) -> None:
        self._options: RocketmqSinkOptions = context.options
        self._store = Path(context.destination)
        self._log = self._store / "commitlog"
        self._log.mkdir(parents=True, exist_ok=True)
        self._accepts = accepted(self._options)
        token = context.token or {"position": 0, "queues": {}, "incarnations": {}, "owners": {}}
        self._position: int = token["position"]
        self._queues: dict[str, int] = dict(token["queues"])
        """``topic/queue id`` to the number of its next message."""
        self._incarnations: dict[str, int] = dict(token["incarnations"])
        """Topic to the incarnation that its records of the v2 layout have."""
        self._owners = {name: QueueName(*owner) for name, owner in token["owners"].items()}
        """``topic/queue id`` to the queue that it holds."""
        self._now_ms = time.time_ns() // 1_000_000
        self._fd: int | None = None
        self._unsynced = {self._store.parent, self._store, self._log}
        """Files and directories that have changed since the last flush, besides the open file."""
        context.check_kept(
            (self._log / file_name(begin), min(self._position - begin, self._options.file_size))
            for begin in range(0, self._position, self._options.file_size)
        )
        for left in sorted(self._log.iterdir()):  # of an interrupted conversion
            begin = int(left.name)
            if begin >= self._position:
                left.unlink()
            elif begin + self._options.file_size > self._position:
                os.truncate(left, self._position - begin)
                os.truncate(left, self._options.file_size)
                self._unsynced.add(left)

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        topic, queue_id = self._topic(batch.name), batch.name.partition or 0
        name, reason = f"{topic}/{queue_id}", ""
        if _TOPIC.fullmatch(topic) is None:
            reason = f"{topic!r:.80} is no name of a topic (letters, digits, _ - % |, at most 127): rename it"
        elif topic in OWN_TOPICS:
            reason = f"{topic} is a topic of the broker's own: rename it"
        elif not 0 <= queue_id <= MAX_QUEUE_ID:
            reason = f"{queue_id} is no queue id (0 to {MAX_QUEUE_ID}): leave the queue out"
        elif self._owners.setdefault(name, batch.name) != batch.name:
            reason = f"the queues {self._owners[name]} and {batch.name} have one name here, {name!r}: rename one"
        if reason:
            return [(row, reason) for row in range(len(batch))]
        found = []
        for row in range(len(batch)):
            try:
                size = len(self._record(batch, row).data)
                if len(batch.bodies[row]) > _MAX_BODY:
                    raise ValueError(f"a body of {len(batch.bodies[row])} bytes is more than a broker takes ({_MAX_BODY})")
                if size + _BLANK > self._options.file_size:
                    raise ValueError(f"a record of {size} bytes does not fit into a file of the log")
            except ValueError as error:
                found.append((row, str(error)))
        return found

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        for row in range(len(batch)):
            made = self._record(batch, row)
            room = self._options.file_size - self._position % self._options.file_size
            if len(made.data) + _BLANK > room:
                self._append(v1.blank(room))
                self._position += room
                self._close_file()
                made = self._record(batch, row)
            self._append(made.data)
            self._position += len(made.data)
            key = f"{made.topic}/{made.queue_id}"
            self._queues[key] = self._queues.get(key, 0) + 1
        return ()

    def flush(self) -> Mapping[str, Any]:
        if self._fd is not None:
            os.fsync(self._fd)
        for path in sorted(self._unsynced):
            _sync(path)
        self._unsynced.clear()
        owners = {name: attrs.astuple(owner) for name, owner in self._owners.items()}
        numbers = {"queues": dict(self._queues), "incarnations": dict(self._incarnations)}
        return {"position": self._position, "owners": owners} | numbers

    def finish(self) -> None:
        self._close_file()
        if not any(self._log.iterdir()):
            return
        sizes = {f"commitlog/{file.name}": file.stat().st_size for file in self._log.iterdir()}
        log = CommitLog(log_files(sizes, "commitlog/"), self._written)
        entries: dict[tuple[str, int], list[bytes]] = {}
        keys: list[tuple[str, int, int]] = []
        topics: dict[str, int] = {}
        last_ms = 0
        for offset, *_ in log.scan([]):
            record = log.record(offset)
            found = record.properties()
            code = v1.tags_code(record.topic, found, record.store_timestamp)
            entries.setdefault((record.topic, record.queue_id), []).append(v1.ENTRY.pack(record.offset, record.size, code))
            real = p.real_queue(found, record.topic, record.queue_id) if record.topic in OWN_TOPICS else (record.topic, 0)
            for topic, queue_id in ((record.topic, record.queue_id), real):  # a topic that is not there was deleted
                topics[topic] = max(topics.get(topic, 0), queue_id + 1)
            keys += _keys(record, found) if self._options.index else ()
            last_ms = max(last_ms, record.store_timestamp)
            if len(keys) >= INDEX_ENTRIES - 100:
                self._write_index(keys)
                keys = []
        for (topic, queue_id), its in entries.items():
            self._write_queue(topic, queue_id, its)
        if keys:
            self._write_index(keys)
        _write(self._store / "checkpoint", [(0, encode_checkpoint(last_ms, last_ms))], 0)
        _write(self._store / "config" / "topics.json", [(0, encode(_topics(topics)))], 0)
        if self._options.v2:
            _write(self._store / "config" / "recordLayout.json", [(0, b'{"layout": "v2"}\n')], 0)
        if self._incarnations:  # then every topic is in the table, or its messages would count as deleted
            lives = {topic: [Incarnation(self._incarnations.get(topic, 0), created=0)] for topic in sorted(topics)}
            TopicTable(max(self._incarnations.values()), lives).save(self._store)
        for directory, _, _ in os.walk(self._store):
            _sync(Path(directory))

    def close(self) -> None:
        self._close_file()

    def _written(self, name: str) -> bytes:
        """Return what was written of a file of the log: the rest is a hole."""
        path = self._store / name
        with path.open("rb") as file:
            return file.read(max(self._position - int(path.name), 0))

    def _topic(self, name: QueueName) -> str:
        parts = [None if name.vhost == "/" else name.vhost, name.queue or self._options.topic]
        return "-".join(part for part in parts if part is not None)

    def _record(self, batch: MessageBatch, row: int) -> MadeRecord:
        """Return the record of a message for the end of the log. Raises ValueError if it has none."""
        made = make_record(batch, row, self._topic(batch.name), self._next_place, self._accepts, self._now_ms)
        if made.incarnation and self._incarnations.setdefault(made.topic, made.incarnation) != made.incarnation:
            raise ValueError(f"the topic {made.topic} has messages of another incarnation here")
        return made

    def _next_place(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offset of the log's end, and the number of the queue's next message."""
        return self._position, self._queues.get(f"{topic}/{queue_id}", 0)

    def _append(self, data: bytes) -> None:
        if self._fd is None:
            begin = self._position // self._options.file_size * self._options.file_size
            self._fd = os.open(self._log / file_name(begin), os.O_RDWR | os.O_CREAT, 0o644)
            os.truncate(self._fd, self._options.file_size)
            self._unsynced.add(self._log)
        at = self._position % self._options.file_size
        at = _write_at(self._fd, data, at)
        if self._position % self._options.file_size == 0 and at == self._options.file_size:
            self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write_queue(self, topic: str, queue_id: int, entries: list[bytes]) -> None:
        size = self._options.queue_entries
        for first in range(0, len(entries), size):
            path = self._store / "consumequeue" / topic / str(queue_id) / file_name(first * v1.ENTRY.size)
            _write(path, [(0, b"".join(entries[first : first + size]))], size * v1.ENTRY.size)

    def _write_index(self, keys: list[tuple[str, int, int]]) -> None:
        parts, size = index_parts(keys)
        when = datetime.fromtimestamp(keys[0][2] / 1000, UTC)
        _write(self._store / "index" / f"{when:%Y%m%d%H%M%S}{keys[0][2] % 1000:03}", parts, size)


def _keys(record: LogRecord, found: Mapping[str, str]) -> list[tuple[str, int, int]]:
    words = [found[p.UNIQ_KEY]] if p.UNIQ_KEY in found else []
    words += [word for word in found.get(p.KEYS, "").split(" ") if word]
    return [(f"{record.topic}#{word}", record.offset, record.store_timestamp) for word in words]


def _topics(topics: Mapping[str, int]) -> dict[str, Any]:
    table = {
        topic: {
            "topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0, "order": False,
        }
        for topic, queues in sorted(topics.items())
    }  # fmt: skip
    return {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0}, "topicConfigTable": table}


def _write(path: Path, parts: list[tuple[int, bytes]], size: int) -> None:
    """Write a file of at least ``size`` bytes, and sync it. What is not written is zeros."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for at, data in parts:
            _write_at(fd, data, at)
        if size:
            os.truncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_at(fd: int, data: bytes, at: int) -> int:
    """Write all bytes, also if the disk takes some of them, and return their end. Raises OSError."""
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written
    return at


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
