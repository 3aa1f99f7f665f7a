"""Indexes: from a message id to the location of its record and its number of references.

The engine is an index's only caller, and calls it under the store's lock, one thread at a time. There are two exceptions.
Reads call ``get`` at any time, from any thread, and see an entry as it was before or after what another method is doing.
``commit`` is called without the lock, one thread at a time, while other threads call every other method: what it makes
durable is what ``freeze`` set apart before. An entry has at least one reference: when the last one goes, the entry goes.

A complete one, without persistence::

    class Dict:
        def __init__(self, context): self._entries = {}
        def load(self): return None
        def clear(self): self._entries.clear()
        def __len__(self): return len(self._entries)
        def get(self, msg_id):
            entry = self._entries.get(msg_id)
            return entry and entry[0]
        def references(self, msg_id): return self._entries.get(msg_id, (0, 0))[1]
        def items(self): return ((id, at, refs) for id, (at, refs) in self._entries.items())
        def enter(self, ids, locations, references=None):
            self._entries.update(zip(ids, zip(locations, references or repeat(1))))
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
            return Released(freed, missing)
        def relocate(self, ids, old, new):
            hits = [(i, n) for i, o, n in zip(ids, old, new) if self.get(i) == o]
            self._entries.update((i, (n, self._entries[i][1])) for i, n in hits)
            return len(hits)
        def freeze(self, state): pass
        def commit(self): pass
        def close(self, state): pass
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from msgstore.contract.descriptors import Descriptor

RESCUED_KEY = b"rescued"
"""Key that :meth:`Index.load` adds to the state if its files are damaged. With no other key: only reference counts could be
read. With the whole state: most entries are right, and the engine compares each with its record."""


@attrs.frozen(kw_only=True)
class IndexDescriptor(Descriptor):
    """``factory(IndexContext) -> Index``. Capabilities: PERSISTENT, LIVE_READS."""


class FileOperations(Protocol):
    """The file operations that an index may do for itself; faults are injected here. All raise OSError."""

    def read_file(self, path: Path) -> bytes:
        """The whole of it."""
        ...

    def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
        """Atomically: under a temporary name, synced if asked, then renamed."""
        ...

    def unlink(self, path: Path) -> None:
        """No error if there is no such file."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename, over what has the target's name."""
        ...


@attrs.frozen
class IndexContext:
    """What an index's factory is called with."""

    options: Any
    """The backend's own keys: an instance of the descriptor's ``options``."""
    directory: Path
    """The store's directory. Files of an index begin with ``msgstore-``."""
    files: FileOperations
    """What it writes, renames and removes files with."""
    sync: bool = False
    """True if a commit must survive a power loss, not only the end of the process."""
    read_only: bool = False
    """True if nothing may be written, lock files included; changes then live in memory and end with ``close``."""
    shared: set[bytes] = attrs.field(factory=set)
    """An index adds the ids whose entries have several references, when it meets them: in ``load``, or in ``get``. Their bodies
    are cached. To leave one out costs memory elsewhere, nothing else."""
    live: bool = False
    """True, with ``read_only``, only for an index with LIVE_READS. Another process may commit at any time, then: each call sees
    what the last commit left, changes in memory on top of it, and nothing is held between calls. ``load`` is called again when
    another writer has opened the store: it drops the changes, and opens what is there then. It raises PermissionError where it
    may not note its readers for the writer. Readers may be noted in files of the index, nothing else is written."""


@attrs.define  # not frozen: made once a removal, and freezing would cost a third of it
class Released:
    """What :meth:`Index.release` did."""

    freed: list[tuple[bytes, int]]
    """(id, location) of the entries that lost their last reference."""
    missing: list[bytes]
    """Ids without an entry, in the order given."""


class Index(Protocol):
    """From ids to locations (see :mod:`msgstore.contract.locations`) and reference counts."""

    def load(self) -> dict[bytes, bytes] | None:
        """Called once, first. The state of the last ``commit`` (PERSISTENT) or ``close``, with the entries of that moment.

        None if there is nothing, or if it is damaged: what is damaged is set aside, and the index is empty. Counts that can
        still be read need not be lost: a state of ``RESCUED_KEY`` alone says that the entries have right counts and no
        locations. The engine then rebuilds, and every message that is found and has such an entry keeps its count; an index
        keeps them durable until the first commit with a state that is not empty. Raises OSError if it cannot be read: then
        the store does not open, and nothing is lost.
        """
        ...

    def clear(self) -> None:
        """Drop every entry and all state, what is frozen included: the engine rebuilds from the segments."""
        ...

    def __len__(self) -> int:
        """The number of entries."""
        ...

    def get(self, msg_id: bytes, /) -> int | None:
        """The location, or None. Absent ids are asked for as often as present ones: both must be cheap.

        Called without the store's lock. TypeError for what cannot be a key.
        """
        ...

    def references(self, msg_id: bytes) -> int:
        """The number of references; 0 if absent."""
        ...

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """(id, location, references) of every entry, as of the call, in no particular order."""
        ...

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        """Add or replace entries, one batch a flush; each with one reference unless ``references`` says otherwise."""
        ...

    def add_reference(self, msg_id: bytes) -> bool:
        """One more reference, if there is an entry. Called for each write."""
        ...

    def release(self, ids: Sequence[bytes]) -> Released:
        """One reference less for each, at once for the batch; an id may occur more than once. If it raises OSError, nothing
        was released."""
        ...

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        """Compare and swap: each id whose location is still ``old`` gets ``new``. Returns how many. References stay."""
        ...

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        """Everything up to now, together with ``state``, is what the next ``commit`` makes durable.

        A value of None removes a key; keys are 1-511 bytes (ValueError). Touches no file, and
        copies no changes unless an earlier freeze is due that no commit has taken up. May be called at any time, while a commit
        runs and after one that failed: what is due adds up, and later values win. An index that is not PERSISTENT does nothing.
        """
        ...

    def commit(self) -> None:
        """What was frozen becomes durable, in one step; what has changed since is not part of it.

        Called without the store's lock, by one thread at a time. Raises OSError: then all of it is still due, and the call can
        be repeated, with or without another ``freeze`` in between. An index that is not PERSISTENT removes its snapshot at the
        first one, so that a crash leaves none.
        """
        ...

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Save entries and the whole ``state`` if it is not None (a clean stop), frozen or not, in one step, then let go of
        everything. Waits for a ``commit`` that runs. Raises OSError: then nothing was let go of. Twice is fine."""
        ...
