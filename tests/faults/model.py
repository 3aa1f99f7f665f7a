"""Model of a store, and one run on it. It has the counts that are allowed for each message: one, unless a call failed half
way."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

import msgstore
from faults.injection import Injector, Interrupt
from msgstore.files import Files
from msgstore.testing import stores

Counts = dict[bytes, frozenset[int]]

ABSENT = frozenset({0})


def body_of(msg_id: bytes) -> bytes:
    """The body of every message of this id: mostly short, sometimes of many times the size of a segment."""
    rng = random.Random(msg_id)
    size = rng.choice([0, rng.randint(1, 100), rng.randint(100, 600), rng.randint(600, 1500), rng.choice([40, 400, 9000])])
    return rng.randbytes(size)


@attrs.define
class Model:
    now: Counts = attrs.field(factory=dict)
    """In the open store."""
    kept: Counts = attrs.field(factory=dict)
    """On disk if the process is killed: every count since the last flush may be."""
    _removed: set[bytes] = attrs.field(factory=set)
    """What was removed since the last flush."""

    def copy(self) -> Model:
        return Model(dict(self.now), dict(self.kept), set(self._removed))

    def change(self, ids: Iterable[bytes], by: int, *, applied: bool | None = True) -> None:
        """``applied``: whether the change took effect; None if the call that failed did not say so."""
        for msg_id in ids:
            before = self.now.get(msg_id, ABSENT)
            after = frozenset(max(0, count + by) for count in before)
            self.now[msg_id] = before | after if applied is None else after if applied else before
            self.kept[msg_id] = self.kept.get(msg_id, ABSENT) | self.now[msg_id]
            if by < 0:
                self._removed.add(msg_id)

    def flushed(self) -> None:
        """A flush, or a close, has returned."""
        self.kept = dict(self.now)
        self._removed.clear()

    def killed(self) -> None:
        """What is on disk is what the next opening finds."""
        self.now = dict(self.kept)

    def told(self, ids: Iterable[bytes]) -> None:
        """A client was told that these are safe, whatever became of the flush."""
        for msg_id in ids:
            if msg_id not in self._removed:
                self.kept[msg_id] = self.kept.get(msg_id, ABSENT) - ABSENT or frozenset({1})

    def settle(self, found: Mapping[bytes, int]) -> None:
        """An opening without failures has chosen among what was allowed."""
        self.now = {msg_id: frozenset({count}) for msg_id, count in found.items()}
        self.flushed()

    @property
    def present(self) -> list[bytes]:
        """Ids that are certainly there, in the order of their first writes."""
        return [msg_id for msg_id, counts in self.now.items() if min(counts) > 0]


@attrs.frozen
class Cell:
    """What one store is made for, and run with."""

    seed: int
    phase: str
    index: str
    durability: str

    def rng(self, purpose: str) -> random.Random:
        """The same for all phases and indexes: what differs between them is their own."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def command(self) -> str:
        return f"python -m faults --seeds {self.seed} --phase {self.phase} --index {self.index} --durability {self.durability}"

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.phase}, {self.index}, {self.durability}"


@functools.cache
def catalogue() -> msgstore.Catalogue:
    return attrs.evolve(msgstore.load_catalogue(), observers=())  # who would be told in a thread, for each store


@attrs.define
class Run:
    """A store's directory with what has to be in it, and one failure or none."""

    cell: Cell
    path: Path
    keys: dict[str, Any]
    model: Model = attrs.field(factory=Model)
    forgotten: bool = False
    """Whether the next opening needs the counts: a killed process left the directory, and its index is not persistent."""
    injector: Injector = attrs.field(factory=Injector)
    killed: bool = False
    """How a store ends that is still open after the phase: killed, or closed."""
    problems: list[str] = attrs.field(factory=list)

    def open(self, files: Files | None = None, **keys: Any) -> msgstore.Store:
        """The counts that are passed are the highest that are allowed."""
        counts = [(msg_id, max(counts)) for msg_id, counts in self.model.kept.items() if max(counts)]
        keys = self.keys | keys
        return stores.open_with(self.path, catalogue(), files, refcounts=counts if self.forgotten else None, **keys)

    def attempt(self, what: str, call: Callable[[], object]) -> BaseException | None:
        """Returns what the call raised. Whatever is no error of ours is a problem."""
        try:
            call()
        except (msgstore.MsgStoreError, Interrupt) as error:
            if isinstance(error, msgstore.StoreIOError) and str(self.path) not in str(error):
                self.problems.append(f"the error of {what} does not name the store: {error}")
            return error
        except Exception as error:
            self.problems.append(f"{what} raised {type(error).__name__}, which is no error of msgstore: {error}")
            return error
        return None

    def compare(self, store: msgstore.Store, allowed: Counts, since: str) -> dict[bytes, int]:
        """The store has what is allowed, with its bytes. Returns id to count."""
        client = store.client()
        found = {entry.msg_id: entry.references for entry in store.entries()}
        found |= {msg_id: store.references(msg_id) for msg_id in allowed}
        found = {msg_id: count for msg_id, count in found.items() if count}
        self.problems += differences(allowed, found, since)
        for msg_id in found:
            try:
                if client.read(msg_id) != body_of(msg_id):
                    self.problems.append(f"message {msg_id.hex()[:8]}.. is there with other bytes")
            except msgstore.MsgStoreError as error:
                self.problems.append(f"message {msg_id.hex()[:8]}.. cannot be read: {error}")
        return found


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
            confirmed = " or ".join(map(str, sorted(counts)))
            end = f"is there with count {count}" if count else "is gone"
            said.append(f"{name} had count {confirmed} before {since} and {end}")
    return sorted(said)
