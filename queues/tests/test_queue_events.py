"""Observers get the events of vhosts and queues, on a thread of their own."""

from __future__ import annotations

import logging
import threading
import types

import attrs
import pytest

from msgstore.contract import StoreIOError
from msgstore_queues import catalogue, events, hookimpl
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.errors import QueueFailed, StoreFailed
from msgstore_queues.events import HOOKS, Observer
from queues_support import installed, open_on

LARGE = bytes(5000)


class Seen(list):
    """The events of all hooks, in order."""

    @property
    def observers(self):
        return tuple(Observer(hook, "a test", self.append) for hook in HOOKS)

    def kinds(self):
        return [type(event).__name__.removesuffix("Event") for event in self]

    def one(self, kind):
        (found,) = [event for event in self if type(event) is kind]
        return found


def opened(path, observers, **parts):
    return open_on(path, catalogue=attrs.evolve(installed(), observers=observers), parts=parts)


def test_events_follow_the_life_of_a_vhost(tmp_path):
    seen = Seen()
    with opened(tmp_path, seen.observers) as vhost:
        vhost.queue("jobs").publish(b"1")
        vhost.queue("other")
        vhost.delete("other")
        figures = vhost.statistics
    assert seen.kinds() == ["VHostOpened", "QueueDeclared", "QueueDeclared", "QueueDeleted", "VHostClosed"]
    assert {(event.vhost, event.directory) for event in seen} == {("/", vhost.directory)}
    assert figures() == {}
    for is_clean in (True, False):
        seen.clear()
        vhost = opened(tmp_path, seen.observers)
        vhost.queue("jobs")
        vhost.abandon()
        event = seen.one(events.VHostOpenedEvent)
        assert (event.is_clean, event.queues, event.messages) == (is_clean, 1, 1)
        assert seen.one(events.QueueDeclaredEvent).messages == 1


def test_events_of_failures_say_what_failed(tmp_path, monkeypatch):
    seen = Seen()
    with opened(tmp_path, seen.observers, clock=lambda: 0.0) as vhost:
        jobs = vhost.queue("jobs")
        jobs.publish(b"1", on_lost=lambda _: None)
        monkeypatch.setattr(jobs.backing, "write", lambda: fail(OSError("no space")))
        with pytest.raises(StoreIOError):
            vhost.flush()
        monkeypatch.setattr(jobs.backing, "write", lambda: 1 / 0)
        with pytest.raises(QueueFailed):
            vhost.flush()
        for _ in range(4):
            vhost.persistent._store.abandon()
            with pytest.raises(StoreFailed):
                jobs.publish(LARGE)
        vhost.start()
    assert seen.kinds() == [
        "VHostOpened", "QueueDeclared", "FlushFailed", "QueueRestarted", "FlushFailed",
        "VHostRestarted", "VHostRestarted", "VHostRestarted", "VHostDown", "VHostRestarted", "VHostClosed",
    ]  # fmt: skip
    restarted = seen.one(events.QueueRestartedEvent)
    assert (restarted.queue, restarted.messages, restarted.unconfirmed) == ("jobs", 0, 1)
    assert "ZeroDivisionError" in restarted.reason
    assert "no space" in seen[2].reason
    assert "the 4th failure" in seen.one(events.VHostDownEvent).reason


def fail(error):
    raise error


def test_lost_messages_are_an_event(tmp_path):
    seen = Seen()
    opened(tmp_path, ()).close()
    with opened(tmp_path, ()) as vhost:
        vhost.queue("jobs", backing={"use": "variable", "memory": 0}).publish(b"1")
        vhost.flush()
        path = next(vhost.directory.glob("queues/*/0.qs"))
    path.write_bytes(bytes(path.stat().st_size))
    with opened(tmp_path, seen.observers) as vhost:
        assert vhost.queue("jobs").take() is None
    lost = seen.one(events.MessagesLostEvent)
    assert (lost.queue, lost.messages) == ("jobs", 1)


def test_observer_that_raises_is_logged_and_counted(tmp_path, caplog):
    seen = Seen()
    broken = Observer("msgstore_queue_declared", "broken", lambda _: 1 / 0)
    with caplog.at_level(logging.ERROR), opened(tmp_path, (broken, *seen.observers)) as vhost:
        vhost.queue("jobs")
    assert vhost._events.failures == 1
    assert "msgstore_queue_declared of broken failed" in caplog.text
    assert seen.kinds() == ["VHostOpened", "QueueDeclared", "VHostClosed"]


def test_observer_of_a_plugin_is_registered(monkeypatch):
    @hookimpl
    def msgstore_vhost_down(event):
        return event

    @hookimpl
    def msgstore_vhost_closed():
        return "closed"

    plugin = types.SimpleNamespace(msgstore_vhost_down=msgstore_vhost_down, msgstore_vhost_closed=msgstore_vhost_closed)
    point = types.SimpleNamespace(name="acme", load=lambda: plugin)
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point])
    found = {one.hook: one for one in load_catalogue().observers if one.plugin == "acme"}
    assert found["msgstore_vhost_down"].call(1) == 1
    assert found["msgstore_vhost_closed"].call(1) == "closed"


def test_hook_that_returns_nothing_is_named(monkeypatch):
    @hookimpl
    def msgstore_backing_queues():
        pass

    plugin = types.SimpleNamespace(msgstore_backing_queues=msgstore_backing_queues)
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [types.SimpleNamespace(name="acme", load=lambda: plugin)])
    [broken] = load_catalogue().broken
    assert broken == "acme: msgstore_backing_queues returned None, and must return a list of descriptors"


def test_observer_may_use_the_vhost(tmp_path):
    """No lock is held while it is called."""
    found, done = [], threading.Event()

    def observe(event):
        found.append(event.queue)
        if event.queue == "jobs":
            vhost.queue("log").publish(b"jobs")
            vhost.flush()
            done.set()

    with opened(tmp_path, (Observer("msgstore_queue_declared", "a test", observe),)) as vhost:
        vhost.queue("jobs")
        assert done.wait(30)
        assert len(vhost.queue("log")) == 1
    assert found == ["jobs", "log"]


def test_statistics_count_what_queues_do(tmp_path):
    with opened(tmp_path, ()) as vhost:
        jobs = vhost.queue("jobs", dead_letter="failed")
        for _ in range(3):
            jobs.publish(b"12345")
        jobs.receive().ack()
        jobs.receive().nack()
        jobs.receive().nack(requeue=False)
        vhost.flush()
        assert vhost.statistics()["jobs"] == {
            "ready": 1, "unacked": 0, "bytes": 5, "published": 3, "acknowledged": 2, "redelivered": 1, "dead_lettered": 1,
            "restarts": 0,
        }  # fmt: skip
