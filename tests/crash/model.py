"""Model of a store: which counts a message may have now, and which after a crash; and the comparison of a store with it.

Each message has one count, unless a call failed half way, or changes were not flushed when the process ended. After a crash or
a failed operation:

- Opening succeeds, and every confirmed message that was not removed is there with its bytes.
- With a persistent index the counts are those of a flush boundary: of the last one, or of the one that was under way. So no
  message returns whose removal was confirmed. Other indexes know that after a clean stop, or from who opens the store.
- Nothing is there that was never written, and nothing is read with wrong bytes. An exception, after a power loss and without
  a checksum: what was never confirmed.
- The store goes on: it is written to, flushed, compacted, closed, and what it then says is what it says after the next opening.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.testing.faults import UnsyncedFiles
from support import open_with

Counts = Mapping[bytes, frozenset[int]]
ABSENT = frozenset({0})
ANY = 100
"""More references than any message has."""
NEW = b"\xeenew after crash"
"""Id of what is written after a crash; no other id begins so."""


class Broken(AssertionError):
    """A store is not what the model allows."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


def body_of(msg_id: bytes) -> bytes:
    """The body of every message of this id. Among them: nothing, zeros, 255s, what looks like the records of both formats, and
    large ones."""
    size = 1 + msg_id[1] % 11
    shapes = {
        0: b"",
        1: bytes(20 + 8 * size),
        2: b"\xff" * (20 + 4 * size),
        3: (17).to_bytes(8) + b"\x77" * 17 + b"\xff" + b"tail" * (size % 5),
        4: b"\x03" + (40).to_bytes(4) + b"\x78" * 35,
        5: msg_id * (62 if size % 4 else 160),
    }
    return shapes.get(msg_id[0] % 16, msg_id * size)


@attrs.define
class Model:
    """Mappings are replaced, never changed: a copy stays what it is."""

    now: Counts = attrs.Factory(dict)
    """In the open store."""
    kept: Counts = attrs.Factory(dict)
    """On disk if the process is killed: every count since the last flush may be."""
    flushed: Counts = attrs.Factory(dict)
    """As of the last flush that has returned."""
    forgotten: bool = False
    """True if the next opening needs the counts: the index on disk does not have them."""
    given: Mapping[bytes, bytes] = attrs.Factory(dict)
    """Bodies of messages that another program wrote."""
    _removed: frozenset[bytes] = frozenset()
    """Removed since the last flush."""

    def body(self, msg_id: bytes) -> bytes:
        return self.given[msg_id] if msg_id in self.given else NEW if msg_id == NEW else body_of(msg_id)

    @property
    def present(self) -> list[bytes]:
        """Ids that are certainly there, in the order of their first writes."""
        return [msg_id for msg_id, counts in self.now.items() if min(counts) > 0]

    @property
    def required(self) -> set[bytes]:
        """Confirmed and not removed: these must be there, whatever happens now."""
        return {msg_id for msg_id, counts in self.kept.items() if 0 not in counts}

    @property
    def highest(self) -> list[tuple[bytes, int]]:
        """What the owner of the counts knows: those of messages that were there after the last flush, or are confirmed since.

        A message that was removed and is being written anew may have no record yet, and a counted id without one is damage.
        """
        known = {msg_id for msg_id, counts in self.flushed.items() if max(counts)} | self.required
        return [(msg_id, max(counts)) for msg_id, counts in self.kept.items() if msg_id in known and max(counts)]

    def change(self, ids: Iterable[bytes], by: int, *, applied: bool | None = True) -> None:
        """``applied``: whether the change took effect; None if the call that failed did not say so, or has not ended."""
        now, kept = dict(self.now), dict(self.kept)
        for msg_id in ids:
            before = now.get(msg_id, ABSENT)
            after = frozenset(max(0, count + by) for count in before)
            now[msg_id] = before | after if applied is None else after if applied else before
            kept[msg_id] = kept.get(msg_id, ABSENT) | now[msg_id]
            if by < 0:
                self._removed |= {msg_id}
        self.now, self.kept = now, kept

    def gone(self, ids: Iterable[bytes]) -> None:
        self.now = {**self.now, **dict.fromkeys(ids, ABSENT)}

    def flush(self, *, closed: bool = False) -> None:
        """A call has returned that flushes."""
        self.kept = self.flushed = self.now
        self._removed = frozenset()
        self.forgotten = self.forgotten and not closed

    def killed(self) -> None:
        """What is on disk is what the next opening finds."""
        self.now = self.kept

    def confirm(self, ids: Iterable[bytes]) -> None:
        """``on_confirm``: these are safe, whatever becomes of the flush. A write that was removed is confirmed, too."""
        safe = {i: self.kept.get(i, ABSENT) - ABSENT or frozenset({1}) for i in ids if i not in self._removed}
        self.kept = {**self.kept, **safe}

    def settle(self, found: Mapping[bytes, int]) -> None:
        """An opening without failures has chosen among what was allowed."""
        self.now = {msg_id: frozenset({count}) for msg_id, count in found.items()}
        self.flush()

    def check_boundary(self, found: Mapping[bytes, int]) -> None:
        """Raise Broken unless the counts are those of the last flush, or of the one that was under way."""
        settled = {i: counts for i, counts in self.flushed.items() if max(counts)}
        wrong = [{i for i in settled if found.get(i, 0) not in side[i]} for side in (settled, self.now)]
        texts = [", ".join(f"{i.hex()[:8]} has {found.get(i, 0)}" for i in sorted(ids)) for ids in wrong]
        demand(not all(wrong), f"counts of no flush boundary; not of the last: {texts[0]}; not of the next: {texts[1]}")
        for msg_id in self.now.keys() - settled.keys():
            count, last = found.get(msg_id, 0), max(self.now[msg_id])
            demand(count in (0, min(1, last), last), f"{msg_id.hex()} has {count} references, not {last}: of no flush boundary")


