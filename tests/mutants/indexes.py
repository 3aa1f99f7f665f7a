"""Faults in indexes: in one that saves a snapshot, and in one that commits."""

from __future__ import annotations

import os
import time

import attrs

from msgstore.contract import RESCUED_KEY, ReleaseResult
from msgstore_ets_index import plugin as ets
from msgstore_ets_index.index import EtsIndex
from msgstore_lmdb_index import plugin as lmdb
from msgstore_lmdb_index.index import LmdbIndex
from mutants import mutant

(ETS,) = ets.msgstore_indexes()
(LMDB,) = lmdb.msgstore_indexes()


@mutant(ETS, "relocate does not compare")
class RelocateDoesNotCompare(EtsIndex):
    def relocate(self, ids, old, new):
        moved = {msg_id: to for msg_id, to in zip(ids, new, strict=True) if self.get(msg_id) is not None}
        self._entries.update(moved)
        return len(moved)


@mutant(ETS, "relocate enters what was removed meanwhile")
class RelocateRevives(EtsIndex):
    def relocate(self, ids, old, new):
        gone = [(i, n) for i, n in zip(ids, new, strict=True) if self.get(i) is None]
        found = super().relocate(ids, old, new)
        self._entries.update(gone)
        return found


@mutant(ETS, "relocate takes an entry away for an instant")
class RelocateInTwoSteps(EtsIndex):
    def relocate(self, ids, old, new):
        moved = [(i, to) for i, at, to in zip(ids, old, new, strict=True) if self._entries.get(i) == at]
        for msg_id, _ in moved:
            del self._entries[msg_id]
        self._entries.update(moved)
        return len(moved)


@mutant(ETS, "relocate says how many it was given")
class RelocateCountsAll(EtsIndex):
    def relocate(self, ids, old, new):
        super().relocate(ids, old, new)
        return len(ids)


@mutant(ETS, "the last but one reference frees")
class ReleaseFreesEarly(EtsIndex):
    def _release_shared(self, msg_id):
        super()._release_shared(msg_id)
        if self._counts.get(msg_id, 1) == 1:
            self._entries.pop(msg_id)


@mutant(ETS, "an id that stands several times in one release counts once")
class ReleaseCountsIdsOnce(EtsIndex):
    def release(self, ids):
        return super().release(list(dict.fromkeys(ids)))


@mutant(ETS, "a release of several ids keeps quiet about those that are missing")
class ReleaseForgetsMissing(EtsIndex):
    def release(self, ids):
        released = super().release(ids)
        return released if len(ids) < 2 else ReleaseResult(released.freed, [])


@mutant(ETS, "an entry that is entered again keeps its references")
class EnterKeepsReferences(EtsIndex):
    def enter(self, ids, locations, references=None):
        kept = {msg_id: self._counts[msg_id] for msg_id in ids if msg_id in self._counts}
        super().enter(ids, locations, references)
        self._counts.update(kept)


@mutant(ETS, "a batch leaves its last entry out if there are many")
class EnterDropsTheLast(EtsIndex):
    def enter(self, ids, locations, references=None):
        super().enter(ids, locations, references)
        if len(ids) > 4:
            self._entries.pop(ids[-1])


@mutant(ETS, "len counts what was entered, not what there is")
class LenCountsEnters(EtsIndex):
    entered = 0

    def enter(self, ids, locations, references=None):
        super().enter(ids, locations, references)
        self.entered += len(ids)

    def release(self, ids):
        released = super().release(ids)
        self.entered -= len(released.freed)
        return released

    def clear(self):
        super().clear()
        self.entered = 0

    def load(self):
        state = super().load()
        self.entered = len(self._entries)
        return state

    def __len__(self):
        return self.entered


@mutant(ETS, "items leaves an entry out")
class ItemsMissesOne(EtsIndex):
    def items(self):
        found = super().items()
        if len(self._entries) > 2:
            next(found)
        return found


@mutant(ETS, "items is not of the moment of the call")
class ItemsAreLate(EtsIndex):
    def items(self):
        return (row for _ in range(1) for row in super(ItemsAreLate, self).items())


@mutant(ETS, "get raises for an id that is not there")
class GetRaises(EtsIndex):
    def __init__(self, context):
        super().__init__(context)
        self.get = self._entries.__getitem__


@mutant(ETS, "get takes anything for a key")
class GetTakesAnything(EtsIndex):
    def __init__(self, context):
        super().__init__(context)
        entries = self._entries
        self.get = lambda msg_id: entries.get(bytes(msg_id) if isinstance(msg_id, bytes) else None)


@mutant(ETS, "a new reference is counted in two steps, of which the first is seen")
class CountsInTwoSteps(EtsIndex):
    def add_reference(self, msg_id):
        location = self._entries.pop(msg_id, None)
        if location is None:
            return False
        self._counts[msg_id] = self._counts.get(msg_id, 1) + 1
        time.sleep(0)
        self._entries[msg_id] = location
        return True


