"""Commit log of a store directory: its good records in order, and what cannot be read.

The consume queues are not needed for it: a broker that starts builds from the log what they lack. Behind damage, records are
found again by magic, size, checksum, and the offset that they say they stand at.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import attrs

from msgstore.contract import QueueName, SourceDamage
from msgstore_rocketmq_log import flat
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.files import file_offset
from msgstore_rocketmq_log.frame import Frame, read_frame
from msgstore_rocketmq_log.reflow import address_of, v1_pairs

SYSTEM = "rocketmq"
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WHEEL_TOPIC = "rmq_sys_wheel_timer"
OWN_TOPICS = frozenset({HALF_TOPIC, OP_TOPIC, WHEEL_TOPIC, v1.SCHEDULE_TOPIC})
SPECIAL = v1.TRANSACTION | v1.INNER_BATCH
"""Flags of records that are not simply a message of their queue."""
Content = bytes | mmap.mmap
BLANK = "blank"
_HEAD = struct.Struct(">iI")
_MAGICS = frozenset(struct.pack(">I", magic) for magic in (v1.MAGIC, v1.LONG_TOPIC_MAGIC, v1.V2_MAGIC))
_PREFIX = b"\xda\xa3\x20"
"""First bytes of all magics."""
_SEARCH = 16
"""Limit of the bytes that searches behind damage examine, as a multiple of those of the file."""
_BLOCK = 2**20
_MAX_KEPT = 2**28
"""Bytes of files that are not mapped and are kept."""
_MAX_MAPS = 16
"""Mapped files that are kept: each is an open file."""
_CRC_BEGIN = f"{p.CRC_NAME}{p.NAME_END}".encode()
PLAIN_BODY = v1.PLAIN_HEAD.size
"""Bytes before the body of a record with two addresses of 4 bytes."""
_CALLED, _SIGN = v1.BORN_V6 | v1.STORE_V6 | v1.INNER_BATCH, 0x80
Scanned = tuple[int, bytes, int, int, int, bool]
"""Offset in the log, topic, queue id, queue offset, sys flag, and whether it stands behind damage in the last file."""


@attrs.frozen
class LogFile:
    """A file of the commit log."""

    begin: int
    """Offset of its first byte in the log."""
    name: str
    """Relative to the store."""
    size: int


@attrs.define(eq=False)
class LogRecord:
    """A good record, of either layout."""

    offset: int
    """In the log."""
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    prepared_transaction_offset: int
    store_host: bytes
    store_port: int
    body: bytes
    """As stored."""
    raw_properties: bytes | None
    """None: a record of the v2 layout."""
    frame: Frame | None
    verified: bool | None
    """None: there is no body, and no checksum of the record."""
    incarnation: int = 0

    def properties(self) -> dict[str, str]:
        """Return the properties under their v1 names."""
        if self.raw_properties is not None:
            return p.parse(self.raw_properties.decode("utf-8", "replace"))
        assert self.frame is not None
        return dict(v1_pairs(self.frame.header()))

    @property
    def has_own_checksum(self) -> bool:
        """True if a checksum covers all of it, and not only the body."""
        raw = self.raw_properties
        return raw is None or (len(raw) >= p.CRC_BYTES and raw[-p.CRC_BYTES :].startswith(_CRC_BEGIN))

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return (self.store_host + struct.pack(">Iq", self.store_port & 0xFFFFFFFF, self.offset)).hex().upper()


@attrs.frozen
class Places:
    """Good records in the order of the log, and what each says of its queue: 24 bytes each."""

    offsets: array[int] = attrs.field(factory=lambda: array("q"))
    sizes: array[int] = attrs.field(factory=lambda: array("i"))
    queues: array[int] = attrs.field(factory=lambda: array("i"))
    """Numbers of queues in the order in which they were met."""
    numbers: array[int] = attrs.field(factory=lambda: array("q"))
    met: dict[tuple[bytes, int], int] = attrs.field(factory=dict)
    """Topic and queue id to the number of the queue."""

    def queue_of(self, topic: bytes, queue_id: int) -> int:
        """Return the number of a queue, which is a new one if no record is in it."""
        return self.met.setdefault((topic, queue_id), len(self.met))

    def add(self, record: LogRecord) -> None:
        self.offsets.append(record.offset)
        self.sizes.append(record.size)
        self.queues.append(self.queue_of(record.topic.encode(), record.queue_id))
        self.numbers.append(record.queue_offset)

    def find(self, offset: int, size: int) -> int | None:
        """Return the row of the record of this size at an offset of the log; None if none is there. Reads nothing."""
        row = bisect_left(self.offsets, offset)
        return row if row < len(self.offsets) and (self.offsets[row], self.sizes[row]) == (offset, size) else None

    def all(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield topic, queue id and number that each record says."""
        keys = list(self.met)
        return ((*keys[queue], number) for queue, number in zip(self.queues, self.numbers, strict=True))


