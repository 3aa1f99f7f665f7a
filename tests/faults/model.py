"""What a store has to hold. For each message the set of counts that are allowed: one, unless a call failed half way."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import attrs

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

    def refcounts(self) -> list[tuple[bytes, int]]:
        """What an application passes to the opening of a store whose index forgets counts when it is killed."""
        return [(msg_id, max(counts)) for msg_id, counts in self.kept.items() if max(counts)]


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
