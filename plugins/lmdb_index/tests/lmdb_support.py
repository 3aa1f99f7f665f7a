"""Helpers of the tests of the index ``lmdb``: indexes in a directory, ids, and entries on disk."""

from __future__ import annotations

import contextlib
import hashlib
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgstore.contract import IndexContext, Size
from msgstore.testing.faults import UnsyncedFiles
from msgstore_lmdb_index.index import DIRECTORY, LmdbIndex
from msgstore_lmdb_index.plugin import LmdbOptions

MIB = 2**20
Entry = tuple[bytes, int, int]


def make(directory: Path, files: Any = None, *, map_size: int = MIB, **context: Any) -> LmdbIndex:
    return LmdbIndex(IndexContext(LmdbOptions(map_size=Size(map_size)), directory, files or UnsyncedFiles(), **context))


def opened(directory: Path, state: object = None, **options: Any) -> LmdbIndex:
    """A loaded index, with this state."""
    index = make(directory, **options)
    assert index.load() == state
    return index


def ids(begin: int, end: int) -> list[bytes]:
    return [hashlib.md5(b"%d" % number).digest() for number in range(begin, end)]


def commit(index: LmdbIndex, state: Mapping[bytes, bytes | None] | None = None) -> None:
    index.freeze(state or {})
    index.commit()


def fill(directory: Path, count: int = 3000, state: Mapping[bytes, bytes] | None = None) -> Path:
    """Save entries. Return LMDB's file."""
    index = opened(directory)
    index.enter(ids(0, count), range(count))
    index.close({b"key": b"value"} if state is None else state)
    return directory / DIRECTORY / "data.mdb"


def stored(directory: Path) -> tuple[object, list[Entry]]:
    """State and entries that are on disk."""
    index = make(directory)
    state, entries = index.load(), sorted(index.items())
    index.close(None)
    return state, entries


def names(directory: Path) -> list[str]:
    return sorted(found.name for found in directory.iterdir())


@contextlib.contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """A limit of this process, such as ``RLIMIT_NOFILE``."""
    limits = resource.getrlimit(what)
    resource.setrlimit(what, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, limits)
