"""The index ``lmdb``: entries in an LMDB environment, and what has changed since the last commit in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from msgstore.contract import RESCUED_KEY, IndexContext, ReleaseResult
from msgstore_lmdb_index import rescue, unsynced
from msgstore_lmdb_index.environment import Environment
from msgstore_lmdb_index.errors import DamagedError, Errors
from msgstore_lmdb_index.layers import Layer, Read, gained, merged, recount
from msgstore_lmdb_index.live import LiveEnvironment

_log = logging.getLogger("msgstore.index")

DIRECTORY = "msgstore-lmdb"
RESCUED = "msgstore-lmdb.counts.csv"
"""File of the counts that were read from a damaged environment, until a commit has them."""

_ID = 16
_SLOT = 24
_COUNT_BITS = 48
_COUNT = (1 << _COUNT_BITS) - 1
"""An entry is one integer, its *slot*: ``location << 48 | references``, in LMDB as 24 bytes, big-endian. 0 is no entry."""
_MAX_KEY = 511
_ROW = struct.Struct(f"{_ID}s{_SLOT}s")


class LmdbIndex:
    """An :class:`msgstore.contract.Index` that is PERSISTENT.

    Changes go into the newest of the layers. ``freeze`` puts an empty one on top. ``commit`` writes the frozen ones in one
    LMDB transaction, renews the snapshot that is read through, and only then drops them: a look-up without a lock, from the
    top down, finds what it seeks in one or the other. A crash, or ``close(None)``, leaves what the last commit left. ``clear``
    takes effect on disk with the next commit. Methods raise OSError where LMDB does; what was not committed stays in its layer,
    so a commit can be tried again. After a failed transaction the environment is opened again: what that one wrote may be
    stored or not, and is the same when it is written twice, because a layer holds slots and not differences.

    Read-only, nothing is frozen or written, and changes end with ``close``. Live, LMDB is read as of each call.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / DIRECTORY
        self._rescued = context.directory / RESCUED
        self._mark = unsynced.Mark(self._path, context.files)
        self._environment: Environment | LiveEnvironment | None = None
        self._state: dict[bytes, bytes] | None = None  # as loaded
        self._committed = False  # whether there ever was a commit
        self._reopened = 0  # as of the last recount
        self._has_rescued = False  # whether there is a file of rescued counts
        self._committing = threading.Lock()
        """Held while a transaction is written: one at a time. Taken before ``_swapping``."""
        self._swapping = threading.Lock()
        """Held while layers or the snapshot are replaced, and where both must be of one moment."""
        self._taken: tuple[Layer, ...] = ()
        """The layers that are being committed."""
        self._forget()

    def _forget(self) -> None:
        """Be empty: no changes, and nothing stored below them."""
        with self._swapping:
            self._arrange(Layer(cleared=True))

    def _arrange(self, *layers: Layer) -> None:
        """Have these layers from now on, newest first."""
        self._layers = layers
        self._newest, self._slots = layers[0], layers[0].slots
        # One tuple: a reader without the lock has all layers of one moment.
        self._view = tuple(layer.slots for layer in layers), self._stored()[1]

    def _stored(self) -> tuple[int, Read]:
        """How many entries LMDB has below the layers, and where they are read."""
        if self._environment is None or self._layers[-1].cleared:
            return 0, _nothing
        return self._environment.entries, self._environment.read

    def load(self) -> dict[bytes, bytes] | None:
        """The state of the last commit; None if there never was one, or if LMDB's files are damaged.

        Damaged files are set aside as ``msgstore-lmdb.damaged-N`` unless read-only (logged). The counts that can be read from
        them are rescued: then the state is ``RESCUED_KEY`` alone. An OSError of another kind, such as a missing permission, is
        raised. Live, it may be called again.
        """
        self._state = None
        try:
            self._check()
            self._open()
        except DamagedError as error:
            _log.warning("%s", error)
            if self._context.read_only:
                return self._with_counts(rescue.read_counts(self._path))
            self._set_aside()
            self._open()
        self._has_rescued = not self._context.live and self._rescued.exists()
        if self._has_rescued and not self._state:
            return self._with_counts(rescue.read_file(self._context.files, self._rescued)) or self._state
        return self._state

    def _check(self) -> None:
        """Raise DamagedError if a power loss has come between commits that were not synced, and has damaged the file."""
        context, mark = self._context, self._mark
        if mark.is_of_other_boot(unless_unknown=context.live):
            unsynced.check(self._path, Errors(self._path))
            if not context.read_only:
                mark.remove()

    def _with_counts(self, counts: Mapping[bytes, int]) -> dict[bytes, bytes] | None:
        """Have entries with these counts and without locations, for a rebuild. None, and no entries, if there are none."""
        if not counts:
            return None
        with self._swapping:
            self._arrange(Layer(cleared=True))
        self.enter(list(counts), repeat(0, len(counts)), counts.values())
        return {RESCUED_KEY: b""}

    def _open(self) -> None:
        context = self._context
        if context.live:
            self._follow()
            return
        if not (context.read_only or context.sync or os.path.lexists(self._path)):
            self._path.mkdir()  # before LMDB makes its files, which begins with a commit
            self._mark.set()
        try:
            environment = Environment(
                self._path, map_size=context.options.map_size, sync=context.sync, read_only=context.read_only
            )
        except FileNotFoundError:
            if not context.read_only:
                raise
            return
        if context.sync and self._mark.exists:
            environment.sync()
            self._mark.remove()
        self._environment = environment
        self._state = environment.state
        self._committed = environment.state is not None
        self._arrange(Layer())

    def _follow(self) -> None:
        """Begin to see what another process commits, or make sure that it is still seen. Changes of our own are dropped."""
        if not isinstance(self._environment, LiveEnvironment):
            self._environment = LiveEnvironment(self._path)
        self._state = self._environment.refresh()
        with self._swapping:
            self._arrange(Layer())

    def _set_aside(self) -> None:
        files, number = self._context.files, 1
        while (target := self._path.with_name(f"{DIRECTORY}.damaged-{number}")).exists():
            number += 1
        counts = rescue.read_counts(self._path)
        if counts:  # an earlier rescue may not be over yet
            everything = rescue.read_file(files, self._rescued) | counts
            rescue.write_file(files, self._rescued, everything, sync=self._context.sync)
        files.replace(self._path, target)
        _log.warning(
            "%s is damaged: set aside as %s, the index is rebuilt from the segments. %d messages with several references keep "
            "their counts, every other one has one reference",
            self._path,
            target,
            len(counts),
        )

    def clear(self) -> None:
        self._forget()

    def __len__(self) -> int:
        """Looks up what ``enter`` was given since the last commit, once; otherwise O(1)."""
        with self._swapping:
            self._recount()
            stored, read = self._stored()
            return stored + gained(self._layers, read)

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
        """Copies what is stored: 40 bytes an entry for as long as the iterator lives, but no open transaction."""
        with self._swapping:
            changes = merged(self._layers)
            rows = self._environment.rows(_ROW.size) if self._environment and not changes.cleared else b""
        return _items(rows, changes.slots)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        if references is None:
            slots = [location << _COUNT_BITS | 1 for location in locations]
        else:
            slots = [location << _COUNT_BITS | count for location, count in zip(locations, references, strict=True)]
        self._newest.enter(ids, slots)

    def add_reference(self, msg_id: bytes) -> bool:
        slot = self._slot(msg_id)
        if slot:
            self._slots[msg_id] = slot + 1
        return slot != 0

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        freed: list[tuple[bytes, int]] = []
        missing: list[bytes] = []
        newest, find = self._slots, self._slot
        msg_id = b""
        try:
            for msg_id in ids:
                slot = find(msg_id)
                if not slot:
                    missing.append(msg_id)
                elif slot & _COUNT > 1:
                    newest[msg_id] = slot - 1
                else:
                    newest[msg_id] = 0
                    freed.append((msg_id, slot >> _COUNT_BITS))
        except BaseException:  # LMDB has raised, at the first look-up of this id
            self._take_back(Counter(ids[: ids.index(msg_id)]) - Counter(missing), dict(freed))
            raise
        self._newest.gained -= len(freed)
        return ReleaseResult(freed, missing)

    def _take_back(self, released: Mapping[bytes, int], freed: Mapping[bytes, int]) -> None:
        """Return so many references to each id; ``freed`` has the locations of those that lost their last one."""
        for msg_id, count in released.items():
            self._slots[msg_id] = (self._slots[msg_id] or freed[msg_id] << _COUNT_BITS) + count

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = 0
        for msg_id, at, to in zip(ids, old, new, strict=True):
            slot = self._slot(msg_id)
            if slot and slot >> _COUNT_BITS == at:
                self._slots[msg_id] = to << _COUNT_BITS | slot & _COUNT
                moved += 1
        return moved

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        """Dictionaries change places. Only what an earlier freeze left, and no commit has taken, is added to, by copying."""
        newest = self._newest
        if self._environment is None or self._context.read_only or not (newest or state):
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:  # refused by LMDB, and so would be every later commit
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; state has keys of 1 to {_MAX_KEY} bytes")
        newest.state = dict(state)
        with self._swapping:
            frozen = self._layers[1:]
            if frozen and frozen[0] not in self._taken:
                frozen[0].absorb(newest)
                self._arrange(Layer(), *frozen)
            else:
                self._arrange(Layer(), newest, *frozen)

    def commit(self) -> None:
        """The frozen layers to disk, synced if the context says so."""
        with self._committing:
            environment = self._environment
            if not isinstance(environment, Environment) or self._context.read_only:
                return
            with self._swapping:
                self._taken = self._layers[1:]
            try:
                if self._taken or not self._committed:
                    self._write(environment, self._taken or (Layer(),))
                    with self._swapping:
                        environment.renew()
                        self._arrange(*(layer for layer in self._layers if layer not in self._taken))
            finally:
                with self._swapping:
                    self._taken = ()
                    self._fold()

    def _fold(self) -> None:
        """What failed commits left becomes one layer, or look-ups would have to go through more and more of them."""
        newest, *frozen = self._layers
        if len(frozen) > 1:
            for layer in frozen[-2::-1]:
                frozen[-1].absorb(layer)
            self._arrange(newest, frozen[-1])

    def _write(self, environment: Environment, layers: Sequence[Layer], whole: Mapping[bytes, bytes] | None = None) -> None:
        """The layers in one transaction; ``whole`` takes the place of all state that there is."""
        changes = merged(layers)
        slots, cleared = changes.slots, changes.cleared
        ids = sorted(slots)
        puts = [(msg_id, slot.to_bytes(_SLOT)) for msg_id in ids if (slot := slots[msg_id])]
        deletes = [] if cleared or len(puts) == len(ids) else [msg_id for msg_id in ids if not slots[msg_id]]
        state = changes.state if whole is None else whole
        if not self._context.sync:
            self._mark.set()
        if environment.has_failed:
            self._reopen(environment)
        try:
            environment.write(puts, deletes, state, drop_entries=cleared, drop_state=cleared or whole is not None)
        except OSError:
            with contextlib.suppress(OSError):  # then the next commit tries it again
                self._reopen(environment)
            raise
        self._committed = True
        if state and self._has_rescued:  # with the first state that is not empty, a rebuild is over
            self._context.files.unlink(self._rescued)
            self._has_rescued = False

    def _reopen(self, environment: Environment) -> None:
        """After a failed transaction."""
        with self._swapping:
            environment.reopen()
            self._recount()

    def _recount(self) -> None:
        """Count anew what the frozen layers add if a failed transaction may have stored it. Caller holds ``_swapping``."""
        reopened = self._environment.reopened if isinstance(self._environment, Environment) else 0
        if reopened != self._reopened:
            recount(self._layers[1:], self._stored()[1])
            self._reopened = reopened

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Commit with ``state`` as the whole state if it is not None, then let go. If the commit raises, nothing is let go.

        Files in which damage was met are set aside instead, so that the next start rebuilds the index.
        """
        with self._committing:
            environment = self._environment
            if isinstance(environment, Environment) and not self._context.read_only:
                if state is not None and not environment.damaged:
                    self.freeze({})  # only frozen layers are written
                    self._write(environment, self._layers[1:] or self._layers, whole=state)
                    self._end_cleanly(environment)
                environment.close()
                if environment.damaged:
                    self._set_aside()
            elif environment is not None:
                environment.close()
            self._environment = None
            self._forget()

    def _end_cleanly(self, environment: Environment) -> None:
        """Sync the file once, so that the next boot need not check it."""
        if self._mark.is_set:
            try:
                environment.sync()
                self._mark.remove()
            except OSError as error:
                _log.warning("%s: the file could not be synced: %s. If the machine stops, it is checked", self._path, error)


def _nothing(_: bytes) -> bytes:
    return b""


def _items(rows: bytes, changes: Mapping[bytes, int]) -> Iterator[tuple[bytes, int, int]]:
    for msg_id, value in _ROW.iter_unpack(rows):
        if msg_id not in changes:
            slot = int.from_bytes(value)
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
    for msg_id, slot in changes.items():
        if slot:
            yield msg_id, slot >> _COUNT_BITS, slot & _COUNT
