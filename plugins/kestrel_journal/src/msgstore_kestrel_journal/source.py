"""Source ``kestrel``: the messages of a directory of journals, or of one journal."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, takewhile
from pathlib import Path

from msgstore.contract import (
    Candidate,
    MessageBatch,
    QueueInfo,
    QueueName,
    SourceContext,
    SourceDamage,
)
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.files import TEMPORARY, QueueFiles, list_names, names_by_queue, queue_files, queue_names
from msgstore_kestrel_journal.plugin import KestrelSourceOptions
from msgstore_kestrel_journal.records import read_columns
from msgstore_kestrel_journal.replay import FILE_BITS, Journals, Replay, capped_expiry, replay_journals

SYSTEM = "kestrel"
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a file that leave the other queues to be read."""
_BATCH = 4 * 2**20
"""Bytes of records in one batch."""
_BATCH_MESSAGES = 2**12
_PROBE = 64 * 2**10
"""Bytes of each file that the detection reads, and files that it opens."""
_PROBES = 20
_RECORDS = 3
"""Records that the detection wants to see, as other files can begin with one by chance."""


def detect(path: Path) -> Candidate | None:
    """Recognise a directory if half of the first files in it begin with records, or more. One byte 01 is a journal, so it is
    never certain."""
    if path.is_file():
        files = [path]
    else:
        found, odd = list_names(path)
        files = [path / one for one in found if one not in odd and TEMPORARY not in one and one[0] != "."]
    journals, others, records = list[str](), list[str](), 0
    for file in files[:_PROBES]:
        with file.open("rb") as stream:
            head = stream.read(_PROBE)
        count = _count_records(head)
        records += count
        if head:
            (journals if count else others).append(file.name)
    if not journals or len(journals) < len(others) or (others and records < _RECORDS):
        return None
    if others:
        first = "the first " if len(files) > _PROBES else ""
        probed = f"{len(journals)} of {first}{len(journals) + len(others)} files begin with records of a Kestrel journal"
        more = f" and {len(others) - 3} more do not" if len(others) > 3 else " do not" if others[1:] else " does not"
        return Candidate("perhaps", f"{probed}; {', '.join(others[:3])}{more}")
    names = ", ".join(journals[:3])
    if records < _RECORDS:
        return Candidate("perhaps", f"{names}: {records} record(s) of a Kestrel journal, which has no mark")
    return Candidate("likely", f"{names}: begins with records of a Kestrel journal")


def sample(directory: Path) -> Path:
    """Make the journals of two queues, in each some messages that expire."""
    begin = 1_600_000_000_000
    for queue in ("a", "b"):
        items = (
            r.encode_addx(b"%s %d" % (queue.encode(), number), begin + number, 0 if number % 5 else begin + 500)
            for number in range(20)
        )
        (directory / queue).write_bytes(b"".join(items) + b"\1" + r.encode_xid(r.REMOVE_TENTATIVE_XID, 1))
    return directory


def _count_records(head: bytes) -> int:
    """Return the number of records at the begin that are whole, or cut by the end of ``head`` only."""
    at = count = 0
    while at < len(head):
        opcode = head[at]
        if opcode in (r.REMOVE, r.REMOVE_TENTATIVE):
            size = 1
        elif opcode > r.REMOVE_TENTATIVE_XID:
            break
        elif opcode in (r.ADD, r.ADDX, r.ADD_XID, r.CONTINUE):
            begin = at + (1 if opcode in (r.ADD, r.ADDX) else 5)
            if begin + 4 > len(head):
                break
            (length,) = r.read_i32(head, begin)
            if not (r.ADD_EXPIRY if opcode == r.ADD else r.TIMES) <= length < 2**28:
                break
            size = begin + 4 + length - at
        else:
            size = 5
        count, at = count + 1, at + size
    return count


