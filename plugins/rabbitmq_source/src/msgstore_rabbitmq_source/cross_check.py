"""Files that a clean stop wrote know what must be there: a segment, a queue or messages that are missing are reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgstore.contract import QueueName, SourceContext, SourceDamage
from msgstore_rabbitmq_source.layout import RECOVERY, NodeFiles, VhostFiles, joined
from msgstore_rabbitmq_source.naming import QueueDirectory
from rabbitmq_files.tables import Table, read_log, text_of

SUMMARY = "file_summary.ets"


def expected_messages(terms: Table) -> dict[str, int]:
    """Return the persistent messages of each queue when it ended, by the hash of its directory."""
    return dict(found for _, row in terms.terms if (found := _expected(row)) is not None)


def ended_segments(terms: Table) -> dict[str, dict[int, int]]:
    """Return the messages of each segment of index v2 when its queue ended, by the hash of its directory."""
    return dict(found for _, row in terms.terms if (found := _segments(row)) is not None)


def changed_queues(
    vhost: VhostFiles, terms: Table, parts: Sequence[QueueDirectory], names: Mapping[str, QueueName]
) -> Iterator[SourceDamage]:
    """Yield what ``recovery.dets`` contradicts: queues with fewer messages in the index than when the broker stopped, or with
    more, as acknowledgements are lost. ``names``: of the queues, by directory."""
    place = vhost.path(RECOVERY)
    for offset, size, reason in terms.damage:
        yield SourceDamage(file=place, offset=offset, size=size, reason=reason)
    by_hash = {part.hashed: part for part in parts}
    for offset, row in terms.terms:
        if (found := _expected(row)) is None:
            continue
        hashed, expected = found
        part = by_hash.get(hashed)
        there = 0 if part is None else part.persistent
        if there == expected:
            continue
        reason = f"the queue directory {hashed} is missing, and had {expected:,} persistent messages"
        if part is not None:
            reason = f"the queue directory {hashed} has {there:,} persistent messages in its index, and had {expected:,} "
            reason += "when the broker stopped"
        name = None if part is None else names[part.directory]
        lost = max(expected - there, 0)
        yield SourceDamage(file=place, offset=offset, size=1, reason=reason, name=name, messages=lost)


def missing_segments(context: SourceContext, node: NodeFiles, vhost: VhostFiles) -> Iterator[SourceDamage]:
    """Yield the segments that ``file_summary.ets`` of a store has, and the directory has not, or not whole."""
    for store, segments in vhost.stores.items():
        if (place := joined(store, SUMMARY)) in node.files:
            yield from _missing_segments(node, store, segments, place, bytes(context.read(place)))


def _missing_segments(node: NodeFiles, store: str, segments: list[str], place: str, data: bytes) -> Iterator[SourceDamage]:
    sizes = {PurePosixPath(name).stem: node.files[joined(store, name)].size for name in segments}
    for offset, row in read_log(data).terms:
        if not (isinstance(row, tuple) and len(row) == 8 and row[0] == "file_summary" and isinstance(row[2], int)):
            continue
        number, live, size = str(row[1]), row[2], row[5]
        if number not in sizes and live > 0:
            reason = f"segment {number} is missing: it had {live:,} bytes of messages when the broker stopped"
            yield SourceDamage(file=place, offset=offset, size=1, reason=reason)
        elif isinstance(size, int) and sizes.get(number, size) < size:
            reason = f"segment {number} has {sizes[number]:,} bytes, and had {size:,} when the broker stopped"
            yield SourceDamage(file=place, offset=offset, size=1, reason=reason)


def _expected(row: Any) -> tuple[str, int] | None:
    """Return directory and number of persistent messages from a row of ``recovery.dets``."""
    hashed, count = _term(row, "persistent_count")
    return (hashed, count) if hashed and isinstance(count, int) else None


def _segments(row: Any) -> tuple[str, dict[int, int]] | None:
    """Return directory and messages of each segment from a row of ``recovery.dets`` of a queue with index v2."""
    match _term(row, "v2_index_state"):
        case str(hashed), (2, dict(counts)):
            return hashed, {number: count for number, count in counts.items() if isinstance(count, int)}
    return None


def _term(row: Any, name: str) -> tuple[str | None, Any]:
    """Return directory and a value from a row of ``recovery.dets``, or None for what it does not have."""
    if not (isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], list)):
        return None, None
    pairs = (pair for pair in row[1] if isinstance(pair, tuple) and len(pair) == 2)
    return text_of(row[0]), next((value for key, value in pairs if key == name), None)
