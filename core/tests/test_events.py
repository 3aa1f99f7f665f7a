"""Events: when they fire, on which thread, and that no observer can do harm. Counters. Log records."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import msgstore
from msgstore import hookimpl
from msgstore.config import store_config
from msgstore.contract import BrokenPlugin, IndexDescriptor, StoreIOError, UnknownPlugin, events
from msgstore.engine.events import event_dispatcher as announcing
from msgstore.engine.events.event_dispatcher import EventDispatcher
from msgstore.engine.events.telemetry import Telemetry
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import EVENT_HOOKS, Loaded, Observer, Provider, find_entry_points, load

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
ACME = Provider("acme-watch", "1.0", "watch", "acme_watch")
IDS = [bytes([n]) * 16 for n in range(100)]


class Recorder:
    """Observes everything."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self.threads: set[str] = set()

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def observing(call: Callable[[events.Event], object], *hooks: str) -> Catalogue:
    observers = tuple(Observer(hook, call, ACME) for hook in hooks or EVENT_HOOKS)
    return attrs.evolve(load_catalogue(), observers=observers)


def open_observed(path: Path, catalogue: Catalogue, files: Files | None = None, **keys: Any) -> msgstore.Store:
    mode = keys.pop("mode", "rw")
    config = store_config({"path": path, **keys}, "test", Path())
    return open_configured(config, catalogue, mode=mode, files=files)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_store_life_fires_its_events(tmp_path: Path, recorder: Recorder) -> None:
    keys = {"file_size_limit": "8KiB", "gc_interval": 0}
    with open_observed(tmp_path, observing(recorder), **keys) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:16])
        store.roll()
        client.remove(IDS[:15])
        store.flush()
        (collected,) = store.compact(everything=True)
    kinds = [type(event) for event in recorder.events]
    assert kinds[0] is events.StoreOpenedEvent
    assert kinds[-1] is events.StoreClosedEvent
    assert kinds.count(events.SegmentRolledEvent) == 2
    assert [event.file for event in recorder.of(events.SegmentRolledEvent)] == ["0.sqs", "1.sqs"]
    assert [(e.file, e.size) for e in recorder.of(events.SegmentDeletedEvent)] == [("0.sqs", 64 + 8 * 1021)]
    (found,) = recorder.of(events.CollectionFinishedEvent)
    assert attrs.asdict(collected).items() <= attrs.asdict(found).items()
    assert (found.outcome, found.skipped) == ("compacted", None)
    assert 0 < found.seconds < 60
    assert all(event.store == tmp_path for event in recorder.events)
    assert recorder.threads == {f"msgstore-observers {tmp_path}"}
    (opened,) = recorder.of(events.StoreOpenedEvent)
    assert (opened.mode, opened.index, opened.format, opened.recovery["how"]) == ("rw", "ets", "v2", "new")
    assert recorder.of(events.StoreClosedEvent)[0].how == "closed"


def test_messages_fire_no_events(tmp_path: Path, recorder: Recorder) -> None:
    with open_observed(tmp_path, observing(recorder)) as store, store.client() as client:
        client.write_many((n.to_bytes(16, "big"), b"body") for n in range(10_000))
        store.flush()
        for n in range(10_000):
            client.read(n.to_bytes(16, "big"))
            client.remove([n.to_bytes(16, "big")])
    assert [type(event) for event in recorder.events] == [
        events.StoreOpenedEvent,
        events.SegmentRolledEvent,
        events.StoreClosedEvent,
    ]


def test_dirty_start_fires_recovery_finished(tmp_path: Path, recorder: Recorder) -> None:
    store = msgstore.open_store(tmp_path)
    store.client().write(IDS[1], b"body")
    store.flush()
    store.abandon()
    with (tmp_path / "0.sqs").open("ab") as stream:
        stream.write(b"\3\0\0\1")
    open_observed(tmp_path, observing(recorder), mode="r").abandon()
    recovered, opened, closed = recorder.events
    assert isinstance(recovered, events.RecoveryFinishedEvent)
    assert isinstance(opened, events.StoreOpenedEvent)
    assert recovered.recovery == opened.recovery
    assert (opened.recovery["how"], opened.recovery["scanned"], opened.recovery["entered"]) == ("rebuild", ["0.sqs"], 1)
    assert opened.recovery["damaged"] == ["0.sqs at offset 89: torn"]
    assert recovered.seconds > 0
    assert closed == events.StoreClosedEvent(store=tmp_path, how="abandoned")


