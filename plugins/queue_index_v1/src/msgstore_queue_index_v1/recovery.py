"""Opening of queue index v1: which messages are left, from the terms of a clean stop or from the files."""

from __future__ import annotations

import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgstore.contract import StoreError
from msgstore.files import Files
from msgstore_queue_index_v1.segment import Place, Segment, entries_of
from rabbitmq_files import index_v1
from rabbitmq_files.index_v1 import Places

log = logging.getLogger("msgstore.queues")

JOURNAL = "journal.jif"
DAMAGED = ".damaged-"
"""In the names of copies of damaged files, before a number."""
_NAME = re.compile(r"(0|[1-9]\d{0,15})\.idx")


class Found(NamedTuple):
    """State of the index, as its files have it."""

    segments: dict[int, Segment]
    next_position: int
    live: int
    body_bytes: int


def segment_files(names: Mapping[str, tuple[int, int]]) -> dict[int, int]:
    """Return number to bytes of each segment file. ``names``: of a directory, from :meth:`Files.list`."""
    return {int(match[1]): names[match[0]][0] for match in filter(None, map(_NAME.fullmatch, names))}


def from_terms(
    terms: Mapping[str, Any], entries: int, names: Mapping[str, tuple[int, int]], journal: Places
) -> dict[int, Segment] | None:
    """Return the segments that terms say, with what the journal has of them. None if the terms are not of these files."""
    files = segment_files(names)
    if terms.get("segment_entries") != entries or terms["journal"] != journal.end or journal.damage:
        return None
    segments = {number: Segment(number, number * entries, live) for number, live in terms["segments"]}
    if not files.keys() <= segments.keys():
        return None
    for number, size in files.items():
        segments[number].size, segments[number].has_file = size, True
    for segment in segments.values():
        segment.may_have_shared = True
    for position, place in journal.publishes.items():
        if position not in journal.acknowledged:
            if position // entries not in segments:
                return None
            segments[position // entries].publishes[position] = place
    for position in journal.acknowledged - journal.publishes.keys():
        of_ack = segments.get(position // entries)
        if of_ack is not None and of_ack.has_file:
            of_ack.acks.add(position)
    if any(segment.live != len(segment.publishes) for segment in segments.values() if not segment.has_file):
        return None
    return segments


def from_files(
    files: Files, directory: Path, sizes: Mapping[int, int], entries: int, journal: Places, journal_data: bytes
) -> Found:
    """Read the segments, of ``sizes`` bytes, and the journal, whose content is ``journal_data``. Transient messages count as
    acknowledged. Raises OSError, StoreError."""
    new = defaultdict[int, dict[int, Place]](dict)
    for position, place in journal.publishes.items():
        new[position // entries][position] = place
    in_journal = new.keys() | {position // entries for position in journal.acknowledged}
    segments: dict[int, Segment] = {}
    next_position = body_bytes = 0
    for number in sorted(sizes.keys() | new.keys()):
        segment = segments[number] = Segment(number, number * entries)
        data, found = b"", Places({}, set(), set(), 0)
        if number in sizes:
            path = directory / f"{number}.idx"
            data, found = _read_segment(files, path, entries)
            next_position = max(next_position, segment.first + max(found.publishes, default=-1) + 1)
            if number in new:  # a crash may have cut what moved there, and the journal still has it
                found = before_damage(files, path, data, found, index_v1.find_in_segment)
            elif found.damage and found.damage[0][0] < found.end:
                data, found = _without_damage(files, path, data, found)
            segment.has_file, segment.size, segment.is_torn = True, found.end, found.end < len(data)
            segment.is_unsure = number in in_journal
            segment.unmarked = sorted(segment.first + row for row in found.publishes.keys() - found.delivered)
        next_position = max(next_position, max(new[number], default=-1) + 1)
        body_bytes += _count(segment, found, data, journal, new[number], journal_data)
    return Found(segments, next_position, sum(segment.live for segment in segments.values()), body_bytes)


def _count(segment: Segment, found: Places, data: bytes, journal: Places, new: Mapping[int, Place], journal_data: bytes) -> int:
    """Note the live messages of a segment. Return the bytes of their bodies. ``found``: entries of its file, whose content is
    ``data``. ``new``: its publishes in the journal."""
    first, body_bytes = segment.first, 0
    old = [(first + row, place) for row, place in found.publishes.items() if row not in found.acknowledged]
    rest = [
        (at, place)
        for at, place in new.items()
        if at - first not in found.publishes and at - first not in found.acknowledged and at not in journal.acknowledged
    ]
    for rows, content, is_journal in ((old, data, False), (rest, journal_data, True)):
        for entry in entries_of(rows, content, 0, is_journal=is_journal, terms=False):
            if entry.is_persistent and entry.position not in journal.acknowledged:
                segment.live += 1
                segment.may_have_shared |= entry.is_shared
                body_bytes += entry.body_size
                if is_journal:
                    segment.publishes[entry.position] = new[entry.position]
            elif not is_journal:
                segment.acks.add(entry.position)
    return body_bytes


def read_journal(files: Files, path: Path) -> tuple[bytes, Places]:
    """Return the content of the journal, and its entries up to the first damage: what follows was written after the last sync,
    and not confirmed."""
    data = files.read_file(path)
    found = index_v1.find_in_journal(data)
    _report(path, found)
    return data, before_damage(files, path, data, found, index_v1.find_in_journal)


def before_damage(files: Files, path: Path, data: bytes, found: Places, find: Callable[[bytes], Places]) -> Places:
    """Return the entries before the first damage. If there are several others, a copy of the file is kept. A single one may be
    a part of a message that was cut."""
    if not found.damage:
        return found
    before = find(data[: found.damage[0][0]])
    if len(found.publishes) > len(before.publishes) + 1:
        copy = _keep_copy(files, path, data)
        log.warning("%s: entries behind byte %d are not used; a copy of the file is kept as %s", path, before.end, copy)
    before.damage = found.damage
    return before


def _without_damage(files: Files, path: Path, data: bytes, found: Places) -> tuple[bytes, Places]:
    """Write a segment that is damaged before its end again, with the entries that can be read. Return its content and entries.
    Otherwise, the next crash could not be told from this damage."""
    copy = _keep_copy(files, path, data)
    log.warning("%s: was written again without the damage; a copy of the file is kept as %s", path, copy)
    live = sorted((row, place) for row, place in found.publishes.items() if row not in found.acknowledged)
    content = b"".join(data[begin:end] + index_v1.encode_mark(row) for row, (begin, end) in live)
    files.write_file(path, [content], sync=True)
    return content, index_v1.find_in_segment(content)


def _keep_copy(files: Files, path: Path, data: bytes) -> str:
    names = (path.with_name(f"{path.name}{DAMAGED}{number}") for number in itertools.count(1))
    copy = next(name for name in names if not name.exists())
    files.write_file(copy, [data], sync=True)
    return copy.name


def _read_segment(files: Files, path: Path, entries: int) -> tuple[bytes, Places]:
    data = files.read_file(path)
    found = index_v1.find_in_segment(data)
    _report(path, found)
    if wrong := [row for row in found.publishes if row >= entries]:
        if not found.damage:
            raise StoreError(
                f"{path}: has an entry {wrong[0]}, and segments have {entries}. It was written with another number: use that. "
                f"RabbitMQ keeps it as segment_entry_count in .config of the vhost; without that file, it is "
                f"{index_v1.OLD_SEGMENT_ENTRIES}."
            )
        for row in wrong:
            del found.publishes[row]
    return data, found


def _report(path: Path, found: Places) -> None:
    for offset, size, reason in found.damage:
        log.warning("%s: %d bytes at %d: %s", path, size, offset, reason)
