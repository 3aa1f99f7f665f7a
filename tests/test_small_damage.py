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
from msgstore.files import Files
from msgstore.testing.faults import copy_of
from support import DATA, catalogue, command, failing, filled, flip, json_of, needs_erlang, open_with
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


def remembered(path: Path) -> dict[str, Any]:
    return json.loads((path / "msgstore.json").read_bytes())


def append(path: Path, data: bytes = b"x") -> None:
    with (path / "1.sqs").open("ab") as file:
        file.write(data)


DAMAGES = {
    "a byte more": append,
    "a bit of the marker": lambda path: flip(path / "clean.dot", 5, 1),
    "an empty segment": lambda path: (path / "99.sqs").touch(),
    "no marker": lambda path: (path / "clean.dot").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_small_damage_keeps_every_count(path, kind, damage, caplog):
    DAMAGES[damage](path)
    summary = verified(path)
    assert (summary["kept"], summary["missing"], summary["revived"]) == (9, 0, 0)
    assert summary["distrust"]
    counts, recovery = reopened(path, kind)
    assert counts == COUNTS, "counts after small damage"
    assert (recovery.kept, recovery.missing, recovery.revived, recovery.copy) == (9, 0, 0, None)
    assert "9 messages keep their counts, 0 are missing, 0 may have been removed and are live again" in warnings(caplog)
    counts, recovery = reopened(path, kind)
    assert (counts, recovery.how) == (COUNTS, "trust")


def test_replaced_segment_tells_missing_messages(path, kind, tmp_path, caplog):
    """By a file of another store, of the same size."""
    others = [bytes([n]) * 16 for n in range(101, 105)]
    fill(tmp_path / "other", kind, others)
    assert (tmp_path / "other" / "0.sqs").stat().st_size == (path / "1.sqs").stat().st_size
    (path / "1.sqs").write_bytes((tmp_path / "other" / "0.sqs").read_bytes())
    summary = verified(path, 1)
    assert (summary["missing"], summary["revived"], summary["ok"]) == (3, 4, False)
    counts, recovery = reopened(path, kind)
    left = {msg_id: count for msg_id, count in COUNTS.items() if msg_id not in IDS[4:8]}
    assert counts == left | dict.fromkeys(others, 1)
    assert (recovery.kept, recovery.missing, recovery.revived) == (6, 3, 4)
    assert [(lost.file, lost.messages, lost.reason) for lost in recovery.lost] == [("1.sqs", 3, "replaced")]
    assert "6 messages keep their counts, 3 are missing, 4 may have been removed and are live again" in warnings(caplog)


def test_replaced_counts_are_kept_as_a_file(path, kind, tmp_path):
    saved = (path / "1.sqs").read_bytes()
    (path / "1.sqs").write_bytes((path / "0.sqs").read_bytes())
    _, recovery = reopened(path, kind)
    assert recovery.copy == "msgstore-counts-1.csv"
    lines = (path / recovery.copy).read_text().splitlines()
    assert {bytes.fromhex(line[:32]): int(line[33:]) for line in lines[1:]} == COUNTS
    (path / "1.sqs").write_bytes(saved)
    command("rm", path, IDS[0].hex(), "--refcounts", path / recovery.copy)
    counts, _ = reopened(path, kind)
    assert set(counts) == COUNTS.keys() - {IDS[0]}


def test_copied_segment_reports_revived_messages(path, kind, caplog):
    """As an operator's backup in the same directory."""
    shutil.copy2(path / "1.sqs", path / "99.sqs")
    summary = verified(path, 1)
    counts, recovery = reopened(path, kind)
    back = counts.keys() - COUNTS.keys()
    assert recovery.revived == summary["revived"] == len(back) > 0
    assert f"{len(back)} may have been removed and are live again" in warnings(caplog)


def test_damaged_snapshot_keeps_other_counts(made, tmp_path, caplog):
    path = copy_of(made["ets"], tmp_path / "store")
    data = flip(path / "msgstore-ets.snapshot", 41, 1)  # in the first id
    verified(path, 1)
    counts, _ = reopened(path, "ets")
    assert sum(counts.get(msg_id) != count for msg_id, count in COUNTS.items()) <= 1
    assert len(counts.keys() - COUNTS.keys()) <= 1, "the dead of other segments are back"
    assert (path / "msgstore-ets.snapshot.damaged").read_bytes() == data
    assert "keep their counts, 1 are missing" in warnings(caplog)


def test_missing_segment_beside_other_damage_keeps_counts(path, kind):
    (path / "0.sqs").unlink()
    append(path)
    counts, recovery = reopened(path, kind)
    assert counts == {msg_id: count for msg_id, count in COUNTS.items() if msg_id not in IDS[:4]}
    assert (recovery.missing, [lost.reason for lost in recovery.lost]) == (3, ["missing"])


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


def test_unchanged_segments_are_not_read(path, kind, files):
    append(path)
    open_with(path, files, index=kind, file_size_limit=350).close()
    read = {Path(name).name for operation, name, _ in files.operations if operation == "open_read"}
    assert read & {"0.sqs", "1.sqs", "2.sqs"} == {"1.sqs"}


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

TORN = {"empty": lambda text: b"", "torn": lambda text: text[:60], "zeros": lambda text: b"\0" * 134}


def tear(path: Path, how: str, *, copy: bool = False) -> bytes:
    """Damage the settings. Unless ``copy`` is kept, there is nothing but the directory to rebuild them from."""
    if not copy:
        (path / "msgstore.json.copy").unlink()
    damaged = TORN[how]((path / "msgstore.json").read_bytes())
    (path / "msgstore.json").write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("how", TORN)
def test_damaged_settings_are_rebuilt(path, kind, how, caplog):
    was = remembered(path)
    damaged = tear(path, how)
    with msgstore.open_store(path) as store:  # with the default index
        assert references_of(store) == COUNTS
    assert (path / "msgstore.json.damaged-1").read_bytes() == damaged
    assert "msgstore.json: is damaged" in warnings(caplog)
    assert (remembered(path)["index"], remembered(path)["format"]) == ("ets", was["format"])


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_damaged_settings_are_restored_from_their_copy(path, kind, how, mode, caplog):
    was = (path / "msgstore.json").read_bytes()
    damaged = tear(path, how, copy=True)
    with msgstore.open_store(path, index=kind, mode=mode) as store:
        assert references_of(store) == COUNTS
    for part in ("msgstore.json: is damaged", "Its copy is used"):
        assert part in warnings(caplog)
    if mode == "rw":
        assert (path / "msgstore.json.damaged-1").read_bytes() == damaged
    assert (path / "msgstore.json").read_bytes() == (was if mode == "rw" else damaged)


def test_copy_of_settings_names_the_index(tmp_path):
    """Files of two indexes have the same age, as after copying a directory: only the copy names the one that was used."""
    filled(tmp_path, [(msg_id, b"body") for msg_id in IDS], index="lmdb")
    with open_with(tmp_path, index="ets") as store:
        store.client().remove(IDS[:2])
        store.client().write(IDS[2], b"")
    for file in sorted(tmp_path.rglob("*")):
        os.utime(file)
    os.utime(tmp_path / "msgstore-lmdb" / "data.mdb")
    tear(tmp_path, "empty", copy=True)
    with open_with(tmp_path, index="ets") as store:
        counts = references_of(store)
    assert counts == {msg_id: 1 + (msg_id == IDS[2]) for msg_id in IDS[2:]}


@needs_erlang
@pytest.mark.parametrize(("body", "copy"), [("raw", True), ("erlang", True), ("erlang", False)])
def test_damaged_settings_keep_the_codec(body, copy, tmp_path):
    """Named by the copy, or found in the records of a broker."""
    term = b"\x83m\0\0\0\5hello"
    filled(tmp_path, [(IDS[0], term)], body=body)
    tear(tmp_path, "empty", copy=copy)
    for mode in ("r", "rw"):
        with open_with(tmp_path, mode=mode) as store:
            assert store.client().read(IDS[0]) == term, "a damaged msgstore.json changed what is read"
    assert remembered(tmp_path)["body"] == body


@needs_erlang
def test_reader_beside_writer_uses_copy_of_settings(tmp_path):
    with open_with(tmp_path, index="lmdb", body="erlang") as store:
        store.client().write(IDS[0], b"body")
        store.flush()
        tear(tmp_path, "empty", copy=True)
        arguments = [sys.executable, "-m", "msgstore", "get", str(tmp_path), IDS[0].hex()]
        assert subprocess.run(arguments, capture_output=True, check=True).stdout == b"body"


def test_settings_without_a_copy_get_one(path, kind):
    """As an older version has left them, or a crash between the two files."""
    (path / "msgstore.json.copy").unlink()
    open_with(path, index=kind).close()
    assert (path / "msgstore.json.copy").read_bytes() == (path / "msgstore.json").read_bytes()


def test_damaged_settings_beside_broker_counts_need_adoption(tmp_path):
    shutil.copytree(DATA / "msg-store" / "mixed_upgrade" / "store", tmp_path / "store")
    (tmp_path / "store" / "msgstore.json").touch()
    with pytest.raises(msgstore.NotAdopted, match=r"msg_store_index\.ets"):
        msgstore.open_store(tmp_path / "store")
    assert (tmp_path / "store" / "msg_store_index.ets").exists()


@pytest.mark.parametrize("verb", ["info", "verify", "get", "rm", "put", "compact", "scan", "export", "inventory", "migrate"])
def test_every_verb_works_without_settings(path, kind, verb, tmp_path):
    tear(path, "empty")
    more = {
        "get": [IDS[0].hex()], "rm": [IDS[0].hex()], "put": ["ab" * 16], "export": [str(tmp_path / "out")],
        "migrate": ["--to", "v2"],
    }  # fmt: skip
    result = command(verb, path, *more.get(verb, []), stdin="body", code=None)
    assert result.exit_code in ((0, 1, 3) if verb in ("scan", "export", "inventory") else (0,)), result.output
    if verb in ("info", "verify"):
        assert str(len(COUNTS)) in result.stdout


def test_settings_unknown_type_byte_is_refused(path, kind):
    """A record of it would be taken for damage, and its message be lost."""
    flip(path / "1.sqs", 64, 200 ^ 3)
    tear(path, "empty")
    with pytest.raises(msgstore.MsgStoreError, match=r"bound to byte 200. Bind it in the configuration"):
        open_with(path, index=kind, file_size_limit=350)
    assert not (path / "msgstore.json.damaged-1").exists()


def test_settings_assigned_record_type_is_found(tmp_path):
    filled(tmp_path, [(IDS[0], b"body")], index="lmdb", record="checksum")
    tear(tmp_path, "torn")
    with open_with(tmp_path, index="lmdb") as store:
        assert store.client().read(IDS[0]) == b"body"
    assert remembered(tmp_path)["records"] == {"checksum": 4}


@pytest.mark.skipif("zstd" not in catalogue().names("body"), reason="pip install -e ./examples/acme_zstd_body")
def test_settings_unknown_body_codec_is_refused(tmp_path):
    """Read as they are stored, the bodies would be wrong, and the next ones be stored by another codec."""
    filled(tmp_path, [(IDS[0], b"body")], body="zstd")
    tear(tmp_path, "empty")
    for mode in ("r", "rw"):
        with pytest.raises(msgstore.StoreMismatch, match='Name it: body = "zstd"'):
            open_with(tmp_path, mode=mode)
    command("get", tmp_path, IDS[0].hex(), code=2)
    for keys in ({"body": "zstd"}, {}):
        with open_with(tmp_path, **keys) as store:
            assert store.client().read(IDS[0]) == b"body"


def test_settings_of_any_size_are_kept_in_parts(path, kind):
    """A file of many gigabytes, sparse or not, does not fit into memory."""
    sizes = []

    class Watching(Files):
        def pwrite(self, fd, data, offset):
            sizes.append(len(data))
            if len(sizes) < 3:
                super().pwrite(fd, data, offset)

    size = 65 * 2**20
    os.truncate(path / "msgstore.json", size)
    with open_with(path, Watching(), index=kind) as store:
        assert len(list(store.entries())) == len(COUNTS)
    assert max(sizes) <= 2**20
    assert sum(sizes) >= size


def test_settings_rebuilt_outlive_a_failed_index_change(made, tmp_path):
    """The files that the attempt has left are younger than those of the index that has the counts."""

    class Failing(Files):
        def list(self, directory):
            if (directory / "msgstore-lmdb").exists():
                failing()()
            return super().list(directory)

        def read_file(self, path):
            if path.name == "msgstore-ets.snapshot":
                failing()()
            return super().read_file(path)

    path = copy_of(made["ets"], tmp_path / "store")
    tear(path, "empty")
    with pytest.raises(msgstore.StoreError):
        open_with(path, Failing(), index="lmdb", file_size_limit=350)
    assert (path / "msgstore-lmdb").exists(), "the test fails too early"
    assert reopened(path, "lmdb")[0] == COUNTS