def test_damage_event_fires_once_per_offset(tmp_path: Path, recorder: Recorder) -> None:
    with open_observed(tmp_path, observing(recorder), record="checksum") as store, store.client() as client:
        client.write_many((msg_id, b"body" + msg_id) for msg_id in IDS[:10])
        store.roll()
        client.remove(IDS[5:10])
        store.flush()
        path = tmp_path / "0.sqs"
        data = bytearray(path.read_bytes())
        data[data.index(b"body" + IDS[2])] ^= 1
        path.write_bytes(data)
        for _ in range(3):
            with pytest.raises(msgstore.CorruptRecord) as caught:
                client.read(IDS[2])
        assert store.compact(everything=True)[0].skipped
        counters = store.stats().counters
    read, collected = recorder.of(events.CorruptionFoundEvent)
    assert (read.file, read.offset, read.reason) == ("0.sqs", caught.value.offset, "checksum_mismatch")
    assert (collected.file, collected.offset) == ("0.sqs", None)
    assert "checksum_mismatch" in collected.reason
    assert (counters.corruptions, counters.collections) == (2, 0)
    assert recorder.of(events.CollectionFinishedEvent)[0].skipped == collected.reason


def test_damage_found_at_opening_fires_event(tmp_path: Path, recorder: Recorder) -> None:
    shutil.copy(DATA / "v2_corrupt" / "type0_byte" / "0.sqs", tmp_path)
    with open_observed(tmp_path, observing(recorder), adopt=True) as store:
        assert store.stats().counters.corruptions == 1
    (found,) = recorder.of(events.CorruptionFoundEvent)
    assert f"0.sqs at offset {found.offset}: {found.reason}" in recorder.of(events.RecoveryFinishedEvent)[0].recovery["damaged"]


def test_migration_fires_collection_finished(tmp_path: Path, recorder: Recorder) -> None:
    copy = shutil.copytree(DATA / "mixed_upgrade" / "store", tmp_path / "store")
    open_observed(copy, observing(recorder), adopt=True, on_legacy="migrate").close()
    found = recorder.of(events.CollectionFinishedEvent)
    assert [(event.file, event.outcome, event.size_after) for event in found] == [
        ("0.rdq", "migrated", 0),
        ("1.rdq", "migrated", 0),
    ]
    assert [event.file for event in recorder.of(events.SegmentDeletedEvent)] == ["0.rdq", "1.rdq"]
    assert all(not event.file.endswith(".tmp") for event in recorder.of(events.SegmentRolledEvent))


def test_dropped_messages_fire_event(tmp_path: Path, recorder: Recorder) -> None:
    telemetry = Telemetry(tmp_path, [Observer(hook, recorder, ACME) for hook in EVENT_HOOKS])
    telemetry.dropped("7.sqs", 3, 300, "older than 1d")
    telemetry.closed("closed")
    telemetry.dispatcher.wait()
    assert recorder.events[0] == events.MessagesDroppedEvent(
        store=tmp_path, file="7.sqs", messages=3, bytes=300, reason="older than 1d"
    )
    assert telemetry.counters.dropped_messages == 3


# -- observers that misbehave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_observer_raising_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    told = threading.Event()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.SegmentDeletedEvent):
            told.set()
        raise error

    with open_observed(tmp_path, observing(observe), gc_interval=0) as store, store.client() as client:
        client.write(IDS[0], b"body")
        store.roll()
        client.remove([IDS[0]])
        store.flush()
        assert told.wait(10)
        assert store.stats().observer_failures >= 2  # the last one may not have been counted yet
    assert store._segments.telemetry.dispatcher.failures == 4
    records = [record for record in caplog.records if record.name == "msgstore.observers"]
    assert len(records) == 4
    assert "msgstore_store_opened of acme-watch 1.0 (entry point 'watch = acme_watch') failed" in records[0].getMessage()
    assert records[0].exc_info is not None
    assert records[0].exc_info[1] is error


def test_observer_using_the_store_never_deadlocks(tmp_path: Path) -> None:
    """No lock is held while an observer runs."""
    seen: list[object] = []
    stores: list[msgstore.Store] = []

    def observe(event: events.Event) -> None:
        try:
            with stores[0].client() as client:
                client.write(IDS[50], b"from an observer")
                seen.append(client.read(IDS[50]))
                client.remove([IDS[50]])
                client.delete_and_close()  # closing it would flush
        except msgstore.StoreClosed:
            seen.append("closed")

    hooks = [hook for hook in EVENT_HOOKS if hook != "msgstore_store_opened"]
    store = open_observed(tmp_path, observing(observe, *hooks), file_size_limit="4KiB")
    stores.append(store)
    with store, store.client() as client:
        client.write_many((msg_id, bytes(500)) for msg_id in IDS[:40])
        store.roll()
        client.remove(IDS[:30])
        store.flush()
        store.compact(everything=True)
    assert len(seen) > 8
    assert seen[-1] == "closed"


