"""Messages of a queue as columns: from the places that a scan has found good to bodies, ids and properties."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from msgstore.contract import MessageBatch, QueueName, SourceDamage
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.flat import InvalidError
from msgstore_rocketmq_log.inner_batch import MAX_COUNTED, BodyError, inflate, split
from msgstore_rocketmq_log.log import PLAIN_BODY, CommitLog, LogRecord
from msgstore_rocketmq_log.queues import TopicQueue
from msgstore_rocketmq_log.reflow import ReflowOptions, reflowed

_PARTS = v1.BORN_V6 | v1.STORE_V6 | v1.COMPRESSED | v1.INNER_BATCH
"""Flags of records that are read part by part."""
_MAX_BYTES = 4 * 2**20
"""Bytes of records, or of the bodies in them, in one batch."""
_HOST = struct.Struct(">4si")
_Opened = tuple[LogRecord, Sequence[tuple[bytes, bytes | None]], str, bytes | None, str | None]
"""A record, (body, property string) of each message in it, the reason why there is no other, and its raw form or refusal: a
batch has none, which would be there once for each of its messages."""


@attrs.frozen
class QueueReader:
    """Reader of the messages of one queue."""

    log: CommitLog
    file_names: Mapping[str, str]
    """File of the log to its path relative to the source."""
    name: QueueName
    queue: TopicQueue
    consumed: int | None
    """Number of the next message of a consumer group."""
    max_body: int
    raw: bool
    accepts: frozenset[str] | None
    """Layouts of raw records that the reader takes. None: any."""
    reflow: ReflowOptions
    moved: frozenset[int] = frozenset()
    """Offsets of records that say a wrong queue or number. They are no raw form of their messages."""
    _last: dict[int, _Opened] = attrs.field(factory=dict, init=False)
    """The record that was read last: the messages of a batch follow each other."""

    def read(self, first: int, stop: int) -> tuple[int, MessageBatch | None, list[SourceDamage]]:
        """Read messages from position ``first`` on, up to ``stop``, one file and some MiB.

        Return the position behind them, the messages, and those that are damaged.
        """
        offsets = self.queue.offsets[first:stop].tolist()
        number, at = self.log.locate(offsets[0])
        data = self.log.content(number)
        begin = offsets[0] - at
        end = self.log.end(number)
        count = len(offsets)
        if min(offsets) < begin or max(offsets) >= end:  # up to the first one in another file
            count = next(row for row, offset in enumerate(offsets) if not begin <= offset < end)
        places = [offset - begin for offset in offsets[:count]]
        plain = max(places) + PLAIN_BODY <= len(data)  # a record of v2 may be smaller
        heads: list[tuple[Any, ...]] = []
        size, before = 0, -1
        for at in places if plain else ():
            heads.append(v1.PLAIN_HEAD.unpack_from(data, at))
            size += heads[-1][0] if at != before else 0
            before = at
            if size > _MAX_BYTES:
                break
        count = len(heads) or count
        offsets, places = offsets[:count], places[:count]
        file = self.file_names[self.log.files[number].name]
        found = self._columns(data, offsets, places, heads)
        if found is not None:
            return first + count, self._batch(first, list(range(count)), file, data, places, found), []
        return self._by_parts(first, offsets, places, file, data)

    def _columns(self, data: Any, offsets: list[int], places: list[int], heads: list[tuple[Any, ...]]) -> dict[str, Any] | None:
        """Return columns of plain records of v1 with one host; None if there is another one."""
        host = heads[0][12:14] if heads else None
        if host is None or any(
            head[7] & _PARTS or head[1] != v1.MAGIC or head[-1] < 0 or head[12:14] != host for head in heads
        ):
            return None
        prefix = _HOST.pack(*host).hex().upper()
        ends = [at + PLAIN_BODY + head[-1] for at, head in zip(places, heads, strict=True)]
        stored = [data[end + 3 + data[end] : at + head[0]] for end, at, head in zip(ends, places, heads, strict=True)]
        properties = [p.split(text.decode("utf-8", "replace")) for text in stored]
        return {
            "bodies": [data[at + PLAIN_BODY : end] for at, end in zip(places, ends, strict=True)],
            "ids": [f"{prefix}{offset:016X}" for offset in offsets],
            "properties": [system for system, _ in properties],
            "headers": [user for _, user in properties],
            "raw_properties": stored,
            "timestamps_ms": [head[11] for head in heads],
            "verified": [True if head[-1] else None for head in heads],
            "sizes": [head[0] for head in heads],
        }

    def _by_parts(
        self, first: int, offsets: list[int], places: list[int], file: str, data: Any
    ) -> tuple[int, MessageBatch | None, list[SourceDamage]]:
        rows: list[int] = []
        damage: list[SourceDamage] = []
        columns: list[tuple[Any, ...]] = []
        size = done = 0
        for row, (offset, at) in enumerate(zip(offsets, places, strict=True)):
            if size > _MAX_BYTES:
                break
            done, is_new = row + 1, offset not in self._last
            if is_new:
                self._last.clear()
                self._last[offset] = self._open(offset, data, at)
            record, messages, reason, *raw = self._last[offset]
            size += record.size if is_new else 0
            if (inner := self.queue.inners[first + row]) >= len(messages):
                damage.append(SourceDamage(file=file, offset=at, size=record.size, reason=reason, name=self.name, messages=1))
                continue
            body, stored = messages[inner]
            size += len(body) + len(stored or b"")
            system, user = p.by_owner(record.properties()) if stored is None else p.split(stored.decode("utf-8", "replace"))
            rows.append(row)
            columns.append((
                body, record.message_id, system, user, stored, record.store_timestamp, record.verified, record.size,
                *raw,
            ))  # fmt: skip
        if not rows:
            return first + done, None, damage
        names = (
            "bodies", "ids", "properties", "headers", "raw_properties", "timestamps_ms", "verified", "sizes", "raws",
            "refusals",
        )  # fmt: skip
        found = dict[str, Any](zip(names, map(list, zip(*columns, strict=True)), strict=True))
        found |= {name: found[name] if any(found[name]) else None for name in ("raws", "refusals")}
        return first + done, self._batch(first, rows, file, data, [places[row] for row in rows], found), damage

    def _raw(self, raw: bytes, record: LogRecord) -> tuple[bytes | None, str | None]:
        """Return a record for the reader, or the reason why there is none."""
        if not self.raw or record.offset in self.moved:
            return None, None
        if self.accepts is None:
            return raw, None
        try:
            return reflowed(raw, record.frame, self.accepts, self.reflow)
        except (ValueError, InvalidError) as error:
            return None, f"its record has no form for this reader: {error}"

    def _open(self, offset: int, data: Any, at: int) -> _Opened:
        record = self.log.record(offset)
        messages: Sequence[tuple[bytes, bytes | None]]
        try:
            if record.sys_flag & v1.INNER_BATCH:
                messages = split(inflate(record, min(self.max_body, MAX_COUNTED)))
                return record, messages, f"the batch has {len(messages)} messages, and says that it has more", None, None
            messages = [(inflate(record, self.max_body), record.raw_properties)]
        except BodyError as error:
            return record, (), str(error), None, None
        return record, messages, "", *self._raw(data[at : at + record.size], record)

    def _batch(
        self, first: int, rows: list[int], file: str, data: Any, places: list[int], found: dict[str, Any]
    ) -> MessageBatch:
        """Return the messages in these rows behind position ``first``."""
        stop = first + rows[-1] + 1
        columns: dict[str, Any] = {
            "states": self.queue.states_at(first, stop, self.consumed),
            "sequences": self.queue.sequences_at(first, stop),
            "certainties": self.queue.certainties_at(first, stop) if self.queue.uncertain else None,
        }
        if len(rows) < stop - first:
            columns = {name: column and [column[row] for row in rows] for name, column in columns.items()}
        if self.raw and "raws" not in found:
            offsets = self.queue.offsets[first:stop]
            found["raws"] = [
                None if offset in self.moved else data[at : at + size]
                for offset, at, size in zip(offsets, places, found["sizes"], strict=True)
            ]
        return MessageBatch(
            name=self.name,
            positions=[first + row for row in rows],
            files=[file] * len(rows),
            offsets=places,
            **found,
            **columns,
        )
