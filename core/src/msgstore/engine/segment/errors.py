"""Errors of the operating system, turned into StoreIOError with file, offset and what to do."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from msgstore.contract import BrokenPlugin, StoreIOError


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
