"""Index ``lmdb``: entries in an LMDB environment, and the changes since the last commit in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from msgstore.contract import RESCUED_KEY, IndexContext, ReleaseResult
from msgstore_lmdb_index import rescue, unsynced
from msgstore_lmdb_index.contents import DamagedError, ErrorTranslator
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.layers import Layer, ReadSlot, merge
from msgstore_lmdb_index.live import LiveEnvironment

_log = logging.getLogger("msgstore.index")

DIRECTORY = "msgstore-lmdb"
RESCUED = "msgstore-lmdb.counts.csv"
"""File of the counts that were rescued from a damaged environment. Deleted when a commit contains them."""

_ID = 16
_SLOT = 24
_COUNT_BITS = 48
_COUNT = (1 << _COUNT_BITS) - 1
"""Mask of the count in a *slot*. A slot is the integer ``location << 48 | references``, stored in LMDB as 24 bytes, big-endian.
Slot 0 means that there is no entry."""
_MAX_KEY = 511
_ROW = struct.Struct(f"{_ID}s{_SLOT}s")


class LmdbIndex:
    """Persistent implementation of :class:`msgstore.contract.Index`.

    Changes go into the newest layer. ``freeze`` puts an empty layer on top of it. ``commit`` writes the frozen layers in one
    LMDB transaction, renews the snapshot used for reads, and then drops these layers. A lookup goes through the layers from
    the top and then to the snapshot. It needs no lock for the layers, because each entry is always in a layer or in the
    snapshot. Reading the snapshot takes the read lock of the environment.

    Methods raise OSError if LMDB fails. Uncommitted changes stay in their layers, so a commit can be repeated. After a failed
    transaction the environment is reopened: the transaction may or may not be stored. Repeating it is safe, because a layer
    has slots and not differences. ``clear`` takes effect on disk with the next commit.

    Read-only: nothing is frozen or written, and changes are lost at ``close``. Live: each call reads LMDB's last commit.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / DIRECTORY
        self._rescued = context.directory / RESCUED
        self._mark = unsynced.UnsyncedMark(self._path, context.files)
        self._environment: Environment | LiveEnvironment | None = None
        self._state: dict[bytes, bytes] | None = None  # as loaded
        self._has_committed = False  # True if LMDB has a commit
        self._has_rescued = False  # True if there is a file of rescued counts
        self._commit_lock = threading.Lock()
        """Held while a transaction is written. Taken before the layers lock."""
        self._layers_lock = threading.Lock()
        """Held while layers or the snapshot are replaced, and by calls that need both to be consistent."""
        self._in_commit: tuple[Layer, ...] = ()
        """Layers that are being committed."""
        self._reset()

    def _reset(self) -> None:
        """Drop all changes and hide everything that LMDB has. Takes the layers lock."""
        with self._layers_lock:
            self._set_layers(Layer(cleared=True))

    def _set_layers(self, *layers: Layer) -> None:
        """Replace the layers; newest first. Caller holds the layers lock, or is the only thread."""
        self._layers = layers
        self._slots = layers[0].slots
        # One tuple, replaced in one step: a lookup without the lock always has layers that belong together.
        self._view = tuple(layer.slots for layer in layers), self._stored()[1]

    def _stored(self) -> tuple[int, ReadSlot]:
        """Return the number of entries in LMDB that are not void, and the function that reads them."""
        if self._environment is None or self._layers[-1].cleared:
            return 0, _read_nothing
        return self._environment.entries, self._environment.read

    def load(self) -> dict[bytes, bytes] | None:
        """Open the environment and return the state of the last commit; None if there is none, or if the files are damaged.

        Damaged files are renamed to ``msgstore-lmdb.damaged-N`` unless read-only (logged). If counts can be read from them,
        the state is ``RESCUED_KEY`` alone. Raises OSError for other failures, such as a missing permission. With ``live``, it
        may be called again.
        """
        self._state = None
        try:
            self._check_after_power_loss()
            self._open()
        except DamagedError as error:
            _log.warning("%s", error)
            if self._context.read_only:
                return self._enter_counts(rescue.read_counts(self._path))
            self._set_aside()
            self._open()
        self._has_rescued = not self._context.live and self._rescued.exists()
        if self._has_rescued and not self._state:
            return self._enter_counts(rescue.load_counts(self._context.files, self._rescued)) or self._state
        return self._state

    def _check_after_power_loss(self) -> None:
        """Raise DamagedError if a power loss has damaged a file with unsynced commits."""
        context, mark = self._context, self._mark
        if mark.is_of_other_boot(unless_unknown=context.live):
            unsynced.check(self._path, ErrorTranslator(self._path))
            if not context.read_only:
                mark.remove()

    def _enter_counts(self, counts: Mapping[bytes, int]) -> dict[bytes, bytes] | None:
        """Enter these counts without locations, for a rebuild, and return the state to load. None if there are no counts."""
        if not counts:
            return None
        with self._layers_lock:
            self._set_layers(Layer(cleared=True))
        self.enter(list(counts), repeat(0, len(counts)), counts.values())
        return {RESCUED_KEY: b""}

    def _open(self) -> None:
        context = self._context
        if context.live:
            self._open_live()
            return
        if not (context.read_only or context.sync or os.path.lexists(self._path)):
            self._path.mkdir()  # the mark must exist before LMDB creates its files, because that commits
            self._mark.set()
        try:
            environment = Environment(
                self._path, map_size=context.options.map_size, sync=context.sync, read_only=context.read_only
            )
        except FileNotFoundError:
            if not context.read_only:
                raise
            return
        if context.sync and not context.read_only and self._mark.exists:
            environment.sync()
            self._mark.remove()
        self._environment = environment
        self._state = environment.state
        self._has_committed = environment.state is not None
        self._set_layers(Layer())

    def _open_live(self) -> None:
        """Open the current environment of the writing process, and drop the changes in memory. May be called again."""
        if not isinstance(self._environment, LiveEnvironment):
            self._environment = LiveEnvironment(self._path)
        self._state = self._environment.refresh()
        with self._layers_lock:
            self._set_layers(Layer())

    def _set_aside(self) -> None:
        """Save the counts that can be read from the damaged environment, and rename its directory (logged)."""
        files, number = self._context.files, 1
        while (target := self._path.with_name(f"{DIRECTORY}.damaged-{number}")).exists():
            number += 1
        counts = rescue.read_counts(self._path)
        if counts:  # counts of an earlier rescue may not be committed yet
            everything = rescue.load_counts(files, self._rescued) | counts
            rescue.save_counts(files, self._rescued, everything, sync=self._context.sync)
        files.replace(self._path, target)
        _log.warning(
            "%s: is damaged: set aside as %s, the index is rebuilt from the segments. %d messages with several references keep "
            "their counts, every other message has one reference",
            self._path,
            target,
            len(counts),
        )

    def clear(self) -> None:
        self._reset()

    def __len__(self) -> int:
        """Return the number of entries. Looks up each id that was changed since the last commit."""
        with self._layers_lock:
            stored, read = self._stored()
            changes = merge(self._layers).slots
            return stored + sum((slot != 0) - bool(read(msg_id)) for msg_id, slot in changes.items())

    def _slot(self, msg_id: bytes) -> int:
        layers, read = self._view
        for slots in layers:
            if (slot := slots.get(msg_id)) is not None:
                return slot
        return int.from_bytes(read(msg_id))

    def get(self, msg_id: bytes) -> int | None:
        slot = self._slot(msg_id)
        if not slot:
            return None
        return slot >> _COUNT_BITS

    def references(self, msg_id: bytes) -> int:
        return self._slot(msg_id) & _COUNT

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call.

        The iterator holds a copy, 40 bytes per entry, and no open transaction.
        """
        with self._layers_lock:
            changes = merge(self._layers)
            rows = self._environment.rows(_ROW.size) if self._environment and not changes.cleared else b""
        return _items(rows, changes.slots)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        if references is None:
            slots = [location << _COUNT_BITS | 1 for location in locations]
        else:
            slots = [location << _COUNT_BITS | count for location, count in zip(locations, references, strict=True)]
        self._slots.update(dict(zip(ids, slots, strict=True)))  # nothing is changed if the lengths differ

    def add_reference(self, msg_id: bytes) -> bool:
        slot = self._slot(msg_id)
        if slot:
            self._slots[msg_id] = slot + 1
        return slot != 0

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        slots = dict(zip(ids, map(self._slot, ids), strict=True))  # if LMDB raises, nothing is released
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
        self._slots.update(slots)
        return ReleaseResult(freed, missing)

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = 0
        for msg_id, at, to in zip(ids, old, new, strict=True):
            slot = self._slot(msg_id)
            if slot and slot >> _COUNT_BITS == at:
                self._slots[msg_id] = to << _COUNT_BITS | slot & _COUNT
                moved += 1
        return moved

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        """Set all changes so far, and ``state``, aside for the next commit.

        Takes constant time, unless an earlier frozen layer was not taken by a commit: the changes are then copied into it.
        """
        newest = self._layers[0]
        if self._environment is None or self._context.read_only or not (newest or state):
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:  # LMDB would reject this and every later commit
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; keys of the state must have 1 to {_MAX_KEY} bytes")
        newest.state = dict(state)
        with self._layers_lock:
            frozen = self._layers[1:]
            if frozen and frozen[0] not in self._in_commit:
                frozen[0].absorb(newest)
                self._set_layers(Layer(), *frozen)
            else:
                self._set_layers(Layer(), newest, *frozen)

    def commit(self) -> None:
        """Write the frozen layers to disk in one transaction, synced if the context demands it. Takes the commit lock."""
        with self._commit_lock:
            environment = self._environment
            if not isinstance(environment, Environment) or self._context.read_only:
                return
            with self._layers_lock:
                self._in_commit = self._layers[1:]
            try:
                if self._in_commit or not self._has_committed:
                    self._write(environment, self._in_commit or (Layer(),))
                    with self._layers_lock:
                        environment.renew()
                        self._set_layers(*(layer for layer in self._layers if layer not in self._in_commit))
            finally:
                with self._layers_lock:
                    self._in_commit = ()
                    self._merge_frozen()

    def _merge_frozen(self) -> None:
        """Merge frozen layers that failed commits have left, to bound the cost of a lookup. Caller holds the layers lock."""
        newest, *frozen = self._layers
        if len(frozen) > 1:
            for layer in frozen[-2::-1]:
                frozen[-1].absorb(layer)
            self._set_layers(newest, frozen[-1])

    def _write(self, environment: Environment, layers: Sequence[Layer], whole: Mapping[bytes, bytes] | None = None) -> None:
        """Write the layers in one transaction. ``whole`` replaces all stored state. Caller holds the commit lock."""
        changes = merge(layers)
        slots, cleared = changes.slots, changes.cleared
        ids = sorted(slots)
        puts = [(msg_id, slot.to_bytes(_SLOT)) for msg_id in ids if (slot := slots[msg_id])]
        deletes = [] if cleared or len(puts) == len(ids) else [msg_id for msg_id in ids if not slots[msg_id]]
        state = changes.state if whole is None else whole
        if not self._context.sync:
            self._mark.set()
        if environment.has_failed:
            with self._layers_lock:
                environment.reopen()
        try:
            environment.write(puts, deletes, state, drop_entries=cleared, drop_state=cleared or whole is not None)
        except OSError:
            with self._layers_lock, contextlib.suppress(OSError):  # the next commit tries again
                environment.reopen()
            raise
        self._has_committed = True
        if state and self._has_rescued:  # the first non-empty state ends a rebuild
            self._context.files.unlink(self._rescued)
            self._has_rescued = False

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Commit with ``state`` as the whole state unless it is None, then release all resources.

        Raises OSError if the commit fails: then nothing is released. Damaged files are not committed but set aside, so that
        the next opening rebuilds the index. Takes the commit lock.
        """
        with self._commit_lock:
            environment = self._environment
            if isinstance(environment, Environment) and not self._context.read_only:
                if state is not None and not environment.damaged:
                    self.freeze({})  # only frozen layers are written
                    self._write(environment, self._layers[1:] or self._layers, whole=state)
                    self._sync_and_unmark(environment)
                environment.close()
                if environment.damaged:
                    self._set_aside()
            elif environment is not None:
                environment.close()
            self._environment = None
            self._reset()

    def _sync_and_unmark(self, environment: Environment) -> None:
        """Sync the file if commits were unsynced, so that no check is necessary after the next boot."""
        if self._mark.is_set:
            try:
                environment.sync()
                self._mark.remove()
            except OSError as error:
                _log.warning("%s: sync failed: %s. The file will be checked after the next boot", self._path, error)


def _read_nothing(_: bytes) -> bytes:
    return b""


def _items(rows: bytes, changes: Mapping[bytes, int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield the entries of ``changes`` and the stored ``rows`` that they do not replace."""
    for msg_id, value in _ROW.iter_unpack(rows):
        if msg_id not in changes:
            slot = int.from_bytes(value)
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
    for msg_id, slot in changes.items():
        if slot:
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
