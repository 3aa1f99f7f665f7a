"""Where a collection works: the ledger, in turns so short that writers hardly notice, and what is written there."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.locks import is_owned
from msgstore.plugins.loader import Provider
from msgstore.scan import OpenFormat

_PATIENCE = 0.05
"""Seconds that a collection waits for its turn before it looks whether it should end instead."""


class CollectionPreempted(Exception):
    """Somebody who has ``flushing`` waits for the collection to end."""


class GcContext:
    """Of one open store. One collection at a time has it, inside ``collecting``, and takes ``flushing`` in turns.

    Others want the two in the other order: who closes the store, and a client that is told of its messages, and is told with
    ``flushing``, when it collects. For them a collection that is under way gives way: it ends at its next turn, wherever it
    is. What it leaves is what any failure would leave, whole and readable. So whoever waits for a collection with ``flushing``
    says ``now``, and a collection never waits for ``flushing`` but in turns.
    """

    def __init__(
        self, ledger: LiveAccounting, form: OpenFormat, size_limit: int, index_name: str, index_provider: Provider | None
    ) -> None:
        self.ledger = ledger
        self.segments = ledger.segments
        self.index = ledger.index
        self.form = form
        """What copies are written in."""
        self.size_limit = size_limit
        self.index_name = index_name
        self.index_provider = index_provider
        """The distribution that it comes from."""
        self.held = threading.RLock()
        """Inside ``collecting`` and ``ended``."""
        self.collects = False
        """Whether who has ``held`` is inside ``collecting``."""
        self.waiting: set[object] = set()
        """One for each that wants a collection to end."""

    def collecting(self, *, now: bool) -> AbstractContextManager[None]:
        """Inside, nobody else collects. ``now``: a collection that is under way ends before what it would have done next.

        Raises RuntimeError on a thread that is inside already: a progress callback, for one."""
        return _Alone(self, now=now, collecting=True)

    def ended(self) -> AbstractContextManager[None]:
        """Inside, nothing is collected; one may be inside several times. A collection that is under way ends before what it
        would have done next. Raises RuntimeError on the thread that collects."""
        return _Alone(self, now=True, collecting=False)

    @property
    def mine(self) -> bool:
        """Whether the calling thread is inside ``collecting`` or ``ended``."""
        return is_owned(self.held)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for this collection to end."""
        return bool(self.waiting)

    def turn(self) -> AbstractContextManager[None]:
        """With ``flushing``: nobody appends, seals, deletes or commits. Raises CollectionPreempted."""
        return _Turn(self)

    def commit(self) -> None:
        """Everything that is so now is so on disk, but not ahead of the records that the index speaks of."""
        with self.turn():
            self.segments.sync_written()
            self.ledger.commit()


class _Alone(AbstractContextManager[None]):
    """No generator, as ``_Turn`` is none: see :class:`msgstore.engine.state.locks.release_on_exit`."""

    def __init__(self, site: GcContext, *, now: bool, collecting: bool) -> None:
        self._site = site
        self._now = now
        self._collecting = collecting

    def __enter__(self) -> None:
        site = self._site
        if site.collects and is_owned(site.held):
            raise RuntimeError(f"{site.segments.directory}: a progress callback can neither collect nor close its store")
        try:
            if self._now:
                site.waiting.add(self)
            site.held.acquire()
        finally:
            site.waiting.discard(self)
        site.collects = self._collecting

    def __exit__(self, *_: object) -> None:
        self._site.collects = False
        self._site.held.release()


class _Turn(AbstractContextManager[None]):
    def __init__(self, site: GcContext) -> None:
        self._site = site

    def __enter__(self) -> None:
        while not self._site.ledger.flushing.acquire(timeout=_PATIENCE):
            if self._site.waiting:
                raise CollectionPreempted

    def __exit__(self, *_: object) -> None:
        self._site.ledger.flushing.release()
