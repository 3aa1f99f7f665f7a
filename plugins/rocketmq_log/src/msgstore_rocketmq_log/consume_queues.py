"""Consume queues beside a log: each entry is compared with the record that it names.

The checksum of a record of v1 covers its body only. A bit in its topic, queue id or number moves it to another queue or place,
and nothing in the record tells. Its entry does: it stands in the directory of the queue, at the number of the message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import groupby

import attrs

from msgstore.contract import Buffer, QueueName, SourceDamage
from msgstore_rocketmq_log.files import BATCH_ENTRY, file_offset, queue_entries
from msgstore_rocketmq_log.log import SYSTEM, CommitLog
from msgstore_rocketmq_log.properties import whole_number
from msgstore_rocketmq_log.records import ENTRY

_FOLDERS = {"consumequeue": ENTRY.size, "batchconsumequeue": BATCH_ENTRY.size}
"""Directory to the bytes of an entry."""
_LIGHT = "%LMQ%"
"""Begin of the names of light queues: their entries name records of other topics."""
Place = tuple[bytes, int, int]
"""Topic, queue id and number of a message."""


@attrs.frozen
class _Queue:
    """A consume queue."""

    topic: str
    queue_id: int
    files: tuple[str, ...]
    is_batch: bool

    @property
    def name(self) -> QueueName:
        return QueueName(SYSTEM, queue=self.topic, partition=self.queue_id)

    @property
    def width(self) -> int:
        return BATCH_ENTRY.size if self.is_batch else ENTRY.size

    def entries(self, read: Callable[[str], Buffer]) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield file, offset in it, number, offset of the record, and its bytes, of each entry."""
        width = self.width
        for file in self.files:
            data, first = read(file), (file_offset(file.rpartition("/")[2]) or 0) // width
            for row, offset, size in queue_entries(data, batch=self.is_batch):
                number = BATCH_ENTRY.unpack_from(data, row * width)[4] if self.is_batch else first + row
                yield file, row * width, number, offset, size


@attrs.frozen
class _Odd:
    """An entry whose record says another queue or number."""

    queue: _Queue
    file: str
    at: int
    """Offset of the entry in the file."""
    number: int
    offset: int
    """Offset of the record in the log."""
    row: int
    """Number of the record among the good ones of the log."""
    is_own: bool
    """True if only the number is another one."""

    @property
    def place(self) -> Place:
        return self.queue.topic.encode("utf-8", "surrogateescape"), self.queue.queue_id, self.number


def check_entries(
    log: CommitLog, names: Collection[str], read: Callable[[str], Buffer], reported: Collection[int]
) -> tuple[list[SourceDamage], dict[int, Place]]:
    """Return the damage that entries show, and where the messages at some offsets belong.

    An entry whose record is not there is a lost message, unless its offset is in ``reported``. If a record says another place
    than its entry does, and no other entry says the same as the record, the entry is right. ``names``: files of the store.
    """
    places, damage, odd = log.places, list[SourceDamage](), list[_Odd]()
    agrees = bytearray(len(places.offsets))
    """1 for each record that has an entry which says the same."""
    offsets, sizes, queues, numbers = places.offsets, places.sizes, places.queues, places.numbers
    for queue in _queues(names):
        own = places.queue_of(queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id)
        same, ahead = 0, Counter[int]()
        """Records with the number of their entry, and the others by the difference."""
        for file, at, number, offset, size in queue.entries(read):
            row = bisect_left(offsets, offset)
            if row < len(offsets) and offsets[row] == offset and sizes[row] == size:
                if queues[row] != own:
                    if not queue.topic.startswith(_LIGHT):
                        odd.append(_Odd(queue, file, at, number, offset, row, is_own=False))
                    continue
                agrees[row] = 1
                if step := numbers[row] - number:
                    ahead[step] += 1
                else:
                    same += 1
            elif offset >= log.begin and offset not in reported:
                reason = f"the record of this message, at {offset} in the log, is not there or damaged"
                damage.append(SourceDamage(file=file, offset=at, size=queue.width, messages=1, name=queue.name, reason=reason))
        if ahead:
            ahead[0] = same
            usual = max(ahead, key=lambda step: (ahead[step], step == 0))
            odd += _misnumbered(log, queue, own, usual, agrees, read)
    moved = dict[int, Place]()
    return damage + _judge(log, odd, agrees, moved), moved


def _queues(names: Collection[str]) -> Iterator[_Queue]:
    """Yield the consume queues by name."""
    files = [name for name in names if name.count("/") == 3 and name.split("/")[0] in _FOLDERS]
    for directory, found in groupby(sorted(files), lambda name: name.rpartition("/")[0]):
        folder, topic, queue_id = directory.split("/")
        its = tuple(name for name in found if file_offset(name.rpartition("/")[2]) is not None)
        yield _Queue(topic, whole_number(queue_id, bits=32), its, folder == "batchconsumequeue")


def _misnumbered(
    log: CommitLog, queue: _Queue, own: int, usual: int, agrees: bytearray, read: Callable[[str], Buffer]
) -> list[_Odd]:
    """Return the entries of a queue whose records are not ``usual`` numbers ahead of them, as most are: 0 in what a broker
    wrote. Of several entries for one record, one that agrees is enough."""
    places, found, right = log.places, list[_Odd](), set[int]()
    for file, at, number, offset, size in queue.entries(read):
        row = places.find(offset, size) if offset >= log.begin else None
        if row is None or places.queues[row] != own:
            continue
        if places.numbers[row] - number == usual:
            right.add(row)
        else:
            found.append(_Odd(queue, file, at, number + usual, offset, row, is_own=True))
    found = [one for one in found if one.row not in right]
    for one in found:
        agrees[one.row] = 0
    return found


def _judge(log: CommitLog, odd: list[_Odd], agrees: bytearray, moved: dict[int, Place]) -> list[SourceDamage]:
    """Return the damage of entries and records that differ. Adds the records that belong elsewhere to ``moved``."""
    wanted = {one.place for one in odd}
    taken = {place for place in log.places.all() if place in wanted} if odd else set()
    damage, queues = [], list(log.places.met)
    for one in sorted(odd, key=lambda one: one.offset):
        topic, queue_id = queues[log.places.queues[one.row]]
        said = f"{topic.decode('utf-8', 'replace')}/{queue_id}, number {log.places.numbers[one.row]}"
        is_free, queue = one.place not in taken, one.queue
        if is_free and not agrees[one.row] and not log.record(one.offset).has_own_checksum:
            moved[one.offset] = one.place
            taken.add(one.place)
            agrees[one.row] = 1
            file, at = log.locate(one.offset)
            right = f"{queue.topic}/{queue.queue_id}, number {one.number}"
            reason = f"the record says {said}; the consume queue says {right}, and is followed"
            name, size, lost = log.files[file].name, log.places.sizes[one.row], 0
        else:
            reason = f"the record of this entry, at {one.offset} in the log, says {said}"
            name, at, size, lost = one.file, one.at, queue.width, int(is_free and not one.is_own)
        damage.append(SourceDamage(file=name, offset=at, size=size, reason=reason, name=queue.name, messages=lost))
    return damage
