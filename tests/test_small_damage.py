"""Small damage to a directory costs what it damaged, and no counts: they are kept wherever the records agree."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import msgstore
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.testing.faults import copy_of
from support import command, failing, filled, flip, json_of, needs_erlang, open_with
from support import counts as references_of

IDS = [bytes([n]) * 16 for n in range(1, 13)]
COUNTS = {msg_id: n for n, msg_id in enumerate(IDS, 1) if n % 4}
"""Every fourth message is removed."""
BODY = 60
"""Bytes; four messages fill a segment."""


def fill(path: Path, kind: str, ids: list[bytes] = IDS, **keys: object) -> None:
    with open_with(path, index=kind, sync_interval="1h", file_size_limit=350, gc_interval=0, **keys) as store:
        client = store.client("c")
        for at, msg_id in enumerate(ids, 1):
            for _ in range(COUNTS.get(msg_id, 1)):
                client.write(msg_id, msg_id[:1] * BODY)
            if at % 4 == 0:
                store.roll()
        client.remove([msg_id for msg_id in ids if msg_id not in COUNTS and msg_id in IDS])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    stores = {}
    for kind in ("ets", "lmdb"):
        stores[kind] = tmp_path_factory.mktemp("damage") / kind
        fill(stores[kind], kind)
    return stores


@pytest.fixture
def path(made, kind, tmp_path):
    """Three segments of three live messages and a removed one each, with counts from 1 to 11."""
    return copy_of(made[kind], tmp_path / "store")


def reopened(path: Path, kind: str, **keys: object) -> tuple[dict[bytes, int], Recovery]:
    with open_with(path, index=kind, file_size_limit=350, **keys) as store:
        return references_of(store), store.stats().recovery


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def verified(path: Path, code: int | None = None) -> dict[str, Any]:
    return json_of("verify", path, code=code)[-1]


def append(path: Path, data: bytes = b"x") -> None:
    with (path / "1.sqs").open("ab") as file:
        file.write(data)


DAMAGES = {
    "1.sqs has grown since it was sealed": append,
    "clean.dot is not the one that was left with it": lambda path: flip(path / "clean.dot", 5, 1),
    "99.sqs is new": lambda path: (path / "99.sqs").touch(),
    "clean.dot is not": lambda path: (path / "clean.dot").unlink(),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_small_damage_keeps_every_count(path, kind, reason, caplog, files):
    DAMAGES[reason](path)
    summary = verified(path)
    assert (summary["kept"], summary["missing"], summary["revived"]) == (9, 0, 0)
    assert reason in summary["distrust"]
    with open_with(path, files, index=kind, file_size_limit=350) as store:
        recovery = store.stats().recovery
        assert references_of(store) == COUNTS, "counts after small damage"
    assert (recovery.kept, recovery.missing, recovery.revived, recovery.copy) == (9, 0, 0, None)
    assert f"do not fit the directory: {recovery.distrust}. 9 messages keep their counts, 0 are missing" in warnings(caplog)
    read = {Path(name).name for operation, name, _ in files.operations if operation == "open_read"}
    assert read & {"0.sqs", "1.sqs", "2.sqs"} == ({"1.sqs"} if DAMAGES[reason] is append else set()), "more is read"
    counts, recovery = reopened(path, kind)
    assert (counts, recovery.how) == (COUNTS, "trust")


def test_replaced_segment_tells_missing_messages(path, kind, tmp_path, caplog):
    """By a file of another store, of the same size. The counts of before are kept as a file, which gives them back."""
    others = [bytes([n]) * 16 for n in range(101, 105)]
    fill(tmp_path / "other", kind, others)
    saved = (path / "1.sqs").read_bytes()
    (path / "1.sqs").write_bytes((tmp_path / "other" / "0.sqs").read_bytes())
    assert len(saved) == (path / "1.sqs").stat().st_size
    summary = verified(path, 1)
    assert (summary["missing"], summary["revived"], summary["ok"]) == (3, 4, False)
    counts, recovery = reopened(path, kind)
    left = {msg_id: count for msg_id, count in COUNTS.items() if msg_id not in IDS[4:8]}
    assert counts == left | dict.fromkeys(others, 1)
    assert (recovery.kept, recovery.missing, recovery.revived) == (6, 3, 4)
    assert [(lost.file, lost.messages, lost.reason) for lost in recovery.lost] == [("1.sqs", 3, "replaced")]
    assert "6 messages keep their counts, 3 are missing, 4 may have been removed and are live again" in warnings(caplog)
    assert recovery.copy == "msgstore-counts-1.csv"
    lines = (path / recovery.copy).read_text().splitlines()
    assert {bytes.fromhex(line[:32]): int(line[33:]) for line in lines[1:]} == COUNTS
    (path / "1.sqs").write_bytes(saved)
    command("rm", path, IDS[0].hex(), "--refcounts", path / recovery.copy)
    assert reopened(path, kind)[0].keys() == COUNTS.keys() - {IDS[0]}


def test_copied_segment_reports_revived_messages(path, kind, caplog):
    """As an operator's backup in the same directory; and a segment is missing."""
    shutil.copy2(path / "1.sqs", path / "99.sqs")
    (path / "0.sqs").unlink()
    summary = verified(path, 1)
    counts, recovery = reopened(path, kind)
    back = counts.keys() - COUNTS.keys()
    assert recovery.revived == summary["revived"] == len(back) > 0
    assert f"{len(back)} may have been removed and are live again" in warnings(caplog)
    assert {i: count for i, count in counts.items() if i not in back} == {i: n for i, n in COUNTS.items() if i not in IDS[:4]}
    assert (recovery.missing, [lost.reason for lost in recovery.lost]) == (3, ["missing"])


