"""Stores on the backends of ``tests/foreign``, which know core by its contract only; and ledgers that somebody else wrote."""

from __future__ import annotations

import errno
import json
import os
import pkgutil
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import foreign_ledger
import msgstore
import test_compaction_crash
import test_model
from foreign_ledger import key_of, ledger, message_id, read_by_index
from msgstore.cli.main import main
from msgstore.contract import Combine
from msgstore.files import Files
from msgstore.testing.faults import CHANGES, Crash, RecordingFiles, StoppingFiles
from support import FOREIGN_CELLS, Cell, hashes, needs_foreign, open_with

pytestmark = needs_foreign

every_cell = pytest.mark.parametrize("foreign", FOREIGN_CELLS.values(), ids=str)
every_index = pytest.mark.parametrize("index_name", ["ets", "lmdb", "sqlite"])
IDS = [n.to_bytes(2, "big") * 8 for n in range(1, 120)]
SQLITE_LEDGER = Cell("sqlite", "ledger")


def body_of(msg_id: bytes) -> bytes:
    return msg_id * (msg_id[1] % 30)


def store_keys(cell: Cell, **more: object) -> dict[str, object]:
    return {**cell.keys, "file_size_limit": cell.header + 8000, "sync_interval": "1h", "gc_interval": 0, **more}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


# -- life of a store --------------------------------------------------------------------------------------------------------


@every_cell
def test_a_store_lives(foreign, tmp_path):
    keys = store_keys(foreign)
    with open_with(tmp_path, **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        client.write_many((i, b"ignored") for i in IDS[::4])  # fan-out
        store.flush()
        assert len(store.segments()) > 3
        client.remove(IDS[::2])
        store.roll()
        store.compact(everything=True)
        live = {i: body_of(i) for n, i in enumerate(IDS) if n % 2 or not n % 4}
        assert client.read_many(IDS) == live
    with open_with(tmp_path, **keys) as store, store.client() as client:
        assert store.stats().recovery.how == "trust"
        assert client.read_many(IDS) == live
        client.write(IDS[2], body_of(IDS[2]))
        store.flush()
        client.remove(IDS[1:2])
        store.flush()
    live = {**live, IDS[2]: body_of(IDS[2])}
    del live[IDS[1]]
    store = open_with(tmp_path, **keys)
    client = store.client()
    client.write(b"lost".ljust(16), b"not flushed")
    client.remove(IDS[3:4])
    store.abandon()
    counts = dict.fromkeys(live, 1)
    with open_with(tmp_path, refcounts=counts.items(), **keys) as store, store.client() as client:
        assert store.stats().recovery.how == "trust"  # nothing had been flushed
        assert client.read_many(IDS) == live
        client.remove(list(live))
    with open_with(tmp_path, **keys) as store:
        assert store.stats().messages == 0


@every_cell
def test_a_store_is_a_dictionary_that_survives(foreign, examples):
    machine = type("Machine", (test_model.StoreBesideOtherPrograms,), {"cell": foreign})
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=40, suppress_health_check=checks)
    )


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("foreign", [SQLITE_LEDGER, Cell("sqlite", "v1"), Cell("sqlite", "v2")], ids=str)
def test_a_compaction_that_is_stopped_anywhere_loses_nothing(foreign, durability, sample, tmp_path):
    counts = test_compaction_crash.ours(tmp_path / "start", foreign)
    assert test_compaction_crash.stop_everywhere(tmp_path, foreign, counts, durability, sample) > 20


