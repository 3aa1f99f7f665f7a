"""What a store must show that is opened after a crash.

- Opening succeeds, and every confirmed message that was not removed is there with its bytes.
- With a persistent index the counts are those of a flush boundary: of the last one, or of the one that was under way. So no
  message returns whose removal was confirmed. Other indexes know that after a clean stop only.
- Nothing is there that was never written, and nothing is read with wrong bytes. An exception, after a power loss and without
  a checksum: what was never confirmed.
- The store goes on: it is written to, flushed, compacted, closed, and what it then says is what it says after the next opening.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

import msgstore
from crash.workload import CrashCell, Expected
from msgstore.testing.faults import UnsyncedFiles
from support import open_with

NEW = b"\xeenew after crash"
"""Ids of what is written after the crash; no other id begins so."""


class Broken(AssertionError):
    """An invariant does not hold."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


@attrs.frozen
class Situation:
    """What is known of the crash whose leavings are opened."""

    cell: CrashCell
    bodies: Mapping[bytes, bytes]
    expected: Expected
    power_loss: bool = False
    pass_counts: bool = False
    """Whether the caller passes the counts of the last flush, as one does who knows them."""

    @property
    def refcounts(self) -> tuple[tuple[bytes, int], ...] | None:
        if self.expected.refcounts is not None:
            return self.expected.refcounts
        if self.pass_counts and not self.cell.persistent:
            counts = {**self.expected.settled, **{i: self.expected.wanted[i] for i in self.expected.required}}
            return tuple(counts.items())
        return None


def check(path: Path, situation: Situation) -> None:
    """Raises Broken; any other exception is a fault as well."""
    store = _open(path, situation, situation.refcounts)
    try:
        if not situation.power_loss:
            demand(store.stats().quarantined == 0, f"a killed process made a segment look damaged: {store.stats().recovery}")
        with store.client() as client:
            client.remove(_cut_ids(_references(store), situation))
        found = _references(store)
        _check_references(found, situation)
        _contents(store, situation, found)
        _go_on(store, situation, found)
    finally:
        store.abandon()
    situation = attrs.evolve(situation, bodies={**situation.bodies, NEW: NEW})
    store = _open(path, situation, None)
    try:
        demand(store.stats().recovery.how == "trust", f"a clean stop was not trusted: {store.stats().recovery}")
        demand(_references(store) == found, "a clean stop has changed references")
        _contents(store, situation, found)
    finally:
        store.abandon()


def _open(path: Path, situation: Situation, refcounts: object) -> msgstore.Store:
    return open_with(path, UnsyncedFiles(), refcounts=refcounts, **situation.cell.keys)


def _references(store: msgstore.Store) -> dict[bytes, int]:
    return {entry.msg_id: entry.references for entry in store.entries()}


def _cut_ids(found: Iterable[bytes], situation: Situation) -> list[bytes]:
    """Ids of records that were never confirmed, of which a power loss kept one sector and not the other: half of it is zeros.
    Nothing in a record without a checksum tells; with one there are none."""
    if not situation.power_loss or situation.cell.checksummed:
        return []
    unconfirmed = situation.expected.wanted.keys() - situation.expected.required
    halves = {half for i in unconfirmed for at in range(1, 16) for half in (i[:at] + bytes(16 - at), bytes(at) + i[at:])}
    return [msg_id for msg_id in found if msg_id in halves - situation.bodies.keys()]


def _check_references(found: dict[bytes, int], situation: Situation) -> None:
    expected = situation.expected
    missing = expected.required - found.keys()
    demand(not missing, f"{len(missing)} confirmed messages are missing: {sorted(i.hex() for i in missing)[:5]}")
    strangers = found.keys() - situation.bodies.keys()
    demand(not strangers, f"there are messages that nobody wrote: {[i.hex() for i in strangers][:5]}")
    if expected.closed:
        demand(found == expected.settled, f"after a clean stop: {_difference(found, expected.settled)}")
    if not situation.cell.persistent:
        if situation.refcounts is not None and not expected.closed:
            returned = found.keys() - dict(situation.refcounts).keys() - expected.wanted.keys()
            demand(not returned, f"messages without references are there: {[i.hex() for i in returned][:5]}")
        return
    returned = found.keys() - expected.settled.keys() - expected.wanted.keys()
    demand(not returned, f"{len(returned)} removed messages returned: {sorted(i.hex() for i in returned)[:5]}")
    old = {i: found.get(i, 0) for i in expected.settled}
    in_old = expected.settled
    in_new = {i: expected.wanted.get(i, 0) for i in expected.settled}
    demand(
        old in (in_old, in_new),
        f"counts of no flush boundary; from the last: {_difference(old, in_old)}; from the next: {_difference(old, in_new)}",
    )
    for msg_id in found.keys() - expected.settled.keys():
        demand(
            found[msg_id] in (1, expected.wanted[msg_id]),
            f"{msg_id.hex()}, not confirmed, has {found[msg_id]} references, not {expected.wanted[msg_id]}",
        )


def _difference(found: Mapping[bytes, int], expected: Mapping[bytes, int]) -> str:
    return ", ".join(
        f"{i.hex()[:8]} {expected.get(i, 0)} -> {found.get(i, 0)}"
        for i in sorted(found.keys() | expected.keys())
        if found.get(i, 0) != expected.get(i, 0)
    )


def _contents(store: msgstore.Store, situation: Situation, found: Mapping[bytes, int]) -> None:
    """Every message that is there reads, alone and with the others, as what was written."""
    expected = situation.expected
    doubtful: set[bytes] = set()
    if situation.power_loss and not situation.cell.checksummed:
        doubtful = expected.wanted.keys() - expected.required
    with store.client() as client:
        together = client.read_many(found)
        demand(together.keys() == found.keys(), f"read_many found {len(together)} of {len(found)} messages")
        for msg_id, body in together.items():
            demand(client.read(msg_id) == body, f"{msg_id.hex()} reads differently alone and with others")
            wrong = body != situation.bodies.get(msg_id, msg_id)
            demand(not wrong or msg_id in doubtful, f"{msg_id.hex()} was read with wrong bytes")


def _go_on(store: msgstore.Store, situation: Situation, found: dict[bytes, int]) -> None:
    """Use the store as if nothing had happened, and stop it cleanly. ``found`` follows."""
    confirmed: list[bytes] = []
    client = store.client("afterwards", on_confirm=confirmed.extend)
    client.write(NEW, NEW)
    client.write(NEW, NEW)
    store.flush()
    demand(confirmed == [NEW, NEW], f"after the crash {len(confirmed)} of 2 writes were confirmed")
    victims = sorted(situation.expected.required & found.keys())[::3]
    client.remove([NEW, *victims])
    store.flush()
    found[NEW] = 1
    for msg_id in victims:
        found[msg_id] -= 1
        if not found[msg_id]:
            del found[msg_id]
    done = store.compact(everything=True)
    if not situation.power_loss:
        demand(not any(one.skipped for one in done), f"not compacted: {[one.skipped for one in done]}")
    demand(_references(store) == found, f"after going on: {_difference(_references(store), found)}")
    demand(client.read(NEW) == NEW, "what was written after the crash is not there")
    _contents(store, attrs.evolve(situation, bodies={**situation.bodies, NEW: NEW}), found)
    store.close()
