"""Openings of a directory that is damaged cost what was damaged, openings that fail cost nothing: counts are kept."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from crash.files import FaultyFiles, every_fault
from msgstore.directory import known_settings
from msgstore.engine import opening
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.files import Files
from msgstore.testing.faults import Crash, FailingFiles, RecordingFiles, copy_of, listing
from support import command, failing, filled, flip, json_of, needs_erlang, open_with, slow, unchanged
from support import counts as references_of

IDS = [bytes([n]) * 16 for n in range(1, 13)]
COUNTS = {msg_id: n for n, msg_id in enumerate(IDS, 1) if n % 4}
"""Every fourth message is removed."""
BODY = 60
"""Bytes; four messages fill a segment."""
OTHERS = [bytes([n]) * 16 for n in range(101, 105)]
Counts = dict[bytes, int]


def fill(path: Path, kind: str, ids: list[bytes] = IDS, **keys: object) -> Path:
    with open_with(path, index=kind, sync_interval="1h", file_size_limit=350, gc_interval=0, **keys) as store:
        client = store.client("c")
        for at, msg_id in enumerate(ids, 1):
            for _ in range(COUNTS.get(msg_id, 1)):
                client.write(msg_id, msg_id[:1] * BODY)
            if at % 4 == 0:
                store.roll()
        client.remove([msg_id for msg_id in ids if msg_id not in COUNTS and msg_id in IDS])
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {kind: fill(tmp_path_factory.mktemp("damage") / kind, kind) for kind in ("ets", "lmdb")}


@pytest.fixture
def path(made, kind, tmp_path):
    """Three segments of three live messages and a removed one each, with counts from 1 to 11."""
    return copy_of(made[kind], tmp_path / "store")


def reopened(path: Path, kind: str, **keys: object) -> tuple[Counts, Recovery]:
    with open_with(path, **{"index": kind, "file_size_limit": 350, "gc": "never", **keys}) as store:
        stats = store.stats()
        assert stats.messages == sum(segment.live_count for segment in store.segments()) == len(references_of(store))
        assert stats.live_bytes == sum(entry.size for entry in store.entries())
        assert set(store.read_many(IDS).items()) == {(i, i[:1] * BODY) for i in references_of(store) if i in IDS}
        return references_of(store), stats.recovery


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def less(*numbers: int, last: bool = False) -> Counts:
    """The counts without these segments, or without the last live message of each."""
    gone = {msg_id for number in numbers for msg_id in IDS[4 * number + 2 * last : 4 * number + 4]}
    return {msg_id: count for msg_id, count in COUNTS.items() if msg_id not in gone}


def append(path: Path, data: bytes = b"x") -> None:
    with (path / "1.sqs").open("ab") as file:
        file.write(data)


def grown(path: Path) -> None:
    other = filled(path.with_name("other"), [(OTHERS[0], b"new")], index="ets")
    append(path, (other / "0.sqs").read_bytes()[64:])  # without the header


def replaced(path: Path) -> None:
    other = fill(path.with_name("other"), "ets", OTHERS)
    assert (other / "0.sqs").stat().st_size == (path / "1.sqs").stat().st_size
    (path / "1.sqs").write_bytes((other / "0.sqs").read_bytes())


def used_by_broker(path: Path) -> None:
    (path / "msg_store_index.ets").write_bytes(b"what the broker saved")
    (path / "clean.dot").write_bytes(b"{client_refs,[]}.\n{last_v1_file,none}.\n")


def cut(path: Path, number: int, left: int = 0) -> None:
    """Cut off the last live record, but for so many bytes; the dead one after it goes, too."""
    os.truncate(path / f"{number}.sqs", 64 + 2 * 81 + left)


def lost_in_a_copy(path: Path) -> None:
    """Every other segment has another time, and is compared with the index."""
    (path / "1.sqs").unlink()
    for name in ("0.sqs", "2.sqs"):
        os.utime(path / name)


def missing_and_grown(path: Path) -> None:
    append(path)
    (path / "0.sqs").unlink()


@attrs.frozen
class Case:
    """What is done to a directory, and what its next opening says."""

    change: Callable[[Path], object]
    distrust: str
    counts: Counts = COUNTS
    missing: int = 0
    revived: int = 0
    lost: str = ""
    """Name and fate of the segment that is lost."""
    read: list[str] | None = None
    """Segments that are read; None if that does not matter."""
    how: str = "reconciled"
    keys: dict[str, Any] = attrs.field(factory=dict)


def deleting(*names: str) -> Callable[[Path], object]:
    return lambda path: [(path / name).unlink() for name in names]


def flipping(path: Path) -> object:
    return flip(path / "clean.dot", 5, 1)


AGAIN = COUNTS | {IDS[7]: 1}
"""A removed message of segment 1 is back."""
GIVEN = {"refcounts": [(IDS[0], 7), (IDS[3], 2)]}
FIVE = {"refcounts": dict.fromkeys(COUNTS, 5).items()}
LOST = "segments are missing or shortened"
CASES = {
    "grown by a byte": Case(append, "1.sqs has grown since it was sealed", read=["1.sqs"]),
    "marker damaged": Case(flipping, "clean.dot is not the one that was left with it", read=[]),
    "marker gone": Case(deleting("clean.dot"), "clean.dot is not", read=[]),
    "empty segment": Case(lambda path: (path / "99.sqs").touch(), "99.sqs is new", read=["99.sqs"]),
    "grown by a record": Case(grown, "1.sqs has grown", COUNTS | {OTHERS[0]: 1}, read=["1.sqs"]),
    "moved": Case(lambda path: (path / "1.sqs").rename(path / "7.sqs"), "7.sqs is new", AGAIN, 0, 1, "1.sqs is missing"),
    "copied": Case(lambda path: shutil.copy2(path / "1.sqs", path / "99.sqs"), "99.sqs is new", AGAIN, 0, 1, read=["99.sqs"]),
    "replaced": Case(replaced, "1.sqs was", less(1) | dict.fromkeys(OTHERS, 1), 3, 4, "1.sqs is not the file that it was"),
    "missing": Case(deleting("1.sqs"), LOST, less(1), 3, lost="1.sqs is missing"),
    "missing in a copy": Case(lost_in_a_copy, LOST, less(1), 3, lost="1.sqs is missing", read=["0.sqs", "2.sqs"]),
    "missing beside other damage": Case(missing_and_grown, "1.sqs has grown", less(0), 3, lost="0.sqs is missing"),
    "shortened": Case(lambda path: cut(path, 1), LOST, less(1, last=True), 1, lost="1.sqs has 226 of"),
    "torn": Case(lambda path: cut(path, 2, 20), LOST, less(2, last=True), 1, lost="2.sqs has 246 of"),
    "deleted by a broker": Case(deleting("1.sqs", "clean.dot"), "clean.dot is not", less(1), 3),
    "used by a broker": Case(used_by_broker, "RabbitMQ has saved", dict.fromkeys(IDS, 1), revived=3, how="rebuild"),
    "given counts": Case(flipping, "clean.dot is not", dict(GIVEN["refcounts"]), how="rebuild", keys=GIVEN),
    "given counts, missing": Case(
        deleting("1.sqs"), LOST[:20], dict.fromkeys(less(1), 5), 3, 0, "1.sqs is", None, "rebuild", FIVE
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_damaged_directory_keeps_what_records_confirm(path, kind, case, caplog):
    """Nothing is read that need not be. The counts of before are in a file, and the next opening trusts the index."""
    case.change(path)
    for mode in ("r", "rw"):
        caplog.clear()
        with unchanged(path, but=["data.mdb", "lock.mdb"]) if mode == "r" else nullcontext():
            counts, recovery = reopened(path, kind, mode=mode, **case.keys)
        assert case.read is None or recovery.scanned == case.read
        assert recovery.counts_are_kept == (case.how == "reconciled" and not (case.missing or case.revived))
        assert counts == case.counts
        assert (recovery.how, recovery.missing, recovery.revived) == (case.how, case.missing, case.revived)
        assert recovery.kept == (0 if case.how == "rebuild" else len(COUNTS) - case.missing)
        assert case.distrust in (recovery.distrust or "")
        assert f"do not fit the directory: {recovery.distrust}. {recovery.kept} messages keep their counts" in warnings(caplog)
        assert [f"{lost.file} {lost}"[: len(case.lost)] for lost in recovery.lost] == [case.lost] * bool(case.lost)
        assert not case.lost or f"{path / recovery.lost[0].file}: {recovery.lost[0]}" in warnings(caplog)
    is_changed = counts != COUNTS or case.missing
    assert recovery.copy == ("msgstore-counts-1.csv" if is_changed else None)
    if recovery.copy:
        lines = (path / recovery.copy).read_text().splitlines()
        assert {bytes.fromhex(line[:32]): int(line[33:]) for line in lines[1:]} == COUNTS
    counts, recovery = reopened(path, kind)
    assert (counts, recovery.how, recovery.damaged) == (case.counts, "trust", [])


def test_loss_of_every_segment_is_reported(path, kind):
    names = ["0.sqs", "1.sqs", "2.sqs"]
    deleting(*names)(path)
    counts, recovery = reopened(path, kind, mode="r")
    assert recovery.damaged == [f"{name}: is missing; the index has 3 live messages in it" for name in names]
    assert (recovery.how, recovery.missing, counts) == ("reconciled", 9, {})


def verified(path: Path, code: int) -> dict[str, Any]:
    return json_of("verify", path, code=code)[-1]


def test_replaced_segment_comes_back_with_saved_counts(path, kind):
    saved = (path / "1.sqs").read_bytes()
    replaced(path)
    summary = verified(path, 1)
    assert (summary["kept"], summary["missing"], summary["revived"], summary["ok"]) == (6, 3, 4, False)
    assert "1.sqs was changed" in summary["distrust"]
    _, recovery = reopened(path, kind)
    (path / "1.sqs").write_bytes(saved)
    command("rm", path, IDS[0].hex(), "--refcounts", path / recovery.copy)
    assert reopened(path, kind)[0].keys() == COUNTS.keys() - {IDS[0]}


def killed(path: Path, ids: list[bytes], body: bytes, removed: int = 0) -> Path:
    store = open_with(path, index="lmdb", sync_interval="1h", gc_interval=0)
    client = store.client()
    client.write_many((msg_id, body) for msg_id in ids)
    store.flush()
    client.remove(ids[:removed])
    store.flush()
    store.abandon()
    return path / "0.sqs"


@pytest.mark.parametrize("more", [0, 2], ids=["same size", "longer"])
def test_replaced_current_segment_is_reported(tmp_path, more, caplog):
    """The store was killed, so its opening reads the tail of this segment only, and must see that it is another file."""
    current = killed(tmp_path / "store", IDS[:6], b"body")
    shutil.copy(killed(tmp_path / "other", [*OTHERS, *IDS[6 : 8 + more]], b"body"), current)
    with open_with(current.parent, index="lmdb") as store:
        recovery = store.stats().recovery
    assert (recovery.how, recovery.missing, recovery.entered) == ("reconciled", 6, 6 + more)
    assert "0.sqs was replaced" in warnings(caplog)
    assert "0.sqs: is not the file that it was; the index has 6 live messages in it" in warnings(caplog)


@pytest.mark.parametrize("damage", ["none", "torn", "corrupt"])
def test_current_segment_with_late_records_is_trusted(tmp_path, damage):
    """Also if its first live record comes late, if a write was cut off, or if the first record is damaged."""
    current = killed(tmp_path, IDS, bytes(10_000), removed=11)
    if damage == "torn":
        current.write_bytes(current.read_bytes() + b"x")
    elif damage == "corrupt":
        flip(current, 64, 1)
    with open_with(tmp_path, index="lmdb") as store:
        assert (store.stats().recovery.how, store.read(IDS[11])) == ("tail", bytes(10_000))


def test_damaged_snapshot_keeps_other_counts(made, tmp_path, caplog):
    path = copy_of(made["ets"], tmp_path / "store")
    data = flip(path / "msgstore-ets.snapshot", 41, 1)  # in the first id
    verified(path, 1)
    counts, _ = reopened(path, "ets")
    assert sum(counts.get(msg_id) != count for msg_id, count in COUNTS.items()) <= 1
    assert len(counts.keys() - COUNTS.keys()) <= 1, "the dead of other segments are back"
    assert (path / "msgstore-ets.snapshot.damaged").read_bytes() == data
    assert "keep their counts, 1 are missing" in warnings(caplog)


def test_failed_reconciliation_can_be_repeated(path, kind, files):
    append(path)
    for name in (" msgstore-clean.dot", " msgstore.json"):  # the targets
        files.before("replace", failing(errno.ENOSPC), name, times=None)
    with pytest.raises(msgstore.MsgStoreError):
        open_with(path, files, index=kind, file_size_limit=350)
    assert reopened(path, kind)[0] == COUNTS


# -- msgstore.json ----------------------------------------------------------------------------------------------------------

TORN = {"missing": None, "empty": b"", "torn": b'{"layout": 1,', "zeros": bytes(134), "huge": bytes(2**20 + 1)}


@pytest.mark.parametrize("torn", TORN)
def test_damaged_settings_are_restored_from_their_copy(path, kind, torn, caplog):
    settings, damaged = path / "msgstore.json", TORN[torn]
    was = settings.read_bytes()
    if damaged is None:
        settings.unlink()
    else:
        settings.write_bytes(damaged)
    for mode in ("r", "rw"):
        caplog.clear()
        assert reopened(path, kind, mode=mode)[0] == COUNTS
        assert warnings(caplog).count("msgstore.json: cannot be used") == 1
        assert "Its copy is used" in warnings(caplog)
        assert (settings.read_bytes() if settings.exists() else None) == (was if mode == "rw" else damaged)
    (path / "msgstore.json.copy").unlink()  # as a crash between the two files has left them
    reopened(path, kind)
    assert (path / "msgstore.json.copy").read_bytes() == was


def test_copy_of_settings_names_the_index(tmp_path):
    """Files of two indexes have the same age, as after copying a directory: only the copy names the one that was used."""
    filled(tmp_path, [(msg_id, b"body") for msg_id in IDS], index="lmdb")
    with open_with(tmp_path, index="ets") as store:
        store.client().remove(IDS[:2])
        store.client().write(IDS[2], b"")
    for file in [*sorted(tmp_path.rglob("*")), tmp_path / "msgstore-lmdb" / "data.mdb"]:
        os.utime(file)
    (tmp_path / "msgstore.json").write_bytes(b"")
    with open_with(tmp_path, index="ets") as store:
        assert references_of(store) == {msg_id: 1 + (msg_id == IDS[2]) for msg_id in IDS[2:]}


@needs_erlang
@pytest.mark.parametrize("is_read_meanwhile", [False, slow(True)])
def test_copy_of_settings_names_the_codec(is_read_meanwhile, tmp_path):
    """For every reader, also in another process beside the writer."""
    with open_with(tmp_path, index="lmdb", body="erlang") as store:
        store.client().write(IDS[0], b"body")
        store.flush()
        (tmp_path / "msgstore.json").write_bytes(b"")
        arguments = [sys.executable, "-m", "msgstore", "get", str(tmp_path), IDS[0].hex()]
        if is_read_meanwhile:
            assert subprocess.run(arguments, capture_output=True, check=True).stdout == b"body"
    with open_with(tmp_path, index="lmdb") as store:
        assert store.client().read(IDS[0]) == b"body"
    assert json.loads((tmp_path / "msgstore.json").read_bytes())["body"] == "erlang"


def test_damaged_settings_and_copy_are_refused(path, kind, tmp_path):
    """What to do is said, and does it; what needs no settings still works."""
    for name in ("msgstore.json", "msgstore.json.copy"):
        (path / name).write_bytes(b"")
    for mode in ("rw", "r"):
        with pytest.raises(msgstore.StoreError, match=r"msgstore.json: cannot be used: .*move the file away.*adopt=True"):
            open_with(path, index=kind, mode=mode)
    for verb in ("info", "verify", "put"):
        assert "msgstore.json: cannot be used" in command(verb, path, *["ab" * 16] * (verb == "put"), code=2).stderr
    assert command("salvage", path, tmp_path / "new", code=1)
    (path / "msgstore.json").unlink()
    assert reopened(path, kind, adopt=True)[0] == COUNTS


# -- openings that fail or are killed -----------------------------------------------------------------------------------------


def failures(kind, act):
    """Call ``act(injector)`` once for each of its file operations, which fails. Yield what failed, after each call."""
    whole = FaultyFiles()
    act(whole)
    assert len(whole.operations) > 8
    for fault in every_fault(whole.operations, [kind]):
        injector = FaultyFiles(fault)
        act(injector)
        yield f"{kind} at {injector.failed}"


def attempt(path, injector, before_close=lambda store: None, **keys):
    """Open and close; a close that fails is tried again, and given up where it was interrupted."""
    store = None
    with suppress(msgstore.MsgStoreError, KeyboardInterrupt), injector.armed():
        store = open_with(path, injector, **keys)
        before_close(store)
        store.close()
    if store is not None:
        with suppress(msgstore.MsgStoreError):
            store.close()
        store.abandon()


@pytest.mark.crash
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "INT", "INT-AFTER"])
def test_opening_fault_at_any_operation_keeps_counts(path, kind, failure):
    """The next opening finds the counts, and need not read the segments. Then a close that has another client to remember."""
    keys = {"index": kind, "sync_interval": "1h", "file_size_limit": 350, "durability": "fsync"}
    for before_close in (lambda store: None, lambda store: store.client("another")):
        for failed in failures(failure, partial(attempt, path, before_close=before_close, **keys)):
            with open_with(path, **keys) as store:
                assert (store.stats().recovery.how, references_of(store)) == ("trust", COUNTS), failed


def test_store_without_changes_is_untouched_until_the_first(path, kind):
    """Also if it is killed. The references of one message are a change, too."""
    keys = {"index": kind, "sync_interval": "1h"}
    open_with(path, **keys).abandon()
    with open_with(path, **keys) as store:
        assert (store.stats().recovery.how, references_of(store)) == ("trust", COUNTS)
    with unchanged(path, but=["msgstore.lock", "lock.mdb"]), open_with(path, **keys) as store:
        store.flush()
    store = open_with(path, **keys)
    store.client().remove([IDS[6]])
    store.flush()
    assert not list(path.glob("*clean.dot"))
    store.close()
    with open_with(path, **keys) as store:
        assert references_of(store) == COUNTS | {IDS[6]: 6}


def test_killed_before_first_commit_scans_the_tail(path, kind, monkeypatch):
    """The marker is hidden, the record is on disk, and the index still says that the store is closed."""

    def stop():
        raise Crash

    new = bytes([77]) * 16
    store = open_with(path, index=kind, sync_interval="1h")
    store.client().write(new, b"new")
    with monkeypatch.context() as patch:
        patch.setattr(store._accounting.index, "commit", stop)
        with pytest.raises(Crash):
            store.flush()
    store.abandon()
    with open_with(path, index=kind) as store:
        assert (store.stats().recovery.how, references_of(store)) == ("tail", COUNTS | {new: 1})


def test_removal_of_absent_messages_changes_nothing(path, kind):
    before = listing(path)
    with open_with(path, index=kind, sync_interval="1h") as store:
        with pytest.raises(msgstore.MessageNotFound):
            store.client().remove([IDS[3], IDS[7]])
        store.flush()
        assert listing(path).keys() == before.keys(), "a removal of nothing counts as a change"
        store.abandon()
    with open_with(path, index=kind) as store:
        assert references_of(store) == COUNTS, "a process that was killed after a removal of nothing lost its counts"


@pytest.mark.crash
@pytest.mark.parametrize("failure", ["EIO", "EIO+", "INT"])
@pytest.mark.parametrize("new", ["ets", "lmdb"])
def test_index_change_fault_keeps_counts(made, tmp_path, failure, new):
    """The index of the last opening is taken over, however often the first attempts fail. An open store with ``ets`` has its
    counts in memory only, so its close does not fail here."""
    path = tmp_path / "store"

    def take_over(injector):
        shutil.rmtree(path, ignore_errors=True)
        copy_of(made["lmdb" if new == "ets" else "ets"], path)
        with suppress(msgstore.MsgStoreError, KeyboardInterrupt):
            with injector.armed():
                store = open_with(path, injector, index=new, sync_interval="1h")
            store.close()

    for failed in failures(failure, take_over):
        with open_with(path, index=new, sync_interval="1h") as store:
            assert references_of(store) == COUNTS, failed


@pytest.mark.parametrize("durability", ["os", "fsync", {"fsync_every": "1h"}], ids=["os", "fsync", "fsync_every"])
def test_new_store_syncs_every_parent_it_made(durability, tmp_path):
    files = RecordingFiles()
    open_with(tmp_path / "a" / "b" / "store", files, durability=durability).close()
    synced = [path for name, path, _ in files.operations if name == "sync_directory"]
    assert synced[:3] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    files.operations.clear()
    (tmp_path / "there").mkdir()
    open_with(tmp_path / "there", files, durability=durability).close()
    assert ("sync_directory", str(tmp_path), 0) not in files.operations


def test_parents_that_cannot_be_synced_are_removed(tmp_path):
    """Or the next opening would find them, and take them for durable."""
    with pytest.raises(msgstore.StoreError, match=os.strerror(errno.EIO)):
        open_with(tmp_path / "a" / "store", FailingFiles(2))
    assert list(tmp_path.iterdir()) == []
    open_with(tmp_path / "a" / "store").close()


def test_plain_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(msgstore.StoreError, match=str(path)):
            open_with(path)
    assert (tmp_path / "file").read_bytes() == b""


def test_store_opens_again_with_its_backends(tmp_path):
    """Without a key for it, a backend is that of the last opening."""
    with msgstore.open_store(tmp_path, index="lmdb", format="v2", record="checksum") as store, store.client() as client:
        client.write(b"a" * 16, b"body")
    with msgstore.open_store(tmp_path, mode="r") as store, store.client() as client:
        assert client.read(b"a" * 16) == b"body"
    msgstore.open_store(tmp_path).close()
    assert known_settings(Files(), tmp_path).index == "lmdb"
    assert known_settings(Files(), tmp_path).record == "checksum"
    with msgstore.open_store(tmp_path, index="ets", format="v2") as store, store.client() as client:
        client.write(b"b" * 16, b"another")
        store.flush()
        assert store.stats().messages == 2
    settings = known_settings(Files(), tmp_path)
    assert (settings.index, settings.record) == ("ets", "message")


def test_missing_backend_of_the_last_opening_is_no_key_of_the_caller(tmp_path, monkeypatch):
    msgstore.open_store(tmp_path, index="lmdb").close()
    found = msgstore.load_catalogue()
    less = attrs.evolve(found, registrations=tuple(one for one in found.registrations if one.descriptor.name != "lmdb"))
    monkeypatch.setattr(opening, "load_catalogue", lambda: less)
    with pytest.raises(
        msgstore.PluginError, match=f"^{tmp_path} \\(as last opened\\) index: no installed plugin provides the index 'lmdb'"
    ):
        msgstore.open_store(tmp_path)
    with pytest.raises(msgstore.PluginError, match=r"\(as last opened\) index: no installed plugin"):
        msgstore.open_store(tmp_path, record="checksum")
    with pytest.raises(msgstore.PluginError, match=r"^open_store\(\) gc: no installed plugin provides the GC policy 'nope'"):
        msgstore.open_store(tmp_path, index="ets", gc="nope")
    msgstore.open_store(tmp_path, index="ets").close()
