"""Source ``rocketmq``: the messages of a store directory, or of files of a commit log."""

from __future__ import annotations

import difflib
import errno
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer, Candidate, ConfigError, MessageBatch, QueueInfo, QueueName, SourceContext, SourceDamage
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.config import BrokerConfig, read_config
from msgstore_rocketmq_log.consume_queues import Place, check_entries
from msgstore_rocketmq_log.files import NAME_DIGITS, file_name, file_offset, list_files
from msgstore_rocketmq_log.incarnations import read_table
from msgstore_rocketmq_log.log import SYSTEM, CommitLog, Places, log_files
from msgstore_rocketmq_log.plugin import RocketmqSourceOptions
from msgstore_rocketmq_log.queues import TopicQueue, build_queues
from msgstore_rocketmq_log.reflow import LAYOUTS, ReflowOptions
from msgstore_rocketmq_log.rows import QueueReader

_OFFSETS = "config/consumerOffset.json"
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a file that leave the others to be read."""
_BATCH_MESSAGES = 2**12
"""Messages in one batch."""
_NOT_READ = (
    ("dledger", "DLedger log", "its records stand in frames of DLedger; let a node of the group export them"),
    ("consumequeue_r", "RocksDB consume queues", "not needed: the queues are built from the commit log"),
    ("timerlog", "timer log", "it says which timed messages were delivered: they are shown as 'delayed', perhaps consumed"),
    ("timerwheel", "timer wheel", "see the timer log"),
    ("tieredStore", "tiered storage", "older messages are in another store"),
    ("compaction", "compaction log", "copies of messages of compaction topics"),
)
"""Begin of a name in the directory, what it is, and what that means."""


def detect(path: Path) -> Candidate | None:
    """Recognise a directory by its commit log, whose first file begins with a record, or one of its files."""
    folder = path / "commitlog"
    files = [path] if path.is_file() else sorted((folder if folder.is_dir() else path).iterdir())
    for file in files:
        if file.is_file() and file_offset(file.name) is not None:
            with file.open("rb") as stream:
                magic = stream.read(8)[4:]
            if int.from_bytes(magic, "big") in (v1.MAGIC, v1.LONG_TOPIC_MAGIC, v1.V2_MAGIC, v1.BLANK_MAGIC):
                return Candidate("certain", f"{file.relative_to(path.parent)} begins with the magic 0x{magic.hex().upper()}")
            if folder.is_dir():
                return Candidate("likely", f"{file.relative_to(path.parent)}: a file of a commit log, by its name")
    return None


def sample(directory: Path, messages: int = 30) -> Path:
    """Make a store with one file of a log."""
    log, position = directory / "commitlog", 0
    log.mkdir()
    with (log / file_name(0)).open("wb") as file:
        for number in range(messages):
            place: dict[str, Any] = {"queue_id": number % 2, "queue_offset": number // 2, "physical_offset": position}
            place["born_timestamp"] = place["store_timestamp"] = 1_600_000_000_000 + number
            position += file.write(v1.encode(body=b"message %d" % number, topic=b"T", properties=b"k\1v\2", **place))
        file.truncate(max(2**14, position))
    return directory


class RocketmqSource:
    """Messages of one store. The first call reads the whole commit log."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._options: RocketmqSourceOptions = context.options
        if unknown := sorted((context.accepts or frozenset()) - set(LAYOUTS)):
            raise ConfigError(f"--accepts {unknown[0]}: there is no such layout. There are: {', '.join(LAYOUTS)}")
        path = context.path
        self._unreadable: dict[str, str] = {}
        """Files and directories that cannot be read, with the reasons."""
        if path.is_file():
            self._sizes = {"": path.stat().st_size}
            begin = file_offset(path.name)
            files = log_files({f"{begin or 0:0{NAME_DIGITS}}": self._sizes[""]}, "")
            self._log = CommitLog(files, lambda _: self._read(""))
            self._file_names = {files[0].name: ""}
        else:
            self._sizes, self._unreadable = list_files(path)
            sizes = {**self._sizes, **dict.fromkeys(self._unreadable, 0)}
            folder = "commitlog/" if any(name.startswith("commitlog/") for name in sizes) else ""
            self._log = CommitLog(log_files(sizes, folder), self._read)
            self._file_names = {file.name: file.name for file in self._log.files}
        self._config: BrokerConfig | None = None
        self._queues: dict[tuple[str, int], TopicQueue] = {}
        self._moved: dict[int, Place] = {}
        """Offsets of records that say a wrong queue or number, and the right ones."""
        self._damage: dict[QueueName | None, list[SourceDamage]] = {}
        """By queue. None: all that belongs to no queue which has messages."""
        self._is_examined = False

    def queues(self) -> Iterable[QueueInfo]:
        queues, lags = self._found(), self._lags()
        found = [QueueInfo(name=_name(key), type="topic", details={"lag": lags.get(key, {})}) for key in queues]
        return found + self._not_read()

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        key = (str(name.queue), name.partition or 0)
        queue = self._found()[key]
        if stop is None or stop >= len(queue):  # once, if the queue is read in parts
            yield from self._damage.get(name, ())
        stop = len(queue) if stop is None else min(stop, len(queue))
        consumed = self._consumed(key)
        options, context = self._options, self._context
        reflow = ReflowOptions(options.reflow_prefix, options.reflow_escape)
        reader = QueueReader(
            self._log, self._file_names, name, queue, consumed, options.max_body, context.raw, context.accepts, reflow,
            frozenset(self._moved),
        )  # fmt: skip
        at = first
        while at < stop:
            at, batch, damage = reader.read(at, min(at + _BATCH_MESSAGES, stop))
            yield from damage
            if batch is not None:
                yield batch

    def count(self, name: QueueName) -> int:
        return len(self._found()[str(name.queue), name.partition or 0])

    def damage(self) -> Iterable[SourceDamage]:
        self._found()
        return self._damage.get(None, ())

    def close(self) -> None:
        self._queues = {}

    def _found(self) -> dict[tuple[str, int], TopicQueue]:
        if self._config is None:
            self._config = read_config(frozenset(self._sizes), self._context.read)
            self._check_group(self._config)
            found = [SourceDamage(file=file, reason=reason) for file, reason in self._config.problems]
            damage: list[SourceDamage] = []
            table = read_table(self._sizes, self._context.read, found)
            self._queues = build_queues(self._log, self._config, damage, table)
            found += (attrs.evolve(one, file=self._file_names[one.file]) for one in damage)
            begins = {file.name: file.begin for file in self._log.files}
            reported = {begins[one.file] + one.offset for one in damage if one.messages}
            of_entries, self._moved = check_entries(self._log, self._sizes.keys(), self._read, reported)
            if self._moved:
                self._queues = build_queues(self._log, self._config, [], table, self._moved)
            found += (attrs.evolve(one, file=self._file_names.get(one.file, one.file)) for one in of_entries)
            found += [SourceDamage(file=file, reason=reason) for file, reason in self._unreadable.items()]
            self._log.places = Places()  # frees the memory
            self._is_examined = True
            names = {_name(key) for key in self._queues}
            for one in found:
                self._damage.setdefault(one.name if one.name in names else None, []).append(one)
        return self._queues

    def _check_group(self, config: BrokerConfig) -> None:
        """Raise ConfigError for a group of which nothing is known."""
        group, known = self._options.group, sorted(config.consumed)
        if group is None or group in known:
            return
        places = (_OFFSETS, f"{_OFFSETS}.bak")
        if closed := [one for one in ("config", *places) if one in self._unreadable]:
            advice = "Make it readable: without --group, messages that were consumed are there, too."
            raise ConfigError(f"{self._context.path}: {closed[0]} {self._unreadable[closed[0]].rstrip('.')}. {advice}")
        is_there = not self._sizes.keys().isdisjoint(places)
        reason = dict(config.problems).get(_OFFSETS) or (f"has no group {group!r}" if is_there else "is not there")
        near = [f"Did you mean {name!r}? " for name in difflib.get_close_matches(group, known, n=1)]
        advice = f"{''.join(near)}There are: {', '.join(known[:10])}." if known else "Leave --group out."
        raise ConfigError(f"{self._context.path}: {_OFFSETS} {reason}. {advice}")

    def _read(self, name: str) -> Buffer:
        """Return the content of a file; nothing of one of several that cannot be read when all are examined."""
        if name in self._unreadable:
            return b""
        try:
            return self._context.read(name)
        except OSError as error:
            if error.errno not in _UNREADABLE or self._is_examined or len(self._log.files) == 1:
                raise
            self._unreadable[name] = f"cannot be read: {error.strerror}"
            return b""

    def _consumed(self, key: tuple[str, int]) -> int | None:
        assert self._config is not None
        group = self._options.group
        return None if group is None else self._config.consumed.get(group, {}).get(key, 0)

    def _lags(self) -> dict[tuple[str, int], dict[str, int]]:
        """Return for each queue how many messages each consumer group would still get."""
        assert self._config is not None
        found: dict[tuple[str, int], dict[str, int]] = {}
        for group, offsets in sorted(self._config.consumed.items()):
            for key in offsets.keys() & self._queues.keys():
                found.setdefault(key, {})[group] = offsets[key]
        for key, groups in found.items():
            numbers = self._queues[key].deliverable()
            found[key] = {group: len(numbers) - bisect_left(numbers, offset) for group, offset in groups.items()}
        return found

    def _not_read(self) -> list[QueueInfo]:
        found = []
        for begin, what, reason in _NOT_READ:
            if names := [name for name in self._sizes if name.split("/")[0].startswith(begin)]:
                where = QueueName(SYSTEM, queue=names[0].split("/")[0])
                found.append(QueueInfo(name=where, type=what, read=False, reason=reason))
        return found


def _name(key: tuple[str, int]) -> QueueName:
    return QueueName(SYSTEM, queue=key[0], partition=key[1])
