"""Where a collection works: the ledger, in turns so short that writers hardly notice, and what is written there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from msgstore.engine.ledger import Ledger
from msgstore.scan import OpenFormat

_PATIENCE = 0.05
"""Seconds that a collection waits for its turn before it looks whether it should end instead."""


class GiveWay(Exception):
    """Somebody who has ``flushing`` waits for the collection to end."""


class Site:
    """Of one open store. One collection at a time has it, inside ``collecting``, and takes ``flushing`` in turns.

    Others want the two in the other order: who closes the store, and a client that is told of its messages, and is told with
    ``flushing``, when it collects. For them a collection that is under way gives way: it ends at its next turn, wherever it
    is. What it leaves is what any failure would leave, whole and readable. So whoever waits for a collection with ``flushing``
    says ``now``, and a collection never waits for ``flushing`` but in turns.
    """

    def __init__(self, ledger: Ledger, form: OpenFormat, size_limit: int) -> None:
        self.ledger = ledger
        self.segments = ledger.segments
        self.index = ledger.index
        self.form = form
        """What copies are written in."""
        self.size_limit = size_limit
        self._held = threading.RLock()
        self._collecting = False
        self._wanted: list[None] = []

    @contextlib.contextmanager
    def collecting(self, *, now: bool) -> Iterator[None]:
        """Inside, nobody else collects. ``now``: a collection that is under way ends before what it would have done next."""
        with self.ended(now=now):
            self._collecting = True
            try:
                yield
            finally:
                self._collecting = False

    @contextlib.contextmanager
    def ended(self, *, now: bool = True) -> Iterator[None]:
        """Inside, nothing is collected; one may be inside several times. Arguments as of ``collecting``."""
        if now:
            self._wanted.append(None)  # and pop: atomic, as += is not
        try:
            self._held.acquire()
        finally:
            if now:
                self._wanted.pop()
        try:
            if self._collecting:
                raise RuntimeError(f"{self.segments.directory}: a progress callback can neither collect nor close its store")
            yield
        finally:
            self._held.release()

    @property
    def mine(self) -> bool:
        """Whether the calling thread is inside ``collecting`` or ``ended``."""
        return self._held._is_owned()  # type: ignore[attr-defined, no-any-return]  # what Condition asks it, too

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for this collection to end."""
        return bool(self._wanted)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """With ``flushing``: nobody appends, seals, deletes or commits. Raises GiveWay."""
        while not self.ledger.flushing.acquire(timeout=_PATIENCE):
            if self._wanted:
                raise GiveWay
        try:
            yield
        finally:
            self.ledger.flushing.release()

    def commit(self) -> None:
        """Everything that is so now is so on disk, but not ahead of the records that the index speaks of."""
        with self.turn():
            self.segments.sync_written()
            self.ledger.commit()
