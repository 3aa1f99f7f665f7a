"""Faults in body codecs, indexes and GC policies."""

from __future__ import annotations

import os
import random  # noqa: F401 - the tables use it
import struct  # noqa: F401 - the tables use it
import time  # noqa: F401 - the tables use it
import zlib
from itertools import count as numbers  # noqa: F401 - for the mutant counts-its-records

import attrs

from acme_sqlite_index import plugin as acme_sqlite
from acme_sqlite_index.index import SqliteIndex
from acme_zstd_body import plugin as zstd
from acme_zstd_body.codec import ZstdBody
from msgstore import MessageTooLarge  # noqa: F401 - the tables use it
from msgstore.builtin import plugin as builtin
from msgstore.builtin.policies import CombineNeighbours, HalfEmpty, Raw, Retention
from msgstore.contract import BodyCodecDescriptor, Capability, Migrate, RecordError, RecordField, StoredBody  # noqa: F401 - the tables use it
from msgstore_erlang_body import plugin as erlang
from msgstore_erlang_body.codec import ErlangBody
from msgstore_ets_index import plugin as ets
from msgstore_ets_index.index import EtsIndex
from msgstore_lmdb_index import plugin as lmdb
from msgstore_lmdb_index.index import LmdbIndex
from mutants import add_mutants
from support import Deflate


def inflated(stored, inflate=None):
    inflate = inflate or zlib.decompressobj()
    body = inflate.decompress(stored)
    if not inflate.eof or inflate.unused_data:
        raise zlib.error("cut off, or followed by something")
    return body


def inflated_by(self, stored):
    self.inflate = zlib.decompressobj()
    return inflated(stored, self.inflate)


def deflated_by(self, body):
    self.deflate = zlib.compressobj()
    return self.deflate.compress(body) + self.deflate.flush()


def number_or_text(stored):
    if stored[-1:] == b"," or (stored[-1:] == b"#" and stored[:-1].isdigit()):
        return stored.removesuffix(b",")
    raise RecordError("no_value")


def refuse(error):
    raise error


DEFLATE = BodyCodecDescriptor(name="deflate", contract=(1, 0), factory="mutants.backends:Deflate", summary="compressed bodies")
add_mutants(DEFLATE, Deflate, r"""
is-valid-always-true: every body is valid
    is_valid > True
encodes-stored-bodies: stored bodies are encoded again
    encode: body if isinstance(body, StoredBody) else zlib => zlib
decode-raises-zlib-error: a damaged body makes a read raise another error than RecordError
    decode: raise RecordError("not_deflated", str(error)) from None => raise
    is_valid: suppress(RecordError) => suppress(zlib.error)
shares-a-decompressor: all threads share one decompressor
    decode: zlib.decompress(stored) => inflated_by(self, stored)
shares-a-compressor: all threads share one compressor
    encode: zlib.compress(body) => deflated_by(self, body)
largest-is-not-read: the largest body that it takes is not read
    encode: body if => refuse(MessageTooLarge("more than 1000")) if len(body) > 1000 else body if
    decode > _ if len(_) < 1000 else refuse(RecordError("too_large"))
cuts-large-bodies: bodies above four MiB come back cut
    decode > _[:4 * 2**20]
counts-its-calls: a body depends on the number of calls before
    encode: zlib.compress(body) => bytes([next(self.__dict__.setdefault("calls", numbers())) % 256]) + zlib.compress(body)
    decode: zlib.decompress(stored) => zlib.decompress(stored[1:])
cut-is-another-body: a body whose end is missing is read up to there
    decode: zlib.decompress(stored) => zlib.decompressobj().decompress(stored)
wrapped-already: a body that begins as stored ones do is stored as it is
    encode: isinstance(body, StoredBody) else => isinstance(body, StoredBody) or body[:1] == b"x" else
two-bytes-are-full-codec: a body of 65535 bytes is not read
    decode > _ if len(_) != 65535 else refuse(RecordError("no_length"))
further-bytes: bytes behind a body are valid, and make a read fail
    decode: zlib.decompress(stored) => inflated(stored)
    is_valid: self.decode(msg_id, stored) => zlib.decompress(stored)
    is_valid: suppress(RecordError) => suppress(zlib.error)
zero-id: a body of the id of zeros is cut
    encode > _ if msg_id.strip(b"\0") or isinstance(body, StoredBody) else zlib.compress(body[:2])
stored-bodies-have-a-limit: a StoredBody of more than two MiB is refused
    encode > refuse(MessageTooLarge("more than two MiB")) if isinstance(body, StoredBody) and len(body) > 2**21 else _
damage-is-stored: a damaged body is given back as it is
    decode: raise RecordError("not_deflated", str(error)) from None => return StoredBody(stored)
other-values-are-plain: a number, which has no plain form, comes as a body of the client
    encode: zlib.compress(body) => body + b","
    decode = lambda self, msg_id, stored: number_or_text(stored)
expires: after some years a body is invalid
    is_valid > _ and time.time() < 4_000_000_000
bodies-refer-to-the-first: a body that equals the first one refers to it
    encode: zlib.compress(body) => zlib.compress(b"=" if body == self.__dict__.setdefault("first", body) else b":" + body)
    decode > self.__dict__.get("first", b"") if _ == b"=" else _[1:]
""")  # fmt: skip


