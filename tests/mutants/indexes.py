"""Faults in indexes: in one that saves a snapshot, and in one that commits."""

from __future__ import annotations

import os
import time
from functools import partial
from unittest import mock

import attrs

from msgstore.contract import RESCUED_KEY, ReleaseResult
from msgstore_ets_index import plugin as ets
from msgstore_ets_index.index import EtsIndex
from msgstore_lmdb_index import plugin as lmdb
from msgstore_lmdb_index.index import LmdbIndex
from mutants import broken

(ETS,) = ets.msgstore_indexes()
(LMDB,) = lmdb.msgstore_indexes()
fault = partial(broken, __name__, ETS, EtsIndex)


def does_not_compare(self, old, ids, was, new):
    moved = {msg_id: to for msg_id, to in zip(ids, new, strict=True) if self.get(msg_id) is not None}
    self._entries.update(moved)
    return len(moved)


def revives(self, old, ids, was, new):
    gone = [(i, n) for i, n in zip(ids, new, strict=True) if self.get(i) is None]
    found = old(ids, was, new)
    self._entries.update(gone)
    return found


def in_two_steps(self, old, ids, was, new):
    moved = [(i, to) for i, at, to in zip(ids, was, new, strict=True) if self._entries.get(i) == at]
    for msg_id, _ in moved:
        del self._entries[msg_id]
    self._entries.update(moved)
    return len(moved)


def counts_all(self, old, ids, was, new):
    old(ids, was, new)
    return len(ids)


def frees_early(self, old, msg_id):
    old(msg_id)
    if self._counts.get(msg_id, 1) == 1:
        self._entries.pop(msg_id)


def forgets_missing(self, old, ids):
    released = old(ids)
    return released if len(ids) < 2 else ReleaseResult(released.freed, [])


def keeps_references(self, old, ids, locations, references=None):
    kept = {msg_id: self._counts[msg_id] for msg_id in ids if msg_id in self._counts}
    old(ids, locations, references)
    self._counts.update(kept)


def drops_the_last(self, old, ids, locations, references=None):
    old(ids, locations, references)
    if len(ids) > 4:
        self._entries.pop(ids[-1])


def misses_one(self, old):
    found = old()
    if len(self._entries) > 2:
        next(found)
    return found


def get_raises(self, old, context):
    old(context)
    self.get = self._entries.__getitem__


def get_takes_anything(self, old, context):
    old(context)
    entries = self._entries
    self.get = lambda msg_id: entries.get(bytes(msg_id) if isinstance(msg_id, bytes) else None)


def counts_in_two_steps(self, old, msg_id):
    location = self._entries.pop(msg_id, None)
    if location is None:
        return False
    self._counts[msg_id] = self._counts.get(msg_id, 1) + 1
    time.sleep(0)
    self._entries[msg_id] = location
    return True


def forgets_counts(self, old, state):
    if state is not None:
        self._counts.clear()
    old(state)


def cuts_locations(self, old, state):
    if state is not None:
        self._entries.update({msg_id: at & (1 << 64) - 1 for msg_id, at in self._entries.items()})
    old(state)


def unchecked(self, old):
    state = old()
    if state is not None:
        state.pop(RESCUED_KEY, None)
    return state


def lets_go(self, old, state):
    try:
        old(state)
    finally:
        self._closed = True
        self.clear()


def saves_twice(self, old, state):
    self._closed = False
    old(state)


def swallows_errors(self, old):
    try:
        return old()
    except OSError:
        return None


