"""Faults in indexes: in one that saves a snapshot, and in one that commits."""

from __future__ import annotations

import os
import time
from unittest import mock

import attrs

from msgstore.contract import RESCUED_KEY, ReleaseResult
from msgstore_ets_index import plugin as ets
from msgstore_ets_index.index import EtsIndex
from msgstore_lmdb_index import plugin as lmdb
from msgstore_lmdb_index.index import LmdbIndex
from mutants import Broken

fault = Broken(ets.msgstore_indexes()[0], EtsIndex)
fault_lmdb = Broken(lmdb.msgstore_indexes()[0], LmdbIndex)


@fault.of("relocate")
def relocate_does_not_compare(self, old, ids, was, new):
    """Relocate does not compare."""
    moved = {msg_id: to for msg_id, to in zip(ids, new, strict=True) if self.get(msg_id) is not None}
    self._entries.update(moved)
    return len(moved)


@fault.of("relocate")
def relocate_revives(self, old, ids, was, new):
    """Relocate enters what was removed meanwhile."""
    gone = [(i, n) for i, n in zip(ids, new, strict=True) if self.get(i) is None]
    found = old(ids, was, new)
    self._entries.update(gone)
    return found


@fault.of("relocate")
def relocate_in_two_steps(self, old, ids, was, new):
    """Relocate takes an entry away for an instant."""
    moved = [(i, to) for i, at, to in zip(ids, was, new, strict=True) if self._entries.get(i) == at]
    for msg_id, _ in moved:
        del self._entries[msg_id]
    self._entries.update(moved)
    return len(moved)


@fault.of("_release_shared")
def release_frees_early(self, old, msg_id):
    """The last but one reference frees."""
    old(msg_id)
    if self._counts.get(msg_id, 1) == 1:
        self._entries.pop(msg_id)


@fault.of("enter")
def enter_keeps_references(self, old, ids, locations, references=None):
    """An entry that is entered again keeps its references."""
    kept = {msg_id: self._counts[msg_id] for msg_id in ids if msg_id in self._counts}
    old(ids, locations, references)
    self._counts.update(kept)


@fault.of("enter")
def enter_drops_the_last(self, old, ids, locations, references=None):
    """A batch leaves its last entry out if there are many."""
    old(ids, locations, references)
    if len(ids) > 4:
        self._entries.pop(ids[-1])


@fault.of("items")
def items_misses_one(self, old):
    """Items leaves an entry out."""
    found = old()
    if len(self._entries) > 2:
        next(found)
    return found


@fault.of("__init__")
def get_raises(self, old, context):
    """Get raises for an id that is absent."""
    old(context)
    self.get = self._entries.__getitem__


@fault.of("__init__")
def get_takes_anything(self, old, context):
    """Get takes anything for a key."""
    old(context)
    entries = self._entries
    self.get = lambda msg_id: entries.get(bytes(msg_id) if isinstance(msg_id, bytes) else None)


@fault.of("add_reference")
def counts_in_two_steps(self, old, msg_id):
    """A new reference is counted in two visible steps."""
    location = self._entries.pop(msg_id, None)
    if location is None:
        return False
    self._counts[msg_id] = self._counts.get(msg_id, 1) + 1
    self._entries[msg_id] = location
    return True


@fault.of("close")
def snapshot_forgets_counts(self, old, state):
    """The snapshot has no counts."""
    if state is not None:
        self._counts.clear()
    old(state)


@fault.of("close")
def snapshot_cuts_locations(self, old, state):
    """The snapshot has locations of 8 bytes."""
    if state is not None:
        self._entries.update({msg_id: at & (1 << 64) - 1 for msg_id, at in self._entries.items()})
    old(state)


@fault.of("load")
def snapshot_unchecked(self, old):
    """A snapshot is read whatever its checksum."""
    state = old()
    return state and {key: value for key, value in state.items() if key != RESCUED_KEY}


@fault.of("close")
def close_lets_go(self, old, state):
    """A close that fails releases everything."""
    try:
        old(state)
    finally:
        self._closed = True
        self.clear()


@fault.of("close")
def close_saves_twice(self, old, state):
    """The second close saves what the first has left."""
    self._closed = False
    old(state)


