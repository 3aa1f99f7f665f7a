"""Index ``sqlite``: entries in one SQLite file, and the changes since the last commit in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from foreign_backends.database import DamagedError, Database
from msgstore.contract import IndexContext, ReleaseResult

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-sqlite.db"
_ID, _SLOT, _COUNT_BITS = 16, 24, 48
_COUNT = (1 << _COUNT_BITS) - 1
"""Mask of the count in a *slot*. A slot is the integer ``location << 48 | references``, stored in SQLite as 24 bytes. Slot 0
means that there is no entry."""
_MAX_KEY = 511


@attrs.define(eq=False)
class _Layer:
    """Changes between two freezes. The newest layer receives changes. A layer hides ids of the layers below."""

    slots: dict[bytes, int] = attrs.field(factory=dict)
    state: dict[bytes, bytes | None] = attrs.field(factory=dict)
    cleared: bool = False
    """True if SQLite's contents are void. Only the lowest layer has it."""

    def __bool__(self) -> bool:
        return bool(self.slots or self.state or self.cleared)


class SqliteIndex:
    """Persistent implementation of :class:`msgstore.contract.Index`.

    ``freeze`` puts an empty layer on top of the others. ``commit`` writes the frozen layers in one transaction and then drops
    them. A lookup takes no lock: it takes the tuple of layers once, goes through it from the top, and asks SQLite last. A
    layer is dropped only after SQLite has its contents, so a lookup finds each entry in one of them.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._database: Database | None = None
        self._commit_lock = threading.Lock()
        """Held while a transaction is written. Taken before the layers lock."""
        self._layers_lock = threading.Lock()
        """Held while layers are replaced, and by calls that need layers and SQLite to be consistent."""
        self._in_commit: tuple[_Layer, ...] = ()
        """Layers that are being committed."""
        self._layers: tuple[_Layer, ...] = (_Layer(cleared=True),)
        """All layers, newest first."""

    # -- load, close ------------------------------------------------------------------------------------------------------

    def load(self) -> dict[bytes, bytes] | None:
        try:
            self._open()
        except DamagedError as error:
            _log.warning("%s", error)
            if self._context.read_only:
                return None
            self._set_aside()
            self._open()
        return self._database.state if self._database else None

    def _open(self) -> None:
        context = self._context
        try:
            self._database = Database(self._path, cache=context.options.cache, sync=context.sync, read_only=context.read_only)
        except FileNotFoundError:
            if not context.read_only:
                raise
            return
        self._layers = (_Layer(),)

    def _set_aside(self) -> None:
        number = 1
        while (target := self._path.with_name(f"{FILE}.damaged-{number}")).exists():
            number += 1
        self._context.files.replace(self._path, target)
        for suffix in ("-wal", "-shm", "-journal"):
            self._context.files.unlink(self._path.with_name(FILE + suffix))
        _log.warning("%s: is damaged: set aside as %s. The index is rebuilt from the segments", self._path, target)

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        with self._commit_lock:
            database = self._database
            if database is not None:
                if state is not None and not self._context.read_only and not database.damaged:
                    self._write(database, self._layers, whole=state)
                database.close()
                if database.damaged and not self._context.read_only:
                    self._set_aside()
            self._database = None
            self.clear()

    # -- entries ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        with self._layers_lock:
            self._layers = (_Layer(cleared=True),)

    def __len__(self) -> int:
        """Return the number of entries. Looks up every id that has changed since the last commit in SQLite."""
        with self._layers_lock:
            slots, cleared = _merge(self._layers)
            alive = sum(1 for slot in slots.values() if slot)
            if cleared or self._database is None:
                return alive
            return self._database.count_without(slots) + alive

    def _slot(self, msg_id: bytes) -> int:
        layers = self._layers
        for layer in layers:
            if (slot := layer.slots.get(msg_id)) is not None:
                return slot
        database = self._database
        if layers[-1].cleared or database is None:
            return 0
        return int.from_bytes(database.read(msg_id))

    def get(self, msg_id: bytes, /) -> int | None:
        slot = self._slot(msg_id)
        if not slot:
            return None
        return slot >> _COUNT_BITS

    def references(self, msg_id: bytes) -> int:
        return self._slot(msg_id) & _COUNT

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call.

        The iterator copies the changes, and reads SQLite's entries while it advances.
        """
        with self._layers_lock:
            slots, cleared = _merge(self._layers)
            rows = iter(()) if cleared or self._database is None else self._database.rows()
        return _items(rows, slots)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        if references is None:
            batch = {i: at << _COUNT_BITS | 1 for i, at in zip(ids, locations, strict=True)}
        else:
            batch = {i: at << _COUNT_BITS | count for i, at, count in zip(ids, locations, references, strict=True)}
        self._layers[0].slots.update(batch)

    def add_reference(self, msg_id: bytes) -> bool:
        slot = self._slot(msg_id)
        if slot:
            self._layers[0].slots[msg_id] = slot + 1
        return slot != 0

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        """Remove one reference for each given id. Looks up all ids first: if SQLite raises, nothing has changed."""
        slots = {msg_id: self._slot(msg_id) for msg_id in ids}
        freed: list[tuple[bytes, int]] = []
        missing: list[bytes] = []
        for msg_id in ids:
            slot = slots[msg_id]
            if not slot:
                missing.append(msg_id)
            elif slot & _COUNT > 1:
                slots[msg_id] = slot - 1
            else:
                slots[msg_id] = 0
                freed.append((msg_id, slot >> _COUNT_BITS))
        absent = set(missing) - {msg_id for msg_id, _ in freed}
        self._layers[0].slots.update((msg_id, slot) for msg_id, slot in slots.items() if msg_id not in absent)
        return ReleaseResult(freed, missing)

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = {}
        for msg_id, at, to in zip(ids, old, new, strict=True):
            slot = self._slot(msg_id)
            if slot and slot >> _COUNT_BITS == at:
                moved[msg_id] = to << _COUNT_BITS | slot & _COUNT
        self._layers[0].slots.update(moved)
        return len(moved)

    # -- commits ----------------------------------------------------------------------------------------------------------

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        if self._database is None or self._context.read_only:
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; keys of the state must have 1 to {_MAX_KEY} bytes")
        with self._layers_lock:
            newest, *frozen = self._layers
            newest.state |= state
            if not newest:
                return
            if frozen and frozen[0] not in self._in_commit:
                frozen[0].slots.update(newest.slots)
                frozen[0].state |= newest.state
                self._layers = (_Layer(), *frozen)
            else:
                self._layers = (_Layer(), newest, *frozen)

    def commit(self) -> None:
        with self._commit_lock:
            database = self._database
            if database is None or self._context.read_only:
                return
            with self._layers_lock:
                self._in_commit = self._layers[1:]
            try:
                if self._in_commit or database.state is None:
                    self._write(database, self._in_commit or (_Layer(),))
            finally:
                with self._layers_lock:
                    self._in_commit = ()
                    self._merge_frozen()

    def _merge_frozen(self) -> None:
        """Merge frozen layers that failed commits have left, to bound the cost of a lookup. Caller holds the layers lock."""
        newest, *frozen = self._layers
        if len(frozen) > 1:
            slots, cleared = _merge(frozen)
            self._layers = (newest, _Layer(slots, _merge_state(frozen), cleared))

    def _write(self, database: Database, layers: Sequence[_Layer], whole: Mapping[bytes, bytes] | None = None) -> None:
        """Write the layers in one transaction, then drop them. ``whole`` replaces all stored state.

        Caller holds the commit lock. Takes the layers lock.
        """
        slots, cleared = _merge(layers)
        ids = sorted(slots)
        puts = [(msg_id, slot.to_bytes(_SLOT)) for msg_id in ids if (slot := slots[msg_id])]
        deletes = [] if cleared else [msg_id for msg_id in ids if not slots[msg_id]]
        state = _merge_state(layers) if whole is None else whole
        database.write(puts, deletes, state, drop_entries=cleared, drop_state=cleared or whole is not None)
        with self._layers_lock:
            database.state = {}
            self._layers = tuple(layer for layer in self._layers if layer not in layers) or (_Layer(),)


def _merge(layers: Sequence[_Layer]) -> tuple[dict[bytes, int], bool]:
    slots: dict[bytes, int] = {}
    for layer in reversed(layers):
        slots |= layer.slots
    return slots, layers[-1].cleared


def _merge_state(layers: Sequence[_Layer]) -> dict[bytes, bytes | None]:
    state: dict[bytes, bytes | None] = {}
    for layer in reversed(layers):
        state |= layer.state
    return state


def _items(rows: Iterator[tuple[bytes, bytes]], slots: Mapping[bytes, int]) -> Iterator[tuple[bytes, int, int]]:
    for msg_id, value in rows:
        if msg_id not in slots:
            slot = int.from_bytes(value)
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
    for msg_id, slot in slots.items():
        if slot:
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