@pytest.mark.parametrize("call", ["close", "flush", "roll", "compact", "migrate"])
def test_observer_calling_change_raises_runtimeerror(call: str, tmp_path: Path) -> None:
    stores: list[msgstore.Store] = []
    raised: SimpleQueue[Exception] = SimpleQueue()

    def observe(event: events.SegmentRolledEvent) -> None:
        try:
            getattr(stores[0], call)()
        except RuntimeError as error:
            raised.put(error)

    with open_observed(tmp_path, observing(observe, "msgstore_segment_rolled")) as store:  # type: ignore[arg-type]
        stores.append(store)
        store.client().write(IDS[0], b"body")
        store.flush()
        assert f"{call}() was called in a callback" in str(raised.get(timeout=10))


def test_observer_hanging_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcing, "CLOSE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(announcing, "MAX_WAITING", 3)
    hanging, go_on = threading.Event(), threading.Event()

    def observe(event: events.Event) -> None:
        hanging.set()
        go_on.wait()

    dispatcher = EventDispatcher(tmp_path, [Observer("msgstore_segment_deleted", observe, ACME)])
    dispatcher.publish(events.SegmentDeletedEvent(store=tmp_path, file="0.sqs", size=1))
    assert hanging.wait(10)
    for _ in range(5):
        dispatcher.publish(events.SegmentDeletedEvent(store=tmp_path, file="0.sqs", size=1))
    assert dispatcher.failures == 2
    dispatcher.finish()
    dispatcher.wait()
    assert "has not returned within 0.05 s" in caplog.text
    go_on.set()


def test_store_without_observers_has_no_thread(tmp_path: Path) -> None:
    with open_observed(tmp_path, attrs.evolve(load_catalogue(), observers=())):
        assert not [thread for thread in threading.enumerate() if thread.name == f"msgstore-observers {tmp_path}"]


def test_observer_thread_ends_with_the_store(tmp_path: Path, recorder: Recorder) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == f"msgstore-observers {tmp_path}"]

    store = open_observed(tmp_path, observing(recorder))
    store.client().write(IDS[0], b"body")
    store.flush()
    assert threads() == [f"msgstore-observers {tmp_path}"]
    store.abandon()
    assert threads() == []

    class Full(Files):
        def write_file(self, path: Path, chunks: object, *, sync: bool) -> None:
            raise OSError(28, "No space left on device", str(path))

    (tmp_path / "msgstore.json").unlink()
    with pytest.raises(msgstore.StoreError, match="cannot be opened"):
        open_observed(tmp_path, observing(recorder), Full(), adopt=True)
    assert threads() == []
    assert [type(event) for event in recorder.events[-1:]] == [events.RecoveryFinishedEvent]


def test_store_not_saved_fires_closed_once(tmp_path: Path, recorder: Recorder) -> None:
    class NoRename(Files):
        def replace(self, source: Path, target: Path) -> None:
            if target.name == "clean.dot":
                raise OSError(5, "Input/output error", str(target))
            super().replace(source, target)

    store = open_observed(tmp_path, observing(recorder), NoRename())
    with pytest.raises(StoreIOError):
        store.close()
    store.close()
    assert [type(event) for event in recorder.events] == [events.StoreOpenedEvent, events.StoreClosedEvent]


# -- statistics -----------------------------------------------------------------------------------------------------------