def test_damaged_snapshot_keeps_other_counts(made, tmp_path, caplog):
    path = copy_of(made["ets"], tmp_path / "store")
    data = flip(path / "msgstore-ets.snapshot", 41, 1)  # in the first id
    verified(path, 1)
    counts, _ = reopened(path, "ets")
    assert sum(counts.get(msg_id) != count for msg_id, count in COUNTS.items()) <= 1
    assert len(counts.keys() - COUNTS.keys()) <= 1, "the dead of other segments are back"
    assert (path / "msgstore-ets.snapshot.damaged").read_bytes() == data
    assert "keep their counts, 1 are missing" in warnings(caplog)


def test_moved_records_keep_their_counts(path, kind):
    """Another program has put a segment under another number."""
    (path / "1.sqs").rename(path / "7.sqs")
    counts, recovery = reopened(path, kind)
    assert {msg_id: counts.get(msg_id) for msg_id in COUNTS} == COUNTS
    assert recovery.missing == 0


def test_grown_segment_enters_only_what_is_new(path, kind):
    """Below the size that the index knows, what it does not have is dead."""
    other = filled(path.with_name("other"), [(b"n" * 16, b"new")], index=kind)
    append(path, (other / "0.sqs").read_bytes()[64:])  # without the header
    counts, recovery = reopened(path, kind)
    assert counts == COUNTS | {b"n" * 16: 1}
    assert recovery.revived == 0


def test_given_counts_still_rebuild(path, kind):
    flip(path / "clean.dot", 5, 1)
    counts, recovery = reopened(path, kind, refcounts=[(IDS[0], 7), (IDS[3], 2)])
    assert (recovery.how, counts) == ("rebuild", {IDS[0]: 7, IDS[3]: 2})
    assert recovery.copy is not None


def test_broker_use_in_between_warns_of_the_dead(path, kind, caplog):
    """Counts are the broker's to know then; without them the removed messages are back, and it is said how many."""
    (path / "msg_store_index.ets").write_bytes(b"what the broker saved")
    (path / "clean.dot").write_bytes(b"{client_refs,[]}.\n{last_v1_file,none}.\n")
    summary = verified(path, 1)
    assert (summary["revived"], summary["ok"]) == (3, False)
    assert "no damage" not in command("verify", path, code=1).stdout
    counts, recovery = reopened(path, kind)
    assert counts == dict.fromkeys(IDS, 1)
    assert (recovery.how, recovery.revived, recovery.copy) == ("rebuild", 3, "msgstore-counts-1.csv")
    assert "3 may have been removed and are live again" in warnings(caplog)


def test_failed_reconciliation_can_be_repeated(path, kind, files):
    append(path)
    for name in (" msgstore-clean.dot", " msgstore.json"):  # the targets
        files.before("replace", failing(errno.ENOSPC), name, times=None)
    with pytest.raises(msgstore.MsgStoreError):
        open_with(path, files, index=kind, file_size_limit=350)
    assert reopened(path, kind)[0] == COUNTS


# -- msgstore.json ----------------------------------------------------------------------------------------------------------

TORN = {"empty": b"", "torn": b'{"layout": 1,', "zeros": bytes(134), "huge": bytes(2**20 + 1)}


@pytest.mark.parametrize("torn", TORN)
def test_damaged_settings_are_restored_from_their_copy(path, kind, torn, caplog):
    was = (path / "msgstore.json").read_bytes()
    (path / "msgstore.json").write_bytes(TORN[torn])
    for mode in ("r", "rw"):
        caplog.clear()
        assert reopened(path, kind, mode=mode)[0] == COUNTS
        assert warnings(caplog).count("msgstore.json: is damaged") == 1
        assert "Its copy is used" in warnings(caplog)
        assert (path / "msgstore.json").read_bytes() == (was if mode == "rw" else TORN[torn])
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
def test_copy_of_settings_names_the_codec(tmp_path):
    """For every reader, also in another process beside the writer."""
    with open_with(tmp_path, index="lmdb", body="erlang") as store:
        store.client().write(IDS[0], b"body")
        store.flush()
        (tmp_path / "msgstore.json").write_bytes(b"")
        arguments = [sys.executable, "-m", "msgstore", "get", str(tmp_path), IDS[0].hex()]
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