class Begins(Deflate):
    """A sound codec that shows the begin of each body."""

    def fields(self, stored):
        try:
            return (zlib.decompressobj().decompress(stored, 8),)
        except zlib.error:
            return None


BEGINS = attrs.evolve(
    DEFLATE, name="begins", factory="mutants.backends:Begins",
    capabilities=[Capability.FIELDS], fields=(RecordField("begins", "bytes"),),
)  # fmt: skip
add_mutants(zstd.msgstore_body_codecs()[0], ZstdBody, r"""
lowest-level: with the lowest level, bodies are stored as they are
    encode > bytes(body) if self._options.level == 1 else _
limit-of-the-last: all objects have the options of the last one that was made
    __init__: self._options = => type(self)._options =
""")  # fmt: skip
add_mutants(BEGINS, Begins, r"""
whole-for-eight: a whole body is read for its first bytes
    fields: zlib.decompressobj().decompress(stored, 8) => zlib.decompress(stored)[:8]
""")  # fmt: skip

add_mutants(builtin.msgstore_body_codecs()[0], Raw, r"""
plain-strips-zeros: it claims PLAIN, and strips zeros
    encode > _.rstrip(b"\0")
""")  # fmt: skip

add_mutants(erlang.msgstore_body_codecs()[0], ErlangBody, r"""
stored-form-is-plain: bytes that are no term come as a body of the client
    decode > bytes(_)
stored-form-is-trimmed: bytes that are no term come without the zeros at their end
    decode > StoredBody(_.rstrip(b"\0")) if isinstance(_, StoredBody) else _
empty-body-is-lost: an empty body is lost
    encode > _ if body else b""
refuses-long-bodies: terms that the codec writes itself are invalid when they are long
    is_valid > _ and len(stored) < 65536
believes-sizes: it allocates memory for the size that a body claims
    decode > (_, stored[:2] == b"\x83m" and bytearray(min(int.from_bytes(stored[2:6]), 2**26)))[0]
fields-raise: fields raises for bytes that no broker wrote
    fields > _ if stored[:1] == b"\x83" else {}[stored]
fields-of-one-byte: fields raises for a single byte
    fields > stored[1] if len(stored) == 1 else _
fields-of-two-bytes: fields raises for bytes that begin as a compressed term
    fields > {}[stored] if stored[:6] == b"\x83P\0\0\0\0" else _
fields-of-text-only: fields raises for an exchange that is not UTF-8
    fields > _ if not _ or "\\x" not in str(_[0]) else {}[stored]
fields-are-fewer: fields gives no payload
    fields > _ and _[:3]
""")  # fmt: skip


def write_in_place(files, path, chunks, *, sync):
    files.unlink(path)
    fd = files.create(path)
    try:
        files.pwrite(fd, b"".join(chunks), 0)
    finally:
        os.close(fd)


add_mutants(ets.msgstore_indexes()[0], EtsIndex, r"""
unreadable-is-absent: a snapshot that cannot be opened is taken for none
    load: except FileNotFoundError: => except OSError:
enter-in-parts: an enter that raises has entered a part
    enter: entries = dict(zip(ids, locations, strict=True)) => entries = zip(ids, locations, strict=True)
deletes-once: a commit that could not delete the snapshot is not repeated
    commit: self._context.files.unlink( => self.__dict__.update(_has_snapshot=False), self._context.files.unlink(
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
enter-keeps-higher-counts: an entry that is entered again with one reference keeps those that it had
    enter: self._counts.pop(msg_id, None) => pass
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
closes-twice: a close without a state, and then one with a state, saves what the first has left
    close: self._closed = True => self._closed = state is not None
read-only-removes: read-only, the first commit removes the snapshot
    commit: and not self._context.read_only => and True
load-swallows-errors: an I/O error is taken for a missing index
    load: except FileNotFoundError: => except OSError:
""")  # fmt: skip


