"""Metrics from events and from statistics, read back from prometheus_client's text format."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import msgstore
from msgstore.contract import events
from msgstore_prometheus_observer import plugin
from msgstore_prometheus_observer.metrics import COUNTERS, GAUGES, Metrics
from support import until

README = Path(__file__).parents[1] / "README.md"
STORE = Path("/data/orders")
NUMBERS = {name: number for number, name in enumerate([*GAUGES, *COUNTERS], 1)}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(registry: CollectorRegistry, store: Path = STORE) -> Samples:
    """(name, labels but store) to value, of what is said about ``store``."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("store", None) == str(store):
                key = sample.name, tuple(sorted(labels.items()))
                assert key not in found, "said twice"
                found[key] = sample.value
    return found


def opened(statistics: dict[str, int], mode: str = "rw", how: str = "trust") -> events.StoreOpenedEvent:
    recovery = {"how": how}
    return events.StoreOpenedEvent(
        store=STORE, mode=mode, index="ets", format="v2", recovery=recovery, statistics=lambda: statistics
    )


def collected(outcome: events.CollectionOutcome = "compacted", skipped: str | None = None) -> events.CollectionFinishedEvent:
    return events.CollectionFinishedEvent(
        store=STORE, file="3.sqs", outcome=outcome, size_before=1000, size_after=1000 if skipped else 400, moved_records=2,
        moved_bytes=70, written=85, seconds=0.3, skipped=skipped,
    )  # fmt: skip


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def test_statistics_of_open_stores(registry, metrics):
    statistics = dict(NUMBERS)
    metrics.store_opened(opened(statistics))
    found = samples(registry)
    for name, (metric, _) in GAUGES.items():
        assert found[metric, ()] == NUMBERS[name]
    for name, (metric, _) in COUNTERS.items():
        assert found[metric + "_total", ()] == NUMBERS[name]
    assert found["msgstore_openings_total", (("how", "trust"),)] == 1
    assert found["msgstore_segments_rolled_total", ()] == found["msgstore_corruptions_total", ()] == 0
    metrics.store_opened(opened({**NUMBERS, "messages": 77}, mode="r", how="tail"))  # a directory that is open twice
    statistics["messages"] = 76
    assert samples(registry)["msgstore_messages", ()] == 76
    statistics.clear()
    assert samples(registry)["msgstore_messages", ()] == 77
    metrics.store_closed(events.StoreClosedEvent(store=STORE, how="closed"))
    assert samples(registry)["msgstore_openings_total", (("how", "trust"),)] == 1


def test_what_events_tell(registry, metrics):
    recovery = {"how": "rebuild"}
    metrics.recovery_finished(events.RecoveryFinishedEvent(store=STORE, recovery=recovery, seconds=1.5))
    for file in ("0.sqs", "1.sqs"):
        metrics.segment_rolled(events.SegmentRolledEvent(store=STORE, file=file, format="v2"))
        metrics.segment_deleted(events.SegmentDeletedEvent(store=STORE, file=file, size=4000))
    metrics.corruption_found(events.CorruptionFoundEvent(store=STORE, file="2.sqs", offset=None, reason="checksum_mismatch"))
    metrics.collection_finished(collected())
    metrics.collection_finished(collected(skipped="it is damaged"))
    metrics.collection_finished(collected("migrated"))
    metrics.messages_dropped(events.MessagesDroppedEvent(store=STORE, file="0.sqs", messages=12, bytes=1200, reason="old"))
    found = samples(registry)
    compact, migrate = (("action", "compacted"),), (("action", "migrated"),)
    expected = {
        ("msgstore_recovery_seconds_count", ()): 1,
        ("msgstore_recovery_seconds_sum", ()): 1.5,
        ("msgstore_recovery_seconds_bucket", (("le", "0.5"),)): 0,
        ("msgstore_recovery_seconds_bucket", (("le", "2.0"),)): 1,
        ("msgstore_segments_rolled_total", ()): 2,
        ("msgstore_segments_deleted_total", ()): 2,
        ("msgstore_deleted_bytes_total", ()): 8000,
        ("msgstore_corruptions_total", ()): 1,
        ("msgstore_collection_seconds_count", compact): 2,
        ("msgstore_collection_seconds_sum", compact): 0.6,
        ("msgstore_collection_seconds_count", migrate): 1,
        ("msgstore_collections_skipped_total", compact): 1,
        ("msgstore_collections_skipped_total", migrate): 0,
        ("msgstore_collection_moved_bytes_total", compact): 140,
        ("msgstore_collection_written_bytes_total", compact): 170,
        ("msgstore_collection_freed_bytes_total", compact): 600,
        ("msgstore_dropped_messages_total", ()): 12,
        ("msgstore_dropped_bytes_total", ()): 1200,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_store_of_ones_own(tmp_path):
    """The plugin as it is installed, and the registry that applications serve."""
    pytest.importorskip("msgstore_ets_index")
    pytest.importorskip("msgstore_format_v2")
    with msgstore.open_store(tmp_path) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, b"body") for n in range(10))
        store.roll()
        client.remove([bytes([n]) * 16 for n in range(3)])
        store.flush()
        store.compact(everything=True)
        key = "msgstore_collection_seconds_count", (("action", "compacted"),)
        until(lambda: key in samples(REGISTRY, tmp_path))  # observers are called on another thread
        found, stats = samples(REGISTRY, tmp_path), store.stats()
        assert found[key] == 1
        assert found["msgstore_messages", ()] == 7
        assert found["msgstore_written_messages_total", ()] == 10
        assert found["msgstore_removed_messages_total", ()] == 3
        assert found["msgstore_disk_bytes", ()] == stats.bytes_on_disk
        assert found["msgstore_observer_failures_total", ()] == 0
    found = samples(REGISTRY, tmp_path)
    assert ("msgstore_messages", ()) not in found
    assert found["msgstore_openings_total", (("how", "new"),)] == 1


def test_installed_plugin_is_light_and_implements_every_hook():
    code = "import msgstore, sys; msgstore.load_catalogue(); assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    observed = {found.hook for found in msgstore.load_catalogue().observers if found.provider.value == plugin.__name__}
    assert len(observed) == 8


def test_every_metric_is_explained(registry, metrics):
    text = README.read_text(encoding="utf-8")
    metrics.store_opened(opened(NUMBERS))
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if not family.name.endswith("_created")
    }
    assert len(names) >= 24
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_first_events_of_two_stores_may_come_at_once(monkeypatch):
    """The metrics are made once, though the second thread asks while the first one makes them."""
    made, again = [], []

    def make(registry: object) -> str:
        made.append(registry)
        other = threading.Thread(target=lambda: again.append(plugin.metrics()))
        other.start()
        other.join(0.05)  # it waits for this thread, or makes its own
        return "metrics"

    monkeypatch.setattr(plugin, "_instances", [])
    monkeypatch.setattr(
        "msgstore_prometheus_observer.metrics.Metrics", lambda registry: make(registry) if len(made) < 2 else ""
    )
    assert plugin.metrics() == "metrics"
    assert len(made) == 1