@fault.of("load")
def load_swallows_errors(self, old):
    """An I/O error is taken for a missing index."""
    try:
        return old()
    except OSError:
        return None


@fault.of("close")
def snapshot_in_place(self, old, state):
    """The snapshot is written in its place."""
    files = self._context.files

    def write_file(path, chunks, *, sync):
        files.unlink(path)
        fd = files.create(path)
        try:
            files.pwrite(fd, b"".join(chunks), 0)
        finally:
            os.close(fd)

    with mock.patch.object(files, "write_file", write_file):
        old(state)


fault(
    "relocate-counts-all",
    "relocate returns how many it was given",
    relocate=lambda _, old, ids, was, new: old(ids, was, new) and len(ids),
)
fault(
    "release-counts-ids-once", "an id that is given twice counts once", release=lambda _, old, ids: old([*dict.fromkeys(ids)])
)
fault(
    "release-forgets-missing",
    "a release of several ids reports none as missing",
    release=lambda _, old, ids: old(ids) if len(ids) < 2 else ReleaseResult(old(ids).freed, []),
)
fault("items-are-late", "items is not of the moment of the call", items=lambda _, old: (row for _ in range(1) for row in old()))
fault("snapshot-stays", "the snapshot stays when the store runs", commit=lambda _, old: None)
fault(
    "read-only-removes",
    "read-only, the first commit removes the snapshot",
    commit=lambda self, old: self._context.files.unlink(self._path),
)
fault("snapshot-unsynced", "the snapshot is never synced", __init__=lambda _, old, given: old(attrs.evolve(given, sync=False)))
fault(
    "len-counts-enters",
    "len counts what was entered, not what there is",
    enter=lambda self, old, ids, *given: self.__dict__.update(again=old(ids, *given) or [*getattr(self, "again", ()), *ids]),
    __len__=lambda self, old: old() + len(getattr(self, "again", ())) - len({*getattr(self, "again", ())}),
)


@fault_lmdb.of("commit")
def commit_takes_late_changes(self, old):
    """A commit includes what came after freeze."""
    self.freeze({})
    old()


@fault_lmdb.of("commit")
def commit_forgets(self, old):
    """A commit that fails forgets what was frozen. One write through the context stands for LMDB's own."""
    try:
        if not self._context.read_only:
            self._context.files.write_file(self._context.directory / "msgstore-note", [b"note"], sync=False)
    except OSError:
        with self._layers_lock:
            self._set_layers(self._newest)
        raise
    old()


@fault_lmdb.of("_write")
def commit_in_two_steps(self, old, environment, layers, whole=None):
    """Entries and state are committed one after the other."""
    old(environment, [attrs.evolve(layer, state={}) for layer in layers], whole)
    time.sleep(0.01)
    old(environment, layers, whole)


@fault_lmdb.of("_write")
def commit_keeps_the_removed(self, old, environment, layers, whole=None):
    """A commit leaves out what was removed."""
    for layer in layers:
        for msg_id in [msg_id for msg_id, slot in layer.slots.items() if not slot]:
            del layer.slots[msg_id]
    old(environment, layers, whole)


@fault_lmdb.of("close")
def close_merges_state(self, old, state):
    """Close adds its state to what was there."""
    if state is not None:
        self.freeze(state)
        self.commit()
    old(None)


@fault_lmdb.of("clear")
def clear_keeps_frozen(self, old):
    """Clear keeps what was frozen."""
    ids = [msg_id for msg_id, _, _ in self.items()]
    self.enter(ids, [1] * len(ids))  # one reference each: there may be more than memory has room for
    self.release(ids)


@fault_lmdb.of("load")
def live_is_not_live(self, old):
    """A live reader sees what was there when it came."""
    state = old()
    if self._context.live:
        found = list(self.items())
        self.enter([i for i, _, _ in found], [at for _, at, _ in found], [count for _, _, count in found])
    return state


fault_lmdb(
    "none-is-kept",
    "a value of None is stored as an empty one",
    freeze=lambda _, old, state: old({key: value or b"" for key, value in state.items()}),
)
fault_lmdb(
    "keys-unchecked",
    "keys of state are not checked before the commit",
    freeze=lambda _, old, state: old({key: value for key, value in state.items() if 0 < len(key) <= 511}),
)
