"""The kit finds observers that raise, take their time, or do not return, and passes one without a fault."""

from __future__ import annotations

import threading
import time

import pytest

from msgstore.contract.events import StoreClosedEvent
from msgstore.engine import events as announcing
from msgstore.plugins.catalogue import load_catalogue
from msgstore.plugins.loader import EVENT_HOOKS, Observer, Provider
from msgstore.testing import observers
from msgstore.testing.observers import ObserverTests
from msgstore.testing.subjects import OBSERVER, Subject


def subject(call):
    """An observer that is told of everything."""
    mine = Provider("mine", "1", "mine", "mine")
    observed = tuple(Observer(hook, call, mine) for hook in EVENT_HOOKS)
    return Subject(kind=OBSERVER, name="mine", catalogue=load_catalogue(), observers=observed, provider=mine)


def test_observer_without_fault_is_told_of_everything(tmp_path):
    told = []
    mine = subject(told.append)
    ObserverTests().test_events_of_each_kind(mine)
    ObserverTests().test_stores_at_once_in_any_order(mine)
    ObserverTests().test_a_store_is_observed(mine, tmp_path)
    assert {type(event) for event in told} == set(EVENT_HOOKS.values())


def test_observer_that_raises_fails(tmp_path):
    def call(event):
        raise KeyError("seconds")

    with pytest.raises(KeyError):
        ObserverTests().test_events_of_each_kind(subject(call))
    with pytest.raises(AssertionError, match="KeyError"):
        ObserverTests().test_a_store_is_observed(subject(call), tmp_path)


def test_observer_that_waits_once_fails(monkeypatch):
    """As one that connects when it is first called. What it waits for is no processor time."""
    monkeypatch.setattr(observers, "SOON", 0.01)
    seconds = iter([0.02])
    with pytest.raises(AssertionError, match="takes its time"):
        ObserverTests().test_events_of_each_kind(subject(lambda event: time.sleep(next(seconds, 0))))


def test_observer_that_does_not_return_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(announcing, "CLOSE_TIMEOUT_SECONDS", 0.05)
    comes_back = threading.Event()

    def call(event):
        if isinstance(event, StoreClosedEvent):
            comes_back.wait(30)

    try:
        with pytest.raises(AssertionError, match="still running"):
            ObserverTests().test_a_store_is_observed(subject(call), tmp_path)
    finally:
        comes_back.set()
