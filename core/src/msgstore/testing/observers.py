"""Tests of observers: they take every event of their kind, soon, on any thread. See :mod:`msgstore.contract.events`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import attrs

from msgstore.contract import events
from msgstore.engine.events import CLOSE_TIMEOUT_SECONDS
from msgstore.plugins.loader import EVENT_HOOKS, Observer
from msgstore.testing.plugin import KitTests
from msgstore.testing.stores import StoreFactory
from msgstore.testing.subjects import Subject

SOON = 1.0
"""Seconds. A store that is closed waits five for all that is left to be told."""
STATISTICS = dict.fromkeys((
    "messages", "pending", "segments", "bytes_on_disk", "live_bytes", "garbage_bytes", "quarantined", "written_messages",
    "written_bytes", "removed_messages", "flushes", "callback_failures", "observer_failures", "dropped_messages",
), 3)  # fmt: skip
RECOVERY = {
    "how": "rebuild", "scanned": ["0.sqs", "1.sqs"], "hinted": ["2.sqs"], "entered": 7, "garbage": 2, "missing": 1,
    "damaged": ["1.sqs at 40"],
}  # fmt: skip
FORMS: dict[str, tuple[Any, ...]] = {
    "mode": ("rw", "r"), "index": ("ets",), "format": ("v2",), "file": ("0.sqs",), "recovery": (RECOVERY,),
    "statistics": (STATISTICS.copy, dict),  # empty once the store is closed
    "how": ("closed", "abandoned"), "offset": (40, None), "reason": ("invalid_message_size", "it is 8 days old"),
    "outcome": get_args(events.CollectionOutcome), "skipped": (None, "it is being read"), "seconds": (0.25,),
    "options": ({},),
}  # fmt: skip
"""Member of an event to the forms that it has; all others are numbers."""


def life_of(store: Path) -> Iterator[events.Event]:
    """Everything that is announced of a store, each kind in the forms that it has."""
    for kind in sorted(EVENT_HOOKS.values(), key=lambda kind: kind is events.StoreClosedEvent):
        forms = {member.name: FORMS.get(member.name, (5,)) for member in attrs.fields(kind) if member.name != "store"}
        for number in range(max(map(len, forms.values()))):
            yield kind(store=store, **{name: given[number % len(given)] for name, given in forms.items()})


class ObserverTests(KitTests):
    kinds = ("observer",)

    def test_events_of_each_kind(self, subject: Subject) -> None:
        """A failure means that a hook raises for an event as stores send it, or takes its time. What it raises is logged and
        counted, and the event is lost for that observer; events that wait for it are given up when there are too many."""
        for event in life_of(Path("/data/orders")):
            before, begin = attrs.asdict(event, recurse=False), time.perf_counter()
            tell(subject, [event])
            assert time.perf_counter() - begin < SOON, f"an observer of {type(event).__name__} takes its time"
            assert attrs.asdict(event, recurse=False) == before

    def test_stores_at_once_in_any_order(self, subject: Subject) -> None:
        """A failure means that events of two stores meet, or that the observer relies on a table of open stores. Each store has
        a thread of its own. A store may be open twice, for reading next to its writer, and be closed after a failed opening."""
        tell(subject, reversed([*life_of(Path("/data/orders"))]))
        with ThreadPoolExecutor(8) as pool:
            for job in [pool.submit(tell, subject, life_of(Path(f"/data/{n % 4}"))) for n in range(40)]:
                job.result(timeout=30)

    def test_a_store_is_observed(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that the events of a real store's life are too much for it, or that they were not all taken in the
        time that a store has for them when it is closed."""
        calls: list[str | None] = []

        def watched(observer: Observer) -> Observer:
            def call(event: events.Event) -> None:
                calls.append("still running")
                try:
                    observer.call(event)
                    calls[-1] = None
                except BaseException as error:
                    calls[-1] = f"{observer.hook}: {error!r}"

            return attrs.evolve(observer, call=call)

        observed = attrs.evolve(subject, observers=tuple(watched(observer) for observer in subject.observers))
        for _ in range(2):
            store = StoreFactory(observed, tmp_path).open(file_size_limit=600)
            with store.client() as client:
                for n in range(1, 40):
                    client.write(bytes([n]) * 16, bytes(n))
                store.flush()
                client.remove([bytes([n]) * 16 for n in range(1, 40) if n % 3])
            store.compact(everything=True)
            store.close()
            failed = [call for call in calls if call]
            assert not failed, f"{failed}: a store that is closed waits {CLOSE_TIMEOUT_SECONDS:g} s for its observers"


def tell(subject: Subject, life: Iterator[events.Event] | list[events.Event]) -> None:
    for event in life:
        for observer in subject.observers:
            if isinstance(event, EVENT_HOOKS[observer.hook]):
                observer.call(event)
