"""What SECURITY.md says of a directory that somebody else made: each claim is tried."""

from __future__ import annotations

import os
import resource

import lmdb
import pytest

import msgstore
from attempts import in_processes
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


@pytest.fixture
def broker(tmp_path):
    (tmp_path / "broker").mkdir()
    return tmp_path / "broker"


def record(msg_id, body):
    """A record of v1."""
    return (16 + len(body)).to_bytes(8) + msg_id + body + b"\xff"


@pytest.mark.parametrize("command_line", ["scan", "scan --body erlang", "verify", "salvage", "inventory"])
def test_other_body_of_same_id_is_damage(command_line, broker):
    """A fault of RabbitMQ's compaction leaves two. A codec may store a body in several ways: other bodies are not compared."""
    term = b"\x83m\0\0\0\3"
    copies = [term + b"one", term + b"two", term + b"one"]
    records = [record(msg_id * 16, body) for msg_id, bodies in ((b"a", copies), (b"b", [b"x", b"y"])) for body in bodies]
    (broker / "0.rdq").write_bytes(b"".join(records))
    verb, *options = command_line.split()
    arguments = [verb, broker, *([broker.with_name("rescued")] if verb == "salvage" else []), *options]
    if options:
        (broker / "0.rdq").write_bytes(b"".join(records[:3]))
    done = command(*arguments, code=1)
    assert f"{len(records[0])} B  another_body" in done.output
    if verb in ("scan", "inventory"):  # msgstore writes a second record of an id whose first record is dead
        (broker / "msgstore.json").write_text('{"layout": 1, "format": "v1", "body": "erlang"}')
        assert "another_body" not in command(*arguments, code=None).output


def test_other_body_is_compared_with_the_valid_one(broker):
    """A first copy that the codec refuses is no reason to leave out the second one."""
    bodies = (b"\x83m\xff\xff\xff\xffone", b"\x83m\0\0\0\3two")
    (broker / "0.rdq").write_bytes(b"".join(record(b"a" * 16, body) for body in bodies))
    command("salvage", broker, broker.with_name("rescued"), "--body", "erlang", code=1)
    with msgstore.open_store(broker.with_name("rescued"), mode="r") as store:
        assert store.read(b"a" * 16) == b"two"


def use(keys):
    """Open for writing and write; the number of messages that were there."""
    with msgstore.open_store(**keys) as store, store.client() as client:
        messages = store.stats().messages
        client.write(b"n" * 16, b"new")
        store.flush()
        store.compact()
    return messages


@pytest.mark.parametrize(
    "name", ["msgstore.lock", "segment", "msgstore-lmdb/lock.mdb", "msgstore-lmdb/data.mdb", "msgstore-lmdb"]
)
def test_link_in_place_of_own_file_is_refused(made, cell, name, tmp_path):
    """Though what it leads to is the very file."""
    if "lmdb" in name and cell.index != "lmdb":
        pytest.skip("this index has no such file")
    path = made["path"] / (SEGMENT[cell.format] if name == "segment" else name)
    outside = path.rename(tmp_path / "outside")
    path.symlink_to(outside)
    before = {file: file.read_bytes() for file in (outside, *outside.rglob("*")) if file.is_file()}
    with pytest.raises(msgstore.StoreError, match=path.name):
        use(made)
    assert {file: file.read_bytes() for file in before} == before
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


def test_link_to_itself_is_no_file(made):
    (made["path"] / "zz").symlink_to("zz")
    assert use(made) == 5
    assert command("verify", made["path"], code=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize("name", ["msgstore.lock", "msgstore.json", "segment", "clean.dot", "msgstore-ets.snapshot"])
def test_pipe_or_directory_in_place_never_blocks(made, cell, name, kind):
    path = made["path"] / ("7" + SEGMENT[cell.format][1:] if name == "segment" else name)
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    open_it, scan = lambda _: msgstore.open_store(**made).close(), lambda _: command("scan", path.parent, code=None).exit_code
    (_, _, error), (_, result, scan_error) = in_processes([("open", open_it), ("scan", scan)], seconds=30)
    harmless = (name == "clean.dot" and kind == "pipe") or (name == "msgstore-ets.snapshot" and cell.index == "lmdb")
    assert (not error) == harmless, error
    assert harmless or "msgstore.contract.errors.Store" in error
    assert result in (0, 1, 2), scan_error


@pytest.mark.parametrize(("name", "size"), [("msgstore.json", 100 * 2**20), ("clean.dot", 2**30), ("msgstore.lock", 2**30)])
def test_huge_own_files_are_not_read(made, cell, name, size):
    with (made["path"] / name).open("ab") as file:
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert use(made) == 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024  # KiB; of a GiB


@pytest.mark.parametrize("command_line", ["scan", "ls", "verify", "salvage --runner local", "inventory --runner local"])
@pytest.mark.parametrize("form", ["v1", "v2"])
def test_holes_of_sparse_segment_are_skipped(form, command_line, tmp_path):
    """Read, they would take memory and seconds for each GiB. Records between two holes are found all the same."""
    segment = filled(tmp_path / "store", TWENTY[:5], index="ets", format=form) / SEGMENT[form]
    other = filled(tmp_path / "other", TWENTY[5:15], index="ets", format=form) / SEGMENT[form]
    with segment.open("r+b") as file:
        file.seek(2**28)
        file.write(other.read_bytes()[64 * (form == "v2") :])
        file.truncate(2**29)
    verb, *options = command_line.split()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = command(verb, segment.parent, *([tmp_path / "new"] if verb == "salvage" else []), *options, code=None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024  # KiB; of half a GiB
    assert done.exit_code == (form == "v2"), done.output  # where only a hole may follow a hole, zeros are damage
    assert segment.stat().st_blocks * 512 < 2**20
    if verb == "salvage":
        with msgstore.open_store(tmp_path / "new", mode="r") as store:
            assert store.stats().messages == 15


def test_segment_too_large_or_too_high_is_refused(made, cell):
    segment = made["path"] / SEGMENT[cell.format]
    highest = segment.rename(segment.with_stem(str(MAX_NUMBER)))
    with pytest.raises(msgstore.StoreMismatch, match="highest possible number"):
        use(made)
    highest.rename(segment)
    os.truncate(segment, 2**40)
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
    store = msgstore.open_store(filled(tmp_path, [(b"i" * 16, b"body")], index="ets"), index="ets")
    [segment] = store._segments
    key, row = checkpoint.row_key(segment), checkpoint.pack_row(segment)
    assert checkpoint.rows({key: row})[segment.path.name] == checkpoint.rows({key: row[:-4]})[segment.path.name]  # as before
    flipped = [row[: bit // 8] + bytes([row[bit // 8] ^ 1 << bit % 8]) + row[bit // 8 + 1 :] for bit in range(8 * len(row))]
    for wrong in ({key.replace(b"0", b"1"): row}, *({key: data} for data in flipped)):
        with pytest.raises(ValueError, match="damaged"):
            checkpoint.rows(wrong)
    segment.sealed_mtime_ns = 2**63 + 5
    assert checkpoint.rows({key: checkpoint.pack_row(segment)})[segment.path.name].mtime_ns is None
    segment.live_bytes = -1
    with pytest.raises(msgstore.StoreError, match="index is damaged"):
        checkpoint.pack_row(segment)
    store.abandon()
