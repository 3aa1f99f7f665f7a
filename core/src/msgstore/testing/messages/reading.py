"""Reading of sources in tests: places of records, time zones, and comparison of what was read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import MessageBatch, MsgStoreError, PluginError, QueueName, SourceDamage
from msgstore.jobs.messages.rows import rows_of
from msgstore.jobs.messages.sources import SourceSpec, open_source
from msgstore.option_values import Backend
from msgstore.testing.subjects import Subject

NOW_MS = 1_700_000_000_000
TIME_ZONES = ("EAST-13:45", "WEST+9:30WESTSUMMER,M3.2.0,M11.1.0")
"""Values of TZ. The second has a summer time."""
Place = tuple[str, int]
"""File and offset of a record."""


@attrs.frozen
class Sample:
    """Files that the source under test reads: what the descriptor's ``sample`` makes, or others."""

    subject: Subject
    path: Path

    def spec(self, *, raw: bool = False, now_ms: int = NOW_MS) -> SourceSpec:
        return SourceSpec(str(self.path), Backend(self.subject.name, self.subject.options), now_ms, raw)

    def opened(self, **how: Any) -> Any:
        """Return a context with a source. ``how``: arguments of ``spec``."""
        return open_source(self.spec(**how), self.subject.catalogue)

    def batches(self, **how: Any) -> Iterator[MessageBatch]:
        """Yield all messages. Fails for damage."""
        with self.opened(**how) as source:
            for info in source.queues():
                assert isinstance(info.name, QueueName)
                for item in source.messages(info.name, 0, None) if info.read else ():
                    assert isinstance(item, MessageBatch), f"the sample is damaged: {item}"
                    yield item
            assert not list(source.damage()), "the sample is damaged"

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else sorted(path for path in self.path.rglob("*") if path.is_file())

    def records(self, batches: Iterable[MessageBatch], file: Path) -> list[tuple[str, int, int]]:
        """Return (file, offset, size) of each record of some messages that is in a file."""
        places = {place for batch in batches for place in zip(batch.files, batch.offsets, batch.sizes, strict=True)}
        return sorted(place for place in places if self.path / place[0] == file)

    def places(self) -> set[Place]:
        """Return the places of messages up to an error that is no fault of the plugin. Damage is none."""
        found = set[Place]()
        try:
            with self.opened() as source:
                for batch in messages_of(source):
                    found |= places_of([batch])
                list(source.damage())
        except PluginError:
            raise
        except MsgStoreError:
            pass
        return found


def messages_of(source: Any) -> Iterator[MessageBatch]:
    """Yield the messages of all queues, without the damage."""
    for info in source.queues():
        for item in source.messages(info.name, 0, None) if info.read else ():
            if isinstance(item, MessageBatch):
                yield item


def places_of(batches: Iterable[MessageBatch]) -> set[Place]:
    return {place for batch in batches for place in zip(batch.files, batch.offsets, strict=True)}


def verified_bodies(batches: Iterable[MessageBatch], sample: Path, file: Path, content: bytes) -> set[int]:
    """Return the offsets in a file of some bodies that a checksum covers, if they are stored as they are."""
    found = [
        content.find(batch.bodies[row], batch.offsets[row], batch.offsets[row] + batch.sizes[row])
        for batch in batches
        for row, is_verified in enumerate(batch.verified or ())
        if is_verified and batch.bodies[row] and sample / batch.files[row] == file
    ]
    return {at for at in found[::9] if at >= 0}


def rows(items: Iterable[MessageBatch | SourceDamage]) -> list[dict[str, Any]]:
    return [row for item in items if isinstance(item, MessageBatch) for row in rows_of(item)]


def check_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]], where: str) -> None:
    for row, right in zip(found, wanted, strict=False):
        others = [key for key in right if row.get(key) != right[key]]
        assert not others, f"{where}: the message at {right['position']} has another value of {', '.join(others)}"
    assert len(found) == len(wanted), f"{where}: there are {len(found)} messages, not {len(wanted)}"


def check_places(items: Iterable[MessageBatch | SourceDamage], sample: Path, where: str) -> None:
    """Fail if a record or damage is not inside a file, or if two records share only some bytes."""
    places = set[tuple[str, int, int]]()
    for item in items:
        if isinstance(item, MessageBatch):
            found = list(zip(item.files, item.offsets, item.sizes, strict=True))
            assert min(item.sizes, default=1) > 0, f"{where}: a record has the size {min(item.sizes)}"
            places.update(found)
        else:
            found = [(item.file, item.offset, item.size)]
        for name, offset, size in found:
            file = sample / name if name else sample
            assert not name.startswith("/"), f"{where}: the path of a file is {name!r}, not relative to the source's"
            assert os.path.lexists(file), f"{where}: there is no file {name!r}"
            length = file.stat().st_size if file.is_file() else 0
            inside = min(offset, size) >= 0 and offset + size <= length
            assert inside, f"{where}: {name!r} has {length} bytes, none from {offset} to {offset + size}"
    for (name, offset, size), (other, begin, _) in pairwise(sorted(places)):
        assert name != other or offset + size <= begin, f"{where}: records overlap in {name!r} at {begin}"