class KestrelSource:
    """Messages of the queues of one directory. A queue is replayed when it is first asked for."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._options: KestrelSourceOptions = context.options
        path = context.path
        self._names, self._odd = ([path.name], {}) if path.is_file() else list_names(path)
        self._by_queue = names_by_queue(self._names)
        self._replays: tuple[str, Replay] | None = None
        """The queue that was replayed last."""

    def queues(self) -> Iterable[QueueInfo]:
        return [
            QueueInfo(name=QueueName(SYSTEM, queue=queue), type="journal", details=self._details(queue))
            for queue in self._queues()
        ]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        # later journals have removals of earlier messages: without one of them, no part of a queue is right
        order = self._files(str(name.queue)).order if self._odd else ()
        if odd := [now for _, now in order if now in self._odd]:
            yield from (SourceDamage(file=now, reason=self._odd[now], name=name) for now in odd)
            return
        try:
            replay = self._replay(str(name.queue))
        except OSError as error:
            if error.errno not in _UNREADABLE or self._context.path.is_file():
                raise
            file = Path(error.filename).name if error.filename else str(name.queue)
            reason = f"cannot be read: {error.strerror}. The queue is not read"
            yield SourceDamage(file=self._path(file), reason=reason, name=name)
            return
        names = {after: (now, number) for number, (after, now) in enumerate(replay.files.order)}
        for broken in replay.broken:
            file, number = names[broken.file]
            size = len(replay.journals[number]) - broken.offset
            yield SourceDamage(file=self._path(file), offset=broken.offset, size=size, reason=broken.reason, name=name)
        for foreign in replay.files.foreign:
            reason = "not a file of the queue: Kestrel does not load a queue beside such a name"
            size = 0 if foreign in self._odd else (self._context.path / foreign).stat().st_size
            yield SourceDamage(file=self._path(foreign), size=size, reason=reason, name=name)
        opened = len(replay.state.opened)
        places = replay.state.in_delivery_order()
        stop = len(places) if stop is None else min(stop, len(places))
        at = first
        while at < stop:
            batch = self._batch(name, replay, places[at : min(at + _BATCH_MESSAGES, stop)], at, opened)
            yield batch
            at += len(batch)

    def damage(self) -> Iterable[SourceDamage]:
        of_queues = {name for queue in self._queues() for name in self._by_queue.get(queue, ()) if TEMPORARY not in name}
        return [SourceDamage(file=name, reason=reason) for name, reason in self._odd.items() if name not in of_queues]

    def close(self) -> None:
        self._replays = None

    def _queues(self) -> list[str]:
        return [self._names[0]] if self._context.path.is_file() else queue_names(self._names)

    def _files(self, queue: str) -> QueueFiles:
        if self._context.path.is_file():  # one file by itself, whatever its name
            return QueueFiles(queue, ((queue, queue),))
        return queue_files(self._by_queue.get(queue, ()), queue)

    def _details(self, queue: str) -> dict[str, object]:
        files = self._files(queue)
        return {"files": len(files.order), "replaced": len(files.replaced), "temporary": len(files.temporary)}

    def _path(self, name: str) -> str:
        return "" if self._context.path.is_file() else name

    def _replay(self, queue: str) -> Replay:
        if self._replays is None or self._replays[0] != queue:
            files = self._files(queue)
            journals = Journals([self._path(now) for _, now in files.order], self._context.read)
            found = replay_journals(files, journals, self._context.now_ms, state_dump=self._options.state_dump)
            self._replays = (queue, found)
        return self._replays[1]

    def _batch(self, name: QueueName, replay: Replay, places: list[int], first: int, opened: int) -> MessageBatch:
        """Return messages of the begin of ``places``: those in one file, up to _BATCH bytes."""
        number, _ = replay.split(places[0])
        journal, file = replay.journals[number], self._path(replay.files.order[number][1])
        base = places[0] - replay.split(places[0])[1]
        offsets = [place - base for place in places if place - base < 1 << FILE_BITS and place >= base]
        if len(offsets) < len(places):  # up to the first one in another file
            offsets = [place - base for place in takewhile(lambda place: replay.split(place)[0] == number, places)]
        found = read_columns(journal, offsets)
        count = max(bisect_right(list(accumulate(found.sizes)), _BATCH), 1)
        found, offsets = found.begin(count), offsets[:count]
        expiries = found.expiry_ms
        if self._options.max_age is not None:
            max_age = round(self._options.max_age * 1000)
            times = zip(found.add_ms, expiries, strict=True)
            expiries = [capped_expiry(expiry, add_ms, replay.now_ms, max_age) for add_ms, expiry in times]
        states = ["ready"] * count
        if first < opened:
            states[: opened - first] = ["reserved"] * min(opened - first, count)
        if any(expiries):
            states = ["expired" if 0 != at < replay.now_ms else state for at, state in zip(expiries, states, strict=True)]
        raws = [journal[at : at + size] for at, size in zip(offsets, found.sizes, strict=True)] if self._context.raw else None
        return MessageBatch(
            name=name,
            bodies=found.bodies,
            positions=range(first, first + count),
            states=states,
            files=[file] * count,
            offsets=offsets,
            sizes=found.sizes,
            timestamps_ms=found.add_ms,
            expiries_ms=[at or None for at in expiries] if any(expiries) else None,
            raws=raws,
        )
