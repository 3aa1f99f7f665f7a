"""Directories that RabbitMQ wrote: nothing of what they hold is lost, whatever is done to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import RecordingFiles
from support import DATA, DIRECTORIES, RealDirectory, hashes, open_with
from support import counts as references_of


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


@pytest.mark.parametrize("name", DIRECTORIES)
def test_saved_index_of_broker_is_put_away(name, index, tmp_path):
    path = RealDirectory.load(name).copy(tmp_path)
    store = msgstore.open_store(path, adopt=True, index=index, format="v2")
    assert not {"clean.dot", "msg_store_index.ets", "file_summary.ets"} & {entry.name for entry in path.iterdir()}
    store.close()
    assert not {"msg_store_index.ets", "file_summary.ets"} & {entry.name for entry in path.iterdir()}


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