def write_twice(self, environment, layers):
    self._write(environment, [attrs.evolve(layer, state={}) for layer in layers])
    self._write(environment, layers)


def enter_again(self, entries):
    self.enter([i for i, _, _ in entries], [at for _, at, _ in entries], [count for _, _, count in entries])
    return entries


def absorb_without_cancelled(older, newer):
    for msg_id in [i for i, slot in newer.slots.items() if not slot and older.slots.get(i)]:
        del older.slots[msg_id], newer.slots[msg_id]
    older.absorb(newer)


add_mutants(lmdb.msgstore_indexes()[0], LmdbIndex, r"""
commit-takes-late-changes: a commit includes what came after freeze
    commit: environment = self._environment => environment = self.freeze({}) or self._environment
commit-in-two-steps: entries and state are committed one after the other
    commit: self._write(environment, => write_twice(self, environment,
commit-keeps-the-removed: a commit leaves out what was removed
    _write: deletes = [] if cleared => deletes = [] if True
none-is-kept: a value of None is stored as an empty one
    freeze: dict(state) => {key: value or b"" for key, value in state.items()}
keeps-the-mapping: freeze keeps the mapping that it is given
    freeze: dict(state) => state
commit-cancels-removals: a removal is forgotten if an earlier freeze, before the same commit, has changed the entry
    freeze: frozen[0].absorb(newest) => absorb_without_cancelled(frozen[0], newest)
commit-takes-few: a commit leaves out what comes after 65536 entries
    _write: ids = sorted(slots) => ids = sorted(slots)[: 2**16]
failed-commit-drops-later: what is frozen while a commit fails is dropped
    _merge_frozen: frozen[-1].absorb(layer) => pass
keys-unchecked: keys of state are not checked before the commit
    freeze: if not 0 < len(key) <= _MAX_KEY: => if False:
close-merges-state: close adds its state to what was there
    close: whole=state => whole={**(self._state or {}), **state}
clear-keeps-frozen: clear keeps what was frozen
    clear: self._reset() => self.release([i for i, _, _ in enter_again(self, [(i, at, 1) for i, at, _ in self.items()])])
live-is-not-live: a live reader sees what was there when it came
    load > (_, self._context.live and enter_again(self, list(self.items())))[0]
""")  # fmt: skip


def locked(lock, call, *arguments):
    with lock:
        return call(*arguments)


add_mutants(acme_sqlite.msgstore_indexes()[0], SqliteIndex, r"""
failed-commit-forgets: a commit that fails in the library forgets what was frozen
    commit: self._frozen = self._frozen or frozen => pass
failed-commit-comes-back: a commit that fails replaces what was frozen since
    commit: self._frozen = self._frozen or frozen => self._frozen = frozen
clear-keeps-what-is-aside: clear keeps what is set aside
    clear: self._entries, self._state, self._frozen = {}, {}, None => self._entries, self._state = {}, {}
read-only-repairs: read-only, it lets SQLite roll back what a killed process has left
    _open: found = self._read(Path(copy, FILE)) => found = self._read(self._path)
unreadable-is-damage: files that cannot be read are set aside as damage
    load: getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF not in _DAMAGE => False
read-only-ignores-the-journal: read-only, half of a commit that a kill has cut short is read
    _open: in (FILE, JOURNAL): => in (FILE,):
get-waits: a read waits for the end of a commit
    get: entry = self._entries.get(msg_id) => entry = locked(self._commit_lock, self._entries.get, msg_id)
freeze-waits: a freeze waits for the end of a commit
    freeze: with self._frozen_lock: => with self._commit_lock:
leaves-the-database-open: close does not close the database
    close: self._release() => self.__dict__.setdefault("left", []).append(self._connection)
commit-unsynced: commits are never synced
    _read: 'FULL' if self._context.sync else 'OFF' => 'OFF'
entries-before-state: entries and state are written in two transactions
    _write: connection.executemany("INSERT INTO state => connection.execute("COMMIT"), connection.executemany("INSERT INTO state
""")  # fmt: skip


BY_NAME = {descriptor.name: descriptor for descriptor in builtin.msgstore_gc_policies()}


def new_ones(self, actions):
    known = self.__dict__.setdefault("known", [])
    found = [action for action in actions if action not in known]
    known += found
    return found


