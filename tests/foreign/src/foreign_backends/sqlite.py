"""The index ``sqlite``: entries in one SQLite file, and what has changed since the last commit in memory."""

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
"""An entry is one integer, its *slot*: ``location << 48 | references``, in SQLite as 24 bytes. 0 is no entry."""
_MAX_KEY = 511


@attrs.define(eq=False)
class _Layer:
    """What has changed between two freezes. The newest layer takes changes; each hides what those below it say of an id."""

    slots: dict[bytes, int] = attrs.field(factory=dict)
    state: dict[bytes, bytes | None] = attrs.field(factory=dict)
    cleared: bool = False
    """True of the lowest one if what SQLite has is void."""

    def __bool__(self) -> bool:
        return bool(self.slots or self.state or self.cleared)


class SqliteIndex:
    """An :class:`msgstore.contract.Index` that is PERSISTENT.

    ``freeze`` puts an empty layer on top; ``commit`` writes the frozen ones in one transaction and then drops them. A reader
    without a lock takes all layers at once and goes through them from the top down, and to SQLite last: what it
    does not find in a layer that it still sees, or that was dropped meanwhile, SQLite has.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._database: Database | None = None
        self._committing = threading.Lock()
        """One transaction at a time. Taken before ``_arranging``."""
        self._arranging = threading.Lock()
        """Held while layers change places, and where layers and SQLite must be of one moment."""
        self._taken: tuple[_Layer, ...] = ()
        """The layers that are being committed."""
        self._layers: tuple[_Layer, ...] = (_Layer(cleared=True),)
        """Newest first."""

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
        _log.warning("%s is damaged: set aside as %s, the index is rebuilt from the segments", self._path, target)

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        with self._committing:
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
        with self._arranging:
            self._layers = (_Layer(cleared=True),)

    def __len__(self) -> int:
        """Asks SQLite for every id that has changed since the last commit."""
        with self._arranging:
            slots, cleared = _merged(self._layers)
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
        """Copies the changes; what is in SQLite is read, as of now, as the iterator goes on."""
        with self._arranging:
            slots, cleared = _merged(self._layers)
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
        """SQLite is asked for all of them first: if it raises, nothing has changed."""
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
        gone = set(missing) - {msg_id for msg_id, _ in freed}
        self._layers[0].slots.update((msg_id, slot) for msg_id, slot in slots.items() if msg_id not in gone)
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
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; state has keys of 1 to {_MAX_KEY} bytes")
        with self._arranging:
            newest, *frozen = self._layers
            newest.state |= state
            if not newest:
                return
            if frozen and frozen[0] not in self._taken:
                frozen[0].slots.update(newest.slots)
                frozen[0].state |= newest.state
                self._layers = (_Layer(), *frozen)
            else:
                self._layers = (_Layer(), newest, *frozen)

    def commit(self) -> None:
        with self._committing:
            database = self._database
            if database is None or self._context.read_only:
                return
            with self._arranging:
                self._taken = self._layers[1:]
            try:
                if self._taken or database.state is None:
                    self._write(database, self._taken or (_Layer(),))
            finally:
                with self._arranging:
                    self._taken = ()
                    self._fold()

    def _fold(self) -> None:
        """What failed commits left becomes one layer, or look-ups would go through more and more of them."""
        newest, *frozen = self._layers
        if len(frozen) > 1:
            slots, cleared = _merged(frozen)
            self._layers = (newest, _Layer(slots, _merged_state(frozen), cleared))

    def _write(self, database: Database, layers: Sequence[_Layer], whole: Mapping[bytes, bytes] | None = None) -> None:
        """Layers in one transaction, and away with them; ``whole`` takes the place of all state that there is."""
        slots, cleared = _merged(layers)
        ids = sorted(slots)
        puts = [(msg_id, slot.to_bytes(_SLOT)) for msg_id in ids if (slot := slots[msg_id])]
        deletes = [] if cleared else [msg_id for msg_id in ids if not slots[msg_id]]
        state = _merged_state(layers) if whole is None else whole
        database.write(puts, deletes, state, drop_entries=cleared, drop_state=cleared or whole is not None)
        with self._arranging:
            database.state = {}
            self._layers = tuple(layer for layer in self._layers if layer not in layers) or (_Layer(),)


def _merged(layers: Sequence[_Layer]) -> tuple[dict[bytes, int], bool]:
    slots: dict[bytes, int] = {}
    for layer in reversed(layers):
        slots |= layer.slots
    return slots, layers[-1].cleared


def _merged_state(layers: Sequence[_Layer]) -> dict[bytes, bytes | None]:
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
