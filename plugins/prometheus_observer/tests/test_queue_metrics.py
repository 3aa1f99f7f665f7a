"""Metrics of queues, read back from a registry."""

from __future__ import annotations

import attrs
import pytest
from prometheus_client import CollectorRegistry

import msgstore
from msgstore.contract import StoreIOError
from msgstore_prometheus_observer import queues
from msgstore_prometheus_observer.queue_metrics import COUNTERS, GAUGES, QueueMetrics
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.errors import StoreFailed
from msgstore_queues.events import HOOKS, MessagesLostEvent, Observer
from msgstore_queues.options import VHostOptions
from msgstore_queues.vhost import VHost


@pytest.fixture
def registry(monkeypatch):
    registry = CollectorRegistry()
    monkeypatch.setattr(queues, "_instances", [QueueMetrics(registry)])
    return registry


def opened(path):
    hooks = [Observer(hook, "a test", getattr(queues, hook)) for hook in HOOKS if hasattr(queues, hook)]
    catalogue = attrs.evolve(load_catalogue(), observers=tuple(hooks))
    return VHost(path, "/", VHostOptions(), catalogue, where="a test", open_store=msgstore.open_store)


def test_queue_metrics_have_figures_of_open_vhosts(registry, tmp_path):
    with opened(tmp_path) as vhost:
        jobs = vhost.queue("jobs", dead_letter="failed")
        for _ in range(4):
            jobs.publish(b"12345")
        jobs.receive().nack()
        jobs.receive().ack()
        jobs.receive().nack(requeue=False)
        jobs.receive()
        vhost.flush()
        labels = {"path": str(vhost.directory), "vhost": "/", "queue": "jobs"}
        await_events(vhost)
        found = {name: registry.get_sample_value(metric, labels) for name, (metric, _) in GAUGES.items()}
        found |= {name: registry.get_sample_value(f"{metric}_total", labels) for name, (metric, _) in COUNTERS.items()}
    assert found == {
        "ready": 1, "unacked": 1, "bytes": 5, "published": 4, "acknowledged": 2, "redelivered": 1, "dead_lettered": 1,
        "restarts": 0,
    }  # fmt: skip
    assert registry.get_sample_value("msgstore_queue_ready_messages", labels) is None


def await_events(vhost):
    """Wait until all events so far have been passed on."""
    vhost._events.stop()
    vhost._events._thread = None


def test_failures_are_counted_by_vhost(registry, tmp_path, monkeypatch):
    vhost = opened(tmp_path)
    labels = {"path": str(vhost.directory), "vhost": "/"}
    jobs = vhost.queue("jobs")
    for _ in range(4):
        vhost.persistent._store.abandon()
        with pytest.raises(StoreFailed):
            jobs.publish(bytes(5000))
    vhost.start()
    jobs.publish(b"1")
    monkeypatch.setattr(jobs.backing, "write", lambda: (tmp_path / "absent").read_bytes())
    with pytest.raises(StoreIOError):
        vhost.flush()
    vhost.abandon()
    queues.msgstore_queue_messages_lost(
        MessagesLostEvent(vhost="/", directory=vhost.directory, queue="jobs", messages=2, reason="")
    )
    found = [
        registry.get_sample_value(f"msgstore_vhost_{name}_total", labels) for name in ("restarts", "downs", "flush_failures")
    ]
    assert found == [4, 1, 1]
    assert registry.get_sample_value("msgstore_queue_lost_messages_total", {**labels, "queue": "jobs"}) == 2