def test_opened_event_statistics_follow_the_store(tmp_path: Path, recorder: Recorder) -> None:
    with open_observed(tmp_path, observing(recorder)) as store, store.client() as client:
        client.write_many((msg_id, b"body") for msg_id in IDS)
        store.flush()
        while not recorder.events:  # it is told on another thread
            time.sleep(0.001)
        (opened,) = recorder.of(events.StoreOpenedEvent)
        numbers = opened.statistics()
        assert numbers["flushes"] == 1
        assert numbers["messages"] == numbers["written_messages"] == 100
        assert numbers["live_bytes"] == numbers["written_bytes"] == 100 * 25
        assert all(type(value) is int for value in numbers.values())
    assert opened.statistics() == {}


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_counters_after_changes_are_exact(tmp_path: Path, index: str) -> None:
    with msgstore.open_store(tmp_path, index=index) as store, store.client() as client:
        client.write_many((msg_id, b"body") for msg_id in IDS[:10])
    keys = {"file_size_limit": "4KiB", "sync_interval": "1h", "gc_interval": 0}
    with msgstore.open_store(tmp_path, index=index, **keys) as store, store.client() as client:
        assert attrs.asdict(store.stats().counters) == dict.fromkeys(attrs.asdict(store.stats().counters), 0)
        client.write(IDS[20], b"never on disk")
        client.remove([IDS[20]])
        client.write_many((msg_id, bytes(479)) for msg_id in IDS[30:50])
        client.write(IDS[49], b"")
        client.write(IDS[0], b"")
        store.flush()
        client.remove([*IDS[:10], *IDS[30:49], IDS[49]])
        client.write(IDS[48], b"once more")  # its record is in the current segment: revived
        store.flush()
        now = store.stats().counters
        assert (now.written_messages, now.written_bytes, now.flushes) == (20, 20 * 500, 1)
        assert (now.revived_messages, now.removed_messages) == (1, 9 + 19)
        assert store.stats().messages == 10 + 20 + 1 - 28
        store.roll()
        before = store.stats()
        store.compact(everything=True)
        after = store.stats()
        assert after.counters.collections == before.counters.collections + 2
        freed = after.counters.collected_bytes - before.counters.collected_bytes
        assert freed == before.bytes_on_disk - after.bytes_on_disk > 0
        assert after.counters.rolled_segments == len(list(tmp_path.glob("*.sqs"))) + after.counters.deleted_segments - 1


# -- log records ----------------------------------------------------------------------------------------------------------


def test_log_records_cover_a_store_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "msgstore")
    store = msgstore.open_store(tmp_path, file_size_limit="4KiB")
    client = store.client()
    client.write_many((msg_id, bytes(479)) for msg_id in IDS[:16])
    store.roll()
    client.remove(IDS[:12])
    store.flush()
    store.compact(everything=True)
    store.abandon()
    msgstore.open_store(tmp_path).close()
    found = [(record.name, record.levelname) for record in caplog.records]
    for expected in (
        ("msgstore.store", "INFO"),
        ("msgstore.segments", "DEBUG"),
        ("msgstore.collection", "INFO"),
        ("msgstore.recovery", "INFO"),
    ):
        assert expected in found
    text = caplog.text
    for part in ("opened, mode rw", "0.sqs started", "0.sqs deleted", "1.sqs compacted", "abandoned", "recovered (rebuild)"):
        assert f"{tmp_path}: {part}" in text
    assert text.rstrip().endswith(f"{tmp_path}: closed")


# -- loading --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loaded]:
    def load_plugin(**members: Any) -> Loaded:
        module = SimpleNamespace(**members)
        monkeypatch.setitem(sys.modules, "acme_watch", module)  # type: ignore[arg-type]
        return load([(ACME, metadata.EntryPoint("watch", "acme_watch", "msgstore"))])

    return load_plugin


def test_observer_with_and_without_argument_is_loaded(plugin: Callable[..., Loaded]) -> None:
    seen = []

    @hookimpl
    def msgstore_store_closed(event: events.StoreClosedEvent) -> None:
        seen.append(event)

    @hookimpl
    def msgstore_segment_rolled() -> None:
        seen.append(None)

    loaded = plugin(msgstore_store_closed=msgstore_store_closed, msgstore_segment_rolled=msgstore_segment_rolled)
    assert (loaded.failures, loaded.providers) == ((), (ACME,))
    closed = events.StoreClosedEvent(store=Path("x"), how="closed")
    for observer in loaded.observers:
        assert observer.provider is ACME
        observer.call(closed)
    assert sorted(seen, key=str) == [None, closed]
    assert {observer.hook for observer in loaded.observers} == {"msgstore_store_closed", "msgstore_segment_rolled"}


def test_broken_observer_is_a_problem(plugin: Callable[..., Loaded]) -> None:
    @hookimpl
    def msgstore_store_closed(store: Path) -> None: ...

    loaded = plugin(msgstore_store_closed=msgstore_store_closed)
    assert loaded.observers == ()
    assert "msgstore_store_closed" in loaded.failures[0].what

    @hookimpl(wrapper=True)
    def msgstore_segment_rolled(event: events.Event) -> Iterator[None]:
        yield

    loaded = plugin(msgstore_segment_rolled=msgstore_segment_rolled)
    assert loaded.observers == ()
    assert "is a wrapper" in loaded.failures[0].what
    problems = list(Catalogue(failures=loaded.failures).problems())
    assert problems == [f"{ACME} {loaded.failures[0].what}"]