def test_counts_of_sqlite_survive_whatever_it_is_stopped_at(tmp_path):
    """Counts and removals are those of a flush; before it, or after it."""
    keys = store_keys(SQLITE_LEDGER)
    with open_with(tmp_path / "start", **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
    for stop in range(100):
        path = tmp_path / str(stop)
        shutil.copytree(tmp_path / "start", path)
        files = StoppingFiles(stop)
        store, flushed = None, False
        try:
            store = open_with(path, files, **keys)
            client = store.client()
            client.write_many((i, b"") for i in IDS[:5])
            client.remove(IDS[50:])
            client.write_many((bytes([n]) * 16, b"new") for n in range(200, 210))
            store.flush()
            flushed = True
            store.close()
        except Crash:
            pass
        finally:
            if store is not None:
                store.abandon()
        with open_with(path, **keys) as store:
            assert store.stats().recovery.how in ("tail", "trust")
            found = [store.references(i) for i in IDS]
        assert (
            found in ([1] * len(IDS), [2] * 5 + [1] * 45 + [0] * (len(IDS) - 50)) if not flushed else found[:6] == [2] * 5 + [1]
        )
        if not files.stopped:
            break
    assert stop > 5


def test_another_index_takes_over_and_gives_back(tmp_path):
    with open_with(tmp_path, **store_keys(SQLITE_LEDGER)) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        client.write_many((i, b"") for i in IDS[:9])
    for name in ("lmdb", "sqlite", "ets", "sqlite"):
        with open_with(tmp_path, **store_keys(Cell(name, "ledger"))) as store:
            assert store.stats().recovery.how == "taken over"
            assert [store.references(i) for i in IDS] == [2] * 9 + [1] * (len(IDS) - 9)


# -- trailers ---------------------------------------------------------------------------------------------------------------


def segments_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.ledger"), key=lambda file: int(file.stem))


def named_ids(path: Path) -> list[bytes]:
    """By the indexes of the segments, which are checked against the records."""
    return [key_of(whole) for file in segments_of(path) for whole in (read_by_index(file) or {}).values()]


@every_index
def test_a_sealed_segment_ends_in_an_index_that_an_outsider_reads(index_name, tmp_path):
    keys = store_keys(Cell(index_name, "ledger"))
    with open_with(tmp_path, **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        store.flush()
        *sealed, current = segments_of(tmp_path)
        assert read_by_index(current) is None
        assert None not in [read_by_index(file) for file in sealed]
        client.write(b"large".ljust(16), bytes(5_000_000))  # a segment of its own
        store.roll()
        assert sorted(named_ids(tmp_path)) == sorted([*IDS, b"large".ljust(16)])
        client.remove(IDS[::3])
        done = store.compact(everything=True)
        assert {one.done for one in done} >= {"compacted"}
        assert set(named_ids(tmp_path)) >= {entry.msg_id for entry in store.entries()}
        again = store.compact(everything=True)
        assert {one.done for one in again} == {"none"}, "a trailer alone is nothing to be gained"
        client.remove([i for n, i in enumerate(IDS) if n % 3 and n % 5])
        small = [s.number for s in store.segments() if s.live_count and not s.current]
        pairs = [Combine(pair) for pair in list(pairwise(small))[:1]]
        with mock.patch.object(store._collector, "_policy", SimpleNamespace(plan=lambda *_: pairs)):
            assert [one.done for one in store.compact()] == ["combined", "combined"]
        assert set(named_ids(tmp_path)) >= {entry.msg_id for entry in store.entries()}
        live = hashes(store)
    with open_with(tmp_path, **keys) as store:
        assert hashes(store) == live


@every_index
def test_a_segment_goes_on_behind_its_trailer(index_name, tmp_path):
    """As when the one after it was deleted, and it is the newest again."""
    keys = store_keys(Cell(index_name, "ledger"))
    with open_with(tmp_path, **keys) as store, store.client() as client:
        client.write_many((i, b"one") for i in IDS[:5])
        store.roll()
    (file,) = segments_of(tmp_path)
    assert read_by_index(file)
    with open_with(tmp_path, **keys) as store, store.client() as client:
        client.write_many((i, b"two") for i in IDS[5:9])
        store.flush()
        assert segments_of(tmp_path) == [file]
        assert read_by_index(file) is None
        store.roll()
        assert sorted(named_ids(tmp_path)) == IDS[:9]
        client.remove(IDS[:7])
        (done,) = store.compact(everything=True)
        assert done.outcome == "compacted"
        assert sorted(named_ids(tmp_path)) == IDS[7:9]
        assert file.stat().st_size < 4096 + 200


@pytest.mark.crash
@every_index
def test_at_no_instant_does_an_outsider_find_an_index_of_what_is_not_there(index_name, tmp_path):
    cell = Cell(index_name, "ledger")
    keys = store_keys(cell)
    with open_with(tmp_path / "start", **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        store.roll()
        client.remove([i for n, i in enumerate(IDS) if n % 3])
    for stop in range(1000):
        path = tmp_path / "stopped"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "start", path)
        files = StoppingFiles(stop, torn=60)
        store = None
        try:
            store = open_with(path, files, **keys)
            store.compact(everything=True)
        except Crash:
            pass
        finally:
            if store is not None:
                store.abandon()
        assert set(named_ids(path)) <= set(IDS)  # read_by_index checks every record that an index names
        if not files.stopped:
            break
    assert stop > 30


class NoRoomForTrailers(RecordingFiles):
    def pwrite(self, fd, data, offset):
        if bytes(data[-8:]) == b"LEDGEREX":
            Files.pwrite(self, fd, memoryview(data)[:10], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, offset)


@every_index
def test_without_room_for_a_trailer_a_segment_is_sealed_without(index_name, tmp_path, caplog):
    keys = store_keys(Cell(index_name, "ledger"))
    with open_with(tmp_path, NoRoomForTrailers(), **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        store.roll()
        assert client.read_many(IDS) == {i: body_of(i) for i in IDS}
    assert "is sealed without a trailer" in caplog.text
    assert run("scan", tmp_path).exit_code == 0
    assert not named_ids(tmp_path)
    with open_with(tmp_path, **keys) as store, store.client() as client:
        assert store.stats().recovery.how == "trust"
        assert client.read_many(IDS) == {i: body_of(i) for i in IDS}


def _fails(self: object, data: object) -> bytes:
    raise ValueError("a fault of the format's")


@pytest.mark.parametrize(
    "trailer", [_fails, lambda self, data: None, lambda self, data: "text"], ids=["raises", "none", "text"]
)
def test_a_format_that_cannot_make_a_trailer_does_not_stop_the_store(trailer, tmp_path, caplog):
    """Nobody needs one, and everybody needs to flush and to close."""
    keys = store_keys(Cell("ets", "ledger"))
    with (
        mock.patch("foreign_backends.ledger.LedgerFormat.trailer", trailer),
        open_with(tmp_path, **keys) as store,
        store.client() as client,
    ):
        client.write_many((i, body_of(i)) for i in IDS)
        store.roll()
        client.remove(IDS[::2])
        assert any(done.outcome == "compacted" for done in store.compact(everything=True))
    assert "gets no trailer: format 'ledger' failed to make it" in caplog.text
    with open_with(tmp_path, **keys) as store, store.client() as client:
        assert store.stats().recovery.how == "trust"
        assert client.read_many(IDS) == {i: body_of(i) for i in IDS[1::2]}


def test_a_trailer_that_live_records_are_in_is_not_cut_off(tmp_path):
    """The format is wrong about its own file, so nothing of that is touched."""
    form = "foreign_backends.ledger.LedgerFormat"
    scan = pkgutil.resolve_name(f"{form}.scan")

    def too_much(self, data, **keys):
        found = scan(self, data, **keys)
        found.trailer += 1 if found.trailer else 0
        return found

    keys = store_keys(Cell("ets", "ledger"))
    with open_with(tmp_path, **keys) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS)
        store.roll()
        client.remove(IDS[:5])
        before = segments_of(tmp_path)[0].read_bytes()
        with mock.patch(f"{form}.scan", too_much):
            skipped = store.compact(everything=True)[0].skipped
        assert skipped is not None
        assert "of trailer, where live records are" in skipped
        assert segments_of(tmp_path)[0].read_bytes() == before
        assert client.read_many(IDS) == {i: body_of(i) for i in IDS[5:]}


@pytest.mark.parametrize("index_name", ["lmdb", "sqlite"])
def test_a_compaction_makes_no_segment_longer_than_its_row_says(index_name, tmp_path):
    """Else a start after a crash would not know the segment again, and lose every count."""
    keys = store_keys(Cell(index_name, "ledger"), file_size_limit=12_000)
    ids = [n.to_bytes(16, "big") for n in range(150)]
    with open_with(tmp_path / "start", NoRoomForTrailers(), **keys) as store, store.client() as client:
        client.write_many((i, b"") for i in ids)
        client.write_many((i, b"") for i in ids)
        store.roll()
        client.remove(ids[-1:] * 2)  # 25 bytes: less than a trailer has
    for stop in range(100):
        path = tmp_path / str(stop)
        shutil.copytree(tmp_path / "start", path)
        files = StoppingFiles(stop)
        store = None
        try:
            store = open_with(path, files, **{**keys, "file_size_limit": 7000})  # too full to be written on
            (done,) = store.compact(everything=True)
            assert done.size_after < done.size_before
        except Crash:
            pass
        finally:
            if store is not None:
                store.abandon()
        with open_with(path, **keys) as store:
            assert store.stats().recovery.how in ("tail", "trust")
            assert [store.references(i) for i in ids] == [2] * 149 + [0]
        if not files.stopped:
            break
    assert stop > 4


def test_a_trailer_is_no_reason_to_have_no_hint(tmp_path):
    keys = {"index": "ets", "format": "ledger", "file_size_limit": "2MiB", "sync_interval": "1h"}
    store = open_with(tmp_path, **keys)
    with store.client() as client:
        client.write_many((n.to_bytes(16, "big"), bytes(1000)) for n in range(3500))
        store.roll()
    store.abandon()
    assert read_by_index(tmp_path / "0.ledger")
    with open_with(tmp_path, **keys) as store:
        assert store.stats().recovery.hinted == ["0.ledger", "1.ledger"]
        assert store.stats().messages == 3500


def test_a_trailer_is_synced_as_its_segment_is(tmp_path):
    files = RecordingFiles()
    with open_with(tmp_path, files, **store_keys(SQLITE_LEDGER, durability="fsync")) as store, store.client() as client:
        client.write(IDS[0], b"body")
        store.flush()
        files.operations.clear()
        store.roll()
    names = [name for name, _, _ in files.operations if name in CHANGES]
    assert names[:2] == ["pwrite", "sync"]


def test_a_trailer_is_cut_off_on_disk_before_anything_moves(tmp_path):
    files = RecordingFiles()
    with open_with(tmp_path, files, **store_keys(SQLITE_LEDGER)) as store, store.client() as client:
        client.write_many((i, body_of(i)) for i in IDS[:20])
        store.roll()
        client.remove(IDS[:10])
        store.flush()
        files.operations.clear()
        (done,) = store.compact(everything=True)
    assert done.moved_records
    names = [name for name, path, _ in files.operations if name in CHANGES and path == "0.ledger"]
    assert names[:3] == ["truncate", "sync", "pwrite"]


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


def test_the_command_line_reads_them(others):
    result = run("scan", others, "--json")
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.output.splitlines()]
    records = {bytes.fromhex(row["id"]) for segment in found for row in segment.get("records", ())}
    assert records == BY_ID.keys()
    for verb in (["map", others], ["info", others]):
        assert run(*verb).exit_code == 0
    rescued = others.with_name("rescued")
    assert run("salvage", others, rescued, "--index", "sqlite").exit_code == 0
    assert run("verify", rescued).exit_code == 0
    with msgstore.open_store(rescued, index="sqlite", mode="r") as store, store.client() as client:
        assert client.read_many(BY_ID) == BY_ID


@every_index
def test_a_store_serves_them_and_their_long_keys_stay(index_name, others):
    """Through compaction in place, and through a rewriting: a record holds more than its id and its body."""
    keys = store_keys(Cell(index_name, "ledger"), file_size_limit=40_000)
    with open_with(others, adopt=True, **keys) as store, store.client() as client:
        assert client.read_many(BY_ID) == BY_ID
        store.roll()
        gone = [message_id(key) for key in list(MESSAGES)[::3]]
        client.remove(gone)
        store.compact(everything=True)
        left = {key for n, key in enumerate(MESSAGES) if n % 3}
        assert keys_of(store) == left
        with mock.patch.object(store._collector, "_policy", SimpleNamespace(plan=lambda *_: [Combine((0, 1))])):
            assert [one.done for one in store.compact()] == ["combined", "combined"]
        assert keys_of(store) == left
        assert set(named_ids(others)) >= left
        assert client.read_many(BY_ID) == {message_id(key): MESSAGES[key] for key in left}
    assert run("get", others, message_id(min(left)).hex()).stdout_bytes == MESSAGES[min(left)]


def test_they_migrate_to_v2(others):
    result = run("migrate", others, "--to", "v2", "--adopt")
    assert result.exit_code == 0, result.output
    assert segments_of(others) == []
    with msgstore.open_store(others, mode="r") as store, store.client() as client:
        assert client.read_many(BY_ID) == BY_ID


@pytest.mark.parametrize(
    ("damage", "lost", "reason"),
    [
        (lambda data: data[:-30], 0, "torn"),  # inside the index
        (lambda data: data[: len(data) - 2000] + bytes(2000), None, "torn"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], 1, "checksum_mismatch"),
        (lambda data: data[:-40] + bytes([data[-40] ^ 8]) + data[-39:], 0, "index_checksum_mismatch"),
        (lambda data: data[:4096] + b"\xee" + data[4097:], 1, "unknown_element"),
        (lambda data: data[:9] + b"\x07" + data[10:], 0, "bad_version"),
        (lambda data: data[:99] + b"\x07" + data[100:], 0, "bad_checksum"),
    ],
)
def test_damage_is_found_and_the_rest_is_rescued(damage, lost, reason, others):
    file = others / "0.ledger"
    file.write_bytes(damage(file.read_bytes()))
    result = run("scan", others)
    assert result.exit_code == 1
    assert reason in result.output
    assert run("verify", others).exit_code == 1
    rescued = others.with_name("rescued")
    assert run("salvage", others, rescued, "--index", "sqlite", "--format", "ledger").exit_code == 1
    with msgstore.open_store(rescued, index="sqlite", format="ledger", mode="r") as store, store.client() as client:
        found = client.read_many(BY_ID)
    assert found.items() <= BY_ID.items()
    if lost is not None:
        assert len(found) == len(BY_ID) - lost


def test_the_writer_of_the_tests_knows_nothing_of_the_plugin():
    source = Path(foreign_ledger.__file__).read_text()
    assert "foreign_backends" not in source
    assert "msgstore." not in source