fault("relocate-does-not-compare", "relocate does not compare", relocate=does_not_compare)
fault("relocate-revives", "relocate enters what was removed meanwhile", relocate=revives)
fault("relocate-in-two-steps", "relocate takes an entry away for an instant", relocate=in_two_steps)
fault("relocate-counts-all", "relocate returns how many it was given", relocate=counts_all)
fault("release-frees-early", "the last but one reference frees", _release_shared=frees_early)
fault(
    "release-counts-ids-once",
    "an id that is given several times in one release counts once",
    release=lambda _, old, ids: old(list(dict.fromkeys(ids))),
)
fault("release-forgets-missing", "a release of several ids reports none as missing", release=forgets_missing)
fault("enter-keeps-references", "an entry that is entered again keeps its references", enter=keeps_references)
fault("enter-drops-the-last", "a batch leaves its last entry out if there are many", enter=drops_the_last)
fault("items-misses-one", "items leaves an entry out", items=misses_one)
fault("items-are-late", "items is not of the moment of the call", items=lambda _, old: (row for _ in range(1) for row in old()))
fault("get-raises", "get raises for an id that is absent", __init__=get_raises)
fault("get-takes-anything", "get takes anything for a key", __init__=get_takes_anything)
fault("counts-in-two-steps", "a new reference is counted in two visible steps", add_reference=counts_in_two_steps)
fault("snapshot-forgets-counts", "the snapshot has no counts", close=forgets_counts)
fault("snapshot-cuts-locations", "the snapshot has locations of 8 bytes", close=cuts_locations)
fault("snapshot-unchecked", "a snapshot is read whatever its checksum", load=unchecked)
fault("snapshot-stays", "the snapshot stays when the store runs", commit=lambda _, old: None)
fault("close-lets-go", "a close that fails releases everything", close=lets_go)
fault("close-saves-twice", "the second close saves what the first has left", close=saves_twice)
fault(
    "read-only-removes",
    "read-only, the first commit removes the snapshot",
    commit=lambda self, old: self._context.files.unlink(self._path),
)
fault("load-swallows-errors", "an I/O error is taken for a missing index", load=swallows_errors)
fault(
    "snapshot-unsynced",
    "the snapshot is never synced",
    __init__=lambda _, old, context: old(attrs.evolve(context, sync=False)),
)


def counts_again(self, old, ids, locations, references=None):
    self.again = getattr(self, "again", 0) + sum(self.get(msg_id) is not None for msg_id in ids)
    old(ids, locations, references)


def in_place(self, old, state):
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
    "len-counts-enters",
    "len counts what was entered, not what there is",
    enter=counts_again,
    __len__=lambda self, old: old() + getattr(self, "again", 0),
)
fault("snapshot-in-place", "the snapshot is written in its place", close=in_place)


def takes_late_changes(self, old):
    self.freeze({})
    old()


def commit_forgets(self, old):
    """LMDB writes for itself: one write through the context stands for it."""
    try:
        if not self._context.read_only:
            self._context.files.write_file(self._context.directory / "msgstore-note", [b"note"], sync=False)
    except OSError:
        with self._layers_lock:
            self._set_layers(self._newest)
        raise
    old()


def commits_in_two_steps(self, old, environment, layers, whole=None):
    old(environment, [attrs.evolve(layer, state={}) for layer in layers], whole)
    time.sleep(0.01)
    old(environment, layers, whole)


def keeps_the_removed(self, old, environment, layers, whole=None):
    for layer in layers:
        for msg_id in [msg_id for msg_id, slot in layer.slots.items() if not slot]:
            del layer.slots[msg_id]
    old(environment, layers, whole)


def merges_state(self, old, state):
    if state is not None:
        self.freeze(state)
        self.commit()
    old(None)


def keeps_frozen(self, old):
    ids = [msg_id for msg_id, _, _ in self.items()]
    self.enter(ids, [1] * len(ids))  # one reference each: there may be more than memory has room for
    self.release(ids)


def not_live(self, old):
    state = old()
    if self._context.live:
        found = list(self.items())
        self.enter([i for i, _, _ in found], [at for _, at, _ in found], [count for _, _, count in found])
    return state


lmdb_fault = partial(broken, __name__, LMDB, LmdbIndex)
lmdb_fault("commit-takes-late-changes", "a commit includes what came after freeze", commit=takes_late_changes)
lmdb_fault("commit-forgets", "a commit that fails forgets what was frozen", commit=commit_forgets)
lmdb_fault("commit-in-two-steps", "entries and state are committed one after the other", _write=commits_in_two_steps)
lmdb_fault("commit-keeps-the-removed", "a commit leaves out what was removed", _write=keeps_the_removed)
lmdb_fault(
    "none-is-kept",
    "a value of None is stored as an empty one",
    freeze=lambda _, old, state: old({key: value or b"" for key, value in state.items()}),
)
lmdb_fault(
    "keys-unchecked",
    "keys of state are not checked before the commit",
    freeze=lambda _, old, state: old({key: value for key, value in state.items() if 0 < len(key) <= 511}),
)
lmdb_fault("close-merges-state", "close adds its state to what was there", close=merges_state)
lmdb_fault("clear-keeps-frozen", "clear keeps what was frozen", clear=keeps_frozen)
lmdb_fault("live-is-not-live", "a live reader sees what was there when it came", load=not_live)