@pytest.mark.parametrize("raised", [SystemExit("no licence found"), GeneratorExit("no licence found")], ids=repr)
def test_plugin_raising_systemexit_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: BaseException) -> None:
    """Neither when it is imported nor when it is asked what it registers."""
    kind = type(raised).__name__
    (tmp_path / "acme_ends.py").write_text(f"raise {raised!r}")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load([(ACME, metadata.EntryPoint("watch", "acme_ends", "msgstore"))])
    assert [failure.what for failure in loaded.failures] == [f"cannot be loaded: {kind}: no licence found"]
    assert loaded.providers == ()

    @hookimpl
    def msgstore_indexes() -> list[IndexDescriptor]:
        raise raised

    monkeypatch.setitem(sys.modules, "acme_ends", SimpleNamespace(msgstore_indexes=msgstore_indexes))  # type: ignore[arg-type]
    loaded = load([(ACME, metadata.EntryPoint("watch", "acme_ends", "msgstore"))])
    assert [failure.what for failure in loaded.failures] == [f"msgstore_indexes failed: {kind}: no licence found"]


def test_interrupt_while_loading_passes_through(plugin: Callable[..., Loaded]) -> None:
    @hookimpl
    def msgstore_indexes() -> list[IndexDescriptor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plugin(msgstore_indexes=msgstore_indexes)


def test_plugin_registering_nothing_is_a_problem(plugin: Callable[..., Loaded]) -> None:
    def msgstore_store_closed(event: events.StoreClosedEvent) -> None: ...

    @hookimpl
    def msgstore_indexes() -> list[IndexDescriptor]:
        return []

    loaded = plugin(msgstore_store_closed=msgstore_store_closed)
    assert "does not mark msgstore_store_closed with @msgstore.hookimpl" in loaded.failures[0].what
    loaded = plugin(msgstore_store_closed=msgstore_store_closed, msgstore_indexes=msgstore_indexes)
    assert "does not mark msgstore_store_closed with" in loaded.failures[0].what
    loaded = plugin()
    assert "registers nothing" in loaded.failures[0].what
    with pytest.raises(BrokenPlugin, match=r"'watch' cannot be used.*registers nothing"):
        Catalogue(failures=loaded.failures).index("watch")
    with pytest.raises(UnknownPlugin, match="registers nothing"):
        Catalogue(failures=loaded.failures).index("acme")
    loaded = plugin(msgstore_indexes=msgstore_indexes)  # with nothing to register here and now, which it may know best
    assert (loaded.failures, loaded.providers) == ((), (ACME,))


def test_entry_point_without_module_path_fails() -> None:
    [failure] = load([(ACME, metadata.EntryPoint("watch", "acme-idx.plugin", "msgstore"))]).failures
    assert failure.what == "cannot be loaded: ValueError: 'acme-idx.plugin' is not a module path, such as 'acme_idx.plugin'"


def test_second_entry_point_of_module_fails(plugin: Callable[..., Loaded]) -> None:
    """The first counts. The error is one line: pluggy's names every plugin that there is, with its address."""

    @hookimpl
    def msgstore_store_closed() -> None: ...

    plugin(msgstore_store_closed=msgstore_store_closed)
    entry_point = metadata.EntryPoint("watch", "acme_watch", "msgstore")
    for second, said in (
        ("again", "acme_watch is already the module of the entry point acme-watch:watch"),
        ("watch", "two entry points"),
    ):
        other = attrs.evolve(ACME, entry_point=second)
        loaded = load([(ACME, entry_point), (other, metadata.EntryPoint(second, "acme_watch", "msgstore"))])
        assert [(failure.provider, said in failure.what) for failure in loaded.failures] == [(other, True)]
        assert "0x" not in loaded.failures[0].what
        assert [observer.provider for observer in loaded.observers] == [ACME]


def test_disabled_plugin_does_not_observe(monkeypatch: pytest.MonkeyPatch) -> None:
    @hookimpl
    def msgstore_store_closed(event: events.StoreClosedEvent) -> None: ...

    module = SimpleNamespace(msgstore_store_closed=msgstore_store_closed)
    monkeypatch.setitem(sys.modules, "acme_watch", module)  # type: ignore[arg-type]
    found = [*find_entry_points(), (ACME, metadata.EntryPoint("watch", "acme_watch", "msgstore"))]
    monkeypatch.setattr("msgstore.plugins.catalogue.find_entry_points", lambda: found)
    assert ACME in [observer.provider for observer in load_catalogue().observers]
    assert ACME not in [observer.provider for observer in load_catalogue(["watch"]).observers]
    assert ACME not in [observer.provider for observer in load_catalogue(["acme-watch:watch"]).observers]
