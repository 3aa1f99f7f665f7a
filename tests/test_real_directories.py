"""Directories that RabbitMQ wrote: nothing of what they hold is lost, whatever is done to them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import RecordingFiles
from support import DATA, DIRECTORIES, RealDirectory, counts_file, filled, hashes, json_of, open_with, slow, unchanged
from support import counts as references_of

BROKERS = {"clean.dot", "msg_store_index.ets", "file_summary.ets"}


def adopted(path: Path, index: str, **keys: object) -> msgstore.Store:
    return msgstore.open_store(path, **{"adopt": True, "index": index, "format": "v2", **keys})


TYPICAL = ["mixed_upgrade", "v1_compacted", "v2_clean", "v2_dirty_torn"]
each_directory = pytest.mark.parametrize("name", [*TYPICAL, *(slow(name) for name in DIRECTORIES if name not in TYPICAL)])


@each_directory
def test_live_messages_with_counts_survive_everything(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    live, given = real.live, real.refcounts.items()
    counts = {msg_id: count for msg_id, count in given if msg_id in live}
    store = adopted(path, index, refcounts=given)
    assert not BROKERS & {entry.name for entry in path.iterdir()}, "the saved index of the broker is not put away"
    everything = partial(msgstore.Store.compact, everything=True)
    for change in (msgstore.Store.compact, everything, msgstore.Store.migrate):
        assert not any(done.skipped for done in change(store))
        assert hashes(store) == live
        assert references_of(store) == counts
        if change != msgstore.Store.migrate:
            store.abandon()  # killed
            store = adopted(path, index, refcounts=given)
            assert (store.stats().recovery.how == "rebuild") == (index == "ets")
    assert not list(path.glob("*.rdq"))
    with store.client() as client:
        assert len(client.read_many(live)) == len(live)
    store.close()
    with msgstore.open_store(path, index=index, format="v2") as store:
        assert store.stats().recovery.how == "trust"
        assert (hashes(store), references_of(store)) == (live, counts)


@each_directory
def test_live_messages_without_counts_all_survive(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    (path / "msg_store_index.ets").unlink(missing_ok=True)
    with adopted(path, index, on_legacy="migrate") as store:
        assert not list(path.glob("*.rdq"))
        assert real.live.items() <= hashes(store).items()
        assert {entry.references for entry in store.entries()} == {1}


def test_torn_segment_is_sealed_never_shortened(index, tmp_path):
    path = RealDirectory.load("v2_dirty_torn").copy(tmp_path)
    size = (path / "1.sqs").stat().st_size
    with adopted(path, index) as store, store.client() as client:
        client.write(bytes(16), b"new")
        store.flush()
        assert (path / "1.sqs").stat().st_size == size
        assert (path / "2.sqs").exists()


def test_emptied_segments_are_deleted_unread(index, tmp_path):
    real = RealDirectory.load("v2_clean")
    files = RecordingFiles()
    path = real.copy(tmp_path)
    with open_with(path, files, adopt=True, index=index, format="v2", refcounts=real.refcounts.items()) as store:
        files.operations.clear()
        with store.client() as client:
            client.remove([msg_id for msg_id, count in real.refcounts.items() for _ in range(count)])
        store.roll()
        store.flush()
        assert not list(path.glob("*.sqs"))
        assert files.count("pread", "open_read", "read_file") == 0


SHARED_STORES = [
    (fixture, vhost, kind)
    for fixture in ("clean", "priority_lazy")
    for vhost in json.loads((DATA / "rabbitmq-3.10" / fixture / "erlang_dump.json").read_text())
    for kind in ("persistent", "transient")
]


@pytest.mark.parametrize(("fixture", "vhost", "kind"), SHARED_STORES)
def test_shared_stores_match_broker_index(fixture, vhost, kind, index, tmp_path):
    """Every id with a count reads, from the file, offset and size that the broker's own index names. Its saved tables give the
    counts."""
    dump = json.loads((DATA / "rabbitmq-3.10" / fixture / "erlang_dump.json").read_text())[vhost]
    source = DATA / "rabbitmq-3.10" / fixture / "msg_stores" / "vhosts" / vhost / f"msg_store_{kind}"
    path = Path(shutil.copytree(source, tmp_path / "store"))
    rows = {row["id"]: row for row in dump[f"msg_store_index_{kind}"] if row["ref_count"] > 0}
    with open_with(path, mode="r", index=index, format="v2") as store:
        assert references_of(store) == {bytes.fromhex(msg_id): row["ref_count"] for msg_id, row in rows.items()}
    with adopted(path, index) as store, store.client() as client:
        assert store.stats().recovery.counts == "msg_store_index.ets"
        found = {entry.msg_id.hex(): (entry.number, entry.offset, entry.size, entry.references) for entry in store.entries()}
        names = ("file", "offset", "total_size", "ref_count")
        assert found == {msg_id: tuple(row[name] for name in names) for msg_id, row in rows.items()}
        assert {msg_id.hex() for msg_id in client.read_many(map(bytes.fromhex, rows))} == rows.keys()


# -- what is written with body = "erlang" is, byte for byte, what RabbitMQ wrote ------------------------------------------


@pytest.mark.parametrize(("name", "form"), [("v2_clean", "v2"), ("v1_clean", "v1")])
def test_segments_and_clean_dot_are_the_brokers(name, form, index, tmp_path):
    real = RealDirectory.load(name)
    source = DATA / "msg-store" / name / "store"
    store = msgstore.open_store(
        tmp_path / "store", index=index, format=form, body="erlang", file_size_limit=real.manifest["file_size_limit"]
    )
    client = store.client(bytes.fromhex(real.manifest["client_ref"]).decode())
    for segment in real.manifest["segments"]:
        data = (source / segment["name"]).read_bytes()
        for record in segment["records"]:
            head, tail = (21, 0) if form == "v2" else (24, 1)
            term = data[record["offset"] + head : record["offset"] + record["total_size"] - tail]
            assert term[:2] == b"\x83m"  # a binary: 131, 109, length
            client.write(bytes.fromhex(record["id"]), term[6:])
    store.close()
    for segment in real.manifest["segments"]:
        assert (tmp_path / "store" / segment["name"]).read_bytes() == (source / segment["name"]).read_bytes()
    ours = (tmp_path / "store" / "clean.dot").read_text().splitlines()
    theirs = (source / "clean.dot").read_text().splitlines()
    # The old broker knew no boundary; ours is the highest .rdq.
    assert ours == (theirs if form == "v2" else [*theirs, "{last_v1_file,2}."])


# -- what a broker before 3.13 leaves that is killed while it combines two segments ------------------------------------------


class Combining:
    """The two segments with most records of a real directory, and what the steps make of them.

    The live messages of the left segment that do not stand together at its start are copied into ``N.rdt``; the left segment is
    cut behind those that do; the others are copied back from ``N.rdt``; the live messages of the right segment are copied
    behind them; the right one is deleted.
    """

    def __init__(self, path: Path) -> None:
        self.real = RealDirectory.load("v1_clean")
        self.live = self.real.refcounts.keys()
        self.path = self.real.copy(path)
        for name in BROKERS:
            (self.path / name).unlink()  # it was killed
        (left, moved), (right, self.from_right) = map(self._live, self.real.manifest["segments"][:2])
        self.left, self.right, self.leftover = left.name, right.name, left.with_suffix(".rdt").name
        self.start = b""  # is never moved
        source = left.read_bytes()
        while moved and source.startswith(moved[0], len(self.start)):
            self.start += moved.pop(0)
        self.moved, self.from_right = b"".join(moved), b"".join(self.from_right)
        assert min(len(self.moved), len(self.from_right)) > 10_000

    def _live(self, segment):
        path = self.path / segment["name"]
        data = path.read_bytes()
        live = [r for r in segment["records"] if bytes.fromhex(r["id"]) in self.live]
        return path, [data[r["offset"] : r["offset"] + r["total_size"]] for r in live]

    def killed(self, step: str) -> None:
        for name, data in STEPS[step](self).items():
            (self.path / name).write_bytes(data) if data is not None else (self.path / name).unlink()


STEPS: dict[str, Callable[[Combining], dict[str, bytes | None]]] = {
    "while the leftover is written": lambda c: {c.leftover: c.moved[: len(c.moved) * 2 // 3 + 5]},
    "when the left one is cut": lambda c: {c.leftover: c.moved, c.left: c.start},
    "half of the leftover is copied back": lambda c: {c.leftover: c.moved, c.left: c.start + c.moved[: len(c.moved) // 2 + 7]},
    "while the right one is copied": lambda c: {
        c.leftover: c.moved,
        c.left: c.start + c.moved + c.from_right[: len(c.from_right) // 2 + 3],
    },
    "when the right one is deleted": lambda c: {
        c.leftover: c.moved,
        c.left: c.start + c.moved + c.from_right,
        c.right: None,
    },
}
"""What is written in the directory until the kill; None: deleted."""


@pytest.mark.parametrize("step", [slow(step) if step.startswith("while") else step for step in STEPS])
def test_leftover_of_killed_combination_loses_nothing(step, index, tmp_path):
    """It is read as a segment. For writing it is refused, until it is renamed as the error says."""
    combining = Combining(tmp_path)
    combining.killed(step)
    path, real = combining.path, combining.real
    keys = {"index": index, "refcounts": real.refcounts.items()}
    with unchanged(path), msgstore.open_store(path, mode="r", **keys) as store, store.client() as client:
        assert hashes(store) == real.live
        assert client.read_many(real.live).keys() == real.live.keys()
    with unchanged(path), pytest.raises(msgstore.StoreMismatch, match=r"0\.rdt: is left .* Rename it to 3\.rdq,"):
        adopted(path, **keys)
    (path / combining.leftover).rename(path / "3.rdq")
    with adopted(path, **keys) as store:
        assert (hashes(store), references_of(store)) == (real.live, real.refcounts)
        store.compact(everything=True)
        assert not any(done.skipped for done in store.migrate())
        assert hashes(store) == real.live


def test_tools_read_leftover_as_segment(tmp_path):
    pytest.importorskip("msgstore_ets_index")  # the tools open the store with the default index; cells of LMDB lack it
    combining = Combining(tmp_path)
    combining.killed("when the left one is cut")
    path, live = combining.path, {msg_id.hex() for msg_id in combining.real.live}
    scanned = json_of("scan", path)
    assert [Path(segment["path"]).name for segment in scanned] == ["0.rdq", "0.rdt", "1.rdq", "2.rdq"]
    assert {record["id"] for segment in scanned for record in segment["records"]} >= live
    assert {line["id"] for line in json_of("ls", path)} >= live
    counts = counts_file(tmp_path / "counts.csv", combining.real.refcounts.items())
    drawn = {Path(one["path"]).name: one for one in json_of("map", path, "--refcounts", counts)}
    assert drawn["0.rdt"]["live_bytes"] == drawn["0.rdt"]["size"]
    assert json_of("salvage", path, tmp_path / "new", code=None)[-1]["messages"] >= len(live)
    with msgstore.open_store(tmp_path / "new") as store:
        assert hashes(store).items() >= combining.real.live.items()


def test_unfinished_copies_are_deleted(index, tmp_path):
    filled(tmp_path, [(bytes(16), b"body")], index=index)
    (tmp_path / "7.sqs.tmp").write_bytes(b"half a copy")
    (tmp_path / "notes.tmp").write_bytes(b"not ours")
    for mode, is_there in (("r", True), ("rw", False)):
        with msgstore.open_store(tmp_path, index=index, mode=mode) as store, store.client() as client:
            assert client.read(bytes(16)) == b"body"
        assert (tmp_path / "7.sqs.tmp").exists() == is_there
    assert (tmp_path / "notes.tmp").exists()
