"""One segment of an open store: its file and what the engine knows of it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import attrs

from msgstore.contract import BrokenPlugin, SegmentStats, StoreIOError
from msgstore.directory import TEMP_SUFFIX
from msgstore.scan import OpenFormat


@attrs.define(eq=False)
class Segment:
    """One segment file and what the engine knows of it. Sizes in bytes, of whole records."""

    number: int
    path: Path
    form: OpenFormat
    size: int
    """Where the next record would begin."""
    live_count: int = 0
    live_bytes: int = 0
    appendable: bool = False
    """True if its end is clean and it may go on being written."""
    quarantined: bool = False
    """True if damage was found: it is read as it is, never collected and never deleted."""
    torn: bool = False
    """True if recovery found a write at its end that was cut off."""
    sealed_mtime_ns: int | None = None
    """Modification time of the file after its last write, in nanoseconds; None while the file may still be written."""
    died_since_pin: set[int] | None = None
    """While it is being collected, the locations of its records that have died since that began; else None."""
    compacting: bool = False
    """True while its file is rewritten in place: then it may be shorter than ``size``, and its row says so."""
    compacted_live_bytes: int = -1
    """Live bytes after the last collection of the segment: as long as they are the same, there is nothing to gain."""

    @property
    def is_pinned(self) -> bool:
        """True while it must not be deleted, and no dead record in it may be revived."""
        return self.died_since_pin is not None

    @property
    def is_published(self) -> bool:
        """False for copies that are not all on disk yet."""
        return self.path.suffix != TEMP_SUFFIX

    @property
    def header_bytes(self) -> int:
        return len(self.form.format.header)

    def stats(self, *, current: bool, size_limit: int = 0) -> SegmentStats:
        return SegmentStats(
            number=self.number,
            file=self.path.name,
            format=self.form.name,
            size=self.size,
            live_count=self.live_count,
            live_bytes=self.live_bytes,
            header_bytes=self.header_bytes,
            current=current,
            quarantined=self.quarantined,
            sealed_at=None if self.sealed_mtime_ns is None else self.sealed_mtime_ns / 1e9,
            size_limit=size_limit,
        )


class io_errors:  # noqa: N801 - used as a function; a generator would cost a flush several microseconds
    """Context manager: an OSError about a file or directory becomes StoreIOError, and a BrokenPlugin names the file."""

    __slots__ = ("_offset", "_path")

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self._offset = offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise io_error(self._path, self._offset, error) from error
        if isinstance(error, BrokenPlugin):
            raise BrokenPlugin(f"{self._path}: {error}") from error.__cause__


def io_error(path: Path, offset: int | None, error: OSError) -> StoreIOError:
    where = f"{path}" + (f" at offset {offset}" if offset is not None else "")
    return StoreIOError(
        f"{where}: {error.strerror or error}. Fix the cause (disk space, limits, permissions, hardware) and retry: what is "
        f"on disk stays, and unconfirmed messages stay in memory until the next flush()."
    )