class CommitLog:
    """The files of the log. Keeps the last ones: messages may alternate."""

    def __init__(self, files: list[LogFile], read: Callable[[str], Content]) -> None:
        self.files = files
        self._read = read
        self._begins = [file.begin for file in files]
        self._kept: dict[int, Content] = {}
        self.places = Places()
        """Good records that the last scan has met."""

    @property
    def begin(self) -> int:
        """Offset of the first byte that is still there."""
        return self._begins[0] if self._begins else 0

    def content(self, number: int) -> Content:
        """Return the content of a file."""
        if number not in self._kept:
            self._kept[number] = self._read(self.files[number].name)
            loaded = [at for at, data in self._kept.items() if isinstance(data, bytes)]
            while len(loaded) > 1 and sum(len(self._kept[at]) for at in loaded) > _MAX_KEPT:
                del self._kept[loaded.pop(0)]
            if len(self._kept) - len(loaded) > _MAX_MAPS:
                del self._kept[next(at for at in self._kept if at not in loaded)]
        return self._kept[number]

    def locate(self, offset: int) -> tuple[int, int]:
        """Return number of the file and offset in it."""
        number = bisect_right(self._begins, offset) - 1
        return number, offset - self._begins[number]

    def end(self, number: int) -> int:
        """Return the offset behind a file: at most that of the next one, which has the records from there on."""
        return min([self._begins[number] + len(self.content(number)), *self._begins[number + 1 : number + 2]])

    def record(self, offset: int) -> LogRecord:
        """Return the record at an offset, which a scan has found good."""
        number, at = self.locate(offset)
        found = read_record(self.content(number), at, offset)
        assert isinstance(found, LogRecord), found
        return found

    def scan(self, damage: list[SourceDamage]) -> Iterator[Scanned]:
        """Yield the place of every good record, and what its queue needs. Adds damage to the list."""
        self.places = Places()
        for before, after in pairwise(self.files):
            if before.begin + before.size != after.begin:
                damage.append(SourceDamage(file=after.name, reason=f"the log has a gap: {before.name} ends elsewhere"))
        for number, file in enumerate(self.files):
            yield from self._scan_file(number, file, damage, is_last=number == len(self.files) - 1)

    def _scan_file(self, number: int, file: LogFile, damage: list[SourceDamage], *, is_last: bool) -> Iterator[Scanned]:
        data = self.content(number)
        begin, behind, at = file.begin, False, 0
        end = self.end(number) - begin
        read, crc32, magic_v1 = v1.PLAIN_HEAD.unpack_from, zlib.crc32, v1.MAGIC
        last, left = end - v1.SMALLEST, _SEARCH * end
        places = self.places
        add_place, add_size, add_queue, add_number, met = (
            places.offsets.append, places.sizes.append, places.queues.append, places.numbers.append, places.met,
        )  # fmt: skip
        while at < end:
            if at <= last:  # without a call for the plain record, which nearly all are
                total, magic, crc, queue_id, _, queue_offset, place, sys_flag, *_, body_size = read(data, at)
                body_end = at + PLAIN_BODY + body_size
                if (
                    magic == magic_v1
                    and place == begin + at
                    and not sys_flag & _CALLED
                    and 0 <= body_size <= total - v1.SMALLEST
                    and total <= end - at
                ):
                    topic = body_end + 1 + data[body_end]
                    after = topic + 2 + (data[topic] << 8 | data[topic + 1]) if topic + 1 < end else 0
                    if (
                        after == at + total
                        and (not body_size or crc32(data[at + PLAIN_BODY : body_end]) & 0x7FFFFFFF == crc)
                        and data[body_end] < _SIGN
                        and data[topic] < _SIGN
                        and data[after - p.CRC_BYTES : after - p.CRC_BYTES + 9] != _CRC_BEGIN
                    ):
                        its = data[body_end + 1 : topic]
                        add_place(place)
                        add_size(total)
                        add_queue(met.setdefault((its, queue_id), len(met)))
                        add_number(queue_offset)
                        yield place, its, queue_id, queue_offset, sys_flag, behind and is_last
                        at = after
                        continue
            found = read_record(data, at, begin + at)
            if isinstance(found, LogRecord):
                places.add(found)
                yield found.offset, found.topic.encode(), found.queue_id, found.queue_offset, found.sys_flag, behind and is_last
                at += found.size
                continue
            if found == BLANK:
                return
            name = _queue_of_damaged(data, at, begin + at)
            left -= _examined(data, at)
            following, left = (at + total, left) if name else _next_record(data, at + 1, begin, left)
            stop = _end_of_content(data, at) if following is None else following
            if stop > at:
                lost = int(name is not None)
                damage.append(SourceDamage(file=file.name, offset=at, size=stop - at, reason=found, name=name, messages=lost))
            elif not is_last:
                damage.append(SourceDamage(file=file.name, offset=at, reason="the file ends without a blank record"))
            if following is None:
                return
            at, behind = following, True


def _queue_of_damaged(data: Content, at: int, offset: int) -> QueueName | None:
    """Return the queue of a damaged record that was one message: its parts add up, and a good record or a blank follows."""
    try:
        found = v1.read_fields(data, at)
    except v1.UnreadableError:
        return None
    topic, size = v1.text_of(data, found.topic, found.topic_end), found.end - at
    if size != found.total_size or found.physical_offset != offset or found.sys_flag & SPECIAL or topic in OWN_TOPICS:
        return None
    after = read_record(data, found.end, offset + size)
    return QueueName(SYSTEM, queue=topic, partition=found.queue_id) if isinstance(after, LogRecord) or after == BLANK else None


