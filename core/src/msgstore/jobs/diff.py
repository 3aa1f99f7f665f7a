"""Comparing two stores, or two trees of stores: which messages only one of them has, and which have another body.

``digest`` hashes the bodies of one segment's intact records, on any worker; of all copies of an id on a side the
first one counts, by rank and offset, as in a salvage. Bodies are compared as they are stored; record types and
segments are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer, Columns, Damage
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.not_read import NotRead
from msgstore.jobs.reading.segment_check import UnreadableSegmentError, intact_records, opening
from msgstore.jobs.reports import Findings
from msgstore.jobs.sources import find_offline
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import OpenFormat

DIGEST = 16
"""Bytes of a BLAKE2b hash: two bodies that are not the same have the same one by chance once in 2 to the power 128."""
KINDS = ("differing", "only_a", "only_b")


@attrs.frozen
class DiffJob:
    """Picklable. Made and checked by :func:`plan_diff`."""

    a: str
    b: str
    """As they were given."""
    found_a: Found
    found_b: Found

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return self.found_a.size + self.found_b.size


def plan_diff(catalogue: Catalogue, a: Path, b: Path, *, records: Mapping[str, int] | None = None) -> DiffJob:
    """Read no segment. ``records`` binds record types beside those that the directories remember.

    Raises StoreError (no segments), StoreLocked, ConfigError, PluginError.
    """
    found_a, found_b = (find_offline(catalogue, [path], records) for path in (a, b))
    return DiffJob(str(a), str(b), found_a, found_b)


# -- one segment --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Digests:
    """Digests of the intact records of a segment, by offset. Picklable: 32 bytes per record."""

    ids: bytes = b""
    digests: bytes = b""
    damage: tuple[Damage, ...] = ()


def digest(item: SegmentInput) -> Digests:
    """Read one segment. One that cannot be read is damage as a whole. Raises PluginError."""
    try:
        with opening(item) as (form, data):
            good = intact_records(form, data)
            return Digests(bytes(good.records.ids), b"".join(_hashes(form, data, good.records)), good.damage)
    except UnreadableSegmentError as error:
        return Digests(damage=(Damage(0, item.size, str(error)),))


def _hashes(form: OpenFormat, data: Buffer, records: Columns) -> Iterator[bytes]:
    decode = form.format.decode
    for msg_id, offset, size, _ in records.rows():
        yield blake2b(decode(msg_id, data[offset : offset + size]), digest_size=DIGEST).digest()


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class Side(Findings):
    path: str
    segments: int
    size: int
    """Bytes of the segments."""
    messages: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "segments": self.segments,
            "size": self.size,
            "messages": self.messages,
            "damaged_spans": len(self.damage),
        }


@attrs.define
class DiffReport:
    """The same from every engine."""

    a: Side
    b: Side
    same: int = 0
    """Messages that both have, with one body."""
    ids: dict[str, list[bytes]] = attrs.field(factory=lambda: {kind: [] for kind in KINDS})
    """Of the others, in order: ``differing`` in their bodies, ``only_a``, ``only_b``."""

    @property
    def agrees(self) -> bool:
        """Return True if both sides have the same messages, and no damage that may hide another one."""
        return not (any(self.ids.values()) or self.a.damage or self.b.damage)

    @property
    def not_read(self) -> list[NotRead]:
        """Return the files of both sides that were not read."""
        return [*self.a.not_read, *self.b.not_read]

    def as_json(self) -> dict[str, Any]:
        counts = {kind: len(found) for kind, found in self.ids.items()}
        return {"kind": "summary", "a": self.a.as_json(), "b": self.b.as_json(), "same": self.same, **counts}

    def rows_as_json(self) -> Iterator[dict[str, Any]]:
        for kind, found in self.ids.items():
            for msg_id in found:
                yield {"kind": kind, "id": msg_id.hex()}


def side_of(path: str, found: Found, damage: Iterable[tuple[SegmentInput, Sequence[Damage]]]) -> Side:
    """One in which no message is counted yet. ``damage`` by rank."""
    side = Side(path, len(found.inputs), found.size)
    found.add_to(side)
    for item, spans in damage:
        side.add_damage(item.path, spans)
    return side
