"""Directories that RabbitMQ wrote: nothing of what they hold is lost, whatever is done to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import msgstore
from msgstore.files import Files
from msgstore.scan import FormatSet, scan_file
from msgstore.testing.faults import RecordingFiles
from support import DATA, DIRECTORIES, RealDirectory, hashes, open_with
from support import counts as references_of

BROKERS = {"clean.dot", "msg_store_index.ets", "file_summary.ets"}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_live_messages_with_counts_survive_everything(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    live, counts = real.live, real.refcounts
    if real.torn_id:
        counts.pop(real.torn_id, None)

    with msgstore.open_store(path, adopt=True, index=index, format="v2", refcounts=real.refcounts.items()) as store:
        assert hashes(store) == live
        assert references_of(store) == {i: counts[i] for i in live}
        store.compact()
        assert hashes(store) == live
        store.compact(everything=True)
        assert hashes(store) == live
        migrated = store.migrate()
        assert not any(done.skipped for done in migrated)
        assert not list(path.glob("*.rdq"))
        assert hashes(store) == live
        with store.client() as client:
            assert len(client.read_many(live)) == len(live)
    assert not BROKERS - {"clean.dot"} & {entry.name for entry in path.iterdir()}
    with msgstore.open_store(path, index=index, format="v2") as store:
        assert store.stats().recovery.how == "trust"
        assert hashes(store) == live
        assert references_of(store) == {i: counts[i] for i in live}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_live_messages_without_counts_all_survive(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    (path / "msg_store_index.ets").unlink(missing_ok=True)
    with msgstore.open_store(path, adopt=True, index=index, format="v2", on_legacy="migrate") as store:
        assert not list(path.glob("*.rdq"))
        assert real.live.items() <= hashes(store).items()
        assert {entry.references for entry in store.entries()} == {1}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_dirty_stop_after_adoption_loses_nothing(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    store = msgstore.open_store(path, adopt=True, index=index, format="v2", refcounts=real.refcounts.items())
    assert not BROKERS & {entry.name for entry in path.iterdir()}, "the saved index of the broker is not put away"
    store.compact(everything=True)
    store.abandon()
    with msgstore.open_store(path, index=index, format="v2", refcounts=real.refcounts.items()) as store:
        assert (store.stats().recovery.how == "rebuild") == (index == "ets")
        assert hashes(store) == real.live


def test_torn_segment_is_sealed_never_shortened(index, tmp_path):
    real = RealDirectory.load("v2_dirty_torn")
    path = real.copy(tmp_path)
    size = (path / "1.sqs").stat().st_size
    with msgstore.open_store(path, adopt=True, index=index, format="v2") as store, store.client() as client:
        client.write(bytes(16), b"new")
        store.flush()
        assert (path / "1.sqs").stat().st_size == size
        assert (path / "2.sqs").exists()
    torn = real.manifest["torn"]
    assert size - torn["record_offset"] == torn["kept_bytes"]


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
    with open_with(path, adopt=True, index=index, format="v2") as store, store.client() as client:
        assert store.stats().recovery.counts == "msg_store_index.ets"
        found = {entry.msg_id.hex(): (entry.number, entry.offset, entry.size, entry.references) for entry in store.entries()}
        names = ("file", "offset", "total_size", "ref_count")
        assert found == {msg_id: tuple(row[name] for name in names) for msg_id, row in rows.items()}
        assert {msg_id.hex() for msg_id in client.read_many(map(bytes.fromhex, rows))} == rows.keys()


def test_corpus_is_complete():
    assert sorted(entry.name for entry in (DATA / "msg-store").iterdir()) == sorted([*DIRECTORIES, "v2_corrupt"])
    assert len(SHARED_STORES) == 6


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
    if form == "v2":
        assert ours == theirs
    else:  # the old broker knew no boundary; ours is the highest .rdq
        assert ours == [*theirs, "{last_v1_file,2}."]


def test_the_boundary_of_a_mixed_directory(index, tmp_path):
    path = RealDirectory.load("mixed_upgrade").copy(tmp_path)
    before = (path / "clean.dot").read_text()
    msgstore.open_store(path, adopt=True, index=index, format="v2").close()
    assert (path / "clean.dot").read_text() == before


def test_what_we_compact_follows_the_rules_for_holes(index, tmp_path):
    """A strict scan of a compacted directory is clean: no hole after a hole, no run of five small ones."""
    real = RealDirectory.load("v2_compacted")
    path = real.copy(tmp_path)
    with msgstore.open_store(path, adopt=True, index=index, format="v2") as store, store.client() as client:
        ids = sorted(real.live)
        client.remove(ids[::3])
        store.compact(everything=True)
    assert _states(path) == {"clean"}


def _states(path: Path) -> set[str]:
    form = FormatSet(msgstore.load_catalogue()).by_name("v2")
    reports = [scan_file(Files(), segment, form) for segment in path.glob("*.sqs")]
    assert reports
    return {report.scan.end.state for report in reports}
