"""Reference counts that a broker saved in ``msg_store_index.ets`` when it stopped cleanly.

They are exact if nothing has changed since. The file does not show that, and has no checksum. So it is compared with the
files next to it: ``clean.dot``, ``file_summary.ets`` (size and live bytes of each segment), and the records of the segments.

If everything agrees, the counts are used as they are, and a record without a count is dead. If anything contradicts, an entry
whose record is at its location keeps its count, and every other record counts one, dead or not, also with a count of 0: a
surplus message can be removed, a lost one cannot be brought back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import attrs

from msgstore.contract import Columns, StoreError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.open import ets_file
from msgstore.engine.open.clean_shutdown import SAVED_COUNTS, SAVED_SUMMARY, ShutdownFiles
from msgstore.engine.open.ets_file import Data, Table, Take
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.locations import LIMIT, MASK, NUMBER_SHIFT, pack_location

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")  # commands that report damage themselves mute the other logger

CountsFrom = Literal["index", "given", "msg_store_index.ets", "msg_store_index.ets in part", "one each"]
Found = tuple[Segment, Columns, int]
"""(segment, its records, number of copies besides these)."""
_SMALLEST_ROW = 40
"""Bytes of the smallest row of both tables. It limits the number of rows that a file can claim to have."""


@attrs.define
class BrokerCounts:
    """Rows of ``msg_store_index.ets``, and the first reason not to trust them."""

    directory: Path
    locations: dict[bytes, int] = attrs.field(factory=dict)
    """Packed location of each id."""
    references: dict[bytes, int] = attrs.field(factory=dict)
    problem: str | None = None
    """First reason not to trust the counts, or None."""

    def take(self, msg_id: bytes, references: int, number: int, offset: int, size: int) -> None:
        """Add one row."""
        if offset >= LIMIT or size >= LIMIT or references > MAX_REFERENCES:
            self.object(f"{SAVED_COUNTS} has an impossible entry, of {msg_id.hex()}")
        elif msg_id in self.locations:
            self.object(f"{SAVED_COUNTS} names {msg_id.hex()} twice")
        else:
            self.locations[msg_id] = pack_location(number, offset, size)
            self.references[msg_id] = references

    def object(self, problem: str) -> None:
        """Note a reason not to trust the counts."""
        self.problem = self.problem or problem

    def decide(self, found: Sequence[Found]) -> tuple[CountsFrom, dict[bytes, int] | None]:
        """Compare with the records of all segments. Return the source of the counts, and the count of every live message, or
        None if each record counts one."""
        live = {msg_id: count for msg_id, count in self.references.items() if count}
        agreed = {
            msg_id: live[msg_id]
            for segment, records, _ in found
            for msg_id, offset, size, _ in records.rows()
            if msg_id in live and self.locations[msg_id] == pack_location(segment.number, offset, size)
        }
        contradicted = len(live) - len(agreed)
        if contradicted:
            self.object(f"{contradicted} of its {len(live)} messages have no record where it says")
        if self.problem is None:
            what = "%s: the reference counts are those of %s: %d messages with %d references"
            log.info(what, self.directory, SAVED_COUNTS, len(live), sum(live.values()))
            return "msg_store_index.ets", live
        there = {msg_id: 1 for _, records, _ in found for msg_id in records.id_list()}
        what = (
            "%s: %s does not fit the segments: %s. %d messages agree with their record and keep their count, %d contradict it, "
            "and %d records count as one message each, dead or not. Pass the counts (refcounts=, --refcounts) if you have them."
        )
        numbers = len(agreed), contradicted, len(there) - len(agreed)
        _store_log.warning(what, self.directory, SAVED_COUNTS, self.problem, *numbers)
        if not agreed:
            return "one each", None
        return "msg_store_index.ets in part", live | there | agreed  # those of ``live`` alone are reported as missing


def read_broker_counts(segments: Segments, shutdown_files: ShutdownFiles, *, read_only: bool) -> BrokerCounts | None:
    """Read the counts that a broker saved. Return None, and log why, if there are none that can be used.

    Raises StoreError if the system cannot read them, unless ``read_only``: an opening that writes removes them permanently.
    """
    path = shutdown_files.saved(SAVED_COUNTS)
    what = "%s: not used: %s. Every record counts as one message. Pass the counts (refcounts=, --refcounts) if you have them."
    if path is None:
        _store_log.warning(what, segments.directory / SAVED_SUMMARY, f"there is no {SAVED_COUNTS} beside it")
        return None
    if shutdown_files.text is None:
        _store_log.warning(what, path, "there is no clean.dot beside it, so it may be older than the segments")
        return None
    counts = BrokerCounts(segments.directory)
    try:
        table = _read(segments, path, ets_file.read_locations, counts.take)
        if not table.rows and table.problem:
            _store_log.warning(what, path, table.problem)
            return None
        if table.problem:
            counts.object(table.problem)
        _compare_summary(segments, shutdown_files, counts)
    except OSError as error:
        if not read_only:
            raise StoreError(
                f"{error.filename or path}: cannot be read: {error.strerror or error}. It has the reference counts. Fix the "
                f"cause and open the store again; if it is lost, move it away, or pass the counts (refcounts=, --refcounts)."
            ) from error
        _store_log.warning(what, error.filename or path, error.strerror or error)
        return None
    return counts


def _read(segments: Segments, path: Path, read: Callable[[Data, Take, int], Table], take: Take) -> Table:
    with segments.files.view(path) as data:
        return read(data, take, len(data) // _SMALLEST_ROW)


def _compare_summary(segments: Segments, shutdown_files: ShutdownFiles, counts: BrokerCounts) -> None:
    """Compare ``file_summary.ets`` with the sizes of the segments, and with the live bytes of each by the counts."""
    path = shutdown_files.saved(SAVED_SUMMARY)
    if path is None:
        counts.object(f"there is no {SAVED_SUMMARY} beside it")
        return
    summary: dict[int, tuple[int, int]] = {}

    def take(number: int, live_bytes: int, size: int) -> None:
        summary[number] = (live_bytes, size)

    table = _read(segments, path, ets_file.read_summaries, take)
    for number in sorted(summary.keys() - segments.by_number.keys()):
        counts.object(f"segment {number} is missing, and has {summary[number][0]} bytes of live records by {SAVED_SUMMARY}")
    if table.problem:
        counts.object(f"{SAVED_SUMMARY}: {table.problem}")
    live = dict.fromkeys(segments.by_number, 0)
    for location, references in zip(counts.locations.values(), counts.references.values(), strict=True):
        if references:
            number = location >> NUMBER_SHIFT
            live[number] = live.get(number, 0) + (location & MASK)
    for segment in segments:
        live_bytes, size = summary.get(segment.number, (0, -1))
        if size != segment.size:
            counts.object(f"{segment.path.name} has {segment.size} bytes, and not as many by {SAVED_SUMMARY}")
        elif live_bytes != live[segment.number]:
            what = f"{live[segment.number]} bytes of {segment.path.name} are alive by it, and {live_bytes} by {SAVED_SUMMARY}"
            counts.object(what)
