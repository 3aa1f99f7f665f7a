"""The index ``lmdb``: entries in an LMDB environment, and what has changed since the last commit in memory."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgstore.contract import IndexContext, Released
from msgstore_lmdb_index.environment import DamagedError, Environment

_log = logging.getLogger("msgstore.index")

DIRECTORY = "msgstore-lmdb"

_ID = 16
_SLOT = 24
_COUNT_BITS = 48
_COUNT = (1 << _COUNT_BITS) - 1
"""An entry is one integer, its *slot*: ``location << 48 | references``, in LMDB as 24 bytes, big-endian. 0 is no entry."""
_ROW = struct.Struct(f"{_ID}s{_SLOT}s")


class LmdbIndex:
    """An :class:`msgstore.contract.Index` that is PERSISTENT.

    ``commit`` writes the overlay of changes and the state in one LMDB transaction; a crash, or ``close(None)``, leaves what the
    last commit left. ``clear`` takes effect on disk with the next commit. Read-only, the overlay is never written. Methods
    raise OSError where LMDB does; what was not committed stays in the overlay, so a commit can be tried again.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / DIRECTORY
        self._environment: Environment | None = None
        self._committed = False
        self._forget()

    def _forget(self) -> None:
        """Be empty: no changes, and nothing stored below them."""
        self._read: Callable[[bytes], bytes] = _nothing
        self._stored = 0
        self._cleared = True
        self._start_overlay()

    def _start_overlay(self) -> None:
        # A new dictionary, not a cleared one: a reader without the lock has either all changes or the snapshot with them.
        self._overlay: dict[bytes, int] = {}  # id -> slot
        self._dead = 0  # ids of the overlay whose slot is 0
        self._hidden = 0  # ids of the overlay that are stored too, as far as known
        self._unknown: set[bytes] = set()  # ids of the overlay that nobody has looked up

    def load(self) -> dict[bytes, bytes] | None:
        """The state of the last commit; None if there never was one, or if LMDB's files are damaged.

        Damaged files are set aside as ``msgstore-lmdb.damaged-N`` unless read-only (logged). An OSError of another kind, such
        as a missing permission, is raised.
        """
        try:
            self._open()
        except DamagedError as error:
            _log.warning("%s", error)
            if self._context.read_only:
                return None
            self._set_aside()
            self._open()
        return self._environment.state if self._environment else None

    def _open(self) -> None:
        context = self._context
        try:
            environment = Environment(
                self._path, map_size=context.options.map_size, sync=context.sync, read_only=context.read_only
            )
        except FileNotFoundError:
            if not context.read_only:
                raise
            return
        self._environment = environment
        self._committed = environment.state is not None
        self._read, self._stored, self._cleared = environment.read, environment.entries, False

    def _set_aside(self) -> None:
        number = 1
        while (target := self._path.with_name(f"{DIRECTORY}.damaged-{number}")).exists():
            number += 1
        self._context.files.replace(self._path, target)
        _log.warning("%s is damaged: set aside as %s, the index is rebuilt from the segments", self._path, target)

    def clear(self) -> None:
        self._forget()

    def __len__(self) -> int:
        """Looks up what ``enter`` was given since the last commit, once; otherwise O(1)."""
        if self._unknown:
            self._hidden += sum(1 for msg_id in self._unknown if self._read(msg_id))
            self._unknown.clear()
        return self._stored - self._hidden + len(self._overlay) - self._dead

    def _slot(self, msg_id: bytes) -> int:
        slot = self._overlay.get(msg_id)
        return int.from_bytes(self._read(msg_id)) if slot is None else slot

    def get(self, msg_id: bytes) -> int | None:
        slot = self._slot(msg_id)
        return slot >> _COUNT_BITS if slot else None

    def references(self, msg_id: bytes) -> int:
        return self._slot(msg_id) & _COUNT

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Copies what is stored: 40 bytes an entry for as long as the iterator lives, but no open transaction."""
        rows = self._environment.rows(_ID, _SLOT) if self._environment and not self._cleared else b""
        return _items(rows, self._overlay.copy())

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        if references is None:
            slots = [location << _COUNT_BITS | 1 for location in locations]
        else:
            slots = [location << _COUNT_BITS | count for location, count in zip(locations, references, strict=True)]
        batch = dict(zip(ids, slots, strict=True))
        overlay = self._overlay
        self._unknown |= set(batch).difference(overlay)
        if self._dead:
            self._dead -= sum(1 for msg_id in batch if overlay.get(msg_id) == 0)
        overlay.update(batch)

    def add_reference(self, msg_id: bytes) -> bool:
        slot = self._slot(msg_id)
        if slot:
            self._put(msg_id, slot + 1)
        return slot != 0

    def release(self, ids: Sequence[bytes]) -> Released:
        freed: list[tuple[bytes, int]] = []
        missing: list[bytes] = []
        for msg_id in ids:
            slot = self._slot(msg_id)
            if slot & _COUNT > 1:
                self._put(msg_id, slot - 1)
            elif slot:
                self._put(msg_id, 0)
                self._dead += 1
                freed.append((msg_id, slot >> _COUNT_BITS))
            else:
                missing.append(msg_id)
        return Released(freed, missing)

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = 0
        for msg_id, at, to in zip(ids, old, new, strict=True):
            slot = self._slot(msg_id)
            if slot and slot >> _COUNT_BITS == at:
                self._put(msg_id, to << _COUNT_BITS | slot & _COUNT)
                moved += 1
        return moved

    def _put(self, msg_id: bytes, slot: int) -> None:
        """Change an entry that there is."""
        if msg_id not in self._overlay:
            self._hidden += 1
        self._overlay[msg_id] = slot

    def commit(self, state: Mapping[bytes, bytes | None]) -> None:
        """Overlay and ``state`` to disk, synced if the context says so. Keys of ``state`` are 1 to 511 bytes."""
        if self._overlay or state or self._cleared or not self._committed:
            self._save(state, whole=False)

    def _save(self, state: Mapping[bytes, bytes | None], *, whole: bool) -> None:
        environment = self._environment
        if environment is None or self._context.read_only:
            return
        overlay = self._overlay
        ids = sorted(overlay)
        puts = [(msg_id, slot.to_bytes(_SLOT)) for msg_id in ids if (slot := overlay[msg_id])]
        deletes = [msg_id for msg_id in ids if not overlay[msg_id]] if self._dead and not self._cleared else []
        environment.write(puts, deletes, state, drop_entries=self._cleared, drop_state=whole or self._cleared)
        self._committed, self._cleared = True, False
        self._read, self._stored = environment.read, environment.entries
        self._start_overlay()

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Commit with ``state`` as the whole state if it is not None, then let go. If the commit raises, nothing is let go.

        Files in which damage was met are set aside instead, so that the next start rebuilds the index.
        """
        environment = self._environment
        if environment is not None:
            if state is not None and not environment.damaged:
                self._save(state, whole=True)
            environment.close()
            if environment.damaged and not self._context.read_only:
                self._set_aside()
        self._environment = None
        self._forget()


def _nothing(_: bytes) -> bytes:
    return b""


def _items(rows: bytes, overlay: Mapping[bytes, int]) -> Iterator[tuple[bytes, int, int]]:
    for msg_id, value in _ROW.iter_unpack(rows):
        if msg_id not in overlay:
            slot = int.from_bytes(value)
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
    for msg_id, slot in overlay.items():
        if slot:
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