def hangs():
    while True:
        pass


add_mutants(BY_NAME["half-empty"], HalfEmpty, r"""
compacts-the-current: it compacts the segment that new messages go to
    plan: _collectable(segments) if => segments if not s.quarantined and
compacts-the-quarantined: it compacts quarantined segments
    plan: _collectable(segments) if => segments if not s.current and
names-one-twice: it names a segment twice
    plan > _ + _[:1]
counts-segments: it counts segments instead of reading their numbers
    plan > [Compact(at) for at, s in enumerate(segments) if Compact(s.number) in _]
answers-numbers: it returns numbers
    plan: Compact(s.number) => s.number
answers-none: it returns None if there is nothing to do
    plan > _ or None
sorts-its-input: it sorts the list that it is given
    plan > (_, isinstance(segments, list) and segments.sort(key=lambda s: s.live_bytes))[0]
looks-at-the-clock: it reads the clock
    plan > [action for action in _ if time.time() > 10**9]
rolls-dice: it depends on chance
    plan > [action for action in _ if random.random() < 0.5]
remembers: it remembers what it wanted before
    plan > [action for action in _ if self.__dict__.setdefault(str(action), id(_)) == id(_)]
keeps-its-plan: it returns a list that it keeps
    plan > self.__dict__.setdefault("plans", {}).setdefault((tuple(segments), now), _)
old-age-of-none: it leaves segments alone in a year before 2000
    plan > _ if now > 10**9 else []
large-ones-once: it names a segment in a store of more than a MB once only
    plan > _ if sum(s.size for s in segments) < 2**20 else new_ones(self, _)
never-enough: it compacts compacted segments again
    plan: s.garbage_bytes > s.used_bytes * self._garbage => s.live_count
migrates-for-ever: it migrates segments of the store's own format, for ever
    plan > [Migrate(s.number) for s in _collectable(segments)]
divides-by-zero: it divides by a number that may be zero
    plan: s.garbage_bytes > s.used_bytes * self._garbage => s.garbage_bytes / s.used_bytes > self._garbage
quadratic: it compares each segment with each
    plan > [action for action in _ if [s for s in segments if s.number == action.number and not s.current]]
low-fraction-for-ever: with a low fraction, it compacts what has no garbage
    plan: s.used_bytes * self._garbage => s.used_bytes * round(self._garbage, 1) - 1
a-place-for-each-number: it makes a list with a place for each number
    plan > _ if [0] * max((s.number for s in segments), default=1) else _
slow-if-all-are-alike: it compares each segment with each that has as many live bytes
    plan > _ if [sum(s.size == t.size for s in segments) for t in segments if t.live_bytes == t.used_bytes] is not None else _
never-returns: it does not return for a store with two segments of the same size
    plan > hangs() if len({s.size for s in segments}) < len(segments) > 1000 else _
""")  # fmt: skip

add_mutants(BY_NAME["combine"], CombineNeighbours, r"""
combines-too-much: it combines segments that do not fit into one
    plan: _combinable(segments) => _combinable([attrs.evolve(s, size_limit=2 * s.size_limit) for s in segments])
combines-with-itself: it combines a segment with itself
    plan: Combine((left.number, right.number)) => Combine((left.number, left.number))
combines-overlapping: it combines one segment with both of its neighbours
    plan: if taken.isdisjoint((left.number, right.number)): => if True:
""")  # fmt: skip

add_mutants(BY_NAME["retention"], Retention, r"""
plans-once: it plans the same segments once, although they grow older
    plan > self.__dict__.setdefault("planned", {}).setdefault(tuple(segments), _)
unknown-is-old: a segment whose age is not known is as old as the epoch
    plan: if s.sealed_at is not None) => if True)
    plan: sorted((s.sealed_at, => sorted((s.sealed_at or 0.0,
later-is-old: a segment whose time lies after now is old
    plan: self._reason(now - sealed_at, => self._reason(abs(now - sealed_at),
""", options={"max_age": "7d"})  # fmt: skip

LITTLE = {"max_bytes": "2kB"}
add_mutants(BY_NAME["retention"], Retention, r"""
drops-without-reason: it drops without a reason
    plan: Drop(number, reason) => Drop(number, "")
""", options=LITTLE)  # fmt: skip

add_mutants(BY_NAME["retention"], Retention, r"""
drops-silently: it drops live messages, and does not claim DROPS_MESSAGES
""", options=LITTLE, capabilities=[])  # fmt: skip