def differences(allowed: Counts, found: Mapping[bytes, int], since: str) -> list[str]:
    """In words, for each message whose count is none of those allowed."""
    said = []
    for msg_id in allowed.keys() | found.keys():
        counts, count, name = allowed.get(msg_id), found.get(msg_id, 0), f"message {msg_id.hex()[:8]}.."
        if counts is None:
            said.append(f"{name} was never written and is there with count {count}")
        elif count in counts:
            continue
        elif counts == ABSENT:
            said.append(f"{name} was removed before {since} and is back with count {count}")
        else:
            confirmed = " or ".join(map(str, sorted(counts)[:9]))
            end = f"is there with count {count}" if count else "is gone"
            said.append(f"{name} had count {confirmed} before {since} and {end}")
    return sorted(said)


def compare(
    store: msgstore.Store, model: Model, allowed: Counts, since: str, doubtful: Collection[bytes] = ()
) -> dict[bytes, int]:
    """Return id to count. Raises Broken unless counts are allowed, and bodies are right, but for those of ``doubtful`` ids."""
    client = store.client()
    found = {entry.msg_id: entry.references for entry in store.entries()}
    found |= {msg_id: store.references(msg_id) for msg_id in allowed}  # those that are buffered, too
    found = {msg_id: count for msg_id, count in found.items() if count}
    problems = differences(allowed, found, since)
    demand(not problems, "\n    ".join(problems[:4]))
    together = client.read_many(found)
    demand(together.keys() == found.keys(), f"read_many found {len(together)} of {len(found)} messages")
    for msg_id, body in together.items():
        demand(client.read(msg_id) == body, f"{msg_id.hex()} reads differently alone and with others")
        demand(body == model.body(msg_id) or msg_id in doubtful, f"{msg_id.hex()} was read with wrong bytes")
    return found


@attrs.frozen
class Aftermath:
    """What is known of the end of a store whose directory is opened again."""

    model: Model
    keys: dict[str, Any]
    since: str = "the crash"
    left_by: str = ""
    """``kill`` or ``power loss``; empty if operations had failed: then segments may look damaged."""
    at_boundary: bool = False
    """True if counts are of one flush: no call that flushes has failed."""
    pass_counts: bool = True
    """Whether the caller passes the counts where the index does not have them."""

    def check(self, path: Path) -> None:
        """Raises Broken; any other exception is a fault as well."""
        passed = self.model.highest if self.model.forgotten and self.pass_counts else None
        allowed, doubtful = self.model.kept, self._doubtful()
        if self.model.forgotten and passed is None:
            allowed = {msg_id: frozenset(range(0 not in counts, ANY)) for msg_id, counts in allowed.items()}
        store = open_with(path, UnsyncedFiles(), refcounts=passed, **self.keys)
        try:
            damaged = self.left_by == "kill" and store.stats().quarantined
            demand(not damaged, f"a segment looks damaged: {store.stats().recovery}")
            halves = {half for i in doubtful for at in range(1, 16) for half in (i[:at] + bytes(16 - at), bytes(at) + i[at:])}
            store.client().remove([e.msg_id for e in store.entries() if e.msg_id in halves - self.model.kept.keys()])
            found = compare(store, self.model, allowed, self.since, doubtful)
            if self.at_boundary:
                self.model.check_boundary(found)
            exact = self._go_on(store, found, doubtful)
        finally:
            store.abandon()
        store = open_with(path, UnsyncedFiles(), **self.keys)
        try:
            demand(store.stats().recovery.how == "trust", f"a clean stop was not trusted: {store.stats().recovery}")
            compare(store, self.model, exact, "a clean stop", doubtful)
        finally:
            store.abandon()

    def _doubtful(self) -> set[bytes]:
        """Ids of records that were never confirmed, of which a power loss may keep one sector and not the other: half of the
        id may be zeros. Nothing in a record without a checksum tells; with one there are none."""
        if self.left_by != "power loss" or self.keys["record"] == "checksum" or self.keys["format"] == "ledger":
            return set()
        return {msg_id for msg_id, counts in self.model.now.items() if max(counts)} - self.model.required

    def _go_on(self, store: msgstore.Store, found: dict[bytes, int], doubtful: set[bytes]) -> Counts:
        """Use the store as if nothing had happened, and stop it cleanly. Returns what is in it."""
        confirmed: list[bytes] = []
        client = store.client("afterwards", on_confirm=confirmed.extend)
        client.write(NEW, NEW)
        client.write(NEW, NEW)
        store.flush()
        demand(confirmed == [NEW, NEW], f"after {self.since} {len(confirmed)} of 2 writes were confirmed")
        victims = sorted(self.model.required & found.keys())[::3]
        client.remove([NEW, *victims])
        store.flush()
        skipped = [one.skipped for one in store.compact(everything=True) if one.skipped]
        demand(not (self.left_by == "kill" and skipped), f"not compacted: {skipped}")
        left = {**found, NEW: 1, **{msg_id: found[msg_id] - 1 for msg_id in victims}}
        exact = {msg_id: frozenset({count}) for msg_id, count in left.items()}
        compare(store, self.model, exact, "going on", doubtful)
        store.close()
        return exact