@mutant(ETS, "the snapshot has no counts")
class SnapshotForgetsCounts(EtsIndex):
    def close(self, state):
        if state is not None:
            self._counts.clear()
        super().close(state)


@mutant(ETS, "the snapshot has locations of 8 bytes")
class SnapshotCutsLocations(EtsIndex):
    def close(self, state):
        if state is not None:
            self._entries.update({msg_id: at & (1 << 64) - 1 for msg_id, at in self._entries.items()})
        super().close(state)


@mutant(ETS, "a snapshot is read whatever its checksum")
class SnapshotUnchecked(EtsIndex):
    def load(self):
        state = super().load()
        if state is not None:
            state.pop(RESCUED_KEY, None)
        return state


@mutant(ETS, "the snapshot is written in its place")
class SnapshotInPlace(EtsIndex):
    def close(self, state):
        files = self._context.files
        self._context = attrs.evolve(self._context, files=_InPlace(files))
        super().close(state)


class _InPlace:
    def __init__(self, files):
        self._files = files

    def write_file(self, path, chunks, *, sync):
        self._files.unlink(path)
        fd = self._files.create(path)
        try:
            at = 0
            for chunk in chunks:
                self._files.pwrite(fd, chunk, at)
                at += len(chunk)
        finally:
            os.close(fd)


@mutant(ETS, "the snapshot is never synced")
class SnapshotUnsynced(EtsIndex):
    def __init__(self, context):
        super().__init__(attrs.evolve(context, sync=False))


@mutant(ETS, "the snapshot stays when the store runs")
class SnapshotStays(EtsIndex):
    def commit(self):
        pass


@mutant(ETS, "a close that fails lets go all the same")
class CloseLetsGo(EtsIndex):
    def close(self, state):
        try:
            super().close(state)
        finally:
            self._closed = True
            self.clear()


@mutant(ETS, "the second close saves what the first has left")
class CloseSavesTwice(EtsIndex):
    def close(self, state):
        self._closed = False
        super().close(state)


@mutant(ETS, "read-only, the first commit removes the snapshot")
class ReadOnlyRemoves(EtsIndex):
    def commit(self):
        self._context.files.unlink(self._path)


@mutant(ETS, "an I/O error is taken for an index that is not there")
class LoadSwallowsErrors(EtsIndex):
    def load(self):
        try:
            return super().load()
        except OSError:
            return None


@mutant(LMDB, "a commit takes along what came after freeze")
class CommitTakesLateChanges(LmdbIndex):
    def commit(self):
        super().freeze({})
        super().commit()


@mutant(LMDB, "a commit that fails forgets what was frozen")
class CommitForgets(LmdbIndex):
    """LMDB writes for itself: one write through the context stands for it."""

    def commit(self):
        try:
            if not self._context.read_only:
                self._context.files.write_file(self._context.directory / "msgstore-note", [b"note"], sync=False)
        except OSError:
            with self._layers_lock:
                self._set_layers(self._newest)
            raise
        super().commit()


@mutant(LMDB, "entries and state are committed one after the other")
class CommitInTwoSteps(LmdbIndex):
    def _write(self, environment, layers, whole=None):
        entries = [attrs.evolve(layer, state={}) for layer in layers]
        super()._write(environment, entries, whole)
        time.sleep(0.01)
        super()._write(environment, layers, whole)


@mutant(LMDB, "a commit leaves out what was removed")
class CommitKeepsTheRemoved(LmdbIndex):
    def _write(self, environment, layers, whole=None):
        for layer in layers:
            for msg_id in [msg_id for msg_id, slot in layer.slots.items() if not slot]:
                del layer.slots[msg_id]
        super()._write(environment, layers, whole)


@mutant(LMDB, "a value of None is stored as an empty one")
class NoneIsKept(LmdbIndex):
    def freeze(self, state):
        super().freeze({key: value or b"" for key, value in state.items()})


@mutant(LMDB, "keys of state are not checked before the commit")
class KeysUnchecked(LmdbIndex):
    def freeze(self, state):
        super().freeze({key: value for key, value in state.items() if 0 < len(key) <= 511})


@mutant(LMDB, "close adds its state to what was there")
class CloseMergesState(LmdbIndex):
    def close(self, state):
        if state is not None:
            self.freeze(state)
            self.commit()
        super().close(None)


@mutant(LMDB, "clear keeps what was frozen")
class ClearKeepsFrozen(LmdbIndex):
    def clear(self):
        for msg_id in [msg_id for msg_id, _, _ in self.items()]:
            self.release([msg_id] * self.references(msg_id))


@mutant(LMDB, "a live reader sees what was there when it came")
class LiveIsNotLive(LmdbIndex):
    def load(self):
        state = super().load()
        if self._context.live:
            found = list(self.items())
            self.enter([i for i, _, _ in found], [at for _, at, _ in found], [count for _, _, count in found])
        return state
