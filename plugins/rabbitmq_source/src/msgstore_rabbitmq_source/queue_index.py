"""Messages of one queue directory that are not acknowledged, in the order of the queue: segment by segment, from the index."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgstore.contract import Buffer, SourceDamage
from msgstore_rabbitmq_source.layout import JOURNAL, NUMBERED, joined
from rabbitmq_files import index_v1, index_v2

SEGMENT_NUMBERS = 4096
"""Messages of a segment of index v2, unless the node was configured otherwise."""
_BLOCK_SIZE = 4096
"""A file that a copy or a power failure has cut ends at a multiple. Entries of an index do so as well."""
_WITHOUT_INDEX = "acknowledged messages are listed as well, and those in the shared store are orphans (--state orphan)"
Read = Callable[[str], Buffer]


class LiveEntry(NamedTuple):
    """A message of the queue."""

    sequence: int | None
    """Number of the message, counted from the start of the queue. None: the index of the segment is lost."""
    is_persistent: bool
    msg_id: bytes
    """Empty if the index does not have it."""
    body_size: int | None
    expiry_us: int
    file: str
    """File that has the message, and is the origin; the index if the message is in a shared store."""
    offset: int
    size: int
    """Bytes of the record in that file."""
    term_offset: int
    term_size: int
    """0: the message is in a shared store."""
    is_verified: bool = False
    is_unsure: bool = False
    """True if nothing says that the message is not acknowledged."""
    is_orphan: bool = False
    """True if no index has the message, as is usual for one that was acknowledged or not confirmed."""


Found = LiveEntry | SourceDamage


def live_entries(
    directory: str, names: list[str], segment_entries: int, read: Read, ended: Mapping[int, int] | None = None
) -> Iterator[Found]:
    """Yield the messages of a queue directory, and damage. ``segment_entries``: of index v1. ``ended``: number of a segment of
    index v2 to its messages when the queue ended cleanly, or None."""
    by_kind: dict[str, dict[int, str]] = {"idx": {}, "qi": {}, "qs": {}}
    for name in names:
        if match := NUMBERED.fullmatch(name):
            by_kind[match[2]][int(match[1])] = joined(directory, name)
    journal = joined(directory, JOURNAL) if JOURNAL in names else None
    v1 = _live_v1(by_kind["idx"], journal, segment_entries, read) if by_kind["idx"] or journal else iter(())
    v2 = _live_v2(by_kind["qi"], by_kind["qs"], read, ended)
    if (by_kind["idx"] or journal) and by_kind["qi"]:  # killed while the broker changed the version of the index
        yield from _merged(v1, v2)
    else:
        yield from v1
        yield from v2


def _merged(v1: Iterator[Found], v2: Iterator[Found]) -> Iterator[Found]:
    """Yield the entries of both indexes in the order of the queue. Of an entry in both, that of version 2 is used."""
    numbered, others = dict[int, LiveEntry](), list[LiveEntry]()
    for item in (*v1, *v2):
        if isinstance(item, SourceDamage):
            yield item
        elif item.sequence is None:
            others.append(item)
        else:
            numbered[item.sequence] = item
    yield from (entry for _, entry in sorted(numbered.items()))
    yield from others


def _live_v1(segments: Mapping[int, str], journal_file: str | None, count: int, read: Read) -> Iterator[Found]:
    journal = index_v1.IndexFile()
    if journal_file is not None:
        journal = index_v1.read_journal(read(journal_file))
        yield from _unread(journal_file, journal)
    numbers = sorted(journal.publishes)
    for segment in sorted(segments.keys() | {number // count for number in numbers}):
        found = index_v1.IndexFile()
        file = segments.get(segment)
        if file is not None:
            found = index_v1.read_segment(read(file))
            yield from _unread(file, found)
        base = segment * count
        rows = {base + number: (file or "", publish) for number, publish in found.publishes.items()}
        for number in numbers[bisect_left(numbers, base) : bisect_left(numbers, base + count)]:
            rows.setdefault(number, (journal_file or "", journal.publishes[number]))
        for number, (origin, publish) in sorted(rows.items()):
            if number - base not in found.acknowledged and number not in journal.acknowledged:
                yield LiveEntry(
                    number, publish.is_persistent, publish.msg_id, publish.body_size, publish.expiry_us,
                    origin, publish.offset, publish.size, publish.term_offset, publish.term_size,
                )  # fmt: skip


def likely_segment_entries(directories: Mapping[str, list[str]], read: Read) -> int:
    """Return the entries of a segment of index v1 where no ``.config`` says it: the number at which most acknowledgements in
    the journals are of messages that were published. ``directories``: of queues, with the names of their files."""
    unknown = dict.fromkeys((index_v1.OLD_SEGMENT_ENTRIES, index_v1.SEGMENT_ENTRIES), 0)
    for directory, names in directories.items():
        segments = {int(name[:-4]): joined(directory, name) for name in names if name.endswith(".idx")}
        if not segments.keys() - {0} or JOURNAL not in names:
            continue
        journal = index_v1.read_journal(read(joined(directory, JOURNAL)))
        published = {number: index_v1.read_segment(read(file)).publishes for number, file in segments.items()}
        for number in journal.acknowledged - journal.publishes.keys():
            for count in unknown:
                unknown[count] += number % count not in published.get(number // count, ())
    return min(unknown, key=unknown.__getitem__)


def _unread(file: str, found: index_v1.IndexFile) -> Iterator[SourceDamage]:
    return (SourceDamage(file=file, offset=offset, size=size, reason=reason) for offset, size, reason in found.damage)


def _live_v2(
    indexes: Mapping[int, str], stores: Mapping[int, str], read: Read, ended: Mapping[int, int] | None
) -> Iterator[Found]:
    for number in sorted(indexes.keys() | stores.keys()):
        index, store = indexes.get(number), stores.get(number)
        if index is None:
            assert store is not None
            if next(index_v2.walk_stored(read(store)), None) is not None:
                yield SourceDamage(file=store, reason=f"{number}.qi is missing: {_WITHOUT_INDEX}")
                yield from _walk(store, read(store))
            continue
        rows = read(index)
        segment, can_be_used = read_index(rows, number)
        for offset, size, reason in segment.damage:
            yield SourceDamage(file=index, offset=offset, size=size, reason=reason)
        data = read(store) if store is not None else b""
        if store is not None and data and (reason := index_v2.header_damage(data, index_v2.STORE_MAGIC)):
            yield SourceDamage(file=store, size=min(len(data), index_v2.HEADER_SIZE), reason=reason)
        if store is not None and (not can_be_used or _has_no_header(rows, data)):
            if can_be_used:
                yield SourceDamage(file=index, reason=f"has no header: {_WITHOUT_INDEX}")
            yield from _walk(store, data)
            continue
        for entry in segment.entries:
            yield _live_entry(entry, index, store, data)
        if store is not None:
            yield from _behind(index, len(rows), segment, store, data, None if ended is None else ended.get(number, 0))


def read_index(data: Buffer, number: int) -> tuple[index_v2.Segment, bool]:
    """Read ``N.qi``, and say if its entries can be used. If only the header is damaged, it follows from N."""
    segment = index_v2.read_index(data)
    if not segment.damage or segment.damage[0][0]:
        return segment, True
    found = index_v2.read_index(right_header(index_v2.INDEX_MAGIC, number) + data[index_v2.HEADER_SIZE :])
    if found.damage or not found.entries:
        return segment, False
    found.damage = segment.damage
    return found, True


def right_header(magic: bytes, number: int) -> bytes:
    """Return the header of a file of index v2 with this number, unless the node was configured otherwise."""
    return index_v2.encode_header(magic, number * SEGMENT_NUMBERS, (number + 1) * SEGMENT_NUMBERS)


def _has_no_header(index: Buffer, store: Buffer) -> bool:
    """Return True for an index that was never written, beside a ``.qs`` file with messages."""
    return not bytes(index[: index_v2.HEADER_SIZE]).strip(b"\0") and next(index_v2.walk_stored(store), None) is not None


def _live_entry(entry: index_v2.Entry, index: str, store: str | None, data: Buffer) -> Found:
    row = (entry.number, entry.is_persistent, entry.msg_id, entry.body_size, entry.expiry_us)
    if entry.place == "shared":
        return LiveEntry(*row, index, entry.offset, index_v2.ENTRY_SIZE, 0, 0)
    reason = "the message was in memory only"
    if entry.place == "own" and store is None:
        reason = "the message is in a .qs file that is missing"
    elif entry.place == "own":
        assert store is not None
        try:
            term, verified = index_v2.read_stored(data, entry.stored_offset, entry.stored_size)
            return LiveEntry(
                *row, store, entry.stored_offset, index_v2.STORED_SIZE + entry.stored_size, term, entry.stored_size, verified
            )
        except index_v2.StoredError as error:
            reason = f"the message at {entry.stored_offset} in {store.rpartition('/')[2]}: {error}"
    lost = 1 if entry.is_persistent else 0
    return SourceDamage(file=index, offset=entry.offset, size=index_v2.ENTRY_SIZE, reason=reason, messages=lost)


def _behind(
    index: str, index_size: int, segment: index_v2.Segment, store: str, data: Buffer, ended: int | None
) -> Iterator[Found]:
    """Yield the messages of a ``.qs`` file behind those of the index, if the index is too short to have had them all.

    The broker does not write the entry of a message that is acknowledged soon, and a kill loses those that it had not yet
    written. So the index is damaged only if it had more messages when the broker stopped, or ends as a file that was cut.
    """
    place, end = -1, index_v2.HEADER_SIZE
    for entry in segment.entries:
        if entry.place == "own" and entry.stored_offset >= end:
            place, end = entry.number, entry.stored_offset + index_v2.STORED_SIZE + entry.stored_size
    if end >= len(data) or (ended is not None and ended <= len(segment.entries)):
        return
    slots = (index_size - index_v2.HEADER_SIZE) // index_v2.ENTRY_SIZE
    free = segment.first + slots - max(place + 1, segment.first) - sum(entry.number > place for entry in segment.entries)
    found = list(_walk(store, data, end))
    messages = [entry for entry in found if isinstance(entry, LiveEntry)]
    if len(messages) <= free:
        return
    is_cut = (index_size - index_v2.HEADER_SIZE) % index_v2.ENTRY_SIZE > 0 or index_size % _BLOCK_SIZE == 0
    if ended is None and not is_cut:
        yield from (entry._replace(is_orphan=True) for entry in messages)
        return
    reason = f"ends before the entries of the last {len(messages):,} messages in {store.rpartition('/')[2]}: {_WITHOUT_INDEX}"
    yield SourceDamage(file=index, offset=index_size, reason=reason)
    yield from found


def _walk(store: str, data: Buffer, start: int = index_v2.HEADER_SIZE) -> Iterator[Found]:
    """Yield each message of a ``.qs`` file without its index."""
    for offset, size in index_v2.walk_stored(data, start):
        place = (store, offset, index_v2.STORED_SIZE + size)
        try:
            term, verified = index_v2.read_stored(data, offset, size)
        except index_v2.StoredError as error:
            yield SourceDamage(file=store, offset=offset, size=place[2], reason=str(error))
        else:
            yield LiveEntry(None, True, b"", None, 0, *place, term, size, verified, is_unsure=True)
