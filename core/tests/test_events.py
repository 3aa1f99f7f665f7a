"""Events: when they fire, on which thread, and that no observer can do harm. Counters. Log records."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import shutil
import signal
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

import msgstore
from core_support import BROKER, copy_of, flip, raising, run
from msgstore import hookimpl
from msgstore.contract import BrokenPlugin, GcPolicyDescriptor, PluginError, StoreIOError, events
from msgstore.engine import events as announcing
from msgstore.engine.events import Counters, Telemetry
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import EVENT_HOOKS, Observer, Provider, find_entry_points, load
from msgstore.testing.stores import open_with
from support import HookedFiles, failing, filled, in_threads, until

ACME = Provider("acme-watch", "1.0", "watch", "acme_watch")
IDS = [bytes([n]) * 16 for n in range(100)]


class Recorder:
    """Observes everything."""

    def __init__(self):
        self.events, self.threads = [], set()

    def __call__(self, event):
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    @property
    def kinds(self):
        return [type(event) for event in self.events]

    def of(self, kind, *members):
        """Events of a kind, or some members of each."""
        found = [event for event in self.events if type(event) is kind]
        return [tuple(getattr(event, name) for name in members) for event in found] if members else found


def open_observed(path, call, *hooks, files=None, **keys):
    observers = tuple(Observer(hook, call, ACME) for hook in hooks or EVENT_HOOKS)
    return open_with(path, attrs.evolve(load_catalogue(), observers=observers), files, **keys)


@contextlib.contextmanager
def observed(path, call, *hooks, **keys):
    """(store, client) while both are open."""
    with open_observed(path, call, *hooks, **keys) as store, store.client() as client:
        yield store, client


@pytest.fixture
def recorder():
    return Recorder()


def test_store_life_fires_and_logs_its_events(tmp_path, recorder, caplog):
    caplog.set_level(logging.DEBUG, "msgstore")
    with observed(tmp_path, recorder, file_size_limit="8KiB", gc_interval=0) as (store, client):
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:16])
        store.roll()
        client.remove(IDS[:15])
        store.flush()
        (collected,) = store.compact(everything=True)
        for msg_id in IDS[20:]:  # messages fire no events
            client.write(msg_id, b"body")
            client.remove([msg_id])
    assert (recorder.kinds[0], recorder.kinds[-1], len(recorder.kinds)) == (events.StoreOpenedEvent, events.StoreClosedEvent, 6)
    assert recorder.of(events.SegmentRolledEvent, "file") == [("0.sqs",), ("1.sqs",)]
    assert recorder.of(events.SegmentDeletedEvent, "file", "size") == [("0.sqs", 64 + 8 * 1021)]
    (found,) = recorder.of(events.CollectionFinishedEvent)
    assert attrs.asdict(collected).items() <= attrs.asdict(found).items()
    assert (found.outcome, found.skipped, 0 < found.seconds < 60) == ("compacted", None, True)
    assert all(event.store == tmp_path for event in recorder.events)
    assert recorder.threads == {f"msgstore-observers {tmp_path}"}
    (opened,) = recorder.of(events.StoreOpenedEvent)
    assert (opened.mode, opened.index, opened.format, opened.recovery["how"]) == ("rw", "ets", "v2", "new")
    assert recorder.of(events.StoreClosedEvent, "how") == [("closed",)]
    levels = {"store": "INFO", "segments": "DEBUG", "collection": "INFO"}
    assert {(record.name, record.levelname) for record in caplog.records} >= {(f"msgstore.{n}", v) for n, v in levels.items()}
    for part in ("opened, mode rw", "0.sqs started", "0.sqs deleted", "1.sqs compacted"):
        assert f"{tmp_path}: {part}" in caplog.text
    assert caplog.text.rstrip().endswith(f"{tmp_path}: closed")


def test_dirty_start_fires_and_logs_recovery(tmp_path, recorder, caplog):
    caplog.set_level(logging.INFO, "msgstore.recovery")
    store = msgstore.open_store(tmp_path)
    store.client().write(IDS[1], b"body")
    store.flush()
    store.abandon()
    with (tmp_path / "0.sqs").open("ab") as stream:
        stream.write(b"\3\0\0\1")
    open_observed(tmp_path, recorder, mode="r").abandon()
    assert recorder.kinds[:2] == [events.RecoveryFinishedEvent, events.StoreOpenedEvent]
    recovered, opened, closed = recorder.events
    assert (recovered.recovery, recovered.seconds > 0) == (opened.recovery, True)
    expected = {"how": "rebuild", "scanned": ["0.sqs"], "entered": 1, "damaged": ["0.sqs at offset 89: torn"]}
    assert opened.recovery.items() >= expected.items()
    assert closed == events.StoreClosedEvent(store=tmp_path, how="abandoned")
    assert f"{tmp_path}: recovered (rebuild)" in caplog.text


def test_damage_event_fires_once_per_offset(tmp_path, recorder):
    with observed(tmp_path, recorder, record="checksum") as (store, client):
        client.write_many((msg_id, b"body" + msg_id) for msg_id in IDS[:10])
        store.roll()
        client.remove(IDS[5:10])
        store.flush()
        path = tmp_path / "0.sqs"
        flip(path, path.read_bytes().index(b"body" + IDS[2]))
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
    assert recorder.of(events.CollectionFinishedEvent, "skipped") == [(collected.reason,)]


def test_damage_found_at_opening_fires_event(tmp_path, recorder):
    shutil.copy(BROKER / "v2_corrupt" / "type0_byte" / "0.sqs", tmp_path)
    with open_observed(tmp_path, recorder, adopt=True) as store:
        assert store.stats().counters.corruptions == 1
    (found,) = recorder.of(events.CorruptionFoundEvent)
    assert f"0.sqs at offset {found.offset}: {found.reason}" in recorder.of(events.RecoveryFinishedEvent)[0].recovery["damaged"]


def test_migration_fires_collection_finished(tmp_path, recorder):
    open_observed(copy_of("mixed_upgrade", tmp_path / "store"), recorder, adopt=True, on_legacy="migrate").close()
    found = recorder.of(events.CollectionFinishedEvent, "file", "outcome", "size_after")
    assert found == [("0.rdq", "migrated", 0), ("1.rdq", "migrated", 0)]
    assert recorder.of(events.SegmentDeletedEvent, "file") == [("0.rdq",), ("1.rdq",)]
    assert all(not file.endswith(".tmp") for (file,) in recorder.of(events.SegmentRolledEvent, "file"))


def test_dropped_messages_fire_event(tmp_path, recorder):
    telemetry = Telemetry(tmp_path, [Observer(hook, recorder, ACME) for hook in EVENT_HOOKS])
    telemetry.start()
    dropped = {"file": "7.sqs", "messages": 3, "bytes": 300, "reason": "older than 1d"}
    telemetry.note(events.MessagesDroppedEvent, **dropped)
    telemetry.note(events.StoreClosedEvent, how="closed")
    telemetry.stop()
    assert recorder.events[0] == events.MessagesDroppedEvent(store=tmp_path, **dropped)
    assert telemetry.counters.dropped_messages == 3


def test_events_of_several_threads_are_all_counted(tmp_path, monkeypatch):
    """A flush and a collection may note deleted segments at the same time."""
    telemetry = Telemetry(tmp_path)
    # Another thread runs between the two halves of each addition.
    monkeypatch.setattr(Counters, "__setattr__", lambda *pair: (time.sleep(0), object.__setattr__(*pair)))

    def note() -> None:
        for _ in range(100):
            telemetry.note(events.SegmentDeletedEvent, file="0.sqs", size=1)

    in_threads(note, note, note, note)
    assert (telemetry.counters.deleted_segments, telemetry.counters.collected_bytes) == (400, 400)


def test_observers_receive_their_options(tmp_path, recorder, monkeypatch):
    """Each observer has the table of its entry point. Options of an observer that is not installed are refused."""
    monkeypatch.setenv("TEAM", "ops")
    other = attrs.evolve(ACME, entry_point="other")
    catalogue = load_catalogue()
    seen = [Observer("msgstore_store_opened", recorder, provider) for provider in (ACME, other)]
    (tmp_path / "stores.toml").write_text(
        'stores.mail = { path = "mail", observers = { watch = { to = { env = "TEAM" }, after = 3 }, gone = {} } }\n'
        'stores.wrong = { path = "mail", observers.wach = {} }\n'
    )
    catalogue = attrs.evolve(catalogue, observers=tuple(seen), disabled=("acme:gone",))
    stores = attrs.evolve(msgstore.load_config(tmp_path / "stores.toml"), catalogue=catalogue)
    checked = run("config", "check", "--config", tmp_path / "stores.toml", code=2)
    assert "[stores.wrong] observers: no installed plugin has the observer entry point 'wach'. Installed: " in checked.stderr
    stores.open("mail").close()
    assert [event.options for event in recorder.of(events.StoreOpenedEvent)] == [{"to": "ops", "after": 3}, {}]
    with pytest.raises(msgstore.ConfigError, match=r"\[stores.wrong\] observers: .* 'wach'. Did you mean 'watch'\?"):
        stores.open("wrong")
    assert hash(events.SegmentRolledEvent(store=tmp_path, file="0.sqs", format="v2", options={"to": "ops"}))
    (tmp_path / "stores.toml").write_text('stores.number = { path = "mail", observers.watch = 3 }')
    with pytest.raises(msgstore.ConfigError, match=r"\[stores.number\] observers watch: 3 is not a table"):
        msgstore.load_config(tmp_path / "stores.toml").open("number")


# -- observers that misbehave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_observer_raising_is_logged_and_counted(tmp_path, caplog, error):
    with observed(tmp_path, raising(error), gc_interval=0) as (store, client):
        client.write(IDS[0], b"body")
        store.roll()
        client.remove([IDS[0]])
        store.flush()
    assert store._segments.telemetry.counters.observer_failures == 4
    records = [record for record in caplog.records if record.name == "msgstore.observers"]
    assert len(records) == 4
    assert "msgstore_store_opened of acme-watch 1.0 (entry point 'watch = acme_watch') failed" in records[0].getMessage()
    assert records[0].exc_info[1] is error


def test_observer_using_the_store_never_deadlocks(tmp_path):
    """No lock is held while an observer runs."""
    seen, stores = [], []

    def observe(event):
        try:
            with stores[0].client() as client:
                client.write(IDS[50], b"from an observer")
                seen.append(client.read(IDS[50]))
                client.remove([IDS[50]])
                client.delete_and_close()  # closing it would flush
        except msgstore.StoreClosed:
            seen.append("closed")

    hooks = [hook for hook in EVENT_HOOKS if hook != "msgstore_store_opened"]
    with observed(tmp_path, observe, *hooks, file_size_limit="4KiB") as (store, client):
        stores.append(store)
        client.write_many((msg_id, bytes(500)) for msg_id in IDS[:40])
        store.roll()
        client.remove(IDS[:30])
        store.flush()
        store.compact(everything=True)
    assert len(seen) > 8
    assert seen[-1] == "closed"


def test_observer_hanging_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(announcing, "CLOSE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(announcing, "MAX_WAITING", 3)
    hanging, go_on = threading.Event(), threading.Event()

    def observe(event):
        hanging.set()
        go_on.wait()

    telemetry = Telemetry(tmp_path, [Observer("msgstore_segment_deleted", observe, ACME)])
    telemetry.start()
    for number in range(6):
        telemetry.note(events.SegmentDeletedEvent, file=f"{number}.sqs", size=1)
        assert hanging.wait(10)
    assert telemetry.counters.observer_failures == 2
    telemetry.stop()
    assert "has not returned within 0.05 s" in caplog.text
    go_on.set()


def test_observer_thread_ends_with_the_store(tmp_path, recorder):
    def threads():
        return [thread.name for thread in threading.enumerate() if thread.name == f"msgstore-observers {tmp_path}"]

    with open_with(tmp_path, attrs.evolve(load_catalogue(), observers=())):
        assert threads() == []  # without observers there is none
    store = open_observed(tmp_path, recorder)
    store.client().write(IDS[0], b"body")
    store.flush()
    assert threads() == [f"msgstore-observers {tmp_path}"]
    store.abandon()
    assert threads() == []
    files = HookedFiles()
    files.before("pwrite", failing(errno.ENOSPC), times=None)
    (tmp_path / "msgstore.json").unlink()
    with pytest.raises(msgstore.StoreError, match="cannot be opened"):
        open_observed(tmp_path, recorder, files=files, adopt=True)
    assert threads() == []
    assert recorder.kinds[-1] is events.RecoveryFinishedEvent


def test_store_opens_without_thread_for_observers(tmp_path, recorder, monkeypatch, caplog):
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with open_observed(tmp_path, recorder, gc_interval=0, sync_interval=0) as store:
        store.client().write(IDS[0], b"body")
        assert store.stats().observer_failures == 1
    assert recorder.events == []
    assert "no observer is called: can't start new thread" in caplog.text


def test_interrupt_in_start_of_the_observers_thread_leaves_none(tmp_path, recorder, monkeypatch):
    """``threading.Condition`` raises RuntimeError in place of the interrupt, and the thread already runs."""
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        open_observed(tmp_path, recorder)
    assert not [thread for thread in threading.enumerate() if thread.name.endswith(str(tmp_path))]


def test_store_not_saved_fires_closed_once(tmp_path, recorder):
    files = HookedFiles()
    files.before("replace", failing(), "msgstore-clean.dot clean.dot")
    store = open_observed(tmp_path, recorder, files=files)
    with pytest.raises(StoreIOError):
        store.close()
    store.close()
    assert recorder.kinds == [events.StoreOpenedEvent, events.StoreClosedEvent]


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_reader_after_a_crash_fires_opened(tmp_path, recorder, index):
    store = open_observed(tmp_path, lambda _: None, index=index)
    store.client().write(IDS[0], b"body")
    store.flush()
    store.abandon()
    open_observed(tmp_path, recorder, index=index, mode="r").close()
    assert recorder.kinds == [events.RecoveryFinishedEvent, events.StoreOpenedEvent, events.StoreClosedEvent]


# -- statistics -----------------------------------------------------------------------------------------------------------


def test_opened_event_statistics_follow_the_store(tmp_path, recorder):
    with observed(tmp_path, recorder) as (store, client):
        client.write_many((msg_id, b"body") for msg_id in IDS)
        store.flush()
        until(lambda: recorder.events)  # observers are called on another thread
        (opened,) = recorder.of(events.StoreOpenedEvent)
        numbers = opened.statistics()
        expected = {"flushes": 1, "messages": 100, "written_messages": 100, "live_bytes": 2500, "written_bytes": 2500}
        assert numbers.items() >= expected.items()
        assert all(type(value) is int for value in numbers.values())
    assert opened.statistics() == {}


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_counters_after_changes_are_exact(tmp_path, index):
    filled(tmp_path, ((msg_id, b"body") for msg_id in IDS[:10]), index=index)
    keys = {"file_size_limit": "4KiB", "sync_interval": "1h", "gc_interval": 0}
    with msgstore.open_store(tmp_path, index=index, **keys) as store, store.client() as client:
        assert set(attrs.asdict(store.stats().counters).values()) == {0}
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


# -- loading --------------------------------------------------------------------------------------------------------------

ENTRY_POINT = metadata.EntryPoint("watch", "acme_watch", "msgstore")


@pytest.fixture
def plugin(monkeypatch):
    """``plugin(*functions)`` loads a module that has them."""

    def load_plugin(*functions):
        module = SimpleNamespace(**{function.__name__: function for function in functions})
        monkeypatch.setitem(sys.modules, "acme_watch", module)
        return load([(ACME, ENTRY_POINT)])

    return load_plugin


def hook(name, function, mark=hookimpl):
    """Mark a function as the implementation of a hook."""
    function.__name__ = name
    return mark(function)


def test_observer_with_and_without_argument_is_loaded(plugin):
    seen = []
    loaded = plugin(
        hook("msgstore_store_closed", lambda event: seen.append(event)),
        hook("msgstore_segment_rolled", lambda: seen.append(None)),
    )
    assert (loaded.failures, loaded.providers) == ((), (ACME,))
    closed = events.StoreClosedEvent(store=Path("x"), how="closed")
    for observer in loaded.observers:
        assert observer.provider is ACME
        observer.call(closed)
    assert sorted(seen, key=str) == [None, closed]
    assert {observer.hook for observer in loaded.observers} == {"msgstore_store_closed", "msgstore_segment_rolled"}


UNMARKED = hook("msgstore_store_closed", lambda event: None, mark=lambda function: function)


@hookimpl
def msgstore_indexes():
    return []


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ([hook("msgstore_store_closed", lambda store: None)], "msgstore_store_closed"),
        ([hook("msgstore_segment_rolled", lambda event: (yield), hookimpl(wrapper=True))], "is a wrapper"),
        ([UNMARKED], "does not mark msgstore_store_closed with @msgstore.hookimpl"),
        ([UNMARKED, msgstore_indexes], "does not mark msgstore_store_closed with"),
        ([], "registers nothing"),
        (
            [hook("msgstore_gc_policies", lambda: [GcPolicyDescriptor(name="Acme P", contract=(1, 0), factory="a:b")])],
            "msgstore_gc_policies failed: ValueError: the name 'Acme P' must be up to 64 lower-case letters, digits",
        ),
        (
            [hook("msgstore_gc_policies", lambda: [GcPolicyDescriptor(name="a", contract=(1, 0), factory="acme")])],
            "the factory 'acme' must be text such as 'package.module:name'",
        ),
        ([hook("msgstore_gc_policies", lambda: None)], "TypeError: it returned None, and must return a list of descriptors"),
        ([hook("msgstore_indexes", raising(SystemExit("no")))], "msgstore_indexes failed: SystemExit: no"),
        ([hook("msgstore_indexes", raising(GeneratorExit("no")))], "msgstore_indexes failed: GeneratorExit: no"),
    ],
)
def test_broken_plugin_is_a_problem(plugin, functions, said):
    loaded = plugin(*functions)
    assert (loaded.observers, loaded.providers) == ((), ())
    assert said in loaded.failures[0].what
    catalogue = Catalogue(failures=loaded.failures)
    assert list(catalogue.problems()) == [f"{ACME} {loaded.failures[0].what}"]
    for error, name in ((BrokenPlugin, "watch"), (PluginError, "acme")):
        with pytest.raises(error) as caught:
            catalogue.index(name)
        assert loaded.failures[0].what in str(caught.value)
    sound = plugin(msgstore_indexes)  # it registers nothing now, which it may know best
    assert (sound.failures, sound.providers) == ((), (ACME,))
    with pytest.raises(KeyboardInterrupt):
        plugin(hook("msgstore_indexes", raising(KeyboardInterrupt())))


class ExitHandler:
    def __call__(self, *_):
        raise SystemExit


@pytest.mark.parametrize("handler", [ExitHandler(), functools.partial(ExitHandler.__call__, None)], ids=["object", "partial"])
def test_exit_of_a_signal_handler_is_not_the_plugins(plugin, handler):
    usual = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit):
            plugin(hook("msgstore_indexes", lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, usual)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("acme_ends", "SystemExit: no licence found"),
        ("acme-idx.plugin", "ValueError: 'acme-idx.plugin' is not a module path, such as 'acme_idx.plugin'"),
    ],
)
def test_plugin_that_cannot_be_imported_fails(monkeypatch, tmp_path, module, said):
    (tmp_path / "acme_ends.py").write_text("raise SystemExit('no licence found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load([(ACME, metadata.EntryPoint("watch", module, "msgstore"))])
    assert [failure.what for failure in loaded.failures] == [f"cannot be loaded: {said}"]
    assert loaded.providers == ()


@pytest.mark.parametrize(
    ("second", "said"),
    [("again", "acme_watch is already the module of the entry point acme-watch:watch"), ("watch", "two entry points")],
)
def test_second_entry_point_of_module_fails(plugin, second, said):
    """The first counts. The error is one line: pluggy's names every plugin that there is, with its address."""
    plugin(hook("msgstore_store_closed", lambda: None))
    other = attrs.evolve(ACME, entry_point=second)
    loaded = load([(ACME, ENTRY_POINT), (other, metadata.EntryPoint(second, "acme_watch", "msgstore"))])
    assert [(failure.provider, said in failure.what) for failure in loaded.failures] == [(other, True)]
    assert "0x" not in loaded.failures[0].what
    assert [observer.provider for observer in loaded.observers] == [ACME]


@pytest.mark.parametrize(("disabled", "observes"), [([], True), (["watch"], False), (["acme-watch:watch"], False)])
def test_disabled_plugin_does_not_observe(plugin, monkeypatch, disabled, observes):
    plugin(hook("msgstore_store_closed", lambda event: None))
    found = [*find_entry_points(), (ACME, ENTRY_POINT)]
    monkeypatch.setattr("msgstore.plugins.catalogue.find_entry_points", lambda: found)
    assert (ACME in [observer.provider for observer in load_catalogue(disabled).observers]) == observes
