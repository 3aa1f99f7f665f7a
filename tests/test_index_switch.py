"""From one index to another and back: every entry and every reference count goes along."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lmdb
import pytest

import msgstore
from msgstore.plugins.catalogue import load_catalogue
from msgstore_lmdb_index import rescue
from support import DATA, RealDirectory, filled, hashes, open_with
from support import counts as references_of

IDS = [bytes([n]) * 16 for n in range(10)]


@pytest.mark.parametrize("clean", [True, False])
def test_index_switched_repeatedly_keeps_counts(clean, tmp_path):
    real = RealDirectory.load("mixed_upgrade")
    path = real.copy(tmp_path)
    counts = real.refcounts
    open_with(path, adopt=True, index="lmdb", refcounts=counts.items()).close()
    if not clean:  # only the lmdb index has the counts of a dirty stop
        open_with(path, index="lmdb").abandon()
    for index in ("ets", "lmdb", "ets"):
        with open_with(path, index=index) as store:
            assert store.stats().recovery.how == "taken over"
            assert hashes(store) == real.live
            assert references_of(store) == counts


def test_stale_index_is_never_trusted(tmp_path):
    """Messages removed under ets stay removed when lmdb, which still knows them, comes back."""
    filled(tmp_path, [(i, i) for i in IDS], index="lmdb")
    with open_with(tmp_path, index="ets") as store, store.client() as client:
        client.remove(IDS[:5])
    with open_with(tmp_path, index="lmdb") as store:
        assert {entry.msg_id for entry in store.entries()} == set(IDS[5:])


def test_switch_without_old_plugin_is_refused(tmp_path, monkeypatch):
    filled(tmp_path, [(bytes(16), b"1")], index="lmdb")
    without = load_catalogue(["lmdb-index"])
    monkeypatch.setattr("support.catalogue", lambda: without)
    with pytest.raises(msgstore.StoreMismatch, match=r"last opened with the index .lmdb..*pip install msgstore-lmdb-index"):
        open_with(tmp_path, index="ets")
    with open_with(tmp_path, index="ets", refcounts=[(bytes(16), 2)]) as store:
        assert store.references(bytes(16)) == 2


@pytest.mark.parametrize(("before", "after"), [("lmdb", "ets"), ("ets", "lmdb")])
def test_switch_with_given_counts_distrusts_nothing(tmp_path, before, after):
    """A shortened segment contradicts the old index, which is not asked: the given counts are used."""
    filled(tmp_path, [(i, i) for i in IDS[:3]], index=before)
    os.truncate(tmp_path / "0.sqs", 64 + 2 * 37)
    with open_with(tmp_path, index=after, refcounts=[(IDS[0], 2)]) as store:
        assert store.stats().recovery.distrust is None
        assert {entry.msg_id: entry.references for entry in store.entries()} == {IDS[0]: 2}


def write_three_times(path, ids) -> None:
    with open_with(path, index="lmdb") as store, store.client() as client:
        for _ in range(3):
            client.write_many((i, i) for i in ids)
            store.flush()


def damage_lmdb(path: Path) -> None:
    """Cut off the end of LMDB's file, but for the pages of its entries. The index notices that when it opens."""
    data = path / "msgstore-lmdb" / "data.mdb"
    counts = rescue.read_counts(data.parent)
    assert counts, "the store of the test has no message with several references"
    with lmdb.open(str(data.parent), readonly=True, lock=False) as env:
        size = env.stat()["psize"] * env.info()["last_pgno"]
    whole = data.read_bytes()[:size]
    data.write_bytes(whole)
    assert rescue.read_counts(data.parent) == counts, "the last page has entries"


def test_leaving_a_damaged_index_keeps_counts(tmp_path):
    """What can be read of its counts goes along, as when it is opened as itself."""
    write_three_times(tmp_path, IDS)
    damage_lmdb(tmp_path)
    with open_with(tmp_path, index="ets") as store:
        assert references_of(store) == dict.fromkeys(IDS, 3), "counts that can be read are lost"


def test_damaged_index_yields_to_brokers_counts(tmp_path):
    """The broker has stopped cleanly after our index was saved: its counts are exact, and ours are old."""
    real = RealDirectory.load("v1_clean")
    path = real.copy(tmp_path)
    with open_with(path, index="lmdb", adopt=True) as store:
        counts = references_of(store)
    write_three_times(path, counts)
    damage_lmdb(path)
    for name in ("msg_store_index.ets", "file_summary.ets", "clean.dot"):
        shutil.copy(DATA / "msg-store" / real.name / "store" / name, path)
    with open_with(path, index="lmdb") as store:
        assert store.stats().recovery.counts == "msg_store_index.ets"
        assert references_of(store) == counts, "old counts took the place of the broker's"


def test_damaged_index_of_before_gives_no_counts(tmp_path):
    """The counts of an index that the directory has left are older than one reference for each."""
    write_three_times(tmp_path, IDS)
    with open_with(tmp_path, index="ets") as store, store.client() as client:
        client.remove(IDS)
        client.remove(IDS)
    damage_lmdb(tmp_path)
    store = open_with(tmp_path, index="ets")
    store.client().write(bytes(16), b"")
    store.flush()
    store.abandon()
    with open_with(tmp_path, index="lmdb") as store:
        assert {store.references(i) for i in IDS} == {1}, "an index that was left years ago has given its counts"
