"""Indexes: map an id to the location of its record and to its number of references.

An entry has at least one reference; with its last reference the entry goes. A complete index that saves nothing, so each
opening rebuilds it (the conformance kit also wants what ``close`` saves)::

    class Dict:
        def __init__(self, context): self._entries = {}
        def load(self): return None
        def clear(self): self._entries.clear()
        def __len__(self): return len(self._entries)
        def get(self, msg_id):
            entry = self._entries.get(msg_id)
            return entry and entry[0]
        def references(self, msg_id): return self._entries.get(msg_id, (0, 0))[1]
        def items(self): return ((id, at, refs) for id, (at, refs) in self._entries.copy().items())
        def enter(self, ids, locations, references=None):
            self._entries.update(dict(zip(ids, zip(locations, references or repeat(1)))))
        def add_reference(self, msg_id):
            if msg_id not in self._entries: return False
            at, refs = self._entries[msg_id]
            self._entries[msg_id] = (at, refs + 1)
            return True
        def release(self, ids):
            freed, missing = [], []
            for id in ids:
                at, refs = self._entries.get(id, (None, 0))
                if refs > 1: self._entries[id] = (at, refs - 1)
                elif refs == 1: freed.append((id, self._entries.pop(id)[0]))
                else: missing.append(id)
            return ReleaseResult(freed, missing)
        def relocate(self, ids, old, new):
            hits = [(i, n) for i, o, n in zip(ids, old, new) if self.get(i) == o]
            self._entries.update((i, (n, self._entries[i][1])) for i, n in hits)
            return len(hits)
        def freeze(self, state): pass
        def commit(self): pass
        def close(self, state): pass

A persistent index writes in two steps, so that other threads go on while the disk works::

    enter, release ...   changes in memory         a crash loses them
    freeze(state)        sets them aside           a crash loses them; later changes are not part of them
    commit()             writes what is set aside  survives a crash, all of it or nothing
    close(state)         writes everything         survives a crash; with None it writes nothing

If ``commit`` fails, what was set aside stays aside, and the next ``commit`` writes it with what later freezes added.
``examples/acme_sqlite_index`` of the repository is a complete persistent index, on SQLite.

Threads: once a store is open, the engine calls one method at a time and holds the state lock, with two exceptions. ``get`` is
called from any thread at any time, and sees an entry as it was before or after the change that another method is making.
``commit`` is called without the lock by one thread at a time. Meanwhile other threads call the other methods, but not ``clear``
and ``close``: the engine calls these when no commit runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from msgstore.contract.descriptors import Descriptor

RESCUED_KEY = b"rescued"
"""Key of the state that :meth:`Index.load` returns for damaged files; see there."""
MAX_REFERENCES = (1 << 48) - 1
"""Highest reference count that an index must support: 2**48 - 1."""


@attrs.frozen(kw_only=True)
class IndexDescriptor(Descriptor):
    """``factory(IndexContext) -> Index``. Capabilities: PERSISTENT, LIVE_READS."""


class FileOperations(Protocol):
    """File operations for indexes. Tests inject faults here. All raise OSError."""

    def read_file(self, path: Path) -> bytes:
        """Return the contents of a file."""

    def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
        """Replace a file atomically: write a temporary file, sync it if asked, rename it."""

    def unlink(self, path: Path) -> None:
        """Delete a file. A missing file is no error."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over ``target``."""


@attrs.frozen
class IndexContext:
    """Argument of an index's factory."""

    options: Any
    """Instance of the descriptor's ``options``."""
    directory: Path
    """Store directory. Names of index files begin with ``msgstore-``."""
    files: FileOperations
    sync: bool = False
    """True if a commit, or a close with a state, must survive a power loss, not only the end of the process."""
    read_only: bool = False
    """True if nothing may be written, not even a lock file. Changes then stay in memory and end with ``close``. Files that
    a killed process has left are read as for writing, but not repaired on disk."""
    live: bool = False
    """True, together with ``read_only``, for an index with LIVE_READS whose writer may be another process: each call sees the
    last commit, and the changes in memory on top of it; nothing is held between calls. ``load`` is called again for each new
    writer: it drops the changes and opens the new state. It raises PermissionError if readers must be noted in files of the
    index and cannot be."""


@attrs.define  # not frozen: made for each removal
class ReleaseResult:
    """Result of :meth:`Index.release`."""

    freed: list[tuple[bytes, int]]
    """(id, location) of each entry that lost its last reference."""
    missing: list[bytes]
    """Ids without an entry, in the given order."""


class Index(Protocol):
    """Map from ids of 16 bytes to reference counts and locations: integers below 2**144 that only the engine interprets."""

    def load(self) -> dict[bytes, bytes] | None:
        """Restore the entries of the last ``commit`` (PERSISTENT) or ``close``, and return the state saved with them.

        Called first, and without the lock. Returns None if nothing was saved, or if it is damaged: the index is then empty, and
        may rename the damaged files. If nearly all of the damaged files is right, it returns the state with RESCUED_KEY in
        it; the engine compares each entry with its record. If only counts can be read, it returns ``{RESCUED_KEY: b""}``; the
        engine rebuilds the index, and keeps these counts, which stay durable until the first commit with a state. Raises
        OSError if files cannot be read: the store then does not open.
        """

    def clear(self) -> None:
        """Drop all entries and all state, set aside or not."""

    def __len__(self) -> int:
        """Return the number of entries."""

    def get(self, msg_id: bytes, /) -> int | None:
        """Return the location, or None. Called as often for absent ids as for present ones. TypeError for unhashable keys."""

    def references(self, msg_id: bytes) -> int:
        """Return the number of references; 0 if there is no entry."""

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call, in any order."""

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        """Add or replace entries, with one reference each unless ``references`` is given.

        May raise OSError, or what an iterable raises, and must then have changed nothing: the next flush enters these ids
        again. The engine releases what such a call has entered all the same.
        """

    def add_reference(self, msg_id: bytes) -> bool:
        """Add a reference. Return False if there is no entry. Called by a flush, for each message that has an entry already."""

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        """Remove one reference for each given id; an id may be given several times. If it raises OSError, none was removed."""

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        """Set the location of each id from ``old`` to ``new`` if it is still ``old``. Return how many were set."""

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        """Set all changes so far, and ``state``, aside for the next ``commit``.

        A value of None removes a key; keys have 1 to 511 bytes (ValueError). Does no I/O. The caller may change the mapping
        afterwards. Called again before a ``commit``, or during one, also one that fails, it adds to what is set aside. An
        index without PERSISTENT does nothing.
        """

    def commit(self) -> None:
        """Make what is set aside durable in one step. Raises OSError: it then stays aside, and the call can be repeated.

        An index without PERSISTENT deletes the snapshot of its last ``close`` here, so that a crash leaves none.
        """

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Save all entries and this state as the whole state, in one step, unless it is None. Then release all resources.

        No ``commit`` runs meanwhile. Raises OSError: then nothing was released. A second call does nothing.
        """
