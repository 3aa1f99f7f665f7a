"""Stores on the format of ``tests/foreign`` and the index of ``acme_sqlite_index``, which know core by its contract only; and
ledgers that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import msgstore
import test_compaction_crash
import test_model
from foreign_ledger import key_of, ledger, message_id
from msgstore.contract import Combine
from msgstore.testing import Subject, stores
from support import FOREIGN_CELLS, Cell, collect, command, needs_foreign, open_with

pytestmark = needs_foreign


# -- life of a store --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("foreign", FOREIGN_CELLS.values(), ids=str)
def test_a_store_is_a_dictionary_that_survives(foreign, examples):
    machine = type("Machine", (test_model.StoreBesideOtherPrograms,), {"cell": foreign})
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=40, suppress_health_check=checks)
    )


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("foreign", [Cell("sqlite", "ledger"), Cell("sqlite", "v1"), Cell("sqlite", "v2")], ids=str)
def test_a_compaction_that_is_stopped_anywhere_loses_nothing(foreign, durability, sample, tmp_path):
    counts = test_compaction_crash.ours(tmp_path / "start", foreign)
    assert test_compaction_crash.stop_everywhere(tmp_path, foreign, counts, durability, sample) > 20


def test_kit_compacts_large_headers_in_place(monkeypatch):
    """The format ``ledger`` has a header of 4 KiB. The kit makes segments that also have room for several records."""
    ledger = next(subject for subject in Subject.registered_by("foreign-backends") if subject.kind == "format")
    form = ledger.descriptor.load_factory()
    filled, fill = [], form.fill_gap
    monkeypatch.setattr(form, "fill_gap", lambda *args: filled.extend(args[-1]) or fill(*args))
    machine = stores._Machine(ledger)
    machine.live(erase=False)
    machine.end()
    assert filled


# -- ledgers that somebody else wrote ---------------------------------------------------------------------------------------

MESSAGES = {f"orders/{n}/".encode() + b"x" * (n * 5 % 300): b"body %d " % n * (n % 40) for n in range(60)}
BY_ID = {message_id(key): body for key, body in MESSAGES.items()}


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Two segments, one closed with its index and one that was being written."""
    path = tmp_path / "others"
    path.mkdir()
    items = list(MESSAGES.items())
    (path / "0.ledger").write_bytes(ledger(items[:40]))
    (path / "1.ledger").write_bytes(ledger(items[40:], index=False))
    return path


def keys_of(store: msgstore.Store) -> set[bytes]:
    """Of the records of all live messages, as they stand in the files."""
    files = {segment.number: store.path / segment.file for segment in store.segments()}
    return {key_of(files[e.number].read_bytes()[e.offset : e.offset + e.size]) for e in store.entries()}


@pytest.mark.parametrize("index_name", ["ets", "lmdb", "sqlite"])
def test_a_store_serves_them_and_their_long_keys_stay(index_name, others):
    """Through a compaction, a combination, and under another index: a record holds more than id and body."""
    keys = {"format": "ledger", "sync_interval": "1h", "gc_interval": 0}
    with open_with(others, adopt=True, index=index_name, **keys, file_size_limit=40_000) as store, store.client() as client:
        assert client.read_many(BY_ID) == BY_ID
        store.roll()
        gone = [message_id(key) for key in list(MESSAGES)[::3]]
        client.remove(gone)
        store.compact(everything=True)
        left = {key for n, key in enumerate(MESSAGES) if n % 3}
        assert keys_of(store) == left
        first, second, *_ = (segment.number for segment in store.segments())
        assert [one.outcome for one in collect(store, Combine((first, second)))] == ["combined", "combined"]
        assert keys_of(store) == left
        assert client.read_many(BY_ID) == {message_id(key): MESSAGES[key] for key in left}
        client.write(message_id(min(left)), b"")
    assert command("get", others, message_id(min(left)).hex()).stdout_bytes == MESSAGES[min(left)]
    with open_with(others, index="ets" if index_name == "sqlite" else "sqlite", **keys) as store:
        assert store.stats().recovery.how == "taken over"
        assert {store.references(message_id(key)) for key in left} == {1, 2}


def test_they_migrate_to_v2(others):
    command("migrate", others, "--to", "v2", "--adopt")
    assert not list(others.glob("*.ledger"))
    with msgstore.open_store(others, mode="r") as store:
        assert store.read_many(BY_ID) == BY_ID


@pytest.mark.parametrize(
    ("damage", "lost", "reason"),
    [
        (lambda data: data[:-30], 0, "torn"),  # inside the index
        (lambda data: data[: len(data) - 2000] + bytes(2000), None, "torn"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], 1, "checksum_mismatch"),
        (lambda data: data[:4096] + b"\xee" + data[4097:], 1, "unknown_element"),
        (lambda data: data[:9] + b"\x07" + data[10:], 0, "bad_version"),
        (lambda data: data[:99] + b"\x07" + data[100:], 0, "bad_checksum"),
    ],
)
def test_damage_is_found_and_the_rest_is_rescued(damage, lost, reason, others):
    file = others / "0.ledger"
    file.write_bytes(damage(file.read_bytes()))
    assert reason in command("scan", others, code=1).output
    command("verify", others, code=1)
    rescued = others.with_name("rescued")
    command("salvage", others, rescued, "--index", "sqlite", "--format", "ledger", code=1)
    with msgstore.open_store(rescued, index="sqlite", format="ledger", mode="r") as store:
        found = store.read_many(BY_ID)
    assert found.items() <= BY_ID.items()
    assert lost is None or len(found) == len(BY_ID) - lost
