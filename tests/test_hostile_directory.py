"""What SECURITY.md says of a directory that somebody else made: each claim is tried."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import zlib

import lmdb
import pytest

import msgstore
from msgstore.contract import BrokenPlugin
from msgstore.directory import MAX_NUMBER
from msgstore.engine.state import checkpoint
from support import TWENTY, command, filled

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and sparse files are made as POSIX makes them")

PRECIOUS = b"precious, and not ours\n" * 20
SEGMENT = {"v1": "0.rdq", "v2": "0.sqs"}


@pytest.fixture
def made(cell, tmp_path):
    """A store of five messages, closed, and how to open it."""
    keys = {**cell.keys, "path": tmp_path / "store"}
    filled(messages=TWENTY[:5], **keys)
    return keys


def use(keys):
    """Open for writing and write; the number of messages that were there."""
    with msgstore.open_store(**keys) as store, store.client() as client:
        messages = store.stats().messages
        client.write(b"n" * 16, b"new")
        store.flush()
        store.compact()
    return messages


def run(*arguments):
    """Run Python in a process that is killed if it takes half a minute."""
    return subprocess.run([sys.executable, *map(str, arguments)], timeout=30, capture_output=True, text=True)


def contents(path):
    return path.read_bytes() if path.is_file() else {inner.name: inner.read_bytes() for inner in path.iterdir()}


@pytest.mark.parametrize(
    "name", ["msgstore.lock", "segment", "msgstore-lmdb/lock.mdb", "msgstore-lmdb/data.mdb", "msgstore-lmdb"]
)
def test_link_in_place_of_own_file_is_refused(made, cell, name, tmp_path):
    """Though what it leads to is the very file."""
    if "lmdb" in name and cell.index != "lmdb":
        pytest.skip("this index has no such file")
    path = made["path"] / (SEGMENT[cell.format] if name == "segment" else name)
    outside = path.rename(tmp_path / "outside")
    before = contents(outside)
    path.symlink_to(outside)
    with pytest.raises(msgstore.StoreError, match=path.name):
        use(made)
    assert contents(outside) == before
    path.unlink()
    outside.rename(path)
    assert use(made) == 5


@pytest.mark.parametrize(
    "name", ["msgstore.json", "clean.dot", "msgstore-clean.dot", "msgstore-ets.snapshot", "msg_store_index.ets"]
)
def test_other_links_are_replaced_without_following(made, cell, name, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(PRECIOUS)
    path = made["path"] / name
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    assert use(made) == 5
    assert outside.read_bytes() == PRECIOUS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize("name", ["msgstore.lock", "msgstore.json", "segment", "clean.dot", "msgstore-ets.snapshot"])
def test_pipe_or_directory_in_place_never_blocks(made, cell, name, kind):
    path = made["path"] / ("7" + SEGMENT[cell.format][1:] if name == "segment" else name)
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    code = f"import msgstore; msgstore.open_store({str(made['path'])!r}, **{cell.keys!r}).close()"
    done = run("-c", code)
    harmless = (name == "clean.dot" and kind == "pipe") or (name == "msgstore-ets.snapshot" and cell.index == "lmdb")
    assert (done.returncode == 0) == harmless, done.stderr
    assert harmless or "msgstore.contract.errors.Store" in done.stderr
    assert run("-m", "msgstore.cli.main", "scan", made["path"]).returncode in (0, 1, 2)


def test_highest_segment_number_is_refused(made, cell):
    extension = SEGMENT[cell.format][1:]
    segment = made["path"] / SEGMENT[cell.format]
    segment.rename(made["path"] / f"9999999999{extension}")
    use(made)
    with msgstore.open_store(**made, file_size_limit="1KiB") as store, store.client() as client:
        for n in range(3):
            client.write(bytes([100 + n]) * 16, bytes(2000))
            store.flush()
    assert use(made) == 9  # 5, two new ones that are the same, three: behind the number, too
    (made["path"] / f"9999999999{extension}").rename(made["path"] / f"{MAX_NUMBER}{extension}")
    with pytest.raises(msgstore.StoreMismatch, match="highest possible number"):
        use(made)


@pytest.mark.parametrize(("name", "size"), [("msgstore.json", 100 * 2**20), ("clean.dot", 2**30), ("msgstore.lock", 2**30)])
def test_huge_own_files_are_not_read(made, cell, name, size):
    with (made["path"] / name).open("ab") as file:
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert use(made) == 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024  # KiB; of a GiB


def test_segment_of_one_tebibyte_is_refused(made, cell):
    with (made["path"] / SEGMENT[cell.format]).open("ab") as file:
        file.truncate(2**40)
    for mode in ("r", "rw"):
        with pytest.raises(msgstore.StoreError, match="1 TiB"):
            msgstore.open_store(**made, mode=mode)


def test_scan_and_salvage_never_touch_lmdb(tmp_path, monkeypatch):
    path = tmp_path / "store"
    filled(path, [(b"i" * 16, b"body")], index="lmdb")
    monkeypatch.setattr(lmdb, "Environment", None)  # whoever calls it fails
    command("scan", path)
    command("salvage", path, tmp_path / "fresh")
    with pytest.raises(BrokenPlugin, match=r"cannot load its entries .*TypeError"):
        msgstore.open_store(path, index="ets")  # takes the counts over from the index of the last opening
    (path / "msgstore-lmdb").rename(path / "away")
    with msgstore.open_store(path, index="ets") as store:
        assert store.stats().messages == 1


def test_checkpoint_row_with_flipped_bit_is_refused(tmp_path):
    """A wrong count of live records would make a segment look empty."""
    with msgstore.open_store(tmp_path, index="ets") as store, store.client() as client:
        client.write(b"i" * 16, b"body")
        store.flush()
        segment = next(iter(store._segments))
        key, row = checkpoint.row_key(segment), checkpoint.pack_row(segment)
        assert checkpoint.rows({key: row})[segment.path.name].live_count == 1
        assert checkpoint.rows({key: row[:-4]})[segment.path.name].live_count == 1  # as it was written before
        for bit in range(8 * len(row)):
            flipped = bytearray(row)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(ValueError, match="damaged"):
                checkpoint.rows({key: bytes(flipped)})
        with pytest.raises(ValueError, match="damaged"):
            checkpoint.rows({key.replace(b"0", b"1"): row})
        segment.live_bytes, before = -1, segment.live_bytes
        with pytest.raises(msgstore.StoreError, match="index is damaged"):
            checkpoint.pack_row(segment)
        segment.live_bytes, segment.sealed_mtime_ns = before, 2**63 + 5
        assert checkpoint.rows({key: checkpoint.pack_row(segment)})[segment.path.name].mtime_ns is None
        segment.sealed_mtime_ns = None


def test_settings_with_hostile_name_suggest_no_install(made, cell):
    members = '{"layout": 1, "index": "../../evil", "format": "v2", "record": "message", "body": "raw", "records": {}}'
    text = json.dumps({**(parsed := json.loads(members)), "crc32": zlib.crc32(json.dumps(parsed, sort_keys=True).encode())})
    (made["path"] / "msgstore.json").write_text(text)
    with pytest.raises(msgstore.MsgStoreError) as caught:
        msgstore.open_store(**made)
    assert "pip install ../../evil" not in str(caught.value)


@pytest.mark.slow
def test_directory_of_ten_thousand_segments_opens(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "msgstore")
    for n in range(10_000):
        (tmp_path / f"{n}.sqs").touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with msgstore.open_store(tmp_path, index="ets", adopt=True) as store:
        assert store.stats().messages == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
