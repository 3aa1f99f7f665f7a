"""Faults in indexes: in one that saves a snapshot, and in one that commits."""

from __future__ import annotations

import os
import time

import attrs

from msgstore_ets_index import plugin as ets
from msgstore_ets_index.index import EtsIndex
from msgstore_lmdb_index import plugin as lmdb
from msgstore_lmdb_index.index import LmdbIndex
from mutants import add_mutants


def write_in_place(files, path, chunks, *, sync):
    files.unlink(path)
    fd = files.create(path)
    try:
        files.pwrite(fd, b"".join(chunks), 0)
    finally:
        os.close(fd)


add_mutants(ets.msgstore_indexes()[0], EtsIndex, r"""
relocate-does-not-compare: relocate does not compare
    relocate: self.get(msg_id) == at => self.get(msg_id) is not None
relocate-revives: relocate enters what was removed meanwhile
    relocate: self.get(msg_id) == at => self.get(msg_id) in (at, None)
    relocate > sum(self.get(msg_id) == to for msg_id, to in zip(ids, new))
relocate-in-two-steps: relocate takes an entry away for an instant
    relocate: self._entries.update(moved) => [self._entries.pop(i) for i in moved], self._entries.update(moved)
relocate-counts-all: relocate returns how many it was given
    relocate > len(ids)
release-frees-early: the last but one reference frees
    _release_shared: del self._counts[msg_id] => del self._counts[msg_id], self._entries[msg_id]
release-counts-ids-once: an id that is given several times in one release counts once
    release: in ids: => in dict.fromkeys(ids):
release-forgets-missing: a release of several ids reports none as missing
    release: ReleaseResult(freed, missing) => ReleaseResult(freed, missing if len(ids) < 2 else [])
enter-keeps-references: an entry that is entered again keeps its references
    enter: elif self._counts: => elif not ids:
enter-drops-the-last: a batch leaves its last entries out if there are many
    enter: zip(ids, locations, strict=True) => zip(ids[:4], locations)
items-misses-one: items leaves an entry out
    items > (row for number, row in enumerate(_) if number != 2)
items-are-late: items is not of the moment of the call
    items > (row for late in range(1) for row in old())
get-raises: get raises for an id that is absent
    __init__: self._entries.get => self._entries.__getitem__
get-takes-anything: get takes anything for a key
    __init__: self._entries.get => lambda key: self._entries.get(key if isinstance(key, bytes) else None)
counts-in-two-steps: a new reference is counted in two visible steps
    add_reference: self._counts[msg_id] = => at, self._counts[msg_id] = self._entries.pop(msg_id),
    add_reference: return True => return self._entries.update({msg_id: at}) is None
len-counts-enters: len counts what was entered, not what there is
    enter > self.__dict__.update(entered=[*self.__dict__.get("entered", ()), *ids])
    __len__ > _ + len(self.__dict__.get("entered", ())) - len({*self.__dict__.get("entered", ())})
snapshot-forgets-counts: the snapshot has no counts
    close: self._counts, state) => {}, state)
snapshot-cuts-locations: the snapshot has locations of 8 bytes
    close: write(self._entries, => write({i: at & (1 << 64) - 1 for i, at in self._entries.items()},
snapshot-unchecked: a snapshot is read whatever its checksum
    load > _ and {key: value for key, value in _.items() if key != RESCUED_KEY}
snapshot-stays: the snapshot stays when the store runs
    commit: if self._has_snapshot and => if False and
snapshot-unsynced: the snapshot is never synced
    close: sync=self._context.sync => sync=False
snapshot-in-place: the snapshot is written in its place
    close: self._context.files.write_file(self._path, => write_in_place(self._context.files, self._path,
close-lets-go: a close that fails releases everything
    close: write_file(self._path, chunks => write_file(self._path, [*chunks, self.clear() or b""]
close-saves-twice: the second close saves what the first has left
    close: self._closed or state => state
read-only-removes: read-only, the first commit removes the snapshot
    commit: and not self._context.read_only => and True
load-swallows-errors: an I/O error is taken for a missing index
    load: except FileNotFoundError: => except OSError:
""")  # fmt: skip


def note(self):
    """LMDB writes for itself: one write through the context stands for it."""
    try:
        if not self._context.read_only:
            self._context.files.write_file(self._context.directory / "msgstore-note", [b"note"], sync=False)
    except OSError:
        with self._layers_lock:
            self._set_layers(self._newest)
        raise


def write_twice(self, environment, layers):
    self._write(environment, [attrs.evolve(layer, state={}) for layer in layers])
    time.sleep(0.01)
    self._write(environment, layers)


def enter_again(self, entries):
    self.enter([i for i, _, _ in entries], [at for _, at, _ in entries], [count for _, _, count in entries])
    return entries


add_mutants(lmdb.msgstore_indexes()[0], LmdbIndex, r"""
commit-takes-late-changes: a commit includes what came after freeze
    commit: environment = self._environment => environment = self.freeze({}) or self._environment
commit-forgets: a commit that fails forgets what was frozen
    commit: environment = self._environment => environment = note(self) or self._environment
commit-in-two-steps: entries and state are committed one after the other
    commit: self._write(environment, => write_twice(self, environment,
commit-keeps-the-removed: a commit leaves out what was removed
    _write: deletes = [] if cleared => deletes = [] if True
none-is-kept: a value of None is stored as an empty one
    freeze: dict(state) => {key: value or b"" for key, value in state.items()}
keys-unchecked: keys of state are not checked before the commit
    freeze: if not 0 < len(key) <= _MAX_KEY: => if False:
close-merges-state: close adds its state to what was there
    close: whole=state => whole={**(self._state or {}), **state}
clear-keeps-frozen: clear keeps what was frozen
    clear: self._reset() => self.release([i for i, _, _ in enter_again(self, [(i, at, 1) for i, at, _ in self.items()])])
live-is-not-live: a live reader sees what was there when it came
    load > (_, self._context.live and enter_again(self, list(self.items())))[0]
""")  # fmt: skip