def _end_of_content(data: Content, at: int) -> int:
    """Return the offset behind the last byte from ``at`` on that is no zero; ``at`` if there is none."""
    for end in range(len(data), at, -_BLOCK):
        begin = max(end - _BLOCK, at)
        if kept := data[begin:end].rstrip(b"\0"):
            return begin + len(kept)
    return at


def _next_record(data: Content, at: int, begin: int, left: int) -> tuple[int | None, int]:
    """Return the offset of the next good record from ``at`` on, and what is left of the bytes that searches in this file may
    examine. ``begin``: offset of the file in the log."""
    while left > 0 and (found := data.find(_PREFIX, at + 4)) >= 0:
        place = found - 4
        if data[found : found + 4] in _MAGICS:
            if isinstance(read_record(data, place, begin + place), LogRecord):
                return place, left
            left -= _examined(data, place)
        at = place + 1
    return None, left


def _examined(data: Content, at: int) -> int:
    """Return the bytes that :func:`read_record` examines at most: those that the head at ``at`` claims, if they are there."""
    total = _HEAD.unpack_from(data, at)[0] if at + _HEAD.size <= len(data) else 0
    return total if 0 < total <= len(data) - at else _HEAD.size


def read_record(data: Content, at: int, offset: int) -> LogRecord | str:
    """Return the record at ``at``, whose place in the log is ``offset``; BLANK; or the reason why there is no good record."""
    left = len(data) - at
    if left < _HEAD.size:
        return "the file ends within a record"
    total, magic = _HEAD.unpack_from(data, at)
    if magic == v1.BLANK_MAGIC:
        return BLANK if total == left else f"a blank has a size of {total} bytes, and {left} are left"
    if magic not in (v1.MAGIC, v1.LONG_TOPIC_MAGIC, v1.V2_MAGIC):
        return f"the magic is 0x{magic:08X}"
    if not _HEAD.size <= total <= left:
        return f"the record has a size of {total} bytes, and {left} are left"
    found = _read_v2(data, at, offset, total) if magic == v1.V2_MAGIC else _read_v1(data, at, offset, total)
    if isinstance(found, LogRecord) and found.sys_flag & v1.INNER_BATCH and found.queue_offset >= 2**63 - v1.MAX_INNER:
        return f"a batch of messages begins at the number {found.queue_offset}"
    return found


def _read_v1(data: Content, at: int, offset: int, total: int) -> LogRecord | str:
    try:
        fields = v1.read_fields(data, at)
    except v1.UnreadableError as error:
        return str(error)
    if fields.end - at != total:
        return f"the parts of the record have {fields.end - at} bytes, and it claims {total}"
    if fields.physical_offset != offset:
        return _elsewhere(fields.physical_offset)
    body, raw = data[fields.body : fields.body_end], data[fields.properties : fields.end]
    verified: bool | None = None
    if len(raw) >= p.CRC_BYTES and raw[-p.CRC_BYTES :].startswith(_CRC_BEGIN):
        if not v1.is_property_crc_right(data, at, fields, raw[-11:-1].decode("ascii", "replace")):
            return "the checksum of the record is wrong"
        verified = True
    if body:
        if v1.body_crc(body) != fields.body_crc:
            return "the checksum of the body is wrong"
        verified = True
    return LogRecord(
        offset, total, v1.text_of(data, fields.topic, fields.topic_end), fields.queue_id, fields.queue_offset,
        fields.sys_flag, fields.store_timestamp, fields.prepared_transaction_offset, fields.store_host, fields.store_port,
        body, raw, None, verified,
    )  # fmt: skip


def _read_v2(data: Content, at: int, offset: int, total: int) -> LogRecord | str:
    frame = read_frame(data, at)
    if isinstance(frame, str):
        return frame
    try:
        header = frame.header()
    except flat.InvalidError as error:
        return f"the header cannot be read: {error}"
    if frame.physical_offset != offset:
        return _elsewhere(frame.physical_offset)
    host, port = address_of(header.get("store_host"))
    return LogRecord(
        offset, total, header["topic"], header.get("queue_id", 0), frame.queue_offset, header.get("sys_flag", 0),
        frame.store_timestamp, header.get("prepared_transaction_offset", 0), host, port, frame.body, None, frame, True,
        header.get("topic_incarnation", 0),
    )  # fmt: skip


def _elsewhere(offset: int) -> str:
    return f"the record says that it stands at {offset}: it is an old one, or damaged"


def log_files(sizes: Mapping[str, int], folder: str) -> list[LogFile]:
    """Return the files of the commit log among these, with their sizes. ``folder``: ``commitlog/``, or "" if it was given."""
    found = []
    for name, size in sizes.items():
        if name.startswith(folder) and (begin := file_offset(name.removeprefix(folder))) is not None:
            found.append(LogFile(begin, name, size))
    return sorted(found, key=lambda file: file.begin)
